#include "text/line_diff.h"

#include <gtest/gtest.h>

#include <random>

namespace mycojobs {
namespace {

std::string diff(std::string_view a, std::string_view b, std::size_t around = 1) {
  return format_diff(diff_lines(a, b), around);
}

TEST(LineDiff, ListsRemovedAndAddedLines) {
  EXPECT_EQ(diff("a\nb\nc\n", "a\nb\nc"), "");
  EXPECT_EQ(diff("", ""), "");
  EXPECT_EQ(diff("", "a\nb"), "+ a\n+ b\n");
  EXPECT_EQ(diff("a", ""), "- a\n");
  EXPECT_EQ(diff("a\nb\nc\nd\ne\n", "a\nb\nx\nd\ne\n"), "...\n  b\n- c\n+ x\n  d\n...\n");
  EXPECT_EQ(diff("a\nb\nc\nd", "b\nc\nd\ne", 0), "- a\n...\n+ e\n");
}

// Applying the diff to the first text yields the second, for any two texts.
TEST(LineDiff, WorksForAnyTwoTexts) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 500; ++round) {
    const auto text = [&] {
      std::string out;
      for (std::size_t i = random() % 12; i > 0; --i)
        out += std::string(1, static_cast<char>('a' + random() % 4)) + '\n';
      return out;
    };
    const std::string a = text(), b = text();
    std::string before, after;
    std::size_t changed = 0;
    for (const auto& line : diff_lines(a, b)) {
      if (line.sign != '+') before += std::string(line.text) + '\n';
      if (line.sign != '-') after += std::string(line.text) + '\n';
      changed += line.sign == ' ' ? 0 : 1;
    }
    EXPECT_EQ(before, a);
    EXPECT_EQ(after, b);
    EXPECT_EQ(changed == 0, a == b);
  }
}

TEST(LineDiff, VeryLongTextsAreReportedWithoutTheSearch) {
  std::string a = "begin\n", b = "begin\n";
  for (int i = 0; i < 3000; ++i) a += "a" + std::to_string(i) + '\n', b += "b" + std::to_string(i) + '\n';
  const auto lines = diff_lines(a + "end\n", b + "end\n");
  EXPECT_EQ(lines.size(), 6002U);
  EXPECT_EQ(lines.front().sign, ' ');
  EXPECT_EQ(lines.back().sign, ' ');
}

}  // namespace
}  // namespace mycojobs
