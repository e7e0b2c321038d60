// Submission of a file with one job per line: `job submit --batch`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "cli/invocation.h"
#include "model/records.h"

namespace mycojobs {

inline constexpr std::size_t kMaxBatchLineBytes = 16U << 20;
// Maximum number of JSON values in a line. A short value needs much more memory than its text.
inline constexpr std::size_t kMaxBatchLineValues = 65536;

// Reader of the lines of a file, which can be read several times. Only one line is in memory.
class BatchFile {
 public:
  // "-" is standard input. Input that cannot be read twice, such as a pipe, is first copied to a temporary file.
  static Result<BatchFile> open(const std::string& path);

  struct Line {
    std::uint64_t number = 0;  // from 1
    std::string text;
  };
  // Returns the next line that is not blank; nullopt at the end of the file. Errors, which name the line: too_large,
  // io.
  Result<std::optional<Line>> read_line();
  void rewind();
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t position() const { return position_; }

 private:
  BatchFile(std::string name, std::FILE* file);
  Result<void> read_size();

  std::string name_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::uint64_t bytes_ = 0, position_ = 0, line_number_ = 0;
};

// Parses a job in the format of JSON-RPC (docs/rpc.md). Errors name the field or the JSON position, but not the line.
Result<Job> parse_batch_line(const std::string& text);

// Validates all lines before it submits the first job. Prints one line for each job: its key, or an object with --json.
// A line without id and idempotency key gets a key from the batch's key and the line number, so that submitting the
// file again with the same batch key creates no duplicates.
Result<int> submit_batch(const Invocation&);

}  // namespace mycojobs
