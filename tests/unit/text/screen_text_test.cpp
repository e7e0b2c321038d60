// Text from outside cannot control a terminal and is a single line in a log.
#include "text/terminal_text.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/log.h"

namespace mycojobs {
namespace {

TEST(TerminalText, ControlCharactersAndNonTextAreMarked) {
  EXPECT_EQ(to_printable("a\x1b[2Jb\x07\rc\x7f\tx\n"), "a?[2Jb??c?\tx\n");
  EXPECT_EQ(to_printable("\xc2\x9b"
                         "31m"),
            "?31m");
  EXPECT_EQ(to_printable("\xe2\x80\xae\xe2\x81\xa6\xe2\x80\xa8\xd8\x9c"), "????");
  EXPECT_EQ(to_printable("\xff\xc3,\xe2\x82"), "??,??");
  EXPECT_EQ(to_printable("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80"),
            "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(to_printable_line("a\nb\tc"), "a b c");
}

TEST(TerminalText, OnlyColourCodesRemain) {
  EXPECT_EQ(to_printable_with_colours("\x1b[1;31mbad\x1b[0m \x1b[2J\x1b]0;x\x07 \x1b[31"),
            "\x1b[1;31mbad\x1b[0m ?[2J?]0;x? ?[31");
}

// The result does not depend on how the text is split.
TEST(TerminalText, PiecesMayBeCutAnywhere) {
  const std::string text =
      "A\x1b[2J\xc2\x9b"
      "B\xe2\x80\xae"
      "C\xf0\x9f\x98\x80 \xe2\x82\xac\r\n10%\r20%\n\xff\xc3";
  const std::string expected = "A?[2J?B?C\xf0\x9f\x98\x80 \xe2\x82\xac\n10%\n20%\n??";
  for (std::size_t size = 1; size <= text.size(); ++size) {
    PrintableTextStream stream;
    std::string output;
    for (std::size_t position = 0; position < text.size(); position += size)
      output += stream.add(std::string_view(text).substr(position, size));
    output += stream.finish();
    EXPECT_EQ(output, expected) << size;
  }
}

TEST(TerminalText, WrapsAtBlanks) {
  EXPECT_EQ(wrap_text("one two three", 8), "one two\nthree");
  EXPECT_EQ(wrap_text("one averyverylongword two", 8), "one\naveryverylongword\ntwo");
  EXPECT_EQ(wrap_text("one\ntwo", 80), "one\ntwo");
  EXPECT_EQ(wrap_text("", 8), "");
}

class LogText : public ::testing::Test {
 protected:
  static std::string capture_log_text(LogFormat format, const std::string& message) {
    init_log(LogLevel::info, format);
    ::testing::internal::CaptureStderr();
    log_line(LogLevel::warn, "worker", message);
    std::string text = ::testing::internal::GetCapturedStderr();
    init_log(LogLevel::warn, LogFormat::automatic);
    return text;
  }
};

TEST_F(LogText, RepeatedLineIsReportedOnce) {
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 50; ++i) log_line(LogLevel::warn, "worker", "job:1:77: report refused");
  log_line(LogLevel::warn, "worker", "job:1:78: report refused");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
}

TEST_F(LogText, IsOneLineWithoutCursorMovement) {
  const std::string text = capture_log_text(
      LogFormat::text, "key job:1:\x1b[2J\n12:00:00 info store: all is well\t\xc2\x9b\xe2\x80\xae gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_NE(
      text.find(
          "key job:1:\\x1b[2J\\n12:00:00 info store: all is well\\t\\xc2\\x9b\\xe2\\x80\\xae gr\xc3\xbc\xc3\x9f\n"),
      std::string::npos)
      << text;
}

TEST_F(LogText, JsonIsPlainAscii) {
  const std::string text = capture_log_text(LogFormat::json, "job:1:\x1b[2J\n\xc2\x9b gr\xc3\xbc\xff");
  EXPECT_NE(text.find("job:1:\\u001b[2J\\n\\u009b gr\\u00fc\\ufffd"), std::string::npos) << text;
}

}  // namespace
}  // namespace mycojobs
