// The definition of jobs that exist: what their records say, and what `nodes` adds.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/ids.h"
#include "domain/codec.h"
#include "domain/flow_plan_read.h"
#include "domain/nearest.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::string_view kAdded[] = {"when",         "on_error",       "compensate",
                                       "irreversible", "supervisor_url", "gate_timeout"};

// A job's own name if it can be one here and no other job has it, else job<id>.
std::map<Id, std::string> names_of(const std::vector<Job>& jobs) {
  std::map<std::string_view, int> uses;
  for (const Job& job : jobs) ++uses[job.name];
  std::map<Id, std::string> names;
  for (const Job& job : jobs) {
    const bool own = plans::is_node_name(job.name) && uses[job.name] == 1;
    names[job.id] = own ? job.name : "job" + std::to_string(job.id);
  }
  return names;
}

std::optional<Id> id_of(std::string_view text) {
  std::uint64_t id = 0;
  if (!parse_u64(text, id) || id == 0 || id > UINT32_MAX) return std::nullopt;
  return static_cast<Id>(id);
}

// By job id or name; not_found names what it looked for.
Result<Id> job_of(const std::string& text, const std::map<Id, std::string>& names) {
  if (const auto id = id_of(text); id && names.contains(*id)) return *id;
  std::vector<std::string_view> known;
  for (const auto& [id, name] : names) {
    if (name == text) return id;
    known.push_back(name);
  }
  return fail(Code::invalid, shown(text) + " is no job of this flow, by id or name" + did_you_mean(text, known));
}

std::string in_ms(std::uint64_t ms) { return std::to_string(ms) + "ms"; }

Result<json> node_of(const Job& job, const std::map<Id, std::string>& names) {
  json node = {{"name", names.at(job.id)}, {"script", job.script}, {"type", job.script_type}};
  if (job.timeout) node["timeout"] = std::to_string(*job.timeout) + "s";
  if (job.retries != 0) node["retries"] = job.retries;
  if (!job.env_vars.empty()) node["env"] = job.env_vars;
  if (!job.prerequisites.empty()) node["prerequisites"] = job.prerequisites;
  if (job.priority != 0) node["priority"] = job.priority;
  if (job.queue_timeout_ms != 0) node["queue_timeout"] = in_ms(job.queue_timeout_ms);
  if (!job.concurrency_key.empty()) node["concurrency_key"] = job.concurrency_key;
  if (job.concurrency_limit != 0) node["concurrency_limit"] = job.concurrency_limit;
  const std::string where = "job " + std::to_string(job.id) + ": ";
  if (!job.notify.empty()) {
    auto notify = parse_json(job.notify);
    node["notify"] = notify ? std::move(*notify) : json(job.notify);  // an address may stand alone
  }
  if (!job.policy.empty()) {
    auto policy = parse_json(job.policy);
    if (!policy) return fail(policy.error(), where + "policy");
    node["policy"] = std::move(*policy);
  }
  for (Id need : job.dependends) {
    const auto found = names.find(need);
    if (found == names.end()) {
      return fail(Code::invalid, where + "dependends: " + std::to_string(need) +
                                     " is no job of this flow: add it, or take it out of dependends");
    }
    node["needs"].push_back(found->second);
  }
  for (const std::string& input : job.inputs) {
    const std::size_t slash = std::min(input.find('/'), input.size());
    const auto id = id_of(input.substr(0, slash));
    const bool known = id && names.contains(*id);
    node["inputs"].push_back(known ? names.at(*id) + input.substr(slash) : input);
  }
  return node;
}

// Names of jobs in on_error, compensate and conditions may be ids.
Result<json> added_value(std::string_view field, const json& value, const std::map<Id, std::string>& names) {
  const auto* text = value.get_ptr<const std::string*>();
  if (field == "on_error" || field == "compensate") {
    if (value.is_number_unsigned() || (text && id_of(*text))) {
      MJ_TRY(id, job_of(text ? *text : dump_json(value), names));
      return json(names.at(id));
    }
    return value;
  }
  if (field != "when") return value;
  json conditions = value.is_array() ? value : json::array({value});
  for (json& condition : conditions) {
    if (!condition.is_object() || !condition.contains("key") || !condition["key"].is_string()) continue;
    const std::string key = condition["key"].get<std::string>();
    const std::size_t dot = std::min(key.find('.'), key.size());
    if (!id_of(key.substr(0, dot))) continue;
    MJ_TRY(id, job_of(key.substr(0, dot), names));
    condition["key"] = names.at(id) + key.substr(dot);
  }
  return conditions;
}

Result<void> add(const json& more, json& node, const std::map<Id, std::string>& names) {
  if (!more.is_object()) return fail(Code::invalid, "is no map of fields");
  for (const auto& item : more.items()) {
    if (item.key() == "id" || item.key() == "name") continue;
    if (std::find(std::begin(kAdded), std::end(kAdded), item.key()) == std::end(kAdded)) {
      return fail(Code::invalid, shown(item.key()) +
                                     " is not said here but by the job's record; here there are when, "
                                     "on_error, compensate, irreversible, supervisor_url and "
                                     "gate_timeout" +
                                     did_you_mean(item.key(), kAdded));
    }
    auto value = added_value(item.key(), item.value(), names);
    if (!value) return fail(value.error(), item.key());
    node[item.key()] = std::move(*value);
  }
  return {};
}

}  // namespace

// `nodes`: a map by job id or name, or a list of maps that say their id or name.
Result<json> definition_of_jobs(const std::string& name, const TextMap& env_vars, const std::vector<Job>& jobs,
                                const json& nodes) {
  if (jobs.empty()) return fail(Code::invalid, "jobs: is empty: give the flow at least one");
  const std::map<Id, std::string> names = names_of(jobs);
  if (names.size() != jobs.size()) return fail(Code::invalid, "jobs: one of them is named twice");
  json list = json::array();
  std::map<Id, std::size_t> places;
  for (const Job& job : jobs) {
    MJ_TRY(node, node_of(job, names));
    places[job.id] = list.size();
    list.push_back(std::move(node));
  }
  std::set<Id> seen;
  const auto add_to = [&](const std::string& which, const json& more, const std::string& path) -> Result<void> {
    auto id = job_of(which, names);
    if (!id) return fail(id.error(), path);
    if (!seen.insert(*id).second) return fail(Code::invalid, path + ": job " + std::to_string(*id) + " is named twice");
    if (auto added = add(more, list[places[*id]], names); !added) return fail(added.error(), path);
    return {};
  };
  if (nodes.is_object()) {
    for (const auto& item : nodes.items()) MJ_CHECK(add_to(item.key(), item.value(), "nodes." + shown(item.key())));
  } else if (nodes.is_array()) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const std::string path = "nodes[" + std::to_string(i) + "]";
      const json& more = nodes[i];
      const char* by = more.is_object() && more.contains("id") ? "id" : "name";
      if (!more.is_object() || !more.contains(by) || more[by].is_structured()) {
        return fail(Code::invalid, path + ": is no map that says the id or name of its job");
      }
      const auto* text = more[by].get_ptr<const std::string*>();
      MJ_CHECK(add_to(text ? *text : dump_json(more[by]), more, path));
    }
  } else if (!nodes.is_null()) {
    return fail(Code::invalid, "nodes: is no map and no list");
  }
  json definition = {{"name", name.empty() ? "flow" : name}, {"jobs", std::move(list)}};
  if (!env_vars.empty()) definition["env"] = env_vars;
  return definition;
}

}  // namespace mycojobs
