#include "metrics/metric_table.h"

#include <array>

namespace mycojobs {
namespace {

using enum MetricKind;

// Seconds. Each histogram has few buckets, since each series has a cost for the scraper.
const std::vector<double> kCalls{0.0005, 0.002, 0.01, 0.05, 0.2, 1, 5};
const std::vector<double> kWaits{0.002, 0.01, 0.05, 0.2, 1, 5, 30, 120, 600, 3600};
const std::vector<double> kRuns{0.01, 0.05, 0.2, 1, 5, 30, 120, 600, 3600};
const std::vector<double> kSetups{0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1};

const std::array<MetricRow, kMetrics> kRows{{
    {Metric::build_info, "mycojobs_build_info", gauge, "version", "both", "1; the label has the program's version"},
    {Metric::ready, "mycojobs_ready", gauge, "", "both", "1 if /readyz says ok, else 0"},
    {Metric::start_time, "process_start_time_seconds", gauge, "", "both", "When the process began, since 1970"},
    {Metric::cpu, "process_cpu_seconds_total", counter, "", "both", "CPU time of the process itself"},
    {Metric::memory, "process_resident_memory_bytes", gauge, "", "both", "Resident memory of the process itself"},
    {Metric::open_files, "process_open_fds", gauge, "", "both", "Open descriptors of the process"},
    {Metric::folded, "mycojobs_metrics_folded_total", counter, "", "both",
     "Values that were counted under the label other, since a metric had too many series"},

    {Metric::spans, "mycojobs_spans_total", counter, "result", "both",
     "Spans for the collector of traces; result: exported, dropped (it is slow or away)"},

    {Metric::store_calls, "mycojobs_store_call_seconds", histogram, "call", "both",
     "Time that calls of Redis took, failed ones too; call is the step's name, or the command's", kCalls},
    {Metric::store_errors, "mycojobs_store_errors_total", counter, "call code", "both",
     "Calls of Redis that failed; code: unavailable, denied, ..."},

    {Metric::submitted, "mycojobs_jobs_submitted_total", counter, "context script_type", "both",
     "New jobs that this process has stored, those of flows and messages aside; script_type: as the queues of "
     "mycojobs_queue_jobs, else other"},
    {Metric::claims, "mycojobs_claims_total", counter, "context script_type", "both", "Jobs that were claimed"},
    {Metric::set_aside, "mycojobs_queue_entries_set_aside_total", counter, "context", "both",
     "Queue entries that cannot run: dead letters, anomalies, entries without a record"},
    {Metric::pickup, "mycojobs_pickup_seconds", histogram, "context", "both",
     "From a job's queueing, or the moment when it was due, to its first claim, by the clock of Redis", kWaits},
    {Metric::attempts, "mycojobs_attempts_total", counter, "context script_type status detail", "both",
     "Ends of attempts that were stored"},
    {Metric::ends, "mycojobs_job_ends_total", counter, "context script_type status detail", "both",
     "Ends of jobs that were stored: of attempts that no other follows"},
    {Metric::releases, "mycojobs_releases_total", counter, "context ran", "both",
     "Claims that were given back to their queues; ran: whether anything of the job had begun"},
    {Metric::stale, "mycojobs_stale_writes_total", counter, "context what", "both",
     "Writes under a claim that was given on, which were refused; what: report, renewal"},
    {Metric::renewals, "mycojobs_lease_renewals_total", counter, "context", "both", "Leases that were renewed"},
    {Metric::leases_expired, "mycojobs_leases_expired_total", counter, "context", "both",
     "Leases that ran out and were taken from their owners by this process"},
    {Metric::moved, "mycojobs_jobs_moved_total", counter, "context why", "both",
     "Jobs that time moved on; why: due, settled, missing, overdue, retired"},
    {Metric::refusals, "mycojobs_refusals_total", counter, "context action", "both",
     "Requests that the table of rights refused"},

    {Metric::slots, "mycojobs_slots", gauge, "", "agent", "Jobs that may run at the same time"},
    {Metric::jobs_held, "mycojobs_jobs_held", gauge, "", "agent",
     "Jobs that were claimed and are not settled: they run, begin, or their end is being stored"},
    {Metric::leases_held, "mycojobs_leases_held", gauge, "context", "agent", "Leases that this agent renews"},
    {Metric::run_time, "mycojobs_run_seconds", histogram, "context script_type", "agent",
     "Wall-clock time of a run in its sandbox; a job of several stages has several runs", kRuns},
    {Metric::run_cpu, "mycojobs_run_cpu_seconds_total", counter, "context script_type", "agent",
     "CPU time that jobs used"},
    {Metric::sandbox_setup, "mycojobs_sandbox_setup_seconds", histogram, "sandbox", "agent",
     "What a run waited for its sandbox; sandbox: ready (prewarmed, or left by a clean run), warm (a process of a warm "
     "script), new",
     kSetups},
    {Metric::sandboxes, "mycojobs_sandboxes", gauge, "state", "agent",
     "Sandboxes of the pools, every few seconds; state: ready, forming, lent (a run has it, and it is to come back)"},
    {Metric::zygotes, "mycojobs_zygotes", gauge, "", "agent", "Warm parents that sandboxes are forked from"},
    {Metric::launchers, "mycojobs_launcher_restarts_total", counter, "", "agent",
     "Times that a new launcher was started, or tried to, for one that ended or hung"},
    {Metric::artifact_bytes, "mycojobs_artifact_bytes", gauge, "context of", "agent",
     "Artifacts on the host, of all its agents; of: all callers together, largest (the caller that has most)"},
    {Metric::artifact_quota, "mycojobs_artifact_quota_bytes", gauge, "context of", "agent",
     "Their quotas: quota.context_artifact_bytes and quota.caller_artifact_bytes; 0: any number"},

    {Metric::leads, "mycojobs_leads", gauge, "context", "coordinator", "1 if this coordinator leads the context"},
    {Metric::queue_jobs, "mycojobs_queue_jobs", gauge, "context queue", "coordinator",
     "Entries of a queue, those with a priority too; queue: a script type that this build runs or a runner serves, "
     "runner (all of them), router, other (all others that jobs were queued in). By who leads, every few seconds"},
    {Metric::queue_oldest, "mycojobs_queue_oldest_seconds", gauge, "context queue", "coordinator",
     "How long the job that a queue gives next has waited; 0: it is empty; none: its record does not say since when"},
    {Metric::queue_paused, "mycojobs_queue_paused", gauge, "context queue", "coordinator",
     "1 if nothing is taken from the queue"},
    {Metric::jobs, "mycojobs_jobs", gauge, "context state", "coordinator",
     "Jobs that do not stand in a queue; state: live, delayed, prerequisites, ended (not yet retired)"},
    {Metric::dead_letters, "mycojobs_dead_letters", gauge, "context", "coordinator",
     "Dead letters that nobody has settled"},
    {Metric::kept_bytes, "mycojobs_kept_bytes", gauge, "context of", "coordinator",
     "Bytes that jobs keep in Redis: records, output, results; of: all callers together, largest (the caller that "
     "keeps "
     "most)"},
    {Metric::kept_quota, "mycojobs_kept_quota_bytes", gauge, "context of", "coordinator",
     "Their quotas: quota.context_bytes and quota.caller_bytes; 0: any number"},
    {Metric::flows_active, "mycojobs_flows_active", gauge, "context", "coordinator",
     "Flows that have begun and not ended"},
    {Metric::gates_waiting, "mycojobs_flow_gates_waiting", gauge, "context", "coordinator",
     "Nodes of flows that wait for somebody (approval, pause) or for a gate (approval:, signal:, flow:), as of the "
     "leader's last look at each flow"},
    {Metric::flow_commits, "mycojobs_flow_commits_total", counter, "context result", "both",
     "Steps of flows that this process committed; result: ok, conflict (somebody else was faster)"},
    {Metric::flow_facts, "mycojobs_flow_facts_total", counter, "context kind", "both",
     "Facts of flows' journals that this process wrote"},
    {Metric::flow_ends, "mycojobs_flow_ends_total", counter, "context status", "both",
     "Flows whose end this process wrote"},
    {Metric::workflow_commits, "mycojobs_workflow_commits_total", counter, "context result", "both",
     "Commits of workflows' worlds; result: ok, conflict"},
    {Metric::workflow_steps, "mycojobs_workflow_steps_total", counter, "context result", "coordinator",
     "Steps of workflows that were taken; result: ok, error (put off)"},
    {Metric::workflow_intents, "mycojobs_workflow_intents_total", counter, "context result", "coordinator",
     "Intents of workflows; result: carried, error (it could not be), receipt"},
    {Metric::messages, "mycojobs_messages_total", counter, "context what", "both",
     "Messages; what: sent, received, refused, answered, failed (could not be delivered)"},
    {Metric::deliveries, "mycojobs_deliveries_total", counter, "context kind result", "coordinator",
     "What supervisors elsewhere have sent here; context: 0 is none that is served; kind: message, answer, logs, "
     "cancel, file; result: ok, refused, later (they are to try again)"},
    {Metric::mail, "mycojobs_mail_waiting", gauge, "context box", "coordinator",
     "What waits to be carried or to be taken up; box: out, in"},
    {Metric::calls, "mycojobs_rpc_calls_total", counter, "method result", "both",
     "JSON-RPC calls; method: unknown where there is no such; result: ok or the word of the error"},
    {Metric::http_refused, "mycojobs_http_refused_total", counter, "why", "both",
     "HTTP requests that were refused before they were calls; why: page, host, token, strangers"},
}};

}  // namespace

std::string_view word(MetricKind kind) { return kind == counter ? "counter" : kind == gauge ? "gauge" : "histogram"; }

std::span<const MetricRow> metric_rows() { return kRows; }

}  // namespace mycojobs
