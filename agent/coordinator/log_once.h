// Says once that a thread of a context meets an error; after it has worked again, once more. One thread.
#pragma once

#include <string_view>

#include "base/log.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

class LogOnce {
 public:
  LogOnce(std::string_view component, Id context) : component_(component), context_(context) {}
  void operator()(const Error* error) {  // null: it works
    if (error != nullptr && !failing_) log(LogLevel::warn, component_, "context {}: {}", context_, error->message);
    failing_ = error != nullptr;
  }

 private:
  std::string_view component_;
  Id context_;
  bool failing_ = false;
};

}  // namespace mycojobs
