// The position of a unit of work in a trace, as in W3C Trace Context (www.w3.org/TR/trace-context, `traceparent`):
//
//   00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
//      trace                            span             flags: 01: it is recorded
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace mycojobs {

struct TraceContext {
  std::string trace_id, span_id;  // 32 and 16 digits, lower-case hex, not all 0
  bool sampled = true;            // the creator of the trace requests recording
  bool operator==(const TraceContext&) const = default;
};

// Returns no value if the text is invalid. For a newer version, the known parts are used, as the specification
// requires.
std::optional<TraceContext> parse_traceparent(std::string_view text);
std::string to_traceparent(const TraceContext&);  // in version 00
// Checks a typed or stored value; an empty text is valid. Error invalid, without the name of a field.
Result<void> check_traceparent(std::string_view text);

// Returns the name of a job, for example, in a log line: `job:12:1`, or `job:12:1 (trace 4bf9...)` for a job in a
// trace.
std::string append_trace_id(std::string_view name, std::string_view traceparent);

// Returns a span id of 16 digits that is a function of the arguments, so that all components compute the same id, for
// example for one claim of a job.
std::string compute_span_id(std::string_view trace_id, std::string_view owner, std::string_view name);
// Returns the traceparent of the span that compute_span_id() identifies.
std::string make_child_traceparent(const TraceContext&, std::string_view owner, std::string_view name);

}  // namespace mycojobs
