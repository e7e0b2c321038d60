#include "store/redis/store_metrics.h"

#include <algorithm>
#include <array>

#include "model/codec.h"
#include "model/enums.h"
#include "store/job_fields.h"
#include "store/keys.h"

namespace mycojobs {
namespace {

// Valid values of `detail` at the end of a job (docs/protocol.md).
constexpr std::array kDetails = std::to_array<std::string_view>(
    {"ok",           "exit",           "signal",      "exception",     "timeout",        "timeout_cpu",
     "oom",          "output_limit",   "file_limit",  "pids_limit",    "violation",      "result_too_large",
     "setup_error",  "cancelled",      "dead_letter", "artifact_lost", "artifact_store", "dependency_failed",
     "prerequisite", "policy_refused", "lost",        "unkillable",    "quota",          "result_quota"});

std::string_view detail_label(std::string_view detail) {
  return std::find(kDetails.begin(), kDetails.end(), detail) == kDetails.end() ? "other" : detail;
}

bool is_word(std::string_view text) {
  constexpr std::size_t kMaxLength = 32;
  return !text.empty() && text.size() <= kMaxLength &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-") == std::string_view::npos;
}

constexpr std::string_view kQueuePrefix = "queue:";

// Details for which initialize_series() creates series. The other details are rare, and would only add empty series.
constexpr std::array kUsualErrors =
    std::to_array<std::string_view>({"exit", "signal", "exception", "timeout", "timeout_cpu", "oom", "violation",
                                     "setup_error", "cancelled", "dead_letter", "lost"});

}  // namespace

const TypeNames& built_in_types() {
  static const TypeNames names{"python", "v", "sal", "osis", "native", "rust", "command"};
  return names;
}

std::string_view script_type_label(std::string_view script_type, const TypeNames& served) {
  const bool is_known =
      built_in_types().contains(script_type) || (is_word(script_type) && served.contains(script_type));
  return is_known ? script_type : "other";
}

// A claim from the queue of a type proves that a runner serves this type, so its name needs no check.
std::string job_type_label(std::string_view queue, const Fields& record, const TypeNames& served) {
  if (queue.starts_with(kQueuePrefix)) return std::string(queue.substr(kQueuePrefix.size()));
  return std::string(script_type_label(field_of(record, "script_type"), served));
}

std::string_view queue_label(std::string_view queue, const TypeNames& served) {
  if (queue.starts_with(kQueuePrefix)) return script_type_label(queue.substr(kQueuePrefix.size()), served);
  if (queue.starts_with(kRunnerQueueKey)) return "runner";
  return queue.starts_with(kRouterQueueKey) ? "router" : "other";
}

void initialize_series(Metrics& metrics, Id context, std::span<const std::string> types) {
  if (!metrics.is_enabled()) return;
  for (const char* operation : {"report", "renewal"}) metrics.add(Metric::stale_writes, {context, operation}, 0);
  for (const char* was_started : {"true", "false"}) metrics.add(Metric::releases, {context, was_started}, 0);
  metrics.add(Metric::queue_entries_dropped, {context}, 0);
  for (const std::string& type : types) {
    metrics.add(Metric::attempts, {context, type, to_string(JobStatus::error), "setup_error"}, 0);
    metrics.add(Metric::job_ends, {context, type, to_string(JobStatus::finished), "ok"}, 0);
    for (const std::string_view detail : kUsualErrors)
      metrics.add(Metric::job_ends, {context, type, to_string(JobStatus::error), detail}, 0);
  }
}

void count_claims(Metrics& metrics, Id context, const ClaimReply& reply) {
  if (!metrics.is_enabled()) return;
  if (reply.skipped_entries > 0) metrics.add(Metric::queue_entries_dropped, {context}, reply.skipped_entries);
  for (const ClaimedJob& job : reply.jobs) {
    metrics.add(Metric::claims, {context, job.ref.script_type});
    if (job.deliveries > 1 || job.attempt > 1) continue;
    const std::uint64_t ready_ms = std::max(number_of(job.record, "queued_ms"), number_of(job.record, "run_at_ms"));
    const std::uint64_t started_ms = number_of(job.record, "started_ms");
    // The time is missing if another client pushed the job; the order is wrong if the clock was set back.
    if (ready_ms == 0 || started_ms < ready_ms) continue;
    metrics.observe(Metric::pickup_time, {context}, static_cast<double>(started_ms - ready_ms) / 1000);
  }
}

void count_renewals(Metrics& metrics, Id context, std::span<const Renewal> renewals) {
  if (!metrics.is_enabled()) return;
  const auto stale = std::count(renewals.begin(), renewals.end(), Renewal::stale);
  metrics.add(Metric::renewals, {context}, static_cast<double>(renewals.size() - static_cast<std::size_t>(stale)));
  if (stale > 0) metrics.add(Metric::stale_writes, {context, "renewal"}, static_cast<double>(stale));
}

void count_reports(Metrics& metrics, Id context, std::span<const Report> reports,
                   std::span<const Result<void>> answers) {
  if (!metrics.is_enabled()) return;
  for (std::size_t i = 0; i < std::min(reports.size(), answers.size()); ++i) {
    if (!answers[i]) {
      if (answers[i].error().code == Code::stale_claim) metrics.add(Metric::stale_writes, {context, "report"});
    } else if (const auto* ended = std::get_if<EndReport>(&reports[i])) {
      const std::string_view status = to_string(ended->end.status), detail = detail_label(ended->end.detail);
      const std::string& type = ended->claim.script_type;
      metrics.add(Metric::attempts, {context, type, status, detail});
      if (!ended->retry_after_ms) metrics.add(Metric::job_ends, {context, type, status, detail});
    } else if (const auto* release = std::get_if<Release>(&reports[i])) {
      metrics.add(Metric::releases, {context, release->was_started ? "true" : "false"});
    } else if (std::holds_alternative<AwaitInputs>(reports[i])) {
      metrics.add(Metric::releases, {context, "false"});
    }
  }
}

void count_tick(Metrics& metrics, Id context, const TickReply& reply) {
  if (!metrics.is_enabled()) return;
  const std::array<std::pair<const char*, std::uint32_t>, 5> counters{{{"due", reply.queued},
                                                                       {"settled", reply.woken_dependents},
                                                                       {"missing", reply.missing_records},
                                                                       {"overdue", reply.timed_out},
                                                                       {"retired", reply.retired}}};
  for (const auto& [kind, jobs] : counters) {
    if (jobs > 0) metrics.add(Metric::job_transitions, {context, kind}, jobs);
  }
}

void count_submitted(Metrics& metrics, std::span<const Job> jobs, const NewJobs& result, const TypeNames& served) {
  if (!metrics.is_enabled()) return;
  for (std::size_t i = 0; i < std::min(jobs.size(), result.jobs.size()); ++i) {
    if (!result.existed[i])
      metrics.add(Metric::jobs_submitted, {jobs[i].context_id, script_type_label(jobs[i].script_type, served)});
  }
}

void count_commit(Metrics& metrics, const FlowCommit& commit) {
  if (!metrics.is_enabled()) return;
  metrics.add(Metric::flow_commits, {commit.context, "ok"});
  for (const RunFact& fact : commit.facts) metrics.add(Metric::flow_facts, {commit.context, fact.kind});
  if (!commit.ended) return;
  for (const auto& [field, value] : commit.record_fields) {
    if (field == "status" && is_word(value)) metrics.add(Metric::flow_ends, {commit.context, value});
  }
}

}  // namespace mycojobs
