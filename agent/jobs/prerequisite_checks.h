// Checks the prerequisites of waiting jobs. A job is completed if all its conditions are met at the same time, if they
// can never be met, or if it has waited too long. A check may be slow, so the owner runs this class apart from its
// other work (worker/upkeep/prerequisite_loop.h, PrerequisiteLoop in coordinator/coordinator.cpp). Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "jobs/file_checks.h"
#include "model/prerequisite.h"
#include "security/rights.h"
#include "store/store.h"

namespace mycojobs {

struct Curl;

// Checks the network, many targets at the same time and each with a short limit: whether host:port accepts a
// connection, and whether a URL answers with a status below 400. Uses no proxy, redirects or credentials, and reads
// only the status of an answer. Checks make progress only in wait(). Not thread-safe.
class NetworkProbes {
 public:
  static Result<std::unique_ptr<NetworkProbes>> open(const Clock&);
  ~NetworkProbes();
  NetworkProbes(const NetworkProbes&) = delete;
  NetworkProbes& operator=(const NetworkProbes&) = delete;

  // Returns a result of the last few seconds, or no value if the check is still running or has to wait for other
  // checks. Starts a check if necessary.
  std::optional<bool> query(const Condition&);
  // Returns when a check has completed, one of wake_fds is readable, or the time has passed. Returns true
  // if a check has completed, so that query() has new results.
  bool wait(std::span<const int> wake_fds, std::uint32_t timeout_ms);

 private:
  struct Probe;
  NetworkProbes(const Clock&, const Curl&, void* multi);
  bool process_completed();

  const Curl& curl_;
  void* multi_;  // handle of libcurl
  std::map<std::string, std::unique_ptr<Probe>> pending_;
  CheckResultCache results_;
};

struct PrerequisiteCheckSettings {
  CheckerRole role = CheckerRole::agent;
  std::vector<std::string> allowed;  // setting prerequisites.allow
  std::uint64_t timeout_ms = 0;      // 0 means no limit
};

class PrerequisiteEvaluator {
 public:
  PrerequisiteEvaluator(Store&, const Clock&, PrerequisiteCheckSettings);

  // Checks the due jobs of the context. Returns the time in ms until the next call is useful.
  Result<std::uint32_t> check_due_jobs(Id context);
  // Waits until a check has completed, wake_fd is readable, or the time has passed; then evaluates the jobs that waited
  // for the results. If the store returns an error, calls failed(); the store returns these jobs again later.
  void wait(int wake_fd, std::uint32_t timeout_ms, const std::function<void(Id, const Error&)>& failed);
  bool has_pending_checks() const { return !pending_jobs_.empty(); }

 private:
  enum class CheckState { met, unmet, pending };

  Result<void> evaluate(Id context, AwaitedPrerequisites job);
  Result<std::vector<Condition>> parse_conditions(const std::vector<std::string>& texts) const;
  // If the condition can never be met, sets failure_reason.
  Result<CheckState> check_condition(Id context, const AwaitedPrerequisites&, const Condition&,
                                     std::string& failure_reason);
  Result<AclContext> read_acl(Id context);
  Result<CheckState> check_key(Id context, Id caller, const std::string& key);
  Result<CheckState> check_flow(Id context, Id caller, const Condition&, std::string& failure_reason);
  Result<std::uint64_t> now_ms(Id context, const std::string& job_key);
  CheckState check_network(const Condition&);
  static CheckState to_check_state(std::optional<bool> is_met);  // no value: the check is pending
  bool wait_for_checks(int wake_fd, std::uint32_t timeout_ms);   // returns true if a check has completed

  Store& store_;
  const Clock& clock_;
  PrerequisiteCheckSettings settings_;
  FileChecks files_;
  std::unique_ptr<NetworkProbes> probes_;                                    // created for the first job that needs it
  std::map<Id, std::uint32_t> recheck_interval_ms_;                          // interval between two checks of a job
  std::map<std::pair<Id, std::string>, AwaitedPrerequisites> pending_jobs_;  // jobs with pending checks
};

}  // namespace mycojobs
