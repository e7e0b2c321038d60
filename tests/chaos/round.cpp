#include "chaos/round.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

namespace mycojobs::test {
namespace {

constexpr auto kIterationPause = std::chrono::milliseconds(5);
constexpr std::int64_t kSecondUs = 1'000'000;
constexpr double kSettleSeconds = 120;

std::string get_tail(const std::string& text) {
  constexpr std::size_t kBytes = 4000;
  return text.size() <= kBytes ? text : "... " + text.substr(text.size() - kBytes);
}

std::vector<std::string> redis_options(bool fsync_always) {
  // A small limit, so that the file is rewritten several times and Redis is killed during rewrites.
  return {"--appendfsync", fsync_always ? "always" : "everysec", "--auto-aof-rewrite-min-size", "4mb"};
}

}  // namespace

std::unique_ptr<Process> start_chaos_agent(const TempDir& folder, const std::string& url, int runner,
                                           const std::string& contexts, std::vector<std::string> environment) {
  const std::string id = std::to_string(runner);
  std::istringstream options(
      "--slots 3 --grace 300ms --job-max-deliveries 1000 --sandbox-memory 48MiB --job-output-bytes 64KiB");
  std::vector<std::string> argv{program_path(), "agent", "--redis", url, "--runner", id, "--context", contexts};
  for (std::string word; options >> word;) argv.push_back(word);
  argv.insert(argv.end(),
              {"--lease", std::to_string(kLeaseUs / kSecondUs) + "s", "--state-dir", folder / ("state" + id)});
  environment.push_back("TMPDIR=" + (folder / "tmp"));
  return std::make_unique<Process>(folder, argv, std::move(environment));
}

ChaosRound::ChaosRound(const TempDir& folder, const RoundSettings& settings)
    : folder_(folder),
      settings_(settings),
      random_(settings.seed),
      redis_(folder, redis_options(settings.fsync_always)),
      workload_(folder, redis_, random_) {
  tree_.set_component(redis_.pid(), Component::redis);
  witness_ = std::make_unique<Witness>(tree_);
  for (int runner = 1; runner <= kAgents; ++runner) agents_.push_back({runner, nullptr, 0});
}

std::vector<std::string> ChaosRound::run() {
  plan_signals();
  restart_ended_agents(true);
  for (const auto& agent : agents_) {
    if (!wait_until_registered(redis_, agent.runner))
      problems_.push_back("an agent did not start: " + agent.process->err());
  }
  if (problems_.empty()) {
    run_faults();
    wait_until_settled();
  }
  return problems_;
}

void ChaosRound::plan_signals() {
  struct Share {
    PlannedSignal signal;
    int count;
  };
  constexpr Share kShares[] = {
      {{Component::agent, SIGKILL}, 12},
      {{Component::agent, SIGSTOP}, 5},
      {{Component::launcher, SIGKILL}, 13},
      {{Component::launcher, SIGSTOP}, 3},
      {{Component::launcher, SIGSTOP, true}, 3},
      {{Component::guardian, SIGKILL}, 10},
      {{Component::guardian, SIGSTOP}, 3},
      {{Component::zygote, SIGKILL}, 14},
      {{Component::zygote, SIGSTOP}, 5},
      {{Component::init, SIGKILL}, 24},
      {{Component::init, SIGSTOP}, 6},
      {{Component::job, SIGKILL}, 26},
      {{Component::job, SIGSTOP}, 6},
      {{Component::redis, SIGKILL}, 12},
      {{Component::redis, SIGSTOP}, 4},
  };
  for (const auto& share : kShares)
    planned_signals_.insert(planned_signals_.end(), static_cast<std::size_t>(share.count), share.signal);
  std::shuffle(planned_signals_.begin(), planned_signals_.end(), random_);
}

void ChaosRound::run_faults() {
  next_signal_us_ = boot_time_us() + kSecondUs;
  while (!planned_signals_.empty() && problems_.empty()) run_once(true);
}

void ChaosRound::run_once(bool faults) {
  const std::int64_t now_us = boot_time_us();
  resume_stopped(!faults);
  if (redis_restart_due_us_ != 0 && (now_us >= redis_restart_due_us_ || !faults)) {
    redis_.start();
    log_action("start redis " + std::to_string(redis_.pid()));
    tree_.set_component(redis_.pid(), Component::redis);
    redis_restart_due_us_ = 0;
    check_after_redis_restart();
  }
  restart_ended_agents(!faults);
  if (redis_restart_due_us_ == 0) workload_.run_once(faults);
  write_mark();
  if (faults && now_us >= next_signal_us_) send_next_signal();
  std::this_thread::sleep_for(kIterationPause);
}

// Faults have ended, so all planned jobs must end now.
void ChaosRound::wait_until_settled() {
  const std::int64_t begin_us = boot_time_us();
  const bool ended = eventually(
      [this] {
        run_once(false);
        return workload_.all_ended();
      },
      Seconds(kSettleSeconds));
  settled_us_ = boot_time_us() - begin_us;
  if (!ended) problems_.push_back("some jobs have not ended long after the faults have");
}

void ChaosRound::restart_ended_agents(bool at_once) {
  for (auto& agent : agents_) {
    const std::int64_t now_us = boot_time_us();
    if (agent.process && !agent.process->is_running()) {
      const ProcessResult exit_result = agent.process->wait();
      // Expected exit codes. 69: the agent could not start because Redis was not running. 75: its predecessor still
      // holds the id.
      if (exit_result.code != 128 + SIGKILL && exit_result.code != 69 && exit_result.code != 75) {
        problems_.push_back("an agent left by itself with " + std::to_string(exit_result.code) + ": " +
                            get_tail(exit_result.err));
      }
      agent.process.reset();
      agent.start_us = now_us + pick_between(random_, 0, kSecondUs);
    }
    if (agent.process || (now_us < agent.start_us && !at_once)) continue;
    agent.process = start_chaos_agent(folder_, redis_.url(), agent.runner, "1,2");
    tree_.set_component(agent.process->pid(), Component::agent);
    log_action("start agent " + std::to_string(agent.runner) + " as " + std::to_string(agent.process->pid()));
  }
}

// Counts in Redis, to check after a restart whether the last acknowledged write was kept.
void ChaosRound::write_mark() {
  if (redis_restart_due_us_ != 0) return;
  if (plain_redis().command(0, {"SET", "chaos:mark", std::to_string(mark_ + 1)})) ++mark_;
}

void ChaosRound::check_after_redis_restart() {
  const auto mark = plain_redis().command(0, {"GET", "chaos:mark"});
  const bool lost_tail = mark && mark->number() < mark_;
  if (lost_tail) ++lost_tail_count_;
  if (lost_tail && settings_.fsync_always) problems_.emplace_back("appendfsync always: an acknowledged write was lost");
  workload_.recheck_acknowledged(lost_tail, problems_);
}

void ChaosRound::resume_stopped(bool at_once) {
  const std::int64_t now_us = boot_time_us();
  std::erase_if(stopped_processes_, [&](const StoppedProcess& process) {
    if (!at_once && now_us < process.continue_us) return false;
    signal_process(process.process, SIGCONT);
    log_action("continue " + process.process.to_text());
    return true;
  });
}

void ChaosRound::log_action(const std::string& action) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::ofstream(folder_ / "acts.txt", std::ios::app)
      << std::chrono::duration_cast<std::chrono::milliseconds>(now).count() << " " << action << "\n";
}

std::vector<std::string> ChaosRound::stop_agents() {
  std::vector<std::string> problems;
  for (auto& agent : agents_) agent.process->signal(SIGTERM);
  for (auto& agent : agents_) {
    const ProcessResult exit_result = agent.process->wait();
    if (exit_result.code == 0) continue;
    problems.push_back("an agent answered TERM with " + std::to_string(exit_result.code) + ": " +
                       get_tail(exit_result.err));
  }
  return problems;
}

}  // namespace mycojobs::test
