#include "workflow/stage.h"

#include <gtest/gtest.h>

#include "text/cbor.h"
#include "text/cbor_map_reader.h"

namespace mycojobs::workflow_tests {

std::string cbor(const json& value) { return encode_cbor(value).value(); }
json uncbor(std::string_view bytes) { return decode_cbor(bytes).value(); }

StepAnswer parse_step_answer(const json& output) {
  if (output.contains("error"))
    return StepError{output["error"]["kind"], output["error"]["message"], output["error"].value("line", 0U)};
  StepOutput made;
  if (!output.at("state").is_null()) made.state = cbor(output.at("state"));
  for (const auto& event : output.value("events", json::array()))
    made.domain_events.push_back({event.at("schema"), cbor(event.at("value")), std::nullopt});
  for (const auto& effect : output.value("effects", json::array()))
    made.effects.push_back(
        {effect.at("kind"), cbor(effect.at("params")), made.effects.size(), effect.value("ref", std::string())});
  if (output.contains("ann")) made.annotations = cbor(output.at("ann"));
  return made;
}
StepEngine make_engine(std::map<std::string, StepFunction> functions) {
  return [functions = std::move(functions)](const WorkflowSpec& spec, const WorkflowManifest&,
                                            const StepRequest& request) {
    return parse_step_answer(functions.at(spec.entrypoint)(request.state ? uncbor(*request.state) : json(nullptr),
                                                           uncbor(request.event.value),
                                                           request.ctx ? uncbor(*request.ctx) : json(nullptr)));
  };
}

json orders_manifest(bool with_rejected) {
  json manifest = json::parse(R"json({
    "name": "com.acme/shop@1",
    "schemas": {
      "com.acme/OrderCreated@1": {"type": "object", "required": ["order_id", "cents"], "properties": {
        "order_id": {"type": "string", "minLength": 1}, "cents": {"type": "integer", "minimum": 0}}},
      "com.acme/OrderClosed@1": {"type": "object", "required": ["order_id"], "properties": {
        "order_id": {"type": "string"}}},
      "com.acme/Paid@1": {"type": "object", "required": ["order_id", "cents"], "properties": {
        "order_id": {"type": "string"}, "cents": {"type": "integer"}}},
      "com.acme/OrderEvent@1": {"oneOf": [
        {"title": "Created", "$ref": "com.acme/OrderCreated@1"}, {"title": "Closed", "$ref": "com.acme/OrderClosed@1"},
        {"title": "Receipt", "$ref": "sys/EffectReceiptEnvelope@1"},
        {"title": "Rejected", "$ref": "sys/EffectReceiptRejected@1"}]},
      "com.acme/Order@1": {"type": "object", "required": ["pc", "cents"], "properties": {
        "pc": {"type": "string"}, "cents": {"type": "integer"}, "seen": {}}}
    },
    "effects": [{"name": "payment/charge@1", "script_type": "python", "script": "charge()",
      "params": {"type": "object", "required": ["cents"], "properties": {"cents": {"type": "integer", "minimum": 0}}},
      "receipt": {"type": "object", "required": ["ok"], "properties": {"ok": {"type": "boolean"}}}}],
    "workflows": [
      {"name": "com.acme/order@1", "state": "com.acme/Order@1", "event": "com.acme/OrderEvent@1",
       "context": "sys/WorkflowContext@1", "annotations": {"type": "string"}, "key_schema": {"type": "string"},
       "effects_emitted": ["payment/charge@1"], "impl": {"module": "shop.lua", "entrypoint": "order"}},
      {"name": "com.acme/ledger@1", "state": {"type": "integer"}, "event": "com.acme/Paid@1",
       "effects_emitted": [], "impl": {"module": "shop.lua", "entrypoint": "ledger"}}],
    "routing": {"subscriptions": [
      {"event": "com.acme/OrderCreated@1", "workflow": "com.acme/order@1", "key_field": "$value.order_id"},
      {"event": "com.acme/OrderClosed@1", "workflow": "com.acme/order@1", "key_field": "$value.order_id"},
      {"event": "com.acme/Paid@1", "workflow": "com.acme/ledger@1"}]}
  })json");
  if (!with_rejected) manifest["schemas"]["com.acme/OrderEvent@1"]["oneOf"].erase(3);
  return manifest;
}

std::map<std::string, StepFunction> orders_engine() {
  const auto order = [](const json& state, const json& event, const json& ctx) -> json {
    const std::string tag = event.at("$tag");
    const json& value = event.at("$value");
    if (tag == "Closed") return {{"state", nullptr}};
    if (tag == "Created")
      return {
          {"state", {{"pc", "charging"}, {"cents", value.at("cents")}, {"seen", ctx.at("now_ms")}}},
          {"effects",
           json::array({{{"kind", "payment/charge@1"}, {"params", {{"cents", value.at("cents")}}}, {"ref", "pay"}}})}};
    if (tag == "Rejected") return {{"state", {{"pc", "rejected"}, {"cents", 0}}}};
    const json cents = state.is_null() ? json(0) : state.at("cents");
    if (value.at("status") != "ok") return {{"state", {{"pc", "failed"}, {"cents", cents}}}};
    return {
        {"state", {{"pc", "paid"}, {"cents", cents}}},
        {"events",
         json::array({{{"schema", "com.acme/Paid@1"}, {"value", {{"order_id", value.at("key")}, {"cents", cents}}}}})}};
  };
  const auto ledger = [](const json& state, const json& event, const json&) -> json {
    return {{"state", (state.is_null() ? 0 : state.get<int>()) + event.at("cents").get<int>()}};
  };
  return {{"order", order}, {"ledger", ledger}};
}

InstanceId order(const std::string& id) { return {"com.acme/order@1", cbor(id)}; }

EventArrived make_event(const std::string& schema, const json& value) {
  return {schema, value.dump(), ValueForm::from_json, "actor:7"};
}

Stage::Stage(std::map<std::string, StepFunction> functions) : engine(make_engine(std::move(functions))) {
  deployment.id = "7/com.acme/shop";
}

std::string Stage::add(const json& manifest, const std::string& code) {
  auto read = read_manifest(manifest, {{"shop.lua", code}});
  EXPECT_TRUE(read.problems.empty()) << join(read.problems);
  if (!read.manifest) return "";
  catalog.add(read.manifest);
  return read.manifest->hash;
}
void Stage::apply(const std::string& hash) { commit_input(ApplyManifest{hash}); }

Result<WorkflowDecision> Stage::decide_input(decltype(WorkflowInput::content) input) const {
  return decide(deployment, catalog, {{now_ms, std::string(32, static_cast<char>(now_ms % 251))}, std::move(input)},
                rules);
}
WorkflowDecision Stage::commit_input(decltype(WorkflowInput::content) input) {
  ++now_ms;
  auto decision = decide_input(std::move(input));
  EXPECT_TRUE(decision) << decision.error().message;
  if (!decision) return {};
  const auto done = commit(deployment, *decision);
  EXPECT_TRUE(done) << done.error().message;
  journal.insert(journal.end(), decision->facts.begin(), decision->facts.end());
  return std::move(*decision);
}
std::string Stage::get_rejection(decltype(WorkflowInput::content) input) const {
  const auto decision = decide_input(std::move(input));
  return decision ? "" : decision.error().message;
}
WorkflowDecision Stage::step(const InstanceId& id) {
  const auto request = build_step_request(deployment, catalog, id);
  EXPECT_TRUE(request) << request.error().message;
  if (!request) return {};
  const auto* manifest = catalog.find(cell(id).manifest);
  return commit_input(
      StepCompleted{id, cell(id).inbox.front().id, engine(*manifest->workflow(id.workflow), *manifest, *request)});
}
void Stage::settle() {
  for (auto next = next_instances(deployment, 1); !next.empty(); next = next_instances(deployment, 1))
    step(next.front());
}
WorkflowDecision Stage::receipt(const std::string& intent, const json& payload, ReceiptStatus status) {
  ReceiptArrived arrived;
  arrived.intent = intent, arrived.payload = payload.dump(), arrived.status = status;
  return commit_input(std::move(arrived));
}
json Stage::state(const InstanceId& id) const {
  const InstanceState* found = deployment.find_instance(id);
  return found == nullptr || !found->state ? json(nullptr) : uncbor(get_state_bytes(*found->state).value());
}
std::vector<std::string> Stage::kinds(const WorkflowDecision& decision) const {
  std::vector<std::string> kinds;
  for (const auto& fact : decision.facts) kinds.emplace_back(fact_kind(fact));
  return kinds;
}

}  // namespace mycojobs::workflow_tests
