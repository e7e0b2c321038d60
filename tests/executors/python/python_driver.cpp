#include "python_driver.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "base/clock.h"
#include "base/fd.h"
#include "executors/job_process.h"
#include "executors/python/pyhost/pyhost.h"
#include "executors/python/python_executor.h"

// Options for AddressSanitizer: the interpreter is never finalized, and jobs crash and request too much memory on
// purpose.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "handle_segv=0:handle_abort=0:allocator_may_return_null=1"; }
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libpython\nleak:libcrypto\nleak:mycojobs::warm_up\n";
}

namespace mycojobs::test {
namespace {

constexpr std::uint64_t kTimeoutMs = 50000;

struct Pair {
  Fd ours, theirs;
};

Pair make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  return {Fd(ends[0]), Fd(ends[1])};
}

Pair make_channel() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("socketpair");
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {Fd(ends[0]), Fd(ends[1])};
}

[[noreturn]] void be_the_job(int out, int err, int channel) {
  take_places(out, err, channel);
  ::_exit(run_job({3, 3}));
}

// The agent's side: writes the request and reads all three descriptors to their end of file.
class Agent {
 public:
  Agent(pid_t pid, Conversation& job, const std::string& term_at) : pid_(pid), job_(job), term_at_(term_at) {}

  void serve(Pair& out, Pair& err, Pair& channel, RunResult& result) {
    const std::uint64_t deadline = SystemClock().boot_ms() + kTimeoutMs;
    const std::string whole = job_.consume_output();
    std::string_view request = whole;
    while (out.ours || err.ours || channel.ours) {
      if (SystemClock().boot_ms() > deadline) {
        ADD_FAILURE() << "the job did not end; stderr: " << result.err;
        ::kill(pid_, SIGKILL);
        return;
      }
      pollfd waiting[] = {{out.ours.get(), POLLIN, 0},
                          {err.ours.get(), POLLIN, 0},
                          {channel.ours.get(), static_cast<short>(request.empty() ? POLLIN : POLLIN | POLLOUT), 0}};
      ::poll(waiting, 3, 100);
      if ((waiting[2].revents & POLLOUT) != 0) {
        const ssize_t sent = ::send(channel.ours.get(), request.data(), request.size(), MSG_NOSIGNAL);
        request.remove_prefix(sent > 0 ? static_cast<std::size_t>(sent) : 0);
      }
      if (waiting[0].revents != 0) take(out.ours, result.out);
      if (waiting[1].revents != 0) take(err.ours, result.err);
      std::string up;
      if ((waiting[2].revents & (POLLIN | POLLHUP | POLLERR)) != 0) take(channel.ours, up);
      job_.feed(up);
      for (auto& note : job_.consume_notes()) result.notes.push_back(std::move(note));
      if (!term_at_.empty() && result.out.find(term_at_) != std::string::npos) {
        ::kill(pid_, SIGTERM);
        term_at_.clear();
      }
    }
  }

 private:
  static void take(Fd& fd, std::string& into) {
    std::array<char, 65536> buffer;
    const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got > 0) into.append(buffer.data(), static_cast<std::size_t>(got));
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) fd.reset();
  }

  pid_t pid_;
  Conversation& job_;
  std::string term_at_;
};

}  // namespace

JobFacts make_facts(std::string script) {
  JobFacts facts;
  facts.job.id = 2001;
  facts.job.caller_id = 12;
  facts.job.context_id = 7;
  facts.job.script_type = "python";
  facts.job.script = std::move(script);
  return facts;
}

RunResult run_python(const JobFacts& facts, const std::string& term_at) {
  static const Result<void> warm = warm_up();
  if (!warm) throw std::runtime_error(warm.error().message);
  auto job = PythonExecutor("").begin(facts, nullptr);
  if (!job) throw std::runtime_error(job.error().message);
  Pair out = make_pipe();
  Pair err = make_pipe();
  Pair channel = make_channel();
  RunResult result;
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("fork");
  if (pid == 0) be_the_job(out.theirs.get(), err.theirs.get(), channel.theirs.get());
  for (Pair* pair : {&out, &err, &channel}) pair->theirs.reset();
  Agent(pid, **job, term_at).serve(out, err, channel, result);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  result.outcome = to_outcome(status);
  result.end = (*job)->finish(result.outcome);
  return result;
}

RunResult run_python(std::string script) { return run_python(make_facts(std::move(script))); }

}  // namespace mycojobs::test
