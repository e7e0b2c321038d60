// Trace contexts (W3C Trace Context), and the export of spans to a collector.
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

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736", kSpan = "00f067aa0ba902b7";
const std::string kContext = "00-" + kTrace + "-" + kSpan + "-01";

TEST(TraceContext, LogLineNamesTheTraceOfItsJob) {
  EXPECT_EQ(append_trace_id("job:12:1", kContext), "job:12:1 (trace " + kTrace + ")");
  EXPECT_EQ(append_trace_id("job:12:1", ""), "job:12:1");
  EXPECT_EQ(append_trace_id("job:12:1", "what a client wrote"), "job:12:1");
}

TEST(Traceparent, IsParsedAsSpecified) {
  const auto read = parse_traceparent(kContext);
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, (TraceContext{kTrace, kSpan, true}));
  EXPECT_EQ(to_traceparent(*read), kContext);
  EXPECT_FALSE(parse_traceparent("00-" + kTrace + "-" + kSpan + "-00")->sampled);
  EXPECT_TRUE(parse_traceparent("00-" + kTrace + "-" + kSpan + "-0f")->sampled) << "unknown flags are ignored";
  EXPECT_TRUE(parse_traceparent("cc-" + kTrace + "-" + kSpan + "-01-what a newer version adds"));
}

TEST(Traceparent, InvalidTraceparentIsRejected) {
  const std::string zeros(32, '0');
  for (const std::string& text :
       {std::string("x"), kContext + "-", kContext + "0", kContext.substr(1), "ff" + kContext.substr(2),
        "0g" + kContext.substr(2), "00-" + zeros + "-" + kSpan + "-01", "00-" + kTrace + "-" + zeros.substr(16) + "-01",
        "00-" + kTrace + "_" + kSpan + "-01", "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + kSpan + "-01", ' ' + kContext,
        "cc-" + kTrace + "-" + kSpan + "-01x", kContext + '\n', std::string(55, '\0')}) {
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
  job.traceparent = kContext;
  EXPECT_TRUE(validate(job).empty());
  job.traceparent = "00-nonsense";
  ASSERT_EQ(validate(job).size(), 1U);
  EXPECT_THAT(validate(job)[0].message, HasSubstr("traceparent"));
}

TEST(SpanIds, AreDeterministic) {
  EXPECT_EQ(compute_span_id(kTrace, "a", "run"), compute_span_id(kTrace, "a", "run"));
  EXPECT_NE(compute_span_id(kTrace, "a", "run"), compute_span_id(kTrace, "a", "wait"));
  EXPECT_NE(compute_span_id(kTrace, "a", "run"), compute_span_id(kTrace, "b", "run"));
  EXPECT_TRUE(parse_traceparent(make_child_traceparent(*parse_traceparent(kContext), "a", "run")));
}

// A fake collector that can hang or reject.
struct Collector {
  std::mutex mutex;
  std::condition_variable changed;
  bool hangs = false, refuses = false;
  std::vector<nlohmann::json> spans;
  int calls = 0;

  SendSpans make_sender() {
    return [this](const std::string& body, const std::atomic<bool>& stop) -> Result<void> {
      std::unique_lock lock(mutex);
      ++calls;
      changed.notify_all();
      while (hangs && !stop) changed.wait_for(lock, std::chrono::milliseconds(10));
      if (hangs || refuses) return fail(Code::unavailable, "no");
      const auto read = nlohmann::json::parse(body);
      for (const auto& span : read["resourceSpans"][0]["scopeSpans"][0]["spans"]) spans.push_back(span);
      changed.notify_all();
      return {};
    };
  }
  bool wait(const std::function<bool()>& until) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(30), until);
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
    add_span(*traces, kContext, "claim7",
             {"", "", "", "run", 1000001, 2000002, {{"mycojobs.job", "job:1:\xff"}}, "oom", SpanKind::consumer});
    add_span(*traces, "00-" + kTrace + "-" + kSpan + "-00", "x", {"", "", "", "not sampled"});
    add_span(*traces, "", "x", {"", "", "", "in no trace"});
  }  // the destructor sends the queued spans
  ASSERT_EQ(collector.spans.size(), 1U);
  const auto& span = collector.spans[0];
  EXPECT_EQ(span["traceId"], kTrace);
  EXPECT_EQ(span["parentSpanId"], kSpan);
  EXPECT_EQ(span["spanId"], compute_span_id(kTrace, "claim7", "run"));
  EXPECT_EQ(span["startTimeUnixNano"], "1000001000");
  EXPECT_EQ(span["endTimeUnixNano"], "2000002000");
  EXPECT_EQ(span["status"]["code"], 2);
  EXPECT_EQ(span["kind"], 5) << "SPAN_KIND_CONSUMER";
  EXPECT_EQ(read_span_count(*metrics, "exported"), 1);
}

TEST(TraceQueue, HangingCollectorCostsOnlyDroppedSpans) {
  Collector collector;
  collector.hangs = true;
  const auto metrics = Metrics::make();
  auto traces = start_traces({"mycojobs", "host"}, collector.make_sender(), metrics);
  constexpr std::size_t kSpans = Traces::kMaxQueuedSpans + 2000;
  for (std::size_t i = 0; i < kSpans; ++i) add_span(*traces, kContext, std::to_string(i), {"", "", "", "run"});
  ASSERT_TRUE(collector.wait([&] { return collector.calls > 0; }));
  EXPECT_GE(read_span_count(*metrics, "dropped"), 2000 - 512) << "all spans except those in the blocked batch";
  traces.reset();  // the destructor returns although the collector hangs
  EXPECT_EQ(read_span_count(*metrics, "exported"), 0);
}

// The queue has room for 4096 spans only, so a full batch must not wait for the half second in which spans are
// gathered.
TEST(TraceQueue, FullBatchIsSentAtOnce) {
  constexpr std::size_t kFull = 512;
  Collector collector;
  const auto traces = start_traces({"mycojobs", "host"}, collector.make_sender(), no_metrics());
  auto best = std::chrono::steady_clock::duration::max();
  for (std::size_t round = 1; round <= 5; ++round) {
    const auto began = std::chrono::steady_clock::now();
    add_span(*traces, kContext, "first", {"", "", "", "run"});
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the queue now waits for more spans
    for (std::size_t i = 1; i < kFull; ++i) add_span(*traces, kContext, std::to_string(i), {"", "", "", "run"});
    ASSERT_TRUE(collector.wait([&] { return collector.spans.size() == round * kFull; }));
    best = std::min(best, std::chrono::steady_clock::now() - began);
  }
  EXPECT_LT(best, std::chrono::milliseconds(400));
}

TEST(TraceQueue, FailingCollectorIsRetriedLater) {
  Collector collector;
  collector.refuses = true;
  const auto metrics = Metrics::make();
  const auto traces = start_traces({"mycojobs", "host"}, collector.make_sender(), metrics);
  add_span(*traces, kContext, "1", {"", "", "", "run"});
  ASSERT_TRUE(test::eventually([&] { return read_span_count(*metrics, "dropped") == 1; }));
  {
    const std::lock_guard lock(collector.mutex);
    collector.refuses = false;
  }
  add_span(*traces, kContext, "2", {"", "", "", "run"});
  EXPECT_TRUE(collector.wait([&] { return collector.spans.size() == 1; }));
}

// Collects spans instead of sending them.
struct RecordedSpans final : Traces {
  bool is_enabled() const override { return true; }
  void add(Span span) override { spans.push_back(std::move(span)); }
  std::vector<Span> spans;
};

TEST(StoreSpans, ErrorEndsAndFailedNodesAreErrors) {
  RecordedSpans recorded;
  EndReport failed, succeeded;
  failed.claim = succeeded.claim = {1, "job:1:1", "id", "token", "python", kContext, 2};
  failed.end.status = JobStatus::error;
  failed.end.detail = "oom";
  succeeded.end.status = JobStatus::finished;
  succeeded.end.detail = "ok";
  trace_reports(recorded, std::vector<Report>{failed, succeeded}, std::vector<Result<void>>{{}, {}}, {1, 2});
  FlowCommit commit;
  commit.traceparent = kContext;
  commit.facts.emplace_back().kind = "node_queued";
  trace_commit(recorded, commit, {1, 2});
  commit.facts.emplace_back().kind = "node_failed";
  trace_commit(recorded, commit, {1, 2});
  ASSERT_EQ(recorded.spans.size(), 4U);
  EXPECT_EQ(recorded.spans[0].error, "oom");
  EXPECT_THAT(recorded.spans[0].attributes, testing::Contains(testing::Pair("mycojobs.attempt", "2")));
  EXPECT_EQ(recorded.spans[1].error, "");
  EXPECT_EQ(recorded.spans[2].error, "");
  EXPECT_EQ(recorded.spans[3].error, "node_failed");
}

TEST(StoreSpans, UnfinishedFlowIsAnErrorWithOrWithoutAReason) {
  RecordedSpans recorded;
  FlowCommit commit;
  commit.traceparent = kContext;
  commit.ended = true;
  const Fields times{{"started_ms", "1"}, {"ended_ms", "2"}};
  for (const Fields& more : {Fields{{"status", "finished"}}, Fields{{"status", "error"}, {"error", "node a: exit 1"}},
                             Fields{{"status", "error"}}}) {
    commit.record_fields = times;
    commit.record_fields.insert(commit.record_fields.end(), more.begin(), more.end());
    trace_commit(recorded, commit, {1, 2});
  }
  ASSERT_EQ(recorded.spans.size(), 3U);
  EXPECT_EQ(recorded.spans[0].error, "");
  EXPECT_EQ(recorded.spans[1].error, "node a: exit 1");
  EXPECT_EQ(recorded.spans[2].error, "error");
}

}  // namespace
}  // namespace mycojobs
