// Files on the channel, seen from the script host: those that come with a job, and those that it leaves.
#pragma once

#include <string>
#include <string_view>

#include "base/fd.h"
#include "mycojobs/result.h"

namespace mycojobs {

// Writes the files of a request below a folder. One object for each request.
class IncomingFiles {
 public:
  explicit IncomingFiles(std::string folder) : folder_(std::move(folder)) {}
  Result<void> take(std::string_view payload);  // of a frame `file`

 private:
  std::string folder_, path_;
  Fd file_;
};

}  // namespace mycojobs
