#include <nlohmann/json.hpp>

#include "domain/codec.h"
#include "domain/flow_data.h"
#include "domain/utf8.h"
#include "inspect/flows.h"

namespace mycojobs {
namespace {

using nlohmann::json;

json names_of(const FlowView& view, const std::vector<std::uint32_t>& indexes) {
  json names = json::array();
  for (std::uint32_t index : indexes) {
    if (index < view.nodes.size()) names.push_back(to_utf8(view.nodes[index].name));
  }
  return names;
}

void put_if(json& object, const char* name, const std::string& text) {
  if (!text.empty()) object[name] = to_utf8(text);
}
void put_if(json& object, const char* name, std::uint64_t number) {
  if (number != 0) object[name] = number;
}

json json_of(const FlowAnswer& answer) {
  json out{{"what", to_utf8(answer.what)}, {"actor", answer.actor}, {"at_ms", answer.at_ms}};
  put_if(out, "comment", answer.comment);
  return out;
}

}  // namespace

json to_json(const NodeView& node) {
  json out{
      {"index", node.index}, {"name", to_utf8(node.name)}, {"node_status", word(node.status)}, {"needs", node.needs}};
  put_if(out, "id", node.job);
  put_if(out, "job", node.job_key);
  put_if(out, "kind", node.kind);
  put_if(out, "detail", node.detail);
  put_if(out, "error", node.error);
  put_if(out, "attempt", node.attempt);
  put_if(out, "since_ms", node.since_ms);
  put_if(out, "until_ms", node.until_ms);
  put_if(out, "started_ms", node.started_ms);
  put_if(out, "ended_ms", node.ended_ms);
  put_if(out, "runner", node.runner);
  put_if(out, "child", node.child);
  put_if(out, "asks", node.asks);
  for (const FlowAnswer& answer : node.answers) out["answers"].push_back(json_of(answer));
  if (node.on_call) out["on_call"] = true;
  if (node.error_node) out["error_node"] = *node.error_node;
  if (node.compensation) out["compensation"] = *node.compensation;
  if (!node.when.empty()) out["when"] = node.when;
  if (!node.gates.empty()) out["gates"] = node.gates;
  if (!node.approvers.empty()) out["approvers"] = node.approvers;
  return out;
}

json to_json(const FlowView& view) {
  json out{{"flow", view.record.id},
           {"caller_id", view.record.caller_id},
           {"name", to_utf8(view.record.name)},
           {"status", view.status},
           {"detail", view.detail},
           {"definition_hash", to_utf8(view.record.definition_hash)},
           {"has_definition", view.has_plan},
           {"revision", view.revision},
           {"checkpoint_at", view.checkpoint_at},
           {"events_waiting", view.events_waiting},
           {"now_ms", view.now_ms},
           {"nodes", json::array()},
           {"anomalies", json::array()}};
  put_if(out, "context_id", view.record.context_id);
  if (view.said) out["said"] = json_of(*view.said);
  put_if(out, "error", view.record.error);
  put_if(out, "parent", view.record.parent);
  if (auto inputs = inputs_of(view.record); !inputs.is_null()) out["inputs"] = std::move(inputs);
  put_if(out, "created_at", view.record.created_at);
  put_if(out, "started_ms", view.record.started_ms);
  put_if(out, "ended_ms", view.record.ended_ms);
  for (const NodeView& node : view.nodes) out["nodes"].push_back(to_json(node));
  for (const std::string& line : view.anomalies) out["anomalies"].push_back(to_utf8(line));
  out["planned"] = names_of(view, view.planned);
  out["visible"] = names_of(view, view.visible);
  out["claimed"] = names_of(view, view.claimed);
  out["expired"] = names_of(view, view.expired);
  out["waiting"] = names_of(view, view.waiting);
  out["manual"] = names_of(view, view.manual);
  out["unapplied"] = names_of(view, view.unapplied);
  out["applied"] = names_of(view, view.applied);
  out["terminal"] = view.status == "finished" || view.status == "error";
  return out;
}

}  // namespace mycojobs
