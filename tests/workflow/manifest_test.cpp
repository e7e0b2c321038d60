#include "workflows/manifest/workflow_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "workflow/stage.h"

namespace mycojobs::workflow_tests {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ParsedManifest read(const json& manifest, const std::string& code = "return {}") {
  return read_manifest(manifest, {{"shop.lua", code}});
}
// Returns the problems after one change; an empty `value` removes the field.
std::string get_rejection(const char* pointer, const std::optional<json>& value) {
  json manifest = orders_manifest();
  const json::json_pointer at(pointer);
  if (value)
    manifest[at] = *value;
  else
    manifest[at.parent_pointer()].erase(at.back());
  const auto result = read(manifest);
  EXPECT_EQ(result.manifest == nullptr, !result.problems.empty());
  return join(result.problems);
}

TEST(WorkflowManifestRead, ChoreographyIsReadCompletely) {
  const auto result = read(orders_manifest());
  ASSERT_TRUE(result.manifest) << join(result.problems);
  const auto& manifest = *result.manifest;
  EXPECT_EQ(manifest.name, "com.acme/shop@1");
  const auto* order = manifest.workflow("com.acme/order@1");
  EXPECT_TRUE(order->is_keyed());
  EXPECT_EQ(order->receipt_arm, "Receipt");
  EXPECT_EQ(order->rejected_arm, "Rejected");
  EXPECT_THAT(order->effects_emitted, ElementsAre("payment/charge@1"));
  EXPECT_FALSE(manifest.workflow("com.acme/ledger@1")->rejected_arm);
  EXPECT_EQ(manifest.effect("payment/charge@1")->script_type, "python");
  EXPECT_TRUE(manifest.effect("sys/timer@1")->system);
  ASSERT_EQ(manifest.subscriptions.size(), 3U);
  EXPECT_EQ(manifest.subscriptions[0].arm, "Created");
  EXPECT_EQ(manifest.subscriptions[2].arm, "");
}

TEST(WorkflowManifestRead, SingleWorkflowMayBeAtTheTop) {
  const json manifest = json::parse(R"json({"name": "a/counter@1", "state": {"type": "integer"}, "event": "a/Tick@1",
    "schemas": {"a/Tick@1": {}}, "effects_emitted": [], "impl": {"module": "shop.lua", "entrypoint": "step"},
    "limits": {"instructions": 5000}, "routing": {"subscriptions": [{"event": "a/Tick@1", "workflow": "a/counter@1"}]}})json");
  const auto result = read(manifest);
  ASSERT_TRUE(result.manifest) << join(result.problems);
  EXPECT_EQ(result.manifest->workflow("a/counter@1")->limits.instructions, 5000U);
}

TEST(WorkflowManifestRead, HashCoversManifestAndCode) {
  const auto hash = read(orders_manifest()).manifest->hash;
  EXPECT_EQ(hash.size(), 64U);
  EXPECT_EQ(read(json::parse(orders_manifest().dump())).manifest->hash, hash);
  EXPECT_NE(read(orders_manifest(), "return 1").manifest->hash, hash);
  EXPECT_NE(read(orders_manifest(false)).manifest->hash, hash);
  const auto manifest = read(orders_manifest()).manifest;
  EXPECT_NE(manifest->workflows[0].hash, manifest->workflows[1].hash);
  EXPECT_EQ(manifest->workflows[0].hash, workflow_hash(hash, "com.acme/order@1"));
}

TEST(WorkflowManifestRead, ErrorsNameTheirPlace) {
  const json arms = orders_manifest()["schemas"]["com.acme/OrderEvent@1"]["oneOf"];
  const struct {
    const char* at;
    std::optional<json> value;
    const char* problem;
  } rows[] = {
      {"/name", "shop", "name: \"shop\" is not a name: use namespace/name@version"},
      {"/name", "sys/shop@1", "names that begin with sys/ are reserved for the system"},
      {"/nme", 1, "nme: is an unknown field; did you mean \"name\"?"},
      {"/workflows/0/evnt", 1, "workflows[0].evnt: is an unknown field"},
      {"/workflows/0/name", "com.acme/ledger@1", "is listed twice"},
      {"/workflows/0/state", "com.acme/Ordr@1",
       "workflows[0].state: there is no schema \"com.acme/Ordr@1\"; did you mean"},
      {"/workflows/0/state", json{{"type", "int"}}, "workflows[0].state.type: "},
      {"/workflows/0/effects_emitted", std::nullopt, "workflows[0]: effects_emitted is missing"},
      {"/workflows/0/effects_emitted/0", "payment/refund@1",
       "effects_emitted[0]: the effect \"payment/refund@1\" is not declared"},
      {"/workflows/0/effects_emitted/1", "payment/charge@1", "is listed twice"},
      {"/workflows/0/impl/entrypoint", std::nullopt, "workflows[0].impl: entrypoint is missing"},
      {"/workflows/0/impl/entrypoint", "os.exit()", "is not a valid name of a function"},
      {"/workflows/0/impl/module", "none.lua", "is not among the code"},
      {"/workflows/0/context", "com.acme/Order@1", "the system provides sys/WorkflowContext@1 only"},
      {"/workflows/0/event", "com.acme/OrderCreated@1", "has no arm sys/EffectReceiptEnvelope@1"},
      {"/workflows/0/limits", json{{"instructions", 1}}, "workflows[0].limits.instructions"},
      {"/workflows", json::array(), "it has no workflow"},
      {"/workflows", 1, "workflows: is the number 1, not a list"},
      {"/schemas/com.acme~1OrderEvent@1/oneOf", json::array({arms[0], arms[0]}), "another arm has the tag"},
      {"/schemas/sys~1Mine@1", json::object(), "names that begin with sys/ are reserved for the system"},
      {"/schemas/mine", json::object(), "is not a name"},
      {"/effects/0/runner", "gpu", "is not a runner: give runner:ID"},
      {"/effects/0/runner", "runner:0", "is not a runner"},
      {"/effects/0/script", std::nullopt, "needs either script or module"},
      {"/effects/0/params", std::nullopt, "effects[0]: params is missing"},
      {"/effects/0/script_type", "No Type", "is not a script type"},
      {"/effects/0/policy", 1, "effects[0].policy: "},
      {"/effects/0/policy", json{{"memry", 1}}, "effects[0].policy: memry"},
      {"/effects/0/policy", json{{"memory", -1}}, "effects[0].policy: memory"},
      {"/effects/1", json{{"name", "sys/launch@1"}}, "the system has no effect"},
      {"/effects/1", json{{"name", "sys/timer@1"}, {"params", "sys/Any@1"}}, "has only a name"},
      {"/routing/subscriptions/0/event", "com.acme/None@1", "routing.subscriptions[0]: there is no schema"},
      {"/routing/subscriptions/0/event", "com.acme/Paid@1", "com.acme/order@1 does not accept"},
      {"/routing/subscriptions/0/event", "sys/EffectReceiptEnvelope@1", "only the system sends that"},
      {"/routing/subscriptions/0/workflow", "com.acme/none@1", "there is no workflow"},
      {"/routing/subscriptions/0/key_field", std::nullopt, "is keyed: key_field is missing"},
      {"/routing/subscriptions/0/key_field", "order_id", "the fields of an arm are below $value"},
      {"/routing/subscriptions/0/key_field", "$value.id", "does not exist in what"},
      {"/routing/subscriptions/2/key_field", "order_id", "has no key_schema"},
      {"/routing/subscriptions/1/event", "com.acme/OrderCreated@1", "it is listed twice"},
      {"/routing/more", 1, "routing.more: is an unknown field"},
  };
  for (const auto& row : rows) EXPECT_THAT(get_rejection(row.at, row.value), HasSubstr(row.problem)) << row.at;
}

TEST(WorkflowManifestRead, ImpossibleManifestIsRejectedOnlyAtInput) {
  const struct {
    const char* at;
    std::optional<json> value;
    const char* problem;
  } rows[] = {
      {"/routing", std::nullopt, "no subscription names com.acme/order@1: no event ever reaches it"},
      {"/routing/subscriptions/2", std::nullopt, "no subscription names com.acme/ledger@1"},
      {"/workflows/0/key_schema", json{{"type", "boolean"}}, "is never a key of com.acme/order@1"},
      {"/workflows/0/key_schema", json{{"type", "integer"}}, "the value at \"$value.order_id\" is never a key"},
      {"/workflows/0/key_schema", json{{"type", "string"}, {"format", "bytes"}}, "is never a key"},
      {"/workflows/0/key_schema", json{{"type", {"string", "null"}}},
       "a key is a text, a whole number or a byte string"},
      {"/workflows/0/key_schema", json::object(), "a key is a text, a whole number or a byte string"},
      {"/schemas/com.acme~1Order@1/properties/pc/enum", json{"new", 7},
       "schemas.com.acme/Order@1.properties.pc: its choice 7 never fits: the value: is the number 7, not string"},
      {"/schemas/com.acme~1Paid@1/properties/cents/const", 0.5, "its choice 0.5 never fits"},
      {"/schemas/com.acme~1OrderCreated@1/properties/cents/enum", json{-1, 1}, "its choice -1 never fits"},
  };
  for (const auto& row : rows) {
    json manifest = orders_manifest();
    const json::json_pointer at(row.at);
    if (row.value)
      manifest[at] = *row.value;
    else if (manifest[at.parent_pointer()].is_array())
      manifest[at.parent_pointer()].erase(std::stoul(at.back()));
    else
      manifest[at.parent_pointer()].erase(at.back());
    const auto offered = read_manifest(manifest, {{"shop.lua", "return {}"}}, ManifestUse::offered);
    EXPECT_THAT(join(offered.problems), HasSubstr(row.problem)) << row.at;
    EXPECT_FALSE(offered.manifest) << row.at;
    EXPECT_TRUE(read(manifest).manifest) << row.at;
  }
  EXPECT_TRUE(read_manifest(orders_manifest(), {{"shop.lua", "return {}"}}, ManifestUse::offered).manifest);
}

TEST(WorkflowManifestRead, ListsAreBoundedBeforeTheyAreRead) {
  const std::pair<const char*, json> rows[] = {{"/effects", {{"name", "sys/timer@1"}}},
                                               {"/workflows", orders_manifest()["workflows"][0]},
                                               {"/workflows/0/effects_emitted", "sys/timer@1"},
                                               {"/routing/subscriptions", json::object()}};
  for (const auto& [at, entry] : rows) {
    json manifest = orders_manifest();
    manifest[json::json_pointer(at)] = std::vector<json>(1'001, entry);
    const auto offered = read_manifest(manifest, {{"shop.lua", "return {}"}}, ManifestUse::offered);
    EXPECT_THAT(join(offered.problems), HasSubstr("has 1001 entries; at most 1000")) << at;
    EXPECT_LE(offered.problems.size(), 4U) << at << ": " << join(offered.problems);
  }
}

TEST(WorkflowManifestRead, AllProblemsAreNamedAtOnce) {
  json manifest = orders_manifest();
  manifest["workflows"][0].erase("state");
  manifest["workflows"][1].erase("impl");
  manifest["effects"][0].erase("receipt");
  EXPECT_GE(read(manifest).problems.size(), 3U);
  EXPECT_EQ(read(json(1)).problems.size(), 1U);
}

}  // namespace
}  // namespace mycojobs::workflow_tests
