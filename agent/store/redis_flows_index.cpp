// Catalogs, retention, schedules.
#include <algorithm>

#include "base/ids.h"
#include "store/job_fields.h"
#include "store/redis_flow_store.h"

namespace mycojobs {
namespace {

Id id_of(const std::string& text) {
  const std::uint64_t number = number_of(text);
  return number <= UINT32_MAX ? static_cast<Id>(number) : 0;
}

// One row a field of mj:schedule:<name>.
struct ScheduleField {
  const char* name;
  std::string (*write)(const Schedule&);
  void (*read)(Schedule&, const std::string&);
};
constexpr ScheduleField kScheduleFields[] = {
    {"caller", [](const Schedule& s) { return std::to_string(s.caller); },
     [](Schedule& s, const std::string& t) { s.caller = id_of(t); }},
    {"cron", [](const Schedule& s) { return s.cron; }, [](Schedule& s, const std::string& t) { s.cron = t; }},
    {"zone", [](const Schedule& s) { return s.zone; }, [](Schedule& s, const std::string& t) { s.zone = t; }},
    {"overlap", [](const Schedule& s) { return s.overlap; }, [](Schedule& s, const std::string& t) { s.overlap = t; }},
    {"missed", [](const Schedule& s) { return s.missed; }, [](Schedule& s, const std::string& t) { s.missed = t; }},
    {"definition_hash", [](const Schedule& s) { return s.definition_hash; },
     [](Schedule& s, const std::string& t) { s.definition_hash = t; }},
    {"next_ms", [](const Schedule& s) { return std::to_string(s.next_ms); },
     [](Schedule& s, const std::string& t) { s.next_ms = number_of(t); }},
    {"last_ms", [](const Schedule& s) { return std::to_string(s.last_ms); },
     [](Schedule& s, const std::string& t) { s.last_ms = number_of(t); }},
    {"last_flow", [](const Schedule& s) { return std::to_string(s.last_flow); },
     [](Schedule& s, const std::string& t) { s.last_flow = id_of(t); }},
    {"paused", [](const Schedule& s) { return std::string(s.paused ? "true" : "false"); },
     [](Schedule& s, const std::string& t) { s.paused = t == "true"; }},
    {"note", [](const Schedule& s) { return s.note; }, [](Schedule& s, const std::string& t) { s.note = t; }},
};

bool is_schedule_name(std::string_view name) {
  const auto is_start = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return !name.empty() && name.size() <= 64 && is_start(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return is_start(c) || c == '.' || c == '_' || c == '-'; });
}
Result<void> check_name(const std::string& name) {
  if (is_schedule_name(name)) return {};
  return fail(Code::invalid,
              "name: is no name of a schedule: 1 to 64 of a-z, 0-9, '.', '_' and '-', a letter or digit first");
}

}  // namespace

Result<std::vector<FlowSummary>> RedisFlows::list(Id context, const std::string& name, Id before, std::uint32_t max) {
  const std::string key = name.empty() ? "mj:catalog" : "mj:catalog:" + name;
  const std::uint64_t wanted = std::clamp(max, 1U, 1000U);
  std::vector<FlowSummary> out;
  std::string last;
  while (out.size() < wanted) {
    Arguments arguments{key};
    arguments.add(std::uint64_t{before}).add(last).add(wanted - out.size());
    MJ_TRY(reply, run(context, scripts::flow_list, arguments));
    for (std::size_t i = 1; i < reply.size() && out.size() < wanted; ++i) {
      const Reply row = reply.at(i);
      FlowSummary flow;
      flow.flow = static_cast<Id>(row.at(0).number());
      flow.at_ms = row.at(1).number();
      flow.name = row.at(2).text();
      flow.record = row.at(3).fields();
      out.push_back(std::move(flow));
    }
    if (reply.at(0).text().empty() || reply.at(0).text() == last) break;
    last = reply.at(0).text();
  }
  return out;
}

Result<std::string> RedisFlows::leave(Id context, Id flow, bool asked, std::uint64_t before_ms) {
  while (true) {
    Arguments arguments;
    arguments.add(std::uint64_t{flow}).add(asked ? "1" : "0").add(before_ms);
    MJ_TRY(reply, run(context, scripts::flow_retire, arguments));
    if (!reply.text().empty()) return std::string(reply.text());
    if (reply.number() == 1) return std::string("gone");
  }
}

Result<std::uint32_t> RedisFlows::retire(Id context, std::uint64_t retention_ms, std::uint32_t max) {
  if (retention_ms == 0) return 0U;
  MJ_TRY(now, now_ms(context));
  const std::uint64_t before = now - std::min(now, retention_ms);
  Arguments arguments{"ZRANGEBYSCORE", "mj:flows:ended", "-inf"};
  arguments.add(before).add("LIMIT").add("0").add(std::uint64_t{std::clamp(max, 1U, 1000U)});
  MJ_TRY(reply, command(context, arguments));
  std::uint32_t gone = 0;
  for (std::size_t i = 0; i < reply.size(); ++i) {
    const std::string member(reply.at(i).text());
    const Id flow = id_of(member);
    if (flow == 0 || std::to_string(flow) != member) {
      MJ_CHECK(command(context, {"ZREM", "mj:flows:ended", member}));  // another client's doing
      continue;
    }
    MJ_TRY(how, leave(context, flow, false, before));
    gone += how == "gone" ? 1 : 0;
  }
  return gone;
}

Result<void> RedisFlows::remove(Id context, Id flow) {
  MJ_TRY(how, leave(context, flow, true, 0));
  const std::string name = "flow:" + std::to_string(flow);
  if (how == "not_ended") return fail(Code::conflict, name + " has not ended: cancel it first");
  if (how == "missing") return fail(Code::not_found, name + " does not exist in context " + std::to_string(context));
  return {};
}

Result<void> RedisFlows::put_schedule(Id context, const Schedule& schedule, const std::string& definition,
                                      std::uint64_t expected_revision) {
  MJ_CHECK(check_name(schedule.name));
  if (schedule.definition_hash.empty()) return fail(Code::invalid, "definition_hash: is missing");
  Fields fields;
  for (const ScheduleField& field : kScheduleFields) fields.emplace_back(field.name, field.write(schedule));
  Arguments arguments{schedule.name};
  arguments.add(expected_revision).add(schedule.definition_hash).add(definition).add_list(fields);
  MJ_TRY(reply, run(context, scripts::flow_schedule_put, arguments));
  if (reply.text() == "missing") {
    return fail(Code::not_found, "definition " + schedule.definition_hash + " does not exist: give its text");
  }
  if (reply.size() == 0) return {};
  const std::uint64_t present = reply.at(1).number();
  if (expected_revision == 0)
    return fail(Code::conflict, "schedule " + schedule.name + " exists: give it another name");
  if (present == 0) return fail(Code::conflict, "schedule " + schedule.name + " was removed meanwhile");
  return fail(Code::conflict, "schedule " + schedule.name + " is at revision " + std::to_string(present) + ", and " +
                                  std::to_string(expected_revision) + " was expected: read it again");
}

Result<std::vector<Schedule>> RedisFlows::schedules(Id context) {
  MJ_TRY(names, command(context, {"SMEMBERS", "mj:schedules"}));
  std::vector<Schedule> out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    Schedule schedule;
    schedule.name = names.at(i).text();
    if (!is_schedule_name(schedule.name)) continue;  // another client's doing; so are keys that are no hashes
    const std::string key = "mj:schedule:" + schedule.name;
    MJ_TRY(type, command(context, {"TYPE", key}));
    if (type.text() != "hash") continue;
    MJ_TRY(reply, command(context, {"HGETALL", key}));
    for (const auto& [name, value] : reply.fields()) {
      if (name == "revision") schedule.revision = number_of(value);
      for (const ScheduleField& field : kScheduleFields) {
        if (name == field.name) field.read(schedule, value);
      }
    }
    if (schedule.revision > 0) out.push_back(std::move(schedule));
  }
  std::sort(out.begin(), out.end(), [](const Schedule& a, const Schedule& b) { return a.name < b.name; });
  return out;
}

Result<void> RedisFlows::remove_schedule(Id context, const std::string& name) {
  MJ_CHECK(check_name(name));
  MJ_TRY(reply, run(context, scripts::flow_schedule_remove, Arguments{name}));
  if (reply.text() == "missing") return fail(Code::not_found, "schedule " + name + " does not exist");
  return {};
}

}  // namespace mycojobs
