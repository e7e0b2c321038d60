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

// Returns the number of bytes that a reader of the lines misses, and checks that their numbers grow.
std::uint64_t count_missing_bytes(const std::vector<Log>& lines) {
  std::uint64_t missing_bytes = 0, last_seq = 0;
  for (const Log& line : lines) {
    EXPECT_GT(line.seq, last_seq);
    EXPECT_GE(line.seq, last_seq + line.size);
    if (line.size > 0) missing_bytes += line.seq - line.size - last_seq;
    const bool is_gap = line.stream == LogStream::system && line.text.find("dropped here") != std::string::npos;
    if (is_gap) missing_bytes += line.size;
    last_seq = line.seq;
  }
  return missing_bytes;
}

// Moves the new lines of the output into `stored`, and deletes the dropped lines there, as the store does.
void store_lines(OutputCapture& output, std::vector<Log>& stored) {
  std::vector<Log> lines = output.pop_entries();
  if (lines.empty()) return;
  while (output.has_dropped_entries()) {
    const OutputCapture::DroppedEntries range = output.pop_dropped_entries();
    std::erase_if(stored, [range](const Log& line) {
      return line.size > 0 && line.stream != LogStream::system && line.seq >= range.first && line.seq <= range.last;
    });
  }
  for (Log& line : lines) stored.push_back(std::move(line));
}

std::uint64_t count_stored_bytes(const std::vector<Log>& lines) {
  std::uint64_t bytes = 0;
  for (const Log& line : lines) bytes += line.stream == LogStream::system ? 0 : line.text.size();
  return bytes;
}

class RecordingSink final : public LogSink {
 public:
  void add_entry(const Log& entry) override { entries.push_back(entry); }
  std::vector<Log> entries;
};

TEST(OutputCapture, SinkReceivesAllOutputWithTheNumbersOfTheStore) {
  OutputCapture output(2000);
  const auto sink = std::make_shared<RecordingSink>();
  output.add_sink(sink);
  std::vector<Log> stored;
  std::string written;
  for (int i = 0; i < 500; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    output.feed(i % 3 == 0 ? LogStream::err : LogStream::out, line, 1);
    if (i == 250) output.add_note("note", 1);
    if (i % 50 == 0) output.emit_tail(500);
    written += line;
    store_lines(output, stored);
  }
  output.feed(LogStream::out, "unfinished", 1);
  output.close(2);
  store_lines(output, stored);
  std::string received, by_number(4, ' ');
  std::uint64_t last_seq = 0;
  for (const Log& entry : sink->entries) {
    EXPECT_EQ(entry.seq, last_seq + std::max<std::uint64_t>(entry.size, 1)) << "no number is missing";
    last_seq = entry.seq;
    if (entry.stream != LogStream::system) received += entry.text;
    by_number.resize(entry.seq + 1);
    if (entry.size > 0 && entry.stream != LogStream::system)
      by_number.replace(entry.seq + 1 - entry.size, entry.size, entry.text);
  }
  EXPECT_EQ(received, written + "unfinished");
  EXPECT_GT(count_missing_bytes(stored), 0U);
  for (const Log& line : stored) {
    if (line.size == 0 || line.stream == LogStream::system) continue;
    EXPECT_EQ(by_number.substr(line.seq + 1 - line.size, line.size), line.text);
  }
}

TEST(OutputCapture, KeepsOrderAndWholeLinesBelowTheLimit) {
  OutputCapture output(1 << 20);
  output.feed(LogStream::out, "one\ntw", 1);
  output.feed(LogStream::err, "oops\n", 2);
  output.feed(LogStream::out, "o\n", 3);
  output.close(4);
  const auto lines = output.pop_entries();
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].text, "one\n");
  EXPECT_EQ(lines[1].text, "oops\n");
  EXPECT_EQ(lines[2].text, "two\n");
  for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i].seq, i + 1);
}

TEST(OutputCapture, PartialLineWaitsUntilItIsFlushed) {
  OutputCapture output(1 << 20);
  output.feed(LogStream::out, "50 %", 1);
  EXPECT_TRUE(output.has_partial_line());
  EXPECT_TRUE(output.pop_entries().empty());
  output.flush_partial_lines(2);
  EXPECT_EQ(join_text(output.pop_entries(), LogStream::out), "50 %");
}

// Feeds random text in random pieces, and emits the tail at random times. The stored head and tail are unchanged parts
// of the input, the stored and missing bytes add up to the input, and the limit holds at any time.
TEST(OutputCapture, HeadAndTailAreKeptAndTheDropCountIsExact) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    const std::uint64_t limit = 100 + random() % 40000;
    OutputCapture output(limit);
    std::string input;
    std::vector<Log> lines;
    for (int piece = 0; piece < 50; ++piece) {
      std::string bytes(random() % 2000, 'a');
      for (char& c : bytes) c = random() % 30 == 0 ? '\n' : static_cast<char>('a' + random() % 26);
      input += bytes;
      output.feed(LogStream::out, bytes, 1);
      if (random() % 3 == 0) output.emit_tail(random() % 30000);
      store_lines(output, lines);
      EXPECT_LE(count_stored_bytes(lines), limit);
    }
    output.close(2);
    store_lines(output, lines);
    const std::string stored_text = join_text(lines, LogStream::out);
    EXPECT_LE(stored_text.size(), limit);
    EXPECT_EQ(output.redacted_bytes(LogStream::out), input.size());
    const std::uint64_t missing_bytes = count_missing_bytes(lines);
    EXPECT_EQ(stored_text.size() + missing_bytes, input.size());
    if (missing_bytes == 0) continue;
    std::string head;
    for (const Log& line : lines) {
      if (line.size > 0) break;
      head += line.text;
    }
    const std::string tail = stored_text.substr(head.size());
    EXPECT_TRUE(input.starts_with(head));
    EXPECT_TRUE(input.ends_with(tail));
    EXPECT_LE(tail.size(), limit / 2);
    // Stored lines are dropped as a whole, and the minimum cost of a line is 64 bytes.
    EXPECT_GE(tail.size() + (2 * 8192) + (2 * 64), limit / 2);
  }
}

TEST(OutputCapture, TailIsEmittedInOrderAndReplaced) {
  OutputCapture output(2000);
  output.feed(LogStream::out, std::string(999, 'h') + "\n", 1);
  output.feed(LogStream::out, std::string(599, 'a') + "\n", 2);
  EXPECT_EQ(output.emit_tail(599), 0U) << "a line is emitted as a whole";
  EXPECT_EQ(output.emit_tail(600), 600U);
  EXPECT_EQ(output.waiting_cost(), 0U);
  std::vector<Log> lines = output.pop_entries();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[1].seq, 601U);
  EXPECT_EQ(lines[1].size, 600U);
  EXPECT_EQ(output.pop_dropped_entries().first, 0U);
  output.feed(LogStream::err, std::string(499, 'b') + "\n", 3);
  const auto dropped = output.pop_dropped_entries();
  EXPECT_EQ(dropped.first, 601U);
  EXPECT_EQ(dropped.last, 601U);
  output.close(4);
  lines = output.pop_entries();
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].seq, 1101U);
}

TEST(OutputCapture, RangesOfDroppedEntriesAreBounded) {
  OutputCapture output(1U << 20);
  output.feed(LogStream::out, std::string(512U << 10, 'h'), 1);
  for (int i = 0; i < 2000; ++i) {
    output.feed(LogStream::out, std::string(99, 'a') + "\n", 2);
    if (i % 100 == 0) output.add_note("note", 2);
    output.emit_tail(UINT64_MAX);
  }
  const std::vector<Log> stored = output.pop_entries();
  output.feed(LogStream::out, std::string(1U << 20, 'b'), 3);
  std::size_t dropped_count = 0;
  std::uint64_t last_seq = 0;
  while (output.has_dropped_entries()) {
    const OutputCapture::DroppedEntries range = output.pop_dropped_entries();
    EXPECT_GT(range.first, last_seq);
    last_seq = range.last;
    std::size_t entry_count = 0;
    for (const Log& line : stored) {
      if (line.seq < range.first || line.seq > range.last) continue;
      ++entry_count;
      dropped_count += line.stream == LogStream::system ? 0 : 1;
    }
    EXPECT_LE(entry_count, OutputCapture::kMaxDroppedBytes / OutputCapture::kStoredEntryBytes);
    EXPECT_GE(range.bytes, entry_count * OutputCapture::kStoredEntryBytes);
  }
  EXPECT_EQ(dropped_count, 2000U);
}

TEST(OutputCapture, NotesAreNeverDropped) {
  OutputCapture output(400);
  std::vector<Log> lines;
  for (int i = 0; i < 100; ++i) {
    output.feed(LogStream::out, std::string(99, 'x') + "\n", 1);
    output.add_note("note " + std::to_string(i), 1);
    if (i % 7 == 0) output.emit_tail(100);
    store_lines(output, lines);
  }
  output.close(2);
  store_lines(output, lines);
  std::string expected;
  for (int i = 0; i < 100; ++i) expected += "note " + std::to_string(i) + "\n";
  EXPECT_EQ(join_text(lines, LogStream::system), expected);
  EXPECT_EQ(count_stored_bytes(lines) + count_missing_bytes(lines), 10000U);
}

TEST(OutputCapture, OutputWithoutATailEndsWithAGap) {
  OutputCapture output(1);
  output.feed(LogStream::out, "abc\n", 1);
  output.close(2);
  const auto lines = output.pop_entries();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].text, "a");
  EXPECT_EQ(lines[1].text, "3 bytes of output dropped here\n");
  EXPECT_EQ(count_missing_bytes(lines), 3U);
}

TEST(OutputCapture, AlternatingStreamsUseBoundedEntries) {
  OutputCapture output(64 << 10);
  std::size_t entry_count = 0;
  for (int i = 0; i < 100000; ++i) {
    output.feed(i % 2 == 0 ? LogStream::out : LogStream::err, "\n", 1);
    entry_count += output.pop_entries().size();
  }
  output.close(2);
  entry_count += output.pop_entries().size();
  EXPECT_LT(entry_count, 1100U);
}

TEST(OutputCapture, ManyTinyPiecesUseBoundedEntries) {
  OutputCapture output(64 << 10);
  std::size_t entry_count = 0;
  for (int i = 0; i < 100000; ++i) {
    output.feed(LogStream::out, "\n", 1);
    entry_count += output.pop_entries().size();
  }
  output.close(2);
  entry_count += output.pop_entries().size();
  EXPECT_LT(entry_count, 1100U);
}

// Feeds text with characters of 1 to 4 bytes in pieces that end at random bytes. The stored lines are valid UTF-8, and
// the stored and missing bytes add up to the input.
TEST(OutputCapture, PiecesEndBetweenCharacters) {
  constexpr std::array<std::string_view, 5> kCharacters{"x", "\u00e9", "\u20ac", "\U0001F600", "\n"};
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    const std::size_t character_count = round % 2 == 0 ? 5 : 4;  // odd rounds have no line ends
    std::string text;
    while (text.size() < 60000) text += kCharacters[random() % character_count];
    OutputCapture output(100 + random() % 80000);
    std::vector<Log> lines;
    for (std::string_view remaining = text; !remaining.empty();) {
      const std::size_t piece_bytes = std::min<std::size_t>(remaining.size(), 1 + random() % 3000);
      output.feed(LogStream::err, remaining.substr(0, piece_bytes), 1);
      remaining.remove_prefix(piece_bytes);
      if (random() % 4 == 0) output.flush_partial_lines(1);
      if (random() % 4 == 0) output.emit_tail(20000);
      store_lines(output, lines);
    }
    output.close(2);
    store_lines(output, lines);
    for (const Log& line : lines) EXPECT_TRUE(is_utf8(line.text));
    EXPECT_EQ(count_stored_bytes(lines) + count_missing_bytes(lines), text.size());
  }
}

TEST(OutputCapture, IncompleteCharacterWaitsForItsOtherBytes) {
  OutputCapture output(1 << 20);
  output.feed(LogStream::out, "a\xE2\x82", 1);
  EXPECT_TRUE(output.has_partial_line());
  output.flush_partial_lines(2);
  EXPECT_EQ(join_text(output.pop_entries(), LogStream::out), "a");
  EXPECT_FALSE(output.has_partial_line()) << "the partial character cannot be shown yet";
  output.feed(LogStream::out, "\xAC", 3);
  EXPECT_TRUE(output.has_partial_line());
  output.feed(LogStream::out, "\xE2", 4);
  output.close(5);
  EXPECT_EQ(join_text(output.pop_entries(), LogStream::out), "\u20ac\xE2");
}

std::string join_text(const std::vector<std::vector<Log>>& batches, LogStream stream) {
  std::string text;
  for (const auto& lines : batches) text += join_text(lines, stream);
  return text;
}

TEST(RunOutput, SecretIsRedactedAcrossPiecesOfOneStreamOnly) {
  const auto redactor = std::make_shared<const Redactor>(std::vector<Secret>{{"TOKEN", "correct horse"}});
  RunOutput output(1 << 20, redactor);
  output.feed(LogStream::out, "a correct ", 1);
  output.feed(LogStream::err, "horse\n", 1);
  output.feed(LogStream::out, "horse\n", 1);
  output.add_note("of correct horse", 1);
  output.close(2);
  const auto batches = output.pop_batches();
  EXPECT_EQ(join_text(batches, LogStream::out), "a [secret TOKEN]\n");
  EXPECT_EQ(join_text(batches, LogStream::err), "horse\n");
  EXPECT_EQ(join_text(batches, LogStream::system), "of [secret TOKEN]\n");
  EXPECT_EQ(output.redact("correct horse"), "[secret TOKEN]");
}

TEST(RunOutput, WithheldBytesAreFlushedAtTheEnd) {
  const auto redactor = std::make_shared<const Redactor>(std::vector<Secret>{{"TOKEN", "correct horse"}});
  RunOutput output(1 << 20, redactor);
  output.feed(LogStream::out, "all of it is correct", 1);
  output.close(2);
  EXPECT_EQ(join_text(output.pop_batches(), LogStream::out), "all of it is correct");
}

TEST(RunOutput, PartialLineWaitsUpToItsLimit) {
  RunOutput output(1 << 20, nullptr);
  output.feed(LogStream::out, "50 %", 1);
  EXPECT_FALSE(output.flush_partial_lines(1000, 1));
  EXPECT_FALSE(output.flush_partial_lines(1000 + RunOutput::kMaxPartialWaitMs - 1, 1));
  output.feed(LogStream::out, " done\n", 1);
  EXPECT_FALSE(output.flush_partial_lines(1000 + RunOutput::kMaxPartialWaitMs, 1)) << "the line has ended";
  output.feed(LogStream::out, "next", 1);
  EXPECT_FALSE(output.flush_partial_lines(2000, 1)) << "the next partial line has a full waiting time";
  EXPECT_TRUE(output.flush_partial_lines(2000 + RunOutput::kMaxPartialWaitMs, 1));
  EXPECT_EQ(join_text(output.pop_batches(), LogStream::out), "50 % done\nnext");
}

TEST(RunOutput, TailIsStoredAtALimitedRate) {
  RunOutput output(1U << 20, nullptr);
  const std::string line(1023, 'x');
  const auto feed = [&](int kib) {
    for (int i = 0; i < kib; ++i) output.feed(LogStream::out, line + "\n", 1);
  };
  const auto count_emitted = [&](std::uint64_t boot_ms) {
    output.emit_tail(boot_ms);
    std::size_t bytes = 0;
    for (const auto& batch : output.pop_batches()) {
      for (const Log& each : batch) bytes += each.text.size();
    }
    return bytes;
  };
  feed(512);
  EXPECT_EQ(count_emitted(1000), 512U << 10) << "the head has no rate";
  feed(4000);
  EXPECT_TRUE(output.has_pending_output());
  const std::size_t burst = count_emitted(1000);
  EXPECT_GT(burst, RunOutput::kMaxTailBurst / 2);
  EXPECT_LE(burst, RunOutput::kMaxTailBurst);
  EXPECT_EQ(count_emitted(1010), 0U);
  const std::size_t second = count_emitted(2000);
  EXPECT_GT(second, RunOutput::kTailBytesPerSecond / 2);
  EXPECT_LE(second, RunOutput::kTailBytesPerSecond + RunOutput::kTailQuantum);
  feed(100);
  EXPECT_GT(output.pop_dropped_entries().last, 0U);
  output.close(2);
  EXPECT_LE(count_emitted(2000), 512U << 10);
  EXPECT_FALSE(output.has_pending_output());
}

TEST(RunOutput, BatchesAreBoundedAndInOrder) {
  RunOutput output(8U << 20, nullptr);
  const std::size_t line_count = RunOutput::kMaxBatchEntries * 2 + 1;
  for (std::size_t i = 0; i < line_count; ++i) output.feed(LogStream::out, "x\n", 1);
  const auto batches = output.pop_batches();
  ASSERT_EQ(batches.size(), 3U);
  std::uint64_t last_seq = 0;
  for (const auto& batch : batches) {
    EXPECT_LE(batch.size(), RunOutput::kMaxBatchEntries);
    for (const Log& line : batch) EXPECT_EQ(line.seq, ++last_seq);
  }
  EXPECT_EQ(last_seq, line_count);
  EXPECT_TRUE(output.pop_batches().empty());
}

}  // namespace
}  // namespace mycojobs
