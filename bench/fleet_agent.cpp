// An agent without sandboxes for bench/fleet.py: the whole agent, except that each job ends as soon as it begins. Its
// result has the time at which it began.
//   ninja -C build fleet_agent && build/bin/fleet_agent URL CONTEXTS RUNNER SLOTS STATE_DIR
#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "bench/support.h"
#include "store/redis/redis_stores.h"
#include "telemetry/traces.h"
#include "worker/agent.h"

using namespace mycojobs;

namespace {

// A sandbox of runs that write nothing and succeed at once.
class EmptySandbox final : public Sandbox {
 public:
  Result<RunPipes> launch(const RunSpec& spec) override {
    RunPipes pipes;
    for (int* end : {&pipes.out, &pipes.err, &pipes.channel}) *end = open_closed_pipe();
    pipes.requests = ::fcntl(null_.get(), F_DUPFD_CLOEXEC, 0);
    const std::lock_guard lock(mutex_);
    RunEnded& run = ended_.emplace_back();
    run.run = spec.run;
    run.outcome.status = RunStatus::ok;
    const std::uint64_t one = 1;
    (void)!::write(event_.get(), &one, sizeof one);
    return pipes;
  }
  void kill(std::uint64_t, KillReason, std::uint32_t) override {}
  void fence(std::uint64_t, std::uint64_t) override {}
  void retire_warm_key(const std::string&) override {}
  int event_fd() const override { return event_.get(); }
  std::vector<RunEnded> read_ended() override {
    const std::lock_guard lock(mutex_);
    std::uint64_t count = 0;
    (void)!::read(event_.get(), &count, sizeof count);
    return std::exchange(ended_, {});
  }
  bool alive() const override { return true; }
  Result<void> restart() override { return {}; }

 private:
  static int open_closed_pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
      std::perror("pipe2");
      std::exit(1);
    }
    ::close(ends[1]);
    return ends[0];
  }

  Fd event_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)}, null_{::open("/dev/null", O_WRONLY | O_CLOEXEC)};
  std::mutex mutex_;
  std::vector<RunEnded> ended_;
};

class EmptyExecutor final : public Executor {
 public:
  std::string_view name() const override { return "empty"; }
  std::vector<std::string> script_types() const override { return {"empty"}; }
  std::vector<Stage> stages() const override { return {{"empty", "empty", {}}}; }
  Result<std::string> probe() const override { return "empty 1"; }
  Result<std::unique_ptr<Conversation>> begin(const JobFacts&, ArtifactSink*) const override {
    return std::make_unique<EmptyConversation>();
  }

 private:
  struct EmptyConversation final : Conversation {
    std::string consume_output() override { return {}; }
    void feed(std::string_view) override {}
    std::vector<std::string> consume_notes() override { return {}; }
    JobEnd finish(const Outcome&) const override {
      JobEnd end;
      end.status = JobStatus::finished;
      end.detail = "ok";
      end.result["began_us"] = std::to_string(began_us);
      return end;
    }
    std::uint64_t began_us = unix_us();
  };
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: fleet_agent URL CONTEXTS RUNNER SLOTS STATE_DIR\n");
    return 2;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGTERM);
  ::sigaddset(&signals, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  RedisStoreConfig config;
  config.default_url = argv[1];
  const auto stores = make_redis_stores(config);
  WorkerSettings settings;
  for (Id context = 1; context <= static_cast<Id>(std::stoul(argv[2])); ++context) settings.contexts.push_back(context);
  settings.runner.id = static_cast<Id>(std::stoul(argv[3]));
  settings.runner.local = true;  // serves the queues of its contexts, too
  settings.slots = static_cast<std::uint32_t>(std::stoul(argv[4]));
  settings.state_dir = argv[5];
  std::vector<std::unique_ptr<Executor>> executors;
  executors.push_back(std::make_unique<EmptyExecutor>());
  const SystemClock clock;
  const auto agent =
      must(Agent::start({*stores, std::make_unique<EmptySandbox>(), std::move(executors), clock}, std::move(settings)));
  std::puts("ready");
  std::fflush(stdout);
  int signal = 0;
  ::sigwait(&signals, &signal);
  return 0;
}
