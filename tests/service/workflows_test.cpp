// Rights to apply, send, read, answer and remove, and the requests that are rejected before any write.
#include "service/workflow_service.h"

#include <nlohmann/json.hpp>

#include "service/workflow_logs.h"
#include "service_fixture.h"
#include "text/cbor.h"

namespace mycojobs::service {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kManifest = R"json({
  "name": "acme/count@1", "state": {"type": "integer"}, "key_schema": {"type": "integer"},
  "schemas": {"acme/Hit@1": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}},
    "acme/Event@1": {"oneOf": [{"title": "Hit", "$ref": "acme/Hit@1"},
      {"title": "Receipt", "$ref": "sys/EffectReceiptEnvelope@1"}]}},
  "event": "acme/Event@1", "effects_emitted": ["acme/pay@1"], "impl": {"module": "count.lua", "entrypoint": "step"},
  "effects": [{"name": "acme/pay@1", "script_type": "python", "script": "pass", "params": {}, "receipt": {}}],
  "routing": {"subscriptions": [{"event": "acme/Hit@1", "workflow": "acme/count@1", "key_field": "$value.id"}]}
})json";

class WorkflowService : public ServiceTest {
 protected:
  Result<AppliedWorkflow> apply(const RequestContext& by, json manifest = json::parse(kManifest),
                                std::string code = "") {
    return apply_workflow(by, in(), manifest, {{{"count.lua", std::move(code)}}, std::nullopt});
  }
  WorkflowStores in() { return {*store_, *deployments_}; }
  std::unique_ptr<WorkflowStore> deployments_ = *redis_.open_workflows();
};

TEST_F(WorkflowService, SubmittersOwnTheManifestsTheyApply) {
  const auto done = apply(submitter_);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(done->owner, 16U);
  EXPECT_TRUE(apply(submitter_)->repeated);
  EXPECT_EQ(error_code_of(apply(reader_)), "denied");
  EXPECT_EQ(error_code_of(apply(unrelated_actor_)), "denied");
  EXPECT_EQ(error_code_of(apply(other_submitter_, json::parse(kManifest), "-- another")), "denied")
      << "it is another's";
  EXPECT_EQ(error_code_of(apply(admin_, json::parse(kManifest), "-- another")), "");
}

TEST_F(WorkflowService, ApplyForAnotherActorIsRejected) {
  ASSERT_TRUE(apply(submitter_));
  ASSERT_EQ(error_code_of(apply(admin_, json::parse(kManifest), "-- of the admin's")), "");
  json given = json::parse(kManifest);
  given["description"] = "handed over";
  ASSERT_EQ(apply_workflow(operator_caller_, in(), given, {{{"count.lua", ""}}, 17})->owner, 17U);
  const auto back = apply(other_submitter_, json::parse(kManifest), "-- of the admin's");
  ASSERT_FALSE(back) << "its effects would run as the admin";
  EXPECT_EQ(back.error().code, Code::conflict);
  EXPECT_THAT(back.error().message, HasSubstr("run as actor 12, not as 17"));
  EXPECT_EQ(error_code_of(apply(other_submitter_, json::parse(kManifest), "-- its own")), "");
  EXPECT_EQ(error_code_of(apply(admin_, given)), "conflict") << "nor does an admin act as another";
  EXPECT_EQ(apply_workflow(operator_caller_, in(), given, {{{"count.lua", ""}}, std::nullopt})->owner, 17U);
  EXPECT_EQ(error_code_of(apply_workflow(operator_caller_, in(), given, {{{"count.lua", ""}}, 16})), "conflict")
      << "what was asked for is not passed over";
  EXPECT_TRUE(apply_workflow(operator_caller_, in(), given, {{{"count.lua", ""}}, 17})->repeated);
}

TEST_F(WorkflowService, OwnerHasThePermissionsOfItsEffects) {
  const auto done = apply_workflow(operator_caller_, in(), json::parse(kManifest), {{{"count.lua", ""}}, 13});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Code::denied);
  EXPECT_THAT(done.error().message, HasSubstr("owner: actor 13 may not create jobs"));
  EXPECT_TRUE(deployments_->list_deployments(1)->empty());
}

TEST_F(WorkflowService, RejectedApplyStoresNothing) {
  ASSERT_TRUE(apply(submitter_));
  ASSERT_TRUE(send_event(submitter_, in(), {"acme/Hit", R"({"id": 7})", ""}));
  LoadedDeployment deployment = *LoadedDeployment::load(*deployments_, 1, "acme/count@1");
  ASSERT_TRUE(deployment.decide({Sample{1, std::string(32, 'e')}, EventArrived{"acme/Hit@1", R"({"id": 7})"}}));
  ASSERT_TRUE(deployment.commit(*deployments_, 0));
  EXPECT_EQ(error_code_of(apply(submitter_, json::parse(kManifest), "-- the next")), "conflict");
  EXPECT_EQ(redis_.run_command(1, {"HLEN", "mj:deployment-manifests:acme/count@1"}).number(), 1U);
}

TEST_F(WorkflowService, SendingAnEventNeedsCreationRights) {
  ASSERT_TRUE(apply(submitter_));
  EXPECT_EQ(error_code_of(send_event(other_submitter_, in(), {"acme/Hit", R"({"id": 7})", ""})), "");
  EXPECT_EQ(error_code_of(send_event(reader_, in(), {"acme/Hit", R"({"id": 7})", ""})), "denied");
  EXPECT_EQ(deployments_->read_inbox(1, "acme/count@1", 10)->size(), 1U);
}

TEST_F(WorkflowService, ExplainReportsAnEffectThatIsNotStarted) {
  ASSERT_TRUE(apply(submitter_));
  LoadedDeployment deployment = *LoadedDeployment::load(*deployments_, 1, "acme/count@1");
  ASSERT_TRUE(deployment.decide({Sample{1, std::string(32, 'e')}, EventArrived{"acme/Hit@1", R"({"id": 7})"}}));
  const InstanceId instance = next_instances(deployment.state(), 1).at(0);
  const InboxEventId event = deployment.state().find_instance(instance)->inbox.front().id;
  StepOutput output;
  output.state = *encode_cbor(1);
  output.effects.push_back({"acme/pay@1", *encode_cbor(json::object()), 0, ""});
  ASSERT_TRUE(deployment.decide({Sample{2, std::string(32, 'f')}, StepCompleted{instance, event, output}}));
  ASSERT_TRUE(deployment.commit(*deployments_, 0));
  const auto reasons = explain_instance(submitter_, in(), {"count", "7"}, "the leading host");
  ASSERT_TRUE(reasons) << reasons.error().message;
  const std::string text = reasons->dump();
  EXPECT_THAT(text, HasSubstr("effect_queued"));
  EXPECT_THAT(text, HasSubstr("it waits for acme/pay@1, which is not started yet"));
}

// Returns kManifest with other names.
json renamed(const std::string& deployment, const std::string& workflow, const std::string& event) {
  std::string text = kManifest;
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"acme/Hit@1", event},
                                 {"\"name\": \"acme/count@1\"", "\"name\": \"" + deployment + "\""},
                                 {"acme/count@1", workflow}}) {
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
      text.replace(at, from.size(), to);
  }
  return json::parse(text);
}

// A second receiver would leave the senders of the event without a receiver.
TEST_F(WorkflowService, EventNamesOfOtherCallersAreRejected) {
  ASSERT_TRUE(apply(submitter_));
  const auto taken = apply(other_submitter_, renamed("evil/count@1", "evil/count@1", "acme/Hit@1"));
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, Code::conflict);
  EXPECT_THAT(taken.error().message, HasSubstr("\"acme/Hit@1\" is a name of another caller's manifest"));
  EXPECT_EQ(error_code_of(apply(admin_, renamed("evil/count@1", "evil/count@1", "acme/Hit@1"))), "conflict");
  EXPECT_EQ(deployments_->list_deployments(1)->size(), 1U) << "nothing is stored";
  EXPECT_EQ(error_code_of(apply(submitter_, json::parse(kManifest), "-- the next")), "") << "it keeps its names";
  EXPECT_EQ(error_code_of(send_event(other_submitter_, in(), {"acme/Hit@1", R"({"id": 7})", ""})), "");
  EXPECT_EQ(error_code_of(apply(submitter_, renamed("acme/more@1", "acme/more@1", "acme/Hit@1"))), "")
      << "its own name";
}

// Under a name of its own, with a workflow that has the name of another owner's.
TEST_F(WorkflowService, ManifestWithAnotherOwnersWorkflowIsRejected) {
  ASSERT_TRUE(apply(submitter_));
  EXPECT_EQ(error_code_of(apply(other_submitter_, renamed("acme/count@1", "acme/count@1", "evil/Hit@1"))), "denied")
      << "the manifest's name";
  json manifest = renamed("evil/all@1", "acme/count@1", "evil/Hit@1");
  json workflow{{"name", "acme/count@1"}};
  for (const char* field : {"state", "key_schema", "event", "effects_emitted", "impl"}) {
    workflow[field] = manifest[field];
    manifest.erase(field);
  }
  manifest["workflows"] = json::array({workflow});
  for (const RequestContext* by : {&other_submitter_, &admin_}) {
    const auto taken = apply(*by, manifest);
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.error().code, Code::conflict);
    EXPECT_THAT(taken.error().message, HasSubstr("workflows: \"acme/count@1\" is a name of another caller's manifest"));
  }
  EXPECT_EQ(deployments_->list_deployments(1)->size(), 1U) << "nothing is stored";
  EXPECT_EQ(error_code_of(apply(submitter_, manifest)), "") << "its own name";
}

// Names belong to the first owner. An admin ends that with a manifest under the same name that does without them.
TEST_F(WorkflowService, AdminFreesTheNamesOfAManifest) {
  ASSERT_EQ(error_code_of(apply(other_submitter_, renamed("squat/count@1", "squat/count@1", "acme/Hit@1"))), "");
  ASSERT_EQ(error_code_of(apply(other_submitter_, renamed("acme/count@1", "acme/count@1", "squat/Hit@1"))), "");
  EXPECT_EQ(error_code_of(apply(submitter_)), "denied");
  ASSERT_EQ(error_code_of(apply(admin_, renamed("squat/count@1", "squat/count@1", "free/Hit@1"))), "");
  const auto handed = apply_workflow(operator_caller_, in(), json::parse(kManifest), {{{"count.lua", ""}}, 16});
  ASSERT_TRUE(handed) << handed.error().message;
  EXPECT_EQ(handed->owner, 16U);
  EXPECT_EQ(send_event(submitter_, in(), {"acme/Hit@1", R"({"id": 7})", ""})->deployment, "acme/count@1");
  EXPECT_EQ(error_code_of(apply(submitter_, renamed("acme/count@1", "acme/count@1", "acme/Other@1"))), "conflict")
      << "an event waits: it is the owner's now";
  EXPECT_EQ(error_code_of(apply(other_submitter_, renamed("acme/count@1", "acme/count@1", "squat/Hit@1"))), "denied");
}

TEST_F(WorkflowService, OwnerHasABoundedNumberOfManifests) {
  const auto nth = [](std::size_t i) {
    const std::string name = "many/w" + std::to_string(i) + "@1";
    return renamed(name, name, "many/e" + std::to_string(i) + "@1");
  };
  for (std::size_t i = 0; i < kMaxManifestsOfOwner; ++i) ASSERT_EQ(error_code_of(apply(submitter_, nth(i))), "") << i;
  const auto more = apply(submitter_, nth(kMaxManifestsOfOwner));
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, Code::too_large);
  EXPECT_THAT(more.error().message, HasSubstr("actor 16 has 100 manifests in context 1"));
  EXPECT_EQ(deployments_->list_deployments(1)->size(), kMaxManifestsOfOwner) << "nothing is stored";
  EXPECT_EQ(error_code_of(apply(submitter_, nth(0), "-- the next")), "") << "its own can be replaced";
  EXPECT_EQ(error_code_of(apply(other_submitter_)), "") << "another owner has its own number";
  EXPECT_EQ(error_code_of(apply_workflow(operator_caller_, in(), nth(kMaxManifestsOfOwner), {{{"count.lua", ""}}, 16})),
            "");
}

TEST_F(WorkflowService, SendingReadsNoOtherDeployment) {
  for (int i = 0; i < 20; ++i) {
    const std::string name = "many/w" + std::to_string(i) + "@1";
    ASSERT_EQ(error_code_of(apply(other_submitter_, renamed(name, name, "many/e" + std::to_string(i) + "@1"))), "");
  }
  ASSERT_TRUE(apply(submitter_));
  ManifestCache cache(64, std::chrono::hours(1));
  const WorkflowStores with{*store_, *deployments_, &cache};
  int calls = 0;
  redis_.set_faults([&calls](const ServerCall&) {
    ++calls;
    return Fault::none;
  });
  const auto calls_of_a_send = [&](const char* event, const char* code) {
    calls = 0;
    EXPECT_EQ(error_code_of(send_event(submitter_, with, {event, R"({"id": 7})", ""})), code);
    return calls;
  };
  EXPECT_GT(calls_of_a_send("acme/Hit", ""), 20) << "the first one";
  EXPECT_LE(calls_of_a_send("acme/Hit", ""), 5);
  EXPECT_LE(calls_of_a_send("nobody/Hit", "not_found"), 5);
  ASSERT_EQ(error_code_of(apply(submitter_, renamed("new/count@1", "new/count@1", "new/Hit@1"))), "");
  EXPECT_GT(calls_of_a_send("new/Hit", ""), 20) << "what is applied is seen at once";
  EXPECT_LE(calls_of_a_send("new/Hit", ""), 5);
  redis_.set_faults(nullptr);
}

// Another client has put back what was there before: the number of manifests that were applied does not say so.
TEST_F(WorkflowService, SendingFindsAReappliedManifest) {
  const std::string first = apply(submitter_)->hash;
  json next = json::parse(kManifest);
  next["schemas"]["acme/Hit@1"]["properties"]["id"]["minimum"] = 10;
  ASSERT_EQ(error_code_of(apply(submitter_, next)), "");
  ManifestCache cache(64, std::chrono::hours(1));
  const WorkflowStores with{*store_, *deployments_, &cache};
  EXPECT_EQ(error_code_of(send_event(submitter_, with, {"acme/Hit", R"({"id": 11})", ""})), "");
  redis_.run_command(1, {"HSET", "mj:deployment-head:acme/count@1", "manifest", first});
  EXPECT_EQ(error_code_of(send_event(submitter_, with, {"acme/Hit", R"({"id": 12})", ""})), "");
  EXPECT_EQ(error_code_of(send_event(submitter_, with, {"acme/Hit", R"({"id": 7})", ""})), "");
}

// A manifest in which a short name means two events.
json with_two_hits(const std::string& name) {
  json manifest = renamed(name, name, "two/Hit@1");
  manifest["schemas"]["three/Hit@1"] = manifest["schemas"]["two/Hit@1"];
  manifest["schemas"]["acme/Event@1"]["oneOf"].push_back({{"title", "Other"}, {"$ref", "three/Hit@1"}});
  json route = manifest["routing"]["subscriptions"][0];
  route["event"] = "three/Hit@1";
  manifest["routing"]["subscriptions"].push_back(route);
  return manifest;
}

TEST_F(WorkflowService, AmbiguousShortNameAffectsNoOtherManifest) {
  ASSERT_TRUE(apply(submitter_));
  const auto two = apply(other_submitter_, with_two_hits("evil/two@1"));
  ASSERT_TRUE(two) << two.error().message;
  EXPECT_EQ(send_event(admin_, in(), {"Hit", R"({"id": 7})", ""})->deployment, "acme/count@1") << "the only one";
  EXPECT_EQ(send_event(submitter_, in(), {"Hit", R"({"id": 7})", ""})->deployment, "acme/count@1");
  const auto own = send_event(other_submitter_, in(), {"Hit", R"({"id": 7})", ""});
  ASSERT_FALSE(own) << "its own name is ambiguous";
  EXPECT_EQ(own.error().code, Code::invalid);
  EXPECT_EQ(send_event(other_submitter_, in(), {"two/Hit", R"({"id": 7})", ""})->deployment, "evil/two@1");
}

// Two manifests of others: only a full name, or the manifest's, is independent of what others apply.
TEST_F(WorkflowService, FullNamesAreIndependentOfOtherManifests) {
  ASSERT_TRUE(apply(submitter_));
  ASSERT_EQ(error_code_of(apply(other_submitter_, renamed("evil/count@1", "evil/count@1", "evil/Hit@1"))), "");
  EXPECT_EQ(error_code_of(send_event(admin_, in(), {"Hit", R"({"id": 7})", ""})), "invalid");
  EXPECT_EQ(send_event(admin_, in(), {"acme/Hit@1", R"({"id": 7})", ""})->deployment, "acme/count@1");
  EXPECT_EQ(send_event(admin_, in(), {"Hit", R"({"id": 7})", "acme/count@1"})->deployment, "acme/count@1");
}

TEST_F(WorkflowService, ShortNamesAreTheCallersOwnFirst) {
  ASSERT_TRUE(apply(submitter_));
  ASSERT_EQ(error_code_of(apply(other_submitter_, renamed("evil/count@1", "evil/count@1", "evil/Hit@1"))), "");
  for (const char* event : {"Hit", "acme/Hit", "acme/Hit@1"})
    EXPECT_EQ(send_event(submitter_, in(), {event, R"({"id": 7})", ""})->deployment, "acme/count@1") << event;
  EXPECT_EQ(send_event(submitter_, in(), {"Hit", R"({"id": 7})", "count"})->deployment, "acme/count@1");
  EXPECT_EQ(send_event(other_submitter_, in(), {"Hit", R"({"id": 7})", ""})->deployment, "evil/count@1");
  EXPECT_EQ(error_code_of(send_event(admin_, in(), {"Hit", R"({"id": 7})", ""})), "invalid")
      << "it has none of its own";
  EXPECT_EQ(error_code_of(list_instances(submitter_, in(), {"count"})), "");
  EXPECT_EQ(error_code_of(list_instances(other_submitter_, in(), {"count"})), "");
  EXPECT_EQ(error_code_of(list_instances(admin_, in(), {"acme/count@1"})), "");
}

TEST_F(WorkflowService, ReadingNeedsReadRightsOrOwnership) {
  ASSERT_TRUE(apply(submitter_));
  for (const RequestContext* by : {&submitter_, &reader_, &admin_}) {
    EXPECT_EQ(error_code_of(list_instances(*by, in(), {"count"})), "");
    EXPECT_EQ(list_workflows(*by, in())->size(), 1U);
  }
  EXPECT_EQ(error_code_of(list_instances(other_submitter_, in(), {"count"})), "denied");
  EXPECT_EQ(error_code_of(list_instances(other_submitter_, in(), {"nothing"})), "denied")
      << "the same for what is not there";
  EXPECT_TRUE(list_workflows(other_submitter_, in())->empty());
  EXPECT_EQ(error_code_of(list_workflows(unrelated_actor_, in())), "denied");
  EXPECT_EQ(error_code_of(read_facts(other_submitter_, in(), "count", 0, 10)), "denied");
  EXPECT_EQ(error_code_of(read_instance_timeline(other_submitter_, in(), {"count", "7"})), "denied");
  EXPECT_EQ(error_code_of(read_instance_log(other_submitter_, in(), {"count", "7"})), "denied");
  EXPECT_EQ(error_code_of(read_instance_log(other_submitter_, in(), {"nothing", "7"})), "denied");
  EXPECT_EQ(error_code_of(read_instance_log(reader_, in(), {"count", "7"})), "not_found")
      << "nothing has happened to it";
  EXPECT_EQ(error_code_of(read_workflow_history(other_submitter_, in(), "count")), "denied");
}

TEST_F(WorkflowService, InstanceIsCancelledByItsOwnerAndAdmins) {
  ASSERT_TRUE(apply(submitter_));
  for (const RequestContext* by : {&submitter_, &admin_})
    EXPECT_EQ(error_code_of(cancel_instance(*by, in(), {"count", "7"}, "")), "not_found");
  for (const RequestContext* by : {&other_submitter_, &reader_})
    EXPECT_EQ(error_code_of(cancel_instance(*by, in(), {"count", "7"}, "")), "denied");
}

TEST_F(WorkflowService, InvalidManifestIsRejectedWithAllPaths) {
  json manifest = json::parse(kManifest);
  manifest["effects_emitted"].push_back("acme/none@1");
  manifest["impl"]["module"] = "gone.lua";
  const auto done = apply(submitter_, manifest);
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().message, HasSubstr("effects_emitted[1]"));
  EXPECT_THAT(done.error().message, HasSubstr("gone.lua"));
  EXPECT_TRUE(deployments_->list_deployments(1)->empty());
}

TEST_F(WorkflowService, InvalidCodeIsRejectedBeforeAnyWrite) {
  ApplyWorkflow request{{{"count.lua", "-- no step"}}, std::nullopt};
  request.check_code = [](const WorkflowManifest& manifest) -> Result<void> {
    return fail(Code::invalid, manifest.code.at("count.lua") + ": it defines no function step");
  };
  const auto done = apply_workflow(submitter_, in(), json::parse(kManifest), request);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Code::invalid);
  EXPECT_THAT(done.error().message, HasSubstr("code: -- no step: it defines no function step"));
  EXPECT_TRUE(deployments_->list_deployments(1)->empty());
}

TEST_F(WorkflowService, EffectIsForARunnerOrAScriptType) {
  json manifest = json::parse(kManifest);
  manifest["effects"][0]["runner"] = "runner:7";
  EXPECT_EQ(error_code_of(apply(submitter_, manifest)), "");
  manifest["effects"][0].erase("script_type");
  EXPECT_EQ(error_code_of(apply(submitter_, manifest)), "") << "it is python then";
  manifest["effects"][0].erase("runner");
  const auto done = apply(submitter_, manifest);
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().message, HasSubstr("effects[0]: needs script_type or runner"));
}

TEST_F(WorkflowService, ManifestIsReadOnceAndTheLatestIsActive) {
  ManifestCache cache(1);
  const WorkflowStores with{*store_, *deployments_, &cache};
  const std::string hash = apply(submitter_)->hash;
  EXPECT_EQ(error_code_of(send_event(submitter_, with, {"acme/Hit", R"({"id": 7})", ""})), "");
  redis_.run_command(1, {"DEL", "mj:deployment-manifests:acme/count@1"});
  EXPECT_EQ(error_code_of(send_event(submitter_, with, {"acme/Hit", R"({"id": 7})", ""})), "") << "it is known";
  EXPECT_EQ(error_code_of(send_event(submitter_, in(), {"acme/Hit", R"({"id": 7})", ""})), "not_found");
  EXPECT_EQ(error_code_of(apply(submitter_)), "denied") << "whose it was is gone with it";
  ASSERT_EQ(apply(admin_)->hash, hash) << "the same again puts it back";
  redis_.run_command(1, {"DEL", "mj:deployment-inbox:acme/count@1"});
  json next = json::parse(kManifest);
  next["schemas"]["acme/Hit@1"]["required"] = json::array({"id", "more"});
  next["schemas"]["acme/Hit@1"]["properties"]["more"] = json::object();
  ASSERT_EQ(error_code_of(apply(admin_, next)), "");
  EXPECT_EQ(error_code_of(send_event(submitter_, with, {"acme/Hit", R"({"id": 7})", ""})), "invalid")
      << "the one in force";
  EXPECT_EQ(error_code_of(send_event(submitter_, with, {"acme/Hit", R"({"id": 7, "more": 1})", ""})), "");
}

TEST_F(WorkflowService, EventOfTwoManifestsNamesThem) {
  ASSERT_TRUE(apply(submitter_));
  json second = json::parse(kManifest);
  second["name"] = "acme/twice@1";
  second["routing"]["subscriptions"][0]["workflow"] = "acme/twice@1";
  ASSERT_TRUE(apply(submitter_, second));
  const auto sent = send_event(submitter_, in(), {"acme/Hit", R"({"id": 7})", ""});
  ASSERT_FALSE(sent);
  EXPECT_THAT(sent.error().message, HasSubstr("acme/count@1, acme/twice@1"));
  EXPECT_EQ(error_code_of(send_event(submitter_, in(), {"acme/Hit", R"({"id": 7})", "twice"})), "");
}

}  // namespace
}  // namespace mycojobs::service
