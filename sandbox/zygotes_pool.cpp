// The spares of the zygotes: pool.h keeps the books, here they are forked, handed over and ended.
#include <fmt/core.h>

#include "sandbox/zygotes.h"

namespace mycojobs::sandbox {
namespace {

constexpr std::uint32_t kMostSparesUnanswered = 2;
constexpr std::uint64_t kTendMs = 5000;

}  // namespace

// A spare may have died while it waited: then the next. But where one could not be given this run's limits, the others
// could not either, and are kept for other runs.
bool Zygotes::adopt(Zygote& zygote, Run& run) {
  while (const auto id = zygote.pool.take(run.spec)) {
    Run* spare = runs_.find(*id);
    if (spare == nullptr) continue;
    if (runs_.adopt(*spare, run)) {
      if (spare->runs > 1) zygote.pool.lend(*id, spare->spec);
      count_run(zygote);
      return true;
    }
    if (spare->kill_wanted) return false;
  }
  return false;
}

// Behind the runs that wait, and few at a time: their set-up must not be in the way of those that come.
void Zygotes::refill(Zygote& zygote) {
  while (!zygote.problem && zygote.state == State::serving && zygote.waiting.empty() &&
         zygote.unanswered < kMostSparesUnanswered && zygote.pool.wanted() > 0) {
    Run& spare = runs_.add_spare(zygote.pool.shape());
    zygote.pool.forming(spare.id);
    if (!fork(zygote, spare)) return;
  }
}

void Zygotes::confined(Run& run) {
  Zygote* zygote = find(run.zygote);
  if (zygote == nullptr || !run.spare) return;
  zygote->pool.ready(run.id);
  refill(*zygote);
}

// Runs that wait are begun by whoever has called: the zygote or the slot itself has had something to say.
bool Zygotes::turned(Run& run) {
  Zygote* zygote = find(run.zygote);
  if (zygote == nullptr || zygote->problem || zygote->state != State::serving || !zygote->pool.back(run.id, run.spec))
    return false;
  feed(*zygote);
  return true;
}

void Zygotes::tend() {
  tending_ = loop_.at(boot_ms() + kTendMs, [this] { tend(); });
  for (const auto& [id, zygote] : zygotes_) {
    discard(zygote->pool.tend());
    const bool old = zygote->since_boot_ms != 0 && settings_.age_each_ms != 0 &&
                     boot_ms() - zygote->since_boot_ms > settings_.age_each_ms;
    if (zygote->state == State::serving && outlived(*zygote)) {
      replace(*zygote);
    } else if (old && zygote->served > 0 && zygote->state == State::serving) {
      zygote->since_boot_ms = boot_ms();
      replace(*zygote);
    }
  }
}

// Its jobs would run what is not installed any more.
bool Zygotes::outlived(Zygote& zygote) {
  std::string changed = zygote.loaded.changed();
  if (changed.empty()) return false;
  if (changed != zygote.changed)
    warn_(fmt::format("zygote {} of context {}: {} has changed since it was loaded: it is replaced", zygote.key.first,
                      zygote.key.second, changed));
  zygote.changed = std::move(changed);
  return true;
}

// One that cannot be set up, or dies of it (of its limits, say), is no loss. But the next would fail as well, and so on
// without end: then a run of its own will say why.
void Zygotes::spare_ended(Zygote& zygote, const Run& run) {
  zygote.pool.gone(run.id);
  if (!zygote.pool.hopeless()) return;
  warn_(fmt::format("zygote {}: no more spares like this: {}", zygote.key.first, run.outcome.reason));
  discard(zygote.pool.give_up());
}

void Zygotes::discard(const std::vector<std::uint64_t>& spares) {
  for (const std::uint64_t spare : spares) {
    if (Run* run = runs_.find(spare); run != nullptr) runs_.discard(*run);
  }
}

}  // namespace mycojobs::sandbox
