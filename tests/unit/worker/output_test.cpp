#include "worker/runs/job_output.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

#include "text/utf8.h"

namespace mycojobs {
namespace {

std::string join_text(const std::vector<Log>& lines, LogStream stream) {
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
  const auto lines = output.pop_lines();
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].text, "one\n");
  EXPECT_EQ(lines[1].text, "oops\n");
  EXPECT_EQ(lines[2].text, "two\n");
  for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i].seq, i + 1);
}

TEST(OutputCapture, PartialLineWaitsUntilItIsFlushed) {
  OutputCapture output(1 << 20);
  output.feed(LogStream::out, "50 %", 1);
  EXPECT_TRUE(output.has_partial());
  EXPECT_TRUE(output.pop_lines().empty());
  output.flush_partial(2);
  EXPECT_EQ(join_text(output.pop_lines(), LogStream::out), "50 %");
}

// For any output in pieces of any size: head and tail are unchanged, and the stored and dropped bytes add up to the
// total.
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
      for (Log& line : output.pop_lines()) lines.push_back(std::move(line));
    }
    output.close(2);
    for (Log& line : output.pop_lines()) lines.push_back(std::move(line));
    const std::string kept = join_text(lines, LogStream::out);
    const std::string note = join_text(lines, LogStream::system);
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
    EXPECT_GE(tail.size() + 2 * 64, limit / 2);  // the minimum cost of an entry is 64 bytes
  }
}

TEST(OutputCapture, AlternatingStreamsUseBoundedEntries) {
  OutputCapture output(64 << 10);
  std::size_t entries = 0;
  for (int i = 0; i < 100000; ++i) {
    output.feed(i % 2 == 0 ? LogStream::out : LogStream::err, "\n", 1);
    entries += output.pop_lines().size();
  }
  output.close(2);
  entries += output.pop_lines().size();
  EXPECT_LT(entries, 1100U);
}

TEST(OutputCapture, ManyTinyPiecesUseBoundedEntries) {
  OutputCapture output(64 << 10);
  std::size_t entries = 0;
  for (int i = 0; i < 100000; ++i) {
    output.feed(LogStream::out, "\n", 1);
    entries += output.pop_lines().size();
  }
  output.close(2);
  entries += output.pop_lines().size();
  EXPECT_LT(entries, 1100U);
}

// Characters of 1 to 4 bytes, split at any position. Only the bytes that the note counts are lost.
TEST(OutputCapture, PiecesEndBetweenCharacters) {
  constexpr std::array<std::string_view, 5> kCharacters{"x", "\u00e9", "\u20ac", "\U0001F600", "\n"};
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    const std::size_t kinds = round % 2 == 0 ? 5 : 4;  // every second round has no line end
    std::string all;
    while (all.size() < 60000) all += kCharacters[random() % kinds];
    OutputCapture output(100 + random() % 80000);
    std::vector<Log> lines;
    for (std::string_view rest = all; !rest.empty();) {
      const std::size_t bytes = std::min<std::size_t>(rest.size(), 1 + random() % 3000);
      output.feed(LogStream::err, rest.substr(0, bytes), 1);
      rest.remove_prefix(bytes);
      if (random() % 4 == 0) output.flush_partial(1);
      for (Log& line : output.pop_lines()) lines.push_back(std::move(line));
    }
    output.close(2);
    for (Log& line : output.pop_lines()) lines.push_back(std::move(line));
    std::size_t kept = 0, dropped = 0;
    for (const Log& line : lines) {
      EXPECT_TRUE(is_utf8(line.text));
      if (line.stream == LogStream::err) kept += line.text.size();
      if (line.stream == LogStream::system) dropped = std::stoul(line.text);
    }
    EXPECT_EQ(kept + dropped, all.size());
  }
}

TEST(OutputCapture, IncompleteCharacterWaitsForItsOtherBytes) {
  OutputCapture output(1 << 20);
  output.feed(LogStream::out, "a\xE2\x82", 1);
  EXPECT_TRUE(output.has_partial());
  output.flush_partial(2);
  EXPECT_EQ(join_text(output.pop_lines(), LogStream::out), "a");
  EXPECT_FALSE(output.has_partial()) << "nothing can be shown before more bytes come";
  output.feed(LogStream::out, "\xAC", 3);
  EXPECT_TRUE(output.has_partial());
  output.feed(LogStream::out, "\xE2", 4);
  output.close(5);
  EXPECT_EQ(join_text(output.pop_lines(), LogStream::out), "\u20ac\xE2");
}

std::string join_text(const std::vector<std::vector<Log>>& portions, LogStream stream) {
  std::string text;
  for (const auto& lines : portions) text += join_text(lines, stream);
  return text;
}

TEST(RunOutput, SecretIsFoundAcrossPiecesOfOneStreamOnly) {
  const auto redactor = std::make_shared<const Redactor>(std::vector<Secret>{{"TOKEN", "correct horse"}});
  RunOutput output(1 << 20, redactor);
  output.feed(LogStream::out, "a correct ", 1);
  output.feed(LogStream::err, "horse\n", 1);
  output.feed(LogStream::out, "horse\n", 1);
  output.add_note("of correct horse", 1);
  output.close(2);
  const auto lines = output.pop_batches();
  EXPECT_EQ(join_text(lines, LogStream::out), "a [secret TOKEN]\n");
  EXPECT_EQ(join_text(lines, LogStream::err), "horse\n");
  EXPECT_EQ(join_text(lines, LogStream::system), "of [secret TOKEN]\n");
  EXPECT_EQ(output.redact("correct horse"), "[secret TOKEN]");
}

TEST(RunOutput, HeldBytesAreFlushedAtTheEnd) {
  const auto redactor = std::make_shared<const Redactor>(std::vector<Secret>{{"TOKEN", "correct horse"}});
  RunOutput output(1 << 20, redactor);
  output.feed(LogStream::out, "all of it is correct", 1);
  output.close(2);
  EXPECT_EQ(join_text(output.pop_batches(), LogStream::out), "all of it is correct");
}

TEST(RunOutput, PartialLineWaitsUpToItsLimit) {
  RunOutput output(1 << 20, nullptr);
  output.feed(LogStream::out, "50 %", 1);
  EXPECT_FALSE(output.flush_partial(1000, 1));
  EXPECT_FALSE(output.flush_partial(1000 + RunOutput::kMaxPartialWaitMs - 1, 1));
  output.feed(LogStream::out, " done\n", 1);
  EXPECT_FALSE(output.flush_partial(1000 + RunOutput::kMaxPartialWaitMs, 1)) << "its end has come";
  output.feed(LogStream::out, "next", 1);
  EXPECT_FALSE(output.flush_partial(2000, 1)) << "another one waits for as long again";
  EXPECT_TRUE(output.flush_partial(2000 + RunOutput::kMaxPartialWaitMs, 1));
  EXPECT_EQ(join_text(output.pop_batches(), LogStream::out), "50 % done\nnext");
}

TEST(RunOutput, PortionsAreBoundedAndInOrder) {
  RunOutput output(8U << 20, nullptr);
  const std::size_t lines = RunOutput::kMaxBatchLines * 2 + 1;
  for (std::size_t i = 0; i < lines; ++i) output.feed(LogStream::out, "x\n", 1);
  const auto portions = output.pop_batches();
  ASSERT_EQ(portions.size(), 3U);
  std::uint64_t seq = 0;
  for (const auto& portion : portions) {
    EXPECT_LE(portion.size(), RunOutput::kMaxBatchLines);
    for (const Log& line : portion) EXPECT_EQ(line.seq, ++seq);
  }
  EXPECT_EQ(seq, lines);
  EXPECT_TRUE(output.pop_batches().empty());
}

}  // namespace
}  // namespace mycojobs
