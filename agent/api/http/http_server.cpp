#include "api/http/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "api/http/body_budget.h"
#include "api/http/pending_connections.h"
#include "api/http/rejected_connections.h"
#include "api/http/request_reader.h"
#include "api/http/socket.h"
#include "api/rpc/json_rpc.h"
#include "base/errno_text.h"
#include "base/log.h"
#include "base/thread.h"
#include "model/codec.h"
#include "net/http_wire.h"
#include "text/json.h"

namespace mycojobs::api {

namespace {

using std::chrono::milliseconds;
using TimePoint = std::chrono::steady_clock::time_point;

// Limits of the memory for large bodies and answers. Requests of operators have the same limits of their own.
constexpr std::size_t kMaxLargeBodies = 3;       // bodies except those of peers, in multiples of max_body_bytes
constexpr std::size_t kMaxLargePeerBodies = 16;  // bodies of peers, in multiples of max_peer_body_bytes
constexpr std::size_t kMaxLargeAnswers = 4;      // answers, in multiples of max_answer_bytes
constexpr milliseconds kReleaseTimeout{1000};    // maximum wait until a closed connection has released its bytes

std::string format_head(const HttpReply& reply, HttpFraming framing, bool http_1_1, bool keep_alive) {
  HttpAnswerHead head{reply.status, reply.headers, framing, reply.body.size(), http_1_1, keep_alive};
  if (reply.status != 204) head.fields.emplace_back("Content-Type", reply.type);
  const bool has_cache_control = std::any_of(reply.headers.begin(), reply.headers.end(),
                                             [](const auto& field) { return field.first == "Cache-Control"; });
  if (!has_cache_control) head.fields.emplace_back("Cache-Control", "no-store");
  head.fields.emplace_back("X-Content-Type-Options", "nosniff");
  return to_text(head);
}

void set_peer_address(HttpRequest& request, int socket, std::uint16_t port) {
  request.port = port;
  request.loopback = is_loopback_peer(socket);
  request.network = get_peer_network(socket);
}

bool has_body(const HttpRequest& request) {
  const std::string length = request.header("content-length");
  return request.headers.contains("transfer-encoding") || length.find_first_not_of('0') != std::string::npos;
}

HttpReply unexpected_body_reply() {
  return error_reply(400, "invalid_request", "this path accepts no body",
                     "send no Content-Length and no Transfer-Encoding");
}

// Returns a complete answer that announces that the server closes the connection.
std::string to_wire_text(const HttpReply& reply) {
  return format_head(reply, HttpFraming::counted, true, false) + reply.body;
}

struct Client {
  // The thread of the connection writes connection_class, actor, request_class and request_actor with the server's lock
  // held, and reads them without the lock. Other threads read them with the lock.
  ConnectionClass connection_class = ConnectionClass::health;
  std::uint64_t actor = 0;  // actor whose limit this connection uses; 0 if there is none
  std::thread thread;
  std::unique_ptr<Connection> connection;
  RequestReader reader;  // reader of the current request; initially of the admitted first head
  ConnectionClass request_class = ConnectionClass::health;  // class of the current request
  std::uint64_t request_actor = 0;                          // actor of the current request
  std::string network = {};                                 // HttpRequest::network; empty if it is not counted
  // Guarded by the server's lock:
  std::string signer_key = {};         // key of the peer that signed a request on this connection; empty if unsigned
  std::uint64_t signature_number = 0;  // sequence number of the latest signed request
  TimePoint last_request_at = std::chrono::steady_clock::now();  // time of the latest request
  bool is_idle = false;                                          // waits for the next request
  bool is_receiving_body = false;                                // the body of its request is incomplete
  bool is_waiting = false;                                       // the call waits for the end of a job, or sends events
  bool is_writing = false;                                       // the answer is being written
  std::size_t body_bytes = 0, answer_bytes = 0;                  // bytes of a large body or answer in memory
  TimePoint answer_started_at = {};                              // when the writing of a large answer began
  bool is_closing = false;                                       // the server has shut the connection down
  bool has_ended = false;                                        // the thread is about to return
};

// Sends events to one connection.
class ConnectionEventSink final : public EventSink {
 public:
  ConnectionEventSink(Connection& connection, bool chunked, const std::atomic<bool>& stopping, std::uint32_t write_ms)
      : connection_(connection), chunked_(chunked), stopping_(stopping), write_ms_(write_ms) {}
  bool send(std::string_view text) override {
    if (text.empty() || !is_open()) return is_open();
    connection_.set_write_timeout(write_ms_);
    return chunked_ ? connection_.write(encode_chunk(text)) : connection_.write(text);
  }
  bool is_open() const override {
    if (stopping_ || connection_.is_broken()) return false;
    char byte = 0;  // the end of input means that the client is gone, since it sends nothing else during a stream
    return ::recv(connection_.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
  }

 private:
  Connection& connection_;
  const bool chunked_;
  const std::atomic<bool>& stopping_;
  const std::uint32_t write_ms_;
};

class Server final : public HttpServer {
 public:
  Server(ListeningSocket listening, std::string host, ApiLimits limits, std::vector<HttpRoute> routes,
         AdmissionCheck admit)
      : listening_(std::move(listening)),
        host_(std::move(host)),
        limits_(limits),
        routes_(std::move(routes)),
        admit_(std::move(admit)),
        wake_up_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        pending_(limits.max_pending_connections, limits.head_timeout_ms, request_limits()),
        bodies_(kMaxLargeBodies * limits.max_body_bytes, limits.max_body_bytes),
        operator_bodies_(kMaxLargeBodies * limits.max_body_bytes, SIZE_MAX),
        peer_bodies_(kMaxLargePeerBodies * limits.max_peer_body_bytes, SIZE_MAX),
        answers_(kMaxLargeAnswers * limits.max_answer_bytes, limits.max_answer_bytes),
        operator_answers_(kMaxLargeAnswers * limits.max_answer_bytes, SIZE_MAX) {}
  ~Server() override { Server::stop(); }
  Result<void> start_accepting() {
    MJ_TRY(thread, start_thread([this] { accept_loop(); }));
    accept_thread_ = std::move(thread);
    return {};
  }

  std::uint16_t port() const override { return listening_.port; }
  std::string url() const override {
    const bool is_v6 = host_.find(':') != std::string::npos;
    return "http://" + (is_v6 ? '[' + host_ + ']' : host_) + ':' + std::to_string(listening_.port);
  }
  std::uint32_t count_connections() const override {
    const std::lock_guard lock(mutex_);
    return static_cast<std::uint32_t>(clients_.size()) + pending_count_;
  }
  void stop() override {
    if (stopping_.exchange(true)) return;
    const std::uint64_t wake_up = 1;
    (void)!::write(wake_up_event_.get(), &wake_up, sizeof wake_up);
    if (accept_thread_.joinable()) accept_thread_.join();
    const auto all_ended = [this] {
      reap();
      return clients_.empty();
    };
    std::unique_lock lock(mutex_);
    for (Client& client : clients_) {
      if (!client.has_ended)
        ::shutdown(client.connection->fd(), SHUT_RD);  // requests that were received are still answered
    }
    connection_ended_.wait(lock, all_ended);
  }

 private:
  RequestLimits request_limits() const { return {limits_.max_head_bytes, limits_.max_body_bytes}; }

  Admission check_request(const HttpRequest& request) const {
    HttpReply reply = check_route(routes_, request.method, request.path);
    if (reply.status >= 400) return {std::move(reply)};
    if (request.headers.contains("content-encoding") ||
        request.header("content-type").starts_with("multipart/form-data"))
      return {not_json_reply()};
    Admission admission = admit_(request);
    const bool accepts_body =
        admission.connection_class != ConnectionClass::health && admission.connection_class != ConnectionClass::page;
    if (admission.refusal.status < 400 && !accepts_body && has_body(request)) return {unexpected_body_reply()};
    return admission;
  }

  void accept_loop() {
    std::vector<pollfd> entries;
    while (!stopping_) {
      entries.assign({{listening_.socket.get(), POLLIN, 0}, {wake_up_event_.get(), POLLIN, 0}});
      pending_.append_pollfds(entries);
      const int rejected_timeout_ms = rejected_.empty() ? -1 : 200, pending_timeout_ms = pending_.get_poll_timeout_ms();
      (void)::poll(entries.data(), entries.size(),
                   rejected_timeout_ms < 0  ? pending_timeout_ms
                   : pending_timeout_ms < 0 ? rejected_timeout_ms
                                            : std::min(rejected_timeout_ms, pending_timeout_ms));
      rejected_.close_expired();
      {
        const std::lock_guard lock(mutex_);
        reap();
      }
      if (stopping_) break;
      for (PendingConnections::Connection& pending : pending_.receive_heads(entries.data() + 2)) admit_pending(pending);
      if ((entries[0].revents & POLLIN) != 0) accept_connections();
      pending_count_ = static_cast<std::uint32_t>(pending_.size());
    }
    listening_.socket.reset();
    pending_.clear();
    pending_count_ = 0;
    rejected_.close_all();
  }

  void accept_connections() {
    constexpr int kMaxBatch = 64;
    for (int i = 0; i < kMaxBatch; ++i) {
      Fd socket(::accept4(listening_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket) {
        const int enable = 1;  // send small events and answers without waiting for acknowledgements
        (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &enable, sizeof enable);
        pending_.add(std::move(socket));
        continue;
      }
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        log(LogLevel::warn, "api", "no connection can be taken: {}", errno_text(errno));
        std::this_thread::sleep_for(milliseconds(100));
      }
      return;
    }
  }

  // Admits or refuses a connection after its first head is complete or invalid.
  void admit_pending(PendingConnections::Connection& pending) {
    if (pending.error)
      return rejected_.reject(std::move(pending.socket), to_wire_text(bad_request_reply(*pending.error)));
    set_peer_address(pending.reader.request(), pending.socket.get(), port());
    const Admission admission = check_request(pending.reader.request());
    if (admission.refusal.status >= 400)
      return rejected_.reject(std::move(pending.socket), to_wire_text(admission.refusal));
    start_connection(std::move(pending), admission);
  }

  void start_connection(PendingConnections::Connection pending, const Admission& admission) {
    const HttpRequest& request = pending.reader.request();
    const bool is_counted = !(request.loopback && limits_.exempt_loopback);
    const std::string network = is_counted ? request.network : std::string();
    std::unique_lock lock(mutex_);
    if (!reserve_slot(admission.connection_class, admission.actor, network)) {
      lock.unlock();
      const HttpReply reply = admission.make_full_reply ? admission.make_full_reply() : too_many_requests_reply();
      return rejected_.reject(std::move(pending.socket), to_wire_text(reply));
    }
    auto connection = std::make_unique<Connection>(std::move(pending.socket), std::move(pending.bytes));
    Client& client = clients_.emplace_back(Client{admission.connection_class,
                                                  admission.actor,
                                                  {},
                                                  std::move(connection),
                                                  std::move(pending.reader),
                                                  admission.connection_class,
                                                  admission.actor,
                                                  network});
    client.reader.limit_body(body_bytes(admission.connection_class));
    auto thread = start_thread([this, &client] { serve_connection(client); });
    if (thread) {
      client.thread = std::move(*thread);
      return;
    }
    Fd socket(::dup(client.connection->fd()));
    clients_.pop_back();
    rejected_.reject(std::move(socket), to_wire_text(too_many_requests_reply()));
  }

  // Returns whether the limits allow one more connection of this class and actor. May close another connection for it.
  // REQUIRES: the lock is held.
  bool reserve_slot(ConnectionClass connection_class, std::uint64_t actor, const std::string& network) {
    const auto count = std::count_if(clients_.begin(), clients_.end(), [&](const Client& client) {
      return client.connection_class == connection_class && !client.is_closing;
    });
    const std::uint32_t max = connection_class == ConnectionClass::health  ? limits_.max_health_connections
                              : connection_class == ConnectionClass::page  ? limits_.max_page_connections
                              : connection_class == ConnectionClass::login ? limits_.max_login_connections
                              : connection_class == ConnectionClass::peer  ? limits_.max_peer_connections
                                                                           : limits_.max_connections;
    const bool has_capacity = count < max;
    if (connection_class == ConnectionClass::peer) return has_capacity || close_peer_connection();
    if (connection_class == ConnectionClass::token) {
      if (has_used_share(actor, max)) return close_connection(find_waiting(actor, WaitFilter::request_only));
      return has_capacity || close_connection(find_waiting_of_largest_actor(actor));
    }
    if (connection_class == ConnectionClass::login && !network.empty() &&
        count_logins(network) >= std::max(1U, max / 4))
      return close_connection(find_oldest(connection_class, network));
    return has_capacity ||
           (is_unauthenticated(connection_class) && close_connection(find_oldest(connection_class, "")));
  }

  std::size_t body_bytes(ConnectionClass connection_class) const {
    return connection_class == ConnectionClass::peer    ? limits_.max_peer_body_bytes
           : connection_class == ConnectionClass::login ? limits_.max_login_body_bytes
                                                        : limits_.max_body_bytes;
  }

  static bool is_peer(const Client& client) {
    return client.connection_class == ConnectionClass::peer && !client.is_closing && !client.has_ended;
  }

  // Closes a connection to /supervisor in favour of a new one: the oldest connection without a valid signature, since
  // any client can open such a connection, or else the connection that has been idle longest. Returns false if no
  // connection can be closed. REQUIRES: the lock is held.
  bool close_peer_connection() {
    auto target = std::find_if(clients_.begin(), clients_.end(),
                               [](const Client& client) { return is_peer(client) && client.signer_key.empty(); });
    return close_connection(target == clients_.end() ? find_longest_idle_peer() : target);
  }

  // Shuts a connection down. Returns false for end(), or if the threads of too many connections that were shut down
  // still run. REQUIRES: the lock is held.
  bool close_connection(std::list<Client>::iterator target) {
    constexpr std::ptrdiff_t kMaxClosingConnections = 256;
    const auto closing_count =
        std::count_if(clients_.begin(), clients_.end(), [](const Client& client) { return client.is_closing; });
    if (target == clients_.end() || closing_count >= kMaxClosingConnections) return false;
    target->is_closing = true;
    ::shutdown(target->connection->fd(), SHUT_RDWR);
    return true;
  }

  static bool is_unauthenticated(ConnectionClass connection_class) {
    return connection_class == ConnectionClass::health || connection_class == ConnectionClass::page ||
           connection_class == ConnectionClass::login;
  }
  // Returns the oldest connection of the class that receives its request or writes its answer, or end(). Connections
  // with a running handler are excluded. If `network` is not empty, only connections of this network are considered.
  // REQUIRES: the lock is held.
  std::list<Client>::iterator find_oldest(ConnectionClass connection_class, const std::string& network) {
    return std::find_if(clients_.begin(), clients_.end(), [&](const Client& client) {
      return client.connection_class == connection_class && !client.is_closing && !client.has_ended &&
             (client.is_receiving_body || client.is_writing) && (network.empty() || client.network == network);
    });
  }

  // REQUIRES for the next four functions: the lock is held.
  std::uint32_t count_logins(const std::string& network) const {
    return static_cast<std::uint32_t>(std::count_if(clients_.begin(), clients_.end(), [&](const Client& client) {
      return client.connection_class == ConnectionClass::login && client.network == network && !client.is_closing;
    }));
  }
  bool has_used_share(std::uint64_t actor, std::uint32_t max) const {
    const auto count = std::count_if(clients_.begin(), clients_.end(), [actor](const Client& client) {
      return client.connection_class == ConnectionClass::token && client.actor == actor && !client.is_closing;
    });
    return actor != 0 && count >= std::max(1U, max / 4);
  }
  enum class WaitFilter {
    request_only,  // connections that wait for a request or the rest of a body
    any            // also those that wait for the client to read an answer, for the end of a job, or for events
  };
  // Returns the connection of the actor that has waited longest; connections that wait for a request come first.
  // Returns end() if no connection waits.
  std::list<Client>::iterator find_waiting(std::uint64_t actor, WaitFilter filter) {
    auto result = clients_.end();
    const auto waits_for_request = [](const Client& client) { return client.is_idle || client.is_receiving_body; };
    for (auto it = clients_.begin(); it != clients_.end(); ++it) {
      if (it->connection_class != ConnectionClass::token || it->actor != actor || it->is_closing || it->has_ended)
        continue;
      const bool is_accepted_wait = filter == WaitFilter::any && (it->is_waiting || it->is_writing);
      if (!waits_for_request(*it) && !is_accepted_wait) continue;
      const bool is_first =
          result == clients_.end() || waits_for_request(*it) > waits_for_request(*result) ||
          (waits_for_request(*it) == waits_for_request(*result) && it->last_request_at < result->last_request_at);
      if (is_first) result = it;
    }
    return result;
  }
  // Returns a waiting connection of an actor that has more connections than `actor` would have. Actors with more
  // connections come first. Returns end() if there is none.
  std::list<Client>::iterator find_waiting_of_largest_actor(std::uint64_t actor) {
    std::map<std::uint64_t, std::size_t> counts;
    for (const Client& client : clients_) {
      if (client.connection_class == ConnectionClass::token && !client.is_closing) ++counts[client.actor];
    }
    const std::size_t min_count = counts[actor] + 1;
    std::vector<std::pair<std::size_t, std::uint64_t>> larger_actors;
    for (const auto& [other, count] : counts) {
      if (count > min_count) larger_actors.emplace_back(count, other);
    }
    std::sort(larger_actors.rbegin(), larger_actors.rend());
    for (const auto& [count, other] : larger_actors) {
      if (const auto it = find_waiting(other, WaitFilter::any); it != clients_.end()) return it;
    }
    return clients_.end();
  }

  // Returns the connection to /supervisor that has waited longest for a request, or end() if all of them have a
  // request. REQUIRES: the lock is held.
  std::list<Client>::iterator find_longest_idle_peer() {
    auto result = clients_.end();
    for (auto it = clients_.begin(); it != clients_.end(); ++it) {
      if (!is_peer(*it) || !it->is_idle) continue;
      if (result == clients_.end() || it->last_request_at < result->last_request_at) result = it;
    }
    return result;
  }

  // Records that a peer has signed a request on this connection. At most a quarter of the connections to /supervisor
  // can be marked as signed by one peer; after that, the mark of its oldest connection is removed.
  void record_signature(Client& client, const std::string& key) {
    const std::lock_guard lock(mutex_);
    client.signer_key = key;
    client.signature_number = ++signature_count_;
    std::uint32_t count = 0;
    Client* oldest = &client;
    for (Client& peer : clients_) {
      if (!is_peer(peer) || peer.signer_key != key) continue;
      ++count;
      if (peer.signature_number < oldest->signature_number) oldest = &peer;
    }
    if (count > std::max(1U, limits_.max_peer_connections / 4)) oldest->signer_key.clear();
  }

  bool has_signature(const Client& client) const {
    const std::lock_guard lock(mutex_);
    return !client.signer_key.empty();
  }

  void set_idle(Client& client, bool is_idle) {
    const std::lock_guard lock(mutex_);
    client.is_idle = is_idle;
    if (!is_idle) client.last_request_at = std::chrono::steady_clock::now();
  }

  void serve_connection(Client& client) {
    Connection& connection = *client.connection;
    try {
      while (handle_request(client) && !stopping_) {
        client.reader = RequestReader(request_limits());
        connection.set_read_timeout(limits_.idle_timeout_ms);
        set_idle(client, true);
        if (!connection.wait_for_byte() || !read_next_head(client)) break;
        set_idle(client, false);
      }
    } catch (const std::exception&) {  // an exception in a thread would end the process
      log(LogLevel::error, "api", "a connection failed inside the server");
    }
    const std::lock_guard lock(mutex_);
    connection.close();
    client.has_ended = true;
    connection_ended_.notify_all();
    const std::uint64_t wake_up = 1;
    (void)!::write(wake_up_event_.get(), &wake_up, sizeof wake_up);
  }

  // Reads the head of the next request on a connection. Returns false if the client has closed the connection, or if
  // the request was refused.
  bool read_next_head(Client& client) {
    Connection& connection = *client.connection;
    RequestReader& reader = client.reader;
    connection.set_read_timeout(limits_.head_timeout_ms);
    const auto head_complete = connection.read_head(reader);
    if (head_complete && !*head_complete) return false;
    HttpReply refusal = head_complete ? HttpReply() : bad_request_reply(head_complete.error());
    if (head_complete) {
      set_peer_address(reader.request(), connection.fd(), port());
      reader.request().has_signed_before = has_signature(client);
      Admission admission = check_request(reader.request());
      refusal = std::move(admission.refusal);
      if (refusal.status < 400 && !reclassify(client, admission)) refusal = too_many_requests_reply();
      reader.limit_body(body_bytes(client.request_class));
    }
    if (refusal.status < 400) return true;
    connection.set_write_timeout(limits_.write_timeout_ms);
    if (connection.write(to_wire_text(refusal))) connection.finish();
    return false;
  }

  // Counts the connection to the class and actor of its latest request. Otherwise an actor could exceed its share with
  // connections that it opened as a peer. Returns false if the limits do not allow the change.
  bool reclassify(Client& client, const Admission& admission) {
    const std::lock_guard lock(mutex_);
    client.request_class = admission.connection_class;
    client.request_actor = admission.actor;
    if (is_unauthenticated(admission.connection_class)) return true;
    if (admission.connection_class == client.connection_class && admission.actor == client.actor) return true;
    if (client.is_closing) return false;
    client.is_closing = true;  // reserve_slot() must neither count nor close this connection
    const bool has_slot = reserve_slot(admission.connection_class, admission.actor, client.network);
    client.is_closing = false;
    if (!has_slot) return false;
    client.connection_class = admission.connection_class;
    client.actor = admission.actor;
    if (client.connection_class != ConnectionClass::peer) client.signer_key.clear();
    return true;
  }

  // Reads the rest of a request after its head was admitted, and answers it. Returns whether another request may
  // follow.
  bool handle_request(Client& client) {
    Connection& connection = *client.connection;
    RequestReader& reader = client.reader;
    connection.set_body_timeouts(
        client.request_class == ConnectionClass::login ? limits_.head_timeout_ms : limits_.body_timeout_ms,
        limits_.body_part_timeout_ms);
    connection.set_write_timeout(limits_.write_timeout_ms);
    const HttpReply reply = make_reply(client);
    if (!reply.signer_key.empty()) record_signature(client, reply.signer_key);
    // BodyMemoryBudget no longer counts the body, so a client that reads the answer slowly must not keep it in memory.
    reader.request().body = {};
    const bool keep_alive = reply.status < 400 && !is_unauthenticated(client.connection_class) &&
                            reader.is_complete() && reader.is_keep_alive() && !stopping_;
    connection.set_write_timeout(limits_.write_timeout_ms);
    const bool head_only = reader.request().method == "HEAD";
    if (reply.stream && !head_only) return stream(client, reply, keep_alive);
    std::string text = format_head(reply, HttpFraming::counted, reader.is_http_1_1(), keep_alive);
    const ScopedFlag writing_flag(*this, client.is_writing);
    if (head_only) return connection.write(text) && keep_alive;
    const CountedAnswer counted(*this, client, reply.body.size());
    const bool is_small = reply.body.size() <= kMaxUncountedBytes;
    if (is_small) text += reply.body;
    const bool sent = connection.write(text) && (is_small || connection.write(reply.body));
    if (sent && !reader.is_complete()) connection.finish();
    return sent && keep_alive;
  }

  HttpReply make_reply(Client& client) {
    RequestReader& reader = client.reader;
    HttpRequest& request = reader.request();
    try {
      CountedBody budget(*this, client);
      const auto body_complete = [&] {
        const ScopedFlag receiving_flag(*this, client.is_receiving_body);
        return client.connection->read_body(reader, budget);
      }();
      if (!body_complete) return body_error_reply(body_complete.error());
      if (!*body_complete) return error_reply(400, "invalid_request", "the body ends too early", "send all of it");
      const std::string method = request.method == "HEAD" ? "GET" : request.method;
      const auto route = std::find_if(routes_.begin(), routes_.end(), [&](const HttpRoute& entry) {
        return entry.path == request.path && entry.method == method;
      });
      request.report_wait = [this, &client](bool is_waiting) { return set_waiting(client, is_waiting); };
      return route->handler(request);  // check_request() has checked that the route exists
    } catch (const std::exception&) {
      log(LogLevel::error, "api", "{} {} failed inside the server", request.method, request.path);
      return HttpReply{500, "text/plain", {}, {}, {}};
    }
  }

  // Sets a flag of a client during the lifetime of this object.
  class ScopedFlag {
   public:
    ScopedFlag(Server& server, bool& flag) : server_(server), flag_(flag) { set(true); }
    ~ScopedFlag() { set(false); }
    ScopedFlag(const ScopedFlag&) = delete;
    ScopedFlag& operator=(const ScopedFlag&) = delete;

   private:
    void set(bool value) {
      const std::lock_guard lock(server_.mutex_);
      flag_ = value;
    }
    Server& server_;
    bool& flag_;
  };

  bool set_waiting(Client& client, bool is_waiting) {
    const std::lock_guard lock(mutex_);
    client.is_waiting = is_waiting;
    return !client.is_closing;
  }

  // Counts the large body of a request until the request is answered.
  class CountedBody final : public BodyMemoryBudget {
   public:
    CountedBody(Server& server, Client& client) : server_(server), client_(client) {}
    ~CountedBody() override {
      server_.release_bytes(client_, client_.body_bytes, server_.select_bodies(client_.request_class));
    }
    CountedBody(const CountedBody&) = delete;
    CountedBody& operator=(const CountedBody&) = delete;
    bool grow(std::size_t length) override {
      return length <= kMaxUncountedBytes || server_.reserve_body(client_, length);
    }

   private:
    Server& server_;
    Client& client_;
  };
  // Counts a large answer until it is written.
  class CountedAnswer {
   public:
    CountedAnswer(Server& server, Client& client, std::size_t length) : server_(server), client_(client) {
      if (length > kMaxUncountedBytes) server_.reserve_answer(client_, length);
    }
    ~CountedAnswer() {
      server_.release_bytes(client_, client_.answer_bytes, server_.select_answers(client_.request_class));
    }
    CountedAnswer(const CountedAnswer&) = delete;
    CountedAnswer& operator=(const CountedAnswer&) = delete;

   private:
    Server& server_;
    Client& client_;
  };

  ByteQuota& select_bodies(ConnectionClass request_class) {
    return request_class == ConnectionClass::peer        ? peer_bodies_
           : request_class == ConnectionClass::operators ? operator_bodies_
                                                         : bodies_;
  }
  ByteQuota& select_answers(ConnectionClass request_class) {
    return request_class == ConnectionClass::operators ? operator_answers_ : answers_;
  }

  void release_bytes(Client& client, std::size_t& bytes, ByteQuota& quota) {
    const std::lock_guard lock(mutex_);
    if (bytes == 0) return;
    quota.remove(client.request_actor, std::exchange(bytes, 0));
    ++release_count_;
    bytes_released_.notify_all();
  }

  // Counts a body of this length. If only the limit of all actors is exceeded, a waiting request of the actor with the
  // most bytes is closed, provided that this actor holds more than the actor of `client` would. Returns false if a
  // limit is exceeded.
  bool reserve_body(Client& client, std::size_t length) {
    std::unique_lock lock(mutex_);
    ByteQuota& bodies = select_bodies(client.request_class);
    while (length > client.body_bytes && !client.is_closing) {
      const std::size_t added_bytes = length - client.body_bytes;
      const ByteQuota::AddResult add_result = bodies.add(client.request_actor, added_bytes);
      if (add_result == ByteQuota::AddResult::added) {
        client.body_bytes = length;
      } else if (add_result == ByteQuota::AddResult::actor_exceeded || client.request_class != ConnectionClass::token ||
                 !close_and_wait(lock, find_largest_body(client, added_bytes))) {
        return false;
      }
    }
    return !client.is_closing;
  }
  // Returns the waiting connection with the largest body, of the actor with the most bytes. Returns end() if no actor
  // holds more than the actor of `client` would. REQUIRES: the lock is held.
  std::list<Client>::iterator find_largest_body(const Client& client, std::size_t added_bytes) {
    std::map<std::uint64_t, std::size_t> sums;
    for (const Client& entry : clients_) {
      if (entry.request_class == ConnectionClass::token && !entry.is_closing)
        sums[entry.request_actor] += entry.body_bytes;
    }
    const std::size_t min_sum = sums[client.request_actor] + added_bytes;
    auto result = clients_.end();
    for (auto it = clients_.begin(); it != clients_.end(); ++it) {
      const bool can_close = it->is_receiving_body || it->is_waiting;
      if (it->request_class != ConnectionClass::token || it->is_closing || it->body_bytes == 0 || !can_close) continue;
      const std::size_t sum = sums[it->request_actor];
      if (sum <= min_sum) continue;
      const auto rank = [&](const Client& entry) { return std::pair(sums[entry.request_actor], entry.body_bytes); };
      if (result == clients_.end() || rank(*it) > rank(*result)) result = it;
    }
    return result;
  }

  // Counts an answer. If a limit is exceeded, the connections with the oldest unread answers are closed: those of
  // the same actor, or of the actor with the most bytes if only the limit of all actors is exceeded. A single answer of
  // any length is allowed.
  void reserve_answer(Client& client, std::size_t length) {
    std::unique_lock lock(mutex_);
    client.answer_started_at = std::chrono::steady_clock::now();
    ByteQuota& answers = select_answers(client.request_class);
    while (true) {
      const ByteQuota::AddResult add_result = answers.add(client.request_actor, length);
      if (add_result == ByteQuota::AddResult::added) break;
      const bool is_actor_limit = add_result == ByteQuota::AddResult::actor_exceeded;
      if (close_and_wait(
              lock, is_actor_limit ? find_oldest_answer(answers, client.request_actor) : find_oldest_answer(answers)))
        continue;
      answers.add_unchecked(client.request_actor, length);
      break;
    }
    client.answer_bytes = length;
  }
  // REQUIRES for the next three functions: the lock is held.
  std::list<Client>::iterator find_oldest_answer(const ByteQuota& quota, std::uint64_t actor) {
    auto result = clients_.end();
    for (auto it = clients_.begin(); it != clients_.end(); ++it) {
      if (it->answer_bytes == 0 || it->is_closing || it->request_actor != actor ||
          &select_answers(it->request_class) != &quota)
        continue;
      if (result == clients_.end() || it->answer_started_at < result->answer_started_at) result = it;
    }
    return result;
  }
  std::list<Client>::iterator find_oldest_answer(const ByteQuota& quota) {
    std::map<std::uint64_t, std::size_t> sums;
    for (const Client& client : clients_) {
      if (!client.is_closing && &select_answers(client.request_class) == &quota)
        sums[client.request_actor] += client.answer_bytes;
    }
    const auto max = std::max_element(sums.begin(), sums.end(),
                                      [](const auto& left, const auto& right) { return left.second < right.second; });
    return max == sums.end() ? clients_.end() : find_oldest_answer(quota, max->first);
  }
  // Closes a connection and waits until bytes are released, or for kReleaseTimeout. Returns false if close_connection()
  // fails.
  bool close_and_wait(std::unique_lock<std::mutex>& lock, std::list<Client>::iterator target) {
    if (!close_connection(target)) return false;
    bytes_released_.wait_for(lock, kReleaseTimeout,
                             [this, before = release_count_] { return release_count_ != before; });
    return true;
  }

  bool stream(Client& client, const HttpReply& reply, bool keep_alive) {
    Connection& connection = *client.connection;
    const RequestReader& reader = client.reader;
    const bool chunked = reader.is_http_1_1();
    const auto framing = chunked ? HttpFraming::chunked : HttpFraming::until_closed;
    if (!connection.write(format_head(reply, framing, chunked, chunked && keep_alive))) return false;
    const ScopedFlag waiting_flag(*this, client.is_waiting);
    ConnectionEventSink sink(connection, chunked, stopping_, limits_.event_write_timeout_ms);
    try {
      reply.stream(sink);
    } catch (const std::exception&) {
      log(LogLevel::error, "api", "a stream of {} failed inside the server", reader.request().path);
      return false;
    }
    return sink.is_open() && chunked && connection.write(encode_chunk({})) && keep_alive;
  }

  // Removes connections after their threads have ended. REQUIRES: the lock is held.
  void reap() {
    std::uint64_t count = 0;
    (void)!::read(wake_up_event_.get(), &count, sizeof count);
    for (auto client = clients_.begin(); client != clients_.end();) {
      if (!client->has_ended) {
        ++client;
        continue;
      }
      client->thread.join();  // does not block: the thread is about to return
      client = clients_.erase(client);
    }
  }

  ListeningSocket listening_;
  std::string host_;
  ApiLimits limits_;
  std::vector<HttpRoute> routes_;
  AdmissionCheck admit_;
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
  RejectedConnections rejected_;       // used only by the accepting thread
  std::thread accept_thread_;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(const std::string& listen, const ApiLimits& limits,
                                                      std::vector<HttpRoute> routes, AdmissionCheck admit) {
  MJ_TRY(address, parse_listen(listen));
  MJ_TRY(listening, open_listening(address));
  auto server = std::make_unique<Server>(std::move(listening), address.host.empty() ? "127.0.0.1" : address.host,
                                         limits, std::move(routes), std::move(admit));
  MJ_CHECK(server->start_accepting());
  return server;
}

std::string HttpRequest::header(const std::string& lower_case_name) const {
  const auto it = headers.find(lower_case_name);
  return it == headers.end() ? std::string() : it->second;
}

HttpReply error_reply(int status, const std::string& error_code, const std::string& message,
                      const std::string& remedy) {
  HttpReply reply;
  reply.status = status;
  const int code = error_code == "denied"        ? rpc_code(Code::denied)
                   : error_code == "unavailable" ? rpc_code(Code::unavailable)
                   : error_code == "too_large"   ? rpc_code(Code::too_large)
                                                 : -32600;
  reply.body = dump_json(
      {{"jsonrpc", "2.0"},
       {"id", nullptr},
       {"error", {{"code", code}, {"message", message}, {"data", {{"word", error_code}, {"remedy", remedy}}}}}});
  return reply;
}

bool is_from_web_page(const HttpRequest& request) {
  const std::string site = request.header("sec-fetch-site");
  return request.headers.contains("origin") || (!site.empty() && site != "none");
}
bool is_cross_origin(const HttpRequest& request) {
  const std::string site = request.header("sec-fetch-site");
  if (!site.empty() && site != "none" && site != "same-origin") return true;
  if (!request.headers.contains("origin")) return false;
  const std::string origin = request.header("origin"), host = request.header("host");
  return host.empty() || (origin != "http://" + host && origin != "https://" + host);
}
HttpReply web_page_refused_reply() {
  return error_reply(403, "denied", "calls of other web pages are refused",
                     "call from a program, without the header Origin, or from the page of this server");
}

namespace {

// Returns the host of the header Host in lower case: "localhost" for "LocalHost:9652".
std::string get_host(const HttpRequest& request) {
  const std::string header = request.header("host");
  std::string host = header.substr(0, header.find(':', header.starts_with('[') ? header.find(']') : 0));
  std::transform(host.begin(), host.end(), host.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return host;
}

}  // namespace

bool is_loopback_name(const HttpRequest& request) {
  const std::string host = get_host(request);
  if (host == "localhost") return true;
  if (host.starts_with('[') && host.ends_with(']')) {
    in6_addr v6{};
    return ::inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
  }
  in_addr v4{};
  return ::inet_pton(AF_INET, host.c_str(), &v4) == 1 && ntohl(v4.s_addr) >> 24U == 127;
}
bool has_own_host_name(const HttpRequest& request) {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == 0) return false;
  return ::strcasecmp(get_host(request).c_str(), name.data()) == 0;
}
HttpReply other_host_refused_reply(const std::string& remedy) {
  return error_reply(403, "denied", "the header Host names no address of this machine alone", remedy);
}

HttpReply check_route(const std::vector<HttpRoute>& routes, const std::string& method, const std::string& path) {
  bool has_path = false, has_route = false;
  std::string remedy;
  for (const HttpRoute& route : routes) {
    if (!route.path.starts_with("/assets/")) remedy += (remedy.empty() ? "" : ", ") + route.method + ' ' + route.path;
    has_path = has_path || route.path == path;
    has_route = has_route || (route.path == path && route.method == (method == "HEAD" ? "GET" : method));
  }
  if (!has_path) return error_reply(404, "not_found", "this path does not exist", remedy);
  if (!has_route)
    return error_reply(405, "invalid_request", "this path does not accept " + method.substr(0, 16), remedy);
  return {};
}

HttpReply not_json_reply() {
  return error_reply(415, "invalid_request", "the body must be JSON as it is", "send no form and no compressed body");
}

HttpReply bad_request_reply(const Error& error) {
  if (error.code == Code::too_large) return error_reply(431, "too_large", error.message, "send shorter headers");
  return error_reply(400, "invalid_request", error.message, "send HTTP/1.1 as RFC 9112 has it");
}

HttpReply body_error_reply(const Error& error) {
  if (error.code == Code::unavailable)
    return error_reply(503, "unavailable", error.message, "call again in a few seconds");
  if (error.code == Code::too_large) return error_reply(413, "too_large", error.message, "send less at a time");
  return bad_request_reply(error);
}

HttpReply too_many_requests_reply() {
  HttpReply reply = error_reply(503, "unavailable", "too many connections are open", "call again in a few seconds");
  reply.headers.emplace_back("Retry-After", "1");
  return reply;
}

}  // namespace mycojobs::api
