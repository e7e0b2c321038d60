// What one run leaves, on its way to the disk. A disk may stand still (a frozen file system, a network one whose server
// is away): so the thread that the bytes come to only takes them, and the disk's lane (worker/lanes.h) writes them.
//
//   conversation --open, write, close--> ArtifactQueue --next(), finish()--> work on the disk's lane --> RunArtifacts
//                                            ^                                   |
//                                            '------------ done() <--------------'
//
// Of one thread, but for the work: that is done piece by piece, in the order in which it was asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker/artifacts.h"

namespace mycojobs {

class ArtifactQueue final : public ArtifactSink {
 public:
  static constexpr std::size_t kMostBytes = 256U << 10;  // of a run that wait; more only of what comes at once

  struct Written {
    std::size_t bytes = 0;           // so many wait no more
    std::vector<std::string> notes;  // for the job's log
  };
  struct Kept {
    std::string artifacts;  // RunArtifacts::finish()
    std::vector<std::string> notes = {};
    std::vector<DroppedArtifact> dropped = {};
  };

  // The disk's side is used by the work alone from the first next() on.
  explicit ArtifactQueue(std::unique_ptr<RunArtifacts> disk) : disk_(std::move(disk)) {}

  void keep_out(std::shared_ptr<const Redactor> redactor) { disk_->keep_out(std::move(redactor)); }
  // Takes whatever comes: what is refused is found out when it is written, and has a note then.
  bool open(const std::string& name, bool executable) override;
  void write(std::string_view bytes) override;
  void close() override;
  void report_dropped(const DroppedArtifact&) override;

  bool is_untouched() const { return untouched_; }               // nothing ever came: there is nothing to finish
  bool is_full() const { return waiting_bytes_ >= kMostBytes; }  // no more should be brought until done()
  // Writes what has come. Nothing: there is none, or a piece is not done yet.
  std::optional<std::function<Written()>> next();
  void done(const Written&);
  // The run has ended: writes the rest and keeps what is whole. Once, and nothing comes behind it.
  std::function<Kept()> finish();
  // Instead of finish(): whoever has this lets the files go together with it.
  std::shared_ptr<void> give_up() { return std::move(disk_); }

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
  std::size_t step_bytes_ = 0;     // of steps_
  std::size_t waiting_bytes_ = 0;  // the same, and what is being written
  bool untouched_ = true, writing_ = false;
};

}  // namespace mycojobs
