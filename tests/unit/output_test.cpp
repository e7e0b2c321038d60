#include "worker/output.h"

#include <gtest/gtest.h>

#include <random>

namespace mycojobs {
namespace {

std::string text_of(const std::vector<Log>& lines, LogStream stream) {
  std::string text;
  for (const Log& line : lines) {
    if (line.stream == stream) text += line.text;
  }
  return text;
}

TEST(OutputCapture, KeepsOrderAndWholeLinesBelowTheLimit) {
  OutputCapture output(1 << 20);
  output.feed(LogStream::out, "one\ntw", 1);
  output.feed(LogStream::err, "oops\n", 2);
  output.feed(LogStream::out, "o\n", 3);
  output.close(4);
  const auto lines = output.take();
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].text, "one\n");
  EXPECT_EQ(lines[1].text, "oops\n");
  EXPECT_EQ(lines[2].text, "two\n");
  for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i].seq, i + 1);
}

TEST(OutputCapture, PartOfALineWaitsUntilItIsFlushed) {
  OutputCapture output(1 << 20);
  output.feed(LogStream::out, "50 %", 1);
  EXPECT_TRUE(output.has_partial());
  EXPECT_TRUE(output.take().empty());
  output.flush_partial(2);
  EXPECT_EQ(text_of(output.take(), LogStream::out), "50 %");
}

// Whatever comes in whatever pieces: head and tail are as written, and kept plus dropped is all.
TEST(OutputCapture, HeadAndTailSurviveAndTheCountIsExact) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    const std::uint64_t limit = 100 + random() % 40000;
    OutputCapture output(limit);
    std::string all;
    std::vector<Log> lines;
    for (int piece = 0; piece < 50; ++piece) {
      std::string bytes(random() % 2000, 'a');
      for (char& c : bytes) c = random() % 30 == 0 ? '\n' : static_cast<char>('a' + random() % 26);
      all += bytes;
      output.feed(LogStream::out, bytes, 1);
      for (Log& line : output.take()) lines.push_back(std::move(line));
    }
    output.close(2);
    for (Log& line : output.take()) lines.push_back(std::move(line));
    const std::string kept = text_of(lines, LogStream::out);
    const std::string note = text_of(lines, LogStream::system);
    EXPECT_LE(kept.size(), limit);
    EXPECT_EQ(output.bytes(LogStream::out), all.size());
    if (note.empty()) {
      EXPECT_EQ(kept, all);
      continue;
    }
    EXPECT_EQ(note, std::to_string(all.size() - kept.size()) + " bytes of output dropped here\n");
    std::string head;
    for (const Log& line : lines) {
      if (line.stream == LogStream::system) break;
      head += line.text;
    }
    const std::string tail = kept.substr(head.size());
    EXPECT_TRUE(all.starts_with(head));
    EXPECT_TRUE(all.ends_with(tail));
    EXPECT_LE(tail.size(), limit / 2);
    EXPECT_GE(tail.size() + 2 * 64, limit / 2);  // a small entry costs as much as one of 64 bytes
  }
}

TEST(OutputCapture, StreamsInTurnCostBoundedEntriesToo) {
  OutputCapture output(64 << 10);
  std::size_t entries = 0;
  for (int i = 0; i < 100000; ++i) {
    output.feed(i % 2 == 0 ? LogStream::out : LogStream::err, "\n", 1);
    entries += output.take().size();
  }
  output.close(2);
  entries += output.take().size();
  EXPECT_LT(entries, 1100U);
}

TEST(OutputCapture, ManyTinyPiecesCostBoundedEntries) {
  OutputCapture output(64 << 10);
  std::size_t entries = 0;
  for (int i = 0; i < 100000; ++i) {
    output.feed(LogStream::out, "\n", 1);
    entries += output.take().size();
  }
  output.close(2);
  entries += output.take().size();
  EXPECT_LT(entries, 1100U);
}

}  // namespace
}  // namespace mycojobs
