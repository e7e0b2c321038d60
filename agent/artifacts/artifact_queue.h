// The artifacts of one run on their way to the disk. A disk can block (a frozen file system, a network file system
// with a server that hangs). So the thread that receives the bytes only queues them, and the thread for the disk
// (worker/runs/strands.h) writes them.
//
//   conversation --open, write, close--> ArtifactQueue --pop_write_task(), make_store_task()--> strand of the disk
//                                            ^                                                       |     |
//                                            '------------------ on_write_done() <-------------------'     v
//                                                                                                     RunArtifacts
//
// Not thread-safe, except for the functions that pop_write_task() and make_store_task() return: they run on the thread
// for the disk, one after the other in the order in which they were returned.
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
  // Limit for the queued bytes of a run. A single larger piece is accepted.
  static constexpr std::size_t kMaxQueuedBytes = 256U << 10;

  struct WriteResult {
    std::size_t bytes = 0;           // number of bytes that left the queue
    std::vector<std::string> notes;  // lines for the log of the job
  };
  struct StoreResult {
    std::string artifacts;  // result of RunArtifacts::finish()
    std::vector<std::string> notes = {};
    std::vector<DroppedArtifact> dropped = {};
  };

  // From the first pop_write_task() on, only the returned functions use run_artifacts.
  explicit ArtifactQueue(std::unique_ptr<RunArtifacts> run_artifacts) : run_artifacts_(std::move(run_artifacts)) {}

  void set_redactor(std::shared_ptr<const Redactor> redactor) { run_artifacts_->set_redactor(std::move(redactor)); }
  // Accepts every artifact. If the artifact is rejected later, on the thread for the disk, a note is added.
  bool open(const std::string& name, bool executable) override;
  void write(std::string_view bytes) override;
  void close() override;
  void report_dropped(const DroppedArtifact&) override;

  // Returns true if no artifact was received, so that make_store_task() is not needed.
  bool is_unused() const { return is_unused_; }
  // Returns true if the caller should pause until on_write_done().
  bool is_full() const { return queued_bytes_ >= kMaxQueuedBytes; }
  // Returns a function that writes the queued pieces. Returns no value if nothing is queued, or the result of the
  // previous function was not passed to on_write_done().
  std::optional<std::function<WriteResult()>> pop_write_task();
  void on_write_done(const WriteResult&);
  // Returns a function that writes the queued pieces and stores the complete artifacts. REQUIRES: called once, as the
  // last call.
  std::function<StoreResult()> make_store_task();
  // Drops all artifacts instead of make_store_task(). The temporary files are deleted when the returned pointer is
  // released, which can block.
  std::shared_ptr<void> discard() { return std::move(run_artifacts_); }

 private:
  struct Step {
    enum class Kind { open, executable, write, close, dropped } kind;
    std::string text = {};
    DroppedArtifact dropped = {};
  };
  void add_step(Step);
  static void apply_steps(const std::vector<Step>&, RunArtifacts& run_artifacts);

  std::shared_ptr<RunArtifacts> run_artifacts_;
  std::vector<Step> steps_;
  std::size_t step_bytes_ = 0;    // bytes in steps_
  std::size_t queued_bytes_ = 0;  // bytes in steps_ and bytes that are being written
  bool is_unused_ = true, is_writing_ = false;
};

}  // namespace mycojobs
