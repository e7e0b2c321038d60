// A private Redis server as a child: on a unix socket in a folder of its own, its data beside it. It ends with us, also
// when we are killed, and with the thread that started it. Needs redis-server and setpriv in /usr/bin.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/spawn.h"
#include "mycojobs/result.h"
#include "store/redis_connection.h"

namespace mycojobs {

class EmbeddedRedis {
 public:
  struct Options {
    std::uint32_t start_timeout_ms = 30000;                     // also to read old data
    std::vector<std::pair<std::string, std::string>> settings;  // as in redis.conf; instead of ours
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

  pid_t pid() const { return child_.pid; }
  // TERM: it writes its data first. Waits for its end; KILL after 30 s.
  void stop();

 private:
  EmbeddedRedis(std::string folder, Fd lock, Child child);
  Result<void> await_answer(const std::string& own_url, Deadline);

  std::string folder_;
  Fd lock_;
  Child child_;
};

}  // namespace mycojobs
