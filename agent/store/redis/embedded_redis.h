// A private Redis server as a child process, with a unix socket and its data in a folder of its own. The server ends
// with the thread that started it, also if this process is killed (PR_SET_PDEATHSIG). Requires redis-server and setpriv
// in /usr/bin. An object is used by one thread; pid() may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/mailbox.h"
#include "base/result.h"
#include "base/spawn.h"
#include "store/redis/redis_connection.h"

namespace mycojobs {

class EmbeddedRedis {
 public:
  struct Options {
    std::string program = "/usr/bin/redis-server";                   // tests also start servers of other versions
    std::uint32_t start_timeout_ms = 30000;                          // includes the time for loading stored data
    std::vector<std::pair<std::string, std::string>> settings = {};  // as in redis.conf; override the defaults
    // Restarts the server on the same data if it ends unexpectedly, for example when the kernel kills it for lack of
    // memory.
    bool restart_on_exit = false;
  };
  // Starts a server in the folder <state_dir>/redis (mode 0700, created if it is missing), which contains redis.sock,
  // redis.log, lock and appendonlydir/. Returns when the server answers. Errors: conflict (another process uses the
  // folder), unsupported (a program is not installed), invalid (the path is too long for a socket), io (naming the
  // folder), unavailable (the server does not answer).
  static Result<std::unique_ptr<EmbeddedRedis>> start(const std::string& state_dir, const Options& options);
  static Result<std::unique_ptr<EmbeddedRedis>> start(const std::string& state_dir) {
    return start(state_dir, Options());
  }
  // Returns the URL of the server (unix:///...), which need not be running.
  static std::string url(const std::string& state_dir);

  ~EmbeddedRedis();  // stop()
  EmbeddedRedis(const EmbeddedRedis&) = delete;
  EmbeddedRedis& operator=(const EmbeddedRedis&) = delete;

  // Process id of the server; after its end, of the latest server.
  pid_t pid() const { return pid_; }
  // Sends SIGTERM, at which the server writes its data, and waits for its end. Sends SIGKILL after 30 s.
  void stop();

 private:
  EmbeddedRedis(std::string folder, Fd lock, Options options);
  Result<void> spawn_server(Deadline);  // starts the server process
  Result<void> await_ready(Deadline) const;
  void watch();  // body of watch_thread_: restarts the server until stop()

  std::string folder_;
  Fd lock_;
  Options options_;
  Child child_;  // used by watch_thread_ while that thread runs
  std::atomic<pid_t> pid_{-1};
  std::atomic<bool> stopped_{false};
  Mailbox<int> wakeups_;
  std::thread watch_thread_;
};

}  // namespace mycojobs
