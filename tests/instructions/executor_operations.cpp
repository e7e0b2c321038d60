// The channel between agent and script host: the request, its frames, the reply, and the resulting end of the job.
#include "executors/channel.h"
#include "executors/job_end_builder.h"
#include "executors/script_answer.h"
#include "executors/script_conversation.h"
#include "instructions/examples.h"
#include "instructions/operation.h"

namespace mycojobs::instructions {
namespace {

JobFacts example_facts() {
  JobFacts facts;
  facts.job = example_job();
  facts.deadline_unix_ms = 1795000063000;
  facts.inputs = {{"extract", {2000, {{"rows", "120000"}, {"file", "rows.csv"}}}}};
  return facts;
}

std::string encode_request(const JobFacts& facts) {
  const ScriptExtras extras{.executor = "python", .profile = "python"};
  auto request = encode_script_request(facts, extras);
  require(request.has_value(), request ? "" : request.error().message.c_str());
  return std::move(*request);
}

std::string answer_frames() {
  std::string out;
  append_frame(out, FrameKind::note, R"({"text":"half of it","fraction":0.5})");
  append_frame(out, FrameKind::result, R"({"rows":"120000","seconds":"1.25"})");
  append_frame(out, FrameKind::done, "");
  return out;
}

ScriptAnswer parse_answer(const std::string& frames) {
  AnswerReader reader(1U << 20);
  reader.feed(frames);
  require(reader.answer().is_complete && reader.answer().result.size() == 2, "an answer is not read");
  return reader.answer();
}

// Reads the frames of a request as a script host does: in consecutive reads of 4 KiB.
std::size_t read_frames(const std::string& request) {
  constexpr std::size_t kRead = 4096;
  std::size_t frames = 0;
  FrameReader reader({{FrameKind::facts, kMaxFactsBytes},
                      {FrameKind::environment, kMaxEnvironmentBytes},
                      {FrameKind::inputs, kMaxInputsBytes},
                      {FrameKind::file, kMaxFileFrameBytes},
                      {FrameKind::script, kMaxScriptBytes}});
  for (std::size_t at = 0; at < request.size(); at += kRead) {
    reader.feed(std::string_view(request).substr(at, kRead), [&](Frame&& frame) {
      require(frame.status == Frame::FrameStatus::accepted, "a frame of a request is not whole");
      ++frames;
    });
  }
  require(frames > 0 && !reader.is_frame_incomplete(), "a request does not end with a frame");
  return frames;
}

}  // namespace

std::vector<Operation> executor_operations() {
  const EndContext context{"job:12:2001", "python", 60, 1U << 20};
  return {
      {"executor.request.make", [facts = example_facts()] { return encode_request(facts).size(); }},
      {"channel.request.read", [request = encode_request(example_facts())] { return read_frames(request); }},
      {"channel.answer.append", [] { return answer_frames().size(); }},
      {"channel.answer.read", [frames = answer_frames()] { return parse_answer(frames).result.size(); }},
      {"executor.end.make",
       [context, outcome = example_outcome(), answer = parse_answer(answer_frames())] {
         const JobEnd end = build_job_end(context, outcome, answer);
         require(end.status == JobStatus::finished, "a success is not one");
         return end.usage.size();
       }},
  };
}

}  // namespace mycojobs::instructions
