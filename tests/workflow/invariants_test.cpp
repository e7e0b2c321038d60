// The invariants of workflows, in order, as far as they can be tested without a store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/sha256.h"
#include "workflow/stage.h"
#include "workflows/tools/shadow.h"
#include "workflows/workflow_snapshot.h"

namespace mycojobs::workflow_tests {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const char* const kCreated = "com.acme/OrderCreated@1";
json created(const std::string& id, int cents = 100) { return {{"order_id", id}, {"cents", cents}}; }

class WorkflowInvariant : public testing::Test {
 protected:
  WorkflowInvariant() { stage.apply(hash = stage.add(orders_manifest())); }
  // Creates an order that waits for its charge. Returns the hash of the intent.
  std::string charging(const std::string& id) {
    stage.send(kCreated, created(id));
    return stage.step(order(id)).effects_to_publish.at(0).pending_intent.intent.hash;
  }
  // Takes the next step of a cell with another answer.
  WorkflowDecision answered(const InstanceId& id, const json& output) {
    return stage.commit_input(StepCompleted{id, stage.cell(id).inbox.front().id, parse_step_answer(output)});
  }
  Stage stage;
  std::string hash;
};

json paid_state() { return {{"pc", "x"}, {"cents", 1}}; }
json effect(const char* kind, const json& params) {
  return {{"state", paid_state()}, {"effects", json::array({{{"kind", kind}, {"params", params}}})}};
}

TEST_F(WorkflowInvariant, 01_UndeclaredEffectIsRejected) {
  // The first is undeclared, the second is missing in effects_emitted.
  for (const char* kind : {"payment/refund@1", "sys/timer@1"}) {
    stage.send(kCreated, created(kind));
    const auto decision = answered(order(kind), effect(kind, json::object()));
    EXPECT_THAT(stage.kinds(decision), ElementsAre("step_failed", "failed"));
    EXPECT_THAT(decision.effects_to_publish, IsEmpty());
    EXPECT_THAT(stage.cell(order(kind)).pending_intents, IsEmpty());
    EXPECT_THAT(stage.cell(order(kind)).message, HasSubstr("not in effects_emitted"));
    EXPECT_EQ(stage.state(order(kind)), nullptr);
  }
}

TEST_F(WorkflowInvariant, 02_InvalidEventIsRejectedAndNotJournaled) {
  const auto height = stage.deployment.height;
  EXPECT_EQ(stage.get_rejection(make_event(kCreated, json{{"order_id", "a"}})), "cents: is missing");
  EXPECT_EQ(stage.get_rejection(make_event(kCreated, json{{"order_id", "a"}, {"cents", -1}})),
            "cents: is -1; at least 0");
  EXPECT_THAT(stage.get_rejection(make_event("com.acme/None@1", 1)), HasSubstr("there is no schema"));
  EXPECT_EQ(stage.deployment.height, height);
  // The encoding does not depend on order and spelling.
  const auto one = stage.decide_input(make_event(kCreated, json::parse(R"({"order_id": "a", "cents": 2})")));
  const auto two = stage.decide_input(make_event(kCreated, json::parse(R"({"cents": 2.0, "order_id": "a"})")));
  EXPECT_EQ(one->facts, two->facts);
  stage.send(kCreated, created("p"));
  answered(order("p"), effect("payment/charge@1", {{"cents", "much"}}));
  EXPECT_THAT(stage.cell(order("p")).message, HasSubstr("the parameters of payment/charge@1: cents: is the text"));
}

TEST_F(WorkflowInvariant, 02_SystemEventsCannotBeSentByUsers) {
  json manifest = orders_manifest();
  manifest["routing"]["subscriptions"].push_back(
      {{"event", "com.acme/OrderEvent@1"}, {"workflow", "com.acme/order@1"}, {"key_field", "$value.order_id"}});
  stage.apply(stage.add(manifest));
  stage.send("com.acme/OrderEvent@1", {{"$tag", "Created"}, {"$value", created("v")}});
  EXPECT_EQ(stage.cell(order("v")).inbox.size(), 1U);
  const json forged{
      {"workflow", "w"},           {"workflow_hash", "h"}, {"intent", "i"}, {"effect", "payment/charge@1"},
      {"payload", {{"ok", true}}}, {"status", "ok"},       {"sequence", 1}, {"index", 0}};
  EXPECT_THAT(stage.get_rejection(make_event("com.acme/OrderEvent@1", json{{"$tag", "Receipt"}, {"$value", forged}})),
              HasSubstr("only the system sends sys/EffectReceiptEnvelope@1"));
  EXPECT_THAT(stage.get_rejection(make_event("sys/EffectReceiptEnvelope@1", forged)), HasSubstr("only the system"));
}

TEST_F(WorkflowInvariant, 03_IntentBindsItsOrigin) {
  const Intent intent{"", "a/e@1", cbor(1), 0, ""};
  const IntentOrigin origin{"w", order("a"), "hash", 7};
  std::set<std::string> all{intent_hash(origin, intent)};
  EXPECT_EQ(intent_hash(origin, intent), *all.begin());
  const auto other = [&](auto change) {
    Intent changed = intent;
    IntentOrigin from = origin;
    change(from, changed);
    EXPECT_TRUE(all.insert(intent_hash(from, changed)).second);
  };
  other([](auto& from, auto&) { from.deployment = "v"; });
  other([](auto& from, auto&) { from.instance = order("b"); });
  other([](auto& from, auto&) { from.instance.workflow = "com.acme/other@1"; });
  other([](auto& from, auto&) { from.workflow_hash = "other"; });
  other([](auto& from, auto&) { from.sequence = 8; });
  other([](auto&, auto& changed) { changed.effect = "a/f@1"; });
  other([](auto&, auto& changed) { changed.params = cbor(2); });
  other([](auto&, auto& changed) { changed.index = 1; });
}

TEST_F(WorkflowInvariant, 03_RecreatedCellNeverRepeatsAnIntent) {
  const auto first = charging("a");
  stage.receipt(first, {{"ok", true}});
  stage.settle();
  stage.send("com.acme/OrderClosed@1", {{"order_id", "a"}});
  EXPECT_THAT(stage.kinds(stage.step(order("a"))), ElementsAre("step", "deleted"));
  EXPECT_EQ(stage.deployment.find_instance(order("a")), nullptr);
  EXPECT_NE(charging("a"), first);
}

TEST_F(WorkflowInvariant, 04_BadSignatureIsRejectedAndJournaled) {
  const auto intent = charging("a");
  ReceiptArrived forged;
  forged.intent = intent, forged.payload = R"({"ok": true})", forged.refusal_reason = "signed by another key";
  EXPECT_THAT(stage.kinds(stage.commit_input(forged)), ElementsAre("receipt_refused"));
  EXPECT_EQ(stage.deployment.refused_receipts, 1U);
  EXPECT_EQ(stage.cell(order("a")).refused_receipts, 1U);
  EXPECT_TRUE(stage.cell(order("a")).pending_intents.contains(intent));
  EXPECT_THAT(stage.cell(order("a")).inbox, IsEmpty());
  stage.receipt(intent, {{"ok", true}});  // the genuine receipt is still accepted
  EXPECT_THAT(stage.kinds(stage.commit_input(forged)), ElementsAre("receipt_refused"));
}

TEST_F(WorkflowInvariant, 05_ContinuationsReturnToTheirOrigin) {
  const auto intent = charging("a");
  charging("b");
  stage.receipt(intent, {{"ok", true}});
  EXPECT_EQ(stage.cell(order("a")).inbox.size(), 1U);
  EXPECT_EQ(stage.cell(order("b")).inbox.size(), 0U);
  const json mail = uncbor(stage.cell(order("a")).inbox.front().value);
  EXPECT_EQ(mail["$tag"], "Receipt");
  const json& envelope = mail["$value"];
  EXPECT_EQ(envelope["workflow"], "com.acme/order@1");
  EXPECT_EQ(envelope["workflow_hash"], stage.catalog.find(hash)->workflow("com.acme/order@1")->hash);
  EXPECT_EQ(envelope["key"], "a");
  EXPECT_EQ(envelope["intent"], intent);
  EXPECT_EQ(envelope["effect"], "payment/charge@1");
  EXPECT_EQ(envelope["issuer_ref"], "pay");
  EXPECT_EQ(envelope["payload"], json({{"ok", true}}));
  EXPECT_EQ(envelope["status"], "ok");
  EXPECT_TRUE(stage.catalog.find(hash)->schemas.check("com.acme/OrderEvent@1", mail, ValueForm::from_cbor));
  // The subscription table may change before the receipt arrives; the origin stays the same.
  stage.settle();
  EXPECT_EQ(stage.state(order("a"))["pc"], "paid");
  EXPECT_EQ(stage.state(kLedger), 100);
}

TEST_F(WorkflowInvariant, 06_ReceiptSettlesOnceOrIsNamedUnknown) {
  const auto intent = charging("a");
  stage.receipt(intent, {{"ok", true}});
  const DeploymentState after = stage.deployment;
  EXPECT_THAT(stage.receipt(intent, {{"ok", false}}).facts, IsEmpty());
  EXPECT_EQ(stage.deployment, after);
  ReceiptArrived unknown;
  unknown.intent = std::string(64, 'a');
  EXPECT_THAT(stage.get_rejection(unknown), HasSubstr("unknown intent"));
  EXPECT_EQ(stage.decide_input(unknown).error().code, Code::not_found);
  EXPECT_EQ(stage.decide_input(EffectDispatched{std::string(64, 'a'), "job:7:1"}).error().code, Code::not_found);
  EXPECT_THAT(stage.commit_input(EffectDispatched{intent, "job:7:1"}).facts,
              IsEmpty());  // reported too late to have an effect
}

TEST_F(WorkflowInvariant, 07_FaultIsHandledByItsArm) {
  const auto intent = charging("a");
  EXPECT_THAT(stage.kinds(stage.receipt(intent, {{"ok", "yes"}})), ElementsAre("receipt_fault"));
  EXPECT_THAT(stage.cell(order("a")).pending_intents, IsEmpty());
  stage.settle();
  EXPECT_EQ(stage.state(order("a"))["pc"], "rejected");
  EXPECT_THAT(stage.receipt(intent, {{"ok", true}}).facts, IsEmpty());
}

TEST_F(WorkflowInvariant, 07_InstanceWithoutTheArmFails) {
  stage.apply(stage.add(orders_manifest(false)));
  stage.send(kCreated, created("a"));
  json two = effect("payment/charge@1", {{"cents", 1}});
  two["effects"].push_back(two["effects"][0]);
  const auto step = answered(order("a"), two);
  stage.send(kCreated, created("a"));
  const auto first = step.effects_to_publish.at(0).pending_intent.intent.hash,
             second = step.effects_to_publish.at(1).pending_intent.intent.hash;
  EXPECT_NE(first, second);
  EXPECT_THAT(stage.kinds(stage.receipt(first, 1)), ElementsAre("receipt_fault", "failed"));
  const auto& cell = stage.cell(order("a"));
  EXPECT_EQ(cell.status(), InstanceStatus::failed);
  EXPECT_THAT(cell.pending_intents, IsEmpty());
  EXPECT_THAT(cell.inbox, IsEmpty());
  EXPECT_THAT(next_instances(stage.deployment, 9), IsEmpty());
  EXPECT_THAT(stage.receipt(second, {{"ok", true}}).facts, IsEmpty());
  const auto late = stage.send(kCreated, created("a"));
  EXPECT_EQ(std::get<EventAccepted>(late.facts.at(0).content).targets.at(0).skip_reason, "failed");
  EXPECT_THAT(stage.get_rejection(RemoveInstance{order("b"), "actor:1"}), HasSubstr("unknown instance"));
  EXPECT_THAT(stage.kinds(stage.commit_input(RemoveInstance{order("a"), "actor:1"})), ElementsAre("deleted"));
  stage.send(kCreated, created("a"));
  EXPECT_EQ(stage.cell(order("a")).status(), InstanceStatus::running);
}

TEST_F(WorkflowInvariant, 07_OperatorEndsAnInstance) {
  const auto intent = charging("a");
  charging("b");
  stage.send(kCreated, created("a"));
  EXPECT_THAT(stage.get_rejection(CancelInstance{order("c"), "actor:1", ""}), HasSubstr("unknown instance"));
  const auto cancelled = stage.commit_input(CancelInstance{order("a"), "actor:1", "the customer has called"});
  EXPECT_THAT(stage.kinds(cancelled), ElementsAre("failed"));
  const auto& cell = stage.cell(order("a"));
  EXPECT_EQ(cell.failure, kCancelledFailure);
  EXPECT_EQ(cell.message, "by actor:1: the customer has called");
  EXPECT_THAT(cell.pending_intents, IsEmpty());
  EXPECT_THAT(cell.inbox, IsEmpty());
  EXPECT_THAT(stage.receipt(intent, {{"ok", true}}).facts, IsEmpty());  // a late receipt is not an error
  EXPECT_THAT(stage.get_rejection(CancelInstance{order("a"), "actor:1", ""}), HasSubstr("has ended: it is failed"));
  EXPECT_EQ(stage.cell(order("b")).status(), InstanceStatus::waiting);
  EXPECT_THAT(stage.kinds(stage.commit_input(RemoveInstance{order("a"), "actor:1"})), ElementsAre("deleted"));
}

TEST_F(WorkflowInvariant, 07_FailedReceiptHasAFailurePayload) {
  const auto intent = charging("a");
  stage.receipt(intent, {{"detail", "exit_code"}, {"message", "exit 3"}}, ReceiptStatus::error);
  stage.settle();
  EXPECT_EQ(stage.state(order("a"))["pc"], "failed");
}

TEST_F(WorkflowInvariant, 08_CellsAreSeparate) {
  const auto a = charging("a");
  charging("b");
  EXPECT_EQ(stage.cell(order("a")).pending_intents.size(), 1U);
  stage.receipt(a, {{"ok", true}});
  stage.settle();
  EXPECT_EQ(stage.state(order("a"))["pc"], "paid");
  EXPECT_EQ(stage.state(order("b"))["pc"], "charging");
  // A null state with a pending receipt: nothing is abandoned, and the receipt is processed without a state.
  stage.send("com.acme/OrderClosed@1", {{"order_id", "b"}});
  EXPECT_THAT(stage.kinds(stage.step(order("b"))), ElementsAre("step"));
  EXPECT_EQ(stage.cell(order("b")).status(), InstanceStatus::waiting);
  stage.receipt(stage.cell(order("b")).pending_intents.begin()->first, {{"ok", true}});
  EXPECT_FALSE(build_step_request(stage.deployment, stage.catalog, order("b"))->state);
  // A cell can be folded from its own facts.
  std::optional<InstanceState> alone;
  for (const auto& fact : stage.journal)
    for (const auto& id : affected_instances(fact))
      if (id == order("a")) {
        const auto problem = fold(alone, id, fact);
        ASSERT_FALSE(problem) << problem->text;
      }
  EXPECT_EQ(*alone, stage.cell(order("a")));
}

TEST_F(WorkflowInvariant, 09_OneBusyCellDoesNotStarveTheOthers) {
  for (int i = 0; i < 5; ++i) stage.send(kCreated, created("busy"));
  stage.send(kCreated, created("b"));
  stage.send(kCreated, created("c"));
  std::vector<std::string> order_of_steps;
  for (int i = 0; i < 7; ++i) {
    const auto next = next_instances(stage.deployment, 1).at(0);
    order_of_steps.push_back(uncbor(next.key));
    stage.step(next);
  }
  EXPECT_THAT(order_of_steps, ElementsAre("busy", "b", "c", "busy", "busy", "busy", "busy"));
  stage.send(kCreated, created("d"));
  stage.send(kCreated, created("e"));
  EXPECT_THAT(next_instances(stage.deployment, 9, {order("d")}), ElementsAre(order("e")));
}

TEST_F(WorkflowInvariant, 10_WorkIsPublishedOnlyAfterADurableStep) {
  stage.send(kCreated, created("a"));
  const auto request = build_step_request(stage.deployment, stage.catalog, order("a"));
  const auto* manifest = stage.catalog.find(hash);
  const StepCompleted done{order("a"), stage.cell(order("a")).inbox.front().id,
                           stage.engine(*manifest->workflow("com.acme/order@1"), *manifest, *request)};
  ASSERT_TRUE(stage.decide_input(done));  // this decision is lost
  EXPECT_THAT(next_effects_to_publish(stage.deployment), IsEmpty());
  const auto kept = stage.commit_input(done);
  ASSERT_EQ(next_effects_to_publish(stage.deployment).size(),
            1U);  // until the publication is recorded as a fact, also after a crash
  const auto intent = kept.effects_to_publish.at(0).pending_intent.intent.hash;
  EXPECT_EQ(next_effects_to_publish(stage.deployment)[0].pending_intent.intent.hash, intent);
  stage.commit_input(EffectDispatched{intent, "job:7:1"});
  EXPECT_THAT(next_effects_to_publish(stage.deployment), IsEmpty());
  EXPECT_EQ(stage.cell(order("a")).pending_intents.at(intent).effect_ref, "job:7:1");
  EXPECT_THAT(stage.commit_input(EffectDispatched{intent, "job:7:2"}).facts, IsEmpty());
  EXPECT_EQ(stage.decide_input(done).error().code, Code::conflict);  // the same step twice
  stage.send(kCreated, created("a"));
  EXPECT_EQ(stage.decide_input(done).error().code, Code::conflict);  // another message is next
}

TEST_F(WorkflowInvariant, 11_TimeEntropyAndHeightAreSampledOnce) {
  stage.send(kCreated, created("a"));
  const auto sampled = stage.cell(order("a")).inbox.front().sample;
  const auto height = stage.deployment.height;
  stage.now_ms += 50'000;  // the step runs much later, after other events have arrived
  stage.send(kCreated, created("b"));
  const json ctx = uncbor(*build_step_request(stage.deployment, stage.catalog, order("a"))->ctx);
  EXPECT_EQ(ctx["now_ms"], sampled.now_ms);
  EXPECT_EQ(ctx["height"], height);
  EXPECT_EQ(ctx["entropy"].get_binary().size(), 32U);
  EXPECT_EQ(ctx["key"], "a");
  EXPECT_EQ(ctx["cell_mode"], true);
  EXPECT_EQ(ctx["manifest_hash"], hash);
  EXPECT_TRUE(stage.catalog.find(hash)->schemas.check("sys/WorkflowContext@1", ctx, ValueForm::from_cbor));
  const json paid{{"schema", "com.acme/Paid@1"}, {"value", {{"order_id", "a"}, {"cents", 1}}}};
  answered(order("a"), {{"state", paid_state()}, {"events", json::array({paid, paid})}});
  const auto& mail = stage.cell(kLedger).inbox;
  ASSERT_EQ(mail.size(), 2U);
  EXPECT_EQ(mail[0].sample.now_ms, stage.now_ms);
  EXPECT_EQ(mail[0].sample.entropy.size(), 32U);
  EXPECT_NE(mail[0].sample.entropy, mail[1].sample.entropy);
  EXPECT_LT(mail[0].id, mail[1].id);
}

TEST_F(WorkflowInvariant, 12_FoldingTheJournalGivesTheSameBytes) {
  const auto intent = charging("a");
  charging("b");
  stage.receipt(intent, {{"ok", true}});
  stage.settle();
  DeploymentState again;
  again.id = stage.deployment.id;
  for (const auto& fact : stage.journal) {
    const auto bytes = encode(fact);
    ASSERT_TRUE(bytes);
    const auto read = decode_workflow_fact(*bytes);
    ASSERT_TRUE(read) << read.error().message;
    ASSERT_EQ(*read, fact);
    ASSERT_FALSE(fold(again, *read));
  }
  EXPECT_EQ(encode(again).value(), encode(stage.deployment).value());
}

TEST_F(WorkflowInvariant, 12_VerifyReplayNamesTheFirstDifference) {
  charging("a");
  charging("b");
  stage.send(kCreated, created("c"));
  answered(order("c"), {{"error", {{"kind", "script"}, {"message", "boom"}, {"line", 3}}}});
  EXPECT_EQ(stage.cell(order("c")).message, "boom (line 3)");
  DeploymentState from;
  from.id = stage.deployment.id;
  int calls = 0;
  const StepEngine engine = [&](const auto& spec, const auto& manifest, const auto& request) -> StepAnswer {
    if (++calls == 3) return StepError{"script", "boom", 3};
    return stage.engine(spec, manifest, request);
  };
  DeploymentState good = from;
  const auto fine = verify_replay(good, stage.catalog, stage.journal, engine);
  EXPECT_FALSE(fine.mismatch);
  EXPECT_FALSE(fine.problem);
  EXPECT_EQ(fine.steps, 3U);
  EXPECT_EQ(good, stage.deployment);
  // Here the step of "c" succeeds.
  const auto verdict = verify_replay(from, stage.catalog, stage.journal, stage.engine);
  ASSERT_TRUE(verdict.mismatch);
  EXPECT_EQ(verdict.mismatch->instance, order("c"));
  EXPECT_THAT(stage.commit_input(*verdict.mismatch).facts, IsEmpty());  // "c" has failed already
  EXPECT_THAT(stage.kinds(stage.commit_input(OutputMismatchFound{order("a"), 3})), ElementsAre("failed"));
  EXPECT_EQ(stage.cell(order("a")).failure, "nondeterministic");
  EXPECT_EQ(stage.cell(order("b")).status(), InstanceStatus::waiting);
}

TEST_F(WorkflowInvariant, 13_SnapshotOnlyShortensReplay) {
  stage.send(kCreated, created("a"));
  EXPECT_THAT(stage.get_rejection(TakeSnapshot{}), HasSubstr("1 instance can take a step"));
  const auto intent = stage.step(order("a")).effects_to_publish.at(0).pending_intent.intent.hash;
  EXPECT_THAT(stage.get_rejection(TakeSnapshot{}), HasSubstr("1 effect not published"));
  stage.commit_input(EffectDispatched{intent, "job:7:1"});
  const auto taken = stage.commit_input(TakeSnapshot{});
  stage.receipt(intent, {{"ok", true}});
  stage.settle();
  ASSERT_EQ(taken.blobs.size(), 3U) << "a page, its node and the root";
  const auto read = read_snapshot(std::get<SnapshotTaken>(taken.facts[0].content).hash, [&](const std::string& wanted) {
    const auto blob = std::find_if(taken.blobs.begin(), taken.blobs.end(),
                                   [&](const WorkflowBlob& each) { return each.hash == wanted; });
    return Result<std::string>(blob->bytes);
  });
  ASSERT_TRUE(read) << read.error().message;
  DeploymentState restored = read->deployment;
  DeploymentState* const deployment = &restored;
  for (const auto& fact : stage.journal)
    if (fact.height > deployment->height) {
      ASSERT_FALSE(fold(*deployment, fact));
    }
  EXPECT_EQ(*deployment, stage.deployment);
  EXPECT_EQ(compute_cell_index_root(*deployment, "com.acme/order@1"),
            compute_cell_index_root(stage.deployment, "com.acme/order@1"));
}

TEST_F(WorkflowInvariant, 13_LongStateIsABlobWithACheckedHash) {
  stage.rules.inline_state_bytes = 4;
  stage.send(kCreated, created("a"));
  const auto step = stage.step(order("a"));
  ASSERT_EQ(step.blobs.size(), 1U);
  EXPECT_THAT(referenced_blobs(stage.deployment), ElementsAre(step.blobs[0].hash));
  stage.send(kCreated, created("a"));
  EXPECT_EQ(build_step_request(stage.deployment, stage.catalog, order("a")).error().code, Code::unavailable);
  auto& state = *stage.deployment.instances.at(order("a")).state;
  EXPECT_FALSE(attach_blob(state, step.blobs[0].bytes + "x"));
  ASSERT_TRUE(attach_blob(state, step.blobs[0].bytes));
  EXPECT_EQ(*build_step_request(stage.deployment, stage.catalog, order("a"))->state, step.blobs[0].bytes);
}

TEST_F(WorkflowInvariant, 14_RejectedApplyKeepsOldInstances) {
  const auto next = stage.add(orders_manifest(), "return {} -- other code");
  EXPECT_NE(next, hash);
  stage.send(kCreated, created("a"));
  EXPECT_THAT(stage.get_rejection(ApplyManifest{next}), HasSubstr("com.acme/order@1[\"a\"]: runs (1 event waiting)"));
  const auto intent = stage.step(order("a")).effects_to_publish.at(0).pending_intent.intent.hash;
  EXPECT_THAT(stage.get_rejection(ApplyManifest{next}), HasSubstr("1 effect queued"));
  stage.commit_input(EffectDispatched{intent, "job:7:1"});
  EXPECT_THAT(stage.get_rejection(ApplyManifest{next}), HasSubstr("1 intent in flight"));
  EXPECT_THAT(stage.commit_input(ApplyManifest{hash}).facts, IsEmpty());  // the manifest is already active
  stage.receipt(intent, {{"ok", true}});
  stage.settle();
  stage.apply(next);
  stage.send(kCreated, created("a"));
  stage.send(kCreated, created("b"));
  EXPECT_EQ(stage.cell(order("a")).manifest, hash);
  EXPECT_EQ(stage.cell(order("b")).manifest, next);
}

TEST_F(WorkflowInvariant, 14_OldCodeWithoutAHandlerIsNamed) {
  charging("a");
  const auto intent = stage.cell(order("a")).pending_intents.begin()->first;
  stage.receipt(intent, {{"ok", true}});
  stage.settle();
  json manifest = orders_manifest();
  manifest["schemas"]["com.acme/OrderCreated@1"]["properties"]["note"] = {{"type", "string"}};
  stage.apply(stage.add(manifest));
  json event = created("a");
  event["note"] = "new";
  const auto decision = stage.send(kCreated, event);
  EXPECT_EQ(std::get<EventAccepted>(decision.facts.at(0).content).targets.at(0).skip_reason, "unfit");
  EXPECT_THAT(stage.cell(order("a")).inbox, IsEmpty());
}

TEST_F(WorkflowInvariant, 15_ShadowReportsAndChangesNothing) {
  charging("a");
  const DeploymentState before = stage.deployment;
  ShadowSettings settings;
  settings.manifest = stage.add(orders_manifest(), "return {} -- other");
  settings.events = {make_event(kCreated, created("n")), make_event(kCreated, 3)};
  settings.receipts["payment/charge@1"] = R"({"ok": true})";
  settings.sample = {5, std::string(32, 'e')};
  const auto report = simulate(stage.deployment, stage.catalog, settings, stage.engine);
  EXPECT_EQ(stage.deployment, before);
  ASSERT_EQ(report.effects.size(), 1U);
  EXPECT_EQ(report.effects[0].instance, order("n"));
  EXPECT_EQ(report.pending_effects.size(), 1U);  // the intent of "a", which the simulation does not answer
  EXPECT_TRUE(report.placeholder_effects.empty());
  EXPECT_EQ(report.obstacles.size(), 1U);
  EXPECT_EQ(report.refused_inputs.size(), 1U);
  EXPECT_THAT(report.allowed_effects.at("com.acme/order@1"), ElementsAre("payment/charge@1"));
  ASSERT_EQ(report.changed_instances.size(), 2U);
  EXPECT_EQ(report.changed_instances[0].instance, kLedger);
  EXPECT_EQ(report.changed_instances[1].instance, order("n"));
  EXPECT_EQ(report.changed_instances[1].old_hash, "");
  EXPECT_NE(report.changed_instances[1].new_hash, "");
  settings.receipts.clear();  // uses a placeholder made from the schema
  const auto placed = simulate(stage.deployment, stage.catalog, settings, stage.engine);
  EXPECT_EQ(placed.pending_effects.size(), 1U);
  EXPECT_THAT(placed.placeholder_effects, ElementsAre("payment/charge@1"));
  settings.placeholders = false;
  EXPECT_EQ(simulate(stage.deployment, stage.catalog, settings, stage.engine).pending_effects.size(), 2U);
}

TEST_F(WorkflowInvariant, 16_IntentLinksStepJobAndReceipt) {
  const auto intent = charging("a");
  stage.commit_input(EffectDispatched{intent, "job:7:1"});
  stage.receipt(intent, {{"ok", true}});
  std::vector<std::string> trail;
  for (const auto& fact : stage.journal) {
    const std::string text = uncbor(encode(fact).value()).dump();
    if (text.find(intent) != std::string::npos) trail.emplace_back(fact_kind(fact));
  }
  EXPECT_THAT(trail, ElementsAre("step", "published", "receipt"));
}

TEST_F(WorkflowInvariant, OversizedStepFails) {
  stage.send(kCreated, created("a"));
  json many = effect("payment/charge@1", {{"cents", 1}});
  for (int i = 0; i < 64; ++i) many["effects"].push_back(many["effects"][0]);
  EXPECT_THAT(stage.kinds(answered(order("a"), many)), ElementsAre("step_failed", "failed"));
  EXPECT_THAT(stage.cell(order("a")).message, HasSubstr("65 effects; at most 64"));
}

TEST_F(WorkflowInvariant, StepCannotEmitUndeclaredOutput) {
  stage.send("com.acme/Paid@1", {{"order_id", "a"}, {"cents", 1}});
  answered(kLedger, {{"state", 1}, {"ann", "note"}});
  EXPECT_EQ(stage.cell(kLedger).message, "it gave annotations, and declares none");
  stage.send(kCreated, created("a"));
  answered(order("a"), {{"state", paid_state()}, {"ann", "note"}});
  EXPECT_EQ(stage.cell(order("a")).status(), InstanceStatus::waiting);
  // Older code, whose events another manifest routes.
  stage.apply(stage.add(orders_manifest(), "return {} -- other"));
  stage.send(kCreated, created("a"));
  const json event{{"schema", "sys/Any@1"}, {"value", 1}};
  answered(order("a"), {{"state", paid_state()}, {"events", json::array({event})}});
  EXPECT_EQ(stage.cell(order("a")).message, "sys/Any@1: only the system sends that");
}

TEST_F(WorkflowInvariant, UnroutedEventOfOldCodeIsJournaled) {
  stage.send(kCreated, created("a"));
  answered(order("a"), {{"state", paid_state()}});
  json manifest = orders_manifest();
  manifest["schemas"]["com.acme/Paid@1"]["properties"]["cents"]["maximum"] = 0;
  stage.apply(stage.add(manifest));
  stage.send(kCreated, created("a"));
  const json paid{{"schema", "com.acme/Paid@1"}, {"value", {{"order_id", "a"}, {"cents", 1}}}};
  const auto decision = answered(order("a"), {{"state", paid_state()}, {"events", json::array({paid})}});
  ASSERT_THAT(stage.kinds(decision), ElementsAre("step", "event"));
  EXPECT_EQ(std::get<EventAccepted>(decision.facts[1].content).source, "not routed: cents: is 1; at most 0");
  EXPECT_EQ(stage.deployment.find_instance(kLedger), nullptr);
}

TEST_F(WorkflowInvariant, InboxAndDeliveriesAreBounded) {
  stage.rules.max_inbox_events = 2;
  stage.send(kCreated, created("a")), stage.send(kCreated, created("a"));
  EXPECT_THAT(stage.get_rejection(make_event(kCreated, created("a"))), HasSubstr("has 2 events waiting"));
  EXPECT_EQ(stage.get_rejection(make_event(kCreated, created("b"))), "");
  stage.rules.max_step_deliveries = 1;
  const json paid{{"schema", "com.acme/Paid@1"}, {"value", {{"order_id", "a"}, {"cents", 1}}}};
  answered(order("a"), {{"state", paid_state()}, {"events", json::array({paid, paid})}});
  EXPECT_THAT(stage.cell(order("a")).message, HasSubstr("more than 1 instance"));
  EXPECT_EQ(stage.deployment.find_instance(kLedger), nullptr);
}

TEST_F(WorkflowInvariant, PendingEffectsAreBounded) {
  stage.rules.max_pending_intents = 2;
  const json one = effect("payment/charge@1", {{"cents", 1}});
  for (int i = 0; i < 3; ++i) stage.send(kCreated, created("a"));
  for (int i = 0; i < 2; ++i) answered(order("a"), one);
  EXPECT_EQ(stage.cell(order("a")).pending_intents.size(), 2U);
  EXPECT_THAT(stage.kinds(answered(order("a"), one)), ElementsAre("step_failed", "failed"));
  EXPECT_THAT(stage.cell(order("a")).message, HasSubstr("would wait for 3 effects; at most 2"));
  stage.rules = {};
  stage.rules.max_pending_param_bytes = 10;
  stage.send(kCreated, created("b")), stage.send(kCreated, created("b"));
  EXPECT_THAT(stage.kinds(answered(order("b"), one)), ElementsAre("step"));
  answered(order("b"), one);
  EXPECT_THAT(stage.cell(order("b")).message, HasSubstr("at most 10"));
  EXPECT_THAT(stage.cell(order("b")).pending_intents, IsEmpty());
}

TEST_F(WorkflowInvariant, EndlessSelfAnswerEndsItsInstance) {
  stage.rules.max_depth = 3;
  stage.send(kCreated, created("a")), stage.send(kCreated, created("a"));
  const json itself{{"schema", kCreated}, {"value", created("a")}};
  const json again{{"state", paid_state()}, {"events", json::array({itself})}};
  for (int i = 0; i < 2; ++i) {  // two event chains, each with its own depth
    for (int j = 0; j < 2; ++j) EXPECT_THAT(stage.kinds(answered(order("a"), again)), ElementsAre("step", "event"));
  }
  EXPECT_EQ(stage.cell(order("a")).inbox.front().depth, 2U);
  EXPECT_EQ(decode_deployment(encode(stage.deployment).value()).value(), stage.deployment)
      << "a snapshot contains the value";
  for (int j = 0; j < 2; ++j) answered(order("a"), again);
  const auto last = answered(order("a"), again);
  EXPECT_THAT(stage.kinds(last), ElementsAre("step_failed", "failed"));
  EXPECT_THAT(stage.cell(order("a")).message, HasSubstr("a loop"));
}

TEST_F(WorkflowInvariant, EndlessBacklogEndsItsSender) {
  stage.rules.max_derived_inbox_events = 2;
  stage.send(kCreated, created("a")), stage.send(kCreated, created("a"));
  const json itself{{"schema", kCreated}, {"value", created("a")}};
  answered(order("a"), {{"state", paid_state()}, {"events", json::array({itself})}});
  EXPECT_THAT(stage.cell(order("a")).message, HasSubstr("has 2 events waiting"));
  stage.rules = {};
  stage.rules.max_ready_instances = 1;
  stage.send(kCreated, created("b"));
  const json other{{"schema", kCreated}, {"value", created("c")}};
  answered(order("b"), {{"state", paid_state()}, {"events", json::array({other})}});
  EXPECT_THAT(stage.cell(order("b")).message, HasSubstr("events wait for 1 instance"));
}

}  // namespace
}  // namespace mycojobs::workflow_tests
