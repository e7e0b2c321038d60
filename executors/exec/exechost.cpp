// mycojobs-exechost is the zygote of jobs that are programs: bash, node, a compiler, a binary. It preloads nothing.
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/errno_text.h"
#include "base/fd.h"
#include "base/uncaught_exception.h"
#include "base/version.h"
#include "executors/channel.h"
#include "executors/exec/result_file.h"
#include "executors/host_channel.h"
#include "sandbox/zygote/zygote.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

// Runs one program in the job's process:
//
//   request --> files, environment --> facts.command is spawned --> its end --> result file, artifacts --> channel
//
// The job ends as the program ends, with its exit code or signal. On cancellation the sandbox sends SIGTERM to every
// process of the job (sandbox/zygote/init.cpp). The program receives it directly, so this process does not forward it
// but waits for the end.
using nlohmann::json;

constexpr int kNotRunnable = 126, kNotFound = 127;
constexpr const char* kResultFile = "/job/.result";
constexpr const char* kProgressFifo = "/job/.progress";
constexpr std::size_t kMaxPendingLine = 4096;

extern "C" void wake(int) {}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  ::sigaction(signal, &action, nullptr);
}

std::string error_json(const char* type, const std::string& message, std::optional<int> exit = {}) {
  json error = {{"type", type}, {"message", message}, {"line", 0}};
  if (exit) error["exit"] = *exit;
  return dump_json(error);
}

// Forbids a retry: another attempt would repeat the work and write the same result.
std::string result_error_json(const std::string& message) {
  return dump_json({{"type", "ResultError"}, {"message", message}, {"line", 0}, {"retry", false}});
}

bool write_file(const std::string& path, mode_t mode, std::string_view bytes) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  return file && write_all(file.get(), bytes) && ::fchmod(file.get(), mode) == 0;
}

// Fails like write_file(). `from` is sealed, so its pages cannot disappear during the copy.
bool write_copy(const std::string& path, const Fd& from) {
  struct stat info {};
  if (::fstat(from.get(), &info) != 0) return false;
  const auto size = static_cast<std::size_t>(info.st_size);
  void* bytes = size == 0 ? nullptr : ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, from.get(), 0);
  if (bytes == MAP_FAILED) return false;
  const bool written = write_file(path, 0500, {static_cast<const char*>(bytes), size});
  const int error = errno;
  if (bytes != nullptr) ::munmap(bytes, size);
  errno = error;
  return written;
}

struct Plan {
  std::string script_path, attached_path;
  std::vector<std::string> command, environment;
  std::uint64_t max_artifact_bytes = 0;
  std::string flow;  // JSON: the data of the job's flow
};

// Converts the request for the program. The request is from the agent and therefore trusted: a parse error is a bug.
Plan lay_out(const HostRequest& request) {
  const json facts = json::parse(request.facts);
  Plan plan;
  plan.script_path = "/job/" + facts.at("script_file").get<std::string>();
  plan.command = facts.at("command").get<std::vector<std::string>>();
  if (const auto attached = facts.find("attached"); attached != facts.end())
    plan.attached_path = "/job/" + attached->get<std::string>();
  plan.max_artifact_bytes = facts.at("max_artifact_bytes").get<std::uint64_t>();
  auto variables = json::parse(request.environment).get<TextMap>();
  variables["MYCOJOBS_INPUTS"] = kInputsFile;
  variables["MYCOJOBS_INPUTS_BY_ID"] = facts.contains("input_names") ? kInputsByIdFile : kInputsFile;
  plan.flow = dump_json(facts.value("flow", json::object()));
  if (plan.flow != "{}") variables["MYCOJOBS_FLOW"] = kFlowFile;
  variables["MYCOJOBS_RESULT"] = kResultFile;
  variables["MYCOJOBS_PROGRESS"] = kProgressFifo;
  for (const auto& [name, value] : variables) {
    std::string entry = name;
    plan.environment.push_back(entry.append("=").append(value));
  }
  return plan;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (auto& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

sigset_t set_of(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

// Starts the program in a process group of its own with default signal handling. Uses posix_spawn, which copies no page
// tables and dirties no pages of this process. Returns the errno of fork or exec, or 0.
int start(Plan& plan, pid_t& program) {
  posix_spawnattr_t how;
  if (const int error = ::posix_spawnattr_init(&how); error != 0) return error;
  const sigset_t none = set_of({}), usual = set_of({SIGTERM, SIGCHLD, SIGPIPE});
  ::posix_spawnattr_setpgroup(&how, 0);
  ::posix_spawnattr_setsigmask(&how, &none);
  ::posix_spawnattr_setsigdefault(&how, &usual);
  ::posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const auto arguments = pointers(plan.command);
  const auto environment = pointers(plan.environment);
  const int error = ::posix_spawnp(&program, arguments[0], nullptr, &how, arguments.data(), environment.data());
  ::posix_spawnattr_destroy(&how);
  return error;
}

// Forwards a SIGTERM that arrived before the program existed.
void forward_buffered_bytes(pid_t program) {
  const sigset_t term = set_of({SIGTERM});
  const timespec at_once{};
  if (::sigtimedwait(&term, nullptr, &at_once) == SIGTERM) ::kill(-program, SIGTERM);
}

// Sends each line that the program writes to its progress FIFO as a note.
class ProgressReader {
 public:
  explicit ProgressReader(int channel) : channel_(channel) {
    if (::mkfifo(kProgressFifo, 0600) == 0) fifo_.reset(::open(kProgressFifo, O_RDWR | O_NONBLOCK | O_CLOEXEC));
  }
  int fd() const { return fifo_.get(); }
  void read() {
    std::array<char, 4096> part;  // NOLINT(*-member-init): filled by read
    // Bounded, so that a program that writes continuously does not delay signals or the end of the job.
    for (int round = 0; round < 16; ++round) {
      const ssize_t got = ::read(fifo_.get(), part.data(), part.size());
      if (got <= 0) return;
      pending_.append(part.data(), static_cast<std::size_t>(got));
      for (std::size_t end = 0; (end = pending_.find('\n')) != std::string::npos; pending_.erase(0, end + 1))
        send_note(pending_.substr(0, end));
      if (pending_.size() > kMaxPendingLine) pending_.clear();
    }
  }
  void finish() {
    read();
    if (!pending_.empty()) send_note(pending_);
  }

 private:
  void send_note(const std::string& line) const {
    const ProgramProgress progress = parse_progress(whole_characters(line, 1000));
    json note = {{"text", progress.text}};
    if (progress.fraction) note["fraction"] = *progress.fraction;
    send_frame(channel_, FrameKind::note, dump_json(note));
  }

  int channel_;
  Fd fifo_;
  std::string pending_;
};

int wait_for_end(pid_t program, ProgressReader& progress) {
  sigset_t waiting_mask;
  ::sigprocmask(SIG_SETMASK, nullptr, &waiting_mask);
  sigdelset(&waiting_mask, SIGCHLD);
  int status = 0;
  for (;;) {
    const pid_t ended = ::waitpid(program, &status, WNOHANG);
    if (ended == program || (ended < 0 && errno != EINTR)) return status;
    pollfd source{progress.fd(), POLLIN, 0};
    if (::ppoll(&source, 1, nullptr, &waiting_mask) > 0) progress.read();
  }
}

Result<ResultValues> read_result() {
  const Fd file(::open(kResultFile, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
  if (!file && errno == ENOENT) return ResultValues{};
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return fail(Code::invalid, "result file: it is not a regular file");
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t size = 0;
  for (ssize_t got = 1; got > 0 && size < text.size(); size += static_cast<std::size_t>(std::max<ssize_t>(got, 0)))
    got = ::read(file.get(), text.data() + size, text.size() - size);
  text.resize(size);
  return parse_result_file(text);
}

std::string result_json(const ResultValues& result) {
  json out(result.texts);
  for (const std::string& key : result.json) out[key] = json::array({result.texts.at(key)});
  return dump_json(out);
}

void leave_by(int signal) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  ::sigaction(signal, &action, nullptr);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, signal);
  ::sigprocmask(SIG_UNBLOCK, &one, nullptr);
  ::raise(signal);
}

// Sends the result or error, the artifacts and `done`; returns the exit code. The last frames are sent in one write, so
// that the agent wakes up only once.
int hand_over(int channel, int status, int start_error, const Plan& plan) {
  int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  std::string last;
  if (start_error != 0) {
    append_frame(last, FrameKind::error,
                 error_json("ProgramError", "cannot start " + plan.command[0] + ": " + errno_text(start_error)));
  } else if (WIFEXITED(status) && code == 0) {
    if (auto result = read_result()) {
      append_frame(last, FrameKind::result, result_json(*result));
    } else {
      code = 1;
      append_frame(last, FrameKind::error, result_error_json(result.error().message));
    }
  } else if (WIFEXITED(status)) {
    append_frame(last, FrameKind::error, error_json("Exit", "", code));
  }
  send_artifacts(channel, kArtifactsFolder, plan.max_artifact_bytes);
  append_frame(last, FrameKind::done, "");
  send_frames(channel, last);
  return code;
}

// Returns the exit code. Does not return if a signal ended the program.
int run_program(JobChannel channel) {
  const auto request = read_request(channel.down);
  if (!request) return exit_before_start(channel.up, request.error());
  Plan plan = lay_out(*request);
  if (!write_file(plan.script_path, 0500, request->script) ||
      (plan.flow != "{}" && !write_file(kFlowFile, 0400, plan.flow)) ||
      !write_file(kInputsFile, 0400, request->inputs) || !write_file(kResultFile, 0600, "") ||
      (!plan.attached_path.empty() && !write_copy(plan.attached_path, request->attached)) || ::chdir("/job") != 0)
    return exit_before_start(channel.up, {Code::io, "/job: " + errno_text(errno) + ": increase policy.disk"});
  ProgressReader progress(channel.up);
  const sigset_t mine = set_of({SIGTERM, SIGCHLD});
  ::sigprocmask(SIG_BLOCK, &mine, nullptr);
  handle(SIGCHLD, wake);
  handle(SIGPIPE, SIG_IGN);
  pid_t program = 0;
  const int start_error = start(plan, program);
  if (start_error == 0) forward_buffered_bytes(program);
  const int not_started = (start_error == ENOENT ? kNotFound : kNotRunnable) << 8;
  const int status = start_error == 0 ? wait_for_end(program, progress) : not_started;
  progress.finish();
  const int code = hand_over(channel.up, status, start_error, plan);
  if (WIFSIGNALED(status)) leave_by(WTERMSIG(status));
  return code;
}

}  // namespace

}  // namespace mycojobs

int main(int argc, char** argv) try {
  if (argc > 1 && std::strcmp(argv[1], "--version") == 0) {
    std::printf("mycojobs-exechost %s\n", mycojobs::kVersion);
    return 0;
  }
  // Fast bins are disabled: otherwise the first large allocation of each job consolidates all chunks freed before the
  // fork, which copies their pages.
  ::mallopt(M_MXFAST, 0);
  mycojobs::serve_zygote({.name = "exec",
                          .before_fork = nullptr,
                          .after_fork_parent = nullptr,
                          .after_fork_job = nullptr,
                          .run = mycojobs::run_program,
                          .folder = mycojobs::kArtifactsName});
} catch (...) {
  mycojobs::exit_with_report("mycojobs-exechost");
}
