#include "artifacts/artifact_queue.h"

#include <utility>

namespace mycojobs {
namespace {

// Cost of a step in addition to its bytes, so that many small steps are not cheap.
constexpr std::size_t kStepCost = 64;

}  // namespace

bool ArtifactQueue::open(const std::string& name, bool executable) {
  add({executable ? Step::Kind::executable : Step::Kind::open, name});
  return true;
}

void ArtifactQueue::write(std::string_view bytes) { add({Step::Kind::write, std::string(bytes)}); }

void ArtifactQueue::close() { add({Step::Kind::close}); }

void ArtifactQueue::report_dropped(const DroppedArtifact& dropped) { add({Step::Kind::dropped, {}, dropped}); }

void ArtifactQueue::add(Step step) {
  untouched_ = false;
  const std::size_t cost = kStepCost + step.text.size() + step.dropped.name.size();
  step_bytes_ += cost;
  waiting_bytes_ += cost;
  steps_.push_back(std::move(step));
}

void ArtifactQueue::take(const std::vector<Step>& steps, RunArtifacts& disk) {
  for (const Step& step : steps) {
    switch (step.kind) {
      case Step::Kind::open:
      case Step::Kind::executable:
        // `disk` ignores the bytes of an artifact that it has refused.
        (void)disk.open(step.text, step.kind == Step::Kind::executable);
        break;
      case Step::Kind::write:
        disk.write(step.text);
        break;
      case Step::Kind::close:
        disk.close();
        break;
      case Step::Kind::dropped:
        disk.report_dropped(step.dropped);
        break;
    }
  }
}

std::optional<std::function<ArtifactQueue::WriteResult()>> ArtifactQueue::next() {
  if (steps_.empty() || writing_) return std::nullopt;
  writing_ = true;
  return [disk = disk_, steps = std::exchange(steps_, {}), bytes = std::exchange(step_bytes_, 0)] {
    take(steps, *disk);
    return WriteResult{bytes, disk->take_notes()};
  };
}

void ArtifactQueue::done(const WriteResult& written) {
  writing_ = false;
  waiting_bytes_ -= written.bytes;
}

std::function<ArtifactQueue::StoreResult()> ArtifactQueue::finish() {
  return [disk = disk_, steps = std::exchange(steps_, {})] {
    take(steps, *disk);
    std::string artifacts = disk->finish();
    return StoreResult{std::move(artifacts), disk->take_notes(), disk->dropped()};
  };
}

}  // namespace mycojobs
