#include "workflow/engine.h"

#include <algorithm>
#include <utility>

namespace mycojobs::workflow {
namespace {

constexpr const char* kRemedy =
    "; remedy: install mycojobs with its helpers, and let the kernel have seccomp filters (CONFIG_SECCOMP_FILTER)";

}  // namespace

Result<std::unique_ptr<EngineProcess>> WorkflowEngine::take(std::uint64_t context) {
  std::unique_ptr<EngineProcess> replaced;  // is killed when the lock is not held
  {
    std::unique_lock lock(mutex_);
    freed_.wait(lock, [&] { return !idle_.empty() || running_ < std::max<std::size_t>(options_.processes, 1); });
    const auto own =
        std::find_if(idle_.begin(), idle_.end(), [&](const Idle& each) { return each.context == context; });
    if (own != idle_.end()) {
      auto process = std::move(own->process);
      idle_.erase(own);
      return process;
    }
    if (running_ < options_.processes || idle_.empty()) {
      ++running_;
    } else {
      replaced = std::move(idle_.back().process);
      idle_.pop_back();
    }
    ++started_;
  }
  replaced.reset();
  auto process =
      EngineProcess::start(options_.program, options_.instructions, options_.memory_bytes, options_.start_ms);
  if (process) return process;
  give_back(context, nullptr);
  const bool here = process.error().code == Code::unsupported || process.error().code == Code::io;
  if (here) process.error().message += kRemedy;
  if (!here) process.error().code = Code::unavailable;
  return fail(std::move(process).error(), "workflow engine");
}

// nullptr: it is gone.
void WorkflowEngine::give_back(std::uint64_t context, std::unique_ptr<EngineProcess> process) {
  {
    const std::lock_guard lock(mutex_);
    if (process) {
      idle_.push_front({context, std::move(process)});
    } else {
      --running_;
    }
  }
  freed_.notify_one();
}

Result<StepAnswer> WorkflowEngine::step(const Program& program, const StepRequest& request) {
  MJ_TRY(bytes, encode_request(request));
  bool late = true;
  std::string why;
  for (std::uint32_t patience : {1U, 4U}) {
    MJ_TRY(process, take(program.context()));
    auto answer = process->step(program, bytes, options_.wall_ms * patience);
    if (answer) {
      give_back(program.context(), std::move(process));
      return answer;
    }
    late = late && process->timed_out();
    why = answer.error().message;
    process.reset();
    give_back(program.context(), nullptr);
  }
  if (!late) return fail(Code::unavailable, "workflow engine: two processes failed in this step, the last: " + why);
  StepAnswer answer;
  answer.failure = StepFailure{StepFailureKind::limit, "the step does not end: " + why + ", in a second attempt", {}};
  return answer;
}

Result<std::string> WorkflowEngine::name() {
  MJ_TRY(process, take(0));
  std::string name = process->name();
  give_back(0, std::move(process));
  return name;
}

std::uint64_t WorkflowEngine::started() const {
  const std::lock_guard lock(mutex_);
  return started_;
}

}  // namespace mycojobs::workflow
