// A private Redis server as a child: on a unix socket in a folder of its own, its data beside it. It ends with us, also
// when we are killed, and with the thread that started it. Needs redis-server and setpriv in /usr/bin.
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
#include "base/spawn.h"
#include "mycojobs/result.h"
#include "store/redis_connection.h"

namespace mycojobs {

class EmbeddedRedis {
 public:
  struct Options {
    std::uint32_t start_timeout_ms = 30000;                          // also to read old data
    std::vector<std::pair<std::string, std::string>> settings = {};  // as in redis.conf; instead of ours
    // It is started anew, on its data, whenever it ends by itself (somebody kills it, or the kernel for its memory).
    bool again = false;
  };
  // Lives in <state_dir>/redis, made if it is missing, mode 0700: redis.sock, redis.log, lock, appendonlydir/.
  // Returns when the server answers. Error: conflict (another process uses the folder), unsupported (a program is not
  // installed), invalid (the path is too long for a socket), io (naming the folder), unavailable (it does not answer).
  static Result<std::unique_ptr<EmbeddedRedis>> start(const std::string& state_dir, const Options& options);
  static Result<std::unique_ptr<EmbeddedRedis>> start(const std::string& state_dir) {
    return start(state_dir, Options());
  }
  static std::string url(const std::string& state_dir);  // unix:///..., whether it runs or not

  ~EmbeddedRedis();  // stop()
  EmbeddedRedis(const EmbeddedRedis&) = delete;
  EmbeddedRedis& operator=(const EmbeddedRedis&) = delete;

  pid_t pid() const { return pid_; }  // of the one that runs, or ran last
  // TERM: it writes its data first. Waits for its end; KILL after 30 s.
  void stop();

 private:
  EmbeddedRedis(std::string folder, Fd lock, Options options);
  Result<void> begin(Deadline);  // the server
  Result<void> await_answer(Deadline) const;
  void watch();  // the thread's body

  std::string folder_;
  Fd lock_;
  Options options_;
  Child child_;  // the watching thread's, if there is one
  std::atomic<pid_t> pid_{-1};
  std::atomic<bool> stopped_{false};
  Mailbox<int> bell_;
  std::thread watching_;
};

}  // namespace mycojobs
