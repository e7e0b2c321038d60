#include "store/embedded_redis.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/errno_text.h"
#include "store/redis_connection.h"

namespace mycojobs {
namespace {

constexpr const char* kServer = "/usr/bin/redis-server";
constexpr const char* kSetpriv = "/usr/bin/setpriv";
constexpr std::size_t kMaxSocketPath = sizeof(sockaddr_un{}.sun_path) - 1;

Result<void> need_program(const char* path, const char* package) {
  if (::access(path, X_OK) == 0) return {};
  return fail(Code::unsupported, std::string(path) + " is missing: install the package " + package +
                                     ", or name a running server with --redis");
}

std::filesystem::path folder_in(const std::string& state_dir) {
  std::error_code error;
  return std::filesystem::absolute(state_dir, error).lexically_normal() / "redis";
}

Result<std::string> make_folder(const std::string& state_dir) {
  std::error_code error;
  const std::filesystem::path folder = folder_in(state_dir);
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

// Held until the last descriptor is closed. The file names the holder.
Result<Fd> take_lock(const std::string& folder) {
  const std::string path = folder + "/lock";
  Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd) return fail(Code::io, "cannot open " + path + ": " + errno_text(errno));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return fail(Code::io, "cannot lock " + path + ": " + errno_text(errno));
    char holder[32] = {};
    const ssize_t got = ::pread(fd.get(), holder, sizeof holder - 1, 0);
    return fail(Code::conflict, "the folder " + folder + " is used by process " +
                                    (got > 0 ? std::string(holder, static_cast<std::size_t>(got)) : "?") +
                                    "; end it or choose another state folder");
  }
  const std::string pid = std::to_string(::getpid());
  if (::ftruncate(fd.get(), 0) != 0 || ::pwrite(fd.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return fail(Code::io, "cannot write to the folder " + folder + ": " + errno_text(errno));
  }
  return fd;
}

std::vector<std::string> arguments_for(const std::string& folder,
                                       const std::vector<std::pair<std::string, std::string>>& more) {
  std::vector<std::pair<std::string, std::string>> settings{
      {"port", "0"},           {"unixsocket", folder + "/redis.sock"},
      {"unixsocketperm", "700"}, {"dir", folder},
      {"appendonly", "yes"},   {"appendfsync", "everysec"},
      {"save", ""},            {"maxmemory-policy", "noeviction"},
      {"databases", "64"},     {"loglevel", "notice"},
      {"logfile", folder + "/redis.log"}, {"daemonize", "no"}};
  settings.insert(settings.end(), more.begin(), more.end());
  std::vector<std::string> arguments{"--pdeathsig", "TERM", kServer};
  for (const auto& [name, value] : settings) {
    arguments.push_back("--" + name);
    arguments.push_back(value);
  }
  return arguments;
}

std::string last_line(const std::string& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) last = line;
  }
  return last.substr(0, 300);
}

}  // namespace

EmbeddedRedis::EmbeddedRedis(std::string folder, Fd lock, Child child)
    : folder_(std::move(folder)), lock_(std::move(lock)), child_(std::move(child)) {}

EmbeddedRedis::~EmbeddedRedis() { stop(); }

std::string EmbeddedRedis::url(const std::string& state_dir) {
  std::string escaped;
  for (char c : (folder_in(state_dir) / "redis.sock").string()) {
    escaped += c == '%' ? "%25" : c == '?' ? "%3F" : std::string(1, c);
  }
  return "unix://" + escaped;
}

Result<std::unique_ptr<EmbeddedRedis>> EmbeddedRedis::start(const std::string& state_dir, const Options& options) {
  MJ_CHECK(need_program(kServer, "redis-server"));
  MJ_CHECK(need_program(kSetpriv, "util-linux"));
  MJ_TRY(folder, make_folder(state_dir));
  MJ_TRY(lock, take_lock(folder));
  ::unlink((folder + "/redis.sock").c_str());  // of a server that was killed
  SpawnSpec spec;
  spec.program = kSetpriv;
  spec.arguments = arguments_for(folder, options.settings);
  spec.environment = {"PATH=/usr/bin:/bin", "LC_ALL=C"};
  const Fd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (int theirs : {0, 1, 2}) spec.descriptors.emplace_back(nothing.get(), theirs);
  MJ_TRY(child, spawn(spec));
  std::unique_ptr<EmbeddedRedis> redis(new EmbeddedRedis(std::move(folder), std::move(lock), std::move(child)));
  MJ_CHECK(redis->await_answer(url(state_dir), options.start_timeout_ms));
  return redis;
}

Result<void> EmbeddedRedis::await_answer(const std::string& own_url, std::uint32_t timeout_ms) {
  RedisConnection::Options options;
  MJ_TRY(endpoint, parse_redis_url(own_url));
  options.endpoint = std::move(endpoint);
  RedisConnection connection(std::move(options));
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  Error last;
  for (;;) {
    auto answer = connection.command({"PING"});  // fails while it is LOADING
    if (answer) return {};
    last = std::move(answer).error();
    pollfd ended{child_.pidfd.get(), POLLIN, 0};
    if (::poll(&ended, 1, 5) > 0) {
      return fail(Code::io, "redis-server ended at once in the folder " + folder_ + ": " +
                                last_line(folder_ + "/redis.log") + " (is the disk full? see redis.log there)");
    }
    if (last.code != Code::unavailable || std::chrono::steady_clock::now() >= until) return fail(std::move(last), "redis-server in " + folder_);
  }
}

void EmbeddedRedis::stop() {
  if (child_.pid <= 0) return;
  ::kill(child_.pid, SIGTERM);
  wait_child(child_);
  lock_.reset();
}

}  // namespace mycojobs
