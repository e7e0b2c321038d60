#include "store/redis/embedded_redis.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/errno_text.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/thread.h"
#include "store/redis/redis_connection.h"

namespace mycojobs {
namespace {

constexpr const char* kSetprivPath = "/usr/bin/setpriv";
constexpr int kServerLockFd = 3;
constexpr int kStopTimeoutMs = 30000, kForkWaitMs = 1000;
constexpr std::size_t kMaxSocketPath = sizeof(sockaddr_un{}.sun_path) - 1;

Result<void> check_program(const char* path, const char* package) {
  if (::access(path, X_OK) == 0) return {};
  return fail(Code::unsupported, std::string(path) + " is missing: install the package " + package +
                                     ", or name a running server with --redis");
}

std::filesystem::path redis_folder(const std::string& state_dir) {
  std::error_code error;
  return std::filesystem::absolute(state_dir, error).lexically_normal() / "redis";
}

std::string redis_url(const std::string& folder) {
  std::string escaped;
  for (char c : folder + "/redis.sock") escaped += c == '%' ? "%25" : c == '?' ? "%3F" : std::string(1, c);
  return "unix://" + escaped;
}

Result<std::string> make_folder(const std::string& state_dir) {
  std::error_code error;
  const std::filesystem::path folder = redis_folder(state_dir);
  std::filesystem::create_directories(folder, error);
  if (error) return fail(Code::io, "cannot make the folder " + folder.string() + ": " + error.message());
  if (::chmod(folder.c_str(), 0700) != 0) {
    return fail(Code::io, "cannot make the folder " + folder.string() + " private: " + errno_text(errno));
  }
  if ((folder / "redis.sock").string().size() > kMaxSocketPath) {
    return fail(Code::invalid, "the path " + (folder / "redis.sock").string() + " is longer than the " +
                                   std::to_string(kMaxSocketPath) +
                                   " bytes that a socket may have; choose a shorter state folder");
  }
  return folder.string();
}

std::string read_lock_holder(int lock_fd) {
  char text[64] = {};
  const ssize_t count = ::pread(lock_fd, text, sizeof text - 1, 0);
  return count > 0 ? std::string(text, static_cast<std::size_t>(count)) : "?";
}

bool has_exited(const std::string& pid) {
  std::uint64_t number = 0;
  if (!parse_u64(pid, number) || number == 0) return false;
  return ::kill(static_cast<pid_t>(number), 0) != 0 && errno == ESRCH;
}

// Checked before the start, since Redis detects a full disk only when it writes its file, up to a second after its
// first answer.
Result<void> check_free_space(const std::string& folder) {
  constexpr std::uint64_t kMinFreeBytes = 16ULL << 20;
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return fail(Code::io, "cannot read " + folder + ": " + errno_text(errno));
  const std::uint64_t free_bytes = std::uint64_t{disk.f_bavail} * disk.f_frsize;
  if (free_bytes >= kMinFreeBytes) return {};
  return fail(Code::io, "the disk of " + folder + " is full: " + std::to_string(free_bytes >> 10) +
                            " KiB are free, 16 MiB are needed; free space or use another state folder");
}

// Locks the folder, so that two servers never write the same data. The server inherits the lock: after this program was
// killed, its server may still write data and keeps the folder locked. The function waits until that server has ended.
// A server of this process that was killed may leave forked children with the lock; the function waits for them up to
// kForkWaitMs. The lock file contains the process id of the program that started the server.
Result<Fd> acquire_lock(const std::string& folder, Deadline deadline) {
  const std::string path = folder + "/lock";
  Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd) return fail(Code::io, "cannot open " + path + ": " + errno_text(errno));
  const std::string own_pid = std::to_string(::getpid());
  const Deadline fork_deadline = std::min(deadline, deadline_after(kForkWaitMs));
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return fail(Code::io, "cannot lock " + path + ": " + errno_text(errno));
    const std::string holder = read_lock_holder(fd.get());
    const bool is_holder_gone = has_exited(holder);
    const bool should_wait = is_holder_gone || holder == own_pid;
    if (!should_wait || std::chrono::steady_clock::now() >= (is_holder_gone ? deadline : fork_deadline)) {
      return fail(Code::conflict, "the folder " + folder + " is used by " +
                                      (is_holder_gone ? "the redis-server of process " : "process ") + holder +
                                      "; end it or choose another state folder");
    }
    ::poll(nullptr, 0, 10);
  }
  if (::ftruncate(fd.get(), 0) != 0 ||
      ::pwrite(fd.get(), own_pid.data(), own_pid.size(), 0) != static_cast<ssize_t>(own_pid.size())) {
    return fail(Code::io, "cannot write to the folder " + folder + ": " + errno_text(errno));
  }
  return fd;
}

std::vector<std::string> server_arguments(const std::string& folder, const EmbeddedRedis::Options& options) {
  std::vector<std::pair<std::string, std::string>> settings{
      {"port", "0"},
      {"unixsocket", folder + "/redis.sock"},
      {"unixsocketperm", "700"},
      {"dir", folder},
      {"appendonly", "yes"},
      {"appendfsync", "everysec"},
      {"save", ""},
      {"maxmemory-policy", "noeviction"},
      {"databases", "64"},
      // Redis allocates streams in nodes of this size, and each job has a stream.
      {"stream-node-max-bytes", "1024"},
      // Keeps a record with its receipt in the compact encoding.
      {"hash-max-listpack-value", "1024"},
      // Percentiles of each command are not used.
      {"latency-tracking", "no"},
      {"loglevel", "notice"},
      {"logfile", folder + "/redis.log"},
      {"daemonize", "no"}};
  settings.insert(settings.end(), options.settings.begin(), options.settings.end());
  std::vector<std::string> arguments{"--pdeathsig", "TERM", options.program};
  for (const auto& [name, value] : settings) {
    arguments.push_back("--" + name);
    arguments.push_back(value);
  }
  return arguments;
}

std::string read_last_line(const std::string& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) last = line;
  }
  const auto text = last.find(" # ");  // follows the process id and the time
  return last.substr(text == std::string::npos ? 0 : text + 3, 300);
}

}  // namespace

EmbeddedRedis::EmbeddedRedis(std::string folder, Fd lock, Options options)
    : folder_(std::move(folder)), lock_(std::move(lock)), options_(std::move(options)) {}

EmbeddedRedis::~EmbeddedRedis() { stop(); }

std::string EmbeddedRedis::url(const std::string& state_dir) { return redis_url(redis_folder(state_dir).string()); }

Result<std::unique_ptr<EmbeddedRedis>> EmbeddedRedis::start(const std::string& state_dir, const Options& options) {
  MJ_CHECK(check_program(options.program.c_str(), "redis-server"));
  MJ_CHECK(check_program(kSetprivPath, "util-linux"));
  MJ_TRY(folder, make_folder(state_dir));
  MJ_CHECK(check_free_space(folder));
  const Deadline deadline = deadline_after(options.start_timeout_ms);
  MJ_TRY(lock, acquire_lock(folder, deadline));
  std::unique_ptr<EmbeddedRedis> redis(new EmbeddedRedis(std::move(folder), std::move(lock), options));
  MJ_CHECK(redis->spawn_server(deadline));
  if (options.restart_on_exit) {
    MJ_TRY(thread, start_thread([server = redis.get()] { server->watch(); }));
    redis->watch_thread_ = std::move(thread);
  }
  return redis;
}

Result<void> EmbeddedRedis::spawn_server(Deadline deadline) {
  ::unlink((folder_ + "/redis.sock").c_str());  // may be left by a server that was killed
  SpawnSpec spec;
  spec.program = kSetprivPath;
  spec.arguments = server_arguments(folder_, options_);
  spec.environment = {"PATH=/usr/bin:/bin", "LC_ALL=C"};
  const Fd null_input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Fd output(::open((folder_ + "/redis.log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!null_input || !output) return fail(Code::io, "cannot write to the folder " + folder_ + ": " + errno_text(errno));
  spec.inherited_descriptors = {
      {null_input.get(), 0}, {output.get(), 1}, {output.get(), 2}, {lock_.get(), kServerLockFd}};
  MJ_TRY(child, spawn(spec));
  child_ = std::move(child);
  pid_ = child_.pid;
  return await_ready(deadline);
}

// The lock stays with this process while the server is restarted.
void EmbeddedRedis::watch() {
  constexpr int kFirstPauseMs = 100, kMaxPauseMs = 10000;
  int pause_ms = kFirstPauseMs;
  while (!stopped_) {
    pollfd events[] = {{wakeups_.fd(), POLLIN, 0}, {child_.pidfd.get(), POLLIN, 0}};
    if (child_.pid > 0) {
      ::poll(events, 2, -1);
      if (stopped_ || events[1].revents == 0) continue;
      const int code = wait_child(child_);
      log(LogLevel::error, "store", "redis-server (process {}) in {} has ended, with {}: it is started again",
          pid_.load(), folder_, code > 128 ? "signal " + std::to_string(code - 128) : "code " + std::to_string(code));
    }
    const auto start_result = spawn_server(deadline_after(options_.start_timeout_ms));
    if (start_result) {
      pause_ms = kFirstPauseMs;
    } else if (!stopped_) {
      log(LogLevel::error, "store", "{}", start_result.error().message);
      ::poll(events, 1, std::exchange(pause_ms, std::min(2 * pause_ms, kMaxPauseMs)));
    }
  }
}

Result<void> EmbeddedRedis::await_ready(Deadline deadline) const {
  RedisConnection::Options options;
  MJ_TRY(endpoint, parse_redis_url(redis_url(folder_)));
  options.endpoint = std::move(endpoint);
  RedisConnection connection(std::move(options));
  Error last;
  for (;;) {
    auto answer = connection.command({"PING"});  // fails while the server is LOADING
    if (answer) return {};
    last = std::move(answer).error();
    pollfd ended{child_.pidfd.get(), POLLIN, 0};
    if (::poll(&ended, 1, 5) > 0) {
      return fail(Code::io, "redis-server exited immediately in the folder " + folder_ + ": " +
                                read_last_line(folder_ + "/redis.log") + " (is the disk full? see redis.log there)");
    }
    if (last.code != Code::unavailable || stopped_ || std::chrono::steady_clock::now() >= deadline)
      return fail(std::move(last), "redis-server in " + folder_);
  }
}

void EmbeddedRedis::stop() {
  stopped_ = true;
  wakeups_.wake();
  if (watch_thread_.joinable()) watch_thread_.join();
  if (child_.pid <= 0) return;
  ::kill(child_.pid, SIGTERM);
  pollfd ended{child_.pidfd.get(), POLLIN, 0};
  int ready = 0;
  do ready = ::poll(&ended, 1, kStopTimeoutMs);
  while (ready < 0 && errno == EINTR);
  if (ready == 0) ::kill(child_.pid, SIGKILL);
  wait_child(child_);
  lock_.reset();
}

}  // namespace mycojobs
