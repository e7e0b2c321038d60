#include "workflows/engine/engine_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/errno_text.h"
#include "text/utf8.h"

namespace mycojobs::workflow {
namespace {

constexpr int kExitTimeoutMs = 500;                 // wait for the exit of a process that closed its socket
constexpr std::uint64_t kCpuCheckIntervalMs = 100;  // interval between checks of the CPU time and of `stopped_`

// Moves a descriptor above the numbers that the host process receives. Otherwise one of the copies in the child could
// overwrite the source of another copy.
Result<Fd> move_fd_up(Fd fd) {
  Fd high_fd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 10));
  if (!high_fd) return fail(Code::io, "descriptors: " + errno_text(errno));
  return high_fd;
}

std::string encode_frame(StepFrameKind kind, std::uint32_t call, std::initializer_list<std::string_view> parts) {
  std::size_t size = 0;
  for (std::string_view part : parts) size += part.size();
  std::string out;
  out.reserve(kHeaderBytes + size);
  append_header(out, kind, call, size);
  for (std::string_view part : parts) out += part;
  return out;
}

}  // namespace

Result<std::unique_ptr<EngineProcess>> EngineProcess::start(const std::string& program, std::uint64_t instructions,
                                                            std::uint64_t memory_bytes, std::uint32_t limit_ms,
                                                            std::uint32_t counting) {
  std::unique_ptr<EngineProcess> process(new EngineProcess());
  EngineProcess& host = *process;
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
    return fail(Code::io, "socketpair: " + errno_text(errno));
  host.socket_.reset(sockets[0]);
  MJ_TRY(peer_socket, move_fd_up(Fd(sockets[1])));
  MJ_TRY(null_device, move_fd_up(Fd(::open("/dev/null", O_RDWR | O_CLOEXEC))));
  if (::fcntl(host.socket_.get(), F_SETFL, O_NONBLOCK) != 0) return fail(Code::io, "descriptors: " + errno_text(errno));
  SpawnSpec spec;
  spec.program = program;
  spec.arguments = {std::to_string(instructions), std::to_string(memory_bytes), std::to_string(counting)};
  spec.inherited_descriptors = {{null_device.get(), STDIN_FILENO},
                                {null_device.get(), STDOUT_FILENO},
                                {null_device.get(), STDERR_FILENO},
                                {peer_socket.get(), kSocketFd}};
  MJ_TRY(child, spawn(spec));
  host.child_ = std::move(child);
  peer_socket.reset();
  host.limit_ = {limit_ms, limit_ms};
  host.deadline_boot_ms_ = SystemClock().boot_ms() + limit_ms;
  MJ_TRY(kind, host.receive_frame(0, host.name_));
  if (kind == StepFrameKind::refused)
    return fail(Code::unsupported, "it cannot be confined here: " + to_ascii(host.name_, 300));
  if (kind != StepFrameKind::ready || host.name_.size() > 64) return fail(Code::internal, "it did not greet");
  return process;
}

EngineProcess::~EngineProcess() {
  if (child_.pid < 0) return;
  ::kill(child_.pid, SIGKILL);
  wait_child(child_);
}

Result<StepAnswer> EngineProcess::step(const WorkflowProgram& program, std::string_view request, StepTimeLimits limit,
                                       const std::atomic<bool>* stopped) {
  limit_ = limit;
  deadline_boot_ms_ = SystemClock().boot_ms() + limit.wall_ms;
  cpu_deadline_ms_.reset();
  stopped_ = stopped;
  timed_out_ = false;
  char byte = 0;
  const ssize_t received = ::recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (received > 0) return fail(Code::internal, "it sent data before a request");
  if (received == 0) return exit_error();
  std::string payload;
  for (int attempt = 0; attempt < 2; ++attempt) {
    ++calls_;
    std::string frames;
    constexpr std::string_view kNul("\0", 1);
    if (sent_programs_.insert(program.hash()).second)
      frames = encode_frame(StepFrameKind::program, calls_,
                            {program.hash(), program.entrypoint(), kNul, program.name(), kNul, program.source()});
    frames += encode_frame(StepFrameKind::step, calls_, {program.hash(), request});
    MJ_CHECK(send(frames));
    MJ_TRY(kind, receive_frame(calls_, payload));
    if (kind == StepFrameKind::answer) {
      auto answer = decode_step_answer(payload);
      if (!answer) return fail(Code::internal, "answer: " + answer.error().message);
      return answer;
    }
    if (kind != StepFrameKind::unknown_program) break;
    sent_programs_.clear();  // the process keeps only the most recently used programs
  }
  return fail(Code::internal, "it spoke nonsense");
}

Result<void> EngineProcess::wait(short events) {
  for (;;) {
    const std::uint64_t now = SystemClock().boot_ms();
    if (stopped_ != nullptr && *stopped_) return fail(Code::unavailable, "the engine is being stopped");
    timed_out_ = now >= deadline_boot_ms_;
    if (timed_out_)
      return fail(Code::unavailable, "it did not answer within " + std::to_string(limit_.wall_ms) + " ms");
    pollfd poll_entry{socket_.get(), events, 0};
    const auto timeout_ms = static_cast<int>(std::min<std::uint64_t>(deadline_boot_ms_ - now, kCpuCheckIntervalMs));
    if (::poll(&poll_entry, 1, timeout_ms) < 0 && errno != EINTR) return fail(Code::io, "poll: " + errno_text(errno));
    if (poll_entry.revents != 0) return {};
    const std::uint64_t used_cpu_ms = cpu_ms();
    if (!cpu_deadline_ms_) cpu_deadline_ms_ = used_cpu_ms + limit_.cpu_ms;
    timed_out_ = used_cpu_ms >= *cpu_deadline_ms_;
    if (timed_out_)
      return fail(Code::unavailable, "it did not answer within " + std::to_string(limit_.cpu_ms) + " ms of CPU time");
  }
}

std::uint64_t EngineProcess::cpu_ms() const {
  clockid_t clock{};
  timespec time{};
  if (::clock_getcpuclockid(child_.pid, &clock) != 0 || ::clock_gettime(clock, &time) != 0) return 0;
  return static_cast<std::uint64_t>(time.tv_sec) * 1000 + static_cast<std::uint64_t>(time.tv_nsec) / 1'000'000;
}

Result<void> EngineProcess::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
    if (sent < 0 && errno == EAGAIN) MJ_CHECK(wait(POLLOUT));
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return exit_error();
  }
  return {};
}

Result<void> EngineProcess::receive(char* buffer, std::size_t size) {
  while (size > 0) {
    const ssize_t received = ::recv(socket_.get(), buffer, size, 0);
    if (received == 0 || (received < 0 && errno != EAGAIN && errno != EINTR)) return exit_error();
    if (received < 0 && errno == EAGAIN) MJ_CHECK(wait(POLLIN));
    if (received <= 0) continue;
    buffer += received;
    size -= static_cast<std::size_t>(received);
  }
  return {};
}

Result<StepFrameKind> EngineProcess::receive_frame(std::uint32_t call, std::string& payload) {
  std::array<char, kHeaderBytes> bytes{};
  MJ_CHECK(receive(bytes.data(), bytes.size()));
  const StepFrameHeader header = parse_header(bytes.data());
  const auto kind = static_cast<StepFrameKind>(header.kind);
  const bool is_greeting = kind == StepFrameKind::ready || kind == StepFrameKind::refused;
  const bool is_known_kind = is_greeting || kind == StepFrameKind::answer || kind == StepFrameKind::unknown_program;
  if (header.call != call || !is_known_kind || is_greeting != (call == 0) ||
      header.size > kMaxStateBytes + kMaxStepBytes + kMaxStepMessageBytes)
    return fail(Code::internal, "it spoke nonsense");
  payload.resize(header.size);
  MJ_CHECK(receive(payload.data(), payload.size()));
  return kind;
}

// Returns the error for a process that has closed its end of the socket, with its exit code or signal.
tl::unexpected<Error> EngineProcess::exit_error() {
  pollfd exit_poll{child_.pidfd.get(), POLLIN, 0};
  const bool has_exited = ::poll(&exit_poll, 1, kExitTimeoutMs) > 0;
  ::kill(child_.pid, SIGKILL);
  const int code = wait_child(child_);
  if (!has_exited) return fail(Code::internal, "it closed its socket");
  if (code <= 128) return fail(Code::internal, "it ended with exit code " + std::to_string(code));
  const char* const name = ::sigabbrev_np(code - 128);
  return fail(Code::internal,
              "it died: signal " + (name != nullptr ? "SIG" + std::string(name) : std::to_string(code - 128)));
}

}  // namespace mycojobs::workflow
