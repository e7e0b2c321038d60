// Reading a journal or a checkpoint with random content terminates and yields a usable state.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/sha256.h"
#include "flow/model.h"
#include "flow/run_world.h"
#include "model/codec.h"

namespace mycojobs {
namespace {

using nlohmann::json;

json random_value(Random& random, int depth = 0) {
  static const std::vector<std::string> kTexts{"",          "ok",      "failed",    "queued",  "gate",    "flow:3",
                                               "signal:go", "on_call", "finished",  "error",   "handled", "approval",
                                               "running",   "skipped", "cancelled", "timeout", "pending", "not_needed"};
  switch (random.below(depth > 2 ? 7 : 9)) {
    case 0:
      return random.below(5);
    case 1:
      return std::uint64_t{1} << random.below(64);
    case 2:
      return -static_cast<int>(random.below(100));
    case 3:
      return random.one_in(2);
    case 4:
      return nullptr;
    case 5:
    case 6:
      return random.of(kTexts);
    case 7: {
      json list = json::array();
      for (std::uint32_t i = random.below(4); i > 0; --i) list.push_back(random_value(random, depth + 1));
      return list;
    }
    default: {
      json map = json::object();
      for (std::uint32_t i = random.below(4); i > 0; --i) map[random.of(kTexts)] = random_value(random, depth + 1);
      return map;
    }
  }
}

RunFact random_fact(Random& random, const FlowPlan& plan, std::uint64_t revision) {
  static const auto kShapes = run_fact_shapes();
  static const std::vector<std::string> kFields{"detail",   "error",   "until",  "gates",  "gate",      "as",
                                                "flow",     "outcome", "status", "values", "bytes",     "routed",
                                                "deadline", "verb",    "target", "key",    "approvers", "count"};
  static const std::vector<std::string> kGood{R"({"detail":"ok"})",
                                              R"({"detail":"skipped"})",
                                              R"({"outcome":"failed"})",
                                              R"({"as":"queued"})",
                                              R"({"gates":["signal:go"]})",
                                              R"({"routed":true})",
                                              R"({"status":"error","detail":"failed"})",
                                              ""};
  RunFact fact;
  fact.revision = random.one_in(10) ? random.below(50) : revision + 1;
  fact.kind = random.one_in(20) ? "nonsense" : std::string(random.of(kShapes).kind);
  if (!random.one_in(4)) fact.node = random.below(static_cast<std::uint32_t>(plan.nodes.size() + 1));
  if (random.one_in(2)) {
    fact.data_json = random.of(kGood);
  } else {
    json more = json::object();
    for (std::uint32_t i = random.below(4); i > 0; --i) more[random.of(kFields)] = random_value(random);
    fact.data_json = random.one_in(10) ? "{broken" : more.dump();
  }
  return fact;
}

// The state survives a checkpoint and restore, and events can be applied to it.
void expect_usable(const FlowPlan& plan, const RunState& run, std::uint64_t seed) {
  const auto again = restore(plan, checkpoint(plan, run));
  ASSERT_TRUE(again) << "seed " << seed;
  ASSERT_EQ(describe(plan, *again), describe(plan, run)) << "seed " << seed;
  RunState now = run;
  for (int i = 0; i < 200 && has_immediate_action(plan, now); ++i) {
    auto decided = decide(plan, now, {1000, TimePassed{}});
    ASSERT_TRUE(decided);
    now = std::move(decided->state);
  }
  EXPECT_FALSE(has_immediate_action(plan, now)) << "seed " << seed << ": the run never becomes idle\n"
                                                << describe(plan, now);
}

TEST(FoldFuzz, AnyFactsYieldAUsableState) {
  for (std::uint64_t seed = 1; seed <= 1500; ++seed) {
    Random random(seed);
    const FlowPlan plan = random_plan(random, 12);
    RunState run = initial_state(plan);
    if (!random.one_in(4)) fold(plan, run, {1, 1, "started", {}, ""});
    for (std::uint32_t i = random.below(150); i > 0; --i) fold(plan, run, random_fact(random, plan, run.revision));
    EXPECT_LE(run.anomalies.size(), 100U);
    expect_usable(plan, run, seed);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(FoldFuzz, InvalidCheckpointIsIgnored) {
  Random random(7);
  const FlowPlan plan = random_plan(random, 10);
  RunWorld deployment(plan);
  deployment.start();
  const std::string good = checkpoint(plan, deployment.run);
  ASSERT_TRUE(restore(plan, good));
  for (std::size_t cut = 0; cut < good.size(); cut += 1 + good.size() / 100)
    EXPECT_FALSE(restore(plan, good.substr(0, cut)));
  for (int i = 0; i < 300; ++i) {
    std::string changed = good;
    changed[random.below(static_cast<std::uint32_t>(good.size()))] ^= static_cast<char>(1 + random.below(255));
    EXPECT_FALSE(restore(plan, changed));
  }
  FlowPlan other = plan;
  other.hash = "other";
  EXPECT_FALSE(restore(other, good)) << "the checkpoint belongs to another definition";
}

// Checkpoints with a valid checksum, as written by a client that knows the format.
TEST(FoldFuzz, ForgedCheckpointIsIgnoredOrUsable) {
  int taken = 0;
  for (std::uint64_t seed = 1; seed <= 1500; ++seed) {
    Random random(seed);
    const FlowPlan plan = random_plan(random, 8);
    RunWorld deployment(plan);
    deployment.start();
    const std::string good = checkpoint(plan, deployment.run);
    json body = json::parse(good.substr(good.find('{')));
    for (std::uint32_t changes = 1 + random.below(3); changes > 0; --changes) {
      json* at = &body;
      if (!random.one_in(3)) at = &body["nodes"][random.below(static_cast<std::uint32_t>(plan.nodes.size()))];
      if (!at->is_object() || at->empty()) {
        *at = random_value(random);
        continue;
      }
      auto field = at->begin();
      std::advance(field, random.below(static_cast<std::uint32_t>(at->size())));
      *field = random_value(random);
      if (!body["nodes"].is_array()) break;
    }
    const std::string text = body.dump();
    const auto run = restore(plan, "run2 " + sha256_hex(text) + ' ' + text);
    if (!run) continue;
    ++taken;
    RunState now = *run;
    for (int i = 0; i < 300 && has_immediate_action(plan, now); ++i)
      now = decide(plan, now, {1000, TimePassed{}})->state;
    EXPECT_FALSE(has_immediate_action(plan, now)) << "seed " << seed << ": the run never becomes idle\n" << text;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(taken, 0);
}

}  // namespace
}  // namespace mycojobs
