// Artificial situations of a job, instead of situations that were read from a store.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "inspect/explain.h"

namespace mycojobs::test {

inline constexpr std::uint64_t kNow = 1'700'000'000'000;

inline void set_field(JobSituation& situation, std::string name, std::string value) {
  std::erase_if(situation.job.record, [&](const auto& field) { return field.first == name; });
  situation.job.record.emplace_back(std::move(name), std::move(value));
}

// Returns a job that its client has written and pushed. No agent serves its queue.
inline JobSituation make_pushed() {
  JobSituation situation;
  situation.job.job_key = "job:12:7";
  situation.job.record_type = "hash";
  situation.job.claim_type = "none";
  situation.job.now_ms = kNow;
  situation.job.queue_entry_count = 1;
  situation.queue = "queue:v";
  situation.queue_length = 3;
  situation.entries_ahead = 1;
  set_field(situation, "script_type", "v");
  set_field(situation, "status", "dispatched");
  return situation;
}

inline RunnerInfo make_runner(Id id, std::vector<std::string> types, std::uint32_t slots = 2,
                              std::uint32_t claims = 0) {
  RunnerInfo info;
  info.runner.id = id;
  info.runner.local = true;
  info.runner.executors = std::move(types);
  info.runner.slots = slots;
  info.runner.seen_ms = kNow - 12000;
  info.holder = {"instance-a", "host-a", "boot", 4711};
  info.hold_remaining_ms = 5000;
  info.live_claim_count = claims;
  return info;
}

// The job of make_pushed() with a claim in this state.
inline JobSituation make_claimed(const std::string& state) {
  JobSituation situation = make_pushed();
  ClaimView& claim = situation.job.claim;
  situation.job.claim_type = "hash";
  claim.exists = true;
  claim.state = state;
  claim.queue = situation.queue;
  claim.attempt = claim.deliveries = 1;
  claim.epoch = 99;
  claim.runner = 20;
  claim.instance = "instance-a";
  if (state != "queued") situation.job.queue_entry_count = 0, situation.entries_ahead.reset();
  return situation;
}

inline JobSituation make_live() {
  JobSituation situation = make_claimed("live");
  situation.job.lease_until_ms = situation.job.claim.lease_until_ms = kNow + 4000;
  situation.runners = {make_runner(20, {"v"}, 2, 1)};
  set_field(situation, "status", "started");
  set_field(situation, "started_ms", std::to_string(kNow - 90000));
  return situation;
}

inline JobSituation make_ended(const std::string& status, const std::string& detail) {
  JobSituation situation = make_claimed("ended");
  situation.job.claim.status = status;
  situation.job.claim.detail = detail;
  situation.job.claim.ended_ms = kNow - 5000;
  set_field(situation, "status", status);
  set_field(situation, "error", status == "finished" ? "" : "what went wrong");
  return situation;
}

inline JobStoreState make_other_job(const std::string& key, const std::string& state) {
  JobStoreState job;
  job.job_key = key;
  job.record_type = state.empty() ? "none" : "hash";
  job.claim.exists = !state.empty();
  job.claim.state = state;
  return job;
}

inline JobSituation make_waiting(std::vector<JobStoreState> dependencies) {
  JobSituation situation = make_claimed("waiting");
  for (const JobStoreState& job : dependencies) situation.job.awaited_jobs.push_back(job.job_key);
  situation.dependencies = std::move(dependencies);
  return situation;
}

inline JobSituation make_held() {
  JobSituation situation = make_claimed("held");
  situation.job.is_held = true;
  situation.job.held_by_keys = {"db"};
  set_field(situation, "concurrency_key", "db");
  return situation;
}

}  // namespace mycojobs::test
