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

class StoredArtifacts final : public ArtifactSink {
 public:
  explicit StoredArtifacts(LuaRunResult& result) : result_(result) {}
  bool open(const std::string& name, bool /*executable*/) override {
    result_.artifacts.emplace_back(name, "");
    return true;
  }
  void write(std::string_view bytes) override { result_.artifacts.back().second += bytes; }
  void close() override {}

 private:
  LuaRunResult& result_;
};

JobFacts make_lua_facts(const LuaJob& job) {
  JobFacts facts;
  facts.job.id = 2001;
  facts.job.caller_id = 12;
  facts.job.context_id = job.context;
  facts.job.script_type = job.executor;
  facts.job.script = job.script;
  facts.job.name = job.name;
  facts.job.env_vars = job.environment;
  facts.job.args = job.args;
  EXPECT_TRUE(set_submitted_files(facts.job, job.files));
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
  Agent(const LuaJob& job, Conversation& conversation, LuaRunResult& result, Fd out, Fd err, Fd channel, Fd requests)
      : job_(job),
        conversation_(conversation),
        result_(result),
        out_(std::move(out)),
        err_(std::move(err)),
        channel_(std::move(channel)),
        requests_(std::move(requests)) {}

  bool open() const { return out_ || err_ || channel_; }

  // Waits for at most `wait_ms`, then transfers available data. Returns true when SIGTERM must be sent: once, when the
  // script has printed `term_trigger`.
  bool transfer(int wait_ms, int event_fd = -1) {
    unsent_ += conversation_.consume_output();
    pollfd sources[] = {{out_.get(), POLLIN, 0},
                        {err_.get(), POLLIN, 0},
                        {channel_.get(), POLLIN, 0},
                        {unsent_.empty() ? -1 : requests_.get(), POLLOUT, 0},
                        {event_fd, POLLIN, 0}};
    ::poll(sources, 5, wait_ms);
    if ((sources[3].revents & POLLOUT) != 0) {
      const ssize_t sent = ::send(requests_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      unsent_.erase(0, sent > 0 ? static_cast<std::size_t>(sent) : 0);
    }
    if (sources[0].revents != 0) read_available(out_, result_.out);
    if (sources[1].revents != 0) read_available(err_, result_.err);
    std::string received;
    if ((sources[2].revents & (POLLIN | POLLHUP | POLLERR)) != 0) read_available(channel_, received);
    conversation_.feed(received);
    for (auto& note : conversation_.consume_notes()) result_.notes.push_back(std::move(note));
    for (const auto& call : conversation_.consume_calls()) {
      if (job_.agent) conversation_.answer(job_.agent(call));
    }
    return !job_.term_trigger.empty() && result_.out.find(job_.term_trigger) != std::string::npos &&
           !std::exchange(term_sent_, true);
  }

  // Reads the remaining data after the end of the run.
  void transfer_remaining() {
    const auto has_data = [this] {
      pollfd ready[] = {{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}, {channel_.get(), POLLIN, 0}};
      return ::poll(ready, 3, 0) > 0;
    };
    while (open() && has_data()) transfer(0);
  }

 private:
  static void read_available(Fd& fd, std::string& text) {
    std::array<char, 65536> buffer;  // NOLINT(*-member-init): filled by read()
    const ssize_t size = ::read(fd.get(), buffer.data(), buffer.size());
    if (size > 0) text.append(buffer.data(), static_cast<std::size_t>(size));
    if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR)) fd.reset();
  }

  const LuaJob& job_;
  Conversation& conversation_;
  LuaRunResult& result_;
  Fd out_, err_, channel_, requests_;
  std::string unsent_;
  bool term_sent_ = false;
};

std::unique_ptr<Conversation> begin_lua(const LuaJob& job, StoredArtifacts& sink) {
  auto conversation = LuaExecutor(job.executor, nullptr).begin(make_lua_facts(job), &sink);
  if (!conversation) throw std::runtime_error(conversation.error().message);
  return std::move(*conversation);
}

std::pair<Fd, Fd> make_pipe_pair(bool channel) {
  int ends[2];
  const int error = channel ? ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) : ::pipe2(ends, O_CLOEXEC);
  if (error != 0) throw std::runtime_error("no descriptors");
  return {Fd(ends[0]), Fd(ends[1])};
}

[[noreturn]] void run_job_process(int out, int err, int channel, const std::string& folder) {
  redirect_descriptors(out, err, channel);
  if (::chdir(folder.c_str()) != 0) ::_exit(99);
  ::_exit(run_lua_job({3, 3}, folder));
}

}  // namespace

LuaRunResult run_lua(const LuaJob& job) {
  static const Result<void> kWarm = warm_lua();
  if (!kWarm) throw std::runtime_error(kWarm.error().message);
  char folder[] = "/tmp/mycojobs-lua-XXXXXX";
  if (::mkdtemp(folder) == nullptr) throw std::runtime_error("mkdtemp");
  LuaRunResult result;
  StoredArtifacts sink(result);
  const auto conversation = begin_lua(job, sink);
  auto [out, out_job] = make_pipe_pair(false);
  auto [err, err_job] = make_pipe_pair(false);
  auto [channel, channel_job] = make_pipe_pair(true);
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("fork");
  if (pid == 0) run_job_process(out_job.get(), err_job.get(), channel_job.get(), folder);
  for (Fd* fd : {&out_job, &err_job, &channel_job}) fd->reset();
  Fd requests(::fcntl(channel.get(), F_DUPFD_CLOEXEC, 0));  // both directions of one socket
  Agent agent(job, *conversation, result, std::move(out), std::move(err), std::move(channel), std::move(requests));
  const std::uint64_t deadline = SystemClock().boot_ms() + kTimeoutMs;
  while (agent.open()) {
    if (agent.transfer(100)) ::kill(pid, SIGTERM);
    if (SystemClock().boot_ms() < deadline) continue;
    ADD_FAILURE() << "the job did not end; stderr: " << result.err;
    ::kill(pid, SIGKILL);
    break;
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  result.outcome = to_outcome(status);
  result.end = conversation->finish(result.outcome);
  std::filesystem::remove_all(folder);
  return result;
}

LuaRunResult run_lua_confined(const LuaJob& job) {
  static std::atomic<std::uint64_t> next{1};
  Sandbox& sandbox = shared_sandbox();
  LuaRunResult result;
  StoredArtifacts sink(result);
  const auto conversation = begin_lua(job, sink);
  RunSpec spec;
  spec.run = next++;
  spec.host = LuaExecutor(job.executor, nullptr).stages().front().host;
  spec.context = job.context;
  apply_policy(spec, job.policy, job.wall_ms);
  spec.warm.key = spec.warm.family = job.warm_key;
  auto pipes = sandbox.launch(spec);
  if (!pipes) throw std::runtime_error(pipes.error().message);
  Agent agent(job, *conversation, result, Fd(pipes->out), Fd(pipes->err), Fd(pipes->channel), Fd(pipes->requests));
  bool ended = false;
  for (const std::uint64_t deadline = SystemClock().boot_ms() + kTimeoutMs;
       !ended && SystemClock().boot_ms() < deadline;) {
    agent.transfer(1000, sandbox.event_fd());
    for (auto& ended_run : sandbox.read_ended()) {
      if (ended_run.run != spec.run) continue;
      result.outcome = std::move(ended_run.outcome);
      ended = true;
    }
  }
  EXPECT_TRUE(ended) << "the run has not ended";
  agent.transfer_remaining();
  result.end = conversation->finish(result.outcome);
  return result;
}

LuaRunResult run_lua(std::string script) { return run_lua(LuaJob{.script = std::move(script)}); }
LuaRunResult run_lua_confined(std::string script) {
  return run_lua_confined(LuaJob{.script = std::move(script), .policy = profile("sal")});
}

}  // namespace mycojobs::test
