// mycojobs complete, man-page
#include "cli/commands/hidden_commands.h"

#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "cli/commands/man_pages.h"
#include "cli/store_session.h"
#include "cli/terminal.h"

namespace mycojobs {
namespace {

constexpr std::uint32_t kMaxNames = 200;
constexpr suseconds_t kPatienceUs = 800'000;  // acceptable delay for a user who presses Tab

// Exits without a message; names that were printed already are used.
void leave_in_silence(int) { ::_exit(0); }

void be_done_soon() {
  struct sigaction action {};
  action.sa_handler = leave_in_silence;
  (void)::sigaction(SIGALRM, &action, nullptr);
  const itimerval once{{0, 0}, {0, kPatienceUs}};
  (void)::setitimer(ITIMER_REAL, &once, nullptr);
}

using NameList = Result<std::vector<std::string>>;

NameList jobs_of(StoreFactory& stores, Id context) {
  MJ_TRY(store, stores.open());
  JobFilter wanted;
  wanted.max_scanned = kMaxNames;
  MJ_TRY(page, store->jobs(context, wanted));
  std::vector<std::string> names;
  for (const auto* jobs : {&page.unseen, &page.jobs}) {
    for (const ListedJob& each : *jobs) {
      if (each.key.starts_with("job:")) names.push_back(each.key.substr(4));
    }
  }
  return names;
}

NameList flows_of(StoreFactory& stores, Id context) {
  MJ_TRY(flows, stores.open_flows());
  MJ_TRY(rows, flows->list(context, "", 0, kMaxNames));
  std::vector<std::string> names;
  for (const FlowSummary& each : rows) names.push_back(std::to_string(each.flow));
  return names;
}

NameList queues_of(StoreFactory& stores, Id context) {
  MJ_TRY(store, stores.open());
  MJ_TRY(queues, store->queues(context));
  std::vector<std::string> names;
  for (const QueueInfo& each : queues) names.push_back(each.queue);
  return names;
}

NameList schedules_of(StoreFactory& stores, Id context) {
  MJ_TRY(flows, stores.open_flows());
  MJ_TRY(schedules, flows->schedules(context));
  std::vector<std::string> names;
  for (const Schedule& each : schedules) names.push_back(each.name);
  return names;
}

struct NameKind {
  std::string_view name;
  NameList (*list)(StoreFactory&, Id context);
};
constexpr NameKind kKinds[] = {
    {"jobs", jobs_of}, {"flows", flows_of}, {"queues", queues_of}, {"schedules", schedules_of}};

// Shells expand candidates, so names from other clients are restricted to plain characters.
bool is_plain(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == ':' || c == '.' ||
           c == '_' || c == '-';
  });
}

// If the store is unavailable, slow or denies access, prints neither names nor errors, because the user is typing.
int complete_command(Invocation& call) {
  const auto* kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                  [&](const NameKind& each) { return each.name == call.arguments[0]; });
  if (kind == std::end(kKinds)) return print_error({Code::invalid, "complete: jobs, flows, queues or schedules"});
  be_done_soon();
  // Unlike open_session(), this does not start a server.
  const std::string url = call.settings.redis.empty() ? call.parts.embedded_url(call.settings) : call.settings.redis;
  const auto stores = call.parts.stores(call.settings, url);
  const NameList names = kind->list(*stores, context_of(call));
  if (!names) return 0;
  std::string lines;
  for (const std::string& name : *names) lines += is_plain(name) ? name + "\n" : "";
  print(lines);
  return 0;
}

int man_page_command(Invocation& call) {
  const std::string page = man_page(call.arguments[0]);
  if (page.empty()) return print_error({Code::not_found, "there is no man page " + call.arguments[0]});
  print(page);
  return 0;
}

}  // namespace

const std::vector<Command>& hidden_commands() {
  static const std::vector<Command> kHidden = {
      {"complete",
       "print the names that a shell offers: jobs, flows, queues or schedules",
       "WHAT",
       {},
       complete_command},
      {"man-page", "print the source of a man page, for scdoc", "NAME", {}, man_page_command},
  };
  return kHidden;
}

bool is_hidden(std::string_view name) {
  const auto& all = hidden_commands();
  return std::any_of(all.begin(), all.end(), [&](const Command& row) { return row.name == name; });
}

}  // namespace mycojobs
