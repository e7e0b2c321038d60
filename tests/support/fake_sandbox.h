// A fake sandbox whose runs end when the test ends them, and a matching executor.
#pragma once

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/fd.h"
#include "executors/executor.h"
#include "sandbox/sandbox.h"

namespace mycojobs::test {

// The test's handle while the agent owns the sandbox. The functions are thread-safe; direct access to members requires
// `mutex`.
struct SandboxControl {
  struct KillCall {
    std::uint64_t run;
    KillReason reason;
  };
  std::mutex mutex;
  Fd event{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  std::map<std::uint64_t, RunSpec> running;
  std::map<std::uint64_t, std::vector<Fd>> ends;  // the job's ends of its pipes: stdout, stderr, channel
  std::set<std::uint64_t> unkillable_runs;        // runs that survive KILL
  std::vector<RunEnded> ended;
  std::vector<KillCall> kill_calls;
  std::vector<std::string> retired_warm_keys;
  std::map<std::uint64_t, std::uint64_t> fences;
  std::atomic<std::size_t> max_concurrent_runs = 0, launches = 0;
  bool is_alive = true, is_restartable = true;
  bool uses_pipes = false;  // pipes as in the real sandbox, instead of socket pairs
  int failing_launches = 0;
  std::function<void()> on_ended = [] {};  // called when the sandbox has ended with all its runs
  // Called in launch() with the job's ends of the new run. The lock is held.
  std::function<void(std::uint64_t run, std::vector<Fd>& ends)> on_launch = [](std::uint64_t, std::vector<Fd>&) {};

  void end(std::uint64_t run, RunStatus status) { end(run, make_outcome(status)); }
  void end(std::uint64_t run, const Outcome& outcome) {
    std::lock_guard lock(mutex);
    end_locked(run, outcome);
  }
  // After make_unkillable(), a kill of the run only reports that the run is unkillable.
  static constexpr const char* kUnkillableReason = "process 4711 (deaf, state D)";
  void make_unkillable(std::uint64_t run) {
    std::lock_guard lock(mutex);
    unkillable_runs.insert(run);
  }
  // Writes as the job would; LogStream::system selects the channel.
  void write(std::uint64_t run, LogStream stream, const std::string& text) {
    std::lock_guard lock(mutex);
    (void)!::write(ends.at(run)[static_cast<std::size_t>(stream)].get(), text.data(), text.size());
  }
  bool is_running(std::uint64_t run) {
    std::lock_guard lock(mutex);
    return running.contains(run);
  }
  std::uint64_t get_fence(std::uint64_t run) {
    std::lock_guard lock(mutex);
    return fences[run];
  }
  // Ends every active run.
  void end_all(RunStatus status) {
    std::lock_guard lock(mutex);
    while (!running.empty()) end_locked(running.begin()->first, make_outcome(status));
  }
  void end_launcher() {
    std::lock_guard lock(mutex);
    while (!running.empty()) end_locked(running.begin()->first, make_outcome(RunStatus::lost));
    is_alive = false;
    wake();
  }
  std::vector<std::uint64_t> runs() {
    std::lock_guard lock(mutex);
    std::vector<std::uint64_t> numbers;
    for (const auto& [run, spec] : running) numbers.push_back(run);
    return numbers;
  }

 private:
  friend class FakeSandbox;
  static Outcome make_outcome(RunStatus status) {
    Outcome outcome;
    outcome.status = status;
    return outcome;
  }
  void end_locked(std::uint64_t run, const Outcome& outcome) {
    ended.push_back({run, outcome});
    running.erase(run);
    ends.erase(run);
    wake();
  }
  void wake() {
    const std::uint64_t value = 1;
    (void)!::write(event.get(), &value, sizeof value);
  }
};

// A sandbox without processes: launch() creates socket pairs as pipes, and the test writes to them and ends the run.
class FakeSandbox final : public Sandbox {
 public:
  explicit FakeSandbox(SandboxControl& control) : control_(control) {}
  ~FakeSandbox() override { control_.on_ended(); }
  Result<RunPipes> launch(const RunSpec& spec) override {
    std::lock_guard lock(control_.mutex);
    if (!control_.is_alive) return fail(Code::unavailable, "the launcher is gone");
    if (control_.failing_launches > 0) {
      --control_.failing_launches;
      return fail(Code::io, "no descriptors left");
    }
    RunPipes pipes;
    for (int* ours : {&pipes.out, &pipes.err, &pipes.channel}) {
      if (spec.merge_output && ours == &pipes.err) {
        control_.ends[spec.run].emplace_back(::fcntl(control_.ends[spec.run].at(0).get(), F_DUPFD_CLOEXEC, 0));
        continue;
      }
      int pair[2];
      const int made = control_.uses_pipes ? ::pipe2(pair, O_CLOEXEC | O_NONBLOCK)
                                           : ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair);
      if (made != 0) return fail(Code::io, "the ends of a run");
      *ours = pair[0];
      control_.ends[spec.run].emplace_back(pair[1]);
    }
    pipes.requests = ::fcntl(pipes.channel, F_DUPFD_CLOEXEC, 0);
    control_.on_launch(spec.run, control_.ends[spec.run]);
    control_.running[spec.run] = spec;
    control_.fences[spec.run] = spec.fence_boot_ms;
    control_.max_concurrent_runs = std::max(control_.max_concurrent_runs.load(), control_.running.size());
    ++control_.launches;
    return pipes;
  }
  void kill(std::uint64_t run, KillReason reason, std::uint32_t) override {
    std::lock_guard lock(control_.mutex);
    control_.kill_calls.push_back({run, reason});
    if (!control_.running.contains(run)) return;
    Outcome outcome =
        SandboxControl::make_outcome(reason == KillReason::fenced ? RunStatus::lost : RunStatus::cancelled);
    if (!control_.unkillable_runs.contains(run)) return control_.end_locked(run, outcome);
    outcome.status = RunStatus::unkillable;
    outcome.reason = SandboxControl::kUnkillableReason;
    control_.ended.push_back({run, outcome});
    control_.wake();
  }
  void fence(std::uint64_t run, std::uint64_t boot_ms) override {
    std::lock_guard lock(control_.mutex);
    control_.fences[run] = boot_ms;
  }
  void retire_warm_key(const std::string& key) override {
    std::lock_guard lock(control_.mutex);
    control_.retired_warm_keys.push_back(key);
  }
  int event_fd() const override { return control_.event.get(); }
  std::vector<RunEnded> read_ended() override {
    std::lock_guard lock(control_.mutex);
    std::uint64_t count = 0;
    (void)!::read(control_.event.get(), &count, sizeof count);
    return std::exchange(control_.ended, {});
  }
  bool alive() const override {
    std::lock_guard lock(control_.mutex);
    return control_.is_alive;
  }
  Result<void> restart() override {
    std::lock_guard lock(control_.mutex);
    if (!control_.is_restartable) return fail(Code::unavailable, "no launcher to be had");
    control_.is_alive = true;
    return {};
  }

 private:
  SandboxControl& control_;
};

// Executor of the script type "fake". A successful job returns its script as the result "echo". In begin(), the scripts
// "bad", "not now" and "no helper" fail with the codes invalid, unavailable and unsupported.
class FakeExecutor final : public Executor {
 public:
  std::string_view name() const override { return "fake"; }
  std::vector<std::string> script_types() const override { return {"fake"}; }
  std::vector<Stage> stages() const override { return {{"fake", "fake", {}}}; }
  Result<std::string> probe() const override { return "fake 1"; }
  Result<std::unique_ptr<Conversation>> begin(const JobFacts& facts, ArtifactSink*) const override {
    if (facts.job.script == "bad") return fail(Code::invalid, "script: bad");
    if (facts.job.script == "not now") return fail(Code::unavailable, "no descriptor left");
    if (facts.job.script == "no helper") return fail(Code::unsupported, "the helper rests");
    return std::make_unique<FakeConversation>(facts.job.script);
  }

 private:
  struct FakeConversation final : Conversation {
    explicit FakeConversation(std::string script) : script_(std::move(script)) {}
    std::string consume_output() override { return {}; }
    void feed(std::string_view) override {}
    std::vector<std::string> consume_notes() override { return {}; }
    JobEnd finish(const Outcome& outcome) const override {
      JobEnd end;
      const bool ok = outcome.status == RunStatus::ok;
      end.status = ok ? JobStatus::finished : JobStatus::error;
      end.detail = ok ? "ok" : outcome.status == RunStatus::cancelled ? "cancelled" : "exit";
      if (ok) end.result["echo"] = script_;
      return end;
    }
    std::string script_;
  };
};

}  // namespace mycojobs::test
