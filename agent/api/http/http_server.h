// An HTTP/1.1 server with a table of paths, for complete bodies and event streams. Boost.Beast parses the requests
// (net/http_wire.h); this module implements sockets, deadlines and limits. The limits are those of ApiLimits.
//
//   accept -> (TLS handshake ->) first head -> admission -> body -> handler -> answer -> next head ...
//     |  pending                           |   each admitted connection has a thread of its own
//
// Deadlines: ApiLimits::head_timeout_ms for a head, body_timeout_ms for a body, write_timeout_ms for an answer, and
// idle_timeout_ms until the next request begins.
//
// Threads: one thread accepts connections and reads their first heads (pending_connections.h). Handlers run in the
// threads of the connections. With TLS, the accepting thread performs the handshakes of all connections, without
// waiting for any of them: a handshake costs it about 0.4 ms, and the deadline of the head includes the handshake.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "api/api_settings.h"
#include "api/http/byte_quota.h"
#include "api/http/http_message.h"
#include "api/http/pending_connections.h"
#include "api/http/rejected_connections.h"
#include "api/http/socket.h"
#include "base/fd.h"
#include "base/result.h"
#include "net/tls.h"

namespace mycojobs::api {

// Class of a connection, which the head of its latest request determines. Each class has a separate limit.
//
// The classes health, page and login need no token. Each of their connections serves one request. If the limit of one
// of these classes is reached, a new connection replaces the oldest connection of the class that still sends its
// request or receives its answer.
enum class ConnectionClass {
  health,     // health requests, without a body
  page,       // requests for files of the page, without a body
  login,      // requests of clients that log in; a network can use a quarter of the connections
  anonymous,  // loopback clients without a token, in `dev`
  token,      // callers with an actor's token; an actor can use a quarter of the connections
  operators,  // callers with an operator's token
  // Supervisors of other hosts, which sign their requests. A supervisor can use a quarter of the connections. If the
  // limit is reached, a new connection replaces the oldest connection without a valid signature, or else the connection
  // that has been idle longest.
  peer,
};
struct Admission {
  HttpReply refusal = {};  // the request is refused with this reply if the status of the reply is 400 or higher
  ConnectionClass connection_class = ConnectionClass::anonymous;
  std::uint64_t actor = 0;  // actor to which the connection and its large bodies are counted; 0 if there is none
  // Makes the answer if the limit of the class is reached. Called in the accepting thread, so it must not block. If
  // null, the answer has status 503.
  std::function<HttpReply()> make_full_reply = {};
};
using AdmissionCheck = std::function<Admission(const HttpRequest&)>;

class HttpServer {
 public:
  // The AdmissionCheck decides on a request before its body is read, and on the first request of a connection before
  // the connection has a thread. It is called by any thread. tls: the certificate, with the role of a server; null:
  // plain HTTP. Errors: those of parse_listen(), open_listening() and TlsContext::load().
  static Result<std::unique_ptr<HttpServer>> start(const std::string& listen, const ApiLimits&, std::vector<HttpRoute>,
                                                   AdmissionCheck, std::shared_ptr<TlsContext> tls = nullptr);
  // Like the function above, for an address that the caller has parsed and checked.
  static Result<std::unique_ptr<HttpServer>> start(const ListenAddress&, const ApiLimits&, std::vector<HttpRoute>,
                                                   AdmissionCheck, std::shared_ptr<TlsContext> tls = nullptr);
  ~HttpServer();  // stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  std::uint16_t port() const { return listening_.port; }
  std::string url() const;
  void stop();  // waits until running handlers have answered
  std::uint32_t count_connections() const;

 private:
  struct Client;
  using ClientIterator = std::list<Client>::iterator;
  class ScopedFlag;
  class ScopedBytes;
  enum class WaitFilter {
    request_only,  // connections that wait for a request or the rest of a body
    any            // also those that wait for the client to read an answer, for the end of a job, or for events
  };

  HttpServer(ListeningSocket, const ListenAddress&, const ApiLimits&, std::vector<HttpRoute>, AdmissionCheck,
             std::shared_ptr<TlsContext>);
  RequestLimits request_limits() const { return {limits_.max_head_bytes, limits_.max_body_bytes}; }
  std::size_t body_bytes(ConnectionClass) const;
  Admission check_request(const HttpRequest&) const;

  void accept_loop();
  void accept_connections();
  // Returns a complete answer that announces that the server closes the connection.
  std::string to_wire_text(const HttpReply&) const;
  void set_connection_facts(HttpRequest&, int socket) const;
  // Returns HttpRequest::network, or an empty text if the network of the client is not limited.
  std::string find_counted_network(int socket) const;
  // Admits or refuses a connection after its first head is complete or invalid.
  void admit_pending(PendingConnections::Connection&);
  void start_connection(PendingConnections::Connection, const Admission&);
  void serve_connection(Client&);
  // Reads the head of the next request on a connection. Returns false if the client has closed the connection, or if
  // the request was refused.
  bool read_next_head(Client&);
  // Counts the connection to the class and actor of its latest request. Otherwise an actor could exceed its share with
  // connections that it opened as a peer. Returns false if the limits do not allow the change.
  bool reclassify(Client&, const Admission&);
  // Reads the rest of a request after its head was admitted, and answers it. Returns whether another request may
  // follow.
  bool handle_request(Client&);
  HttpReply make_reply(Client&);
  // Passes the body of a request to the receiver of its route, and returns the answer.
  HttpReply receive_body(Client&, const HttpRoute&);
  bool stream(Client&, const HttpReply&, bool keep_alive);
  // Records that a peer has signed a request on this connection. At most a quarter of the connections to /supervisor
  // can be marked as signed by one peer; after that, the mark of its oldest connection is removed.
  void record_signature(Client&, const std::string& key);
  bool has_signature(const Client&) const;
  void set_idle(Client&, bool is_idle);
  bool set_waiting(Client&, bool is_waiting);

  // Counts a body of this length. If only the limit of all actors is exceeded, a waiting request of the actor with the
  // most bytes is closed, provided that this actor holds more than the actor of `client` would. Returns false if a
  // limit is exceeded.
  bool reserve_body(Client& client, std::size_t length);
  // Counts an answer. If a limit is exceeded, the connections with the oldest unread answers are closed: those of
  // the same actor, or of the actor with the most bytes if only the limit of all actors is exceeded. A single answer of
  // any length is allowed.
  void reserve_answer(Client&, std::size_t length);
  ByteQuota& select_bodies(ConnectionClass request_class);
  ByteQuota& select_answers(ConnectionClass request_class);
  void release_bytes(Client&, std::size_t& bytes, ByteQuota&);

  // REQUIRES for the following functions: the lock is held.
  // Returns whether the limits allow one more connection of this class and actor. May close another connection for it.
  bool reserve_slot(ConnectionClass, std::uint64_t actor, const std::string& network);
  // Closes a connection to /supervisor in favour of a new one: the oldest connection without a valid signature, since
  // any client can open such a connection, or else the connection that has been idle longest. Returns false if no
  // connection can be closed.
  bool close_peer_connection();
  // Shuts a connection down. Returns false for end(), or if the threads of too many connections that were shut down
  // still run.
  bool close_connection(ClientIterator);
  // Closes a connection and waits until bytes are released, or for kReleaseTimeout. Returns false if close_connection()
  // fails.
  bool close_and_wait(std::unique_lock<std::mutex>&, ClientIterator);
  std::uint32_t count_logins(const std::string& network) const;
  bool has_used_share(std::uint64_t actor, std::uint32_t max) const;
  // Returns the oldest connection of the class that receives its request or writes its answer, or end(). Connections
  // with a running handler are excluded. If `network` is not empty, only connections of this network are considered.
  ClientIterator find_oldest(ConnectionClass, const std::string& network);
  // Returns the connection of the actor that has waited longest; connections that wait for a request come first.
  // Returns end() if no connection waits.
  ClientIterator find_waiting(std::uint64_t actor, WaitFilter);
  // Returns a waiting connection of an actor that has more connections than `actor` would have. Actors with more
  // connections come first. Returns end() if there is none.
  ClientIterator find_waiting_of_largest_actor(std::uint64_t actor);
  // Returns the connection to /supervisor that has waited longest for a request, or end() if all of them have a
  // request.
  ClientIterator find_longest_idle_peer();
  // Returns the waiting connection with the largest body, of the actor with the most bytes. Returns end() if no actor
  // holds more than the actor of `client` would.
  ClientIterator find_largest_body(const Client& client, std::size_t added_bytes);
  // Returns the connection of the actor whose answer, counted by this quota, has been unread longest, or end() if there
  // is none.
  ClientIterator find_oldest_answer(const ByteQuota&, std::uint64_t actor);
  // As above, for the actor with the most bytes of answers in this quota.
  ClientIterator find_oldest_answer(const ByteQuota&);
  void reap();  // removes connections after their threads have ended

  ListeningSocket listening_;
  std::string host_;
  ApiLimits limits_;
  std::vector<HttpRoute> routes_;
  AdmissionCheck admit_;
  const bool has_tls_;
  // Answers over TLS have the header Strict-Transport-Security. Not on loopback: browsers would use HTTPS for all other
  // servers at localhost, too.
  const bool sends_hsts_;
  Fd wake_up_event_;
  PendingConnections pending_;                   // used only by the accepting thread
  std::atomic<std::uint32_t> pending_count_{0};  // number of connections in pending_
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  std::condition_variable connection_ended_;
  // Guarded by mutex_:
  ByteQuota bodies_, operator_bodies_, peer_bodies_, answers_, operator_answers_;
  std::condition_variable bytes_released_;
  std::uint64_t release_count_ = 0;  // number of releases so far
  std::list<Client> clients_;
  std::uint64_t signature_count_ = 0;  // number of signed requests so far
  // Not guarded by mutex_:
  RejectedConnections rejected_;  // used only by the accepting thread
  std::thread accept_thread_;     // joined by the first call of stop()
};

}  // namespace mycojobs::api
