// The table of all metrics that /metrics of an agent and of a coordinator prints. docs/metrics/README.md has the same
// list; a test compares them.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace mycojobs {

enum class Metric : std::size_t {
  build_info,
  ready,
  start_time,
  cpu,
  memory,
  open_files,
  folded_values,
  spans,
  // Store.
  store_calls,
  store_errors,
  // Jobs.
  jobs_submitted,
  claims,
  entries_set_aside,
  pickup_time,
  attempts,
  job_ends,
  releases,
  stale_writes,
  renewals,
  leases_expired,
  jobs_moved,
  refusals,
  // Agent.
  slots,
  jobs_held,
  leases_held,
  run_time,
  run_cpu,
  sandbox_setup,
  sandboxes,
  zygotes,
  launcher_restarts,
  artifact_bytes,
  artifact_quota,
  // Coordinator.
  leadership,
  queue_jobs,
  queue_oldest,
  queue_paused,
  jobs,
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
  workflow_intents,
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
  std::string_view labels;   // separated by spaces; the first is `context` if the metric is per context
  std::string_view process;  // kind of process that has the metric: agent, coordinator, both
  std::string_view help;
  std::vector<double> buckets = {};  // upper bounds of the buckets of a histogram
};
// Returns the rows in the order of the enum.
std::span<const MetricRow> metric_rows();

}  // namespace mycojobs
