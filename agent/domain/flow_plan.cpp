#include "domain/flow_plan.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/sha256.h"
#include "domain/codec.h"
#include "domain/flow_plan_read.h"
#include "domain/nearest.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace plans {
namespace {

constexpr std::int64_t kMaxParallel = 1000000;

bool is_flow_name(std::string_view name) {
  const auto plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); };
  const auto any = [&](char c) { return plain(c) || c == '.' || c == '_' || c == '-'; };
  return !name.empty() && name.size() <= 128 && plain(name.front()) && std::all_of(name.begin(), name.end(), any);
}

void read_name(const Spot& spot, FlowPlan& plan) {
  if (!read_text(spot, plan.name) || is_flow_name(plan.name)) return;
  spot.refuse(shown(plan.name) +
              " is no name of a flow: 1 to 128 of letters, digits, '.', '_' and '-', a letter or "
              "digit first");
}

void read_on_error(const Spot& spot, FlowPlan& plan) {
  std::string word;
  if (!read_text(spot, word)) return;
  if (word != "stop" && word != "continue") {
    spot.refuse(shown(word) + " is neither stop nor continue (only a job can route its error to a node)");
  }
  plan.on_error = word == "continue" ? OnError::go_on : OnError::stop;
}

void read_max_parallel(const Spot& spot, FlowPlan& plan) {
  std::int64_t number = 0;
  if (read_whole(spot, 0, kMaxParallel, number)) plan.max_parallel = static_cast<std::uint32_t>(number);
}

struct FlowField {
  std::string_view name;
  void (*read)(const Spot&, FlowPlan&);
  std::string_view takes, meaning;
};
const std::array<FlowField, 10>& flow_fields() {
  static const std::array<FlowField, 10> kFields{{
      {"name", read_name, "text", "what its runs are listed under; required"},
      {"env", [](const Spot& spot, FlowPlan& plan) { read_map(spot, plan.env_vars); }, "map",
       "environment of every job; a job's own comes first"},
      {"on_error", read_on_error, "stop, continue",
       "what a failed node does to the flow, if it does not say itself; default stop"},
      {"timeout", [](const Spot& spot, FlowPlan& plan) { read_duration(spot, plan.timeout_ms); }, "duration",
       "of the whole flow, from its start; then it is cancelled, with the detail timeout"},
      {"max_parallel", read_max_parallel, "number", "jobs in flight at one time; default 0: any number"},
      {"notify", [](const Spot& spot, FlowPlan& plan) { read_notify_field(spot, plan.notify); },
       "url, map, list of both", "who hears of its end: webhook, job or topic"},
      {"inputs", [](const Spot&, FlowPlan&) {}, "map", "what whoever starts it gives, by name"},
      {"given", [](const Spot&, FlowPlan&) {}, "map", "values of inputs, unless whoever starts it gives others"},
      {"defaults", [](const Spot&, FlowPlan&) {}, "map", "fields of every job that does not have them"},
      {"jobs", [](const Spot&, FlowPlan&) {}, "map, or list of maps that say their name", "the nodes; required"},
  }};
  return kFields;
}

void read_flow_fields(const Spot& spot, FlowPlan& plan) {
  for (const auto& item : spot.value.items()) {
    const auto& fields = flow_fields();
    const auto* field =
        std::find_if(fields.begin(), fields.end(), [&](const FlowField& each) { return each.name == item.key(); });
    if (field != fields.end()) {
      field->read(spot.at(item.value(), item.key()), plan);
      continue;
    }
    std::vector<std::string_view> names;
    for (const FlowField& each : fields) names.push_back(each.name);
    const std::string_view meant = meant_by(item.key());
    spot.at(item.value(), item.key())
        .refuse("unknown field of a flow" +
                (meant == "env" ? "; did you mean \"env\"?" : did_you_mean(item.key(), names)));
  }
}

// The nodes in the order of a list, or, since a map has no order, of their names.
std::vector<Draft> read_nodes(const Spot& jobs, int depth, const json& defaults) {
  std::vector<Draft> drafts;
  if (jobs.value.is_object()) {
    for (const auto& item : jobs.value.items())
      drafts.push_back(read_node(jobs.at(item.value(), item.key()), item.key(), false, depth, defaults));
    return drafts;
  }
  std::unordered_set<std::string> names;
  for (std::size_t i = 0; i < jobs.value.size(); ++i) {
    const Spot spot = jobs.at(jobs.value[i], i);
    const auto name = spot.value.is_object() ? spot.value.find("name") : spot.value.end();
    std::string text;
    if (!spot.value.is_object() || name == spot.value.end()) {
      spot.refuse("is no map that says its name");
    } else if (read_text(spot.at(*name, "name"), text)) {
      if (names.insert(text).second) {
        drafts.push_back(read_node(spot, text, true, depth, defaults));
      } else {
        spot.at(*name, "name").refuse("a node before has the name " + shown(text) + " too: rename one");
      }
    }
  }
  return drafts;
}

void read_jobs(const Spot& root, FlowPlan& plan, int depth) {
  const auto found = root.value.find("jobs");
  if (found == root.value.end()) return root.refuse("jobs: is missing: give the flow at least one");
  const Spot jobs = root.at(*found, "jobs");
  if (!found->is_structured()) {
    jobs.wrong("a map of jobs by name");
    return;
  }
  if (found->empty()) return jobs.refuse("is empty: give the flow at least one");
  if (found->size() > kMaxFlowNodes) {
    return jobs.refuse(std::to_string(found->size()) + " nodes are more than " + std::to_string(kMaxFlowNodes) +
                       ": divide them into child flows");
  }
  static const json kNone = json::object();
  const auto defaults = root.value.find("defaults");
  const bool there = defaults != root.value.end();
  if (there) check_defaults(root.at(*defaults, "defaults"));
  link(plan, read_nodes(jobs, depth, there && defaults->is_object() ? *defaults : kNone), root.problems);
}

}  // namespace

FlowPlan read_flow(const Spot& root, int depth) {
  FlowPlan plan;
  if (!root.value.is_object()) {
    root.wrong("a map with a name and jobs");
    return plan;
  }
  read_flow_fields(root, plan);
  if (!root.value.contains("name")) root.refuse("name: is missing: give the flow one");
  read_inputs(root, plan);
  read_jobs(root, plan, depth);
  return plan;
}

}  // namespace plans

PlanRead read_plan(const nlohmann::json& definition) {
  plans::Problems problems;
  FlowPlan plan = plans::read_flow({definition, "", problems}, 0);
  if (problems.empty()) {
    plan.canonical = dump_json(definition);
    if (plan.canonical.size() > kMaxDefinitionBytes) {
      problems.add("", std::to_string(plan.canonical.size()) + " bytes are more than the " +
                           std::to_string(kMaxDefinitionBytes) + " that a definition may have");
    }
  }
  if (!problems.empty()) return {std::nullopt, problems.take()};
  plan.hash = sha256_hex(plan.canonical);
  return {std::move(plan), {}};
}

Result<FlowPlan> plan_of_text(std::string_view canonical, std::string_view hash) {
  if (sha256_hex(canonical) != hash) {
    return fail(Code::invalid, "definition " + shown(hash, 64) +
                                   ": its text has another hash: it was changed or cut off in the store; start the "
                                   "flow again from its file");
  }
  MJ_TRY(parsed, parse_json(canonical, kMaxDefinitionBytes));
  PlanRead read = read_plan(parsed);
  if (!read.plan) return fail(Code::invalid, "definition " + std::string(hash) + ": " + join(read.problems));
  return std::move(*read.plan);
}

std::optional<std::uint32_t> FlowPlan::find(std::string_view wanted) const {
  const auto found =
      std::find_if(nodes.begin(), nodes.end(), [&](const PlanNode& node) { return node.name == wanted; });
  if (found == nodes.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - nodes.begin());
}

std::string_view word(NodeKind kind) {
  static constexpr std::array<std::string_view, 7> kWords{"job", "log", "wait", "pause", "approval", "flow", "each"};
  return kWords[static_cast<std::size_t>(kind)];
}

std::string join(const std::vector<PlanProblem>& problems) {
  std::string out;
  for (const PlanProblem& problem : problems) {
    if (!out.empty()) out += '\n';
    if (problem.line != 0) {
      out += "line " + std::to_string(problem.line) + ", column " + std::to_string(problem.column) + ": ";
    }
    // A path may hold names that somebody made up to disturb a terminal.
    std::string path = problem.path.substr(0, 200);
    std::replace_if(
        path.begin(), path.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    out += path + (path.empty() ? "" : ": ") + problem.message;
  }
  return out;
}

std::vector<PlanField> plan_fields() {
  std::vector<PlanField> rows;
  for (const auto& field : plans::flow_fields()) rows.push_back({"flow", field.name, field.takes, field.meaning});
  for (const auto& field : plans::node_fields()) rows.push_back({"node", field.name, field.takes, field.meaning});
  return rows;
}

}  // namespace mycojobs
