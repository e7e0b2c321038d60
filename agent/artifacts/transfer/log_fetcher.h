// Reads spooled logs of runners on other hosts, through the channels of the transfers (log_request.h). Each request is
// answered by one message, so neither side has a state between two requests. Nothing is stored in Redis.
//
// Each context in use has a connection to the store and a subscription. read() ends those of other contexts that were
// not used for a minute. Thread-safe.
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
  // A runner that did not answer in this context is not requested for some seconds.
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
