// Writes the output of all jobs of the agent as JSON lines, for a log shipper: to standard output, or to a file for
// each day in a folder. Format: docs/operations.md, "Export of logs".
//
//   run loop --LogSink--> queue of at most 16 MiB --one thread--> standard output or <folder>/jobs-2030-01-31.jsonl
//
// Callers never wait for the disk or for the reader of standard output. Output beyond the queue is dropped, and the
// next line that can be written states how many bytes are missing. The queue is lost if the agent is killed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "artifacts/logs/log_sink.h"
#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

// The properties that all lines of a run share.
struct ExportedRun {
  std::string job_key;
  Id context = 0, flow = 0, runner = 0;  // flow: 0 if the job belongs to none
  std::string node;                      // name of the job in its flow
  std::uint32_t attempt = 1;
  std::string claim_id;     // identifies the run
  std::string traceparent;  // empty if the job is not traced
};

class LogExport {
 public:
  static constexpr std::size_t kMaxQueuedBytes = 16U << 20;

  // target: "stdout", or the absolute path of an existing folder, in which this process can create files.
  // Error invalid states what is wrong with the target; unavailable: no thread.
  static Result<std::shared_ptr<LogExport>> start(const std::string& target);
  // Writes the queue for at most a second.
  ~LogExport();
  LogExport(const LogExport&) = delete;
  LogExport& operator=(const LogExport&) = delete;

  // Returns the sink for the output of a run. It may outlive this object. The sink is not thread-safe.
  std::shared_ptr<LogSink> make_sink(const ExportedRun&);

 private:
  class Writer;
  class Sink;
  explicit LogExport(std::shared_ptr<Writer> writer) : writer_(std::move(writer)) {}

  const std::shared_ptr<Writer> writer_;  // shared with the thread, which may hang on a disk and is left alone then
};

}  // namespace mycojobs
