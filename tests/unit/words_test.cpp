#include "base/words.h"

#include <gtest/gtest.h>

namespace mycojobs {
namespace {

using Words = std::vector<std::string>;

TEST(SplitWords, AreSplitAtAnyNumberOfBlanks) {
  EXPECT_EQ(words_of("context what"), (Words{"context", "what"}));
  EXPECT_EQ(words_of("  a   b "), (Words{"a", "b"}));
  EXPECT_EQ(words_of(""), Words{});
  EXPECT_EQ(words_of("   "), Words{});
}

TEST(SplitWords, AreSplitOnlyAtTheGivenBlanks) {
  EXPECT_EQ(words_of("0\t3  *", " \t"), (Words{"0", "3", "*"}));
  EXPECT_EQ(words_of("0\t3 *"), (Words{"0\t3", "*"}));
}

}  // namespace
}  // namespace mycojobs
