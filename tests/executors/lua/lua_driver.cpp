#include "lua_driver.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <stdexcept>

#include "base/clock.h"
#include "base/fd.h"
#include "executors/job_process.h"
#include "executors/lua/lua_executor.h"
#include "executors/lua/luahost/luahost.h"
#include "executors/shared_sandbox.h"
#include "security/profiles.h"

namespace mycojobs::test {
namespace {

constexpr std::uint64_t kTimeoutMs = 50000;

class KeptArtifacts final : public ArtifactSink {
 public:
  explicit KeptArtifacts(LuaRan& ran) : ran_(ran) {}
  bool open(const std::string& name, bool /*executable*/) override {
    ran_.artifacts.emplace_back(name, "");
    return true;
  }
  void write(std::string_view bytes) override { ran_.artifacts.back().second += bytes; }
  void close() override {}

 private:
  LuaRan& ran_;
};

JobFacts facts_of_lua(const LuaJob& job) {
  JobFacts facts;
  facts.job.id = 2001;
  facts.job.caller_id = 12;
  facts.job.context_id = job.context;
  facts.job.script_type = job.executor;
  facts.job.script = job.script;
  facts.job.name = job.name;
  facts.job.env_vars = job.environment;
  facts.inputs = job.inputs;
  facts.secrets = job.secrets;
  facts.granted_policy = job.policy;
  if (job.flow_data.empty()) return facts;
  facts.job.unknown = {{"flow_data", job.flow_data}};
  for (const auto& [name, input] : job.inputs) facts.job.dependends.push_back(input.id);
  return facts;
}

// The agent's side of a run: the agent's ends of the descriptors, closed at end of file.
class Agent {
 public:
  Agent(const LuaJob& job, Conversation& conversation, LuaRan& ran, Fd out, Fd err, Fd channel, Fd requests)
      : job_(job),
        conversation_(conversation),
        ran_(ran),
        out_(std::move(out)),
        err_(std::move(err)),
        channel_(std::move(channel)),
        requests_(std::move(requests)) {}

  bool open() const { return out_ || err_ || channel_; }

  // Waits for at most `wait_ms`, then transfers available data. Returns true when SIGTERM must be sent: once, when the
  // script has printed `term_at`.
  bool pump(int wait_ms, int other = -1) {
    waiting_ += conversation_.consume_output();
    pollfd sources[] = {{out_.get(), POLLIN, 0},
                        {err_.get(), POLLIN, 0},
                        {channel_.get(), POLLIN, 0},
                        {waiting_.empty() ? -1 : requests_.get(), POLLOUT, 0},
                        {other, POLLIN, 0}};
    ::poll(sources, 5, wait_ms);
    if ((sources[3].revents & POLLOUT) != 0) {
      const ssize_t sent = ::send(requests_.get(), waiting_.data(), waiting_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      waiting_.erase(0, sent > 0 ? static_cast<std::size_t>(sent) : 0);
    }
    if (sources[0].revents != 0) take(out_, ran_.out);
    if (sources[1].revents != 0) take(err_, ran_.err);
    std::string up;
    if ((sources[2].revents & (POLLIN | POLLHUP | POLLERR)) != 0) take(channel_, up);
    conversation_.feed(up);
    for (auto& note : conversation_.consume_notes()) ran_.notes.push_back(std::move(note));
    for (const auto& call : conversation_.consume_calls()) {
      if (job_.agent) conversation_.answer(job_.agent(call));
    }
    return !job_.term_at.empty() && ran_.out.find(job_.term_at) != std::string::npos &&
           !std::exchange(term_sent_, true);
  }

  // Reads the remaining data after the end of the run.
  void drain() {
    const auto any = [this] {
      pollfd ready[] = {{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}, {channel_.get(), POLLIN, 0}};
      return ::poll(ready, 3, 0) > 0;
    };
    while (open() && any()) pump(0);
  }

 private:
  static void take(Fd& fd, std::string& into) {
    std::array<char, 65536> buffer;  // NOLINT(*-member-init): filled by read()
    const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got > 0) into.append(buffer.data(), static_cast<std::size_t>(got));
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) fd.reset();
  }

  const LuaJob& job_;
  Conversation& conversation_;
  LuaRan& ran_;
  Fd out_, err_, channel_, requests_;
  std::string waiting_;
  bool term_sent_ = false;
};

std::unique_ptr<Conversation> begin_lua(const LuaJob& job, KeptArtifacts& sink) {
  auto begun = LuaExecutor(job.executor, nullptr).begin(facts_of_lua(job), &sink);
  if (!begun) throw std::runtime_error(begun.error().message);
  return std::move(*begun);
}

std::pair<Fd, Fd> make_pipe_pair(bool channel) {
  int ends[2];
  const int failed = channel ? ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) : ::pipe2(ends, O_CLOEXEC);
  if (failed != 0) throw std::runtime_error("no descriptors");
  return {Fd(ends[0]), Fd(ends[1])};
}

[[noreturn]] void be_the_job(int out, int err, int channel, const std::string& folder) {
  take_places(out, err, channel);
  if (::chdir(folder.c_str()) != 0) ::_exit(99);
  ::_exit(run_lua_job({3, 3}, folder));
}

}  // namespace

LuaRan run_lua(const LuaJob& job) {
  static const Result<void> kWarm = warm_lua();
  if (!kWarm) throw std::runtime_error(kWarm.error().message);
  char folder[] = "/tmp/mycojobs-lua-XXXXXX";
  if (::mkdtemp(folder) == nullptr) throw std::runtime_error("mkdtemp");
  LuaRan ran;
  KeptArtifacts sink(ran);
  const auto conversation = begin_lua(job, sink);
  auto [out, out_job] = make_pipe_pair(false);
  auto [err, err_job] = make_pipe_pair(false);
  auto [channel, channel_job] = make_pipe_pair(true);
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("fork");
  if (pid == 0) be_the_job(out_job.get(), err_job.get(), channel_job.get(), folder);
  for (Fd* each : {&out_job, &err_job, &channel_job}) each->reset();
  Fd requests(::fcntl(channel.get(), F_DUPFD_CLOEXEC, 0));  // both directions of one socket
  Agent agent(job, *conversation, ran, std::move(out), std::move(err), std::move(channel), std::move(requests));
  const std::uint64_t deadline = SystemClock().boot_ms() + kTimeoutMs;
  while (agent.open()) {
    if (agent.pump(100)) ::kill(pid, SIGTERM);
    if (SystemClock().boot_ms() < deadline) continue;
    ADD_FAILURE() << "the job did not end; stderr: " << ran.err;
    ::kill(pid, SIGKILL);
    break;
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  ran.outcome = to_outcome(status);
  ran.end = conversation->finish(ran.outcome);
  std::filesystem::remove_all(folder);
  return ran;
}

LuaRan run_lua_confined(const LuaJob& job) {
  static std::atomic<std::uint64_t> next{1};
  Sandbox& sandbox = shared_sandbox();
  LuaRan ran;
  KeptArtifacts sink(ran);
  const auto conversation = begin_lua(job, sink);
  RunSpec spec;
  spec.run = next++;
  spec.host = LuaExecutor(job.executor, nullptr).stages().front().host;
  spec.context = job.context;
  apply_policy(spec, job.policy, job.wall_ms);
  spec.warm.key = spec.warm.family = job.warm_key;
  auto pipes = sandbox.launch(spec);
  if (!pipes) throw std::runtime_error(pipes.error().message);
  Agent agent(job, *conversation, ran, Fd(pipes->out), Fd(pipes->err), Fd(pipes->channel), Fd(pipes->requests));
  bool ended = false;
  for (const std::uint64_t deadline = SystemClock().boot_ms() + kTimeoutMs;
       !ended && SystemClock().boot_ms() < deadline;) {
    agent.pump(1000, sandbox.event_fd());
    for (auto& each : sandbox.read_ended()) {
      if (each.run != spec.run) continue;
      ran.outcome = std::move(each.outcome);
      ended = true;
    }
  }
  EXPECT_TRUE(ended) << "the run has not ended";
  agent.drain();
  ran.end = conversation->finish(ran.outcome);
  return ran;
}

LuaRan run_lua(std::string script) { return run_lua(LuaJob{.script = std::move(script)}); }
LuaRan run_lua_confined(std::string script) {
  return run_lua_confined(LuaJob{.script = std::move(script), .policy = profile("sal")});
}

}  // namespace mycojobs::test
