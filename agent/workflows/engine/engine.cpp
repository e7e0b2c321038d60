#include "workflows/engine/engine.h"

#include <algorithm>
#include <map>
#include <utility>

namespace mycojobs::workflow {
namespace {

constexpr const char* kRemedy =
    "; remedy: install mycojobs with its helpers, and let the kernel have seccomp filters (CONFIG_SECCOMP_FILTER)";

}  // namespace

ProcessKind WorkflowEngine::standard_kind(std::uint64_t context) const {
  return {context, 0, options_.instructions, options_.memory_bytes, kStepCounting};
}

StepTimeLimits WorkflowEngine::time_for(const ProcessKind& kind) const {
  StepTimeLimits time = options_.time;
  const std::uint64_t scaled_ms = time.cpu_ms * std::max<std::uint64_t>(kind.instructions / kStandardInstructions, 1);
  time.cpu_ms = static_cast<std::uint32_t>(std::min<std::uint64_t>(scaled_ms, time.wall_ms));
  return time;
}

// Removes the least recently used process of the owner with the most idle processes.
std::unique_ptr<EngineProcess> WorkflowEngine::pop_replaced() {
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::size_t> idle_counts;
  for (const Idle& entry : idle_) ++idle_counts[{entry.kind.context, entry.kind.owner}];
  std::size_t max = 0;
  for (const auto& [owner, count] : idle_counts) max = std::max(max, count);
  const auto replaced = std::find_if(idle_.rbegin(), idle_.rend(), [&](const Idle& entry) {
    return idle_counts[{entry.kind.context, entry.kind.owner}] == max;
  });
  auto process = std::move(replaced->process);
  idle_.erase(std::next(replaced).base());
  return process;
}

Result<std::unique_ptr<EngineProcess>> WorkflowEngine::acquire_process(const ProcessKind& kind) {
  std::unique_ptr<EngineProcess> replaced;  // destroyed, and thereby killed, after the lock is released
  {
    std::unique_lock lock(mutex_);
    freed_.wait(lock, [&] { return !idle_.empty() || running_ < std::max<std::size_t>(options_.processes, 1); });
    const auto match = std::find_if(idle_.begin(), idle_.end(), [&](const Idle& entry) { return entry.kind == kind; });
    if (match != idle_.end()) {
      auto process = std::move(match->process);
      idle_.erase(match);
      return process;
    }
    if (running_ < options_.processes || idle_.empty()) {
      ++running_;
    } else {
      replaced = pop_replaced();
    }
    ++started_;
  }
  replaced.reset();
  auto process =
      EngineProcess::start(options_.program, kind.instructions, kind.memory_bytes, options_.start_ms, kind.counting);
  if (process) return process;
  release_process(kind, nullptr);
  const bool is_host_problem = process.error().code == Code::unsupported || process.error().code == Code::io;
  if (is_host_problem) process.error().message += kRemedy;
  if (!is_host_problem) process.error().code = Code::unavailable;
  return fail(std::move(process).error(), "workflow engine");
}

// Returns a process to the idle list. `process` is nullptr if the process has ended.
void WorkflowEngine::release_process(const ProcessKind& kind, std::unique_ptr<EngineProcess> process) {
  {
    const std::lock_guard lock(mutex_);
    if (process) {
      idle_.push_front({kind, std::move(process)});
    } else {
      --running_;
    }
  }
  freed_.notify_one();
}

Result<StepAnswer> WorkflowEngine::step(const WorkflowProgram& program, const StepRequest& request) {
  return step(program, request, standard_kind(program.context()));
}

Result<StepAnswer> WorkflowEngine::step(const WorkflowProgram& program, const StepRequest& request,
                                        const ProcessKind& kind) {
  MJ_TRY(bytes, encode(request));
  std::string reason;
  for (int attempt = 0; attempt < 2 && !stopped_; ++attempt) {
    MJ_TRY(process, acquire_process(kind));
    auto answer = process->step(program, bytes, time_for(kind), &stopped_);
    if (answer) {
      release_process(kind, std::move(process));
      return answer;
    }
    const bool has_timed_out = process->timed_out();
    reason = answer.error().message;
    process.reset();
    release_process(kind, nullptr);
    if (has_timed_out) return fail(Code::unavailable, "workflow engine: " + reason + ", and was restarted");
  }
  if (stopped_) return fail(Code::unavailable, "workflow engine: it is being stopped");
  return fail(Code::unavailable, "workflow engine: two processes failed in this step, the last: " + reason);
}

Result<std::string> WorkflowEngine::name() {
  const ProcessKind kind = standard_kind(0);
  MJ_TRY(process, acquire_process(kind));
  std::string name = process->name();
  release_process(kind, std::move(process));
  return name;
}

std::uint64_t WorkflowEngine::started() const {
  const std::lock_guard lock(mutex_);
  return started_;
}

}  // namespace mycojobs::workflow
