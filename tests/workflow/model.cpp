#include "workflow/model.h"

#include <algorithm>

namespace mycojobs::workflow_tests {

bool Model::fits(const std::string& schema, const json& value) {
  if (!value.is_object() || !value.contains("n") || !value["n"].is_number_integer()) return false;
  if (schema == "m/Note@1") return value.size() == 1;
  return value.size() == 2 && value.contains("k") && value["k"].is_number_integer() && value["k"] >= 0 &&
         value["k"] <= 4;
}

void Model::put(const InstanceId& id, ModelMail mail) {
  auto& cell = cells.at(id);
  cell.mail.push_back(std::move(mail));
  if (std::find(ring.begin(), ring.end(), id) == ring.end()) ring.push_back(id);
}
// An existing instance keeps its code and receives only the events that its code accepts, in the form that it expects.
void Model::deliver(const InstanceId& id, const std::string& schema, const json& value, std::uint64_t now_ms) {
  if (!cells.contains(id)) cells[id].code = code;
  if (cells[id].failed) return;
  const Machine& taker = machine(id);
  const auto tag = taker.tags.find(schema);
  if (tag == taker.tags.end()) return void(++unfit);
  put(id, {taker.keyed ? json{{"$tag", tag->second}, {"$value", value}} : value, now_ms});
}
void Model::event(const std::string& schema, const json& value, std::uint64_t now_ms) {
  for (const auto& [event, workflow] : codes.at(code).subscriptions)
    if (event == schema) deliver({workflow, value.contains("k") ? cbor(value["k"]) : ""}, schema, value, now_ms);
}

bool Model::breaks(const InstanceId& id, const json& output) {
  if (output.contains("error")) return true;
  for (const auto& effect : output.value("effects", json::array()))
    if (effect["kind"] != "m/do@1" || !effect["params"]["n"].is_number() || id == kSink) return true;
  for (const auto& event : output.value("events", json::array()))
    if (!fits(event["schema"], event["value"])) return true;
  return false;
}
json Model::output(const InstanceId& id) const {
  const auto& cell = cells.at(id);
  const auto& mail = cell.mail.front();
  const json ctx = machine(id).context ? json{{"now_ms", mail.now_ms}} : json(nullptr);
  return machine(id).output(cell.state, mail.value, ctx, id.key.empty() ? 0 : uncbor(id.key).get<int>());
}
void Model::fail(const InstanceId& id) {
  auto& cell = cells.at(id);
  cell.failed = true;
  cell.mail.clear();
  for (const auto& [intent, pending] : cell.pending) settled[intent] = id;
  cell.pending.clear();
  std::erase(ring, id);
}
void Model::cancel(const InstanceId& id) { fail(id); }
void Model::remove(const InstanceId& id) {
  std::erase_if(settled, [&](const auto& row) { return row.second == id; });
  cells.erase(id);
}
void Model::end_if_spent(const InstanceId& id) {
  const auto& cell = cells.at(id);
  if (!cell.state.is_null() || !cell.mail.empty() || !cell.pending.empty() || cell.failed || id.key.empty()) return;
  remove(id);
}
void Model::step(const InstanceId& id, const json& output, const std::vector<EffectToPublish>& published,
                 std::uint64_t now_ms) {
  if (breaks(id, output)) return fail(id);
  auto& cell = cells.at(id);
  cell.mail.pop_front();
  cell.state = output["state"];
  for (const auto& each : published)
    cell.pending[each.pending_intent.intent.hash] = {each.pending_intent.intent.effect, each.workflow_hash,
                                                     each.pending_intent.intent.index, each.pending_intent.sequence,
                                                     false};
  std::erase(ring, id);
  if (!cell.mail.empty()) ring.push_back(id);
  for (const auto& each : output.value("events", json::array())) event(each["schema"], each["value"], now_ms);
  end_if_spent(id);
}

void Model::receipt(const std::string& intent, const std::string& status, const json& payload, bool fault,
                    std::uint64_t now_ms) {
  for (auto& [id, cell] : cells) {
    const auto found = cell.pending.find(intent);
    if (found == cell.pending.end()) continue;
    json value{{"workflow", id.workflow},
               {"workflow_hash", found->second.workflow_hash},
               {"key", uncbor(id.key)},
               {"intent", intent},
               {"effect", found->second.effect},
               {"status", status},
               {"sequence", found->second.sequence},
               {"index", found->second.index}};
    if (fault)
      value["reason"] = "";  // the reason is not compared
    else
      value["payload"] = payload;
    const bool dies = fault && !machine(id).rejected;
    if (!dies) put(id, {{{"$tag", fault ? "Rejected" : "Receipt"}, {"$value", value}}, now_ms});
    settled[intent] = id;
    cell.pending.erase(found);
    if (dies) fail(id);
    return;
  }
}
std::vector<std::string> Model::waiting() const {
  std::vector<std::string> all;
  for (const auto& [id, cell] : cells)
    for (const auto& [intent, pending] : cell.pending) all.push_back(intent);
  return all;
}

std::string Model::compare(const DeploymentState& deployment) const {
  if (deployment.manifest != code) return "another manifest is in force";
  if (deployment.refused_receipts != refused) return "refused receipts are counted otherwise";
  if (deployment.completed_intents != settled) return "other intents are remembered as settled";
  if (deployment.instances.size() != cells.size()) return "other instances are there";
  std::vector<InstanceId> ready;
  for (const auto& [ticket, id] : deployment.ready_instances) ready.push_back(id);
  if (ready != ring) return "other instances are ready, or in another order";
  for (const auto& [id, cell] : cells) {
    const InstanceState* found = deployment.find_instance(id);
    if (found == nullptr) return display_name(id) + " is not there";
    if (found->failed != cell.failed)
      return display_name(id) + (cell.failed ? " should have failed" : " should not have failed");
    if (found->manifest != cell.code) return display_name(id) + " runs other code";
    if ((found->state ? uncbor(found->state->bytes) : json(nullptr)) != cell.state)
      return display_name(id) + " has another state";
    if (found->inbox.size() != cell.mail.size()) return display_name(id) + " has other mail";
    for (std::size_t i = 0; i < cell.mail.size(); ++i) {
      json is = uncbor(found->inbox[i].value), should = cell.mail[i].value;
      if (is.contains("$value") && is["$value"].contains("reason")) should["$value"]["reason"] = is["$value"]["reason"];
      if (is != should) return display_name(id) + " has other mail: " + is.dump() + " instead of " + should.dump();
      if (found->inbox[i].sample.now_ms != cell.mail[i].now_ms) return display_name(id) + " has mail of another time";
      if (found->inbox[i].sample.entropy.size() != 32) return display_name(id) + " has mail without entropy";
    }
    if (found->pending_intents.size() != cell.pending.size()) return display_name(id) + " waits for other intents";
    for (const auto& [intent, pending] : cell.pending)
      if (!found->pending_intents.contains(intent) || found->pending_intents.at(intent).published != pending.published)
        return display_name(id) + " waits for other intents";
  }
  return "";
}

}  // namespace mycojobs::workflow_tests
