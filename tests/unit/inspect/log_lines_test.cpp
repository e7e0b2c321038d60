#include "inspect/log_lines.h"

#include <gmock/gmock.h>

namespace mycojobs {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> select(LogSelection& selection, const std::vector<Log>& parts) {
  for (const Log& part : parts) selection.add_part(part);
  std::vector<std::string> texts;
  for (const Log& part : selection.pop_selected()) texts.push_back(part.text);
  return texts;
}

const std::vector<Log> kParts{{10, 1, LogStream::out, "a\nb\n"},
                              {20, 2, LogStream::err, "c\n"},
                              {30, 3, LogStream::out, "begin, "},
                              {40, 4, LogStream::err, "d\n"},
                              {50, 5, LogStream::out, "end\ne"}};

TEST(LogSelection, SelectsAllPartsByDefault) {
  LogSelection selection;
  EXPECT_THAT(select(selection, kParts), ElementsAre("a\nb\n", "c\n", "begin, ", "d\n", "end\ne"));
}

TEST(LogSelection, CountsTheLinesOfAllStreams) {
  for (const auto& [count, expected] :
       std::vector<std::pair<std::size_t, std::string>>{{1, "e"},
                                                        {2, "d\n|e"},
                                                        {3, "begin, |d\n|end\ne"},
                                                        {4, "c\n|begin, |d\n|end\ne"},
                                                        {5, "b\n|c\n|begin, |d\n|end\ne"},
                                                        {9, "a\nb\n|c\n|begin, |d\n|end\ne"}}) {
    LogSelection selection(0, count);
    std::string joined;
    for (const std::string& text : select(selection, kParts)) joined += (joined.empty() ? "" : "|") + text;
    EXPECT_EQ(joined, expected) << count;
  }
}

TEST(LogSelection, LaterPartsFollowTheLastLines) {
  LogSelection selection(0, 1);
  EXPECT_THAT(select(selection, kParts), ElementsAre("e"));
  EXPECT_THAT(select(selection, {{60, 6, LogStream::out, "f\ng\n"}, {61, 7, LogStream::out, "h\n"}}),
              ElementsAre("f\ng\n", "h\n"));
}

// A killed run can end within a line.
TEST(LogSelection, LineOfARunEndsBeforeTheNextRun) {
  const std::vector<Log> parts{{10, 1, LogStream::out, "step 40%"},
                               {20, 2, LogStream::system, "attempt 2\n", 0, true},
                               {30, 3, LogStream::out, "answer 42\n"}};
  LogSelection last(0, 1), since(20);
  EXPECT_THAT(select(last, parts), ElementsAre("answer 42\n"));
  EXPECT_THAT(select(since, parts), ElementsAre("attempt 2\n", "answer 42\n"));
  std::vector<std::string> lines;
  LogLineSplitter splitter;
  for (const Log& part : parts) splitter.add_part(part, [&](const Log& line) { lines.push_back(line.text); });
  EXPECT_THAT(lines, ElementsAre("step 40%", "attempt 2", "answer 42"));
}

TEST(LogSelection, SelectsLinesThatBeginSinceATime) {
  LogSelection selection(40);
  EXPECT_THAT(select(selection, kParts), ElementsAre("d\n", "e")) << "a line that began earlier is not cut";
  LogSelection later(100, 1);
  EXPECT_THAT(select(later, kParts), IsEmpty());
}

}  // namespace
}  // namespace mycojobs
