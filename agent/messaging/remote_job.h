// Runs one job at a remote supervisor over JSON-RPC: starts the job once and polls it until its end. This class does
// not use the store: the router (router.h) holds the claim and reports the result.
//
//   starting --job.start, idempotent by context, job and attempt--> polling --job.status: ended--> fetching --> ended
//
// A supervisor that does not answer is called again after growing pauses, until the time-out of the job.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "model/job_end.h"
#include "model/records.h"
#include "net/http_client.h"
#include "net/networks.h"

namespace mycojobs {

// Time in which a supervisor must end a cancelled job.
inline constexpr std::uint64_t kCancelTimeoutMs = 30000;

struct RemoteRequest {
  Id context = 0;
  std::string job_key;
  std::uint32_t attempt = 1;
  std::string url, secret;
  Networks allowed_networks;  // networks that may contain the address of the supervisor
  std::string ca;             // see HttpPost
  Job job;
  std::uint64_t timeout_ms = 600'000;  // time limit for the job, including failed calls
  bool possibly_started = false;       // a previous router may have started the job
};

// run() blocks and needs a thread of its own. All other functions are thread-safe. The clock must outlive the object.
class RemoteJob {
 public:
  RemoteJob(RemoteRequest request, const Clock& clock) : request_(std::move(request)), clock_(clock) {}

  // Blocks until the job has ended or was abandoned.
  void run();
  // Requests the cancellation of the remote job.
  void cancel();
  // Stops polling without a cancellation, so that another router can continue to poll the job.
  void abandon();
  // Returns whether run() has finished its work: the job has ended or was abandoned.
  bool is_done() const { return is_done_; }
  // Removes and returns the end of the job once is_done() is true, or no value if the job was abandoned.
  std::optional<JobEnd> pop_end();
  // Removes and returns the log lines of the job.
  std::vector<Log> pop_log();

 private:
  enum class RetryReason { running, failed_call };
  // Waits before the next call. The pause doubles each time, up to a limit that depends on the reason. Returns false if
  // the job was abandoned.
  bool wait_before_retry(RetryReason);
  Result<nlohmann::json> call(const char* method, const nlohmann::json& params);
  bool is_past_deadline() const { return clock_.boot_ms() >= deadline_ms_; }
  // Starts the job. Returns its remote key, or no value if the job could not be started (end_) or was abandoned.
  std::optional<std::string> start();
  // Returns true when the remote job has ended, so that its result can be fetched. Returns false if the job was
  // abandoned or end_ was set.
  bool poll_until_end(const std::string& remote_key);
  std::vector<Log> fetch_log(const std::string& remote_id);
  // Returns the last lines of a log that is too long for the time, and a line in the place of those before them.
  std::vector<Log> fetch_last_lines(const std::string& remote_id, std::uint64_t last_seq);
  void fetch_result(const std::string& remote_key);
  // Sets the end and the log from the result of job.result.
  void set_result_end(const nlohmann::json& result, std::vector<Log> lines);
  bool is_abandoned() {
    const std::lock_guard lock(mutex_);
    return abandoned_;
  }
  // Ends the job with an error of this host, such as a time-out.
  void set_error_end(std::string detail, std::string error);

  RemoteRequest request_;
  const Clock& clock_;
  HttpClient http_;
  std::uint64_t deadline_ms_ = 0;
  std::uint32_t pause_ms_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool cancelled_ = false, abandoned_ = false;
  std::optional<JobEnd> end_;
  std::vector<Log> log_;
  std::atomic<bool> is_done_{false};
};

// Returns the job as it is sent to another host: without the fields that are meaningful only in this context.
Job make_sent_job(const Job& job);

}  // namespace mycojobs
