// Sends the spans of this process to a collector (OTLP/HTTP JSON): docs/tracing.md.
//
//   any thread --add()--> queue of at most kMaxQueuedSpans spans --one thread, in batches--> SpanSender
//
// Callers of add() never wait for the collector. While the collector is slow or unavailable, spans that exceed the
// queue and batches that could not be sent are dropped. mycojobs_spans_total counts sent and dropped spans. A process
// has one object, which is created with its components; each test has its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "model/trace_context.h"
#include "telemetry/metrics.h"

namespace mycojobs {

enum class SpanKind { internal = 1, producer = 4, consumer = 5 };  // Numbers of OTLP.

struct Span {
  std::string trace_id, span_id, parent_id;
  std::string name;
  std::uint64_t start_us = 0, end_us = 0;  // Microseconds since the Unix epoch.
  std::vector<std::pair<std::string, std::string>> attributes = {};
  std::string error = {};  // Empty if the operation succeeded.
  SpanKind kind = SpanKind::internal;
};

// The properties that all spans of a process share.
struct TraceSource {
  std::string service_name;  // "mycojobs-agent", "mycojobs-coordinator" or "mycojobs".
  std::string host_name;
};

// Returns the body of a request to the collector, an ExportTraceServiceRequest in JSON.
std::string encode_otlp_request(const TraceSource&, const std::vector<Span>&);

class Traces {
 public:
  static constexpr std::size_t kMaxQueuedSpans = 4096;
  // Sends queued spans for at most half a second. A call of the SpanSender that has started ends within one more
  // second.
  virtual ~Traces() = default;
  // Returns false if spans are dropped, so that the caller can skip work for them.
  virtual bool is_enabled() const = 0;
  virtual void add(Span) = 0;  // Thread-safe. Does not block.
};

// Returns an object that drops all spans.
std::shared_ptr<Traces> no_traces();
// Sends a body to the collector. May block, but returns within a second after `stop` has become true. Called by one
// thread.
using SpanSender = std::function<Result<void>(const std::string& body, const std::atomic<bool>& stop)>;
// Starts the thread that sends. If the thread cannot be created, logs the error and returns no_traces().
std::shared_ptr<Traces> start_traces(TraceSource, SpanSender, std::shared_ptr<Metrics>);

// Returns the time since the Unix epoch in microseconds.
std::uint64_t unix_us();
// Adds a span as a child of the context in `traceparent`, if the text is a valid context of a sampled trace and
// `traces` is enabled. The span id is computed from `span_seed` and the name of the span (compute_span_id() in
// model/trace_context.h), so that other processes can compute the id of the span, too.
void add_span(Traces&, const std::string& traceparent, std::string_view span_seed, Span);

}  // namespace mycojobs
