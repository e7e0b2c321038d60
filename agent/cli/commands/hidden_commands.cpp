// mycojobs complete, mycojobs man-page
#include "cli/commands/hidden_commands.h"

#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "cli/commands/man_pages.h"
#include "cli/terminal.h"
#include "store/redis/embedded_redis.h"

namespace mycojobs {
namespace {

constexpr std::uint32_t kMaxCandidates = 200;
constexpr suseconds_t kTimeoutUs = 800'000;  // limits the delay after the user has pressed Tab

// Signal handler of the timer. Does not print a message, because a message would disturb the command that the user
// types.
void exit_silently(int) { ::_exit(0); }

void set_exit_timer() {
  struct sigaction action {};
  action.sa_handler = exit_silently;
  (void)::sigaction(SIGALRM, &action, nullptr);
  const itimerval timer{{0, 0}, {0, kTimeoutUs}};
  (void)::setitimer(ITIMER_REAL, &timer, nullptr);
}

using CandidateList = Result<std::vector<std::string>>;

CandidateList list_job_names(StoreFactory& stores, Id context) {
  MJ_TRY(store, stores.open());
  JobFilter filter;
  filter.max_scanned = kMaxCandidates;
  MJ_TRY(page, store->jobs(context, filter));
  std::vector<std::string> names;
  for (const auto* jobs : {&page.unprocessed_jobs, &page.jobs}) {
    for (const ListedJob& job : *jobs) {
      if (job.key.starts_with("job:")) names.push_back(job.key.substr(4));
    }
  }
  return names;
}

CandidateList list_flow_ids(StoreFactory& stores, Id context) {
  MJ_TRY(flows, stores.open_flows());
  MJ_TRY(rows, flows->list(context, "", 0, kMaxCandidates));
  std::vector<std::string> names;
  for (const FlowSummary& entry : rows) names.push_back(std::to_string(entry.flow));
  return names;
}

CandidateList list_queue_names(StoreFactory& stores, Id context) {
  MJ_TRY(store, stores.open());
  MJ_TRY(queues, store->queues(context));
  std::vector<std::string> names;
  for (const QueueInfo& entry : queues) names.push_back(entry.queue);
  return names;
}

CandidateList list_schedule_names(StoreFactory& stores, Id context) {
  MJ_TRY(flows, stores.open_flows());
  MJ_TRY(schedules, flows->schedules(context));
  std::vector<std::string> names;
  for (const Schedule& entry : schedules) names.push_back(entry.name);
  return names;
}

struct CandidateKind {
  std::string_view name;
  CandidateList (*list)(StoreFactory&, Id context);
};
constexpr CandidateKind kCandidateKinds[] = {{"jobs", list_job_names},
                                             {"flows", list_flow_ids},
                                             {"queues", list_queue_names},
                                             {"schedules", list_schedule_names}};

// Shells expand candidates, so names from other clients are restricted to plain characters.
bool is_plain(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == ':' || c == '.' ||
           c == '_' || c == '-';
  });
}

// Prints neither names nor errors if the store is unavailable, is slow or denies access.
Result<int> complete_command(Invocation& call) {
  const auto* kind = std::find_if(std::begin(kCandidateKinds), std::end(kCandidateKinds),
                                  [&](const CandidateKind& entry) { return entry.name == call.arguments[0]; });
  if (kind == std::end(kCandidateKinds)) return fail(Code::invalid, "complete: jobs, flows, queues or schedules");
  set_exit_timer();
  // Unlike open_services(), this does not start a server.
  const std::string url =
      call.settings.redis.empty() ? EmbeddedRedis::url(call.settings.state_dir) : call.settings.redis;
  const auto stores = call.dependencies.make_stores(call.settings, url);
  const CandidateList names = kind->list(*stores, call.context());
  if (!names) return 0;
  std::string lines;
  for (const std::string& name : *names) lines += is_plain(name) ? name + "\n" : "";
  print(lines);
  return 0;
}

Result<int> man_page_command(Invocation& call) {
  const std::string page = make_man_page(call.arguments[0]);
  if (page.empty()) return fail(Code::not_found, "there is no man page " + call.arguments[0]);
  print(page);
  return 0;
}

}  // namespace

const std::vector<Command>& hidden_commands() {
  static const std::vector<Command> kHiddenCommands = {
      {"complete",
       "print the names that a shell offers: jobs, flows, queues or schedules",
       "WHAT",
       {},
       complete_command},
      {"man-page", "print the source of a man page, for scdoc", "NAME", {}, man_page_command},
  };
  return kHiddenCommands;
}

bool is_hidden_command(std::string_view name) {
  const auto& commands = hidden_commands();
  return std::any_of(commands.begin(), commands.end(), [&](const Command& command) { return command.name == name; });
}

}  // namespace mycojobs
