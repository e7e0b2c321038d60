#include "flows/flow_warnings.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace mycojobs {
namespace {

// Returns "PATH: MESSAGE" of each warning, in order.
std::vector<std::string> warnings(const char* definition) {
  const nlohmann::json value = nlohmann::json::parse(definition);
  const ParsedPlan read = read_plan(value);
  EXPECT_TRUE(read.plan) << join(read.problems);
  std::vector<std::string> out;
  if (!read.plan) return out;
  for (const DocumentProblem& warning : find_warnings(*read.plan, value))
    out.push_back(warning.path + ": " + warning.message);
  return out;
}

TEST(FlowWarnings, NameAJoinThatLacksTheErrorNode) {
  const auto found = warnings(R"({"name": "x", "jobs": {
    "a": {"script": "1", "type": "python", "on_error": "mend"}, "mend": {"log": "m"}, "b": {"log": "b"},
    "join": {"needs": ["a", "b"], "log": "j"}, "both": {"needs": ["a", "mend"], "log": "k"},
    "other": {"needs": "b", "log": "o"}}})");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(
      found[0],
      "jobs.join.needs: if a fails and mend handles that, join is skipped, because it does not need mend: add mend "
      "to its needs to run it");
}

TEST(FlowWarnings, CountEachNodeOnceAndIncludeChildren) {
  const auto found = warnings(R"({"name": "x", "jobs": {
    "parts": {"each": [1, 2, 3], "script": "1", "type": "python", "on_error": "mend"}, "mend": {"log": "m"},
    "sum": {"needs": "parts", "log": "s"},
    "child": {"flow": {"name": "inner", "jobs": {
      "a": {"script": "1", "type": "python", "on_error": "mend"}, "mend": {"log": "m"},
      "join": {"needs": "a", "log": "j"}}}}}})");
  ASSERT_EQ(found.size(), 2U);
  EXPECT_TRUE(found[0].starts_with("jobs.child.flow.jobs.join.needs: if a fails")) << found[0];
  EXPECT_TRUE(found[1].starts_with("jobs.sum.needs: if parts fails")) << found[1];
}

TEST(FlowWarnings, PathsOfAListOfJobsHaveNumbers) {
  const auto found = warnings(R"({"name": "x", "jobs": [
    {"name": "parts", "each": [1, 2, 3], "script": "1", "type": "python", "on_error": "mend"},
    {"name": "mend", "log": "m"}, {"name": "sum", "needs": "parts", "log": "s"},
    {"name": "child", "flow": {"name": "inner", "jobs": [
      {"name": "join", "needs": "a", "log": "j"},
      {"name": "a", "script": "1", "type": "python", "on_error": "mend"}, {"name": "mend", "log": "m"}]}}]})");
  ASSERT_EQ(found.size(), 2U);
  EXPECT_TRUE(found[0].starts_with("jobs[2].needs: if parts fails")) << found[0];
  EXPECT_TRUE(found[1].starts_with("jobs[3].flow.jobs[0].needs: if a fails")) << found[1];
}

}  // namespace
}  // namespace mycojobs
