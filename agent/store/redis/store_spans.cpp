#include "store/redis/store_spans.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/random.h"
#include "model/codec.h"
#include "model/enums.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kUsPerMs = 1000;  // microseconds of a millisecond
constexpr const char* kStep = "flow step";
constexpr const char* kNodeFailed = "node_failed";  // kind of a fact

std::string flow_name(const FlowCommit& commit) {
  return std::to_string(commit.context) + " flow:" + std::to_string(commit.flow);
}
std::string step_name(const FlowCommit& commit) {
  return flow_name(commit) + ' ' + std::to_string(commit.expected_revision);
}

}  // namespace

std::optional<Span> begin_submission(const Traces& traces, Fields& record) {
  constexpr std::size_t kTraceBytes = 16, kSpanBytes = 8;
  if (!traces.is_enabled()) return std::nullopt;
  auto field =
      std::find_if(record.begin(), record.end(), [](const auto& entry) { return entry.first == "traceparent"; });
  if (field == record.end()) field = record.insert(field, {"traceparent", ""});
  const auto context = parse_traceparent(field->second);
  if (context && !context->sampled) return std::nullopt;
  Span span;
  span.name = "submit";
  span.kind = SpanKind::producer;
  span.trace_id = context ? context->trace_id : random_hex(kTraceBytes);
  span.parent_id = context ? context->span_id : "";
  span.span_id = random_hex(kSpanBytes);
  span.start_us = unix_us();
  field->second = to_traceparent({span.trace_id, span.span_id, true});
  return span;
}

void end_submission(Traces& traces, std::optional<Span>& span, const std::string& key) {
  if (!span) return;
  span->end_us = unix_us();
  span->attributes = {{"mycojobs.of", key}};
  traces.add(*std::exchange(span, std::nullopt));
}

// The span `claim` has the time of this host. The span `wait` has the times of the record, which are those of Redis.
void trace_claims(Traces& traces, const ClaimReply& reply, CallTime call) {
  if (!traces.is_enabled()) return;
  for (const ClaimedJob& job : reply.jobs) {
    const ClaimRef& claim = job.ref;
    const std::string attempt = std::to_string(job.attempt);
    Span span{"",
              "",
              "",
              "claim",
              call.start_us,
              call.end_us,
              {{"mycojobs.job", claim.job_key}, {"mycojobs.attempt", attempt}},
              "",
              SpanKind::consumer};
    add_span(traces, claim.traceparent, claim.claim_id, span);
    const std::uint64_t ready_ms = std::max(number_of(job.record, "queued_ms"), number_of(job.record, "run_at_ms"));
    const std::uint64_t started_ms = number_of(job.record, "started_ms");
    if (ready_ms == 0 || started_ms < ready_ms || job.attempt > 1 || job.deliveries > 1) continue;
    add_span(traces, claim.traceparent, claim.claim_id,
             {"",
              "",
              "",
              "wait",
              ready_ms * kUsPerMs,
              started_ms * kUsPerMs,
              {{"mycojobs.job", claim.job_key}, {"mycojobs.queue", job.queue}}});
  }
}

void trace_reports(Traces& traces, std::span<const Report> reports, std::span<const Result<void>> answers,
                   CallTime call) {
  if (!traces.is_enabled()) return;
  for (std::size_t i = 0; i < std::min(reports.size(), answers.size()); ++i) {
    const auto* ended = std::get_if<EndReport>(&reports[i]);
    if (ended == nullptr) continue;
    Span span{"",
              "",
              "",
              "store",
              call.start_us,
              call.end_us,
              {{"mycojobs.job", ended->claim.job_key},
               {"mycojobs.attempt", std::to_string(ended->claim.attempt)},
               {"mycojobs.status", std::string(to_string(ended->end.status))},
               {"mycojobs.detail", ended->end.detail}}};
    if (ended->end.status == JobStatus::error) span.error = ended->end.detail;
    if (!answers[i]) span.error = answers[i].error().message;
    add_span(traces, ended->claim.traceparent, ended->claim.claim_id, std::move(span));
  }
}

std::string step_traceparent(const Traces& traces, const FlowCommit& commit) {
  const auto context = parse_traceparent(commit.traceparent);
  if (!context || !context->sampled || !traces.is_enabled()) return commit.traceparent;
  return make_child_traceparent(*context, step_name(commit), kStep);
}

void trace_commit(Traces& traces, const FlowCommit& commit, CallTime call) {
  if (!traces.is_enabled() || commit.traceparent.empty()) return;
  const std::string flow = "flow:" + std::to_string(commit.flow);
  if (!commit.facts.empty() || !commit.dispatches.empty()) {
    std::set<std::string> kinds;
    for (const RunFact& fact : commit.facts) kinds.insert(fact.kind);
    std::string facts;
    for (const std::string& kind : kinds) facts += (facts.empty() ? "" : " ") + kind;
    Span step{"",
              "",
              "",
              kStep,
              call.start_us,
              call.end_us,
              {{"mycojobs.flow", flow},
               {"mycojobs.facts", facts},
               {"mycojobs.dispatched", std::to_string(commit.dispatches.size())}}};
    if (kinds.contains(kNodeFailed)) step.error = kNodeFailed;
    add_span(traces, commit.traceparent, step_name(commit), std::move(step));
  }
  const std::uint64_t started_ms = number_of(commit.record_fields, "started_ms"),
                      ended_ms = number_of(commit.record_fields, "ended_ms");
  if (!commit.ended || started_ms == 0 || ended_ms == 0) return;
  Span flow_span{"",
                 "",
                 "",
                 "flow",
                 started_ms * kUsPerMs,
                 ended_ms * kUsPerMs,
                 {{"mycojobs.flow", flow},
                  {"mycojobs.status", std::string(field_of(commit.record_fields, "status"))},
                  {"mycojobs.detail", std::string(field_of(commit.record_fields, "detail"))}}};
  if (const std::string_view status = field_of(commit.record_fields, "status");
      status != to_string(FlowStatus::finished)) {
    const std::string_view error = field_of(commit.record_fields, "error");
    flow_span.error = error.empty() ? status : error;  // an empty error would mean success
  }
  add_span(traces, commit.traceparent, flow_name(commit), std::move(flow_span));
}

}  // namespace mycojobs
