#include "executors/plugin/host_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/clock.h"
#include "base/counted.h"
#include "base/errno_text.h"
#include "base/log.h"
#include "domain/utf8.h"
#include "executors/plugin/plugin_json.h"

namespace mycojobs::plugin {
namespace {

constexpr std::size_t kMaxLines = 20;  // of stderr that are logged of one call
constexpr std::size_t kMaxLine = 500;
constexpr int kDeathMs = 500;  // between the end of its socket and its own

tl::unexpected<Error> fault(const std::string& how) { return fail(Code::unavailable, how); }

// Above the numbers that the host gets them as: a copy must not overwrite another one's source.
Result<Fd> moved_up(Fd fd) {
  Fd up(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 10));
  if (!up) return fail(Code::io, "descriptors: " + errno_text(errno));
  return up;
}

std::string word_of(WireKind kind) {
  return kind == WireKind::probe ? "probe" : kind == WireKind::prepare ? "prepare" : "interpret";
}

}  // namespace

Result<std::unique_ptr<HostProcess>> HostProcess::start(const std::string& program, int plugin, std::string label,
                                                        std::uint32_t limit_ms) {
  std::unique_ptr<HostProcess> made(new HostProcess(std::move(label)));
  HostProcess& host = *made;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return fail(Code::io, "socketpair: " + errno_text(errno));
  }
  host.socket_.reset(ends[0]);
  MJ_TRY(theirs, moved_up(Fd(ends[1])));
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail(Code::io, "pipe: " + errno_text(errno));
  host.stderr_.reset(ends[0]);
  MJ_TRY(its_stderr, moved_up(Fd(ends[1])));
  MJ_TRY(nothing, moved_up(Fd(::open("/dev/null", O_RDWR | O_CLOEXEC))));
  MJ_TRY(file, moved_up(Fd(::fcntl(plugin, F_DUPFD_CLOEXEC, 0))));
  // Its own end of the pipe blocks: then nothing that it writes is lost, and ours reads while it waits.
  if (::fcntl(host.socket_.get(), F_SETFL, O_NONBLOCK) != 0 || ::fcntl(host.stderr_.get(), F_SETFL, O_NONBLOCK) != 0) {
    return fail(Code::io, "descriptors: " + errno_text(errno));
  }
  SpawnSpec spec;
  spec.program = program;
  spec.argv0 = kHostProgram;
  spec.descriptors = {{nothing.get(), STDIN_FILENO},
                      {nothing.get(), STDOUT_FILENO},
                      {its_stderr.get(), STDERR_FILENO},
                      {theirs.get(), kSocketFd},
                      {file.get(), kPluginFd}};
  MJ_TRY(child, spawn(spec));
  host.child_ = std::move(child);
  theirs.reset();
  its_stderr.reset();

  const std::string during = "loading it";
  host.limit_ms_ = limit_ms;
  host.deadline_boot_ms_ = SystemClock().boot_ms() + limit_ms;
  host.lines_left_ = kMaxLines;
  MJ_TRY(reply, host.receive_frame(0, during));
  host.log_stderr(true);
  if (reply.kind == WireKind::refused) return fail(Code::invalid, printable_line(reply.text));
  MJ_CHECK(host.take_description(reply.text));
  return made;
}

HostProcess::~HostProcess() {
  if (child_.pid < 0) return;
  ::kill(child_.pid, SIGKILL);
  wait_child(child_);
  read_stderr();
  log_stderr(true);
}

Result<Reply> HostProcess::call(WireKind kind, std::string_view text, std::uint32_t limit_ms) {
  const std::string during = word_of(kind);
  if (text.size() > kMaxRequestBytes) return fail(Code::too_large, "more than a plugin can be told of a job");
  limit_ms_ = limit_ms;
  deadline_boot_ms_ = SystemClock().boot_ms() + limit_ms;
  lines_left_ = kMaxLines;
  lines_dropped_ = 0;
  char early = 0;
  const ssize_t unasked = ::recv(socket_.get(), &early, 1, MSG_PEEK | MSG_DONTWAIT);
  if (unasked > 0) return fault("it spoke before it was asked (" + during + ")");
  if (unasked == 0) return died("between two calls");
  ++calls_;
  MJ_CHECK(send(header_bytes(kind, calls_, text.size()), during));
  MJ_CHECK(send(text, during));
  auto reply = receive_frame(calls_, during);
  read_stderr();
  log_stderr(true);
  return reply;
}

// Until the socket is ready for `events`; what the plugin writes meanwhile is read, so that it never waits for us.
Result<void> HostProcess::wait(short events, const std::string& during) {
  for (;;) {
    const std::uint64_t now = SystemClock().boot_ms();
    if (now >= deadline_boot_ms_) {
      return fault("it did not answer within " + std::to_string(limit_ms_) + " ms (" + during + ")");
    }
    pollfd places[2] = {{socket_.get(), events, 0}, {stderr_.get(), POLLIN, 0}};
    if (::poll(places, 2, static_cast<int>(deadline_boot_ms_ - now)) < 0 && errno != EINTR) {
      return fail(Code::io, "poll: " + errno_text(errno));
    }
    if (places[1].revents != 0) read_stderr();
    if (places[0].revents != 0) return {};
  }
}

Result<void> HostProcess::send(std::string_view bytes, const std::string& during) {
  while (!bytes.empty()) {
    const ssize_t put = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put > 0) bytes.remove_prefix(static_cast<std::size_t>(put));
    if (put < 0 && errno == EAGAIN) MJ_CHECK(wait(POLLOUT, during));
    if (put < 0 && errno != EAGAIN && errno != EINTR) return died(during);
  }
  return {};
}

Result<void> HostProcess::receive(char* to, std::size_t size, const std::string& during) {
  while (size > 0) {
    const ssize_t got = ::recv(socket_.get(), to, size, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return died(during);
    if (got < 0 && errno == EAGAIN) MJ_CHECK(wait(POLLIN, during));
    if (got <= 0) continue;
    to += got;
    size -= static_cast<std::size_t>(got);
  }
  return {};
}

Result<Reply> HostProcess::receive_frame(std::uint32_t call, const std::string& during) {
  std::array<char, kHeaderBytes> bytes{};
  MJ_CHECK(receive(bytes.data(), bytes.size(), during));
  const WireHeader header = read_header(bytes.data());
  const auto kind = static_cast<WireKind>(header.kind);
  const bool greeting = kind == WireKind::loaded || kind == WireKind::refused;
  const bool known = greeting || (kind >= WireKind::answer && kind <= WireKind::too_large);
  if (header.call != call || !known || greeting != (call == 0) || header.size > kMaxReplyBytes) {
    return fault("it wrote nonsense into its host's socket (" + during + ")");
  }
  Reply reply{kind, std::string(header.size, '\0')};
  MJ_CHECK(receive(reply.text.data(), reply.text.size(), during));
  return reply;
}

// Its end of the socket is gone: because the process is, or because the plugin closed it.
tl::unexpected<Error> HostProcess::died(const std::string& during) {
  pollfd end{child_.pidfd.get(), POLLIN, 0};
  const bool gone = ::poll(&end, 1, kDeathMs) > 0;
  if (!gone) ::kill(child_.pid, SIGKILL);
  const int code = wait_child(child_);
  read_stderr();
  log_stderr(true);
  if (!gone || code == kSocketGoneExit) return fault("it closed its host's socket (" + during + ")");
  if (code <= 128) return fault("it ended its host with exit code " + std::to_string(code) + " (" + during + ")");
  const char* name = ::sigabbrev_np(code - 128);
  return fault("it crashed: signal " + (name != nullptr ? "SIG" + std::string(name) : std::to_string(code - 128)) +
               " (" + during + ")");
}

Result<void> HostProcess::take_description(std::string_view payload) {
  std::vector<std::string> texts;
  while (!payload.empty()) {
    const auto end = std::min(payload.find('\0'), payload.size());
    texts.emplace_back(payload.substr(0, end));
    payload.remove_prefix(std::min(end + 1, payload.size()));
    if (texts.size() > 32) break;
  }
  if (texts.size() < 6 || texts.size() > 32) return fault("it wrote nonsense into its host's socket (loading it)");
  description_.abi = texts[0] == std::to_string(MYCOJOBS_PLUGIN_ABI) ? MYCOJOBS_PLUGIN_ABI : 0;
  description_.interprets = texts[1] == "1";
  description_.name = texts[2];
  description_.version = texts[3];
  description_.profile = texts[4];
  description_.script_types.assign(texts.begin() + 5, texts.end());
  return {};
}

void HostProcess::read_stderr() {
  std::array<char, 4096> buffer;
  // Bounded: a plugin that writes faster than this reads is still held to its deadline.
  for (int round = 0; round < 64; ++round) {
    const ssize_t got = ::read(stderr_.get(), buffer.data(), buffer.size());
    if (got == 0) stderr_.reset();  // the plugin has closed it: there is nothing to wait for any more
    if (got <= 0) return;
    written_.append(buffer.data(), static_cast<std::size_t>(got));
    log_stderr(false);
  }
}

// all: the last line too, whole or not.
void HostProcess::log_stderr(bool all) {
  while (!written_.empty()) {
    const auto end = written_.find('\n');
    if (end == std::string::npos && !all && written_.size() <= kMaxLine) return;
    const std::size_t size = std::min({end, written_.size(), kMaxLine});
    if (lines_left_ > 0) {
      --lines_left_;
      log(LogLevel::info, "plugin", "{} writes: {}", label_, shown(written_.substr(0, size), kMaxLine));
    } else {
      ++lines_dropped_;
    }
    written_.erase(0, end == size ? size + 1 : size);
  }
  if (!all || lines_dropped_ == 0) return;
  log(LogLevel::info, "plugin", "{} writes: {} left out", label_,
      counted(std::exchange(lines_dropped_, 0), "more line"));
}

}  // namespace mycojobs::plugin
