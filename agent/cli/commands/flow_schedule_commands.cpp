#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/command_output.h"
#include "cli/commands/commands.h"
#include "cli/commands/flow_commands.h"
#include "cli/commands/flow_start_commands.h"
#include "cli/request_arguments.h"
#include "cli/terminal.h"
#include "flows/plan_limits.h"
#include "flows/schedules.h"
#include "model/codec.h"
#include "text/cron.h"
#include "text/suggestion.h"
#include "text/utf8.h"

namespace mycojobs {

// mycojobs flow schedule add | list | show | pause | resume | remove

namespace {

constexpr int kMaxShownTimes = 5;
constexpr int kMaxScheduleAttempts = 5;  // attempts in case of concurrent changes

struct ScheduledTime {
  std::uint64_t ms = 0;
  std::string text;
};
Result<std::vector<ScheduledTime>> find_next_times(const Schedule& schedule, std::uint64_t after_ms) {
  MJ_TRY(cron, parse_cron(schedule.cron));
  std::vector<ScheduledTime> times;
  for (int i = 0; i < kMaxShownTimes; ++i) {
    MJ_TRY(next_ms, next_time(cron, schedule.zone, after_ms));
    if (next_ms == 0) break;
    times.push_back({next_ms, format_zoned_time(next_ms, schedule.zone)});
    after_ms = next_ms;
  }
  return times;
}

std::string get_state(const Schedule& schedule) {
  if (schedule.paused) return "paused";
  return schedule.next_start_ms == 0 ? "ended" : "active";
}

nlohmann::json to_json(const Schedule& schedule, const std::vector<ScheduledTime>& times) {
  nlohmann::json moments = nlohmann::json::array();
  for (const ScheduledTime& entry : times) moments.push_back({{"ms", entry.ms}, {"text", entry.text}});
  return {{"name", schedule.name},
          {"state", get_state(schedule)},
          {"caller_id", schedule.caller},
          {"cron", schedule.cron},
          {"zone", schedule.zone},
          {"overlap", schedule.overlap},
          {"missed", schedule.missed},
          {"definition_hash", schedule.definition_hash},
          {"next_ms", schedule.next_start_ms},
          {"last_ms", schedule.last_start_ms},
          {"last_flow", schedule.last_flow},
          {"revision", schedule.revision},
          {"note", schedule.skip_reason},
          {"moments", std::move(moments)}};
}

// Describes the cron expression. It may be invalid, because other clients can write schedules too.
std::string describe_cron(const Schedule& schedule) {
  const auto cron = parse_cron(schedule.cron);
  return cron ? describe(*cron) : "unreadable: " + cron.error().message;
}
std::vector<ScheduledTime> find_shown_times(const Schedule& schedule, std::uint64_t now_ms) {
  if (schedule.paused || schedule.next_start_ms == 0) return {};
  return find_next_times(schedule, std::min(now_ms, schedule.next_start_ms - 1)).value_or(std::vector<ScheduledTime>());
}

int print_schedule(const Invocation& call, const Schedule& schedule, std::uint64_t now_ms) {
  const std::vector<ScheduledTime> times = find_shown_times(schedule, now_ms);
  if (call.json) return print_json(to_json(schedule, times));
  print(fmt::format("{} ({}): {}, {}; overlap {}, missed {}\n", to_printable(schedule.name), get_state(schedule),
                    to_printable_line(describe_cron(schedule)), to_printable_line(schedule.zone),
                    to_printable_line(schedule.overlap), to_printable_line(schedule.missed)));
  print(fmt::format("definition {}, of actor {}\n", to_printable_line(schedule.definition_hash), schedule.caller));
  if (schedule.last_flow != 0) {
    print(fmt::format("last: {} as flow {}\n", format_zoned_time(schedule.last_start_ms, schedule.zone),
                      schedule.last_flow));
  }
  if (!schedule.skip_reason.empty()) print("note: " + to_printable_line(schedule.skip_reason) + "\n");
  for (std::size_t i = 0; i < times.size(); ++i) print((i == 0 ? "next: " : "      ") + times[i].text + "\n");
  return EXIT_SUCCESS;
}

// Returns nullopt if there is no schedule with this name.
Result<std::optional<Schedule>> find_schedule(FlowSession& session, Id context, const std::string& name) {
  MJ_TRY(schedules, session.flows->schedules(context));
  for (Schedule& entry : schedules) {
    if (entry.name == name) return std::optional(std::move(entry));
  }
  return std::optional<Schedule>();
}

Result<Schedule> load_schedule_argument(const Invocation& call, FlowSession& session) {
  const std::string& name = call.arguments.at(0);
  MJ_TRY(schedules, session.flows->schedules(call.context()));
  std::vector<std::string_view> names;
  for (Schedule& entry : schedules) {
    if (entry.name == name) return std::move(entry);
    names.push_back(entry.name);
  }
  return fail(Code::not_found,
              fmt::format("schedule {} does not exist in context {}{}; `mycojobs flow schedule "
                          "list{}` shows them",
                          excerpt(name), call.context(), did_you_mean(name, names), format_context_flag(call)));
}

// Checks that the caller of the schedule may create flows. The right is checked again at each scheduled time.
Result<void> check_caller(const Invocation& call, FlowSession& session, const Schedule& schedule) {
  const service::RequestContext caller{call.context(), schedule.caller, EntryPoint::command, false};
  auto result = service::check_permission(caller, *session.store, Action::create, {.name = "flows"});
  return result ? result : fail(result.error(), "--caller");
}

Resource make_resource(const Schedule& schedule) {
  return {.name = "schedule " + schedule.name, .creator = schedule.caller};
}

// Returns the schedule of the command line, with validated cron expression and policies.
Result<Schedule> read_schedule(const Invocation& call) {
  Schedule schedule;
  schedule.name = call.arguments.at(0);
  if (!call.has("cron")) {
    return fail(Code::invalid, "--cron: is missing: say when, as in --cron \"0 3 * * mon-fri\" or --cron @daily");
  }
  schedule.cron = call.get("cron");
  schedule.zone = call.get("zone", "UTC");
  schedule.overlap = call.get("overlap", "skip");
  schedule.missed = call.get("missed", "once");
  if (auto result = check_schedule(schedule); !result) {
    return fail(result.error().code, "--" + result.error().message);
  }
  MJ_TRY(caller, parse_id_flag(call, "caller", kDefaultCaller));
  schedule.caller = caller;
  return schedule;
}

// Stores the schedule. Error conflict: another client has changed the schedule at the same time.
Result<Schedule> store_schedule(const Invocation& call, FlowSession& session, Schedule schedule, const FlowPlan& plan) {
  const Id context = call.context();
  MJ_TRY(existing, find_schedule(session, context, schedule.name));
  MJ_CHECK(check_caller(call, session, schedule));
  if (existing) {
    // Scheduled times that are due belong to the old definition, and are started with it.
    MJ_TRY(limits, service::get_job_limits(make_request_context(call, existing->caller), *session.store));
    const auto check_due_plan = [&limits](Id, const FlowPlan& due_plan) { return check_jobs(due_plan, limits); };
    MJ_CHECK(complete_schedule(*session.flows, session.cache, context, *existing, check_due_plan));
    MJ_TRY(current, find_schedule(session, context, schedule.name));
    if (!current) return fail(Code::conflict, "schedule " + schedule.name + " was removed in the meantime");
    schedule.last_start_ms = current->last_start_ms;
    schedule.last_flow = current->last_flow;
    schedule.revision = current->revision;
    schedule.paused = current->paused;
  }
  MJ_TRY(now, session.flows->now_ms(context));
  MJ_TRY(cron, parse_cron(schedule.cron));
  MJ_TRY(next_ms, next_time(cron, schedule.zone, std::max(now, schedule.last_start_ms)));
  if (next_ms == 0) {
    return fail(Code::invalid, "--cron: " + excerpt(schedule.cron) + " does not occur within the next ten years");
  }
  schedule.next_start_ms = next_ms;
  schedule.definition_hash = plan.hash;
  MJ_CHECK(session.flows->put_schedule(context, schedule, plan.canonical, schedule.revision));
  ++schedule.revision;
  return schedule;
}

// Repeats attempt() while other clients change the schedule at the same time.
template <class Attempt>
auto retry_on_conflict(const Attempt& attempt) -> decltype(attempt()) {
  for (int i = 1;; ++i) {
    auto result = attempt();
    if (result || result.error().code != Code::conflict || i == kMaxScheduleAttempts) return result;
  }
}

// Scheduled times during the pause are not missed: the schedule continues with the first time after now.
Result<Schedule> set_schedule_paused(const Invocation& call, FlowSession& session, bool paused) {
  MJ_TRY(schedule, load_schedule_argument(call, session));
  MJ_TRY(caller, request_context(call));
  MJ_CHECK(service::check_permission(caller, *session.store, Action::steer, make_resource(schedule)));
  if (schedule.paused == paused) return std::move(schedule);
  schedule.paused = paused;
  schedule.skip_reason.clear();
  if (!paused) {
    MJ_TRY(now, session.flows->now_ms(call.context()));
    MJ_TRY(cron, parse_cron(schedule.cron));
    MJ_TRY(next_ms, next_time(cron, schedule.zone, std::max(now, schedule.last_start_ms)));
    schedule.next_start_ms = next_ms;
  }
  MJ_CHECK(session.flows->put_schedule(call.context(), schedule, "", schedule.revision));
  ++schedule.revision;
  return std::move(schedule);
}

Result<int> pause_schedule(const Invocation& call, bool paused) {
  MJ_TRY(session, open_flow_session_for_query(call));
  MJ_TRY(schedule, retry_on_conflict([&] { return set_schedule_paused(call, session, paused); }));
  MJ_TRY(now, session.flows->now_ms(call.context()));
  return print_schedule(call, schedule, now);
}

}  // namespace

Result<int> flow_schedule_add_command(Invocation& call) {
  MJ_TRY(schedule, read_schedule(call));
  MJ_TRY(plan, read_flow_file_argument(call, 1));
  MJ_CHECK(check_inputs(plan));
  MJ_TRY(session, open_flow_session_for_query(call));
  MJ_TRY(stored, retry_on_conflict([&] { return store_schedule(call, session, schedule, plan); }));
  MJ_TRY(now, session.flows->now_ms(call.context()));
  print_schedule(call, stored, now);
  warn_if_no_leader(call, session);
  return 0;
}

Result<int> flow_schedule_list_command(Invocation& call) {
  MJ_TRY(session, open_flow_session_for_query(call));
  MJ_TRY(schedules, session.flows->schedules(call.context()));
  MJ_TRY(now, session.flows->now_ms(call.context()));
  nlohmann::json array = nlohmann::json::array();
  TableRows rows{{"NAME", "STATE", "CRON", "ZONE", "NEXT", "LAST", "FLOW", "NOTE"}};
  for (const Schedule& entry : schedules) {
    array.push_back(to_json(entry, find_shown_times(entry, now)));
    const bool has_next = !entry.paused && entry.next_start_ms != 0;
    rows.push_back({to_printable_line(entry.name), entry.paused ? paint(OutputStyle::warn, "paused") : get_state(entry),
                    to_printable_line(entry.cron), to_printable_line(entry.zone),
                    has_next ? format_zoned_time(entry.next_start_ms, entry.zone) : "",
                    entry.last_start_ms == 0 ? "" : format_zoned_time(entry.last_start_ms, entry.zone),
                    entry.last_flow == 0 ? "" : std::to_string(entry.last_flow), to_printable_line(entry.skip_reason)});
  }
  return print_listing(call, array, rows);
}

Result<int> flow_schedule_show_command(Invocation& call) {
  MJ_TRY(session, open_flow_session_for_query(call));
  MJ_TRY(schedule, load_schedule_argument(call, session));
  MJ_TRY(now, session.flows->now_ms(call.context()));
  return print_schedule(call, schedule, now);
}
Result<int> flow_schedule_pause_command(Invocation& call) { return pause_schedule(call, true); }
Result<int> flow_schedule_resume_command(Invocation& call) { return pause_schedule(call, false); }

Result<int> flow_schedule_remove_command(Invocation& call) {
  MJ_TRY(session, open_flow_session_for_query(call));
  MJ_TRY(schedule, load_schedule_argument(call, session));
  MJ_TRY(caller, request_context(call));
  MJ_CHECK(service::check_permission(caller, *session.store, Action::administer, make_resource(schedule)));
  MJ_CHECK(session.flows->remove_schedule(call.context(), schedule.name));
  return print_answer(call, {{"name", schedule.name}, {"removed", true}},
                      schedule.name + " is removed; its flows stay");
}

}  // namespace mycojobs
