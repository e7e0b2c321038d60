#include "executors/exec/exechost/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/errno_text.h"
#include "base/fd.h"
#include "base/write_all.h"
#include "domain/codec.h"
#include "executors/exec/result_file.h"
#include "executors/host_channel.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr int kNoRequest = 125, kNotRunnable = 126, kNotFound = 127;
constexpr const char* kResultFile = "/job/.result";
constexpr const char* kProgressFifo = "/job/.progress";
constexpr std::size_t kMaxPendingLine = 4096;

pid_t program = 0;  // for the handler

extern "C" void pass_on(int signal) {
  if (program > 0) ::kill(-program, signal);  // with what it waits for: a shell would not act before
}
extern "C" void wake(int) {}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  ::sigaction(signal, &action, nullptr);
}

void send_error(int channel, const char* type, const std::string& message, std::optional<int> exit) {
  json error = {{"type", type}, {"message", message}, {"line", 0}};
  if (exit) error["exit"] = *exit;
  send_frame(channel, FrameKind::error, dump_json(error));
}

bool write_file(const std::string& path, mode_t mode, std::string_view bytes) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  return file && write_all(file.get(), bytes) && ::fchmod(file.get(), mode) == 0;
}

struct Plan {
  std::string script_path;
  std::vector<std::string> command, environment;
  std::uint64_t max_artifact_bytes = 0;
};

// What came from the agent, laid out for the program. The agent is trusted: what does not parse is our own fault.
Plan lay_out(const HostRequest& request) {
  const json facts = json::parse(request.facts);
  Plan plan;
  plan.script_path = "/job/" + facts.at("script_file").get<std::string>();
  plan.command = facts.at("command").get<std::vector<std::string>>();
  plan.max_artifact_bytes = facts.at("max_artifact_bytes").get<std::uint64_t>();
  auto variables = json::parse(request.environment).get<TextMap>();
  variables["MYCOJOBS_INPUTS"] = kInputsFile;
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
  for (auto& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

[[noreturn]] void become(Plan& plan, int told) {
  ::setpgid(0, 0);
  for (const int signal : {SIGTERM, SIGCHLD, SIGPIPE}) handle(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const auto arguments = pointers(plan.command);
  const auto environment = pointers(plan.environment);
  ::execvpe(arguments[0], arguments.data(), environment.data());
  const int error = errno;
  static_cast<void>(!::write(told, &error, sizeof error));
  ::_exit(error == ENOENT ? kNotFound : kNotRunnable);
}

// Lines that the program writes to its progress, as notes.
class ProgressReader {
 public:
  explicit ProgressReader(int channel) : channel_(channel) {
    if (::mkfifo(kProgressFifo, 0600) == 0) fifo_.reset(::open(kProgressFifo, O_RDWR | O_NONBLOCK | O_CLOEXEC));
  }
  int fd() const { return fifo_.get(); }
  void read() {
    std::array<char, 4096> part;  // NOLINT(*-member-init): filled by read
    // What fits into it: whoever writes on and on keeps nobody from the signals, nor from the end.
    for (int round = 0; round < 16; ++round) {
      const ssize_t got = ::read(fifo_.get(), part.data(), part.size());
      if (got <= 0) return;
      pending_.append(part.data(), static_cast<std::size_t>(got));
      for (std::size_t end = 0; (end = pending_.find('\n')) != std::string::npos; pending_.erase(0, end + 1))
        tell(pending_.substr(0, end));
      if (pending_.size() > kMaxPendingLine) pending_.clear();
    }
  }
  void finish() {
    read();
    if (!pending_.empty()) tell(pending_);
  }

 private:
  void tell(const std::string& line) const {
    const Progress progress = parse_progress(line.substr(0, 1000));
    json note = {{"text", progress.text}};
    if (progress.fraction) note["fraction"] = *progress.fraction;
    send_frame(channel_, FrameKind::note, dump_json(note));
  }

  int channel_;
  Fd fifo_;
  std::string pending_;
};

int wait_for_end(ProgressReader& progress) {
  sigset_t waiting_mask;
  ::sigprocmask(SIG_SETMASK, nullptr, &waiting_mask);
  sigdelset(&waiting_mask, SIGCHLD);
  sigdelset(&waiting_mask, SIGTERM);
  int status = 0;
  for (;;) {
    const pid_t ended = ::waitpid(program, &status, WNOHANG);
    if (ended == program || (ended < 0 && errno != EINTR)) return status;
    pollfd source{progress.fd(), POLLIN, 0};
    if (::ppoll(&source, 1, nullptr, &waiting_mask) > 0) progress.read();
  }
}

Result<TextMap> read_result() {
  const Fd file(::open(kResultFile, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
  if (!file && errno == ENOENT) return TextMap{};
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return fail(Code::invalid, "result file: it is not a regular file any more");
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t size = 0;
  for (ssize_t got = 1; got > 0 && size < text.size(); size += static_cast<std::size_t>(std::max<ssize_t>(got, 0)))
    got = ::read(file.get(), text.data() + size, text.size() - size);
  text.resize(size);
  return parse_result_file(text);
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

// Everything that is left to say, in order; returns the exit code.
int hand_over(int channel, int status, int exec_error, const Plan& plan) {
  int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (exec_error != 0) {
    send_error(channel, "ProgramError", "cannot start " + plan.command[0] + ": " + errno_text(exec_error),
               std::nullopt);
  } else if (WIFEXITED(status) && code == 0) {
    if (auto result = read_result()) {
      send_frame(channel, FrameKind::result, dump_json(json(*result)));
    } else {
      code = 1;
      send_error(channel, "ResultError", result.error().message, std::nullopt);
    }
  } else if (WIFEXITED(status)) {
    send_error(channel, "Exit", "", code);
  }
  send_artifacts(channel, kArtifactsFolder, plan.max_artifact_bytes);
  send_frame(channel, FrameKind::done, "");
  return code;
}

}  // namespace

int run_program(int channel) {
  const auto request = read_request(channel);
  if (!request && request.error().code == Code::unavailable) return kNoRequest;
  int told[2];
  if (!request || ::pipe2(told, O_CLOEXEC) != 0) {
    send_error(channel, "SetupError", request ? errno_text(errno) : request.error().message, std::nullopt);
    return kNoRequest;
  }
  const Fd from(told[0]);
  Fd to(told[1]);
  Plan plan = lay_out(*request);
  if (!write_file(plan.script_path, 0500, request->script) || !write_file(kInputsFile, 0400, request->inputs) ||
      !write_file(kResultFile, 0600, "") || ::chdir("/job") != 0) {
    send_error(channel, "SetupError", "/job: " + errno_text(errno) + ": ask for more, policy.disk", std::nullopt);
    return kNoRequest;
  }
  ProgressReader progress(channel);
  sigset_t mine;
  sigemptyset(&mine);
  sigaddset(&mine, SIGTERM);
  sigaddset(&mine, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &mine, nullptr);
  handle(SIGTERM, pass_on);
  handle(SIGCHLD, wake);
  handle(SIGPIPE, SIG_IGN);
  program = ::fork();
  if (program == 0) become(plan, to.get());
  if (program > 0) ::setpgid(program, program);  // whoever comes first
  to.reset();
  int exec_error = program < 0 ? errno : 0;
  if (program > 0 && ::read(from.get(), &exec_error, sizeof exec_error) <= 0) exec_error = 0;
  const int status = program > 0 ? wait_for_end(progress) : kNotRunnable << 8;
  program = 0;
  progress.finish();
  const int code = hand_over(channel, status, exec_error, plan);
  if (WIFSIGNALED(status)) leave_by(WTERMSIG(status));
  return code;
}

}  // namespace mycojobs
