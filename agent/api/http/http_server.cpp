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

constexpr std::size_t kLargeBodies = 3;        // limit of all bodies except those of peers, in bodies of maximum size
constexpr std::size_t kLargePeerBodies = 16;   // limit of the bodies of all peers, in bodies of maximum size
constexpr std::size_t kLargeAnswers = 4;       // limit of the answers of all actors, in limits of one actor
constexpr milliseconds kReleaseTimeout{1000};  // until a closed connection has released its bytes

std::string head_text(const HttpReply& reply, HttpFraming framing, bool http_1_1, bool keep_alive) {
  HttpAnswerHead head{reply.status, reply.headers, framing, reply.body.size(), http_1_1, keep_alive};
  if (reply.status != 204) head.fields.emplace_back("Content-Type", reply.type);
  const bool kept = std::any_of(reply.headers.begin(), reply.headers.end(),
                                [](const auto& field) { return field.first == "Cache-Control"; });
  if (!kept) head.fields.emplace_back("Cache-Control", "no-store");
  head.fields.emplace_back("X-Content-Type-Options", "nosniff");
  return to_text(head);
}

void note_peer(HttpRequest& request, int socket, std::uint16_t port) {
  request.port = port;
  request.loopback = is_loopback_peer(socket);
  request.network = network_of_peer(socket);
}

bool has_body(const HttpRequest& from) {
  const std::string length = from.header("content-length");
  return from.headers.contains("transfer-encoding") || length.find_first_not_of('0') != std::string::npos;
}

HttpReply no_body_taken() {
  return refuse(400, "invalid_request", "this path accepts no body", "send no Content-Length and no Transfer-Encoding");
}

// Returns a complete answer that announces the end of the connection.
std::string wire_text(const HttpReply& reply) {
  return head_text(reply, HttpFraming::counted, true, false) + reply.body;
}

struct Client {
  // The thread of the connection writes standing, actor, asks and asking_actor with the server's lock held, and reads
  // them without the lock. Other threads read them with the lock.
  ConnectionClass standing = ConnectionClass::open;
  std::uint64_t actor = 0;  // actor whose share is used; 0: none
  std::thread thread;
  std::unique_ptr<Connection> connection;
  RequestReader reader;                          // reader of the current request; initially of the admitted first head
  ConnectionClass asks = ConnectionClass::open;  // class of the current request
  std::uint64_t asking_actor = 0;                // actor of the current request
  std::string network = {};                      // HttpRequest::network; empty: not counted
  // Guarded by the server's lock:
  std::string proven = {};      // key of the peer that has signed a request on this connection; empty: none
  std::uint64_t proven_as = 0;  // sequence number of the latest signed request
  TimePoint asked = std::chrono::steady_clock::now();  // time of the latest request
  bool silent = false;                                 // waits for the next request
  bool sending = false;                                // the body of its request is incomplete
  bool waiting = false;                                // the call waits for the end of a job, or sends events
  bool writing = false;                                // the answer is being written
  std::size_t body_bytes = 0, answer_bytes = 0;        // bytes of a large body or answer in memory
  TimePoint answered = {};                             // when the writing of a large answer began
  // leaving: the server has shut the connection down. done: the thread is about to return.
  bool leaving = false, done = false;
};

// Sends events to one connection.
class Sink final : public EventSink {
 public:
  Sink(Connection& connection, bool chunked, const std::atomic<bool>& stopping, std::uint32_t write_ms)
      : connection_(connection), chunked_(chunked), stopping_(stopping), write_ms_(write_ms) {}
  bool send(std::string_view text) override {
    if (text.empty() || !open()) return open();
    connection_.allow(write_ms_);
    return chunked_ ? connection_.write(chunk_text(text)) : connection_.write(text);
  }
  bool open() const override {
    if (stopping_ || connection_.broken()) return false;
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
        event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        lobby_(limits.lobby, limits.header_ms, request_limits()),
        bodies_(kLargeBodies * limits.body_bytes, limits.body_bytes),
        operator_bodies_(kLargeBodies * limits.body_bytes, SIZE_MAX),
        peer_bodies_(kLargePeerBodies * limits.peer_body_bytes, SIZE_MAX),
        answers_(kLargeAnswers * limits.answer_bytes, limits.answer_bytes),
        operator_answers_(kLargeAnswers * limits.answer_bytes, SIZE_MAX) {}
  ~Server() override { Server::stop(); }
  Result<void> begin() {
    MJ_TRY(thread, start_thread([this] { accept_loop(); }));
    thread_ = std::move(thread);
    return {};
  }

  std::uint16_t port() const override { return listening_.port; }
  std::string url() const override {
    const bool six = host_.find(':') != std::string::npos;
    return "http://" + (six ? '[' + host_ + ']' : host_) + ':' + std::to_string(listening_.port);
  }
  std::uint32_t connections() const override {
    const std::lock_guard lock(mutex_);
    return static_cast<std::uint32_t>(clients_.size()) + waiting_;
  }
  void stop() override {
    if (stopping_.exchange(true)) return;
    const std::uint64_t one = 1;
    (void)!::write(event_.get(), &one, sizeof one);
    if (thread_.joinable()) thread_.join();
    const auto none_runs = [this] {
      reap();
      return clients_.empty();
    };
    std::unique_lock lock(mutex_);
    for (Client& client : clients_) {
      if (!client.done) ::shutdown(client.connection->fd(), SHUT_RD);  // requests that were received are still answered
    }
    ended_.wait(lock, none_runs);
  }

 private:
  RequestLimits request_limits() const { return {limits_.header_bytes, limits_.body_bytes}; }

  Admission look_at(const HttpRequest& from) const {
    HttpReply reply = refuse_route(routes_, from.method, from.path);
    if (reply.status >= 400) return {std::move(reply)};
    if (from.headers.contains("content-encoding") || from.header("content-type").starts_with("multipart/form-data"))
      return {not_json_reply()};
    Admission admission = admit_(from);
    const bool takes_body = admission.standing != ConnectionClass::open && admission.standing != ConnectionClass::page;
    if (admission.refusal.status < 400 && !takes_body && has_body(from)) return {no_body_taken()};
    return admission;
  }

  void accept_loop() {
    std::vector<pollfd> entries;
    while (!stopping_) {
      entries.assign({{listening_.socket.get(), POLLIN, 0}, {event_.get(), POLLIN, 0}});
      lobby_.append_pollfds(entries);
      const int soon = refused_.empty() ? -1 : 200, due = lobby_.timeout_ms();
      (void)::poll(entries.data(), entries.size(), soon < 0 ? due : due < 0 ? soon : std::min(soon, due));
      refused_.close_old();
      {
        const std::lock_guard lock(mutex_);
        reap();
      }
      if (stopping_) break;
      for (PendingConnections::Connection& guest : lobby_.receive_heads(entries.data() + 2)) arrive(guest);
      if ((entries[0].revents & POLLIN) != 0) accept_some();
      waiting_ = static_cast<std::uint32_t>(lobby_.size());
    }
    listening_.socket.reset();
    lobby_.clear();
    waiting_ = 0;
    refused_.close_all();
  }

  void accept_some() {
    constexpr int kAtOnce = 64;
    for (int i = 0; i < kAtOnce; ++i) {
      Fd socket(::accept4(listening_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket) {
        const int on = 1;  // send small events and answers without waiting for acknowledgements
        (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        lobby_.add(std::move(socket));
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
  void arrive(PendingConnections::Connection& guest) {
    if (guest.wrong) return refused_.refuse(std::move(guest.socket), wire_text(bad_request_reply(*guest.wrong)));
    note_peer(guest.reader.request(), guest.socket.get(), port());
    const Admission admission = look_at(guest.reader.request());
    if (admission.refusal.status >= 400) return refused_.refuse(std::move(guest.socket), wire_text(admission.refusal));
    take(std::move(guest), admission);
  }

  void take(PendingConnections::Connection guest, const Admission& admission) {
    const HttpRequest& request = guest.reader.request();
    const bool is_counted = !(request.loopback && limits_.spare_loopback);
    const std::string network = is_counted ? request.network : std::string();
    std::unique_lock lock(mutex_);
    if (!find_place(admission.standing, admission.actor, network)) {
      lock.unlock();
      const HttpReply reply = admission.when_full ? admission.when_full() : too_many_requests_reply();
      return refused_.refuse(std::move(guest.socket), wire_text(reply));
    }
    auto connection = std::make_unique<Connection>(std::move(guest.socket), std::move(guest.bytes));
    Client& client = clients_.emplace_back(Client{admission.standing,
                                                  admission.actor,
                                                  {},
                                                  std::move(connection),
                                                  std::move(guest.reader),
                                                  admission.standing,
                                                  admission.actor,
                                                  network});
    client.reader.limit_body(body_bytes(admission.standing));
    auto thread = start_thread([this, &client] { converse(client); });
    if (thread) {
      client.thread = std::move(*thread);
      return;
    }
    Fd back(::dup(client.connection->fd()));
    clients_.pop_back();
    refused_.refuse(std::move(back), wire_text(too_many_requests_reply()));
  }

  // Returns whether there is a place for a connection of this class and actor. May close another connection for it.
  // REQUIRES: the lock is held.
  bool find_place(ConnectionClass standing, std::uint64_t actor, const std::string& network) {
    const auto count = std::count_if(clients_.begin(), clients_.end(), [&](const Client& client) {
      return client.standing == standing && !client.leaving;
    });
    const std::uint32_t max = standing == ConnectionClass::open    ? limits_.open
                              : standing == ConnectionClass::page  ? limits_.page
                              : standing == ConnectionClass::login ? limits_.logins
                              : standing == ConnectionClass::peer  ? limits_.peers
                                                                   : limits_.connections;
    const bool room = count < max;
    if (standing == ConnectionClass::peer) return room || make_room();
    if (standing == ConnectionClass::token) {
      if (uses_share(actor, max)) return route_message_of_job(waiting_of(actor, Waits::for_request));
      return room || route_message_of_job(waiting_of_greediest(actor));
    }
    if (standing == ConnectionClass::login && !network.empty() && logins_of(network) >= std::max(1U, max / 4))
      return route_message_of_job(oldest_of(standing, network));
    return room || (is_for_anybody(standing) && route_message_of_job(oldest_of(standing, "")));
  }

  std::size_t body_bytes(ConnectionClass standing) const {
    return standing == ConnectionClass::peer    ? limits_.peer_body_bytes
           : standing == ConnectionClass::login ? limits_.login_body_bytes
                                                : limits_.body_bytes;
  }

  static bool is_peer(const Client& client) {
    return client.standing == ConnectionClass::peer && !client.leaving && !client.done;
  }

  // Closes a connection to /supervisor in favour of a new one: the oldest connection without a valid signature, since
  // any client can open these; else the connection that is silent longest. Returns false if none can be closed.
  // REQUIRES: the lock is held.
  bool make_room() {
    auto goes = std::find_if(clients_.begin(), clients_.end(),
                             [](const Client& each) { return is_peer(each) && each.proven.empty(); });
    return route_message_of_job(goes == clients_.end() ? most_silent() : goes);
  }

  // Shuts a connection down. Returns false for end(), or if too many such connections still have a thread. REQUIRES:
  // the lock is held.
  bool route_message_of_job(std::list<Client>::iterator goes) {
    constexpr std::ptrdiff_t kLeaving = 256;  // limit of shut down connections whose threads run
    const auto leaving =
        std::count_if(clients_.begin(), clients_.end(), [](const Client& each) { return each.leaving; });
    if (goes == clients_.end() || leaving >= kLeaving) return false;
    goes->leaving = true;
    ::shutdown(goes->connection->fd(), SHUT_RDWR);
    return true;
  }

  static bool is_for_anybody(ConnectionClass standing) {
    return standing == ConnectionClass::open || standing == ConnectionClass::page || standing == ConnectionClass::login;
  }
  // Returns the oldest connection of the class that receives its request or writes its answer, or end(). Connections
  // with a running handler are excluded. network: only connections of this network; empty: all. REQUIRES: the lock is
  // held.
  std::list<Client>::iterator oldest_of(ConnectionClass standing, const std::string& network) {
    return std::find_if(clients_.begin(), clients_.end(), [&](const Client& each) {
      return each.standing == standing && !each.leaving && !each.done && (each.sending || each.writing) &&
             (network.empty() || each.network == network);
    });
  }

  // The next four functions need the lock.
  std::uint32_t logins_of(const std::string& network) const {
    return static_cast<std::uint32_t>(std::count_if(clients_.begin(), clients_.end(), [&](const Client& each) {
      return each.standing == ConnectionClass::login && each.network == network && !each.leaving;
    }));
  }
  bool uses_share(std::uint64_t actor, std::uint32_t max) const {
    const auto count = std::count_if(clients_.begin(), clients_.end(), [actor](const Client& each) {
      return each.standing == ConnectionClass::token && each.actor == actor && !each.leaving;
    });
    return actor != 0 && count >= std::max(1U, max / 4);
  }
  enum class Waits {
    for_request,  // for a request or the rest of a body
    at_all        // also for the client to read an answer, for the end of a job, or for events
  };
  // Returns the connection of the actor that has waited longest; connections that wait for a request come first.
  // Returns end() if no connection waits.
  std::list<Client>::iterator waiting_of(std::uint64_t actor, Waits waits) {
    auto found = clients_.end();
    const auto for_request = [](const Client& each) { return each.silent || each.sending; };
    for (auto each = clients_.begin(); each != clients_.end(); ++each) {
      if (each->standing != ConnectionClass::token || each->actor != actor || each->leaving || each->done) continue;
      const bool at_all = waits == Waits::at_all && (each->waiting || each->writing);
      if (!for_request(*each) && !at_all) continue;
      const bool is_first = found == clients_.end() || for_request(*each) > for_request(*found) ||
                            (for_request(*each) == for_request(*found) && each->asked < found->asked);
      if (is_first) found = each;
    }
    return found;
  }
  // Returns a waiting connection of an actor that has more connections than `actor` would have. Actors with more
  // connections come first. Returns end() if there is none.
  std::list<Client>::iterator waiting_of_greediest(std::uint64_t actor) {
    std::map<std::uint64_t, std::size_t> counts;
    for (const Client& each : clients_) {
      if (each.standing == ConnectionClass::token && !each.leaving) ++counts[each.actor];
    }
    const std::size_t own = counts[actor];
    std::vector<std::pair<std::size_t, std::uint64_t>> actors;
    for (const auto& [each, count] : counts) {
      if (count > own + 1) actors.emplace_back(count, each);
    }
    std::sort(actors.rbegin(), actors.rend());
    for (const auto& [count, each] : actors) {
      if (const auto found = waiting_of(each, Waits::at_all); found != clients_.end()) return found;
    }
    return clients_.end();
  }

  // Returns the connection to /supervisor that has waited longest for a request, or end() if all of them have a
  // request. REQUIRES: the lock is held.
  std::list<Client>::iterator most_silent() {
    auto found = clients_.end();
    for (auto each = clients_.begin(); each != clients_.end(); ++each) {
      if (!is_peer(*each) || !each->silent) continue;
      if (found == clients_.end() || each->asked < found->asked) found = each;
    }
    return found;
  }

  // Records that a peer has signed a request on this connection. A peer can have a quarter of the places with signed
  // requests; beyond, its oldest connection counts as one without a valid signature again.
  void prove(Client& client, const std::string& who) {
    const std::lock_guard lock(mutex_);
    client.proven = who;
    client.proven_as = ++proofs_;
    std::uint32_t count = 0;
    Client* oldest = &client;
    for (Client& each : clients_) {
      if (!is_peer(each) || each.proven != who) continue;
      ++count;
      if (each.proven_as < oldest->proven_as) oldest = &each;
    }
    if (count > std::max(1U, limits_.peers / 4)) oldest->proven.clear();
  }

  bool has_proven(const Client& client) const {
    const std::lock_guard lock(mutex_);
    return !client.proven.empty();
  }

  void note_silence(Client& client, bool silent) {
    const std::lock_guard lock(mutex_);
    client.silent = silent;
    if (!silent) client.asked = std::chrono::steady_clock::now();
  }

  void converse(Client& client) {
    Connection& connection = *client.connection;
    try {
      while (exchange(client) && !stopping_) {
        client.reader = RequestReader(request_limits());
        connection.expect(limits_.idle_ms);
        note_silence(client, true);
        if (!connection.wait_for_byte() || !next_head(client)) break;
        note_silence(client, false);
      }
    } catch (const std::exception&) {  // an exception in a thread would end the process
      log(LogLevel::error, "api", "a connection failed inside the server");
    }
    const std::lock_guard lock(mutex_);
    connection.close();
    client.done = true;
    ended_.notify_all();
    const std::uint64_t one = 1;
    (void)!::write(event_.get(), &one, sizeof one);
  }

  // Reads the head of the next request on a connection. Returns false if the client ended, or the request was refused.
  bool next_head(Client& client) {
    Connection& connection = *client.connection;
    RequestReader& reader = client.reader;
    connection.expect(limits_.header_ms);
    const auto there = connection.read_head(reader);
    if (there && !*there) return false;
    HttpReply refusal = there ? HttpReply() : bad_request_reply(there.error());
    if (there) {
      note_peer(reader.request(), connection.fd(), port());
      reader.request().proven = has_proven(client);
      Admission admission = look_at(reader.request());
      refusal = std::move(admission.refusal);
      if (refusal.status < 400 && !change_place(client, admission)) refusal = too_many_requests_reply();
      reader.limit_body(body_bytes(client.asks));
    }
    if (refusal.status < 400) return true;
    connection.allow(limits_.write_ms);
    if (connection.write(wire_text(refusal))) connection.finish();
    return false;
  }

  // Counts the connection by the class and actor of its latest request. Otherwise an actor could exceed its share by a
  // connection that it opened as a peer. Returns false if there is no place.
  bool change_place(Client& client, const Admission& admission) {
    const std::lock_guard lock(mutex_);
    client.asks = admission.standing;
    client.asking_actor = admission.actor;
    if (is_for_anybody(admission.standing)) return true;
    if (admission.standing == client.standing && admission.actor == client.actor) return true;
    if (client.leaving) return false;
    client.leaving = true;  // find_place() must neither count nor close this connection
    const bool found = find_place(admission.standing, admission.actor, client.network);
    client.leaving = false;
    if (!found) return false;
    client.standing = admission.standing;
    client.actor = admission.actor;
    if (client.standing != ConnectionClass::peer) client.proven.clear();
    return true;
  }

  // Reads the rest of a request after its head was admitted, and answers it. Returns whether another request may
  // follow.
  bool exchange(Client& client) {
    Connection& connection = *client.connection;
    RequestReader& reader = client.reader;
    connection.expect_body(client.asks == ConnectionClass::login ? limits_.header_ms : limits_.body_ms,
                           limits_.body_part_ms);
    connection.allow(limits_.write_ms);
    const HttpReply reply = answer(client);
    if (!reply.proven.empty()) prove(client, reply.proven);
    // BodyMemoryBudget no longer counts the body, so a client that reads the answer slowly must not keep it in memory.
    reader.request().body = {};
    const bool goes_on =
        reply.status < 400 && !is_for_anybody(client.standing) && reader.done() && reader.is_keep_alive() && !stopping_;
    connection.allow(limits_.write_ms);
    const bool head_only = reader.request().method == "HEAD";
    if (reply.stream && !head_only) return stream(client, reply, goes_on);
    std::string text = head_text(reply, HttpFraming::counted, reader.is_http_1_1(), goes_on);
    const Flag writing(*this, client.writing);
    if (head_only) return connection.write(text) && goes_on;
    const HeldAnswer held(*this, client, reply.body.size());
    const bool small = reply.body.size() <= kSmallBody;
    if (small) text += reply.body;
    const bool sent = connection.write(text) && (small || connection.write(reply.body));
    if (sent && !reader.done()) connection.finish();
    return sent && goes_on;
  }

  HttpReply answer(Client& client) {
    RequestReader& reader = client.reader;
    HttpRequest& request = reader.request();
    try {
      ReadBody share(*this, client);
      const auto whole = [&] {
        const Flag sending(*this, client.sending);
        return client.connection->read_body(reader, share);
      }();
      if (!whole) return refuse_body(whole.error());
      if (!*whole) return refuse(400, "invalid_request", "the body ends too early", "send all of it");
      const std::string method = request.method == "HEAD" ? "GET" : request.method;
      const auto route = std::find_if(routes_.begin(), routes_.end(), [&](const HttpRoute& each) {
        return each.path == request.path && each.method == method;
      });
      request.note_wait = [this, &client](bool waits) { return note_wait(client, waits); };
      return route->run(request);  // look_at() has checked that the route exists
    } catch (const std::exception&) {
      log(LogLevel::error, "api", "{} {} failed inside the server", request.method, request.path);
      return HttpReply{500, "text/plain", {}, {}, {}};
    }
  }

  // Sets a flag of a client during the lifetime of this object.
  class Flag {
   public:
    Flag(Server& server, bool& flag) : server_(server), flag_(flag) { set(true); }
    ~Flag() { set(false); }
    Flag(const Flag&) = delete;
    Flag& operator=(const Flag&) = delete;

   private:
    void set(bool value) {
      const std::lock_guard lock(server_.mutex_);
      flag_ = value;
    }
    Server& server_;
    bool& flag_;
  };

  bool note_wait(Client& client, bool waits) {
    const std::lock_guard lock(mutex_);
    client.waiting = waits;
    return !client.leaving;
  }

  // Counts the large body of a request until the request is answered.
  class ReadBody final : public BodyMemoryBudget {
   public:
    ReadBody(Server& server, Client& client) : server_(server), client_(client) {}
    ~ReadBody() override { server_.release(client_, client_.body_bytes, server_.bodies_of(client_.asks)); }
    ReadBody(const ReadBody&) = delete;
    ReadBody& operator=(const ReadBody&) = delete;
    bool grow(std::size_t length) override { return length <= kSmallBody || server_.hold_body(client_, length); }

   private:
    Server& server_;
    Client& client_;
  };
  // Counts a large answer until it is written.
  class HeldAnswer {
   public:
    HeldAnswer(Server& server, Client& client, std::size_t length) : server_(server), client_(client) {
      if (length > kSmallBody) server_.hold_answer(client_, length);
    }
    ~HeldAnswer() { server_.release(client_, client_.answer_bytes, server_.answers_of(client_.asks)); }
    HeldAnswer(const HeldAnswer&) = delete;
    HeldAnswer& operator=(const HeldAnswer&) = delete;

   private:
    Server& server_;
    Client& client_;
  };

  HeldBytes& bodies_of(ConnectionClass asks) {
    return asks == ConnectionClass::peer        ? peer_bodies_
           : asks == ConnectionClass::operators ? operator_bodies_
                                                : bodies_;
  }
  HeldBytes& answers_of(ConnectionClass asks) {
    return asks == ConnectionClass::operators ? operator_answers_ : answers_;
  }

  void release(Client& client, std::size_t& bytes, HeldBytes& from) {
    const std::lock_guard lock(mutex_);
    if (bytes == 0) return;
    from.remove(client.asking_actor, std::exchange(bytes, 0));
    ++releases_;
    released_.notify_all();
  }

  // Counts a body of this length. If only the limit of all actors is exceeded, a waiting request of the actor with the
  // most bytes is closed, provided that this actor holds more than the actor of `client` would. Returns false if a
  // limit is exceeded.
  bool hold_body(Client& client, std::size_t length) {
    std::unique_lock lock(mutex_);
    HeldBytes& bodies = bodies_of(client.asks);
    while (length > client.body_bytes && !client.leaving) {
      const std::size_t more = length - client.body_bytes;
      const HeldBytes::Fit fit = bodies.add(client.asking_actor, more);
      if (fit == HeldBytes::Fit::fits) {
        client.body_bytes = length;
      } else if (fit == HeldBytes::Fit::actor_full || client.asks != ConnectionClass::token ||
                 !close_and_wait(lock, largest_body(client, more))) {
        return false;
      }
    }
    return !client.leaving;
  }
  // Returns the waiting connection with the largest body, of the actor with the most bytes. Returns end() if no actor
  // holds more than the actor of `client` would. REQUIRES: the lock is held.
  std::list<Client>::iterator largest_body(const Client& client, std::size_t more) {
    std::map<std::uint64_t, std::size_t> sums;
    for (const Client& each : clients_) {
      if (each.asks == ConnectionClass::token && !each.leaving) sums[each.asking_actor] += each.body_bytes;
    }
    const std::size_t own = sums[client.asking_actor] + more;
    auto found = clients_.end();
    for (auto each = clients_.begin(); each != clients_.end(); ++each) {
      const bool waits = each->sending || each->waiting;
      if (each->asks != ConnectionClass::token || each->leaving || each->body_bytes == 0 || !waits) continue;
      const std::size_t sum = sums[each->asking_actor];
      if (sum <= own) continue;
      const auto rank = [&](const Client& of) { return std::pair(sums[of.asking_actor], of.body_bytes); };
      if (found == clients_.end() || rank(*each) > rank(*found)) found = each;
    }
    return found;
  }

  // Counts an answer. If a limit is exceeded, the connections with the oldest unread answers are closed: those of
  // the same actor, or of the actor with the most bytes if only the limit of all actors is exceeded. A single answer of
  // any length is allowed.
  void hold_answer(Client& client, std::size_t length) {
    std::unique_lock lock(mutex_);
    client.answered = std::chrono::steady_clock::now();
    HeldBytes& answers = answers_of(client.asks);
    while (true) {
      const HeldBytes::Fit fit = answers.add(client.asking_actor, length);
      if (fit == HeldBytes::Fit::fits) break;
      const bool is_actors = fit == HeldBytes::Fit::actor_full;
      if (close_and_wait(lock, is_actors ? oldest_answer(answers, client.asking_actor) : oldest_answer(answers)))
        continue;
      answers.add_anyway(client.asking_actor, length);
      break;
    }
    client.answer_bytes = length;
  }
  // The next three functions need the lock.
  std::list<Client>::iterator oldest_answer(const HeldBytes& among, std::uint64_t actor) {
    auto found = clients_.end();
    for (auto each = clients_.begin(); each != clients_.end(); ++each) {
      if (each->answer_bytes == 0 || each->leaving || each->asking_actor != actor || &answers_of(each->asks) != &among)
        continue;
      if (found == clients_.end() || each->answered < found->answered) found = each;
    }
    return found;
  }
  std::list<Client>::iterator oldest_answer(const HeldBytes& among) {
    std::map<std::uint64_t, std::size_t> sums;
    for (const Client& each : clients_) {
      if (!each.leaving && &answers_of(each.asks) == &among) sums[each.asking_actor] += each.answer_bytes;
    }
    const auto max = std::max_element(sums.begin(), sums.end(),
                                      [](const auto& one, const auto& other) { return one.second < other.second; });
    return max == sums.end() ? clients_.end() : oldest_answer(among, max->first);
  }
  // Closes a connection and waits until bytes are released, or for kReleaseTimeout. Returns false if it is end().
  bool close_and_wait(std::unique_lock<std::mutex>& lock, std::list<Client>::iterator goes) {
    if (!route_message_of_job(goes)) return false;
    released_.wait_for(lock, kReleaseTimeout, [this, before = releases_] { return releases_ != before; });
    return true;
  }

  bool stream(Client& client, const HttpReply& reply, bool goes_on) {
    Connection& connection = *client.connection;
    const RequestReader& reader = client.reader;
    const bool chunked = reader.is_http_1_1();
    const auto framing = chunked ? HttpFraming::chunked : HttpFraming::until_closed;
    if (!connection.write(head_text(reply, framing, chunked, chunked && goes_on))) return false;
    const Flag waiting(*this, client.waiting);
    Sink sink(connection, chunked, stopping_, limits_.event_write_ms);
    try {
      reply.stream(sink);
    } catch (const std::exception&) {
      log(LogLevel::error, "api", "a stream of {} failed inside the server", reader.request().path);
      return false;
    }
    return sink.open() && chunked && connection.write(chunk_text({})) && goes_on;
  }

  // Removes connections after their threads have ended. REQUIRES: the lock is held.
  void reap() {
    std::uint64_t count = 0;
    (void)!::read(event_.get(), &count, sizeof count);
    for (auto client = clients_.begin(); client != clients_.end();) {
      if (!client->done) {
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
  Fd event_;
  PendingConnections lobby_;               // used only by the accepting thread
  std::atomic<std::uint32_t> waiting_{0};  // number of connections in lobby_
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  // Guarded by mutex_:
  HeldBytes bodies_, operator_bodies_, peer_bodies_, answers_, operator_answers_;
  std::condition_variable released_;
  std::uint64_t releases_ = 0;  // number of releases so far
  std::list<Client> clients_;
  std::uint64_t proofs_ = 0;  // number of signed requests so far
  Refusals refused_;          // used only by the accepting thread
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(const std::string& listen, const ApiLimits& limits,
                                                      std::vector<HttpRoute> routes, AdmissionCheck admit) {
  MJ_TRY(address, parse_listen(listen));
  MJ_TRY(listening, open_listening(address));
  auto server = std::make_unique<Server>(std::move(listening), address.host.empty() ? "127.0.0.1" : address.host,
                                         limits, std::move(routes), std::move(admit));
  MJ_CHECK(server->begin());
  return server;
}

std::string HttpRequest::header(const std::string& lower_case_name) const {
  const auto found = headers.find(lower_case_name);
  return found == headers.end() ? std::string() : found->second;
}

HttpReply refuse(int status, const std::string& word, const std::string& message, const std::string& remedy) {
  HttpReply reply;
  reply.status = status;
  const int code = word == "denied"        ? rpc_code(Code::denied)
                   : word == "unavailable" ? rpc_code(Code::unavailable)
                   : word == "too_large"   ? rpc_code(Code::too_large)
                                           : -32600;
  reply.body =
      dump_json({{"jsonrpc", "2.0"},
                 {"id", nullptr},
                 {"error", {{"code", code}, {"message", message}, {"data", {{"word", word}, {"remedy", remedy}}}}}});
  return reply;
}

bool is_from_web_page(const HttpRequest& from) {
  const std::string site = from.header("sec-fetch-site");
  return from.headers.contains("origin") || (!site.empty() && site != "none");
}
bool is_from_other_page(const HttpRequest& from) {
  const std::string site = from.header("sec-fetch-site");
  if (!site.empty() && site != "none" && site != "same-origin") return true;
  if (!from.headers.contains("origin")) return false;
  const std::string origin = from.header("origin"), host = from.header("host");
  return host.empty() || (origin != "http://" + host && origin != "https://" + host);
}
HttpReply web_page_refused() {
  return refuse(403, "denied", "calls of other web pages are refused",
                "call from a program, without the header Origin, or from the page of this server");
}

namespace {

// Returns the host of the header Host in lower case: "localhost" for "LocalHost:9652".
std::string host_of(const HttpRequest& from) {
  const std::string header = from.header("host");
  std::string host = header.substr(0, header.find(':', header.starts_with('[') ? header.find(']') : 0));
  std::transform(host.begin(), host.end(), host.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return host;
}

}  // namespace

bool is_loopback_name(const HttpRequest& from) {
  const std::string host = host_of(from);
  if (host == "localhost") return true;
  if (host.starts_with('[') && host.ends_with(']')) {
    in6_addr six{};
    return ::inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
  }
  in_addr four{};
  return ::inet_pton(AF_INET, host.c_str(), &four) == 1 && ntohl(four.s_addr) >> 24U == 127;
}
bool names_this_host(const HttpRequest& from) {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == 0) return false;
  return ::strcasecmp(host_of(from).c_str(), name.data()) == 0;
}
HttpReply other_host_refused(const std::string& remedy) {
  return refuse(403, "denied", "the header Host names no address of this machine alone", remedy);
}

HttpReply refuse_route(const std::vector<HttpRoute>& routes, const std::string& method, const std::string& path) {
  bool path_known = false, known = false;
  std::string remedy;
  for (const HttpRoute& route : routes) {
    if (!route.path.starts_with("/assets/")) remedy += (remedy.empty() ? "" : ", ") + route.method + ' ' + route.path;
    path_known = path_known || route.path == path;
    known = known || (route.path == path && route.method == (method == "HEAD" ? "GET" : method));
  }
  if (!path_known) return refuse(404, "not_found", "this path does not exist", remedy);
  if (!known) return refuse(405, "invalid_request", "this path does not accept " + method.substr(0, 16), remedy);
  return {};
}

HttpReply not_json_reply() {
  return refuse(415, "invalid_request", "the body must be JSON as it is", "send no form and no compressed body");
}

HttpReply bad_request_reply(const Error& error) {
  if (error.code == Code::too_large) return refuse(431, "too_large", error.message, "send shorter headers");
  return refuse(400, "invalid_request", error.message, "send HTTP/1.1 as RFC 9112 has it");
}

HttpReply refuse_body(const Error& error) {
  if (error.code == Code::unavailable) return refuse(503, "unavailable", error.message, "call again in a few seconds");
  if (error.code == Code::too_large) return refuse(413, "too_large", error.message, "send less at a time");
  return bad_request_reply(error);
}

HttpReply too_many_requests_reply() {
  HttpReply reply = refuse(503, "unavailable", "too many connections are open", "call again in a few seconds");
  reply.headers.emplace_back("Retry-After", "1");
  return reply;
}

}  // namespace mycojobs::api
