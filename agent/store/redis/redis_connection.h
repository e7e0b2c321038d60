// A connection to a Redis server through a socket.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"
#include "model/records.h"
#include "store/redis/redis_endpoint.h"
#include "store/redis/redis_link.h"
#include "store/redis/redis_sentinel.h"
#include "store/redis/redis_stream.h"

struct redisReader;

namespace mycojobs {

// Returns the value of the line "name:value" in the text of INFO, or an empty text.
std::string_view find_info_field(std::string_view info, std::string_view name);

// Converts an error reply of Redis. The message is one line: the server's text, and the remedy if one is known.
Error redis_error(std::string_view server_text);

// A connection to one database of one Redis server, with a deadline for each operation. RedisStream does the I/O;
// hiredis encodes and decodes the protocol. After a failure the connection is closed, and the next
// call connects again without a pause: the caller limits the rate. With sentinels, each connect finds the master, and
// the connection is closed when another master is known (redis_sentinel.h). Used by one thread. Errors: as documented
// for Link.
class RedisConnection final : public Link {
 public:
  struct Options {
    RedisEndpoint endpoint;
    std::shared_ptr<TlsContext> tls;  // null: an endpoint with TLS trusts the CAs of the system
    SentinelSettings sentinel;        // for an endpoint with sentinels
    bool is_sentinel = false;         // the server is a sentinel itself
    std::uint32_t database = 0;
    std::string client_name = "mycojobs";  // must not contain blanks
    std::uint32_t connect_timeout_ms = 3000, command_timeout_ms = 5000;
    // A reply that is longer, or has more elements than fit into this number of bytes, breaks the connection.
    std::size_t max_reply_bytes = 256U << 20;
    // False: only connect() opens the connection, and a call on a closed connection fails.
    bool reconnects = true;
    bool was_connected = false;  // another connection to this server was established before
  };
  // A connection that was closed after an error, and of which the server may still have unread commands.
  struct AbandonedClient {
    std::uint64_t id = 0;  // the server's id of the connection; 0: there is no such connection
    std::string run_id;    // run_id of its server
  };
  explicit RedisConnection(Options);
  ~RedisConnection() override;
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  Result<void> connect();  // no effect on an open connection
  void close();
  // Closes the connection while the server may have unread commands of it. consume_abandoned() returns it.
  void close_after_error();
  bool connected() const { return stream_.is_connected(); }
  // Returns false if the server has closed the connection. REQUIRES: no reply is outstanding.
  bool is_usable() { return connected() && !closed_by_server(); }
  std::uint32_t database() const { return options_.database; }  // the database that is, or will be, selected
  // Selects a database of an open connection. Waits for the reply, since the server would execute commands that follow
  // a rejected SELECT in the database that was selected before.
  Result<void> select(std::uint32_t database);
  void set_timeouts(std::uint32_t connect_ms, std::uint32_t command_ms);
  // Returns the abandoned connection, which the next handshake of this object then does not kill.
  AbandonedClient consume_abandoned();
  // Ends another connection on the server. Its unread commands are never executed.
  Result<void> kill_client(std::uint64_t id);

  Result<Reply> command(const Arguments&, std::uint32_t extra_ms = 0) override;
  Result<Reply> command_pair(const Arguments& first, const Arguments& second, std::uint32_t extra_ms) override;
  Result<Reply> run(const Script&, const Arguments&) override;
  std::optional<int> begin(const Script&, const Arguments&) override;
  Result<Reply> finish(const Script&, const Arguments&) override;

  // A caller that waits on several connections sends a command with send() and reads the reply when fd() is readable,
  // or has_buffered_input() is true. With TLS, a readable connection may still have no data.
  int fd() const { return stream_.fd(); }
  bool has_buffered_input() const { return stream_.has_buffered_input(); }
  Result<void> send(const Arguments& arguments) { return send_all({&arguments, 1}); }
  Result<void> send_all(std::span<const Arguments> commands);  // sends all commands in one write
  Result<void> read_some();                                    // Reads once without waiting. No effect without data.
  // Returns the next complete reply, which may be an error reply, or nullopt if no reply is complete yet.
  Result<std::optional<Reply>> next_reply();

  const std::string& server_run_id() const override { return run_id_; }
  bool has_been_connected() const override { return was_connected_ || abandoned_id_ != 0; }
  std::optional<TlsState> tls_state() const override { return stream_.tls_state(); }
  const Options& options() const { return options_; }
  // The server of the latest connection; with sentinels, the server that they announced.
  const RedisEndpoint& server() const { return server_; }

 private:
  Result<void> connect_to(const RedisEndpoint& server, const MasterCandidate*, Deadline);
  Result<void> handshake();
  Result<void> reconnect_if_closed();
  Result<void> check_server();
  Result<void> check_role();
  // Returns no reply if the server forbids the command, which is logged once.
  Result<std::optional<Reply>> command_if_allowed(const Arguments&);
  bool closed_by_server();
  // Send a command and wait for its reply, or only wait. An error reply is returned as a Reply.
  Result<Reply> exchange(const Arguments&, std::uint32_t extra_ms);
  Result<Reply> await(std::uint32_t extra_ms);
  Result<Reply> run_with_text(const Script&, const Arguments&, Result<Reply> by_digest);
  Result<void> read_until(Deadline);  // one read, which waits until the deadline
  Result<void> feed_reader(std::string_view bytes);
  std::size_t max_elements() const;  // limit for one reply, with its nested arrays
  tl::unexpected<Error> abandon_after_read(Error reason);
  // Closes the connection, which the next handshake kills on the server. Returns the error with the endpoint.
  tl::unexpected<Error> abandon_connection(Error reason);
  tl::unexpected<Error> abandon_connection(std::string reason) {
    return abandon_connection(Error{Code::unavailable, std::move(reason)});
  }
  // Returns the error of a reply. With sentinels, a connection to a replica is closed.
  tl::unexpected<Error> convert_refusal(const Reply&);

  Options options_;
  std::shared_ptr<SentinelGroup> sentinels_;  // null: the endpoint has no sentinels, or connect() was not called yet
  RedisEndpoint server_;
  RedisStream stream_;
  std::unique_ptr<WatchedSocket> watched_socket_;  // registers stream_ if there are sentinels
  std::unique_ptr<redisReader, void (*)(redisReader*)> reader_;
  std::size_t elements_left_ = 0;  // number of elements that the arrays of the current reply may still have
  std::string run_id_;
  bool is_connecting_ = false;   // the handshake is running
  Deadline handshake_deadline_;  // limit of all replies of the handshake
  bool was_connected_ = false;   // a connection was established completely before
  bool has_replied_ = false;     // a valid reply was received on this connection
  bool is_not_redis_ = false;    // the connection failed in a way that suggests a server that is not Redis
  std::uint64_t client_id_ = 0;  // the server's id of this connection, or 0 if it is unknown
  // Id of a connection that was closed after an error, and of which the server may still have unread commands. The next
  // handshake ends it on the server. 0 if there is no such connection.
  std::uint64_t abandoned_id_ = 0;
  std::string abandoned_run_id_;  // run_id of that connection's server
};

}  // namespace mycojobs
