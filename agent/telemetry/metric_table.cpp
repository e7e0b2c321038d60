#include "telemetry/metric_table.h"

#include <array>

namespace mycojobs {
namespace {

using enum MetricKind;

// Upper bounds of the buckets in seconds. Each histogram has few buckets, since each bucket is a series that the
// monitoring system must store.
const std::vector<double> kCallBuckets{0.0005, 0.002, 0.01, 0.05, 0.2, 1, 5};
const std::vector<double> kWaitBuckets{0.002, 0.01, 0.05, 0.2, 1, 5, 30, 120, 600, 3600};
const std::vector<double> kRunBuckets{0.01, 0.05, 0.2, 1, 5, 30, 120, 600, 3600};
const std::vector<double> kSetupBuckets{0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1};

// The columns are those of MetricRow: metric, exported name, kind, label names separated by spaces, the processes that
// export the metric (agent, coordinator, or both), help text, and the buckets of a histogram.
const std::array<MetricRow, kMetricCount> kMetricRows{{
    {Metric::build_info, "mycojobs_build_info", gauge, "version", "both",
     "Constant 1 with the version of the program as label"},
    {Metric::ready, "mycojobs_ready", gauge, "", "both", "Whether /readyz reports ok (1) or not (0)"},
    {Metric::process_start_time, "process_start_time_seconds", gauge, "", "both",
     "Start time of the process since the Unix epoch in seconds"},
    {Metric::process_cpu_time, "process_cpu_seconds_total", counter, "", "both",
     "Total user and system CPU time of the process in seconds"},
    {Metric::resident_memory, "process_resident_memory_bytes", gauge, "", "both",
     "Resident memory of the process in bytes"},
    {Metric::open_files, "process_open_fds", gauge, "", "both", "Number of open file descriptors of the process"},
    {Metric::metric_values_folded, "mycojobs_metrics_folded_total", counter, "", "both",
     "Total number of values counted under the label other because a metric had too many series"},

    {Metric::spans, "mycojobs_spans_total", counter, "result", "both",
     "Total number of trace spans; result: exported, dropped (the collector is slow or unavailable)"},

    {Metric::store_calls, "mycojobs_store_call_seconds", histogram, "call", "both",
     "Duration of calls to Redis, including failed calls; call: name of the atomic step or of the command",
     kCallBuckets},
    {Metric::store_errors, "mycojobs_store_errors_total", counter, "call code", "both",
     "Total number of failed calls to Redis; code: unavailable, denied, ..."},
    {Metric::redis_connections, "mycojobs_redis_connections", gauge, "server", "both",
     "Open connections for calls to a Redis server, without those that wait for work and notifications"},
    {Metric::redis_tls, "mycojobs_redis_tls_info", gauge, "context protocol", "both",
     "Constant 1 while the context uses TLS to Redis; protocol: TLSv1.2, TLSv1.3; context 0: keys without a context"},
    {Metric::redis_certificate_expiry, "mycojobs_redis_certificate_expiry_days", gauge, "context certificate", "both",
     "Days until a certificate of a TLS connection to Redis expires, updated every minute; certificate: server (with "
     "its CAs), client"},
    {Metric::api_certificate_expiry, "mycojobs_api_certificate_expiry_days", gauge, "listener", "both",
     "Days until the certificate of a server of this process expires; listener: api, metrics"},

    {Metric::jobs_submitted, "mycojobs_jobs_submitted_total", counter, "context script_type", "both",
     "Total number of jobs stored by this process, without jobs of flows and messages; script_type: as the label queue "
     "of mycojobs_queue_jobs, otherwise other"},
    {Metric::claims, "mycojobs_claims_total", counter, "context script_type", "both", "Total number of claimed jobs"},
    {Metric::queue_entries_dropped, "mycojobs_queue_entries_dropped_total", counter, "context", "both",
     "Total number of queue entries that cannot run: dead letters, anomalies, entries without a record"},
    {Metric::pickup_time, "mycojobs_pickup_seconds", histogram, "context", "both",
     "Time from the queueing of a job, or from its due time, to its first claim, by the clock of Redis", kWaitBuckets},
    {Metric::attempts, "mycojobs_attempts_total", counter, "context script_type status detail", "both",
     "Total number of stored ends of attempts"},
    {Metric::job_ends, "mycojobs_job_ends_total", counter, "context script_type status detail", "both",
     "Total number of stored ends of jobs, which are the ends of last attempts"},
    {Metric::releases, "mycojobs_releases_total", counter, "context started", "both",
     "Total number of claims released to their queues; started: whether the job had started"},
    {Metric::stale_writes, "mycojobs_stale_writes_total", counter, "context operation", "both",
     "Total number of rejected writes under a stale claim; operation: report, renewal"},
    {Metric::renewals, "mycojobs_lease_renewals_total", counter, "context", "both", "Total number of renewed leases"},
    {Metric::leases_expired, "mycojobs_leases_expired_total", counter, "context", "both",
     "Total number of expired leases that this process recovered"},
    {Metric::job_transitions, "mycojobs_job_transitions_total", counter, "context reason", "both",
     "Total number of jobs whose state was changed by the tick; reason: due, settled, missing, overdue, retired"},
    {Metric::refusals, "mycojobs_refusals_total", counter, "context action", "both",
     "Total number of requests denied by the table of rights"},

    {Metric::slots, "mycojobs_slots", gauge, "", "agent", "Maximum number of jobs that run at the same time"},
    {Metric::jobs_active, "mycojobs_jobs_active", gauge, "", "agent",
     "Number of claimed jobs that are starting, running or storing their end"},
    {Metric::leases_held, "mycojobs_leases_held", gauge, "context", "agent", "Number of leases that this agent renews"},
    {Metric::run_time, "mycojobs_run_seconds", histogram, "context script_type", "agent",
     "Wall-clock time of a run in its sandbox; a job of several stages has several runs", kRunBuckets},
    {Metric::run_cpu, "mycojobs_run_cpu_seconds_total", counter, "context script_type", "agent",
     "Total CPU time of jobs in seconds"},
    {Metric::sandbox_setup, "mycojobs_sandbox_setup_seconds", histogram, "sandbox", "agent",
     "Time that a run waited for its sandbox; sandbox: ready (prewarmed or reused), warm (a process of a warm script), "
     "new",
     kSetupBuckets},
    {Metric::sandboxes, "mycojobs_sandboxes", gauge, "state", "agent",
     "Number of sandboxes in the pools, updated every few seconds; state: ready, starting, in_use (by a run, after "
     "which the sandbox is used again)"},
    {Metric::zygotes, "mycojobs_zygotes", gauge, "", "agent", "Number of zygotes, from which sandboxes are forked"},
    {Metric::launcher_restarts, "mycojobs_launcher_restarts_total", counter, "", "agent",
     "Total number of attempts to replace a launcher that exited or hung"},
    {Metric::artifact_bytes, "mycojobs_artifact_bytes", gauge, "context scope", "agent",
     "Bytes of artifacts of all agents of this host; scope: all (total of all callers), largest (caller with the most "
     "bytes)"},
    {Metric::artifact_quota, "mycojobs_artifact_quota_bytes", gauge, "context scope", "agent",
     "Quotas of artifacts: quota.context_artifact_bytes and quota.caller_artifact_bytes; 0: unlimited"},
    {Metric::transfers, "mycojobs_artifact_transfers_total", counter, "context result", "both",
     "Total number of artifacts that were requested from other hosts; result: received, away (the runner did not "
     "send), busy (other files were received), lost (the runner does not have it), damaged (wrong content), failed "
     "(this host cannot store it), storage_away"},
    {Metric::transfer_bytes, "mycojobs_artifact_transfer_bytes_total", counter, "context direction", "both",
     "Total bytes of artifacts that were sent to and received from other hosts; direction: sent, received (through "
     "Redis); sent_https, received_https; uploaded, downloaded (object storage)"},
    {Metric::artifact_uploads, "mycojobs_artifact_uploads", gauge, "context", "agent",
     "Number of ended runs whose artifacts are being uploaded"},
    {Metric::artifact_cache, "mycojobs_artifact_cache_bytes", gauge, "context", "agent",
     "Bytes of artifacts of other hosts in the cache of this host"},

    {Metric::leadership, "mycojobs_leader", gauge, "context", "coordinator",
     "Whether this coordinator is the leader of the context (1) or not (0)"},
    {Metric::queue_jobs, "mycojobs_queue_jobs", gauge, "context queue", "coordinator",
     "Number of entries of a queue, including entries with a priority; queue: a script type that this build runs or a "
     "runner serves, runner (queues of all runners), router, other (all other queues). Updated by the leader every few "
     "seconds"},
    {Metric::queue_oldest, "mycojobs_queue_oldest_seconds", gauge, "context queue", "coordinator",
     "Waiting time of the next job of a queue; 0: the queue is empty; absent: the record of the job has no start time"},
    {Metric::queue_paused, "mycojobs_queue_paused", gauge, "context queue", "coordinator",
     "Whether the queue is paused (1) or not (0)"},
    {Metric::jobs_by_state, "mycojobs_jobs", gauge, "context state", "coordinator",
     "Number of jobs that are in no queue; state: live, delayed, prerequisites, ended (not yet retired)"},
    {Metric::dead_letters, "mycojobs_dead_letters", gauge, "context", "coordinator",
     "Number of dead letters that are not settled"},
    {Metric::stored_bytes, "mycojobs_stored_bytes", gauge, "context scope", "coordinator",
     "Bytes of jobs in Redis: records, output, results; scope: all (total of all callers), largest (caller with the "
     "most bytes)"},
    {Metric::stored_quota, "mycojobs_stored_quota_bytes", gauge, "context scope", "coordinator",
     "Quotas of bytes in Redis: quota.context_bytes and quota.caller_bytes; 0: unlimited"},
    {Metric::flows_active, "mycojobs_flows_active", gauge, "context", "coordinator",
     "Number of flows that have started and not ended"},
    {Metric::gates_waiting, "mycojobs_flow_gates_waiting", gauge, "context", "coordinator",
     "Number of nodes of flows that wait for a decision (approval, pause) or for a gate (approval:, signal:, flow:), "
     "as of the leader's last scan of each flow"},
    {Metric::flow_commits, "mycojobs_flow_commits_total", counter, "context result", "both",
     "Total number of flow commits of this process; result: ok, conflict (another client was faster)"},
    {Metric::flow_facts, "mycojobs_flow_facts_total", counter, "context kind", "both",
     "Total number of facts that this process appended to journals of flows"},
    {Metric::flow_ends, "mycojobs_flow_ends_total", counter, "context status", "both",
     "Total number of ends of flows that this process stored"},
    {Metric::workflow_commits, "mycojobs_workflow_commits_total", counter, "context result", "both",
     "Total number of commits of deployments; result: ok, conflict"},
    {Metric::workflow_steps, "mycojobs_workflow_steps_total", counter, "context result", "coordinator",
     "Total number of workflow steps; result: ok, error (postponed)"},
    {Metric::workflow_effects, "mycojobs_workflow_effects_total", counter, "context result", "coordinator",
     "Total number of effects of workflows; result: started, error (not started), receipt"},
    {Metric::messages, "mycojobs_messages_total", counter, "context event", "both",
     "Total number of messages; event: sent, received, refused, answered, failed (could not be delivered)"},
    {Metric::deliveries, "mycojobs_deliveries_total", counter, "context kind result", "coordinator",
     "Total number of requests from supervisors on other hosts; context: 0 for contexts that are not served; kind: "
     "message, answer, logs, cancel, file; result: ok, refused, later (to be repeated)"},
    {Metric::pending_messages, "mycojobs_messages_pending", gauge, "context box", "coordinator",
     "Number of messages that wait to be sent or processed; box: out, in"},
    {Metric::rpc_calls, "mycojobs_rpc_calls_total", counter, "method result", "both",
     "Total number of JSON-RPC calls; method: unknown for unknown methods; result: ok or the word of the error"},
    {Metric::http_refusals, "mycojobs_http_requests_rejected_total", counter, "reason", "both",
     "Total number of HTTP requests rejected before a call; reason: page, host, token, ticket, unknown_peer (too many "
     "requests of unknown callers)"},
}};

}  // namespace

std::string_view to_string(MetricKind kind) {
  return kind == counter ? "counter" : kind == gauge ? "gauge" : "histogram";
}

std::span<const MetricRow> metric_rows() { return kMetricRows; }

}  // namespace mycojobs
