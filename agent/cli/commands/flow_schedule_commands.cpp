#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/commands/command_table.h"
#include "cli/commands/flow_commands.h"
#include "cli/commands/flow_start_commands.h"
#include "cli/terminal.h"
#include "flows/plan_limits.h"
#include "flows/schedules.h"
#include "model/codec.h"
#include "text/cron.h"
#include "text/json.h"
#include "text/suggestion.h"
#include "text/utf8.h"

namespace mycojobs {

// mycojobs flow schedule add | list | show | pause | resume | remove

namespace {

constexpr int kMomentsShown = 5;
constexpr int kTries = 5;  // attempts in case of concurrent changes

struct ScheduledTime {
  std::uint64_t ms = 0;
  std::string text;
};
Result<std::vector<ScheduledTime>> next_moments(const Schedule& schedule, std::uint64_t after_ms) {
  MJ_TRY(cron, parse_cron(schedule.cron));
  std::vector<ScheduledTime> moments;
  for (int i = 0; i < kMomentsShown; ++i) {
    MJ_TRY(next, next_time(cron, schedule.zone, after_ms));
    if (next == 0) break;
    moments.push_back({next, time_to_string(next, schedule.zone)});
    after_ms = next;
  }
  return moments;
}

std::string state_of(const Schedule& schedule) {
  if (schedule.paused) return "paused";
  return schedule.next_ms == 0 ? "ended" : "active";
}

nlohmann::json to_json(const Schedule& schedule, const std::vector<ScheduledTime>& moments) {
  nlohmann::json next = nlohmann::json::array();
  for (const ScheduledTime& each : moments) next.push_back({{"ms", each.ms}, {"text", each.text}});
  return {{"name", schedule.name},           {"state", state_of(schedule)},
          {"caller_id", schedule.caller},    {"cron", schedule.cron},
          {"zone", schedule.zone},           {"overlap", schedule.overlap},
          {"missed", schedule.missed},       {"definition_hash", schedule.definition_hash},
          {"next_ms", schedule.next_ms},     {"last_ms", schedule.last_ms},
          {"last_flow", schedule.last_flow}, {"revision", schedule.revision},
          {"note", schedule.note},           {"moments", std::move(next)}};
}

// The stored schedule may have been written by another client, so invalid values must be displayable.
std::string in_words(const Schedule& schedule) {
  const auto cron = parse_cron(schedule.cron);
  return cron ? describe(*cron) : "unreadable: " + cron.error().message;
}
std::vector<ScheduledTime> moments_of(const Schedule& schedule, std::uint64_t now_ms) {
  if (schedule.paused || schedule.next_ms == 0) return {};
  return next_moments(schedule, std::min(now_ms, schedule.next_ms - 1)).value_or(std::vector<ScheduledTime>());
}

void print_schedule(const Invocation& call, const Schedule& schedule, std::uint64_t now_ms) {
  const std::vector<ScheduledTime> moments = moments_of(schedule, now_ms);
  if (call.json) return print(dump_json(to_json(schedule, moments), 2) + "\n");
  print(fmt::format("{} ({}): {}, {}; overlap {}, missed {}\n", printable(schedule.name), state_of(schedule),
                    one_line(in_words(schedule)), one_line(schedule.zone), one_line(schedule.overlap),
                    one_line(schedule.missed)));
  print(fmt::format("definition {}, of actor {}\n", one_line(schedule.definition_hash), schedule.caller));
  if (schedule.last_flow != 0) {
    print(fmt::format("last: {} as flow {}\n", time_to_string(schedule.last_ms, schedule.zone), schedule.last_flow));
  }
  if (!schedule.note.empty()) print("note: " + one_line(schedule.note) + "\n");
  for (std::size_t i = 0; i < moments.size(); ++i) print((i == 0 ? "next: " : "      ") + moments[i].text + "\n");
}

// Returns nullopt if there is no schedule with this name.
Result<std::optional<Schedule>> find(OpenedFlows& open, Id context, const std::string& name) {
  MJ_TRY(all, open.flows->schedules(context));
  for (Schedule& each : all) {
    if (each.name == name) return std::optional(std::move(each));
  }
  return std::optional<Schedule>();
}

Result<Schedule> find_named(const Invocation& call, OpenedFlows& open) {
  const std::string& name = call.arguments.at(0);
  MJ_TRY(all, open.flows->schedules(context_of(call)));
  std::vector<std::string_view> names;
  for (Schedule& each : all) {
    if (each.name == name) return std::move(each);
    names.push_back(each.name);
  }
  return fail(Code::not_found,
              fmt::format("schedule {} does not exist in context {}{}; `mycojobs flow schedule "
                          "list{}` shows them",
                          excerpt(name), context_of(call), did_you_mean(name, names), context_words(call)));
}

// The flows are created as the schedule's caller, whose right to do so is checked at each scheduled time too.
Result<void> check_caller(const Invocation& call, OpenedFlows& open, const Schedule& schedule) {
  const service::RequestContext caller{context_of(call), schedule.caller, EntryPoint::command, false};
  auto allowed = service::check_permission(caller, open.store(), Action::create, {.name = "flows"});
  return allowed ? allowed : fail(allowed.error(), "--caller");
}

Resource thing_of(const Schedule& schedule) { return {.name = "schedule " + schedule.name, .maker = schedule.caller}; }

// Returns the schedule of the command line, with validated cron expression and policies.
Result<Schedule> wanted(const Invocation& call) {
  Schedule schedule;
  schedule.name = call.arguments.at(0);
  if (!call.has("cron")) {
    return fail(Code::invalid, "--cron: is missing: say when, as in --cron \"0 3 * * mon-fri\" or --cron @daily");
  }
  schedule.cron = call.get("cron");
  schedule.zone = call.get("zone", "UTC");
  schedule.overlap = call.get("overlap", "skip");
  schedule.missed = call.get("missed", "once");
  if (auto checked = check_schedule(schedule); !checked) {
    return fail(checked.error().code, "--" + checked.error().message);
  }
  MJ_TRY(caller, id_flag(call, "caller", kDefaultCaller));
  schedule.caller = caller;
  return schedule;
}

// Stores the schedule. Error conflict: another client has changed the schedule at the same time.
Result<Schedule> put(const Invocation& call, OpenedFlows& open, Schedule schedule, const FlowPlan& plan) {
  const Id context = context_of(call);
  MJ_TRY(before, find(open, context, schedule.name));
  MJ_CHECK(check_caller(call, open, schedule));
  if (before) {
    // Scheduled times that are due belong to the old definition, and are started with it.
    MJ_TRY(limits, service::limits_of(requested_owner(call, before->caller), open.store()));
    const auto may_start = [&limits](Id, const FlowPlan& due) { return check_jobs(due, limits); };
    MJ_CHECK(complete_schedule(*open.flows, open.cache, context, *before, may_start));
    MJ_TRY(settled, find(open, context, schedule.name));
    if (!settled) return fail(Code::conflict, "schedule " + schedule.name + " was removed in the meantime");
    schedule.last_ms = settled->last_ms;
    schedule.last_flow = settled->last_flow;
    schedule.revision = settled->revision;
    schedule.paused = settled->paused;
  }
  MJ_TRY(now, open.flows->now_ms(context));
  MJ_TRY(cron, parse_cron(schedule.cron));
  MJ_TRY(next, next_time(cron, schedule.zone, std::max(now, schedule.last_ms)));
  if (next == 0) {
    return fail(Code::invalid, "--cron: " + excerpt(schedule.cron) + " does not occur within the next ten years");
  }
  schedule.next_ms = next;
  schedule.definition_hash = plan.hash;
  MJ_CHECK(open.flows->put_schedule(context, schedule, plan.canonical, schedule.revision));
  ++schedule.revision;
  return schedule;
}

template <class Do>
auto against_others(const Do& act) -> decltype(act()) {
  for (int i = 1;; ++i) {
    auto done = act();
    if (done || done.error().code != Code::conflict || i == kTries) return done;
  }
}

Result<int> add(const Invocation& call) {
  MJ_TRY(schedule, wanted(call));
  const std::string& file = call.arguments.at(1);
  MJ_TRY(read, read_flow_file(call, file));
  if (!read.plan) return fail(Code::invalid, join_at(file, std::move(read.problems)));
  MJ_CHECK(check_inputs(*read.plan));
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(stored, against_others([&] { return put(call, open, schedule, *read.plan); }));
  MJ_TRY(now, open.flows->now_ms(context_of(call)));
  print_schedule(call, stored, now);
  warn_if_no_leader(call, open);
  return 0;
}

Result<int> list_schedules(const Invocation& call) {
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(schedules, open.flows->schedules(context_of(call)));
  MJ_TRY(now, open.flows->now_ms(context_of(call)));
  nlohmann::json array = nlohmann::json::array();
  std::vector<std::vector<std::string>> rows{{"NAME", "STATE", "CRON", "ZONE", "NEXT", "LAST", "FLOW", "NOTE"}};
  for (const Schedule& each : schedules) {
    array.push_back(to_json(each, moments_of(each, now)));
    const bool comes = !each.paused && each.next_ms != 0;
    rows.push_back({one_line(each.name), each.paused ? paint(OutputStyle::warn, "paused") : state_of(each),
                    one_line(each.cron), one_line(each.zone), comes ? time_to_string(each.next_ms, each.zone) : "",
                    each.last_ms == 0 ? "" : time_to_string(each.last_ms, each.zone),
                    each.last_flow == 0 ? "" : std::to_string(each.last_flow), one_line(each.note)});
  }
  if (call.json) {
    print(dump_json(array, 2) + "\n");
  } else {
    print_table(rows);
  }
  return 0;
}

Result<int> show_schedule(const Invocation& call) {
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(schedule, find_named(call, open));
  MJ_TRY(now, open.flows->now_ms(context_of(call)));
  print_schedule(call, schedule, now);
  return 0;
}

// Scheduled times during the pause are not missed: the schedule continues with the first time after now.
Result<Schedule> set_paused(const Invocation& call, OpenedFlows& open, bool paused) {
  MJ_TRY(schedule, find_named(call, open));
  MJ_TRY(by, request_context(call));
  MJ_CHECK(service::check_permission(by, open.store(), Action::steer, thing_of(schedule)));
  if (schedule.paused == paused) return std::move(schedule);
  schedule.paused = paused;
  schedule.note.clear();
  if (!paused) {
    MJ_TRY(now, open.flows->now_ms(context_of(call)));
    MJ_TRY(cron, parse_cron(schedule.cron));
    MJ_TRY(next, next_time(cron, schedule.zone, std::max(now, schedule.last_ms)));
    schedule.next_ms = next;
  }
  MJ_CHECK(open.flows->put_schedule(context_of(call), schedule, "", schedule.revision));
  ++schedule.revision;
  return std::move(schedule);
}

Result<int> pause(const Invocation& call, bool paused) {
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(schedule, against_others([&] { return set_paused(call, open, paused); }));
  MJ_TRY(now, open.flows->now_ms(context_of(call)));
  print_schedule(call, schedule, now);
  return 0;
}

Result<int> remove_schedule(const Invocation& call) {
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(schedule, find_named(call, open));
  MJ_TRY(by, request_context(call));
  MJ_CHECK(service::check_permission(by, open.store(), Action::administer, thing_of(schedule)));
  MJ_CHECK(open.flows->remove_schedule(context_of(call), schedule.name));
  print(call.json ? dump_json({{"name", schedule.name}, {"removed", true}}) + "\n"
                  : schedule.name + " is removed; its flows stay\n");
  return 0;
}

}  // namespace

int flow_schedule_add_command(Invocation& call) { return finish(add(call)); }
int flow_schedule_list_command(Invocation& call) { return finish(list_schedules(call)); }
int flow_schedule_show_command(Invocation& call) { return finish(show_schedule(call)); }
int flow_schedule_pause_command(Invocation& call) { return finish(pause(call, true)); }
int flow_schedule_resume_command(Invocation& call) { return finish(pause(call, false)); }
int flow_schedule_remove_command(Invocation& call) { return finish(remove_schedule(call)); }

}  // namespace mycojobs
