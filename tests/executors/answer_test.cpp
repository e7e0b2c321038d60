#include "executors/script_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace mycojobs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using FrameList = std::vector<std::pair<FrameKind, std::string>>;

AnswerReader feed_reader(const FrameList& sent, std::uint64_t max_result = 1000) {
  std::string bytes;
  for (const auto& [kind, payload] : sent) append_frame(bytes, kind, payload);
  AnswerReader reader(max_result);
  reader.feed(bytes);
  return reader;
}

TEST(Answer, TakesResultErrorAndDone) {
  const auto reader =
      feed_reader({{FrameKind::result, R"({"a":"b","é":"","n":["1"]})"},
                   {FrameKind::error, R"({"type":"T","message":"m","traceback":"t","line":3,"exit":259})"},
                   {FrameKind::done, ""}});
  const ScriptAnswer& answer = reader.answer();
  EXPECT_EQ(answer.result, (TextMap{{"a", "b"}, {"é", ""}, {"n", "1"}}));
  EXPECT_EQ(answer.result_json, std::vector<std::string>{"n"});
  ASSERT_TRUE(answer.error);
  EXPECT_EQ(answer.error->type, "T");
  EXPECT_EQ(answer.error->message, "m");
  EXPECT_EQ(answer.error->traceback, "t");
  EXPECT_EQ(answer.error->line, 3U);
  EXPECT_EQ(answer.error->exit_code, 3);
  EXPECT_TRUE(answer.is_complete);
  EXPECT_EQ(answer.problem, "");
}

class DropSink final : public ArtifactSink {
 public:
  bool open(const std::string&, bool) override { return true; }
  void write(std::string_view) override {}
  void close() override {}
  void report_dropped(const DroppedArtifact& artifact) override { dropped.push_back(artifact); }
  std::vector<DroppedArtifact> dropped;
};

TEST(Answer, PassesDroppedArtifactsToItsSink) {
  std::string bytes;
  append_frame(bytes, FrameKind::dropped,
               std::string("a\xff\0bytes\0"
                           "100",
                           12));
  append_frame(bytes, FrameKind::dropped,
               std::string(600, 'n') + std::string("\0link\0"
                                                   "0",
                                                   7));
  append_frame(bytes, FrameKind::done, "");
  DropSink sink;
  AnswerReader reader(1000, &sink);
  reader.feed(bytes);
  EXPECT_EQ(reader.answer().problem, "");
  EXPECT_THAT(sink.dropped, ElementsAre(DroppedArtifact{"a\xEF\xBF\xBD", DropReason::bytes, 100},
                                        DroppedArtifact{std::string(512, 'n'), DropReason::link, 0}));
}

TEST(Answer, ProtocolErrorIsNamedAndEndsTheReading) {
  const std::string deep(100, '[');
  const std::pair<FrameList, const char*> rows[] = {
      {{{FrameKind::facts, "{}"}}, "unknown kind 1"},
      {{{FrameKind::done, ""}, {FrameKind::done, ""}}, "after the last one"},
      {{{FrameKind::done, "x"}}, "kind 19 over its limit"},
      {{{FrameKind::note, std::string(kMaxNoteBytes + 1, 'x')}}, "kind 16 over its limit"},
      {{{FrameKind::error, std::string(kMaxErrorBytes + 1, 'x')}}, "kind 18 over its limit"},
      {{{FrameKind::result, "{}"}, {FrameKind::result, "{}"}}, "a second result"},
      {{{FrameKind::error, "{}"}, {FrameKind::error, "{}"}}, "a second error"},
      {{{FrameKind::dropped, "name"}}, "a dropped artifact without its name"},
      {{{FrameKind::dropped, std::string("a\0who\0"
                                         "1",
                                         7)}},
       "an unknown reason"},
      {{{FrameKind::dropped, std::string("a\0link\0x", 8)}}, "an unknown reason or limit"},
      {{{FrameKind::dropped, std::string(kMaxDroppedBytes + 1, 'x')}}, "kind 22 over its limit"},
      {{{FrameKind::result, ""}}, "a result that is not"},
      {{{FrameKind::result, "[]"}}, "a result that is not"},
      {{{FrameKind::result, deep}}, "a result that is not"},
      {{{FrameKind::result, R"({"a":1})"}}, "a value that is neither text nor JSON"},
      {{{FrameKind::result, R"({"a":["1","2"]})"}}, "a value that is neither text nor JSON"},
      {{{FrameKind::result, R"({"a":["1 "]})"}, {FrameKind::result, "{}"}}, "a second result"},
      {{{FrameKind::result, R"({"a":["nan"]})"}}, "is marked as JSON and is not JSON"},
      {{{FrameKind::result, R"({"a":[")" + deep + R"("]})"}}, "is marked as JSON and is not JSON"},
      {{{FrameKind::result, R"({"a":"1","a":"2"})"}}, "a result that is not"},
      {{{FrameKind::result, "{\"a\":\"\xff\"}"}}, "a result that is not"},
      {{{FrameKind::note, "x"}}, "a note that is not"},
      {{{FrameKind::error, "7"}}, "an error that is not"}};
  for (const auto& [sent, problem] : rows) {
    FrameList with_done = sent;
    with_done.emplace_back(FrameKind::error, "{}");
    const auto reader = feed_reader(with_done);
    EXPECT_THAT(reader.answer().problem, HasSubstr(problem));
  }
}

TEST(Answer, WrongTypesInAnErrorAreHarmless) {
  const auto reader = feed_reader({{FrameKind::error, R"({"type":1,"message":[],"line":-4,"exit":"x","other":{}})"}});
  ASSERT_TRUE(reader.answer().error);
  EXPECT_EQ(reader.answer().error->type, "Error");
  EXPECT_EQ(reader.answer().error->line, 0U);
  EXPECT_FALSE(reader.answer().error->exit_code);
}

TEST(Answer, FailureMayForbidARetryOrSetItsPause) {
  struct Row {
    const char* retry;
    bool forbidden;
    std::optional<std::uint64_t> after_ms;
  };
  const Row rows[] = {{"false", true, {}},          {"0", false, 0},
                      {"30", false, 30000},         {"0.25", false, 250},
                      {"1e300", false, 2592000000}, {"18446744073709551615", false, 2592000000},
                      {"true", false, {}},          {"-1", false, {}},
                      {"null", false, {}},          {R"("30")", false, {}},
                      {"[false]", false, {}},       {"{}", false, {}}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.retry);
    const auto reader = feed_reader({{FrameKind::error, std::string(R"({"type":"T","retry":)") + row.retry + "}"}});
    ASSERT_TRUE(reader.answer().error);
    EXPECT_EQ(reader.answer().error->retry_forbidden, row.forbidden);
    EXPECT_EQ(reader.answer().error->retry_after_ms, row.after_ms);
  }
}

TEST(Answer, ResultOverItsLimitIsDropped) {
  EXPECT_THAT(feed_reader({{FrameKind::result, R"({"a":"bcd"})"}}, 3).answer().result_problem,
              HasSubstr("has 4 bytes"));
  EXPECT_EQ(feed_reader({{FrameKind::result, R"({"a":"bcd"})"}}, 4).answer().result_problem, "");
  const auto giant = feed_reader({{FrameKind::result, std::string(10 << 20, 'x')}, {FrameKind::done, ""}});
  EXPECT_THAT(giant.answer().result_problem, HasSubstr("takes 10485760 bytes as JSON"));
  EXPECT_TRUE(giant.answer().is_complete);
  EXPECT_EQ(giant.answer().problem, "");
}

TEST(Answer, NotesBecomeSingleLines) {
  auto reader = feed_reader({{FrameKind::note, R"({"text":"a\nb\u0000\u001b[31mc"})"},
                             {FrameKind::note, R"({"fraction":0.125})"},
                             {FrameKind::note, R"({"fraction":7,"text":"x"})"},
                             {FrameKind::note, R"({"fraction":"half"})"},
                             {FrameKind::note, "{}"}});
  EXPECT_THAT(reader.consume_notes(), ElementsAre("a b  [31mc", "progress 13 %", "progress 100 %: x"));
  EXPECT_TRUE(reader.consume_notes().empty());
}

TEST(Answer, LongNoteIsCutBetweenCharacters) {
  std::string text;
  while (text.size() < 1200) text += "€";
  auto reader = feed_reader({{FrameKind::note, R"({"text":")" + text + R"("})"}});
  EXPECT_THAT(reader.consume_notes(), ElementsAre(text.substr(0, 999)));
}

TEST(Answer, FloodOfNotesIsCountedAndDropped) {
  FrameList flood(AnswerReader::kMaxPendingNotes + 5, {FrameKind::note, R"({"text":"n"})"});
  auto reader = feed_reader(flood);
  const auto notes = reader.consume_notes();
  ASSERT_EQ(notes.size(), AnswerReader::kMaxPendingNotes + 1);
  EXPECT_EQ(notes.back(), "5 notes omitted");
  std::size_t lines = notes.size();
  for (int i = 0; i < 100; ++i) {
    std::string bytes;
    for (const auto& [kind, payload] : flood) append_frame(bytes, kind, payload);
    reader.feed(bytes);
    lines += reader.consume_notes().size();
  }
  EXPECT_LE(lines, AnswerReader::kMaxNotes + 110);
  EXPECT_EQ(reader.answer().problem, "");
}

TEST(Answer, RandomFramesNeverCrash) {
  std::mt19937 random(7);
  const std::string pieces[] = {"{", "}", "\"", ":", "a", "\\u00", "[", "\xff", "1e999", "null", ",", "type"};
  for (int round = 0; round < 3000; ++round) {
    AnswerReader reader(100);
    std::string bytes;
    for (unsigned frame = 0; frame < 1 + random() % 4; ++frame) {
      std::string payload;
      for (unsigned i = 0; i < random() % 12; ++i) payload += pieces[random() % std::size(pieces)];
      append_frame(bytes, static_cast<FrameKind>(15 + random() % 6), payload);
    }
    if (random() % 3 == 0 && !bytes.empty()) bytes[random() % bytes.size()] = static_cast<char>(random());
    bytes.resize(random() % (bytes.size() + 1));
    for (std::size_t offset = 0; offset < bytes.size(); offset += 3)
      reader.feed(std::string_view(bytes).substr(offset, 3));
    EXPECT_LE(reader.consume_notes().size(), 5U);
  }
}

// Otherwise a job that sends calls without reading the replies could make the agent store many replies.
TEST(Answer, UnacceptedReplyKeepsItsCallPending) {
  std::string call;
  append_frame(call, FrameKind::call, "{}");
  AnswerReader reader(1000);
  std::string output;
  for (std::size_t i = 0; i < AnswerReader::kMaxPendingCalls; ++i) {
    reader.feed(call);
    reader.append_reply(output, "{}");
  }
  EXPECT_EQ(reader.answer().problem, "");
  AnswerReader other_reader = reader;
  other_reader.on_replies_sent();
  other_reader.feed(call);
  EXPECT_EQ(other_reader.answer().problem, "") << "calls are accepted again after their replies were sent";
  reader.feed(call);
  EXPECT_THAT(reader.answer().problem, HasSubstr("more calls than it waits for"));
}

TEST(Answer, UnacceptedRepliesAreStoredUpToALimit) {
  std::string call;
  append_frame(call, FrameKind::call, "{}");
  AnswerReader reader(1000);
  std::string output;
  for (int i = 0; i < 10; ++i) {
    reader.feed(call);
    reader.append_reply(output, std::string(7U << 20, 'x'));
  }
  EXPECT_LT(output.size(), AnswerReader::kMaxPendingReplyBytes + 4096);
  EXPECT_THAT(output.substr(output.size() - 100), HasSubstr("too_large"));
}

}  // namespace
}  // namespace mycojobs
