// The data of the operations: a typical job and its end.
#pragma once

#include <string>

#include "model/records.h"
#include "sandbox/outcome.h"
#include "sandbox/sandbox.h"

namespace mycojobs::instructions {

inline constexpr std::size_t kMany = 16;  // jobs of one call, as requested by an agent with 16 slots

inline Job example_job() {
  Job job;
  job.id = 2001, job.caller_id = 12, job.context_id = 1;
  job.name = "nightly-report";
  job.script_type = "python";
  for (int line = 0; line < 40; ++line) job.script += "total += len(rows[" + std::to_string(line) + "]['name'])\n";
  job.timeout = 60, job.retries = 3;
  job.env_vars = {{"REGION", "eu"}, {"ROWS", "120000"}, {"TARGET", "s3://bucket/reports/2026-11-21.csv"}};
  job.result = {{"rows", "120000"}, {"seconds", "1.25"}};
  job.dependends = {1998, 1999};
  job.status = JobStatus::started;
  job.created_at = 1795000000, job.updated_at = 1795000003;
  job.detail = "running";
  job.attempt = 1, job.deliveries = 1, job.epoch = 77, job.runner_id = 20;
  job.claim_id = "0123456789abcdef";
  job.lease_until_ms = 1795000033000, job.queued_ms = 1795000001000, job.started_ms = 1795000003000;
  job.priority = 5, job.idempotency_key = "report-2026-11-21";
  job.policy = R"({"memory":"512 MiB","net":"none"})";
  return job;
}

inline Outcome example_outcome() {
  Outcome outcome;
  outcome.status = RunStatus::ok;
  outcome.usage = {5300, 2100, 3900, 9U << 20, 1, 120, 0};
  outcome.layers = {"userns",   "pidns",   "mountns", "netns",        "ipcns",      "utsns",
                    "cgroupns", "seccomp", "caps",    "no_new_privs", "landlock:7", "cgroup:memory"};
  outcome.setup = {{"fork", 210}, {"mounts", 190}, {"limits", 12}, {"landlock", 31}, {"seccomp", 66}, {"start", 80}};
  return outcome;
}

inline RunSpec example_run() {
  RunSpec run;
  run.run = 7'000'001, run.context = 1;
  run.limits.wall_ms = 60000, run.fence_boot_ms = 99'000'000;
  return run;
}

}  // namespace mycojobs::instructions
