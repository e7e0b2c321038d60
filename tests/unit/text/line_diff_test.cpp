#include "text/line_diff.h"

#include <gtest/gtest.h>

#include <random>

namespace mycojobs {
namespace {

std::string render_diff(std::string_view old_text, std::string_view new_text, std::size_t context_lines = 1) {
  return format_diff(diff_lines(old_text, new_text), context_lines);
}

TEST(LineDiff, ListsRemovedAndAddedLines) {
  EXPECT_EQ(render_diff("a\nb\nc\n", "a\nb\nc"), "");
  EXPECT_EQ(render_diff("", ""), "");
  EXPECT_EQ(render_diff("", "a\nb"), "+ a\n+ b\n");
  EXPECT_EQ(render_diff("a", ""), "- a\n");
  EXPECT_EQ(render_diff("a\nb\nc\nd\ne\n", "a\nb\nx\nd\ne\n"), "...\n  b\n- c\n+ x\n  d\n...\n");
  EXPECT_EQ(render_diff("a\nb\nc\nd", "b\nc\nd\ne", 0), "- a\n...\n+ e\n");
}

// Applying the diff to the first text yields the second, for any two texts.
TEST(LineDiff, WorksForAnyTwoTexts) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 500; ++round) {
    const auto make_text = [&] {
      std::string text;
      for (std::size_t i = random() % 12; i > 0; --i)
        text += std::string(1, static_cast<char>('a' + random() % 4)) + '\n';
      return text;
    };
    const std::string old_text = make_text(), new_text = make_text();
    std::string old_lines, new_lines;
    std::size_t changed_count = 0;
    for (const auto& line : diff_lines(old_text, new_text)) {
      if (line.sign != '+') old_lines += std::string(line.text) + '\n';
      if (line.sign != '-') new_lines += std::string(line.text) + '\n';
      changed_count += line.sign == ' ' ? 0 : 1;
    }
    EXPECT_EQ(old_lines, old_text);
    EXPECT_EQ(new_lines, new_text);
    EXPECT_EQ(changed_count == 0, old_text == new_text);
  }
}

TEST(LineDiff, VeryLongTextsAreReportedAsReplaced) {
  std::string old_text = "begin\n", new_text = "begin\n";
  for (int i = 0; i < 3000; ++i) old_text += "a" + std::to_string(i) + '\n', new_text += "b" + std::to_string(i) + '\n';
  const auto lines = diff_lines(old_text + "end\n", new_text + "end\n");
  EXPECT_EQ(lines.size(), 6002U);
  EXPECT_EQ(lines.front().sign, ' ');
  EXPECT_EQ(lines.back().sign, ' ');
}

}  // namespace
}  // namespace mycojobs
