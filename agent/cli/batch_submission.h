// Submission of a file with one job per line: `job submit --batch`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "cli/commands/command_table.h"
#include "model/records.h"

namespace mycojobs {

inline constexpr std::size_t kMaxBatchLine = 16U << 20;
// JSON values of one line; a short value needs much more memory than its text.
inline constexpr std::size_t kMaxBatchValues = 65536;

// Reader of the lines of a file, which can be read again from the start. Keeps one line in memory.
class BatchFile {
 public:
  // "-" is standard input. Input that cannot be read twice, such as a pipe, is first copied to a temporary file.
  static Result<BatchFile> open(const std::string& file);

  struct Line {
    std::uint64_t number = 0;  // from 1
    std::string text;
  };
  // Returns the next line that is not blank; nullopt at the end of the file. Errors, which name the line: too_large,
  // io.
  Result<std::optional<Line>> next();
  void rewind();
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t read_bytes() const { return read_; }

 private:
  BatchFile(std::string name, std::FILE* file);
  Result<void> measure();

  std::string name_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::uint64_t bytes_ = 0, read_ = 0, number_ = 0;
};

// Parses a job in the format of JSON-RPC (docs/rpc.md). Errors name the field or the JSON position, but not the line.
Result<Job> read_batch_line(const std::string& text);

// Validates all lines before it submits the first job. Prints one line for each job: its key, or an object with --json.
// A line without id and idempotency key gets a key from the batch's key and the line number, so that submitting the
// file again with the same batch key creates no duplicates.
Result<int> submit_batch(const Invocation&);

}  // namespace mycojobs
