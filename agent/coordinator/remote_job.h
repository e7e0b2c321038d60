// One job at a supervisor elsewhere: started there once, followed to its end. Knows no store: the router (router.h)
// holds its claim, and reports what comes of it.
//
//   starting --job.start, idempotent by context, job and attempt--> following --job.status: ended--> fetching --> over
//
// A supervisor that is away is asked again, after longer and longer pauses, until the job's time is over.
// Threads: run() in one of its own; all else from any.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "mycojobs/clock.h"
#include "mycojobs/job_end.h"
#include "mycojobs/records.h"
#include "transport/http_client.h"

namespace mycojobs {

struct RemoteRequest {
  Id context = 0;
  std::string job_key;
  std::uint32_t attempt = 1;
  std::string url, secret;
  Networks networks;  // that may be called
  Job job;
  std::uint64_t timeout_ms = 600'000;  // from now, all in all
};

class RemoteJob {
 public:
  RemoteJob(RemoteRequest wanted, const Clock& clock) : wanted_(std::move(wanted)), clock_(clock) {}

  void run();      // until it is over or was abandoned
  void cancel();   // ends the job there
  void abandon();  // lets it run: somebody else will follow it
  bool over() const { return over_; }
  // Once it is over: how it ended, and what it said. Nothing: it was abandoned.
  std::optional<JobEnd> take_end();
  std::vector<Log> take_log();

 private:
  enum class Pace { quick, patient };
  // Pauses, longer after each failure. False: abandoned.
  bool rest(Pace);
  bool late() const { return clock_.boot_ms() >= until_ms_; }
  std::optional<std::string> start();  // the job's key there; nothing: it is over (end_) or was abandoned
  bool follow(const std::string& key);
  void fetch(const std::string& key);
  void end(std::string detail, std::string error);

  RemoteRequest wanted_;
  const Clock& clock_;
  HttpClient http_;
  std::uint64_t until_ms_ = 0;
  std::uint32_t pause_ms_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool cancelled_ = false, abandoned_ = false;
  std::optional<JobEnd> end_;
  std::vector<Log> log_;
  std::atomic<bool> over_{false};
};

}  // namespace mycojobs
