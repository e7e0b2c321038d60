// Jobs of a file, one a line: `job submit --batch`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "cli/commands.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

inline constexpr std::size_t kMaxBatchLine = 16U << 20;
inline constexpr std::size_t kMaxBatchValues = 65536;  // of one line: a short value takes many times its bytes

// The lines of a file that can be read again from its beginning. Memory: one line.
class BatchFile {
 public:
  // "-": standard input. What cannot be read twice (a pipe) is copied into a file without a name first.
  static Result<BatchFile> open(const std::string& file);

  struct Line {
    std::uint64_t number = 0;  // from 1 on
    std::string text;
  };
  // The next one that is not blank; nothing: that was all. Errors: too_large, io; they name the line.
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

// A job as JSON-RPC takes it (docs/rpc.md). Errors name the field, or where the JSON is wrong; not the line.
Result<Job> read_batch_line(const std::string& text);

// Every line is checked before the first job is submitted. The answer has a line for each: its key, with --json an
// object. A line without id and idempotency key gets a key of the batch's and its own number, so that the same file
// again with the batch's key submits nothing twice.
Result<int> submit_batch(const Invocation&);

}  // namespace mycojobs
