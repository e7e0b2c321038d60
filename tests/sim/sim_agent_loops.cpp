// The agent's other threads: run loop, reporter, lease keeper, housekeeper, prerequisite checker.
#include <algorithm>

#include "domain/prerequisites.h"
#include "sim_agent.h"
#include "worker/launcher_watch.h"
#include "worker/store_health.h"

namespace mycojobs::sim {
namespace {

constexpr std::size_t kBatch = 256;                                                 // as in agent/worker/reporter.cpp
constexpr std::uint32_t kLookEveryMs = 250, kLookAtOnce = 64, kLookAgainMs = 1000;  // prerequisite_checker.cpp

}  // namespace

void SimAgent::order(Order order) {
  orders_.push_back(std::move(order));
  run_loop_.wake();
}

// RunLoop::loop() and JobRuns: pipes, ends, orders.
void SimAgent::run_jobs() {
  for (auto& [number, run] : runs_) pass_on_output(number, run);
  std::vector<RunNumber> over;
  for (auto& [number, run] : runs_) {
    if (run.outcome) over.push_back(number);
  }
  for (const RunNumber number : over) {
    end(number, runs_.at(number));
    runs_.erase(number);
  }
  while (!orders_.empty()) {
    Order order = std::move(orders_.front());
    orders_.pop_front();
    obey(order);
  }
}

void SimAgent::obey(Order& order) {
  if (auto* start = std::get_if<Begin>(&order)) return begin(*start);
  const auto* fence = std::get_if<Fence>(&order);
  const auto* kill = std::get_if<Kill>(&order);
  const auto run = runs_.find(fence != nullptr ? fence->run : kill->run);
  if (run == runs_.end() || run->second.process->gone()) return;
  if (fence != nullptr) return run->second.process->fence(fence->boot_ms);
  run->second.process->kill(kill->reason, kill->reason == KillReason::cancelled ? settings_.grace_ms : 0);
}

void SimAgent::begin(Begin& start) {
  if (host_.failing_launches > 0) {
    --host_.failing_launches;
    post(Outgoing{start.run, Release{start.claim, "no descriptors left", false}, true});
    resting_until_boot_ = host_.clock.boot_ms() + LauncherWatch::kReviveMs;
    return;
  }
  if (host_.clock.boot_ms() >= start.facts.spec.fence_boot_ms) {
    // No process begins whose fence has passed.
    return post(Outgoing{start.run, Release{start.claim, "its lease has ended", false}, true});
  }
  const RunNumber number = start.run;
  Run& run = runs_[number];
  run.claim = std::move(start.claim);
  run.attempt = start.facts.attempt;
  run.retries = start.retries;
  const auto wrote = [this, number](const std::string& line) {
    runs_.at(number).unread.push_back(line);
    run_loop_.wake();
  };
  const auto ended = [this, number](RunStatus status) {
    runs_.at(number).outcome = status;
    run_loop_.wake();
  };
  run.process = std::make_unique<Process>(world_, witness_, host_, start.facts,
                                          Process::Callbacks{wrote, ended, [this] { world_.kill(*this); }});
}

void SimAgent::pass_on_output(RunNumber number, Run& run) {
  if (run.unread.empty()) return;
  LogAppend append{run.claim, {}};
  for (std::string& line : run.unread) {
    append.lines.push_back({++run.lines, host_.clock.unix_ms(), LogStream::out, std::move(line)});
  }
  run.unread.clear();
  post(Outgoing{number, std::move(append), false});
}

void SimAgent::end(RunNumber number, Run& run) {
  if (*run.outcome == RunStatus::lost) {
    return post(Outgoing{number, Release{run.claim, "lost", true}, true});
  }
  const JobEnd end = end_of(run);
  const double chance = static_cast<double>(world_.below(1000)) / 1000;
  const auto again = retry_after(settings_.retry, end, run.attempt, run.retries, chance);
  post(Outgoing{number, EndReport{run.claim, end, again}, true});
}

JobEnd SimAgent::end_of(const Run& run) const {
  JobEnd end;
  if (*run.outcome == RunStatus::ok) {
    end.status = JobStatus::finished;
    end.detail = "ok";
    end.result["of"] = run.claim.job_key;
  } else {
    end.detail = *run.outcome == RunStatus::cancelled ? "cancelled" : "exit";
    end.error = end.detail;
  }
  return end;
}

void SimAgent::post(Outgoing outgoing) {
  pending_.push_back(std::move(outgoing));
  if (report_failures_ == 0) reporter_.wake();
}

// Reporter::send_some(): what could not be stored is tried again in the same order.
void SimAgent::report() {
  if (pending_.empty()) return;
  const std::size_t count = std::min(pending_.size(), kBatch);
  std::vector<Report> batch;
  for (std::size_t i = 0; i < count; ++i) batch.push_back(pending_[i].report);
  const std::uint64_t before = host_.clock.boot_ms();
  const auto answers = report_store_->report(kContext, batch);
  if (killed()) return;
  if (!answers) {
    const auto pause = static_cast<Ms>(retry_pause_ms(++report_failures_));
    return reporter_.after(host_.clock.boot_ms() - before + pause);
  }
  report_failures_ = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Outgoing outgoing = std::move(pending_.front());
    pending_.pop_front();
    if (const auto& answer = (*answers)[i]; !answer) world_.note("  " + name() + " report: " + answer.error().message);
    if (outgoing.last) settled(outgoing.run);
  }
  if (!pending_.empty()) reporter_.wake();
}

void SimAgent::settled(RunNumber run) {
  claims_.erase(run);
  ++free_;
  called_ = true;
  intake_.wake();
}

// LeaseKeeper::loop()
void SimAgent::beat() {
  const std::uint64_t began = host_.clock.boot_ms();
  bool ok = false;
  if (lease_pauses_.may_try(kContext)) {
    ok = renew() && !killed() && hold();
    if (ok) {
      lease_pauses_.worked(kContext);
    } else {
      lease_pauses_.failed(kContext, began);
    }
  }
  lease_failures_ = ok ? 0 : lease_failures_ + 1;
  keeper_.after(ok ? settings_.lease_ms / 3 : static_cast<Ms>(retry_pause_ms(lease_failures_)));
}

bool SimAgent::renew() {
  std::vector<RunNumber> runs;
  std::vector<ClaimRef> claims;
  for (const auto& [run, claim] : claims_) {
    runs.push_back(run);
    claims.push_back(claim);
  }
  if (runs.empty()) return true;
  const std::uint64_t sent = host_.clock.boot_ms();
  const auto answers = lease_store_->renew(kContext, claims, settings_.lease_ms);
  if (!answers) return false;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Renewal answer = (*answers)[i];
    if (answer == Renewal::cancel) order(Kill{runs[i], KillReason::cancelled});
    if (answer == Renewal::stale) {
      order(Kill{runs[i], KillReason::fenced});
    } else {
      order(Fence{runs[i], fence_after(sent, settings_.lease_ms)});
    }
  }
  return true;
}

bool SimAgent::hold() {
  RunnerHold held_by;
  const auto held = lease_store_->hold_runner(kContext, settings_.runner, self_, settings_.lease_ms, "", held_by);
  if (held) return true;
  if (held.error().code != Code::conflict) return false;
  // Another instance has our id: drain and leave.
  if (!std::exchange(runner_lost_, true)) drain();
  return true;
}

// Housekeeper::round(), of one context.
void SimAgent::keep_house() {
  Ms pause = 1000;
  if (house_pauses_.may_try(kContext)) {
    const std::uint64_t began = host_.clock.boot_ms();
    const auto next = housekeeping_.look_after(*house_store_, kContext);
    if (killed()) return;
    if (next) {
      house_pauses_.worked(kContext);
      return house_.after(std::min<Ms>(pause, *next));
    }
    world_.note("  " + name() + " keeping house: " + next.error().message);
    if (next.error().code == Code::unavailable) housekeeping_.blind(kContext);
    house_pauses_.failed(kContext, began);
  }
  house_.after(std::min<Ms>(pause, house_pauses_.left_ms(kContext)));
}

// PrerequisiteChecker::look(), of conditions that time alone meets.
void SimAgent::check_waiting() {
  waiting_.after(kLookEveryMs);
  const std::uint64_t began = host_.clock.boot_ms();
  if (!waiting_pauses_.may_try(kContext)) return;
  const auto jobs = waiting_store_->prerequisites_due(kContext, kLookAtOnce, kLookAgainMs, Looker::agent);
  bool ok = static_cast<bool>(jobs);
  for (std::size_t i = 0; ok && i < jobs->size(); ++i) {
    const AwaitedPrerequisites& job = (*jobs)[i];
    bool met = true;
    std::string impossible;
    for (const std::string& text : job.conditions) {
      const auto condition = parse_condition(text, {});
      if (!condition) impossible = condition.error().message;
      met = met && condition && job.waited_ms >= condition->time_ms;
    }
    if (!met && impossible.empty()) continue;
    const auto done = waiting_store_->prerequisites_settled(kContext, job.job_key, impossible);
    ok = static_cast<bool>(done) || done.error().code != Code::unavailable;
  }
  if (ok) {
    waiting_pauses_.worked(kContext);
  } else {
    waiting_pauses_.failed(kContext, began);
  }
}

}  // namespace mycojobs::sim
