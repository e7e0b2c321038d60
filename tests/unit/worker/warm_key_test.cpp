// Which runs may share a warm process (worker/intake/warm_key.h).
#include "worker/intake/warm_key.h"

#include <gtest/gtest.h>

#include <functional>

namespace mycojobs::test {
namespace {

JobFacts make_usual_facts() {
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

WarmReuse make_warm(const std::function<void(JobFacts&)>& change = {}, const std::string& secret = "s") {
  JobFacts facts = make_usual_facts();
  if (change) change(facts);
  WarmReuse warm;
  assign_warm_key(warm, facts, secret);
  return warm;
}

TEST(WarmKey, IgnoresFieldsOfSingleRuns) {
  EXPECT_EQ(make_warm([](JobFacts& facts) {
              facts.job.id = 77;
              facts.job.name = "another";
              facts.job.attempt = 4;
              facts.job.epoch = 9;
              facts.job.timeout = 5;
              facts.job.flow_id = 12;
              facts.job.args = {"-v"};
              facts.job.stdin_description = facts.job.file_descriptions = "{}";
              facts.deadline_unix_ms = 12345;
              facts.inputs["x"] = {4, {{"a", "b"}}};
            }).key,
            make_warm().key);
  EXPECT_EQ(make_warm().key.size(), 64U);
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
  const WarmReuse plain = make_warm();
  for (const auto& change : changes) {
    EXPECT_NE(make_warm(change).key, plain.key) << &change - changes;
    EXPECT_NE(make_warm(change).family, plain.family) << &change - changes;
  }
}

TEST(WarmKey, OtherSecretsAreAnotherKeyOfTheSameFamily) {
  const WarmReuse changed = make_warm([](JobFacts& facts) { facts.secrets[0].value = "t1"; });
  EXPECT_NE(changed.key, make_warm().key);
  EXPECT_EQ(changed.family, make_warm().family);
}

TEST(WarmKey, IsPrivateToItsAgent) { EXPECT_NE(make_warm({}, "other").key, make_warm().key); }

}  // namespace
}  // namespace mycojobs::test
