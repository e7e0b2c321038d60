// A journal as a file, the differences of a new manifest, a simulation on a copy, and names in the spelling of
// users.
#include "workflows/tools/workflow_history.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/base64.h"
#include "workflow/stage.h"
#include "workflows/tools/manifest_diff.h"
#include "workflows/tools/shadow.h"
#include "workflows/tools/workflow_names.h"

namespace mycojobs::workflow_tests {
namespace {

WorkflowHistory make_history(const Stage& stage, const json& manifest) {
  return {stage.deployment.id, {{manifest.dump(), {{"shop.lua", "return {}"}}}}, stage.journal, {}};
}

class WorkflowHistoryTest : public ::testing::Test {
 protected:
  WorkflowHistoryTest() {
    stage.apply(stage.add(orders_manifest()));
    stage.send("com.acme/OrderCreated@1", {{"order_id", "a"}, {"cents", 500}});
    stage.settle();
  }
  Stage stage;
};

TEST_F(WorkflowHistoryTest, RoundTripsWithItsDeployment) {
  const auto text = write_history(make_history(stage, orders_manifest()));
  ASSERT_TRUE(text) << text.error().message;
  const auto read = read_history(*text);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->facts, stage.journal);
  EXPECT_EQ(fold_history(*read).value(), stage.deployment);
  EXPECT_NE(build_catalog(*read).value().find(stage.deployment.manifest), nullptr);
  EXPECT_EQ(write_history(*read).value(), *text);
}

TEST_F(WorkflowHistoryTest, ErrorsNameTheirLine) {
  const std::string text = write_history(make_history(stage, orders_manifest())).value();
  const auto refused = [](const std::string& changed) {
    const auto read = read_history(changed);
    return read ? std::string("taken") : read.error().message;
  };
  EXPECT_EQ(refused(""), "it is not a history of workflows: it is empty");
  EXPECT_EQ(refused("{}"), "line 1: it is not a history of workflows");
  EXPECT_EQ(refused("[]"), "line 1: it is not a map");
  EXPECT_EQ(refused("{\"workflow_history\":1}"), "line 1: it names its world and its manifests");
  EXPECT_EQ(refused(text + "{\"height\":1}\n").substr(0, 5), "line ");
  EXPECT_NE(refused(text + "{\"fact\":\"!\"}\n").find("fact is not base64"), std::string::npos);
  EXPECT_NE(refused(text + "{\"fact\":\"" + encode_base64("\xff") + "\"}\n").find("line "), std::string::npos);
  EXPECT_NE(refused(text + "x").find("line "), std::string::npos);
  // Without one of its facts the file can be read, but the world cannot be folded.
  const auto second = text.find('\n', text.find('\n') + 1);
  const auto holed = read_history(text.substr(0, text.find('\n') + 1) + text.substr(second + 1));
  ASSERT_TRUE(holed);
  EXPECT_NE(fold_history(*holed).error().message.find("workflow-height"), std::string::npos);
}

TEST_F(WorkflowHistoryTest, SpilledStatesIncludeTheirBlobs) {
  Stage spilling;
  spilling.rules.inline_state_bytes = 4;
  spilling.apply(spilling.add(orders_manifest()));
  const auto decision =
      (spilling.send("com.acme/OrderCreated@1", {{"order_id", "a"}, {"cents", 500}}), spilling.step(order("a")));
  ASSERT_EQ(decision.blobs.size(), 1U);
  auto history = make_history(spilling, orders_manifest());
  EXPECT_TRUE(fold_history(read_history(write_history(history).value()).value())
                  ->find_instance(order("a"))
                  ->state->is_spilled());
  history.blobs.insert(decision.blobs[0].bytes);
  const auto deployment = fold_history(read_history(write_history(history).value()).value()).value();
  EXPECT_EQ(deployment.find_instance(order("a"))->state->bytes, decision.blobs[0].bytes);
}

TEST_F(WorkflowHistoryTest, ShadowShowsStatesAsValues) {
  ShadowSettings settings;
  settings.manifest = stage.deployment.manifest;
  settings.sample.entropy = std::string(32, 'e');
  const json report = to_json(simulate(stage.deployment, stage.catalog, settings, stage.engine));
  EXPECT_EQ(report["obstacles"][0]["instance"], "com.acme/order@1[\"a\"]");
  EXPECT_EQ(report["steps"], 0);
  settings.events.push_back(make_event("com.acme/OrderCreated@1", {{"order_id", "b"}, {"cents", 7}}));
  const json more = to_json(simulate(stage.deployment, stage.catalog, settings, stage.engine));
  EXPECT_EQ(more["effects"][0]["params"], json({{"cents", 7}}));
  EXPECT_EQ(more["effects"][0]["ref"], "pay");
  EXPECT_EQ(more["pending"].size(), 1U) << "the intent of the copied deployment stays pending in a shadow";
  bool seen = false;
  for (const auto& each : more["changed"])
    if (each["instance"] == "com.acme/order@1[\"b\"]") seen = each["before"].is_null() && each["after"]["pc"] == "paid";
  EXPECT_TRUE(seen) << more.dump(2);
}

std::vector<std::string> shown(const json& before, const json& after, const std::string& code = "return {}") {
  const auto old_one = read_manifest(before, {{"shop.lua", "return {}"}}),
             new_one = read_manifest(after, {{"shop.lua", code}});
  EXPECT_TRUE(old_one.manifest && new_one.manifest) << join(new_one.problems);
  std::vector<std::string> out;
  for (const auto& each : compare_manifests(before, *old_one.manifest, after, *new_one.manifest)) {
    out.push_back(std::string(to_string(each.change)) + ' ' + each.part + ' ' + each.name);
    for (const auto& consequence : each.consequences) out.push_back("  " + consequence);
  }
  return out;
}
using Texts = std::vector<std::string>;

TEST(WorkflowDiff, EachPartThatChangedIsReported) {
  const json before = orders_manifest();
  EXPECT_EQ(shown(before, before), Texts{});
  EXPECT_EQ(shown(before, before, "return 1"),
            (Texts{"changed code shop.lua",
                   "  com.acme/order@1: new instances take the new code, those that are there keep theirs",
                   "  com.acme/ledger@1: new instances take the new code, those that are there keep theirs"}));
  json after = before;
  after["schemas"]["com.acme/OrderCreated@1"]["properties"]["cents"]["maximum"] = 10;
  EXPECT_EQ(shown(before, after),
            (Texts{"changed schema com.acme/OrderCreated@1", "  com.acme/order@1: it is its event"}));
  after = before;
  after["workflows"][0]["limits"] = {{"instructions", 1000}};
  EXPECT_EQ(shown(before, after), Texts{"changed workflow com.acme/order@1"});
  after = before;
  after["effects"][0]["receipt"]["properties"]["more"] = json::object();
  EXPECT_EQ(shown(before, after), Texts{"changed schema payment/charge@1#receipt"});
  after = before;
  after["effects"][0]["retries"] = 3;
  EXPECT_EQ(shown(before, after), Texts{"changed effect payment/charge@1"});
  after = before;
  std::swap(after["routing"]["subscriptions"][0], after["routing"]["subscriptions"][2]);
  EXPECT_EQ(shown(before, after), Texts{"changed subscription routing"});
  after = before;
  after["workflows"].erase(1), after["routing"]["subscriptions"].erase(2), after["description"] = "less";
  EXPECT_EQ(shown(before, after), (Texts{"changed manifest com.acme/shop@1", "removed workflow com.acme/ledger@1",
                                         "  its instances keep their code, and get no new events",
                                         "removed schema com.acme/ledger@1#state", "changed subscription routing"}));
}

TEST_F(WorkflowHistoryTest, OutlookNamesBlockingInstances) {
  json after = orders_manifest();
  after["schemas"]["com.acme/Refund@1"] = {
      {"type", "object"}, {"required", {"order_id"}}, {"properties", {{"order_id", {{"type", "string"}}}}}};
  after["schemas"]["com.acme/OrderEvent@1"]["oneOf"].push_back({{"title", "Refund"}, {"$ref", "com.acme/Refund@1"}});
  after["routing"]["subscriptions"].push_back(
      {{"event", "com.acme/Refund@1"}, {"workflow", "com.acme/order@1"}, {"key_field", "$value.order_id"}});
  const auto read = read_manifest(after, {{"shop.lua", "return {}"}});
  ASSERT_TRUE(read.manifest) << join(read.problems);
  const auto seen = assess_upgrade(stage.deployment, stage.catalog, *read.manifest);
  EXPECT_EQ(seen.obstacles.size(), 1U);
  EXPECT_EQ(seen.instances_with_old_code, Texts{"com.acme/order@1[\"a\"]"});
  EXPECT_EQ(seen.lost_events, Texts{"com.acme/order@1[\"a\"] does not accept com.acme/Refund@1"});
  EXPECT_TRUE(to_json(seen)["refused"].get<bool>());
  const auto* same = stage.catalog.find(stage.deployment.manifest);
  EXPECT_TRUE(assess_upgrade(stage.deployment, stage.catalog, *same).instances_with_old_code.empty());
}

TEST(WorkflowNames, AreFoundInTheUsualSpellings) {
  const Texts names{"shop/order@1", "shop/order@2", "stock/shelf@1", "mail/order-log@1"};
  EXPECT_EQ(find_name("stock/shelf@1", names, "x").value(), "stock/shelf@1");
  EXPECT_EQ(find_name("stock/shelf", names, "x").value(), "stock/shelf@1");
  EXPECT_EQ(find_name("shelf", names, "x").value(), "stock/shelf@1");
  EXPECT_EQ(find_name("shop/order@2", names, "x").value(), "shop/order@2");
  EXPECT_EQ(find_name("order", names, "workflow").error().message,
            "workflow \"order\": shop/order@1 and shop/order@2 have this name; use the full name");
  EXPECT_EQ(find_name("shelv", names, "workflow").error().message,
            "there is no workflow \"shelv\"; did you mean \"shelf\"?");
  EXPECT_EQ(find_name("", names, "workflow").error().code, Code::not_found);
}

TEST(WorkflowNames, KeysFollowTheSchema) {
  json manifest = orders_manifest();
  const auto texts = read_manifest(manifest, {{"shop.lua", ""}}).manifest;
  EXPECT_EQ(parse_instance_id(*texts, "order 7").value(), order("7")) << "the key is always a text";
  EXPECT_EQ(parse_instance_id(*texts, "ledger").value(), kLedger);
  EXPECT_FALSE(parse_instance_id(*texts, "ledger 7"));
  EXPECT_FALSE(parse_instance_id(*texts, "order"));
  manifest["workflows"][0]["key_schema"] = {{"type", "integer"}};
  manifest["schemas"]["com.acme/OrderCreated@1"]["properties"]["order_id"] = {{"type", "integer"}};
  manifest["schemas"]["com.acme/OrderClosed@1"]["properties"]["order_id"] = {{"type", "integer"}};
  const auto read = read_manifest(manifest, {{"shop.lua", ""}});
  ASSERT_TRUE(read.manifest) << join(read.problems);
  EXPECT_EQ(parse_instance_id(*read.manifest, "order 7")->key, cbor(7));
  EXPECT_EQ(short_name(parse_instance_id(*read.manifest, "order 7").value()), "order 7");
  EXPECT_EQ(parse_instance_id(*read.manifest, "order seven").error().code, Code::invalid);
}

}  // namespace
}  // namespace mycojobs::workflow_tests
