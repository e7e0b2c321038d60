#include <gtest/gtest.h>

#include "flows/flow_plan.h"

namespace mycojobs {
namespace {

using Check = FlowCondition::Test;

std::string evaluate_condition(Check test, const std::string& value, const TextMap& values) {
  std::string why;
  const bool held = is_met({0, "size", test, value}, "build", values, why);
  EXPECT_EQ(held, why.empty());
  return held ? "holds" : why;
}

TEST(FlowConditions, FailedConditionsHaveAReason) {
  EXPECT_EQ(evaluate_condition(Check::equals, "x", {{"size", "x"}}), "holds");
  EXPECT_EQ(evaluate_condition(Check::equals, "x", {{"size", "y"}}), "build.size is \"y\", not \"x\"");
  EXPECT_EQ(evaluate_condition(Check::equals, "x", {}), "build.size is absent");
  EXPECT_EQ(evaluate_condition(Check::equals, "1", {{"size", "1.0"}}), "holds");
  EXPECT_EQ(evaluate_condition(Check::equals, "9007199254740993", {{"size", "9007199254740992"}}),
            "build.size is 9007199254740992, not 9007199254740993");
  EXPECT_EQ(evaluate_condition(Check::equals, "7", {{"size", "007"}}), "build.size is 007, not 7");
  EXPECT_EQ(evaluate_condition(Check::exists, "true", {{"size", ""}}), "holds");
  EXPECT_EQ(evaluate_condition(Check::exists, "true", {{"other", ""}}), "build.size is absent");
  EXPECT_EQ(evaluate_condition(Check::exists, "false", {{"size", "1"}}), "build.size exists");
  EXPECT_EQ(evaluate_condition(Check::exists, "false", {}), "holds");
  EXPECT_EQ(evaluate_condition(Check::greater_than, "10", {{"size", "11"}}), "holds");
  EXPECT_EQ(evaluate_condition(Check::greater_than, "10", {{"size", "10"}}), "build.size is 10, not greater than 10");
  EXPECT_EQ(evaluate_condition(Check::less_than, "10", {{"size", "9.5"}}), "holds");
  EXPECT_EQ(evaluate_condition(Check::less_than, "-1e3", {{"size", "-1001"}}), "holds");
  EXPECT_EQ(evaluate_condition(Check::less_than, "10", {{"size", "many"}}), "build.size is \"many\", not a number");
  EXPECT_EQ(evaluate_condition(Check::less_than, "10", {{"size", ""}}), "build.size is \"\", not a number");
}

TEST(FlowConditions, WholeNumbersAreComparedExactly) {
  EXPECT_EQ(evaluate_condition(Check::greater_than, "9007199254740992", {{"size", "9007199254740993"}}), "holds");
}

TEST(FlowConditions, NumbersBeyond64BitsAreComparedExactly) {
  const std::string two_64 = "18446744073709551616";
  const auto holds = [&](Check test, const std::string& value) {
    return evaluate_condition(test, two_64, {{"size", value}}) == "holds";
  };
  EXPECT_TRUE(holds(Check::less_than, "18446744073709551615"));
  EXPECT_FALSE(holds(Check::less_than, two_64));
  EXPECT_FALSE(holds(Check::less_than, "18446744073709551617"));
  EXPECT_TRUE(holds(Check::greater_than, "18446744073709551617"));
  EXPECT_FALSE(holds(Check::equals, "18446744073709551617"));
  for (const char* same : {"18446744073709551616.0", "1.8446744073709551616e19", "18446744073709551616000E-3"}) {
    EXPECT_TRUE(holds(Check::equals, same)) << same;
    EXPECT_FALSE(holds(Check::less_than, same)) << same;
  }
  EXPECT_TRUE(holds(Check::less_than, "-18446744073709551617"));
  EXPECT_EQ(evaluate_condition(Check::less_than, "-18446744073709551616", {{"size", "-18446744073709551617"}}),
            "holds");
  EXPECT_EQ(evaluate_condition(Check::greater_than, "-0.1", {{"size", "-0.0999999999999999999999"}}), "holds");
  EXPECT_EQ(evaluate_condition(Check::equals, "-0.0", {{"size", "0e5"}}), "holds");
  EXPECT_EQ(evaluate_condition(Check::less_than, "0.1", {{"size", "0.0100"}}), "holds");
}

// Each number operator, with a present and an absent key.
TEST(FlowConditions, MissingKeyFulfilsNoComparison) {
  for (const Check test : {Check::equals, Check::less_than, Check::greater_than}) {
    for (const char* value : {"0", "1", "-1", ""}) {
      EXPECT_EQ(evaluate_condition(test, value, {{"other", value}}), "build.size is absent") << value;
    }
  }
}

TEST(FlowConditions, NonFiniteNumberIsInvalid) {
  for (const char* text : {"nan", "inf", "-inf", "0x10", "1 ", " 1", "1,5", "1e999"}) {
    EXPECT_EQ(evaluate_condition(Check::greater_than, "0", {{"size", text}}).find("holds"), std::string::npos) << text;
    EXPECT_NE(evaluate_condition(Check::less_than, "0", {{"size", text}}).find("not a number"), std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace mycojobs
