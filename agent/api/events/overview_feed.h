// The overview of a context for all event streams of the context. The store is read at most about once a second, and
// all streams share the result. Thread-safe.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "api/events/event_stream.h"
#include "api/services.h"

namespace mycojobs::api {

struct OverviewText {
  std::string text;           // an Overview (api/rpc/result_schemas.cpp) as JSON, with the id of its context
  std::string timeless_text;  // the same without times; equal texts mean that nothing has changed
};

class OverviewFeed {
 public:
  explicit OverviewFeed(Services& services) : services_(services) {}
  // Returns the overview, at most 0.9 s old. The caller's right to read is checked again for each new text. If the
  // store is unavailable, one thread waits for its time-out, and the other threads receive the same error. Errors:
  // denied, unavailable, and other errors of the store.
  Result<std::shared_ptr<const OverviewText>> read(const EventRequest&);

 private:
  using OverviewPtr = std::shared_ptr<const OverviewText>;
  struct CachedOverview {
    std::mutex mutex;  // locked while a thread reads the store; the other threads wait for the result
    std::unique_ptr<Store> store;
    std::chrono::steady_clock::time_point read_at;
    Result<OverviewPtr> overview = nullptr;  // or the error of the last read; null: not read yet
    std::set<Id> readers;                    // actors with a checked right to read this text
  };
  std::shared_ptr<CachedOverview> find_cached(Id context);
  Result<OverviewPtr> load_overview(CachedOverview&, Id context);

  Services& services_;
  std::mutex mutex_;  // guards only the map
  std::map<Id, std::shared_ptr<CachedOverview>> cache_;
};

}  // namespace mycojobs::api
