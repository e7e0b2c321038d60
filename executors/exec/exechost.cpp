// mycojobs-exechost is the zygote of jobs that are programs: bash, node, a compiler, a binary. It preloads nothing.
// Each job's process runs one program:
//
//   request --> files, environment --> facts.command is spawned --> its end --> result file, artifacts --> channel
//
// The job ends as the program ends, with its exit code or signal. On cancellation the sandbox sends SIGTERM to every
// process of the job (sandbox/zygote/init.cpp). The program receives the signal directly, so this process does not
// forward it but waits for the end.
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

using nlohmann::json;

constexpr int kNotRunnable = 126, kNotFound = 127;
constexpr const char* kResultFile = "/job/.result";
constexpr const char* kProgressFifo = "/job/.progress";
constexpr std::size_t kMaxPendingLine = 4096;

extern "C" void interrupt_wait(int) {}

void set_signal_handler(int signal, void (*handler)(int)) {
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

// Copies an executable file. Errors: as write_file(). `source` is sealed, so its pages cannot disappear during the
// copy.
bool write_copy(const std::string& path, const Fd& source) {
  struct stat status {};
  if (::fstat(source.get(), &status) != 0) return false;
  const auto size = static_cast<std::size_t>(status.st_size);
  void* bytes = size == 0 ? nullptr : ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, source.get(), 0);
  if (bytes == MAP_FAILED) return false;
  const bool is_written = write_file(path, 0500, {static_cast<const char*>(bytes), size});
  const int error = errno;
  if (bytes != nullptr) ::munmap(bytes, size);
  errno = error;
  return is_written;
}

struct ProgramPlan {
  std::string script_path, attached_path;
  std::vector<std::string> command, environment;
  std::uint64_t max_artifact_bytes = 0;
  std::string flow;  // JSON: the data of the job's flow
};

// Converts the request for the program. The agent has sent the request, so it is trusted; a parse error is a bug.
ProgramPlan build_plan(const HostRequest& request) {
  const json facts = json::parse(request.facts);
  ProgramPlan plan;
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

std::vector<char*> to_pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (auto& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

sigset_t make_signal_set(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

// Starts the program in a process group of its own with default signal handling. Uses posix_spawn, which copies no page
// tables and dirties no pages of this process. Returns the errno of fork or exec, or 0.
int spawn_program(ProgramPlan& plan, pid_t& program) {
  posix_spawnattr_t attributes;
  if (const int error = ::posix_spawnattr_init(&attributes); error != 0) return error;
  const sigset_t no_signals = make_signal_set({}), default_signals = make_signal_set({SIGTERM, SIGCHLD, SIGPIPE});
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setsigmask(&attributes, &no_signals);
  ::posix_spawnattr_setsigdefault(&attributes, &default_signals);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const auto arguments = to_pointers(plan.command);
  const auto environment = to_pointers(plan.environment);
  const int error = ::posix_spawnp(&program, arguments[0], nullptr, &attributes, arguments.data(), environment.data());
  ::posix_spawnattr_destroy(&attributes);
  return error;
}

// Forwards a SIGTERM that was received before the program was started.
void forward_pending_term(pid_t program) {
  const sigset_t term = make_signal_set({SIGTERM});
  const timespec no_wait{};
  if (::sigtimedwait(&term, nullptr, &no_wait) == SIGTERM) ::kill(-program, SIGTERM);
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
      const ssize_t count = ::read(fifo_.get(), part.data(), part.size());
      if (count <= 0) return;
      pending_.append(part.data(), static_cast<std::size_t>(count));
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
    const pid_t reaped = ::waitpid(program, &status, WNOHANG);
    if (reaped == program || (reaped < 0 && errno != EINTR)) return status;
    pollfd descriptor{progress.fd(), POLLIN, 0};
    if (::ppoll(&descriptor, 1, nullptr, &waiting_mask) > 0) progress.read();
  }
}

Result<ResultValues> read_result() {
  const Fd file(::open(kResultFile, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
  if (!file && errno == ENOENT) return ResultValues{};
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return fail(Code::invalid, "result file: it is not a regular file");
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t size = 0;
  for (ssize_t count = 1; count > 0 && size < text.size();
       size += static_cast<std::size_t>(std::max<ssize_t>(count, 0)))
    count = ::read(file.get(), text.data() + size, text.size() - size);
  text.resize(size);
  return parse_result_file(text);
}

std::string result_json(const ResultValues& result) {
  json out(result.texts);
  for (const std::string& key : result.json) out[key] = json::array({result.texts.at(key)});
  return dump_json(out);
}

void exit_by_signal(int signal) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  ::sigaction(signal, &action, nullptr);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, signal);
  ::sigprocmask(SIG_UNBLOCK, &signals, nullptr);
  ::raise(signal);
}

// Sends the result or error, the artifacts and `done`; returns the exit code. The last frames are sent in one write, so
// that the agent wakes up only once.
int send_answer(int channel, int status, int start_error, const ProgramPlan& plan) {
  int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  std::string final_frames;
  if (start_error != 0) {
    append_frame(final_frames, FrameKind::error,
                 error_json("ProgramError", "cannot start " + plan.command[0] + ": " + errno_text(start_error)));
  } else if (WIFEXITED(status) && code == 0) {
    if (auto result = read_result()) {
      append_frame(final_frames, FrameKind::result, result_json(*result));
    } else {
      code = 1;
      append_frame(final_frames, FrameKind::error, result_error_json(result.error().message));
    }
  } else if (WIFEXITED(status)) {
    append_frame(final_frames, FrameKind::error, error_json("Exit", "", code));
  }
  send_artifacts(channel, kArtifactsFolder, plan.max_artifact_bytes);
  append_frame(final_frames, FrameKind::done, "");
  send_frames(channel, final_frames);
  return code;
}

// Returns the exit code. Does not return if a signal ended the program.
int run_program(JobChannel channel) {
  const auto request = read_request(channel.from_agent);
  if (!request) return exit_before_start(channel.to_agent, request.error());
  ProgramPlan plan = build_plan(*request);
  if (!write_file(plan.script_path, 0500, request->script) ||
      (plan.flow != "{}" && !write_file(kFlowFile, 0400, plan.flow)) ||
      !write_file(kInputsFile, 0400, request->inputs) || !write_file(kResultFile, 0600, "") ||
      (!plan.attached_path.empty() && !write_copy(plan.attached_path, request->attached)) || ::chdir("/job") != 0)
    return exit_before_start(channel.to_agent, {Code::io, "/job: " + errno_text(errno) + ": increase policy.disk"});
  ProgressReader progress(channel.to_agent);
  const sigset_t handled_signals = make_signal_set({SIGTERM, SIGCHLD});
  ::sigprocmask(SIG_BLOCK, &handled_signals, nullptr);
  set_signal_handler(SIGCHLD, interrupt_wait);
  set_signal_handler(SIGPIPE, SIG_IGN);
  pid_t program = 0;
  const int start_error = spawn_program(plan, program);
  if (start_error == 0) forward_pending_term(program);
  const int start_failure_status = (start_error == ENOENT ? kNotFound : kNotRunnable) << 8;
  const int status = start_error == 0 ? wait_for_end(program, progress) : start_failure_status;
  progress.finish();
  const int code = send_answer(channel.to_agent, status, start_error, plan);
  if (WIFSIGNALED(status)) exit_by_signal(WTERMSIG(status));
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
