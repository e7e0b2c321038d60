#include "artifacts/artifact_queue.h"

#include <utility>

namespace mycojobs {
namespace {

// Accounted size of a step in addition to its text, so that the queue also limits the number of small steps.
constexpr std::size_t kStepOverheadBytes = 64;

}  // namespace

bool ArtifactQueue::open(const std::string& name, bool is_executable) {
  add_step({is_executable ? Step::Kind::open_executable : Step::Kind::open, name});
  return true;
}

void ArtifactQueue::write(std::string_view bytes) { add_step({Step::Kind::write, std::string(bytes)}); }

void ArtifactQueue::close() { add_step({Step::Kind::close}); }

void ArtifactQueue::report_dropped(const DroppedArtifact& dropped) {
  add_step({Step::Kind::report_dropped, {}, dropped});
}

void ArtifactQueue::add_step(Step step) {
  is_unused_ = false;
  const std::size_t bytes = kStepOverheadBytes + step.text.size() + step.dropped.name.size();
  step_bytes_ += bytes;
  queued_bytes_ += bytes;
  steps_.push_back(std::move(step));
}

void ArtifactQueue::apply_steps(const std::vector<Step>& steps, RunArtifacts& run_artifacts) {
  for (const Step& step : steps) {
    switch (step.kind) {
      case Step::Kind::open:
      case Step::Kind::open_executable:
        // If run_artifacts rejects the artifact, it adds a note and ignores the bytes of the artifact.
        (void)run_artifacts.open(step.text, step.kind == Step::Kind::open_executable);
        break;
      case Step::Kind::write:
        run_artifacts.write(step.text);
        break;
      case Step::Kind::close:
        run_artifacts.close();
        break;
      case Step::Kind::report_dropped:
        run_artifacts.report_dropped(step.dropped);
        break;
    }
  }
}

std::optional<std::function<ArtifactQueue::WriteResult()>> ArtifactQueue::pop_write_task() {
  if (steps_.empty() || is_writing_) return std::nullopt;
  is_writing_ = true;
  return [run_artifacts = run_artifacts_, steps = std::exchange(steps_, {}), bytes = std::exchange(step_bytes_, 0)] {
    apply_steps(steps, *run_artifacts);
    return WriteResult{bytes, run_artifacts->consume_notes()};
  };
}

void ArtifactQueue::on_write_done(const WriteResult& written) {
  is_writing_ = false;
  queued_bytes_ -= written.bytes;
}

std::function<ArtifactQueue::StoreResult()> ArtifactQueue::make_store_task(
    std::function<void(ArtifactSink&)> add_files) {
  return [run_artifacts = run_artifacts_, steps = std::exchange(steps_, {}), add_files = std::move(add_files)] {
    apply_steps(steps, *run_artifacts);
    run_artifacts->release_reserved_name();
    if (add_files) add_files(*run_artifacts);
    std::string artifacts = run_artifacts->finish();
    return StoreResult{std::move(artifacts), run_artifacts->consume_notes(), run_artifacts->dropped()};
  };
}

}  // namespace mycojobs
