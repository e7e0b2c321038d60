// Spans of what this process does, on their way to a collector (OTLP/HTTP JSON): docs/tracing.md.
//
//   any thread --add()--> at most kMostWaiting spans --one thread, in batches--> send
//
// Nobody waits for the collector. While it is slow or away, what does not fit is dropped, and what could not be sent:
// mycojobs_spans_total counts both. One object a process, made where its parts are wired; tests have one each.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "domain/trace_context.h"
#include "metrics/metrics.h"
#include "mycojobs/result.h"

namespace mycojobs {

enum class SpanKind { internal = 1, producer = 4, consumer = 5 };  // the numbers are OTLP's

struct Span {
  std::string trace_id, span_id, parent_id;
  std::string name;
  std::uint64_t start_us = 0, end_us = 0;  // since 1970
  std::vector<std::pair<std::string, std::string>> attributes = {};
  std::string error = {};  // empty: it went well
  SpanKind kind = SpanKind::internal;
};

// What every span of a process says of it.
struct TraceSource {
  std::string service;  // mycojobs-agent, mycojobs-coordinator, mycojobs
  std::string host;
};

std::string otlp_json(const TraceSource&, const std::vector<Span>&);

class Traces {
 public:
  static constexpr std::size_t kMostWaiting = 4096;
  virtual ~Traces() = default;  // sends what waits, for half a second at most; a call under way ends within one more
  virtual bool wanted() const = 0;  // somebody takes spans
  virtual void add(Span) = 0;       // any thread; does not wait
};

// Spans of nobody.
std::shared_ptr<Traces> no_traces();
// Sends a body; may take its time, but ends within a second once `stop` is true. Called by one thread.
using SendSpans = std::function<Result<void>(const std::string& body, const std::atomic<bool>& stop)>;
std::shared_ptr<Traces> start_traces(TraceSource, SendSpans, std::shared_ptr<Metrics>);

std::uint64_t unix_us();
// A span named `name`, a child of what the text says, if that is a context whose trace is recorded and somebody takes
// spans. of: as span_id_of().
void add_span(Traces&, const std::string& traceparent, std::string_view of, Span);

}  // namespace mycojobs
