#include "flows/flow_yaml.h"

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "flows/flow_plan.h"

namespace mycojobs {

using nlohmann::json;

namespace {

// Restores the spellings of a file in its definition of a flow. Paths are those of YamlText.
class SpellingRestorer {
 public:
  explicit SpellingRestorer(const std::map<std::string, std::string>& spellings) : spellings_(spellings) {}

  void restore_flow(json& flow, const std::string& prefix) const {
    if (!flow.is_object()) return;
    restore_children(flow, "env", prefix);
    if (const auto defaults = flow.find("defaults"); defaults != flow.end())
      restore_node(*defaults, prefix + "defaults.");
    const auto jobs = flow.find("jobs");
    if (jobs == flow.end()) return;
    for_each_child(*jobs, prefix + "jobs",
                   [this](json& node, const std::string& path) { restore_node(node, path + '.'); });
  }

 private:
  template <class Function>
  static void for_each_child(json& parent, const std::string& path, Function&& function) {
    if (parent.is_object()) {
      for (auto& item : parent.items()) function(item.value(), path + '.' + item.key());
    } else if (parent.is_array()) {
      for (std::size_t i = 0; i < parent.size(); ++i) function(parent[i], path + '[' + std::to_string(i) + ']');
    }
  }

  void restore_node(json& node, const std::string& prefix) const {
    if (!node.is_object()) return;
    for (const char* field : {"env", "args"}) restore_children(node, field, prefix);
    if (const auto each = node.find("each"); each != node.end()) restore_numbers(*each, prefix + "each");
    if (const auto child = node.find("flow"); child != node.end()) restore_flow(*child, prefix + "flow.");
  }

  void restore_children(json& owner, const char* field, const std::string& prefix) const {
    const auto values = owner.find(field);
    if (values == owner.end()) return;
    for_each_child(*values, prefix + field, [this](json& value, const std::string& path) { restore(value, path); });
  }

  void restore_numbers(json& value, const std::string& path) const {
    if (value.is_number()) restore(value, path);
    for_each_child(value, path,
                   [this](json& child, const std::string& child_path) { restore_numbers(child, child_path); });
  }

  void restore(json& value, const std::string& path) const {
    const auto match = value.is_primitive() ? spellings_.find(path) : spellings_.end();
    if (match != spellings_.end()) value = match->second;
  }

  const std::map<std::string, std::string>& spellings_;
};

}  // namespace

Result<json> flow_yaml_to_json(std::string_view text, YamlText& yaml) {
  MJ_TRY(definition, yaml_to_json(text, kMaxDefinitionBytes, yaml));
  if (!yaml.spellings.empty()) SpellingRestorer(yaml.spellings).restore_flow(definition, "");
  return std::move(definition);
}

}  // namespace mycojobs
