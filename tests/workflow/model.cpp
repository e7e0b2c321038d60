#include "workflow/model.h"

#include <algorithm>

namespace mycojobs::workflow_tests {

CellId busy_cell(int key) { return {"m/cell@1", cbor(key)}; }
CellId peer_cell(int key) { return {"m/peer@1", cbor(key)}; }

json machine_manifest() {
  return json::parse(R"json({
    "name": "m/world@1",
    "schemas": {
      "m/Go@1": {"type": "object", "required": ["k", "n"], "properties": {
        "k": {"type": "integer", "minimum": 0, "maximum": 4}, "n": {"type": "integer"}}},
      "m/Poke@1": {"type": "object", "required": ["k", "n"], "properties": {
        "k": {"type": "integer", "minimum": 0, "maximum": 4}, "n": {"type": "integer"}}},
      "m/Note@1": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}},
      "m/CellEvent@1": {"oneOf": [{"title": "Go", "$ref": "m/Go@1"}, {"title": "Receipt", "$ref": "sys/EffectReceiptEnvelope@1"},
        {"title": "Rejected", "$ref": "sys/EffectReceiptRejected@1"}]},
      "m/PeerEvent@1": {"oneOf": [{"title": "Go", "$ref": "m/Go@1"}, {"title": "Poke", "$ref": "m/Poke@1"},
        {"title": "Receipt", "$ref": "sys/EffectReceiptEnvelope@1"}]},
      "m/State@1": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    },
    "effects": [
      {"name": "m/do@1", "script_type": "lua", "script": "x", "params": {"type": "object", "required": ["n"], "properties": {
        "n": {"type": "integer", "minimum": 0}}}, "receipt": {"type": "object", "required": ["r"], "properties": {"r": {"type": "integer"}}}},
      {"name": "m/never@1", "runner": "runner:7", "script": "x", "params": {}, "receipt": {}}],
    "workflows": [
      {"name": "m/cell@1", "state": "m/State@1", "event": "m/CellEvent@1", "key_schema": {"type": "integer"},
       "context": "sys/WorkflowContext@1", "effects_emitted": ["m/do@1", "sys/timer@1"],
       "impl": {"module": "shop.lua", "entrypoint": "cell"}},
      {"name": "m/peer@1", "state": "m/State@1", "event": "m/PeerEvent@1", "key_schema": {"type": "integer"},
       "effects_emitted": ["m/do@1"], "impl": {"module": "shop.lua", "entrypoint": "peer"}},
      {"name": "m/sink@1", "state": {"type": "integer"}, "event": "m/Note@1", "context": "sys/WorkflowContext@1",
       "effects_emitted": [], "impl": {"module": "shop.lua", "entrypoint": "sink"}}],
    "routing": {"subscriptions": [
      {"event": "m/Go@1", "workflow": "m/cell@1", "key_field": "$value.k"},
      {"event": "m/Go@1", "workflow": "m/peer@1", "key_field": "$value.k"},
      {"event": "m/Poke@1", "workflow": "m/peer@1", "key_field": "$value.k"},
      {"event": "m/Note@1", "workflow": "m/sink@1"}]}
  })json");
}

namespace {

std::uint64_t mixed(const std::string& text) {
  std::uint64_t hash = 1469598103934665603U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash ^ hash >> 29;
}
json list_of(std::size_t count, const json& value) {
  json list = json::array();
  for (std::size_t i = 0; i < count; ++i) list.push_back(value);
  return list;
}

}  // namespace

json behave(const std::string& entrypoint, const json& state, const json& event, const json& ctx) {
  if (entrypoint == "sink") {
    const int n = event.at("n").get<int>() + ctx.at("now_ms").get<int>() % 7;
    if (n % 11 == 5) return {{"state", nullptr}};
    return {{"state", (state.is_null() ? 0 : state.get<int>()) + n}};
  }
  const std::uint64_t h =
      mixed(state.dump() + event.dump() + std::to_string(ctx.is_null() ? 0 : ctx.at("now_ms").get<int>() % 5));
  const std::uint64_t kind = h % 100;
  json out{{"state", {{"n", static_cast<int>(h % 1000)}}}};
  if (kind < 3) return {{"error", {{"kind", "script"}, {"message", "boom"}}}};
  if (kind < 5) return out["effects"] = list_of(1, {{"kind", "m/never@1"}, {"params", 1}}), out;
  if (kind < 7) return out["effects"] = list_of(1, {{"kind", "m/do@1"}, {"params", {{"n", "x"}}}}), out;
  if (kind < 9) return out["events"] = list_of(1, {{"schema", "m/Note@1"}, {"value", {{"n", "x"}}}}), out;
  if (kind < 22) out["state"] = nullptr;
  out["effects"] = list_of(h / 256 % 3, {{"kind", "m/do@1"}, {"params", {{"n", static_cast<int>(h / 4096 % 10)}}}});
  const json& value = event.at("$value");
  const int n = value.value("n", 0), key = static_cast<int>(h / 65536 % 5);
  out["events"] = json::array();
  if (n > 0 && h / 1024 % 2 == 0)
    out["events"].push_back({{"schema", "m/Go@1"}, {"value", {{"k", key}, {"n", n - 1}}}});
  if (n > 0 && h / 2048 % 3 == 0)
    out["events"].push_back({{"schema", "m/Poke@1"}, {"value", {{"k", key}, {"n", n - 1}}}});
  if (h / 512 % 3 == 0) out["events"].push_back({{"schema", "m/Note@1"}, {"value", {{"n", key}}}});
  return out;
}

bool Model::fits(const std::string& schema, const json& value) {
  if (!value.is_object() || !value.contains("n") || !value["n"].is_number_integer()) return false;
  if (schema == "m/Note@1") return value.size() == 1;
  return value.size() == 2 && value.contains("k") && value["k"].is_number_integer() && value["k"] >= 0 &&
         value["k"] <= 4;
}

void Model::put(const CellId& id, ModelMail mail) {
  auto& cell = cells.at(id);
  cell.mail.push_back(std::move(mail));
  if (std::find(ring.begin(), ring.end(), id) == ring.end()) ring.push_back(id);
}
void Model::deliver(const CellId& id, const json& value, std::uint64_t now_ms) {
  if (!cells.contains(id)) cells[id].code = code;
  if (!cells[id].failed) put(id, {value, now_ms});
}
void Model::event(const std::string& schema, const json& value, std::uint64_t now_ms) {
  const auto arm = [&](const char* tag) { return json{{"$tag", tag}, {"$value", value}}; };
  if (schema == "m/Go@1")
    deliver(busy_cell(value["k"]), arm("Go"), now_ms), deliver(peer_cell(value["k"]), arm("Go"), now_ms);
  if (schema == "m/Poke@1") deliver(peer_cell(value["k"]), arm("Poke"), now_ms);
  if (schema == "m/Note@1") deliver(kSink, value, now_ms);
}

bool Model::breaks(const CellId& id, const json& output) {
  if (output.contains("error")) return true;
  for (const auto& effect : output.value("effects", json::array()))
    if (effect["kind"] != "m/do@1" || !effect["params"]["n"].is_number() || id.workflow == "m/sink@1") return true;
  for (const auto& event : output.value("events", json::array()))
    if (!fits(event["schema"], event["value"])) return true;
  return false;
}
json Model::output(const CellId& id) const {
  const auto& cell = cells.at(id);
  const auto& mail = cell.mail.front();
  const std::string name = id.workflow.substr(2, 4);
  return behave(name, cell.state, mail.value, name == "peer" ? json(nullptr) : json{{"now_ms", mail.now_ms}});
}
void Model::fail(const CellId& id) {
  auto& cell = cells.at(id);
  cell.failed = true;
  cell.mail.clear();
  for (const auto& [intent, pending] : cell.pending) settled[intent] = id;
  cell.pending.clear();
  std::erase(ring, id);
}
void Model::end_if_spent(const CellId& id) {
  const auto& cell = cells.at(id);
  if (!cell.state.is_null() || !cell.mail.empty() || !cell.pending.empty() || cell.failed || id.key.empty()) return;
  std::erase_if(settled, [&](const auto& row) { return row.second == id; });
  cells.erase(id);
}
void Model::step(const CellId& id, const json& output, const std::vector<EffectToPublish>& published,
                 std::uint64_t now_ms) {
  if (breaks(id, output)) return fail(id);
  auto& cell = cells.at(id);
  cell.mail.pop_front();
  cell.state = output["state"];
  for (const auto& each : published)
    cell.pending[each.pending.intent.hash] = {each.pending.intent.effect, each.workflow_hash, each.pending.intent.index,
                                              each.pending.sequence, false};
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
      value["reason"] = "";  // whatever it says
    else
      value["payload"] = payload;
    const bool dies = fault && id.workflow == "m/peer@1";
    if (!dies) put(id, {{{"$tag", fault ? "Rejected" : "Receipt"}, {"$value", value}}, now_ms});
    settled[intent] = id;
    cell.pending.erase(found);
    if (dies) fail(id);
    return;
  }
}
bool Model::at_rest() const {
  return ring.empty() &&
         std::all_of(cells.begin(), cells.end(), [](const auto& row) { return row.second.pending.empty(); });
}

std::string Model::compare(const WorldState& world) const {
  if (world.manifest != code) return "another manifest is in force";
  if (world.refused != refused) return "refused receipts are counted otherwise";
  if (world.settled != settled) return "other intents are remembered as settled";
  if (world.cells.size() != cells.size()) return "other instances are there";
  std::vector<CellId> ready;
  for (const auto& [ticket, id] : world.ready) ready.push_back(id);
  if (ready != ring) return "other instances are ready, or in another order";
  for (const auto& [id, cell] : cells) {
    const CellState* found = world.cell(id);
    if (found == nullptr) return shown(id) + " is not there";
    if (found->failed != cell.failed)
      return shown(id) + (cell.failed ? " should have failed" : " should not have failed");
    if (found->manifest != cell.code) return shown(id) + " runs other code";
    if ((found->state ? uncbor(found->state->bytes) : json(nullptr)) != cell.state)
      return shown(id) + " has another state";
    if (found->mail.size() != cell.mail.size()) return shown(id) + " has other mail";
    for (std::size_t i = 0; i < cell.mail.size(); ++i) {
      json is = uncbor(found->mail[i].value), should = cell.mail[i].value;
      if (is.contains("$value") && is["$value"].contains("reason")) should["$value"]["reason"] = is["$value"]["reason"];
      if (is != should) return shown(id) + " has other mail: " + is.dump() + " instead of " + should.dump();
      if (found->mail[i].sample.now_ms != cell.mail[i].now_ms) return shown(id) + " has mail of another time";
      if (found->mail[i].sample.entropy.size() != 32) return shown(id) + " has mail without entropy";
    }
    if (found->pending.size() != cell.pending.size()) return shown(id) + " waits for other intents";
    for (const auto& [intent, pending] : cell.pending)
      if (!found->pending.contains(intent) || found->pending.at(intent).published != pending.published)
        return shown(id) + " waits for other intents";
  }
  return "";
}

}  // namespace mycojobs::workflow_tests
