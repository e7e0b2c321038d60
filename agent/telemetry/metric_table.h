// The table of all metrics that /metrics of an agent and of a coordinator prints. docs/metrics/README.md has the same
// list; a test compares them. The help text of a metric (MetricRow::help) defines the metric.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace mycojobs {

enum class Metric : std::size_t {
  // State and resource usage of the process.
  build_info,
  ready,
  process_start_time,
  process_cpu_time,
  resident_memory,
  open_files,
  metric_values_folded,
  spans,
  // Calls of the store.
  store_calls,
  store_errors,
  redis_connections,
  redis_tls,
  redis_certificate_expiry,
  api_certificate_expiry,
  // Changes of jobs, and requests that the table of rights denied (refusals).
  jobs_submitted,
  claims,
  queue_entries_dropped,
  pickup_time,
  attempts,
  job_ends,
  releases,
  stale_writes,
  renewals,
  leases_expired,
  job_transitions,
  refusals,
  // Slots, runs and sandboxes of an agent.
  slots,
  jobs_active,
  leases_held,
  run_time,
  run_cpu,
  sandbox_setup,
  sandboxes,
  zygotes,
  launcher_restarts,
  artifact_bytes,
  artifact_quota,
  transfers,
  transfer_bytes,
  artifact_uploads,
  artifact_cache,
  // Contexts, flows, workflows and messages of a coordinator, and its API.
  leadership,
  queue_jobs,
  queue_oldest,
  queue_paused,
  jobs_by_state,
  dead_letters,
  stored_bytes,
  stored_quota,
  flows_active,
  gates_waiting,
  flow_commits,
  flow_facts,
  flow_ends,
  workflow_commits,
  workflow_steps,
  workflow_effects,
  messages,
  deliveries,
  pending_messages,
  rpc_calls,
  http_refusals,
};
inline constexpr std::size_t kMetricCount = static_cast<std::size_t>(Metric::http_refusals) + 1;

enum class MetricKind { counter, gauge, histogram };
std::string_view to_string(MetricKind);

struct MetricRow {
  Metric metric;
  std::string_view name;
  MetricKind kind;
  std::string_view
      label_names;  // Separated by spaces. `context` is the first name of a metric with a value per context.
  std::string_view process_kind;  // The processes that export the metric: "agent", "coordinator" or "both".
  std::string_view help;
  std::vector<double> buckets = {};  // Upper bounds of the buckets of a histogram. Empty for the other kinds.
};
// Returns the rows in the order of the enum.
std::span<const MetricRow> metric_rows();

}  // namespace mycojobs
