// The artifacts of one run on their way to the disk. A disk can block (a frozen file system, a network file system
// with a server that hangs). So the thread that receives the bytes only queues them, and the thread for the disk
// (worker/runs/strands.h) writes them.
//
//   conversation --open, write, close--> ArtifactQueue --next(), finish()--> work on the disk's lane --> RunArtifacts
//                                            ^                                   |
//                                            '------------ done() <--------------'
//
// Not thread-safe, except for the functions that next() and finish() return: they run on the thread for the disk, one
// after the other in the order in which they were returned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "artifacts/job_artifacts.h"

namespace mycojobs {

class ArtifactQueue final : public ArtifactSink {
 public:
  static constexpr std::size_t kMaxBytes = 256U << 10;  // queued bytes of a run; a single larger piece is accepted

  struct WriteResult {
    std::size_t bytes = 0;           // number of bytes that left the queue
    std::vector<std::string> notes;  // lines for the log of the job
  };
  struct StoreResult {
    std::string artifacts;  // RunArtifacts::finish()
    std::vector<std::string> notes = {};
    std::vector<DroppedArtifact> dropped = {};
  };

  // From the first next() on, only the returned functions use `disk`.
  explicit ArtifactQueue(std::unique_ptr<RunArtifacts> disk) : disk_(std::move(disk)) {}

  void set_redactor(std::shared_ptr<const Redactor> redactor) { disk_->keep_out(std::move(redactor)); }
  // Accepts every artifact. A refusal is found when the artifact is written, and results in a note.
  bool open(const std::string& name, bool executable) override;
  void write(std::string_view bytes) override;
  void close() override;
  void report_dropped(const DroppedArtifact&) override;

  bool is_untouched() const { return untouched_; }              // No artifact was received, so finish() is not needed.
  bool is_full() const { return waiting_bytes_ >= kMaxBytes; }  // The caller should pause until done().
  // Returns a function that writes the queued pieces. Returns no value if nothing is queued, or the previous function
  // has not been reported by done().
  std::optional<std::function<WriteResult()>> next();
  void done(const WriteResult&);
  // Returns a function that writes the rest and stores the complete artifacts. REQUIRES: called once, as the last call.
  std::function<StoreResult()> finish();
  // Replaces finish(): the temporary files are deleted when the returned pointer is released.
  std::shared_ptr<void> abort_write() { return std::move(disk_); }

 private:
  struct Step {
    enum class Kind { open, executable, write, close, dropped } kind;
    std::string text = {};
    DroppedArtifact dropped = {};
  };
  void add(Step);
  static void take(const std::vector<Step>&, RunArtifacts& disk);

  std::shared_ptr<RunArtifacts> disk_;
  std::vector<Step> steps_;
  std::size_t step_bytes_ = 0;     // bytes in steps_
  std::size_t waiting_bytes_ = 0;  // bytes in steps_ and bytes that are being written
  bool untouched_ = true, writing_ = false;
};

}  // namespace mycojobs
