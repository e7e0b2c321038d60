// What the store's calls have done, as spans of the traces that jobs and flows stand in (docs/tracing.md).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mycojobs/flows.h"
#include "mycojobs/store.h"
#include "traces/traces.h"

namespace mycojobs {

// When a call began and ended, by the clock of this host.
struct CallTime {
  std::uint64_t start_us = 0, end_us = 0;
};

// A new job or flow: its record stands in the trace from now on below a span of its submission. Without a trace, where
// spans are wanted, one begins. Returns the span, for end_submission() once it is stored; nothing: none is wanted.
std::optional<Span> begin_submission(const Traces&, Fields& record);
void end_submission(Traces&, std::optional<Span>&, const std::string& key);

void trace_claims(Traces&, const ClaimReply&, CallTime);
void trace_reports(Traces&, std::span<const Report>, std::span<const Result<void>> answers, CallTime);
// What the jobs that this commit queues have as their context: below its span, if there is one.
std::string context_of_step(const Traces&, const FlowCommit&);
void trace_commit(Traces&, const FlowCommit&, CallTime);

}  // namespace mycojobs
