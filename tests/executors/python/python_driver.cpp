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

struct DescriptorPair {
  Fd agent_end, job_end;
};

DescriptorPair make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  return {Fd(ends[0]), Fd(ends[1])};
}

DescriptorPair make_channel() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("socketpair");
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {Fd(ends[0]), Fd(ends[1])};
}

[[noreturn]] void run_job_process(int out, int err, int channel) {
  redirect_descriptors(out, err, channel);
  ::_exit(run_job({3, 3}));
}

// The agent's side: writes the request and reads all three descriptors to their end of file.
class Agent {
 public:
  Agent(pid_t pid, Conversation& job, const std::string& term_trigger)
      : pid_(pid), job_(job), term_trigger_(term_trigger) {}

  void serve(DescriptorPair& out, DescriptorPair& err, DescriptorPair& channel, RunResult& result) {
    const std::uint64_t deadline = SystemClock().boot_ms() + kTimeoutMs;
    const std::string full_request = job_.consume_output();
    std::string_view request = full_request;
    while (out.agent_end || err.agent_end || channel.agent_end) {
      if (SystemClock().boot_ms() > deadline) {
        ADD_FAILURE() << "the job did not end; stderr: " << result.err;
        ::kill(pid_, SIGKILL);
        return;
      }
      pollfd events[] = {{out.agent_end.get(), POLLIN, 0},
                         {err.agent_end.get(), POLLIN, 0},
                         {channel.agent_end.get(), static_cast<short>(request.empty() ? POLLIN : POLLIN | POLLOUT), 0}};
      ::poll(events, 3, 100);
      if ((events[2].revents & POLLOUT) != 0) {
        const ssize_t sent = ::send(channel.agent_end.get(), request.data(), request.size(), MSG_NOSIGNAL);
        request.remove_prefix(sent > 0 ? static_cast<std::size_t>(sent) : 0);
      }
      if (events[0].revents != 0) read_available(out.agent_end, result.out);
      if (events[1].revents != 0) read_available(err.agent_end, result.err);
      std::string received;
      if ((events[2].revents & (POLLIN | POLLHUP | POLLERR)) != 0) read_available(channel.agent_end, received);
      job_.feed(received);
      for (auto& note : job_.consume_notes()) result.notes.push_back(std::move(note));
      if (!term_trigger_.empty() && result.out.find(term_trigger_) != std::string::npos) {
        ::kill(pid_, SIGTERM);
        term_trigger_.clear();
      }
    }
  }

 private:
  static void read_available(Fd& fd, std::string& text) {
    std::array<char, 65536> buffer;
    const ssize_t size = ::read(fd.get(), buffer.data(), buffer.size());
    if (size > 0) text.append(buffer.data(), static_cast<std::size_t>(size));
    if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR)) fd.reset();
  }

  pid_t pid_;
  Conversation& job_;
  std::string term_trigger_;
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

RunResult run_python(const JobFacts& facts, const std::string& term_trigger) {
  static const Result<void> kWarm = warm_up();
  if (!kWarm) throw std::runtime_error(kWarm.error().message);
  auto job = PythonExecutor("").begin(facts, nullptr);
  if (!job) throw std::runtime_error(job.error().message);
  DescriptorPair out = make_pipe();
  DescriptorPair err = make_pipe();
  DescriptorPair channel = make_channel();
  RunResult result;
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("fork");
  if (pid == 0) run_job_process(out.job_end.get(), err.job_end.get(), channel.job_end.get());
  for (DescriptorPair* pair : {&out, &err, &channel}) pair->job_end.reset();
  Agent(pid, **job, term_trigger).serve(out, err, channel, result);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  result.outcome = to_outcome(status);
  result.end = (*job)->finish(result.outcome);
  return result;
}

RunResult run_python(std::string script) { return run_python(make_facts(std::move(script))); }

}  // namespace mycojobs::test
