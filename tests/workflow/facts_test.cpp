// The encoding of facts, and folding: any content of a journal can be read and folded.
#include "workflows/workflow_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "workflow/model.h"

namespace mycojobs::workflow_tests {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<WorkflowFact> one_of_each() {
  const InstanceId cell{"a/w@1", cbor("k")};
  const Sample sample{5, std::string(32, 'e')};
  const Intent intent{"hash", "a/e@1", cbor(1), 0, "ref"};
  const StateRef state{"s", 1, cbor(7)};
  return {
      {1, 9, ManifestApplied{"m", "a/m@1", ""}},
      {2, 9,
       EventAccepted{
           "a/E@1", cbor(1), "actor:7", std::nullopt, 0, sample, {{cell, "m", "Arm", ""}, {cell, "m", "", "failed"}}}},
      {3, 9, EventAccepted{"a/E@1", cbor(1), "", cell, 2, sample, {}}},
      {4, 9, StepTaken{cell, {2, 0}, "out", state, {intent}, 1, cbor("note")}},
      {5, 9, StepTaken{cell, {2, 1}, "out", std::nullopt, {}, 0, std::nullopt}},
      {6, 9, StepFailed{cell, {2, 0}, "out", "script", "boom"}},
      {7, 9, EffectPublished{cell, "hash", "job:7:1"}},
      {8, 9, ReceiptAdmitted{cell, "hash", ReceiptStatus::timeout, cbor(1), "mod", "run", "Receipt", sample}},
      {9, 9, ReceiptRefused{cell, "hash", "another key"}},
      {10, 9, ReceiptMismatched{cell, "hash", ReceiptStatus::ok, "why", "", sample}},
      {11, 9, ReceiptMismatched{cell, "hash", ReceiptStatus::ok, "why", std::nullopt, sample}},
      {12, 9, InstanceFailed{cell, "receipt", "why", {"hash"}}},
      {13, 9, InstanceCompleted{cell}},
      {14, 9, InstanceDeleted{cell, "actor:7"}},
      {15, 9, SnapshotTaken{"hash", 3}}};
}

TEST(WorkflowFacts, RoundTrip) {
  for (const auto& fact : one_of_each()) {
    const auto bytes = encode(fact);
    ASSERT_TRUE(bytes) << fact_kind(fact);
    const auto read = decode_workflow_fact(*bytes);
    ASSERT_TRUE(read) << fact_kind(fact) << ": " << read.error().message;
    EXPECT_EQ(*read, fact) << fact_kind(fact);
  }
  const std::vector<WorkflowFact> facts = one_of_each();
  EXPECT_THAT(affected_instances(facts[0]), ElementsAre());
  EXPECT_THAT(affected_instances(facts[1]), ElementsAre(InstanceId{"a/w@1", cbor("k")}));
  EXPECT_EQ(display_name(affected_instances(facts[1])[0]), "a/w@1[\"k\"]");
  EXPECT_EQ(display_name(InstanceId{"a/w@1", ""}), "a/w@1");
}

TEST(WorkflowFacts, InvalidFactIsNamed) {
  json map = uncbor(encode(one_of_each()[6]).value());
  const auto refused = [](const json& changed) {
    const auto read = decode_workflow_fact(cbor(changed));
    return read ? std::string("taken") : read.error().message;
  };
  json other = map;
  other["kind"] = "launched";
  EXPECT_THAT(refused(other), HasSubstr("is not a fact of a workflow"));
  other = map, other["more"] = 1;
  EXPECT_EQ(refused(other), "more is an unknown field");
  other = map, other.erase("carrier");
  EXPECT_EQ(refused(other), "carrier is missing");
  other = map, other["cell"]["workflow"] = 1;
  EXPECT_EQ(refused(other), "cell.workflow is not a text");
  other = map, other["cell"]["key"] = json::binary({});
  EXPECT_EQ(refused(other), "it is not the canonical encoding of its fact");
  EXPECT_EQ(refused(1), "it is not a map");
  json receipt = uncbor(encode(one_of_each()[7]).value());
  receipt["status"] = "fine";
  EXPECT_EQ(refused(receipt), "status is not a known word");
}

TEST(WorkflowFacts, DamagedBytesAreRejectedOrAreAFact) {
  std::mt19937_64 random(7);
  std::size_t refused = 0;
  for (const auto& fact : one_of_each()) {
    const std::string good = encode(fact).value();
    for (int i = 0; i < 2000; ++i) {
      std::string bytes = good;
      for (std::uint64_t n = random() % 3 + 1; n > 0; --n) bytes[random() % bytes.size()] = static_cast<char>(random());
      if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
      const auto read = decode_workflow_fact(bytes);
      if (!read)
        ++refused;
      else
        ASSERT_EQ(encode(*read).value(), bytes);
    }
  }
  EXPECT_GT(refused, 10'000U);
}

// A journal with changed, repeated, missing or swapped facts: each invalid fact violates a named rule and changes
// nothing.
TEST(WorkflowFold, IsTotalAndIgnoresInvalidFacts) {
  std::set<std::string_view> rules;
  for (std::uint64_t seed = 1; seed <= 15; ++seed) {
    std::mt19937_64 random(seed);
    ModelRound round(seed, no_mutant());
    ASSERT_EQ(round.run(60), "");
    auto facts = round.journal();
    for (int i = 0; i < 10 && facts.size() > 2; ++i) {
      const auto at = random() % facts.size(), other = random() % facts.size();
      if (random() % 3 == 0)
        facts.erase(facts.begin() + static_cast<std::ptrdiff_t>(at));
      else if (random() % 2 == 0)
        std::swap(facts[at], facts[other]);
      else
        facts.insert(facts.begin() + static_cast<std::ptrdiff_t>(at), WorkflowFact(facts[other]));
    }
    DeploymentState deployment;
    deployment.id = round.world().id;
    for (auto fact : facts) {
      if (random() % 20 != 0) fact.height = deployment.height + 1;
      const DeploymentState before = deployment;
      const auto problem = fold(deployment, fact);
      if (!problem) continue;
      rules.insert(problem->rule);
      ASSERT_EQ(deployment, before) << problem->text;
    }
    ASSERT_EQ(decode_deployment(encode(deployment).value()).value(), deployment);
  }
  for (const auto rule : {kHeightRule, kInstanceRule, kInboxRule, kIntentRule, kFailedRule, kManifestRule})
    EXPECT_TRUE(rules.contains(rule)) << rule;
}

TEST(WorkflowFold, SingleCellEqualsItsStateInTheDeployment) {
  ModelRound round(3, no_mutant());
  ASSERT_EQ(round.run(200), "");
  std::map<InstanceId, std::optional<InstanceState>> alone;
  for (const auto& fact : round.journal())
    for (const auto& id : affected_instances(fact)) ASSERT_FALSE(fold(alone[id], id, fact));
  std::size_t there = 0;
  for (const auto& [id, cell] : alone) {
    ASSERT_EQ(cell.has_value(), round.world().instances.contains(id)) << display_name(id);
    if (!cell) continue;
    EXPECT_EQ(*cell, round.world().instances.at(id)) << display_name(id);
    ++there;
  }
  EXPECT_GT(there, 0U);
}

TEST(WorkflowFold, SettledIntentIsRememberedForAWhile) {
  DeploymentState deployment;
  deployment.id = "w";
  const auto take = [&](auto what) {
    const auto problem = fold(deployment, {deployment.height + 1, 1, std::move(what)});
    ASSERT_FALSE(problem) << problem->text;
  };
  const InstanceId cell{"a/w@1", ""};
  const Sample sample{1, std::string(32, 'e')};
  std::string first;
  for (std::size_t i = 0; i <= kMaxCompletedIntents; ++i) {
    take(EventAccepted{"a/E@1", cbor(1), "", {}, 0, sample, {{cell, "m", "", ""}}});
    Intent intent{"", "a/e@1", cbor(1), 0, ""};
    intent.hash =
        intent_hash({"w", cell, deployment.instances.at(cell).workflow_hash(), deployment.height + 1}, intent);
    if (i == 0) first = intent.hash;
    take(StepTaken{cell, deployment.instances.at(cell).inbox.front().id, "o", std::nullopt, {intent}, 0, {}});
    take(ReceiptMismatched{cell, intent.hash, ReceiptStatus::ok, "", std::nullopt, sample});
  }
  EXPECT_EQ(deployment.completed_intents.size(), kMaxCompletedIntents);
  EXPECT_FALSE(deployment.completed_intents.contains(first));
}

TEST(WorkflowFold, IntentBindsItsOriginAndIsPublishedOnce) {
  DeploymentState deployment;
  deployment.id = "w";
  const InstanceId cell{"a/w@1", ""};
  ASSERT_FALSE(fold(deployment, {1, 1, EventAccepted{"a/E@1", cbor(1), "", {}, 0, {}, {{cell, "m", "", ""}}}}));
  Intent intent{"", "a/e@1", cbor(1), 0, ""};
  const auto step = [&](const std::string& of, std::uint64_t sequence) {
    intent.hash = intent_hash({of, cell, deployment.instances.at(cell).workflow_hash(), sequence}, intent);
    const auto problem = fold(deployment, {2, 1, StepTaken{cell, {1, 0}, "o", std::nullopt, {intent}, 0, {}}});
    return problem ? problem->rule : "";
  };
  EXPECT_EQ(step("another world", 2), kIntentRule);
  EXPECT_EQ(step("w", 1), kIntentRule);
  EXPECT_EQ(step("w", 2), "");
  ASSERT_FALSE(fold(deployment, {3, 1, EffectPublished{cell, intent.hash, "job"}}));
  EXPECT_EQ(fold(deployment, {4, 1, EffectPublished{cell, intent.hash, "job"}})->rule, kIntentRule);
  EXPECT_EQ(fold(deployment, {4, 1, EffectPublished{cell, "other", "job"}})->rule, kIntentRule);
}

TEST(WorkflowFold, FactNamesItsInstance) {
  DeploymentState deployment;
  deployment.id = "w";
  const InstanceId cell{"a/w@1", ""};
  const auto event = [&](const char* manifest) {
    return EventAccepted{"a/E@1", cbor(1), "", {}, 0, {}, {{cell, manifest, "", ""}}};
  };
  ASSERT_FALSE(fold(deployment, {1, 1, event("m")}));
  EXPECT_EQ(fold(deployment, {2, 1, event("other")})->rule, kManifestRule);
  EXPECT_EQ(fold(deployment, {2, 1, InstanceFailed{cell, "step", "", {"an intent"}}})->rule, kIntentRule);
  EXPECT_EQ(fold(deployment, {2, 1, InstanceCompleted{cell}})->rule, kStateRule);
  EXPECT_EQ(fold(deployment, {2, 1, InstanceDeleted{cell, "actor:7"}})->rule, kStateRule);
  EXPECT_EQ(fold(deployment, {2, 1, ManifestApplied{"m", "a/m@1", "other"}})->rule, kManifestRule);
  EXPECT_EQ(fold(deployment, {3, 1, ManifestApplied{"m", "a/m@1", ""}})->rule, kHeightRule);
  ASSERT_FALSE(fold(deployment, {2, 1, InstanceFailed{cell, "step", "", {}}}));
  EXPECT_EQ(fold(deployment, {3, 1, event("m")})->rule, kFailedRule);
}

TEST(WorkflowFold, DamagedSnapshotIsRejectedOrValid) {
  ModelRound round(4, no_mutant());
  ASSERT_EQ(round.run(120), "");
  const std::string good = encode(round.world()).value();
  std::mt19937_64 random(3);
  std::size_t refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = good;
    bytes[random() % bytes.size()] = static_cast<char>(random());
    const auto read = decode_deployment(bytes);
    if (!read)
      ++refused;
    else
      ASSERT_EQ(encode(*read).value(), bytes);
  }
  EXPECT_GT(refused, 0U);
  json map = uncbor(good);
  map["version"] = 2;
  ASSERT_FALSE(decode_deployment(cbor(map)));
  map["version"] = 1;
  ASSERT_TRUE(decode_deployment(cbor(map)));
  map["ready"].push_back({{"ticket", 0}, {"cell", {{"workflow", "a/none@1"}}}});
  ASSERT_FALSE(decode_deployment(cbor(map)));
  map["ready"].erase(map["ready"].size() - 1);
  map["cells"].push_back(map["cells"][0]);  // the same cell twice
  ASSERT_FALSE(decode_deployment(cbor(map)));
}

TEST(WorkflowFold, StateMustHaveItsHash) {
  DeploymentState deployment;
  const InstanceId cell{"a/w@1", ""};
  ASSERT_FALSE(fold(deployment, {1, 1, EventAccepted{"a/E@1", cbor(1), "", {}, 0, {}, {{cell, "m", "", ""}}}}));
  const auto problem =
      fold(deployment, {2, 1, StepTaken{cell, {1, 0}, "o", StateRef{"no hash", 1, cbor(7)}, {}, 0, {}}});
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->rule, kStateRule);
}

}  // namespace
}  // namespace mycojobs::workflow_tests
