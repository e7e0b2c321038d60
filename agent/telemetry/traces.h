// Sends the spans of this process to a collector (OTLP/HTTP JSON): docs/tracing.md.
//
//   any thread --add()--> at most kMaxWaiting spans --one thread, in batches--> send
//
// No caller waits for the collector. While the collector is slow or unavailable, spans over the limit and spans that
// could not be sent are dropped: mycojobs_spans_total counts both. A process has one object, which is created with its
// components; each test has its own.
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

enum class SpanKind { internal = 1, producer = 4, consumer = 5 };  // numbers of OTLP

struct Span {
  std::string trace_id, span_id, parent_id;
  std::string name;
  std::uint64_t start_us = 0, end_us = 0;  // since 1970
  std::vector<std::pair<std::string, std::string>> attributes = {};
  std::string error = {};  // empty: success
  SpanKind kind = SpanKind::internal;
};

// The properties that all spans of a process share.
struct TraceSource {
  std::string service;  // mycojobs-agent, mycojobs-coordinator, mycojobs
  std::string host;
};

std::string otlp_json(const TraceSource&, const std::vector<Span>&);

class Traces {
 public:
  static constexpr std::size_t kMaxWaiting = 4096;
  // Sends waiting spans for at most half a second; a call under way ends within one more second.
  virtual ~Traces() = default;
  virtual bool wanted() const = 0;  // spans are sent
  virtual void add(Span) = 0;       // thread-safe; does not wait
};

// Drops all spans.
std::shared_ptr<Traces> no_traces();
// Sends a body. May block, but ends within a second after `stop` is true. Called by one thread.
using SendSpans = std::function<Result<void>(const std::string& body, const std::atomic<bool>& stop)>;
std::shared_ptr<Traces> start_traces(TraceSource, SendSpans, std::shared_ptr<Metrics>);

std::uint64_t unix_us();
// Adds a span named `name` as a child of the context in `traceparent`, if that text is a valid context of a recorded
// trace and spans are sent. of: see span_id_of().
void add_span(Traces&, const std::string& traceparent, std::string_view of, Span);

}  // namespace mycojobs
