// Where a piece of work stands in a trace, as W3C Trace Context says it (www.w3.org/TR/trace-context, `traceparent`):
//
//   00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
//      trace                            span             flags: 01: it is recorded
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "mycojobs/result.h"

namespace mycojobs {

struct TraceContext {
  std::string trace_id, span_id;  // 32 and 16 digits, lower-case hex, not all 0
  bool sampled = true;            // whoever began it wants it recorded
  bool operator==(const TraceContext&) const = default;
};

// Nothing: it is none. Of a newer version what we know of it counts, as the specification wants it.
std::optional<TraceContext> parse_traceparent(std::string_view text);
std::string traceparent(const TraceContext&);  // of version 00
// What was typed, or stands in a record; empty: there is none. Error invalid, without a field's name in front.
Result<void> check_traceparent(std::string_view text);

// How a line of a log names a job, say: `job:12:1`, and of one in a trace `job:12:1 (trace 4bf9...)`.
std::string in_trace(std::string_view name, std::string_view traceparent);

// The id of a span that everybody who knows these words works out alike: of one claim of a job, say. 16 digits.
std::string span_id_of(std::string_view trace_id, std::string_view of, std::string_view name);
// The same context with that span in place of its own.
std::string child_of(const TraceContext&, std::string_view of, std::string_view name);

}  // namespace mycojobs
