// Deployments of workflows in the store: journal, inbox, blobs, and notifications about the ends of effects.
#include <gmock/gmock.h>

#include "base/parse.h"
#include "model/codec.h"
#include "store/workflow_store.h"
#include "store_contract.h"

namespace mycojobs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class DeploymentStore : public StoreContract {
 protected:
  static constexpr const char* kWorld = "acme/order@1";
  void SetUp() override {
    StoreContract::SetUp();
    deployments_ = backend_->stores().open_workflows().value();
    ASSERT_TRUE(deployments_->put_manifest(1, kWorld, "h1", "text"));
  }
  static DeploymentCommit commit(std::uint64_t base, std::vector<std::string> facts) {
    DeploymentCommit wanted;
    wanted.context = 1;
    wanted.deployment = kWorld;
    wanted.base_height = base;
    wanted.facts = std::move(facts);
    return wanted;
  }
  DeploymentReadResult read(std::uint64_t after = 0, std::uint32_t max = 1000) {
    auto found = deployments_->read(1, kWorld, after, max);
    EXPECT_TRUE(found) << found.error().message;
    return found.value_or(DeploymentReadResult());
  }
  std::vector<InboxEntry> mail() { return deployments_->read_inbox(1, kWorld, 100).value(); }
  std::vector<std::string> due() { return deployments_->due_deployments(1, 10).value().first; }
  Result<PostResult> post(const std::string& value, const PostRules& rules = {}) {
    return deployments_->post(1, kWorld, "event", {{"schema", "acme/Placed@1"}, {"value", value}}, rules);
  }
  // A job that performs an effect of a deployment.
  ClaimedJob claim_effect(const std::string& effect_of, Id id = 1) {
    Job effect_ref = job(id);
    effect_ref.unknown.emplace_back("effect_of", effect_of);
    EXPECT_TRUE(store_->submit(effect_ref));
    return claim_one();
  }

  std::unique_ptr<WorkflowStore> deployments_;
};

TEST_P(DeploymentStore, CommitAppendsAtItsExpectedHeight) {
  EXPECT_EQ(read().height, 0U);
  ASSERT_TRUE(deployments_->commit(commit(0, {"a", std::string("b\0b", 3)})));
  EXPECT_EQ(read().height, 2U);
  EXPECT_THAT(read().facts, ElementsAre("a", std::string("b\0b", 3)));
  EXPECT_THAT(read(1).facts, ElementsAre(std::string("b\0b", 3)));
  EXPECT_THAT(read(0, 1).facts, ElementsAre("a"));
  EXPECT_THAT(read(2).facts, IsEmpty());
}

TEST_P(DeploymentStore, OutdatedCommitChangesNothing) {
  ASSERT_TRUE(post("1"));
  ASSERT_TRUE(deployments_->commit(commit(0, {"a"})));
  DeploymentCommit late = commit(0, {"x"});
  late.blobs = {{"hash", "bytes"}};
  late.processed_entries = {mail().at(0).id};
  late.snapshot = "s";
  late.manifest = "h1";
  const auto done = deployments_->commit(late);
  EXPECT_EQ(outcome(done), "conflict");
  EXPECT_THAT(done.error().message, HasSubstr("is at height 1, not at 0"));
  EXPECT_THAT(read().facts, ElementsAre("a"));
  EXPECT_EQ(mail().size(), 1U);
  EXPECT_EQ(outcome(deployments_->blob(1, kWorld, "hash")), "not_found");
  EXPECT_EQ(read().snapshot_height, 0U);
  EXPECT_EQ(read().manifest, "");
}

TEST_P(DeploymentStore, CommitRemovesTheInboxEntriesItConsumed) {
  ASSERT_TRUE(post("1"));
  ASSERT_TRUE(post("2"));
  const auto waiting = mail();
  ASSERT_EQ(waiting.size(), 2U);
  EXPECT_EQ(waiting[0].kind, "event");
  EXPECT_EQ(field_of(waiting[0].fields, "value"), "1");
  EXPECT_THAT(due(), ElementsAre(kWorld));
  DeploymentCommit wanted = commit(0, {"a"});
  wanted.processed_entries = {waiting[0].id};
  ASSERT_TRUE(deployments_->commit(wanted));
  ASSERT_EQ(mail().size(), 1U);
  EXPECT_EQ(mail()[0].id, waiting[1].id);
  EXPECT_THAT(due(), ElementsAre(kWorld)) << "more events exist";
  wanted = commit(1, {"b"});
  wanted.processed_entries = {waiting[1].id};
  ASSERT_TRUE(deployments_->commit(wanted));
  EXPECT_THAT(due(), IsEmpty());
}

TEST_P(DeploymentStore, InboxIsReadByBytesButAtLeastOneEntry) {
  const std::string large(4U << 20, 'x');
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(post(large));
  ASSERT_TRUE(post("the last"));
  const auto read = [&](std::uint32_t max, std::uint64_t bytes) {
    return deployments_->read_inbox(1, kWorld, max, bytes).value();
  };
  EXPECT_EQ(read(100, 9U << 20).size(), 3U);
  EXPECT_EQ(read(2, 9U << 20).size(), 2U);
  ASSERT_EQ(read(100, 1).size(), 1U);
  EXPECT_EQ(field_of(read(100, 1)[0].fields, "value"), large);
  const auto usual = deployments_->read_inbox(1, kWorld, 100).value();
  EXPECT_EQ(usual.size(), 4U) << "the default limit of bytes applies";
  const auto all = read(100, 1U << 30);
  ASSERT_EQ(all.size(), 6U);
  EXPECT_EQ(field_of(all[5].fields, "value"), "the last");
  EXPECT_EQ(all[5].kind, "event");
  const auto rest = deployments_->read_inbox(1, kWorld, 100, 1U << 30, all[3].id).value();
  ASSERT_EQ(rest.size(), 2U) << "the events after the given id";
  EXPECT_EQ(rest[0].id, all[4].id);
  EXPECT_THAT(deployments_->read_inbox(1, kWorld, 100, 1U << 30, all[5].id).value(), IsEmpty());
}

TEST_P(DeploymentStore, InboxIsMeasuredAgainAtItsLimit) {
  const std::string head = std::string("mj:deployment-head:") + kWorld;
  ASSERT_TRUE(post("1"));
  backend_->run_command(1, {"HSET", head, "in_bytes", "268435456", "measured_ms", "1"});
  ASSERT_TRUE(post("2")) << "the measured size is below the limit";
  std::uint64_t bytes = 0;
  ASSERT_TRUE(parse_u64(field(head, "in_bytes"), bytes));
  EXPECT_LT(bytes, 1U << 20);
  const std::string large(1U << 20, 'x');
  ASSERT_TRUE(post(large));
  ASSERT_TRUE(parse_u64(field(head, "in_bytes"), bytes));
  EXPECT_GT(bytes, 1U << 20);
}

TEST_P(DeploymentStore, InboxEntriesNameTheirInstance) {
  PostRules rules;
  rules.targets = {{"acme/order@1 01", "order[1]"}, {"acme/ledger@1 ", "ledger"}};
  ASSERT_TRUE(post("1", rules));
  EXPECT_EQ(field_of(mail().at(0).fields, "to"), "acme/order@1 01,acme/ledger@1 ");
}

TEST_P(DeploymentStore, InboxOfAnotherTypeIsNamed) {
  backend_->run_command(1, {"SET", "mj:deployment-inbox:acme/order@1", "text"});
  const auto found = deployments_->read_inbox(1, kWorld, 1);
  ASSERT_FALSE(found);
  EXPECT_EQ(outcome(found), "invalid");
  EXPECT_THAT(found.error().message, HasSubstr("mj:deployment-inbox:acme/order@1"));
}

TEST_P(DeploymentStore, DeploymentIsDueAtItsTime) {
  const std::uint64_t now = deployments_->now_ms().value();
  DeploymentCommit wanted = commit(0, {"a"});
  wanted.due_ms = now + 60000;
  ASSERT_TRUE(deployments_->commit(wanted));
  EXPECT_THAT(due(), IsEmpty());
  const auto next = deployments_->due_deployments(1, 10).value().second;
  EXPECT_GT(next, 0U);
  EXPECT_LE(next, 60000U);
  wanted = commit(1, {});
  wanted.due_ms = now;
  ASSERT_TRUE(deployments_->commit(wanted));
  EXPECT_THAT(due(), ElementsAre(kWorld));
}

TEST_P(DeploymentStore, EventCheckedByAnotherManifestIsRejected) {
  DeploymentCommit first = commit(0, {"a"});
  first.manifest = "h1";
  ASSERT_TRUE(deployments_->commit(first));
  EXPECT_EQ(read().manifest, "h1");
  EXPECT_TRUE(post("1", {"h1"}));
  EXPECT_EQ(outcome(post("2", {"h2"})), "conflict");
  EXPECT_EQ(mail().size(), 1U);
}

TEST_P(DeploymentStore, FullInstanceReceivesNothingUntilACommit) {
  const PostTarget seven{"acme/order@1 07", "acme/order@1[7]"}, eight{"acme/order@1 08", "acme/order@1[8]"};
  DeploymentCommit full = commit(0, {"a"});
  full.full_instances = std::vector<std::string>{seven.instance};
  ASSERT_TRUE(deployments_->commit(full));
  const auto refused = post("1", {"", {eight, seven}});
  EXPECT_EQ(outcome(refused), "too_large");
  EXPECT_THAT(refused.error().message, HasSubstr("acme/order@1[7]"));
  EXPECT_THAT(mail(), IsEmpty());
  EXPECT_TRUE(post("1", {"", {eight}}));
  EXPECT_TRUE(post("1")) << "an event without a named instance is not limited";
  ASSERT_TRUE(deployments_->commit(commit(1, {"b"})));
  EXPECT_EQ(outcome(post("1", {"", {seven}})), "too_large") << "a commit without this field does not change it";
  DeploymentCommit done = commit(2, {});
  done.full_instances.emplace();
  ASSERT_TRUE(deployments_->commit(done));
  EXPECT_TRUE(post("1", {"", {seven}}));
}

TEST_P(DeploymentStore, EventWithTheSameKeyIsPostedOnce) {
  const PostRules rules{"", {}, "12 tuesday", "aa"};
  const auto first = post("1", rules);
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_FALSE(first->repeated);
  EXPECT_EQ(first->id, mail().at(0).id);
  DeploymentCommit taken = commit(0, {"a"});
  taken.processed_entries = {first->id};
  taken.manifest = "h1";
  ASSERT_TRUE(deployments_->commit(taken));
  const auto again = post("1", {"h0", {}, "12 tuesday", "aa"});
  ASSERT_TRUE(again) << "also when another manifest is in force since";
  EXPECT_TRUE(again->repeated);
  EXPECT_EQ(again->id, first->id);
  EXPECT_THAT(mail(), IsEmpty());
  const auto other = post("2", {"", {}, "12 tuesday", "bb"});
  EXPECT_EQ(outcome(other), "conflict");
  EXPECT_THAT(other.error().message, HasSubstr("event " + first->id));
  EXPECT_FALSE(post("2", {"", {}, "13 tuesday", "bb"})->repeated);
  EXPECT_NE(post("2")->id, post("2")->id) << "an event without an idempotency key is never a repetition";
}

TEST_P(DeploymentStore, KeysExpireByAgeAndNumber) {
  const std::string keys = "mj:deployment-event-keys:" + std::string(kWorld),
                    ages = "mj:deployment-event-key-times:" + std::string(kWorld);
  const auto count_keys = [&] { return backend_->run_command(1, {"HLEN", keys}).number(); };
  ASSERT_TRUE(post("1", {"", {}, "12 old", "aa"}));
  ASSERT_TRUE(post("1", {"", {}, "12 new", "aa"}));
  EXPECT_EQ(count_keys(), 2U);
  backend_->run_command(1, {"ZADD", ages, "1", "12 old"});
  ASSERT_TRUE(post("1", {"", {}, "12 next", "aa"}));
  EXPECT_EQ(count_keys(), 2U);
  EXPECT_FALSE(post("1", {"", {}, "12 old", "aa"})->repeated) << "the old idempotency key was removed";
  EXPECT_TRUE(post("1", {"", {}, "12 new", "aa"})->repeated);

  const std::string before = std::to_string(deployments_->now_ms().value() - 100000);
  for (std::uint64_t i = 0; i < kMaxDeploymentKeys; i += 1000) {
    std::vector<std::string> zadd{"ZADD", ages}, hset{"HSET", keys};
    for (std::uint64_t j = i; j < i + 1000; ++j) {
      zadd.insert(zadd.end(), {before, "12 many" + std::to_string(j)});
      hset.insert(hset.end(), {"12 many" + std::to_string(j), "1-1 aa"});
    }
    backend_->run_command(1, zadd);
    backend_->run_command(1, hset);
  }
  ASSERT_TRUE(post("1", {"", {}, "12 last", "aa"}));
  EXPECT_EQ(count_keys(), kMaxDeploymentKeys) << "the newest entries are kept";
  EXPECT_TRUE(post("1", {"", {}, "12 new", "aa"})->repeated);
}

TEST_P(DeploymentStore, ExclusiveCommitWaitsForAnEmptyInbox) {
  ASSERT_TRUE(post("1"));
  DeploymentCommit wanted = commit(0, {"a"});
  wanted.requires_empty_inbox = true;
  const auto busy = deployments_->commit(wanted);
  EXPECT_EQ(outcome(busy), "conflict");
  EXPECT_THAT(busy.error().message, HasSubstr("1 event"));
  EXPECT_EQ(read().height, 0U);
  DeploymentCommit taken = commit(0, {});
  taken.processed_entries = {mail().at(0).id};
  ASSERT_TRUE(deployments_->commit(taken));
  EXPECT_TRUE(deployments_->commit(wanted));
}

TEST_P(DeploymentStore, MissingDeploymentReceivesNoEvents) {
  EXPECT_EQ(outcome(deployments_->post(1, "acme/none@1", "event", {{"value", "1"}})), "not_found");
  EXPECT_EQ(backend_->run_command(1, {"EXISTS", "mj:deployment-inbox:acme/none@1"}).number(), 0U);
  EXPECT_THAT(deployments_->list_deployments(1).value(), ElementsAre(kWorld));
}

TEST_P(DeploymentStore, ManifestHasOneTextForItsHash) {
  EXPECT_TRUE(deployments_->put_manifest(1, kWorld, "h1", "text"));
  EXPECT_EQ(outcome(deployments_->put_manifest(1, kWorld, "h1", "other")), "conflict");
  EXPECT_EQ(deployments_->manifest(1, kWorld, "h1").value(), "text");
  EXPECT_EQ(outcome(deployments_->manifest(1, kWorld, "h2")), "not_found");
}

TEST_P(DeploymentStore, InspectionReportsHeightAndRepairIsOneStep) {
  DeploymentCommit first = commit(0, {"a"});
  first.manifest = "h1";
  first.snapshot = "s";
  first.full_instances = std::vector<std::string>{"acme/order@1 08", "acme/order@1 07"};
  ASSERT_TRUE(deployments_->commit(first));
  DeploymentStoreState state = deployments_->read_state(1, kWorld).value();
  EXPECT_EQ(state.height, 1U);
  EXPECT_EQ(state.snapshot_height, 1U);
  EXPECT_EQ(state.snapshot, "s");
  EXPECT_EQ(state.manifest, "h1");
  EXPECT_TRUE(state.is_listed);
  EXPECT_EQ(state.due_ms, 0U);
  EXPECT_EQ(state.inbox_entries, 0U);
  EXPECT_THAT(state.full_instances, ElementsAre("acme/order@1 07", "acme/order@1 08"));

  using Kind = DeploymentFix::Kind;
  submit(1);
  const std::vector<DeploymentFix> all{{Kind::add_to_list},
                                       {Kind::make_due},
                                       {Kind::set_manifest, "h2", ""},
                                       {Kind::clear_snapshot},
                                       {Kind::clear_full, "acme/order@1 07", ""},
                                       {Kind::add_end_notice, "job", "job:12:9"},
                                       {Kind::watch_effect, "", "job:12:1"},
                                       {Kind::watch_effect, "", "job:12:2"}};
  backend_->run_command(1, {"SREM", "mj:deployments", kWorld});
  EXPECT_FALSE(deployments_->repair(1, kWorld, 2, all).value()) << "the deployment has changed since it was read";
  EXPECT_FALSE(deployments_->read_state(1, kWorld)->is_listed);
  EXPECT_TRUE(deployments_->repair(1, kWorld, 1, all).value());
  state = deployments_->read_state(1, kWorld).value();
  EXPECT_TRUE(state.is_listed);
  EXPECT_GT(state.due_ms, 0U);
  EXPECT_LE(state.due_ms, state.now_ms);
  EXPECT_EQ(state.manifest, "h2");
  EXPECT_EQ(state.snapshot_height, 0U);
  EXPECT_THAT(state.full_instances, ElementsAre("acme/order@1 08"));
  ASSERT_EQ(mail().size(), 1U);
  EXPECT_EQ(mail()[0].kind, "job");
  EXPECT_EQ(field_of(mail()[0].fields, "key"), "job:12:9");
  EXPECT_EQ(field("job:12:1", "effect_of"), "1 " + std::string(kWorld));
  EXPECT_EQ(backend_->run_command(1, {"EXISTS", "job:12:2"}).number(), 0U)
      << "no record is created for the mark of a job";
  backend_->put_text(1, "mj:deployment-full:" + std::string(kWorld) + "x", "x");
  EXPECT_EQ(outcome(deployments_->read_state(1, std::string(kWorld) + "x")), "invalid");
}

TEST_P(DeploymentStore, OverviewReportsWaitingWorkOfManyDeployments) {
  const ClaimedJob ended = claim_effect("1 acme/gone@1");
  ASSERT_EQ(outcome(end(ended.ref, finished())), "ok");
  const ClaimedJob running = claim_effect("1 acme/gone@1", 2);
  backend_->run_command(1, {"HSET", running.ref.job_key, "status", "finished"});
  backend_->put_text(1, "job:1:999", "no record");
  ASSERT_TRUE(post("a"));
  const std::vector<std::string> effect_refs{running.ref.job_key, ended.ref.job_key, "job:1:999", "flow:77"};
  const auto poll_result = deployments_->poll(1, {{kWorld, effect_refs}, {"acme/other@1", {}}}).value();
  ASSERT_EQ(poll_result.size(), 2U);
  EXPECT_EQ(poll_result[0].inbox_entries, 1U);
  EXPECT_GT(poll_result[0].due_ms, 0U);
  EXPECT_LE(poll_result[0].due_ms, poll_result[0].now_ms);
  EXPECT_THAT(poll_result[0].ended_effects, ElementsAre(ended.ref.job_key, "flow:77"))
      << "the record of the other effect is forged";
  EXPECT_EQ(poll_result[1].inbox_entries, 0U);
  EXPECT_EQ(poll_result[1].due_ms, 0U);
  EXPECT_THAT(poll_result[1].ended_effects, IsEmpty());
}

TEST_P(DeploymentStore, BlobsAreCollectedAtOneHeightOnly) {
  DeploymentCommit wanted = commit(0, {"a"});
  wanted.blobs = {{"old", "1"}, {"new", std::string("\0\xff", 2)}};
  wanted.snapshot = "new";
  ASSERT_TRUE(deployments_->commit(wanted));
  EXPECT_EQ(read().snapshot_height, 1U);
  EXPECT_EQ(read().snapshot, "new");
  ASSERT_TRUE(deployments_->commit(commit(1, {"b"})));
  EXPECT_EQ(outcome(deployments_->drop_blobs(1, kWorld, 1, {"old"})), "conflict")
      << "the commit may have referred to the blob again";
  EXPECT_EQ(deployments_->blobs(1, kWorld).value().size(), 2U);
  EXPECT_TRUE(deployments_->drop_blobs(1, kWorld, 2, {"old"}));
  EXPECT_THAT(deployments_->blobs(1, kWorld).value(), ElementsAre("new"));
  EXPECT_EQ(deployments_->blob(1, kWorld, "new").value(), std::string("\0\xff", 2));
}

TEST_P(DeploymentStore, EndOfAnEffectsJobIsInTheInbox) {
  const ClaimedJob claimed = claim_effect("1 " + std::string(kWorld));
  EXPECT_THAT(mail(), IsEmpty());
  ASSERT_EQ(outcome(end(claimed.ref, finished())), "ok");
  ASSERT_EQ(outcome(end(claimed.ref, finished())), "ok") << "the end is reported again";
  const auto waiting = mail();
  ASSERT_EQ(waiting.size(), 1U) << "only the first end is counted";
  EXPECT_EQ(waiting[0].kind, "job");
  EXPECT_EQ(field_of(waiting[0].fields, "key"), "job:12:1");
  EXPECT_THAT(due(), ElementsAre(kWorld));
}

TEST_P(DeploymentStore, MissingDeploymentBlocksNoJob) {
  const ClaimedJob claimed = claim_effect("1 acme/none@1");
  ASSERT_EQ(outcome(end(claimed.ref, finished())), "ok");
  EXPECT_EQ(field("job:12:1", "status"), "finished");
  EXPECT_EQ(backend_->run_command(1, {"EXISTS", "mj:deployment-inbox:acme/none@1"}).number(), 0U);
}

TEST_P(DeploymentStore, InboxOfAnotherTypeIsAnAnomalyAndTheJobEnds) {
  const ClaimedJob claimed = claim_effect("1 " + std::string(kWorld));
  backend_->put_text(1, "mj:deployment-inbox:" + std::string(kWorld), "x");
  ASSERT_EQ(outcome(end(claimed.ref, finished())), "ok");
  EXPECT_EQ(field("job:12:1", "status"), "finished");
  EXPECT_THAT(last_anomaly(), HasSubstr("acme/order@1 does not have the end of job:12:1, for which a workflow waits"));
  EXPECT_EQ(outcome(post("1")), "invalid");
  EXPECT_EQ(outcome(deployments_->commit(commit(0, {"a"}))), "invalid");
  EXPECT_EQ(read().height, 0U);
}

TEST_P(DeploymentStore, LongJournalsAreReadInPages) {
  const std::string large(1U << 20, 'x');
  for (std::uint64_t i = 0; i < 12; ++i) ASSERT_TRUE(deployments_->commit(commit(i, {large})));
  const auto first = read();
  EXPECT_EQ(first.height, 12U);
  EXPECT_GE(first.facts.size(), 8U);
  EXPECT_EQ(first.facts.size() + read(first.facts.size()).facts.size(), 12U);
}

TEST_P(DeploymentStore, FactsOfOneInstanceAreReadAlone) {
  const auto heights_of = [&](const std::string& instance, std::uint64_t after = 0) {
    const InstanceFacts found = deployments_->read_instance_facts(1, kWorld, instance, after).value();
    EXPECT_EQ(found.read_height, found.height);
    std::vector<std::uint64_t> heights;
    for (const auto& [height, fact] : found.facts) {
      EXPECT_EQ(fact, std::to_string(height));
      heights.push_back(height);
    }
    return heights;
  };
  const auto append = [&](std::uint64_t base, std::vector<std::pair<std::string, std::string>> changes,
                          const std::string& snapshot = "") {
    DeploymentCommit next = commit(base, {std::to_string(base + 1), std::to_string(base + 2)});
    next.changes = std::move(changes);
    next.snapshot = snapshot;
    ASSERT_TRUE(deployments_->commit(next));
  };
  append(0, {{"w 01", "1"}, {"w 02", "1 2"}});
  append(2, {{"w 01", "4"}});
  EXPECT_THAT(heights_of("w 01"), ElementsAre(1, 4));
  EXPECT_THAT(heights_of("w 01", 1), ElementsAre(4));
  EXPECT_THAT(heights_of("w 02"), ElementsAre(1, 2));
  EXPECT_THAT(heights_of("w 03"), IsEmpty());
  append(4, {{"w 01", "5"}}, "hash");
  EXPECT_THAT(heights_of("w 01"), IsEmpty());
  const InstanceFacts after_snapshot = deployments_->read_instance_facts(1, kWorld, "w 01").value();
  EXPECT_EQ(after_snapshot.snapshot_height, 6U);
  EXPECT_EQ(after_snapshot.snapshot, "hash");
  append(6, {{"w 01", "7"}});
  append(8, {{"w 02", "10"}});
  EXPECT_THAT(heights_of("w 01"), ElementsAre(7));
  // The list is only a part of the facts: all facts outside of it are read.
  backend_->run_command(1, {"HSET", "mj:deployment-changes:acme/order@1", "to", "8"});
  append(10, {{"w 02", "12"}});
  EXPECT_THAT(heights_of("w 01"), ElementsAre(7, 9, 10, 11, 12));
  backend_->run_command(1, {"HSET", "mj:deployment-changes:acme/order@1", "from", "7"});
  EXPECT_THAT(heights_of("w 02"), ElementsAre(7, 9, 10, 11, 12));
  backend_->run_command(1, {"HSET", "mj:deployment-changes:acme/order@1", "w 02", "*"});
  EXPECT_THAT(heights_of("w 02"), ElementsAre(7, 8, 9, 10, 11, 12));
  backend_->run_command(1, {"DEL", "mj:deployment-changes:acme/order@1"});
  EXPECT_THAT(heights_of("w 01"), ElementsAre(7, 8, 9, 10, 11, 12));
}

TEST_P(DeploymentStore, ListOfFactsIsBounded) {
  const std::string kKey = "mj:deployment-changes:acme/order@1", heights(16'000, '1');
  DeploymentCommit next = commit(0, {"a"});
  next.changes = {{"w 01", heights}, {"w 02", "1"}};
  ASSERT_TRUE(deployments_->commit(next));
  next = commit(1, {"b"});
  next.changes = {{"w 01", heights}, {"w 02", "2"}};
  ASSERT_TRUE(deployments_->commit(next));
  EXPECT_EQ(backend_->run_command(1, {"HGET", kKey, "w 01"}).text(), "*");
  EXPECT_EQ(backend_->run_command(1, {"HGET", kKey, "w 02"}).text(), "1 2");
  backend_->run_command(1, {"HSET", kKey, "bytes", "8388600"});
  next = commit(2, {"c"});
  next.changes = {{"w 02", "3"}, {"w 03", "3"}};
  ASSERT_TRUE(deployments_->commit(next));
  EXPECT_EQ(backend_->run_command(1, {"HGET", kKey, "to"}).text(), "2");
  EXPECT_EQ(deployments_->read_instance_facts(1, kWorld, "w 02")->facts.size(), 3U);
}

TEST_P(DeploymentStore, ListOfALostJournalIsIgnored) {
  const std::string kKey = "mj:deployment-changes:acme/order@1";
  DeploymentCommit next = commit(0, {"a"});
  next.changes = {{"w 01", "1"}};
  ASSERT_TRUE(deployments_->commit(next));
  backend_->run_command(1, {"HSET", kKey, "to", "500"});
  EXPECT_EQ(deployments_->read_instance_facts(1, kWorld, "w 02")->facts.size(), 1U);
  ASSERT_TRUE(deployments_->commit(commit(1, {"b"})));
  EXPECT_EQ(backend_->run_command(1, {"EXISTS", kKey}).number(), 0);
  EXPECT_EQ(deployments_->read_instance_facts(1, kWorld, "w 02")->facts.size(), 2U);
}

TEST_P(DeploymentStore, FactsAreReadUpToAByteLimit) {
  const std::string large(5U << 20, 'x');
  for (std::uint64_t i = 0; i < 6; ++i) ASSERT_TRUE(deployments_->commit(commit(i, {large})));
  EXPECT_EQ(read().facts.size(), 2U);
  EXPECT_EQ(read(5).facts.size(), 1U);
  EXPECT_EQ(deployments_->read_facts(1, kWorld, {1, 3, 5}).value().size(), 2U);
}

TEST_P(DeploymentStore, FactsAreReadByTheirHeights) {
  ASSERT_TRUE(deployments_->commit(commit(0, {"a", "b", "c"})));
  EXPECT_THAT(deployments_->read_facts(1, kWorld, {1, 3, 4}).value(), ElementsAre("a", "c", ""));
}

MJ_BOTH_STORES(DeploymentStore);

}  // namespace
}  // namespace mycojobs
