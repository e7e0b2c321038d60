#include "chaos/round.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

namespace mycojobs::test {
namespace {

constexpr auto kTurn = std::chrono::milliseconds(5);
constexpr std::int64_t kSecondUs = 1'000'000;
constexpr double kSettleSeconds = 120;

std::string tail(const std::string& text) {
  constexpr std::size_t kBytes = 4000;
  return text.size() <= kBytes ? text : "... " + text.substr(text.size() - kBytes);
}

std::vector<std::string> redis_options(bool always) {
  // A small limit, so that the file is rewritten several times and Redis is killed during rewrites.
  return {"--appendfsync", always ? "always" : "everysec", "--auto-aof-rewrite-min-size", "4mb"};
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

Round::Round(const TempDir& folder, const RoundSettings& settings)
    : folder_(folder),
      settings_(settings),
      random_(settings.seed),
      redis_(folder, redis_options(settings.fsync_always)),
      workload_(folder, redis_, random_) {
  tree_.name(redis_.pid(), Component::redis);
  witness_ = std::make_unique<Witness>(tree_);
  for (int runner = 1; runner <= kAgents; ++runner) agents_.push_back({runner, nullptr, 0});
}

std::vector<std::string> Round::run() {
  deal();
  keep_agents(true);
  for (const auto& agent : agents_) {
    if (!wait_until_registered(redis_, agent.runner))
      problems_.push_back("an agent did not start: " + agent.process->err());
  }
  if (problems_.empty()) {
    play();
    settle();
  }
  return problems_;
}

void Round::deal() {
  struct Share {
    Card card;
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
  for (const auto& share : kShares) deck_.insert(deck_.end(), static_cast<std::size_t>(share.count), share.card);
  std::shuffle(deck_.begin(), deck_.end(), random_);
}

void Round::play() {
  next_kill_us_ = boot_us() + kSecondUs;
  while (!deck_.empty() && problems_.empty()) one_turn(true);
}

void Round::one_turn(bool faults) {
  const std::int64_t now_us = boot_us();
  let_continue(!faults);
  if (redis_start_us_ != 0 && (now_us >= redis_start_us_ || !faults)) {
    redis_.start();
    note("start redis " + std::to_string(redis_.pid()));
    tree_.name(redis_.pid(), Component::redis);
    redis_start_us_ = 0;
    look_after_redis_started();
  }
  keep_agents(!faults);
  if (redis_start_us_ == 0) workload_.turn(faults);
  mark_time();
  if (faults && now_us >= next_kill_us_) kill_something();
  std::this_thread::sleep_for(kTurn);
}

// Faults have ended, so all planned jobs must end now.
void Round::settle() {
  const std::int64_t began_us = boot_us();
  const bool ended = eventually(
      [this] {
        one_turn(false);
        return workload_.all_ended();
      },
      Seconds(kSettleSeconds));
  settled_us_ = boot_us() - began_us;
  if (!ended) problems_.push_back("some jobs have not ended long after the faults have");
}

void Round::keep_agents(bool at_once) {
  for (auto& agent : agents_) {
    const std::int64_t now_us = boot_us();
    if (agent.process && !agent.process->is_running()) {
      const ProcessResult finished = agent.process->wait();
      // Expected exit codes. 69: the agent could not start because Redis was not running. 75: its predecessor still
      // holds the id.
      if (finished.code != 128 + SIGKILL && finished.code != 69 && finished.code != 75) {
        problems_.push_back("an agent left by itself with " + std::to_string(finished.code) + ": " +
                            tail(finished.err));
      }
      agent.process.reset();
      agent.start_us = now_us + between(random_, 0, kSecondUs);
    }
    if (agent.process || (now_us < agent.start_us && !at_once)) continue;
    agent.process = start_chaos_agent(folder_, redis_.url(), agent.runner, "1,2");
    tree_.name(agent.process->pid(), Component::agent);
    note("start agent " + std::to_string(agent.runner) + " as " + std::to_string(agent.process->pid()));
  }
}

// Counts in Redis, to check after a restart whether the last acknowledged write was kept.
void Round::mark_time() {
  if (redis_start_us_ != 0) return;
  if (plain().command(0, {"SET", "chaos:mark", std::to_string(mark_ + 1)})) ++mark_;
}

void Round::look_after_redis_started() {
  const auto mark = plain().command(0, {"GET", "chaos:mark"});
  const bool lost_tail = mark && mark->number() < mark_;
  if (lost_tail) ++lost_tails_;
  if (lost_tail && settings_.fsync_always) problems_.emplace_back("appendfsync always: an acknowledged write was lost");
  workload_.check_again(lost_tail, problems_);
}

void Round::let_continue(bool at_once) {
  const std::int64_t now_us = boot_us();
  std::erase_if(stopped_, [&](const PausedProcess& each) {
    if (!at_once && now_us < each.continue_us) return false;
    signal_process(each.process, SIGCONT);
    note("continue " + each.process.to_text());
    return true;
  });
}

void Round::note(const std::string& act) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::ofstream(folder_ / "acts.txt", std::ios::app)
      << std::chrono::duration_cast<std::chrono::milliseconds>(now).count() << " " << act << "\n";
}

std::vector<std::string> Round::stop_agents() {
  std::vector<std::string> problems;
  for (auto& agent : agents_) agent.process->signal(SIGTERM);
  for (auto& agent : agents_) {
    const ProcessResult finished = agent.process->wait();
    if (finished.code == 0) continue;
    problems.push_back("an agent answered TERM with " + std::to_string(finished.code) + ": " + tail(finished.err));
  }
  return problems;
}

}  // namespace mycojobs::test
