// Notifications of the ends of jobs and flows. Errors and thread-safety: store/store.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

class StoreConnection;

// A notification of the end of a job or a flow. It is stored in the same step as the end.
struct Notice {
  std::string entry;       // entry in the store
  std::string record_key;  // job:12:2001, flow:33
  bool finished = false;
  std::uint64_t ended_us = 0;  // by the store's clock; identifies the notice together with record_key
  std::uint32_t attempts = 0;
  std::vector<std::string> reached_targets;  // digests of the targets that have received the notice
};
// Result of NoticeStore::due_notices().
struct DueNotices {
  std::vector<Notice> notices;
  std::uint64_t next_ms = 0;  // time until the next notice is due, or 0 if there is no notice
};
// Result of a delivery attempt. Without `retry`, all targets were reached, or the delivery has failed permanently
// (`permanent_error`).
struct NoticeResult {
  struct Retry {
    std::vector<std::string> reached_targets;
    std::uint64_t delay_ms = 0;
    bool counts_as_attempt = true;  // added to Notice::attempts
  };
  std::optional<Retry> retry;
  std::string permanent_error;  // text for the list of anomalies, set if the delivery has failed permanently
};

// Notifications of ends.
class NoticeStore {
 public:
  explicit NoticeStore(StoreConnection& connection) : connection_(connection) {}

  // Returns at most max notices that are due. Each notice is returned to one caller, and again after
  // redelivery_delay_ms if complete_notice() was not called.
  Result<DueNotices> due_notices(Id context, std::uint32_t max, std::uint32_t redelivery_delay_ms);
  Result<void> complete_notice(Id context, const Notice&, const NoticeResult&);

 private:
  StoreConnection& connection_;
};

}  // namespace mycojobs
