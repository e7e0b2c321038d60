// One connection to one database of one Redis server. Bytes are carried here (close-on-exec, no SIGPIPE, every step
// with a deadline); hiredis writes and reads the protocol. One thread. A failure closes it and the next call connects
// again: the caller sets the pace.
//
// Errors: unavailable (refused, timed out, LOADING, OOM, MISCONF, READONLY, ...), denied (password, ACL), unsupported
// (older than 7.0; `databases` too small), invalid (a key holds another type), internal. Passwords are in none of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"
#include "store/redis_url.h"
#include "store/scripts.h"

struct redisReply;
struct redisReader;

namespace mycojobs {

// A reply, or a part of one. Asking for what it is not answers empty, 0 or nil.
class Reply {
 public:
  explicit Reply(std::shared_ptr<const redisReply> reply) : reply_(std::move(reply)) {}
  bool nil() const;
  bool error() const;
  std::string_view text() const;  // also of an error
  std::uint64_t number() const;   // also of decimal text
  std::size_t size() const;
  Reply at(std::size_t index) const;
  Fields fields() const;  // name, value, name, value, ...

 private:
  std::shared_ptr<const redisReply> reply_;
};

// Arguments of a command. Texts must outlive it; numbers are kept.
class Arguments {
 public:
  Arguments() = default;
  Arguments(std::initializer_list<std::string_view> texts) : list_(texts.begin(), texts.end()) {}
  Arguments& add(std::string_view text);
  Arguments& add(std::uint64_t number);
  Arguments& add(const std::string& text) { return add(std::string_view(text)); }
  Arguments& add(const char* text) { return add(std::string_view(text)); }
  Arguments& add_list(const Fields&);  // how many texts, then each name and value
  std::span<const std::string_view> list() const { return list_; }

 private:
  std::vector<std::string_view> list_;
  std::vector<std::unique_ptr<std::string>> numbers_;
};

class RedisConnection {
 public:
  struct Options {
    RedisEndpoint endpoint;
    std::uint32_t database = 0;
    std::string client_name = "mycojobs";  // no blanks
    std::uint32_t connect_timeout_ms = 3000, command_timeout_ms = 5000;
    std::function<Result<void>(RedisConnection&)> on_connect;  // may send commands
  };
  explicit RedisConnection(Options);
  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  Result<void> connect();  // nothing if it is connected
  void close();
  bool connected() const { return static_cast<bool>(socket_); }

  // Connects if need be. extra_ms: how much longer than usual the server may take. An error reply becomes an Error.
  Result<Reply> command(const Arguments&, std::uint32_t extra_ms = 0);
  // EVALSHA; EVAL if the server does not know the script.
  Result<Reply> run(const Script&, const Arguments&);

  // For waiting on several connections: send now, read when fd() is readable.
  int fd() const { return socket_.get(); }
  Result<void> send(const Arguments&);
  Result<void> read_some();                 // one read, which does not wait
  Result<std::optional<Reply>> received();  // the next whole reply; error replies as they are

  const std::string& server_run_id() const { return run_id_; }
  const Options& options() const { return options_; }

 private:
  Result<void> handshake();
  Result<void> connect_afresh_if_closed();
  Result<void> check_server();
  Result<Reply> exchange(const Arguments&, std::uint32_t extra_ms);  // error replies as they are
  tl::unexpected<Error> broken(const std::string& why);              // closes
  tl::unexpected<Error> refused(const Reply&) const;

  Options options_;
  Fd socket_;
  std::unique_ptr<redisReader, void (*)(redisReader*)> reader_;
  std::string run_id_;
};

}  // namespace mycojobs
