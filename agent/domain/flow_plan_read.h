// How a definition is read. Only flow_plan.cpp, flow_plan_read.cpp and who reads manifests (workflow_schema.h) need it.
//
//   read_flow --> read_inputs, read_node for each (flow_plan_read.cpp) --> link --> make_places (flow_plan.cpp)
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "domain/flow_plan.h"

namespace mycojobs::plans {

using nlohmann::json;

inline constexpr std::size_t kMaxProblems = 50;
inline constexpr int kMaxChildDepth = 8;  // flows within flows
inline constexpr std::size_t kMaxNameBytes = 64;

class Problems {
 public:
  void add(std::string path, std::string message) {
    if (!full()) list_.push_back({std::move(path), std::move(message)});
  }
  bool full() const { return list_.size() >= kMaxProblems; }
  bool empty() const { return list_.empty(); }
  std::vector<PlanProblem> take() { return std::move(list_); }

 private:
  std::vector<PlanProblem> list_;
};

// A value and where it stands: "jobs.build.needs[0]".
struct JsonPath {
  const json& value;
  std::string path;
  Problems& problems;

  void refuse(std::string message) const { problems.add(path, std::move(message)); }
  bool wrong(std::string_view expected) const;  // says what it is instead; false
  JsonPath at(const json& item, std::string_view key) const;
  JsonPath at(const json& item, std::size_t index) const;
};

// Typed reads. false: refused, and `out` is as it was.
bool read_text(const JsonPath&, std::string& out);           // not empty
bool read_scalar(const JsonPath&, std::string& out);         // text, number or boolean, as text
bool read_switch(const JsonPath&, bool& out);                //
bool read_duration(const JsonPath&, std::uint64_t& out_ms);  // above 0, at most 10 years
bool read_whole(const JsonPath&, std::int64_t least, std::int64_t most, std::int64_t& out);
bool read_map(const JsonPath&, TextMap& out);
void read_notify_field(const JsonPath&, std::string& out);  // as JSON
// A list, or one value that stands for a list of one: calls see(JsonPath of the item).
void each_of(const JsonPath&, const std::function<void(const JsonPath&)>& see);

bool is_node_name(std::string_view name);
void check_node_name(std::string_view name, const std::string& path, Problems&);

// A name of another node, and where it stands.
struct Named {
  std::string name, path;
};
struct DraftCondition {
  FlowCondition condition;
  Named node;
  bool comes_before = false;  // the node that it reads, before the one that has it
};
// What `each` and `max` of a node say.
struct DraftEach {
  std::string path;
  std::vector<std::string> elements;  // of a list or map that stands there
  Named from;                         // or `inputs`, or the node whose result it is; with its key
  std::string key;
  std::optional<std::uint32_t> max;
  std::string max_path;
};
// A node before the names in it have been looked up.
struct Draft {
  PlanNode node;
  std::string path;
  std::vector<Named> needs;
  std::vector<DraftCondition> when;
  std::optional<Named> route, compensation;
  bool says_on_error = false;
  std::vector<Named> inputs;  // nodes whose artifacts it wants
  std::optional<DraftEach> each;
};

// One row a field: of what, and how it is read. The names of fields that others use for it are suggested.
constexpr std::uint32_t bit(NodeKind kind) { return 1U << static_cast<unsigned>(kind); }
struct NodeField {
  std::string_view name;
  std::uint32_t kinds;  // a bit for each NodeKind
  void (*read)(const JsonPath&, Draft&, int depth);
  std::string_view takes, meaning;
};
std::span<const NodeField> node_fields();
std::string_view meant_by(std::string_view field);  // "depends" -> "needs"; empty: nothing known

// defaults: fields of every job that does not have them, checked before by check_defaults(); an object.
Draft read_node(const JsonPath&, std::string name, bool in_list, int depth, const json& defaults);
void check_defaults(const JsonPath&);
// `inputs` and `given` of a flow.
void read_inputs(const JsonPath& flow, FlowPlan&);
void read_each(const JsonPath&, Draft&, int depth);
void read_max(const JsonPath&, Draft&, int depth);
// The elements of a list, or of a map as {"key", "value"}, as JSON; nothing: it is neither.
std::optional<std::vector<std::string>> elements_of(const json&);
void read_condition(const JsonPath&, Draft&);
// Everything but canonical and hash. Problems go to the at's.
FlowPlan read_flow(const JsonPath&, int depth);
// Looks the names up, and refuses what cannot be a plan.
void link(FlowPlan&, std::vector<Draft>, Problems&);
// The nodes in an order in which each comes after those that it needs or takes an error over from; shorter: there are
// cycles, which are refused with their paths.
std::vector<std::uint32_t> order_of(const FlowPlan&, const std::vector<Draft>&, Problems&);

}  // namespace mycojobs::plans
