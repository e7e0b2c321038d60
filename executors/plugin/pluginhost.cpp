// mycojobs-pluginhost is started by the agent for one plugin, with a socket as descriptor 3, the plugin's file as
// descriptor 4 and an empty environment. It forwards texts between them without parsing.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <linux/close_range.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>

#include "base/fd.h"
#include "base/result.h"
#include "base/uncaught_exception.h"
#include "executors/plugin/plugin_protocol.h"
#include "sandbox/privilege_drop.h"

namespace mycojobs::plugin {
namespace {

// A plugin is trusted only to build command lines. Before it is loaded, and therefore before its constructors run, the
// host drops its rights in this order:
//
//   resource limits    512 MiB of address space, 64 descriptors, no file output, no core dump; as an unprivileged user
//                      also no new process or thread
//   ids                as root: user and group 65534, no groups, no capabilities (sandbox/privilege_drop.h)
//   files              reads system folders and its own file; writes none; no ptrace, no signals to other processes
//   seccomp, last      no socket, process, exec, namespace or tracing
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // sanitizers reserve terabytes of address space
#else
constexpr bool kSanitized = false;
#endif

// These are not all folders of /etc, since the configuration and secrets of an agent without root are readable for its
// user.
constexpr const char* kReadableFolders[] = {
    "/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives"};

// System calls that affect other processes, the network or rarely used parts of the kernel. Signals to the own process
// are allowed, since abort() needs them.
constexpr const char* kForbiddenCalls[] = {
    "fork",
    "vfork",
    "clone",
    "clone3",
    "execve",
    "execveat",
    "socket",
    "socketpair",
    "connect",
    "bind",
    "listen",
    "accept",
    "accept4",
    // A plugin could attach descriptors to a message; the agent would have to close them, and the last close may block.
    "sendmsg",
    "sendmmsg",
    "kill",
    "tkill",
    "rt_sigqueueinfo",
    "rt_tgsigqueueinfo",
    "pidfd_open",
    "pidfd_getfd",
    "pidfd_send_signal",
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "process_madvise",
    "kcmp",
    "unshare",
    "setns",
    "mount",
    "umount2",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsmount",
    "mount_setattr",
    "pivot_root",
    "chroot",
    "bpf",
    "keyctl",
    "add_key",
    "request_key",
    "perf_event_open",
    "userfaultfd",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "memfd_create",
    "memfd_secret",
    "shmget",
    "shmat",
    "semget",
    "msgget",
    "mq_open",
    "setpriority",
    "ioprio_set",
    "sched_setscheduler",
    "sched_setattr",
    "sched_setaffinity",
    "setrlimit",
    "inotify_init1",
    "fanotify_init",
};

// plugin_fd: the plugin's file, which stays readable.
Result<void> drop_rights(int plugin_fd) {
  constexpr rlim_t kMemory = 512ULL << 20;
  if (!kSanitized) MJ_CHECK(sandbox::limit_resource(RLIMIT_AS, "RLIMIT_AS", kMemory));
  MJ_CHECK(sandbox::limit_resource(RLIMIT_NOFILE, "RLIMIT_NOFILE", 64));
  MJ_CHECK(sandbox::limit_resource(RLIMIT_FSIZE, "RLIMIT_FSIZE", 0));
  MJ_CHECK(sandbox::forbid_core_dumps());
  MJ_CHECK(sandbox::empty_bounding_set());
  MJ_CHECK(sandbox::drop_root());
  MJ_CHECK(sandbox::drop_capabilities());
  MJ_CHECK(sandbox::limit_resource(RLIMIT_NPROC, "RLIMIT_NPROC", 0));
  MJ_CHECK(sandbox::forbid_ptrace_and_new_privileges());
  MJ_CHECK(sandbox::restrict_to_reading(kReadableFolders, plugin_fd));
  return sandbox::refuse_calls(kForbiddenCalls);
}

// The handshake loads the plugin's file and inspects its exported symbol without calling its functions.

constexpr std::size_t kMaxScriptTypes = 16;
constexpr std::size_t kMaxText = 256;
constexpr std::size_t kMaxProfile = 64U << 10;
constexpr const char* kBuildAgain = ": build it with the plugin.h of this mycojobs";

tl::unexpected<Error> make_refusal(const std::string& reason) { return fail(Code::invalid, reason); }

std::string to_text(std::uint64_t value) { return std::to_string(value); }

// The first two members have the same offset in every ABI version.
Result<void> check_version(const Plugin& plugin) {
  const std::string mismatch =
      "it is of plugin ABI " + to_text(plugin.abi) + ", and this agent accepts " + to_text(MYCOJOBS_PLUGIN_ABI);
  if (plugin.abi < MYCOJOBS_PLUGIN_ABI) return make_refusal(mismatch + kBuildAgain);
  if (plugin.abi > MYCOJOBS_PLUGIN_ABI)
    return make_refusal(mismatch + ": install a newer mycojobs, or a plugin built for this version");
  if (plugin.struct_size != sizeof(Plugin)) {
    return make_refusal("struct_size: it is " + to_text(plugin.struct_size) + " bytes, struct mycojobs_plugin has " +
                        to_text(sizeof(Plugin)) + kBuildAgain);
  }
  return {};
}

Result<void> check_text(const char* name, const char* text, std::size_t max_bytes) {
  if (text == nullptr) return make_refusal(std::string(name) + ": it is NULL; only profile and interpret can be NULL");
  if (::strnlen(text, max_bytes + 1) > max_bytes)
    return make_refusal(std::string(name) + ": more than " + to_text(max_bytes) + " bytes");
  return {};
}

Result<void> check_members(const Plugin& plugin) {
  MJ_CHECK(check_text("name", plugin.name, kMaxText));
  MJ_CHECK(check_text("version", plugin.version, kMaxText));
  if (plugin.profile != nullptr) MJ_CHECK(check_text("profile", plugin.profile, kMaxProfile));
  if (plugin.script_types == nullptr) return make_refusal("script_types: it is NULL: list the types that it serves");
  std::size_t types = 0;
  for (; plugin.script_types[types] != nullptr; ++types) {
    if (types == kMaxScriptTypes) return make_refusal("script_types: more than 16, or no NULL after the last");
    MJ_CHECK(check_text("script_types", plugin.script_types[types], kMaxText));
  }
  if (types == 0) return make_refusal("script_types: it is empty: list the types that it serves");
  const auto missing_function = [](const char* function) {
    return make_refusal(std::string(function) + ": it is NULL, and every plugin must have it");
  };
  if (plugin.probe == nullptr) return missing_function("probe");
  if (plugin.prepare == nullptr) return missing_function("prepare");
  if (plugin.release == nullptr) return missing_function("release");
  return {};
}

// Runs the plugin's constructors. Error invalid: one line with the reason and the remedy.
Result<const Plugin*> load_plugin(int fd) {
  // Uses the open file, so the checked file is loaded even if its path was replaced.
  const std::string path = "/proc/self/fd/" + to_text(static_cast<std::uint64_t>(fd));
  void* object = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) {
    const char* message = ::dlerror();
    std::string reason = message == nullptr ? "no reason given" : message;
    if (reason.starts_with(path + ": ")) reason.erase(0, path.size() + 2);  // the path is meaningless to the reader
    return make_refusal("it cannot be loaded: " + reason);
  }
  const void* symbol = ::dlsym(object, MYCOJOBS_PLUGIN_SYMBOL);
  Dl_info info{};
  ElfW(Sym)* entry = nullptr;
  if (symbol == nullptr || ::dladdr1(symbol, &info, reinterpret_cast<void**>(&entry), RTLD_DL_SYMENT) == 0 ||
      entry == nullptr) {
    return make_refusal("it exports no symbol " MYCOJOBS_PLUGIN_SYMBOL ": define it as in plugin.h");
  }
  if (ELF64_ST_TYPE(entry->st_info) != STT_OBJECT || entry->st_size < 2 * sizeof(std::uint32_t)) {
    return make_refusal("its symbol " MYCOJOBS_PLUGIN_SYMBOL
                        " is not a struct mycojobs_plugin: define it as in plugin.h");
  }
  const auto* plugin = static_cast<const Plugin*>(symbol);
  MJ_CHECK(check_version(*plugin));
  if (entry->st_size < sizeof(Plugin)) {
    return make_refusal("its symbol " MYCOJOBS_PLUGIN_SYMBOL " has " + to_text(entry->st_size) +
                        " bytes, struct mycojobs_plugin has " + to_text(sizeof(Plugin)) + kBuildAgain);
  }
  MJ_CHECK(check_members(*plugin));
  return plugin;
}

// Returns the payload of `loaded` (plugin_protocol.h).
std::string encode_description(const Plugin& plugin) {
  std::string out;
  const auto add = [&out](const std::string& text) { out.append(text).push_back('\0'); };
  add(to_text(plugin.abi));
  add(plugin.interpret != nullptr ? "1" : "0");
  add(plugin.name);
  add(plugin.version);
  add(plugin.profile != nullptr ? plugin.profile : "");
  for (const char* const* type = plugin.script_types; *type != nullptr; ++type) add(*type);
  return out;
}

}  // namespace

}  // namespace mycojobs::plugin

namespace {

using namespace mycojobs;
using namespace mycojobs::plugin;

// Called when the agent has exited or the plugin has closed the socket, so no error can be reported. Skips the plugin's
// exit handlers.
[[noreturn]] void exit_now(int code) { ::_exit(code); }

void read_all(char* buffer, std::size_t size) {
  while (size > 0) {
    const ssize_t count = ::read(kSocketFd, buffer, size);
    if (count == 0) exit_now(0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) exit_now(kSocketEndedExit);
    buffer += count;
    size -= static_cast<std::size_t>(count);
  }
}

void send(PluginFrameKind kind, std::uint32_t call, const char* text, std::size_t size) {
  const std::string header = header_bytes(kind, call, size);
  if (!write_all(kSocketFd, {header.data(), header.size()}) || !write_all(kSocketFd, {text, size}))
    exit_now(kSocketEndedExit);
}

void send(PluginFrameKind kind, std::uint32_t call, const std::string& text = "") {
  send(kind, call, text.data(), text.size());
}

// Kills the process if a plugin hangs after the agent has died. Uses SIGKILL, which a plugin cannot block.
class KillTimer {
 public:
  KillTimer() {
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGKILL;
    if (::timer_create(CLOCK_MONOTONIC, &event, &timer_) != 0) exit_now(1);
  }
  void disarm() { arm(0); }
  void arm(unsigned seconds) {
    itimerspec interval{};
    interval.it_value.tv_sec = static_cast<time_t>(seconds);
    if (::timer_settime(timer_, 0, &interval, nullptr) != 0) exit_now(1);
  }

 private:
  timer_t timer_{};
};

void call_function(const Plugin& plugin, PluginFrameKind kind, std::uint32_t call, const std::string& text) {
  char* reply = nullptr;
  try {
    if (kind == PluginFrameKind::probe) reply = plugin.probe();
    if (kind == PluginFrameKind::prepare) reply = plugin.prepare(text.c_str());
    if (kind == PluginFrameKind::interpret) reply = plugin.interpret(text.c_str());
    if (reply == nullptr) return send(PluginFrameKind::nothing, call);
    const std::size_t size = ::strnlen(reply, std::size_t{kMaxReplyBytes} + 1);
    if (size > kMaxReplyBytes) {
      send(PluginFrameKind::too_large, call);
    } else {
      send(PluginFrameKind::answer, call, reply, size);
    }
    plugin.release(reply);
  } catch (...) {
    // An exception from release() is sent after the answer. The agent does not expect this frame and detects it at the
    // next call.
    send(PluginFrameKind::threw, call);
  }
}

[[noreturn]] void serve(const Plugin& plugin, KillTimer& kill_timer) {
  for (;;) {
    char header[kHeaderBytes];
    read_all(header, sizeof header);
    const PluginFrameHeader frame = read_header(header);
    const auto kind = static_cast<PluginFrameKind>(frame.kind);
    if (frame.size > kMaxRequestBytes || kind < PluginFrameKind::probe || kind > PluginFrameKind::interpret ||
        (kind == PluginFrameKind::interpret && plugin.interpret == nullptr)) {
      exit_now(1);
    }
    kill_timer.arm(kMaxCallSeconds);
    std::string text(frame.size, '\0');
    read_all(text.data(), text.size());
    call_function(plugin, kind, frame.call, text);
    kill_timer.disarm();
  }
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__)
// A crash of the plugin must end this process by the signal. Leaks of the plugin are not checked.
extern "C" const char* __asan_default_options() { return "handle_segv=0:handle_abort=0:detect_leaks=0"; }
#endif

int main() try {
  int type = 0;
  socklen_t size = sizeof type;
  if (::getsockopt(kSocketFd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || ::fcntl(kPluginFd, F_GETFD) < 0) {
    std::fputs("mycojobs-pluginhost is started by the agent: see `mycojobs plugin check`\n", stderr);
    return 64;
  }
  // Signals from a service manager are meant for the agent; this process ends when its socket is closed.
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(number, SIG_IGN);
  ::close_range(kPluginFd + 1, ~0U, 0);
  KillTimer kill_timer;
  kill_timer.arm(kMaxCallSeconds);
  if (auto dropped = drop_rights(kPluginFd); !dropped) {
    send(PluginFrameKind::refused, 0, std::string(kHostProgram) + ": " + dropped.error().message);
    return 71;
  }
  const auto plugin = load_plugin(kPluginFd);
  if (!plugin) {
    send(PluginFrameKind::refused, 0, plugin.error().message);
    exit_now(1);
  }
  send(PluginFrameKind::loaded, 0, encode_description(**plugin));
  kill_timer.disarm();
  serve(**plugin, kill_timer);
} catch (...) {
  mycojobs::exit_with_report("mycojobs-pluginhost");
}
