// The simulated processes of jobs. The kinds of scripts are described at JobScript.
#include "process.h"

#include <algorithm>

#include "base/parse.h"

namespace mycojobs::sim {

JobScript parse_job_script(const std::string& text) {
  const std::size_t space = std::min(text.find(' '), text.size());
  JobScript script{text.substr(0, space), 0};
  if (space < text.size()) parse_u64(text.substr(space + 1), script.duration_ms);
  return script;
}

Process::Process(World& world, InvariantChecker& checker, const Host& host, Parameters parameters, Callbacks callbacks)
    : Actor(nullptr),
      world_(world),
      checker_(checker),
      host_(host),
      parameters_(std::move(parameters)),
      callbacks_(std::move(callbacks)),
      ends_at_(world.now() + parameters_.script.duration_ms) {
  if (parameters_.script.kind == "lines") {
    write_interval_ms_ = parameters_.script.duration_ms / 4 + 1;
    writes_at_ = world.now() + write_interval_ms_;
  }
  world_.add(*this);
  checker_.on_process_started(parameters_.job, parameters_.epoch, host_.name);
}

Ms Process::fence_time() const {
  return parameters_.spec.fence_boot_ms == 0 ? kNever : host_.clock.world_time(parameters_.spec.fence_boot_ms);
}

Ms Process::due() const {
  if (has_ended_) return kNever;
  return std::min({ends_at_, writes_at_, killed_at_, dies_at_, fence_time()});
}

void Process::step() {
  const Ms now = world_.now();
  if (now >= dies_at_ || now >= fence_time()) return end(RunStatus::lost);
  if (now >= killed_at_) return end(RunStatus::cancelled);
  if (now >= writes_at_ && now < ends_at_) {
    writes_at_ = writes_at_ + write_interval_ms_;
    return callbacks_.on_line("at " + std::to_string(writes_at_ - write_interval_ms_));
  }
  const std::string& kind = parameters_.script.kind;
  if (kind == "poison") {
    ends_at_ = kNever;
    return callbacks_.on_poisoned();
  }
  if (kind == "lost" && parameters_.deliveries == 1 && parameters_.attempt == 1) return end(RunStatus::lost);
  const bool fails = kind == "fail" || (kind == "flaky" && parameters_.attempt == 1);
  end(fails ? RunStatus::exit : RunStatus::ok);
}

void Process::kill(KillReason reason, Ms grace) {
  if (reason == KillReason::fenced) return die_at(world_.now());
  constexpr Ms kObedientKillDelayMs = 5;
  killed_at_ =
      std::min(killed_at_, world_.now() + (parameters_.script.kind == "stubborn" ? grace : kObedientKillDelayMs));
}

void Process::fence(std::uint64_t boot_ms) { parameters_.spec.fence_boot_ms = boot_ms; }

void Process::end(RunStatus status) {
  has_ended_ = true;
  world_.note("    the process of " + parameters_.job + " ends: " +
              (status == RunStatus::ok          ? "successfully"
               : status == RunStatus::lost      ? "lost"
               : status == RunStatus::cancelled ? "cancelled"
                                                : "failed"));
  checker_.on_process_ended(parameters_.job, parameters_.epoch, status == RunStatus::ok);
  callbacks_.on_ended(status);
}

}  // namespace mycojobs::sim
