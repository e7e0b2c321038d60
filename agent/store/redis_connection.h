// A connection to a Redis server: its URL, the socket, commands and replies.
#pragma once

#include <chrono>
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
#include "store/link.h"

struct redisReader;

namespace mycojobs {

// Where a Redis server is: redis://[user:password@]host[:port][/db], unix:///path[?db=N][&...], unix:path.
struct RedisEndpoint {
  std::string host;
  std::uint16_t port = 6379;
  std::string unix_path;  // instead of host and port
  std::string user, password;
  std::optional<std::uint32_t> database;  // if the URL names one

  std::string shown() const;  // for messages and logs: without the password
  bool operator==(const RedisEndpoint&) const = default;
};

// %XX stands for a byte in user, password and path. Error: invalid; never repeats the password.
Result<RedisEndpoint> parse_redis_url(std::string_view url);

// The same for a server of many contexts, each in the database of its id: a URL that names another than 0 is refused.
Result<RedisEndpoint> parse_shared_redis_url(std::string_view url);

using Deadline = std::chrono::steady_clock::time_point;
Deadline deadline_in(std::uint64_t ms);

// What an error reply of Redis means for the caller. One line: the server's text, and the remedy where there is one.
Error redis_error(std::string_view server_text);

// One connection to one database of one Redis server. Bytes are carried here (close-on-exec, no SIGPIPE, every step
// with a deadline); hiredis writes and reads the protocol. One thread. A failure closes it and the next call connects
// again: the caller sets the pace. Errors: those of a Link.
class RedisConnection final : public Link {
 public:
  struct Options {
    RedisEndpoint endpoint;
    std::uint32_t database = 0;
    std::string client_name = "mycojobs";  // no blanks
    std::uint32_t connect_timeout_ms = 3000, command_timeout_ms = 5000;
    std::size_t max_reply_bytes = 256U << 20;                  // what is longer breaks the connection
    std::function<Result<void>(RedisConnection&)> on_connect;  // may send commands
  };
  explicit RedisConnection(Options);
  ~RedisConnection() override;
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  Result<void> connect();  // nothing if it is connected
  void close();
  bool connected() const { return static_cast<bool>(socket_); }

  Result<Reply> command(const Arguments&, std::uint32_t extra_ms = 0) override;
  Result<Reply> run(const Script&, const Arguments&) override;
  std::optional<int> begin(const Script&, const Arguments&) override;
  Result<Reply> finish(const Script&, const Arguments&) override;

  // For waiting on several connections: send now, read when fd() is readable.
  int fd() const { return socket_.get(); }
  Result<void> send(const Arguments&);
  Result<void> read_some();                 // one read, which does not wait
  Result<std::optional<Reply>> received();  // the next whole reply; error replies as they are

  const std::string& server_run_id() const override { return run_id_; }
  bool has_led() const override { return led_ || abandoned_id_ != 0; }
  const Options& options() const { return options_; }

 private:
  Result<void> handshake();
  void abandon();
  Result<void> connect_afresh_if_closed();
  Result<void> check_server();
  bool closed_by_server() const;
  Result<Reply> exchange(const Arguments&, std::uint32_t extra_ms);  // error replies as they are
  Result<Reply> await(std::uint32_t extra_ms);                       // the same
  Result<Reply> run_with_text(const Script&, const Arguments&, Result<Reply> by_digest);
  Result<void> feed_reader(Deadline);                    // one read
  tl::unexpected<Error> broken(const std::string& why);  // closes
  tl::unexpected<Error> refused(const Reply&) const;

  Options options_;
  Fd socket_;
  std::unique_ptr<redisReader, void (*)(redisReader*)> reader_;
  std::string run_id_;
  bool led_ = false;             // connected once, to the end
  bool answered_ = false;        // this connection, as Redis does
  bool strange_ = false;         // it ended as it would with a server that is no Redis
  std::uint64_t client_id_ = 0;  // by which the server knows this connection; 0: it does not say
  // Of a connection that we have given up while the server may not have read all that we sent.
  std::uint64_t abandoned_id_ = 0;
  std::string abandoned_on_;  // run id of the server
};

}  // namespace mycojobs
