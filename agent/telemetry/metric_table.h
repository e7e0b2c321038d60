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
  folded,
  spans,
  // Store.
  store_calls,
  store_errors,
  // Jobs.
  submitted,
  claims,
  set_aside,
  pickup,
  attempts,
  ends,
  releases,
  stale,
  renewals,
  leases_expired,
  moved,
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
  launchers,
  artifact_bytes,
  artifact_quota,
  // Coordinator.
  leads,
  queue_jobs,
  queue_oldest,
  queue_paused,
  jobs,
  dead_letters,
  kept_bytes,
  kept_quota,
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
  mail,
  calls,
  http_refused,
};
inline constexpr std::size_t kMetrics = static_cast<std::size_t>(Metric::http_refused) + 1;

enum class MetricKind { counter, gauge, histogram };
std::string_view to_string(MetricKind);

struct MetricRow {
  Metric metric;
  std::string_view name;
  MetricKind kind;
  std::string_view labels;  // separated by blanks; the first is `context` if the metric is per context
  std::string_view where;   // agent, coordinator, both
  std::string_view help;
  std::vector<double> buckets = {};  // upper bounds of the buckets of a histogram
};
// Returns the rows in the order of the enum.
std::span<const MetricRow> metric_rows();

}  // namespace mycojobs
