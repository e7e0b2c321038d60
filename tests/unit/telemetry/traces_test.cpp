// Tests of trace contexts (W3C Trace Context) and of the export of spans to a collector.
#include "model/trace_context.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "model/codec.h"
#include "model/job_validation.h"
#include "store/redis/store_spans.h"
#include "support/process.h"
#include "telemetry/traces.h"

namespace mycojobs {
namespace {

using testing::HasSubstr;

const std::string kTraceId = "4bf92f3577b34da6a3ce929d0e0e4736", kSpanId = "00f067aa0ba902b7";
const std::string kTraceparent = "00-" + kTraceId + "-" + kSpanId + "-01";

TEST(TraceContext, LogLineOfAJobContainsItsTraceId) {
  EXPECT_EQ(append_trace_id("job:12:1", kTraceparent), "job:12:1 (trace " + kTraceId + ")");
  EXPECT_EQ(append_trace_id("job:12:1", ""), "job:12:1");
  EXPECT_EQ(append_trace_id("job:12:1", "what a client wrote"), "job:12:1");
}

TEST(Traceparent, IsParsedAsSpecified) {
  const auto parsed = parse_traceparent(kTraceparent);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(*parsed, (TraceContext{kTraceId, kSpanId, true}));
  EXPECT_EQ(to_traceparent(*parsed), kTraceparent);
  EXPECT_FALSE(parse_traceparent("00-" + kTraceId + "-" + kSpanId + "-00")->sampled);
  EXPECT_TRUE(parse_traceparent("00-" + kTraceId + "-" + kSpanId + "-0f")->sampled) << "unknown flags are ignored";
  EXPECT_TRUE(parse_traceparent("cc-" + kTraceId + "-" + kSpanId + "-01-what a newer version adds"));
}

TEST(Traceparent, InvalidTraceparentIsRejected) {
  const std::string zeros(32, '0');
  for (const std::string& text :
       {std::string("x"), kTraceparent + "-", kTraceparent + "0", kTraceparent.substr(1), "ff" + kTraceparent.substr(2),
        "0g" + kTraceparent.substr(2), "00-" + zeros + "-" + kSpanId + "-01",
        "00-" + kTraceId + "-" + zeros.substr(16) + "-01", "00-" + kTraceId + "_" + kSpanId + "-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + kSpanId + "-01", ' ' + kTraceparent,
        "cc-" + kTraceId + "-" + kSpanId + "-01x", kTraceparent + '\n', std::string(55, '\0')}) {
    EXPECT_FALSE(parse_traceparent(text)) << text;
    EXPECT_FALSE(check_traceparent(text)) << text;
  }
  EXPECT_TRUE(check_traceparent(""));
  EXPECT_THAT(check_traceparent("x\n").error().message, HasSubstr("is not a valid traceparent: give version, trace"));
}

TEST(Traceparent, RecordWithAMalformedTraceparentIsInvalid) {
  Job job;
  job.id = job.caller_id = job.context_id = 1;
  job.script = "pass";
  job.script_type = "python";
  job.traceparent = kTraceparent;
  EXPECT_TRUE(validate(job).empty());
  job.traceparent = "00-nonsense";
  ASSERT_EQ(validate(job).size(), 1U);
  EXPECT_THAT(validate(job)[0].message, HasSubstr("traceparent"));
}

TEST(SpanIds, AreDeterministic) {
  EXPECT_EQ(compute_span_id(kTraceId, "a", "run"), compute_span_id(kTraceId, "a", "run"));
  EXPECT_NE(compute_span_id(kTraceId, "a", "run"), compute_span_id(kTraceId, "a", "wait"));
  EXPECT_NE(compute_span_id(kTraceId, "a", "run"), compute_span_id(kTraceId, "b", "run"));
  EXPECT_TRUE(parse_traceparent(make_child_traceparent(*parse_traceparent(kTraceparent), "a", "run")));
}

// A fake collector. Its sender can block until it is stopped (is_hanging), or fail (is_rejecting).
struct Collector {
  std::mutex mutex;
  std::condition_variable state_changed;
  bool is_hanging = false, is_rejecting = false;
  std::vector<nlohmann::json> spans;
  int call_count = 0;

  SpanSender make_sender() {
    return [this](const std::string& body, const std::atomic<bool>& stop) -> Result<void> {
      std::unique_lock lock(mutex);
      ++call_count;
      state_changed.notify_all();
      while (is_hanging && !stop) state_changed.wait_for(lock, std::chrono::milliseconds(10));
      if (is_hanging || is_rejecting) return fail(Code::unavailable, "no");
      const auto parsed = nlohmann::json::parse(body);
      for (const auto& span : parsed["resourceSpans"][0]["scopeSpans"][0]["spans"]) spans.push_back(span);
      state_changed.notify_all();
      return {};
    };
  }
  bool wait_until(const std::function<bool()>& condition) {
    std::unique_lock lock(mutex);
    return state_changed.wait_for(lock, std::chrono::seconds(30), condition);
  }
};

double read_span_count(Metrics& metrics, const std::string& result) {
  const std::string text = metrics.render(), line = "mycojobs_spans_total{result=\"" + result + "\"} ";
  const auto at = text.find(line);
  return at == std::string::npos ? 0 : std::stod(text.substr(at + line.size()));
}

TEST(TraceQueue, SpansArriveAsOtlp) {
  Collector collector;
  const auto metrics = Metrics::make();
  {
    const auto traces = start_traces({"mycojobs-agent", "host"}, collector.make_sender(), metrics);
    add_span(*traces, kTraceparent, "claim7",
             {"", "", "", "run", 1000001, 2000002, {{"mycojobs.job", "job:1:\xff"}}, "oom", SpanKind::consumer});
    add_span(*traces, "00-" + kTraceId + "-" + kSpanId + "-00", "x", {"", "", "", "not sampled"});
    add_span(*traces, "", "x", {"", "", "", "in no trace"});
  }  // The destructor sends the queued spans.
  ASSERT_EQ(collector.spans.size(), 1U);
  const auto& span = collector.spans[0];
  EXPECT_EQ(span["traceId"], kTraceId);
  EXPECT_EQ(span["parentSpanId"], kSpanId);
  EXPECT_EQ(span["spanId"], compute_span_id(kTraceId, "claim7", "run"));
  EXPECT_EQ(span["startTimeUnixNano"], "1000001000");
  EXPECT_EQ(span["endTimeUnixNano"], "2000002000");
  EXPECT_EQ(span["status"]["code"], 2);
  EXPECT_EQ(span["kind"], 5) << "SPAN_KIND_CONSUMER";
  EXPECT_EQ(read_span_count(*metrics, "exported"), 1);
}

TEST(TraceQueue, HangingCollectorCostsOnlyDroppedSpans) {
  Collector collector;
  collector.is_hanging = true;
  const auto metrics = Metrics::make();
  auto traces = start_traces({"mycojobs", "host"}, collector.make_sender(), metrics);
  constexpr std::size_t kSpanCount = Traces::kMaxQueuedSpans + 2000;
  for (std::size_t i = 0; i < kSpanCount; ++i) add_span(*traces, kTraceparent, std::to_string(i), {"", "", "", "run"});
  ASSERT_TRUE(collector.wait_until([&] { return collector.call_count > 0; }));
  EXPECT_GE(read_span_count(*metrics, "dropped"), 2000 - 512) << "all spans except those in the blocked batch";
  traces.reset();  // The destructor returns although the collector hangs.
  EXPECT_EQ(read_span_count(*metrics, "exported"), 0);
}

// The capacity of the queue is 4096 spans, so a full batch must not wait for the half second in which more spans are
// collected.
TEST(TraceQueue, FullBatchIsSentWithoutDelay) {
  constexpr std::size_t kBatchSpans = 512;
  Collector collector;
  const auto traces = start_traces({"mycojobs", "host"}, collector.make_sender(), no_metrics());
  auto min_duration = std::chrono::steady_clock::duration::max();
  for (std::size_t round = 1; round <= 5; ++round) {
    const auto start_time = std::chrono::steady_clock::now();
    add_span(*traces, kTraceparent, "first", {"", "", "", "run"});
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // The sender now waits for more spans.
    for (std::size_t i = 1; i < kBatchSpans; ++i)
      add_span(*traces, kTraceparent, std::to_string(i), {"", "", "", "run"});
    ASSERT_TRUE(collector.wait_until([&] { return collector.spans.size() == round * kBatchSpans; }));
    min_duration = std::min(min_duration, std::chrono::steady_clock::now() - start_time);
  }
  EXPECT_LT(min_duration, std::chrono::milliseconds(400));
}

TEST(TraceQueue, FailingCollectorIsRetriedLater) {
  Collector collector;
  collector.is_rejecting = true;
  const auto metrics = Metrics::make();
  const auto traces = start_traces({"mycojobs", "host"}, collector.make_sender(), metrics);
  add_span(*traces, kTraceparent, "1", {"", "", "", "run"});
  ASSERT_TRUE(test::eventually([&] { return read_span_count(*metrics, "dropped") == 1; }));
  {
    const std::lock_guard lock(collector.mutex);
    collector.is_rejecting = false;
  }
  add_span(*traces, kTraceparent, "2", {"", "", "", "run"});
  EXPECT_TRUE(collector.wait_until([&] { return collector.spans.size() == 1; }));
}

// Collects spans instead of sending them.
struct SpanRecorder final : Traces {
  bool is_enabled() const override { return true; }
  void add(Span span) override { spans.push_back(std::move(span)); }
  std::vector<Span> spans;
};

TEST(StoreSpans, ErrorEndsAndFailedNodesAreErrors) {
  SpanRecorder recorder;
  EndReport failed, succeeded;
  failed.claim = succeeded.claim = {1, "job:1:1", "id", "token", "python", kTraceparent, 2};
  failed.end.status = JobStatus::error;
  failed.end.detail = "oom";
  succeeded.end.status = JobStatus::finished;
  succeeded.end.detail = "ok";
  trace_reports(recorder, std::vector<Report>{failed, succeeded}, std::vector<Result<void>>{{}, {}}, {1, 2});
  FlowCommit commit;
  commit.traceparent = kTraceparent;
  commit.facts.emplace_back().kind = "node_queued";
  trace_commit(recorder, commit, {1, 2});
  commit.facts.emplace_back().kind = "node_failed";
  trace_commit(recorder, commit, {1, 2});
  ASSERT_EQ(recorder.spans.size(), 4U);
  EXPECT_EQ(recorder.spans[0].error, "oom");
  EXPECT_THAT(recorder.spans[0].attributes, testing::Contains(testing::Pair("mycojobs.attempt", "2")));
  EXPECT_EQ(recorder.spans[1].error, "");
  EXPECT_EQ(recorder.spans[2].error, "");
  EXPECT_EQ(recorder.spans[3].error, "node_failed");
}

TEST(StoreSpans, UnfinishedFlowIsAnErrorWithOrWithoutAReason) {
  SpanRecorder recorder;
  FlowCommit commit;
  commit.traceparent = kTraceparent;
  commit.ended = true;
  const Fields time_fields{{"started_ms", "1"}, {"ended_ms", "2"}};
  for (const Fields& status_fields :
       {Fields{{"status", "finished"}}, Fields{{"status", "error"}, {"error", "node a: exit 1"}},
        Fields{{"status", "error"}}}) {
    commit.record_fields = time_fields;
    commit.record_fields.insert(commit.record_fields.end(), status_fields.begin(), status_fields.end());
    trace_commit(recorder, commit, {1, 2});
  }
  ASSERT_EQ(recorder.spans.size(), 3U);
  EXPECT_EQ(recorder.spans[0].error, "");
  EXPECT_EQ(recorder.spans[1].error, "node a: exit 1");
  EXPECT_EQ(recorder.spans[2].error, "error");
}

}  // namespace
}  // namespace mycojobs
