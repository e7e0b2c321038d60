// Class Round: selection of the processes to kill or stop.
#include <algorithm>
#include <csignal>

#include "chaos/round.h"

namespace mycojobs::test {
namespace {

// Either shorter or longer than a lease.
std::int64_t stop_length(Random& random) {
  return pick(random, 2) == 0 ? between(random, 200'000, 1'000'000) : between(random, kLeaseUs + 200'000, 5'000'000);
}

}  // namespace

// Plays the first card of the deck that has a matching process.
void Round::kill_something() {
  for (auto card = deck_.begin(); card != deck_.end(); ++card) {
    if (!(card->what == Component::redis ? kill_redis(*card) : kill_process(*card))) continue;
    ++tally_[{card->what, card->signal}];
    deck_.erase(card);
    break;
  }
  next_kill_us_ = boot_us() + between(random_, settings_.pause_us / 3, settings_.pause_us * 5 / 3);
}

bool Round::kill_redis(const Card& card) {
  const auto all = witness_->latest();
  const auto server =
      std::find_if(all.begin(), all.end(), [](const auto& each) { return each.what == Component::redis; });
  const bool is_stopped = std::any_of(stopped_.begin(), stopped_.end(),
                                      [](const auto& each) { return each.process.what == Component::redis; });
  if (server == all.end() || redis_start_us_ != 0 || is_stopped) return false;
  if (card.signal == SIGKILL) {
    redis_.kill();
    note("kill redis");
    redis_start_us_ = boot_us() + between(random_, 0, 800'000);
    return true;
  }
  if (!signal_process(*server, card.signal)) return false;
  note("stop " + server->to_text());
  stopped_.push_back({*server, boot_us() + stop_length(random_)});
  return true;
}

bool Round::kill_process(const Card& card) {
  const auto all = witness_->latest();
  const auto stopped_below = [&](pid_t launcher, Component what) {
    return std::any_of(stopped_.begin(), stopped_.end(), [&](const PausedProcess& each) {
      return each.process.launcher == launcher && each.process.what == what;
    });
  };
  std::vector<ProcessSeen> choice;
  for (const auto& each : all) {
    if (each.what != card.what || each.state == 'T') continue;
    // The init of a job and the launcher both enforce the job's fence. One of them must be able to run.
    if (card.signal == SIGSTOP && each.what == Component::init && stopped_below(each.launcher, Component::launcher))
      continue;
    if (card.signal == SIGSTOP && each.what == Component::launcher && stopped_below(each.pid, Component::init))
      continue;
    choice.push_back(each);
  }
  if (choice.empty()) return false;
  const ProcessSeen victim = choice[pick(random_, choice.size())];
  if (!signal_process(victim, card.signal)) return false;
  note((card.signal == SIGKILL ? "kill " : "stop ") + victim.to_text());
  if (card.signal == SIGKILL && (victim.what == Component::init || victim.what == Component::job))
    mark_hit(victim, all);
  if (card.signal == SIGSTOP) stopped_.push_back({victim, boot_us() + stop_length(random_)});
  if (!card.with_agent) return true;
  const auto above = std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.pid == victim.agent; });
  if (above != all.end() && signal_process(*above, SIGKILL)) {
    note("kill " + above->to_text());
    ++tally_[{Component::agent, SIGKILL}];
  }
  return true;
}

// The run of the process is identified by the name of init's child, or of the process itself.
void Round::mark_hit(const ProcessSeen& victim, const std::vector<ProcessSeen>& all) {
  bool named = false;
  for (const auto& each : all) {
    ProcessName name;
    if ((each.pid != victim.pid && each.parent != victim.pid) || !parse_process_name(each.comm, name)) continue;
    hits_.insert(name.job);
    named = true;
  }
  if (!named) ++unnamed_hits_;
}

}  // namespace mycojobs::test
