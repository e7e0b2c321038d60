// Which runs may share a warm process (worker/intake/warm_key.h).
#include "worker/intake/warm_key.h"

#include <gtest/gtest.h>

#include <functional>

namespace mycojobs::test {
namespace {

JobFacts usual() {
  JobFacts facts;
  facts.job.id = 1;
  facts.job.context_id = 2;
  facts.job.caller_id = 3;
  facts.job.script_type = "python";
  facts.job.script = "def main(job): pass";
  facts.job.env_vars = {{"A", "1"}, {"B", "2"}};
  facts.granted_policy.warm_runs = 10;
  facts.granted_policy.secrets = {"TOKEN"};
  facts.secrets = {{"TOKEN", "t0"}};
  return facts;
}

Warm warm_of(const std::function<void(JobFacts&)>& change = {}, const std::string& secret = "s") {
  JobFacts facts = usual();
  if (change) change(facts);
  Warm warm;
  assign_warm_key(warm, facts, secret);
  return warm;
}

TEST(WarmKey, IgnoresFieldsOfSingleRuns) {
  EXPECT_EQ(warm_of([](JobFacts& facts) {
              facts.job.id = 77;
              facts.job.name = "another";
              facts.job.attempt = 4;
              facts.job.epoch = 9;
              facts.job.timeout = 5;
              facts.job.flow_id = 12;
              facts.deadline_unix_ms = 12345;
              facts.inputs["x"] = {4, {{"a", "b"}}};
            }).key,
            warm_of().key);
  EXPECT_EQ(warm_of().key.size(), 64U);
}

TEST(WarmKey, DependsOnEverythingThatAProcessKeeps) {
  const std::function<void(JobFacts&)> changes[] = {
      [](JobFacts& facts) { facts.job.context_id = 4; },
      [](JobFacts& facts) { facts.job.caller_id = 4; },
      [](JobFacts& facts) { facts.job.script_type = "sal"; },
      [](JobFacts& facts) { facts.job.script += ' '; },
      [](JobFacts& facts) { facts.job.env_vars["A"] = "3"; },
      [](JobFacts& facts) { facts.job.env_vars.erase("A"); },
      [](JobFacts& facts) {
        facts.job.env_vars = {{"A", "1B"}, {"", "2"}};
      },
      [](JobFacts& facts) { facts.granted_policy.warm_runs = 11; },
      [](JobFacts& facts) { facts.granted_policy.memory_bytes += 1; },
      [](JobFacts& facts) { facts.granted_policy.exec = true; },
      [](JobFacts& facts) { facts.granted_policy.fs_read = {"/srv/a"}; },
      [](JobFacts& facts) {
        facts.granted_policy.network = Network::allow_list;
        facts.granted_policy.net_allow = {"a:1"};
      },
      [](JobFacts& facts) { facts.granted_policy.secrets = {"OTHER"}; },
  };
  const Warm plain = warm_of();
  for (const auto& change : changes) {
    EXPECT_NE(warm_of(change).key, plain.key) << &change - changes;
    EXPECT_NE(warm_of(change).family, plain.family) << &change - changes;
  }
}

TEST(WarmKey, OtherSecretsAreAnotherKeyOfTheSameFamily) {
  const Warm changed = warm_of([](JobFacts& facts) { facts.secrets[0].value = "t1"; });
  EXPECT_NE(changed.key, warm_of().key);
  EXPECT_EQ(changed.family, warm_of().family);
}

TEST(WarmKey, IsPrivateToItsAgent) { EXPECT_NE(warm_of({}, "other").key, warm_of().key); }

}  // namespace
}  // namespace mycojobs::test
