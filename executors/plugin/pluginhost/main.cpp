// mycojobs-pluginhost: started by the agent for one plugin, with a socket as descriptor 3, the plugin's file as
// descriptor 4 and an empty environment. Not for people. It carries texts from one to the other and understands none.
#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>

#include "base/fd.h"
#include "base/last_words.h"
#include "executors/plugin/pluginhost/loaded_plugin.h"
#include "executors/plugin/pluginhost/rights.h"
#include "executors/plugin/wire.h"

namespace {

using namespace mycojobs;
using namespace mycojobs::plugin;

// Any failure here means that the agent is gone, or that the plugin has taken the socket: either way nobody
// listens. At once, without the exit handlers of the plugin.
[[noreturn]] void leave(int code) { ::_exit(code); }

void read_all(char* to, std::size_t size) {
  while (size > 0) {
    const ssize_t got = ::read(kSocketFd, to, size);
    if (got == 0) leave(0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) leave(kSocketGoneExit);
    to += got;
    size -= static_cast<std::size_t>(got);
  }
}

void send(WireKind kind, std::uint32_t call, const char* text, std::size_t size) {
  const std::string header = header_bytes(kind, call, size);
  if (!write_all(kSocketFd, {header.data(), header.size()}) || !write_all(kSocketFd, {text, size}))
    leave(kSocketGoneExit);
}

void send(WireKind kind, std::uint32_t call, const std::string& text = "") {
  send(kind, call, text.data(), text.size());
}

// A plugin that hangs while the agent dies would stay for ever. KILL: the plugin cannot block it.
class Abandoned {
 public:
  Abandoned() {
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGKILL;
    if (::timer_create(CLOCK_MONOTONIC, &event, &timer_) != 0) leave(1);
  }
  void watch(unsigned seconds) {
    itimerspec when{};
    when.it_value.tv_sec = static_cast<time_t>(seconds);
    if (::timer_settime(timer_, 0, &when, nullptr) != 0) leave(1);
  }

 private:
  timer_t timer_{};
};

void answer(const Plugin& plugin, WireKind kind, std::uint32_t call, const std::string& text) {
  char* reply = nullptr;
  try {
    if (kind == WireKind::probe) reply = plugin.probe();
    if (kind == WireKind::prepare) reply = plugin.prepare(text.c_str());
    if (kind == WireKind::interpret) reply = plugin.interpret(text.c_str());
    if (reply == nullptr) return send(WireKind::nothing, call);
    const std::size_t size = ::strnlen(reply, std::size_t{kMaxReplyBytes} + 1);
    if (size > kMaxReplyBytes) {
      send(WireKind::too_large, call);
    } else {
      send(WireKind::answer, call, reply, size);
    }
    plugin.release(reply);
  } catch (...) {
    // Out of release() it comes after the answer, where the agent expects nothing more: it finds out with the next
    // call.
    send(WireKind::threw, call);
  }
}

[[noreturn]] void serve(const Plugin& plugin, Abandoned& abandoned) {
  for (;;) {
    char header[kHeaderBytes];
    read_all(header, sizeof header);
    const WireHeader frame = read_header(header);
    const auto kind = static_cast<WireKind>(frame.kind);
    if (frame.size > kMaxRequestBytes || kind < WireKind::probe || kind > WireKind::interpret ||
        (kind == WireKind::interpret && plugin.interpret == nullptr)) {
      leave(1);
    }
    abandoned.watch(kAbandonedSeconds);
    std::string text(frame.size, '\0');
    read_all(text.data(), text.size());
    answer(plugin, kind, frame.call, text);
    abandoned.watch(0);
  }
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__)
// A plugin that crashes ends this process as it would any other; and what a plugin leaks is its own affair.
extern "C" const char* __asan_default_options() { return "handle_segv=0:handle_abort=0:detect_leaks=0"; }
#endif

int main() try {
  int type = 0;
  socklen_t size = sizeof type;
  if (::getsockopt(kSocketFd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || ::fcntl(kPluginFd, F_GETFD) < 0) {
    std::fputs("mycojobs-pluginhost is started by the agent: see `mycojobs plugin check`\n", stderr);
    return 64;
  }
  // A service manager's signals are for the agent; this ends when its socket does.
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(number, SIG_IGN);
  ::close_range(kPluginFd + 1, ~0U, 0);
  Abandoned abandoned;
  abandoned.watch(kAbandonedSeconds);
  if (auto given_up = give_up_rights(kPluginFd); !given_up) {
    send(WireKind::refused, 0, std::string(kHostProgram) + ": " + given_up.error().message);
    return 71;
  }
  const auto plugin = load_plugin(kPluginFd);
  if (!plugin) {
    send(WireKind::refused, 0, plugin.error().message);
    leave(1);
  }
  send(WireKind::loaded, 0, describe(**plugin));
  abandoned.watch(0);
  serve(**plugin, abandoned);
} catch (...) {
  mycojobs::leave_with_last_words("mycojobs-pluginhost");
}
