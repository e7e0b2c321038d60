// Made-up situations of a job, in place of the results of look_at().
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "inspect/explain.h"

namespace mycojobs::test {

inline constexpr std::uint64_t kNow = 1'700'000'000'000;

inline void set(JobSituation& about, std::string name, std::string value) {
  std::erase_if(about.job.record, [&](const auto& field) { return field.first == name; });
  about.job.record.emplace_back(std::move(name), std::move(value));
}

// A job that its client has written and pushed; no agent serves its queue.
inline JobSituation pushed() {
  JobSituation about;
  about.job.job_key = "job:12:7";
  about.job.record_type = "hash";
  about.job.claim_type = "none";
  about.job.now_ms = kNow;
  about.job.queue_entry_count = 1;
  about.queue = "queue:v";
  about.queue_length = 3;
  about.entries_ahead = 1;
  set(about, "script_type", "v");
  set(about, "status", "dispatched");
  return about;
}

inline RunnerInfo runner(Id id, std::vector<std::string> types, std::uint32_t slots = 2, std::uint32_t claims = 0) {
  RunnerInfo info;
  info.runner.id = id;
  info.runner.local = true;
  info.runner.executors = std::move(types);
  info.runner.slots = slots;
  info.runner.seen_ms = kNow - 12000;
  info.holder = {"instance-a", "host-a", "boot", 4711};
  info.held_ms = 5000;
  info.live_claims = claims;
  return info;
}

// The job of pushed(), with a claim in this state.
inline JobSituation claimed(const std::string& state) {
  JobSituation about = pushed();
  ClaimView& claim = about.job.claim;
  about.job.claim_type = "hash";
  claim.exists = true;
  claim.state = state;
  claim.queue = about.queue;
  claim.attempt = claim.deliveries = 1;
  claim.epoch = 99;
  claim.runner = 20;
  claim.instance = "instance-a";
  if (state != "queued") about.job.queue_entry_count = 0, about.entries_ahead.reset();
  return about;
}

inline JobSituation live() {
  JobSituation about = claimed("live");
  about.job.lease_until_ms = about.job.claim.lease_until_ms = kNow + 4000;
  about.runners = {runner(20, {"v"}, 2, 1)};
  set(about, "status", "started");
  set(about, "started_ms", std::to_string(kNow - 90000));
  return about;
}

inline JobSituation ended(const std::string& status, const std::string& detail) {
  JobSituation about = claimed("ended");
  about.job.claim.status = status;
  about.job.claim.detail = detail;
  about.job.claim.ended_ms = kNow - 5000;
  set(about, "status", status);
  set(about, "error", status == "finished" ? "" : "what went wrong");
  return about;
}

inline JobStoreState other(const std::string& key, const std::string& state) {
  JobStoreState job;
  job.job_key = key;
  job.record_type = state.empty() ? "none" : "hash";
  job.claim.exists = !state.empty();
  job.claim.state = state;
  return job;
}

inline JobSituation waiting(std::vector<JobStoreState> awaited) {
  JobSituation about = claimed("waiting");
  for (const JobStoreState& job : awaited) about.job.awaited_jobs.push_back(job.job_key);
  about.dependencies = std::move(awaited);
  return about;
}

inline JobSituation held() {
  JobSituation about = claimed("held");
  about.job.is_held = true;
  about.job.held_by_keys = {"db"};
  set(about, "concurrency_key", "db");
  return about;
}

}  // namespace mycojobs::test
