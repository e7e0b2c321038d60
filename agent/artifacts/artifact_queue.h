// Queues the artifacts of one run until they are written to the disk. A disk can block (a frozen file system, a network
// file system with a server that hangs). Therefore the thread that receives the bytes only queues them, and the thread
// for the disk (base/strands/strand_pool.h) writes them.
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
  // Number of queued bytes at which is_full() returns true. write() accepts each piece, even if the queue is full.
  static constexpr std::size_t kMaxQueuedBytes = 256U << 10;

  struct WriteResult {
    std::size_t bytes = 0;           // Number of bytes that were removed from the queue.
    std::vector<std::string> notes;  // New lines for the log of the job.
  };
  struct StoreResult {
    std::string artifacts;  // Result of RunArtifacts::finish().
    std::vector<std::string> notes = {};
    std::vector<DroppedArtifact> dropped = {};
  };

  // After the first pop_write_task(), only the returned functions use run_artifacts.
  explicit ArtifactQueue(std::unique_ptr<RunArtifacts> run_artifacts) : run_artifacts_(std::move(run_artifacts)) {}

  void set_redactor(std::shared_ptr<const Redactor> redactor) { run_artifacts_->set_redactor(std::move(redactor)); }
  // Refuses this name, which add_files of make_store_task() uses. REQUIRES: called before the first artifact.
  void set_reserved_name(const std::string& name) { run_artifacts_->set_reserved_name(name); }
  // Accepts every artifact. If the artifact is rejected later, on the thread for the disk, a note is added.
  bool open(const std::string& name, bool is_executable) override;
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
  // last call. add_files, if set, writes further artifacts; it is called on the thread for the disk, too.
  std::function<StoreResult()> make_store_task(std::function<void(ArtifactSink&)> add_files = {});
  // Drops all artifacts instead of make_store_task(). The temporary files are deleted when the returned pointer is
  // released, which can block.
  std::shared_ptr<void> discard() { return std::move(run_artifacts_); }

 private:
  struct Step {
    enum class Kind { open, open_executable, write, close, report_dropped } kind;
    std::string text = {};
    DroppedArtifact dropped = {};
  };
  void add_step(Step);
  static void apply_steps(const std::vector<Step>&, RunArtifacts& run_artifacts);

  std::shared_ptr<RunArtifacts> run_artifacts_;
  std::vector<Step> steps_;
  std::size_t step_bytes_ = 0;    // Size of steps_.
  std::size_t queued_bytes_ = 0;  // Size of steps_ and of the steps that are being written.
  bool is_unused_ = true, is_writing_ = false;
};

}  // namespace mycojobs
