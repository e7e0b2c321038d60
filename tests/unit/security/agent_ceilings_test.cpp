#include "security/agent_ceilings.h"

#include <gtest/gtest.h>

#include "security/ceilings.h"

namespace mycojobs {
namespace {

Ceiling parse_ceiling(const std::string& text) {
  const ParsedPolicy read = read_policy(text, "ceiling", PolicyKind::ceiling);
  EXPECT_TRUE(read.ok()) << join(read.problems);
  return {apply_request(default_ceiling(), read.request), 1, {}};
}
AgentCeiling make_agent(Id runner, const std::string& ceiling, std::vector<std::string> types = {"python"}) {
  return {runner, std::move(types), read_published_ceiling(format_published_ceiling(parse_ceiling(ceiling)), 1)};
}
// Returns the error for a Python job with this policy, or "" if the job is accepted.
std::string get_refusal(const std::string& policy, const std::vector<AgentCeiling>& agents) {
  Job job;
  job.script_type = "python";
  job.policy = policy;
  const auto checked = check_policy_against_agents(job, agents);
  return checked ? "" : checked.error().message;
}

TEST(PublishedCeiling, ContainsNoFoldersOrNamesOfSecrets) {
  const std::string text = format_published_ceiling(
      parse_ceiling(R"({"fs":{"read":["/srv/data"],"write":["/srv/out"]},"secrets":["token"],"exec":true})"));
  for (const char* hidden : {"/srv", "token"}) EXPECT_EQ(text.find(hidden), std::string::npos) << text;
  const auto read = read_published_ceiling(text, 7);
  ASSERT_TRUE(read);
  EXPECT_TRUE(read->ceiling.max.exec);
  EXPECT_EQ(read->ceiling.context, 7U);
  EXPECT_EQ(read->withheld.count(), 3U);
}

TEST(PublishedCeiling, KeepsEveryOtherValue) {
  const Ceiling ceiling = parse_ceiling(
      R"({"memory":"3 GiB","cpu":"unlimited","wall":"1 h","pids":1000,"net":["*.example.org:443"],
          "syscalls":{"add":["*"]},"warm":{"runs":10},"exec":true})");
  const auto read = read_published_ceiling(format_published_ceiling(ceiling), 1);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->ceiling.max, ceiling.max);
  EXPECT_TRUE(read->withheld.none());
}

TEST(PublishedCeiling, OtherVersionIsUnknown) {
  for (const char* text : {"", "7", "[", R"({"later": 1})", R"({"memory": "much"})"})
    EXPECT_FALSE(read_published_ceiling(text, 1)) << text;
}

TEST(AgentCeilings, RejectOnlyWhatEveryAgentOfTheTypeRejects) {
  const std::string exec = R"({"exec":true})";
  const AgentCeiling strict = make_agent(1, "{}");
  const AgentCeiling open = make_agent(2, exec);
  EXPECT_EQ(
      get_refusal(exec, {strict}),
      "policy.exec: is not allowed for context 1: leave it out, or let the operator set [contexts.1.ceiling] exec "
      "= true; so says the configuration of 1 live agent for python");
  EXPECT_EQ(get_refusal(exec, {strict, open}), "");
  EXPECT_NE(get_refusal(exec, {strict, make_agent(3, "{}"), make_agent(2, exec, {"bash"})}).find("2 live agents"),
            std::string::npos);
  EXPECT_EQ(get_refusal(exec, {}), "") << "no agent is alive";
  EXPECT_EQ(get_refusal(exec, {strict, {4, {"python"}, std::nullopt}}), "") << "an older agent reports no ceiling";
  EXPECT_EQ(get_refusal("", {strict}), "");
}

TEST(AgentCeilings, AcceptFoldersAndSecretsIfSomeAreAllowed) {
  const std::string asks = R"({"fs":{"read":["/srv/a"]},"secrets":["token"]})";
  EXPECT_EQ(get_refusal(asks, {make_agent(1, R"({"fs":{"read":["/srv/b"]},"secrets":["other"]})")}), "");
  EXPECT_NE(get_refusal(asks, {make_agent(1, R"({"fs":{"read":["/srv/b"]}})")}).find("policy.secrets"),
            std::string::npos);
}

TEST(AgentCeilings, RejectMalformedPoliciesWithoutAnyAgent) {
  EXPECT_NE(get_refusal(R"({"memmory":1})", {}), "");
  EXPECT_NE(get_refusal("[1", {}), "");
}

}  // namespace
}  // namespace mycojobs
