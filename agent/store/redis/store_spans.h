// Trace spans of store calls, in the traces of jobs and flows (docs/tracing.md). Thread-safe. No spans are recorded if
// Traces::is_enabled() is false.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "store/claim_store.h"
#include "store/flow_store.h"
#include "telemetry/traces.h"

namespace mycojobs {

// Start and end of a call by the clock of this host.
struct CallTime {
  std::uint64_t start_us = 0, end_us = 0;
};

// Starts the span of the submission of a job or flow, and sets the `traceparent` of its record to this span, so that
// later spans become its children. A record without a trace gets a new trace. Returns the span for end_submission(), to
// be called when the record is stored, or nullopt if no span is recorded, because traces are off or the trace is not
// sampled.
std::optional<Span> begin_submission(const Traces&, Fields& record);
void end_submission(Traces&, std::optional<Span>&, const std::string& key);

void trace_claims(Traces&, const ClaimReply&, CallTime);
void trace_reports(Traces&, std::span<const Report>, std::span<const Result<void>> answers, CallTime);
// Returns the `traceparent` for the jobs that this commit queues: a child of the commit's span if it has one, otherwise
// the flow's `traceparent`.
std::string step_traceparent(const Traces&, const FlowCommit&);
void trace_commit(Traces&, const FlowCommit&, CallTime);

}  // namespace mycojobs
