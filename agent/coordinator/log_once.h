// Logs the first error of a series of failures of a thread of a context. After a success the next error is logged
// again. Not thread-safe.
#pragma once

#include <string_view>

#include "base/log.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

class LogOnce {
 public:
  LogOnce(std::string_view component, Id context) : component_(component), context_(context) {}
  // Reports the result of an attempt; null reports a success.
  void operator()(const Error* error) {
    if (error != nullptr && !failing_) log(LogLevel::warn, component_, "context {}: {}", context_, error->message);
    failing_ = error != nullptr;
  }

 private:
  std::string_view component_;
  Id context_;
  bool failing_ = false;
};

}  // namespace mycojobs
