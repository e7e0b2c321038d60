#include "text/split.h"

#include <gtest/gtest.h>

namespace mycojobs {
namespace {

using Words = std::vector<std::string>;

TEST(SplitWords, AreSplitAtAnyNumberOfBlanks) {
  EXPECT_EQ(split_words("context what"), (Words{"context", "what"}));
  EXPECT_EQ(split_words("  a   b "), (Words{"a", "b"}));
  EXPECT_EQ(split_words(""), Words{});
  EXPECT_EQ(split_words("   "), Words{});
}

TEST(SplitWords, AreSplitOnlyAtTheGivenBlanks) {
  EXPECT_EQ(split_words("0\t3  *", " \t"), (Words{"0", "3", "*"}));
  EXPECT_EQ(split_words("0\t3 *"), (Words{"0\t3", "*"}));
}

}  // namespace
}  // namespace mycojobs
