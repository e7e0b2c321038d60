// Reads spooled logs of runners on other hosts, through the Redis channels of file transfers (log_request.h). The
// runner answers each request with one message, so neither side stores a state between two requests. Redis stores
// nothing.
//
// Each context in use has a connection to the store and a subscription. read() closes the connections and subscriptions
// of other contexts that were not used for a minute. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "artifacts/logs/spooled_log.h"
#include "base/clock.h"
#include "base/result.h"
#include "store/store.h"

namespace mycojobs {

class LogFetcher {
 public:
  // REQUIRES: stores and clock outlive the fetcher.
  LogFetcher(StoreFactory& stores, const Clock& clock);
  ~LogFetcher();
  LogFetcher(const LogFetcher&) = delete;
  LogFetcher& operator=(const LogFetcher&) = delete;

  // Reads the first lines of a range from the runner. Waits at most some seconds. Errors: unavailable (the runner is
  // not connected or does not answer; the message names the runner), denied (the Redis user may not use the channels).
  // After a request without an answer, read() fails for some seconds without a new request to the same runner.
  Result<SpooledLines> read(Id context, Id runner, const std::string& job_key, const LogRange&);

 private:
  class Channel;
  Result<std::shared_ptr<Channel>> get_or_open_channel(Id context);

  StoreFactory& stores_;
  const Clock& clock_;
  std::mutex mutex_;
  std::map<Id, std::shared_ptr<Channel>> channels_;  // guarded by mutex_
};

}  // namespace mycojobs
