// One node of a definition: which kind it is, its fields, and what they must be together.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "domain/codec.h"
#include "domain/flow_plan_read.h"
#include "domain/nearest.h"
#include "domain/utf8.h"

namespace mycojobs::plans {
namespace {

const NodeField* field_of(std::string_view name) {
  const auto rows = node_fields();
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const NodeField& each) { return each.name == name; });
  return found == rows.end() ? nullptr : &*found;
}

struct KindField {
  std::string_view name;
  NodeKind kind;
};
constexpr KindField kKinds[] = {{"script", NodeKind::job}, {"file", NodeKind::job},    {"log", NodeKind::log},
                                {"wait", NodeKind::wait},  {"pause", NodeKind::pause}, {"approval", NodeKind::approval},
                                {"flow", NodeKind::flow}};

std::optional<NodeKind> kind_of(const Spot& spot) {
  std::vector<const KindField*> given;
  for (const KindField& each : kKinds) {
    if (spot.value.contains(each.name)) given.push_back(&each);
  }
  if (given.size() == 1) return given.front()->kind;
  if (given.empty()) {
    spot.refuse("says nothing to do: give it one of script, file, log, wait, pause, approval and flow");
  } else {
    spot.refuse("has both " + std::string(given[0]->name) + " and " + std::string(given[1]->name) +
                ": divide it into two nodes");
  }
  return std::nullopt;
}

void refuse_field(const Spot& field, std::string_view name, NodeKind kind) {
  if (const NodeField* other = field_of(name)) {
    if (kind == NodeKind::approval || kind == NodeKind::pause) {
      if (name == "gate_timeout") return field.refuse("write timeout: it holds for what this node waits for as well");
    }
    return field.refuse("is no field of a node that has " +
                        std::string(kind == NodeKind::job ? "a script" : word(kind)) + ": only of one with " + [other] {
                          std::string kinds;
                          for (const KindField& each : kKinds) {
                            if (each.name == "file" || (other->kinds & bit(each.kind)) == 0) continue;
                            kinds += (kinds.empty() ? "" : ", ") + std::string(each.name);
                          }
                          return kinds;
                        }());
  }
  if (const auto meant = meant_by(name); !meant.empty()) {
    return field.refuse("unknown field of a node; did you mean \"" + std::string(meant) + "\"?");
  }
  std::vector<std::string_view> names;
  for (const NodeField& each : node_fields()) {
    if ((each.kinds & bit(kind)) != 0) names.push_back(each.name);
  }
  field.refuse("unknown field of a node" + did_you_mean(name, names));
}

// What every job must be, said of the fields as they are called here.
void check_job(const Spot& spot, const Draft& draft, const json& defaults) {
  Job job = draft.node.job;
  job.id = job.caller_id = job.context_id = 1;
  if (job.script.empty()) job.script = "refused before";
  for (const FieldProblem& problem : validate(job)) {
    std::string field = problem.field;
    if (field == "script_type") field = "type";
    if (field == "env_vars") field = "env";
    std::string message = problem.message;
    if (message.starts_with(problem.field + ": ")) message.erase(0, problem.field.size() + 2);
    // What was refused, or a file tells, is not missing as well.
    const bool told = spot.value.contains("type") || spot.value.contains("file") || defaults.contains("type");
    if (field == "type" && draft.node.job.script_type.empty() && told) continue;
    if (spot.value.contains(field)) {
      spot.problems.add(spot.path + '.' + field, std::move(message));
    } else {
      spot.problems.add(spot.path + (field.starts_with("policy.") ? "." + field : ""),
                        field.starts_with("policy.") ? std::move(message) : field + ": " + message);
    }
  }
}

constexpr std::string_view kWithDefaults[] = {
    "type",          "timeout",         "retries",           "env",          "policy",        "on_error", "priority",
    "queue_timeout", "concurrency_key", "concurrency_limit", "gate_timeout", "supervisor_url"};

bool has_default(std::string_view name) {
  return std::find(std::begin(kWithDefaults), std::end(kWithDefaults), name) != std::end(kWithDefaults);
}

// The fields of a node of this kind that others give it. What is wrong with them was said of them.
void take_defaults(const json& defaults, NodeKind kind, Draft& draft, int depth) {
  if (kind != NodeKind::job) return;
  Problems told;
  for (const auto& item : defaults.items()) {
    if (has_default(item.key()))
      field_of(item.key())->read({item.value(), "defaults." + item.key(), told}, draft, depth);
  }
}

void finish_node(const Spot& spot, Draft& draft, const json& defaults) {
  PlanNode& node = draft.node;
  Job& job = node.job;
  job.name = node.name;
  if (node.kind == NodeKind::job) check_job(spot, draft, defaults);
  if (draft.each) node.kind = NodeKind::each;
  if (node.kind == NodeKind::job || node.kind == NodeKind::each) return;
  // Its record says what it is; nobody runs it.
  job.script_type = word(node.kind);
  job.script = node.text.empty() ? std::string(word(node.kind)) : node.text;
  if (node.kind == NodeKind::flow && node.child_key.empty()) node.child_key = node.name;
}

}  // namespace

void check_defaults(const Spot& spot) {
  if (!spot.value.is_object()) {
    spot.wrong("a map of fields of a job, such as {type: python, retries: 1}");
    return;
  }
  Draft draft;
  draft.node.kind = NodeKind::job;
  for (const auto& item : spot.value.items()) {
    const Spot field = spot.at(item.value(), item.key());
    if (has_default(item.key())) {
      field_of(item.key())->read(field, draft, 0);
      continue;
    }
    std::string all;
    for (const std::string_view each : kWithDefaults) all += (all.empty() ? "" : ", ") + std::string(each);
    const std::string meant(meant_by(item.key()));
    field.refuse("is no field that jobs have in common: there are " + all +
                 (meant.empty() ? did_you_mean(item.key(), kWithDefaults) : "; did you mean \"" + meant + "\"?"));
  }
}

Draft read_node(const Spot& spot, std::string name, bool in_list, int depth, const json& defaults) {
  Draft draft;
  draft.path = spot.path;
  check_node_name(name, in_list ? spot.path + ".name" : spot.path, spot.problems);
  draft.node.name = std::move(name);
  if (!spot.value.is_object()) {
    spot.wrong("a map such as {script: ..., type: python}");
    return draft;  // it is there, so that what needs it is not refused as well
  }
  const auto kind = kind_of(spot);
  draft.node.kind = kind.value_or(NodeKind::job);
  take_defaults(defaults, kind.value_or(NodeKind::log), draft, depth);
  for (const auto& item : spot.value.items()) {
    const Spot field = spot.at(item.value(), item.key());
    const NodeField* row = field_of(item.key());
    const bool fits = row != nullptr && (!kind || (row->kinds & bit(*kind)) != 0);
    if (!fits || (item.key() == "name" && !in_list)) {
      if (fits) {
        field.refuse("the node is called as it stands in the map: leave it out");
      } else {
        refuse_field(field, item.key(), draft.node.kind);
      }
    } else if (kind) {
      row->read(field, draft, depth);
    }
  }
  if (kind) finish_node(spot, draft, defaults);
  return draft;
}

void read_condition(const Spot& spot, Draft& draft) {
  using Test = FlowCondition::Test;
  static constexpr std::pair<std::string_view, Test> kTests[] = {{"equals", Test::equals},
                                                                 {"greater_than", Test::greater_than},
                                                                 {"less_than", Test::less_than},
                                                                 {"exists", Test::exists}};
  static constexpr std::string_view kNames[] = {"key", "equals", "greater_than", "less_than", "exists"};
  if (!spot.value.is_object()) {
    spot.wrong("a map such as {key: build.size, greater_than: 10}");
    return;
  }
  DraftCondition read;
  int tests = 0;
  bool sound = spot.value.contains("key");
  if (!sound) spot.refuse("key: is missing: give NODE.KEY, as in build.size");
  for (const auto& item : spot.value.items()) {
    const Spot field = spot.at(item.value(), item.key());
    const auto* test =
        std::find_if(std::begin(kTests), std::end(kTests), [&](const auto& each) { return each.first == item.key(); });
    if (item.key() == "key") {
      std::string text;
      if (!(sound = read_text(field, text) && sound)) continue;
      const std::size_t dot = text.find('.');
      read.node = {text.substr(0, dot), field.path};
      read.condition.key = dot == std::string::npos ? "" : text.substr(dot + 1);
      if (dot == 0 || read.condition.key.empty()) {
        field.refuse(shown(text) + " is not NODE.KEY, as in build.size");
        sound = false;
      } else if (read.condition.key.starts_with('$') && read.condition.key != "$status") {
        field.refuse(shown(text) + ": of what begins with '$' there is only $status (finished or error)");
        sound = false;
      }
    } else if (test == std::end(kTests)) {
      field.refuse("unknown field of a condition" + did_you_mean(item.key(), kNames));
      sound = false;
    } else {
      ++tests;
      read.condition.test = test->second;
      sound = read_scalar(field, read.condition.value) && sound;
      const bool number = test->second == Test::greater_than || test->second == Test::less_than;
      if (number && !item.value().is_number()) sound = field.wrong("a number");
      if (test->second == Test::exists && !item.value().is_boolean()) sound = field.wrong("true or false");
    }
  }
  if (tests != 1) {
    spot.refuse("has " + std::string(tests == 0 ? "no test" : "several tests") +
                ": give one of equals, greater_than, less_than and exists");
    return;
  }
  if (sound) draft.when.push_back(std::move(read));
}

}  // namespace mycojobs::plans
