#include "process.h"

#include <algorithm>

#include "base/parse.h"

namespace mycojobs::sim {

Script parse_script(const std::string& text) {
  const std::size_t blank = std::min(text.find(' '), text.size());
  Script script{text.substr(0, blank), 0};
  if (blank < text.size()) parse_u64(text.substr(blank + 1), script.takes);
  return script;
}

Process::Process(World& world, Witness& witness, const Host& host, Facts facts, Callbacks callbacks)
    : Actor(nullptr),
      world_(world),
      witness_(witness),
      host_(host),
      facts_(std::move(facts)),
      callbacks_(std::move(callbacks)),
      ends_at_(world.now() + facts_.script.takes) {
  if (facts_.script.kind == "lines") {
    writes_every_ = facts_.script.takes / 4 + 1;
    writes_at_ = world.now() + writes_every_;
  }
  world_.add(*this);
  witness_.began(facts_.job, facts_.epoch, host_.name);
}

Ms Process::fence_time() const {
  return facts_.spec.fence_boot_ms == 0 ? kNever : host_.clock.world_time(facts_.spec.fence_boot_ms);
}

Ms Process::due() const {
  if (gone_) return kNever;
  return std::min({ends_at_, writes_at_, killed_at_, dies_at_, fence_time()});
}

void Process::step() {
  const Ms now = world_.now();
  if (now >= dies_at_ || now >= fence_time()) return end(RunStatus::lost);
  if (now >= killed_at_) return end(RunStatus::cancelled);
  if (now >= writes_at_ && now < ends_at_) {
    writes_at_ = writes_at_ + writes_every_;
    return callbacks_.wrote("at " + std::to_string(writes_at_ - writes_every_));
  }
  const std::string& kind = facts_.script.kind;
  if (kind == "poison") {
    ends_at_ = kNever;
    return callbacks_.poisoned();
  }
  if (kind == "lost" && facts_.deliveries == 1 && facts_.attempt == 1) return end(RunStatus::lost);
  const bool fails = kind == "fail" || (kind == "flaky" && facts_.attempt == 1);
  end(fails ? RunStatus::exit : RunStatus::ok);
}

void Process::kill(KillReason reason, Ms grace) {
  if (reason == KillReason::fenced) return die_at(world_.now());
  constexpr Ms kObeys = 5;
  killed_at_ = std::min(killed_at_, world_.now() + (facts_.script.kind == "stubborn" ? grace : kObeys));
}

void Process::fence(std::uint64_t boot_ms) { facts_.spec.fence_boot_ms = boot_ms; }

void Process::end(RunStatus status) {
  gone_ = true;
  world_.note("    the process of " + facts_.job + " ends: " +
              (status == RunStatus::ok          ? "well"
               : status == RunStatus::lost      ? "lost"
               : status == RunStatus::cancelled ? "cancelled"
                                                : "failed"));
  witness_.ended(facts_.job, facts_.epoch, status == RunStatus::ok);
  callbacks_.ended(status);
}

}  // namespace mycojobs::sim
