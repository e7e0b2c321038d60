#include "api/http/http_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>

#include "api/http/request_reader.h"
#include "base/errno_text.h"
#include "base/log.h"
#include "base/thread.h"
#include "net/http_wire.h"

namespace mycojobs::api {

namespace {

using std::chrono::milliseconds;
using TimePoint = std::chrono::steady_clock::time_point;

// Limits of the memory for large bodies and answers. Requests of operators have the same limits of their own.
constexpr std::size_t kMaxLargeBodies = 3;       // bodies except those of peers, in multiples of max_body_bytes
constexpr std::size_t kMaxLargePeerBodies = 16;  // bodies of peers, in multiples of max_peer_body_bytes
constexpr std::size_t kMaxLargeAnswers = 4;      // answers, in multiples of max_answer_bytes
constexpr milliseconds kReleaseTimeout{1000};    // maximum wait until a closed connection has released its bytes

// Browsers use only HTTPS with all ports of this host for a year.
constexpr std::string_view kStrictTransportSecurity = "max-age=31536000";

std::string format_head(const HttpReply& reply, HttpFraming framing, bool http_1_1, bool keep_alive, bool sends_hsts) {
  const std::size_t length = reply.stream_bytes.value_or(reply.body.size());
  HttpAnswerHead head{reply.status, reply.headers, framing, length, http_1_1, keep_alive};
  if (sends_hsts) head.fields.emplace_back("Strict-Transport-Security", kStrictTransportSecurity);
  if (reply.status != 204) head.fields.emplace_back("Content-Type", reply.type);
  const bool has_cache_control = std::any_of(reply.headers.begin(), reply.headers.end(),
                                             [](const auto& field) { return field.first == "Cache-Control"; });
  if (!has_cache_control) head.fields.emplace_back("Cache-Control", "no-store");
  head.fields.emplace_back("X-Content-Type-Options", "nosniff");
  return to_text(head);
}

bool has_body(const HttpRequest& request) {
  const std::string length = request.header("content-length");
  return request.headers.contains("transfer-encoding") || length.find_first_not_of('0') != std::string::npos;
}

HttpReply unexpected_body_reply() {
  return error_reply(400, "invalid_request", "this path accepts no body",
                     "send no Content-Length and no Transfer-Encoding");
}

bool is_unauthenticated(ConnectionClass connection_class) {
  return connection_class == ConnectionClass::health || connection_class == ConnectionClass::page ||
         connection_class == ConnectionClass::login;
}

// Sends events or blocks of a file to one connection.
class ConnectionEventSink final : public EventSink {
 public:
  ConnectionEventSink(Connection& connection, bool chunked, const std::atomic<bool>& stopping, std::uint32_t write_ms)
      : connection_(connection), chunked_(chunked), stopping_(stopping), write_ms_(write_ms) {}
  std::uint64_t sent_bytes() const { return sent_bytes_; }
  bool send(std::string_view text) override {
    if (text.empty() || !is_open()) return is_open();
    connection_.set_write_timeout(write_ms_);
    sent_bytes_ += text.size();
    return chunked_ ? connection_.write(encode_chunk(text)) : connection_.write(text);
  }
  bool is_open() const override {
    if (stopping_ || connection_.is_broken()) return false;
    return !connection_.is_closed_by_client();
  }

 private:
  Connection& connection_;
  const bool chunked_;
  const std::atomic<bool>& stopping_;
  const std::uint32_t write_ms_;
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace

struct HttpServer::Client {
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

  bool is_peer() const { return connection_class == ConnectionClass::peer && !is_closing && !has_ended; }
};

// Sets a flag of a client during the lifetime of this object.
class HttpServer::ScopedFlag {
 public:
  ScopedFlag(HttpServer& server, bool& flag) : server_(server), flag_(flag) { set(true); }
  ~ScopedFlag() { set(false); }
  ScopedFlag(const ScopedFlag&) = delete;
  ScopedFlag& operator=(const ScopedFlag&) = delete;

 private:
  void set(bool value) {
    const std::lock_guard lock(server_.mutex_);
    flag_ = value;
  }
  HttpServer& server_;
  bool& flag_;
};

// Releases the bytes of a body or an answer at the end of its lifetime.
class HttpServer::ScopedBytes {
 public:
  ScopedBytes(HttpServer& server, Client& client, std::size_t& bytes, ByteQuota& quota)
      : server_(server), client_(client), bytes_(bytes), quota_(quota) {}
  ~ScopedBytes() { server_.release_bytes(client_, bytes_, quota_); }
  ScopedBytes(const ScopedBytes&) = delete;
  ScopedBytes& operator=(const ScopedBytes&) = delete;

 private:
  HttpServer& server_;
  Client& client_;
  std::size_t& bytes_;
  ByteQuota& quota_;
};

Result<std::unique_ptr<HttpServer>> HttpServer::start(const std::string& listen, const ApiLimits& limits,
                                                      std::vector<HttpRoute> routes, AdmissionCheck admit,
                                                      std::shared_ptr<TlsContext> tls) {
  MJ_TRY(address, parse_listen(listen));
  return start(address, limits, std::move(routes), std::move(admit), std::move(tls));
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const ListenAddress& address, const ApiLimits& limits,
                                                      std::vector<HttpRoute> routes, AdmissionCheck admit,
                                                      std::shared_ptr<TlsContext> tls) {
  if (tls) MJ_CHECK(tls->load());
  MJ_TRY(listening, open_listening(address));
  std::unique_ptr<HttpServer> server(
      new HttpServer(std::move(listening), address, limits, std::move(routes), std::move(admit), std::move(tls)));
  MJ_TRY(thread, start_thread([accepting = server.get()] { accepting->accept_loop(); }));
  server->accept_thread_ = std::move(thread);
  return server;
}

HttpServer::HttpServer(ListeningSocket listening, const ListenAddress& address, const ApiLimits& limits,
                       std::vector<HttpRoute> routes, AdmissionCheck admit, std::shared_ptr<TlsContext> tls)
    : listening_(std::move(listening)),
      host_(address.host.empty() ? "127.0.0.1" : address.host),
      limits_(limits),
      routes_(std::move(routes)),
      admit_(std::move(admit)),
      has_tls_(tls != nullptr),
      sends_hsts_(has_tls_ && !address.loopback),
      wake_up_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      pending_(limits.max_pending_connections, limits.head_timeout_ms, request_limits(), std::move(tls)),
      bodies_(kMaxLargeBodies * limits.max_body_bytes, limits.max_body_bytes),
      operator_bodies_(kMaxLargeBodies * limits.max_body_bytes, SIZE_MAX),
      peer_bodies_(kMaxLargePeerBodies * limits.max_peer_body_bytes, SIZE_MAX),
      answers_(kMaxLargeAnswers * limits.max_answer_bytes, limits.max_answer_bytes),
      operator_answers_(kMaxLargeAnswers * limits.max_answer_bytes, SIZE_MAX) {}

HttpServer::~HttpServer() { stop(); }

std::string HttpServer::url() const {
  const bool is_v6 = host_.find(':') != std::string::npos;
  return (has_tls_ ? "https://" : "http://") + (is_v6 ? '[' + host_ + ']' : host_) + ':' +
         std::to_string(listening_.port);
}

std::uint32_t HttpServer::count_connections() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::uint32_t>(clients_.size()) + pending_count_;
}

void HttpServer::stop() {
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

Admission HttpServer::check_request(const HttpRequest& request) const {
  HttpReply reply = check_route(routes_, request.method, request.path);
  if (reply.status >= 400) return {std::move(reply)};
  if (request.headers.contains("content-encoding") || request.header("content-type").starts_with("multipart/form-data"))
    return {not_json_reply()};
  Admission admission = admit_(request);
  const bool accepts_body =
      admission.connection_class != ConnectionClass::health && admission.connection_class != ConnectionClass::page;
  if (admission.refusal.status < 400 && !accepts_body && has_body(request)) return {unexpected_body_reply()};
  return admission;
}

void HttpServer::accept_loop() {
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

void HttpServer::accept_connections() {
  constexpr int kMaxBatch = 64;
  for (int i = 0; i < kMaxBatch; ++i) {
    Fd socket(::accept4(listening_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      const int enable = 1;  // send small events and answers without waiting for acknowledgements
      (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &enable, sizeof enable);
      std::string network = find_counted_network(socket.get());
      pending_.add(std::move(socket), std::move(network));
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      log(LogLevel::warn, "api", "no connection can be taken: {}", errno_text(errno));
      std::this_thread::sleep_for(milliseconds(100));
    }
    return;
  }
}

std::string HttpServer::to_wire_text(const HttpReply& reply) const {
  if (limits_.hides_reasons)
    return format_head({404, "text/plain", {}, {}, {}}, HttpFraming::counted, true, false, sends_hsts_);
  return format_head(reply, HttpFraming::counted, true, false, sends_hsts_) + reply.body;
}

void HttpServer::set_connection_facts(HttpRequest& request, int socket) const {
  request.port = port();
  request.has_tls = has_tls_;
  request.loopback = is_loopback_peer(socket);
  request.network = get_peer_network(socket);
}

std::string HttpServer::find_counted_network(int socket) const {
  return limits_.exempt_loopback && is_loopback_peer(socket) ? std::string() : get_peer_network(socket);
}

void HttpServer::admit_pending(PendingConnections::Connection& pending) {
  if (pending.lacks_tls && limits_.hides_reasons) return;
  if (pending.lacks_tls) {
    const HttpReply reply{400, "text/plain; charset=utf-8", std::string(kTlsRequiredText), {}, {}};
    const std::string head = format_head(reply, HttpFraming::counted, true, false, false);
    return rejected_.reject(std::move(pending.socket), head + reply.body);
  }
  if (pending.error)
    return rejected_.reject(std::move(pending.socket), to_wire_text(bad_request_reply(*pending.error)));
  set_connection_facts(pending.reader.request(), pending.socket.fd());
  const Admission admission = check_request(pending.reader.request());
  if (admission.refusal.status >= 400)
    return rejected_.reject(std::move(pending.socket), to_wire_text(admission.refusal));
  start_connection(std::move(pending), admission);
}

void HttpServer::start_connection(PendingConnections::Connection pending, const Admission& admission) {
  const std::string network = pending.network;
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
  ClientSocket socket = client.connection->release();
  clients_.pop_back();
  rejected_.reject(std::move(socket), to_wire_text(too_many_requests_reply()));
}

bool HttpServer::reserve_slot(ConnectionClass connection_class, std::uint64_t actor, const std::string& network) {
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
  if (connection_class == ConnectionClass::login && !network.empty() && count_logins(network) >= std::max(1U, max / 4))
    return close_connection(find_oldest(connection_class, network));
  return has_capacity || (is_unauthenticated(connection_class) && close_connection(find_oldest(connection_class, "")));
}

std::size_t HttpServer::body_bytes(ConnectionClass connection_class) const {
  return connection_class == ConnectionClass::peer    ? limits_.max_peer_body_bytes
         : connection_class == ConnectionClass::login ? limits_.max_login_body_bytes
                                                      : limits_.max_body_bytes;
}

bool HttpServer::close_peer_connection() {
  auto target = std::find_if(clients_.begin(), clients_.end(),
                             [](const Client& client) { return client.is_peer() && client.signer_key.empty(); });
  return close_connection(target == clients_.end() ? find_longest_idle_peer() : target);
}

bool HttpServer::close_connection(ClientIterator target) {
  constexpr std::ptrdiff_t kMaxClosingConnections = 256;
  const auto closing_count =
      std::count_if(clients_.begin(), clients_.end(), [](const Client& client) { return client.is_closing; });
  if (target == clients_.end() || closing_count >= kMaxClosingConnections) return false;
  target->is_closing = true;
  ::shutdown(target->connection->fd(), SHUT_RDWR);
  return true;
}

HttpServer::ClientIterator HttpServer::find_oldest(ConnectionClass connection_class, const std::string& network) {
  return std::find_if(clients_.begin(), clients_.end(), [&](const Client& client) {
    return client.connection_class == connection_class && !client.is_closing && !client.has_ended &&
           (client.is_receiving_body || client.is_writing) && (network.empty() || client.network == network);
  });
}

std::uint32_t HttpServer::count_logins(const std::string& network) const {
  return static_cast<std::uint32_t>(std::count_if(clients_.begin(), clients_.end(), [&](const Client& client) {
    return client.connection_class == ConnectionClass::login && client.network == network && !client.is_closing;
  }));
}

bool HttpServer::has_used_share(std::uint64_t actor, std::uint32_t max) const {
  const auto count = std::count_if(clients_.begin(), clients_.end(), [actor](const Client& client) {
    return client.connection_class == ConnectionClass::token && client.actor == actor && !client.is_closing;
  });
  return actor != 0 && count >= std::max(1U, max / 4);
}

HttpServer::ClientIterator HttpServer::find_waiting(std::uint64_t actor, WaitFilter filter) {
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

HttpServer::ClientIterator HttpServer::find_waiting_of_largest_actor(std::uint64_t actor) {
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

HttpServer::ClientIterator HttpServer::find_longest_idle_peer() {
  auto result = clients_.end();
  for (auto it = clients_.begin(); it != clients_.end(); ++it) {
    if (!it->is_peer() || !it->is_idle) continue;
    if (result == clients_.end() || it->last_request_at < result->last_request_at) result = it;
  }
  return result;
}

void HttpServer::record_signature(Client& client, const std::string& key) {
  const std::lock_guard lock(mutex_);
  client.signer_key = key;
  client.signature_number = ++signature_count_;
  std::uint32_t count = 0;
  Client* oldest = &client;
  for (Client& peer : clients_) {
    if (!peer.is_peer() || peer.signer_key != key) continue;
    ++count;
    if (peer.signature_number < oldest->signature_number) oldest = &peer;
  }
  if (count > std::max(1U, limits_.max_peer_connections / 4)) oldest->signer_key.clear();
}

bool HttpServer::has_signature(const Client& client) const {
  const std::lock_guard lock(mutex_);
  return !client.signer_key.empty();
}

void HttpServer::set_idle(Client& client, bool is_idle) {
  const std::lock_guard lock(mutex_);
  client.is_idle = is_idle;
  if (!is_idle) client.last_request_at = std::chrono::steady_clock::now();
}

void HttpServer::serve_connection(Client& client) {
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

bool HttpServer::read_next_head(Client& client) {
  Connection& connection = *client.connection;
  RequestReader& reader = client.reader;
  connection.set_read_timeout(limits_.head_timeout_ms);
  const auto head_complete = connection.read_head(reader);
  if (head_complete && !*head_complete) return false;
  HttpReply refusal = head_complete ? HttpReply() : bad_request_reply(head_complete.error());
  if (head_complete) {
    set_connection_facts(reader.request(), connection.fd());
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

bool HttpServer::reclassify(Client& client, const Admission& admission) {
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

bool HttpServer::handle_request(Client& client) {
  Connection& connection = *client.connection;
  RequestReader& reader = client.reader;
  connection.set_body_timeouts(
      client.request_class == ConnectionClass::login ? limits_.head_timeout_ms : limits_.body_timeout_ms,
      limits_.body_part_timeout_ms);
  connection.set_write_timeout(limits_.write_timeout_ms);
  const HttpReply reply = make_reply(client);
  if (!reply.signer_key.empty()) record_signature(client, reply.signer_key);
  // The body is no longer counted, so a client that reads the answer slowly must not keep it in memory.
  reader.request().body = {};
  const bool keep_alive = reply.status < 400 && !is_unauthenticated(client.connection_class) && reader.is_complete() &&
                          reader.is_keep_alive() && !stopping_;
  connection.set_write_timeout(limits_.write_timeout_ms);
  const bool head_only = reader.request().method == "HEAD";
  if (reply.stream && !head_only) return stream(client, reply, keep_alive);
  std::string text = format_head(reply, HttpFraming::counted, reader.is_http_1_1(), keep_alive, sends_hsts_);
  const ScopedFlag writing_flag(*this, client.is_writing);
  if (head_only) return connection.write(text) && keep_alive;
  const bool is_small = reply.body.size() <= kMaxUncountedBytes;
  if (!is_small) reserve_answer(client, reply.body.size());
  const ScopedBytes answer_bytes(*this, client, client.answer_bytes, select_answers(client.request_class));
  if (is_small) text += reply.body;
  const bool sent = connection.write(text) && (is_small || connection.write(reply.body));
  if (sent && !reader.is_complete()) connection.finish();
  return sent && keep_alive;
}

HttpReply HttpServer::make_reply(Client& client) {
  RequestReader& reader = client.reader;
  HttpRequest& request = reader.request();
  try {
    request.readmit = [this, &client](const Admission& admission) { return reclassify(client, admission); };
    const std::string method = request.method == "HEAD" ? "GET" : request.method;
    const auto route = std::find_if(routes_.begin(), routes_.end(), [&](const HttpRoute& entry) {
      return entry.path == request.path && entry.method == method;
    });
    if (route->open_body) return receive_body(client, *route);
    const ScopedBytes counted_bytes(*this, client, client.body_bytes, select_bodies(client.request_class));
    const auto body_complete = [&] {
      const ScopedFlag receiving_flag(*this, client.is_receiving_body);
      return client.connection->read_body(
          reader, [&](std::size_t length) { return length <= kMaxUncountedBytes || reserve_body(client, length); });
    }();
    if (!body_complete) return body_error_reply(body_complete.error());
    if (!*body_complete) return error_reply(400, "invalid_request", "the body ends too early", "send all of it");
    request.report_wait = [this, &client](bool is_waiting) {
      return set_waiting(client, is_waiting) && !(is_waiting && client.connection->is_closed_by_client());
    };
    return route->handler(request);  // check_request() has checked that the route exists
  } catch (const std::exception&) {
    log(LogLevel::error, "api", "{} {} failed inside the server", request.method, request.path);
    return HttpReply{500, "text/plain", {}, {}, {}};
  }
}

HttpReply HttpServer::receive_body(Client& client, const HttpRoute& route) {
  RequestReader& reader = client.reader;
  BodyStream stream = route.open_body(reader.request());
  if (!stream.receiver) return std::move(stream.refusal);
  reader.limit_body(static_cast<std::size_t>(stream.max_bytes + stream.max_bytes / 64));  // with the framing of chunks
  client.connection->set_body_timeouts(stream.timeout_ms, limits_.body_part_timeout_ms);
  const ScopedFlag receiving_flag(*this, client.is_receiving_body);
  std::optional<Error> write_error;
  const auto is_complete = client.connection->read_body_parts(reader, [&](std::string_view part) -> Result<void> {
    auto written = stream.receiver->write(part);
    if (!written) write_error = written.error();
    return written;
  });
  // The rest of a body that is refused is not awaited for longer than that of other requests.
  client.connection->set_body_timeouts(limits_.body_timeout_ms, limits_.body_part_timeout_ms);
  if (write_error) return stream.receiver->write_error_reply(*write_error);
  if (!is_complete) return body_error_reply(is_complete.error());
  if (!*is_complete)
    return error_reply(400, "invalid_request", "the body ends too early or arrives too slowly", "send all of it again");
  return stream.receiver->finish();
}

bool HttpServer::set_waiting(Client& client, bool is_waiting) {
  const std::lock_guard lock(mutex_);
  client.is_waiting = is_waiting;
  return !client.is_closing;
}

ByteQuota& HttpServer::select_bodies(ConnectionClass request_class) {
  return request_class == ConnectionClass::peer        ? peer_bodies_
         : request_class == ConnectionClass::operators ? operator_bodies_
                                                       : bodies_;
}

ByteQuota& HttpServer::select_answers(ConnectionClass request_class) {
  return request_class == ConnectionClass::operators ? operator_answers_ : answers_;
}

void HttpServer::release_bytes(Client& client, std::size_t& bytes, ByteQuota& quota) {
  const std::lock_guard lock(mutex_);
  if (bytes == 0) return;
  quota.remove(client.request_actor, std::exchange(bytes, 0));
  ++release_count_;
  bytes_released_.notify_all();
}

bool HttpServer::reserve_body(Client& client, std::size_t length) {
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

HttpServer::ClientIterator HttpServer::find_largest_body(const Client& client, std::size_t added_bytes) {
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

void HttpServer::reserve_answer(Client& client, std::size_t length) {
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

HttpServer::ClientIterator HttpServer::find_oldest_answer(const ByteQuota& quota, std::uint64_t actor) {
  auto result = clients_.end();
  for (auto it = clients_.begin(); it != clients_.end(); ++it) {
    if (it->answer_bytes == 0 || it->is_closing || it->request_actor != actor ||
        &select_answers(it->request_class) != &quota)
      continue;
    if (result == clients_.end() || it->answer_started_at < result->answer_started_at) result = it;
  }
  return result;
}

HttpServer::ClientIterator HttpServer::find_oldest_answer(const ByteQuota& quota) {
  std::map<std::uint64_t, std::size_t> sums;
  for (const Client& client : clients_) {
    if (!client.is_closing && &select_answers(client.request_class) == &quota)
      sums[client.request_actor] += client.answer_bytes;
  }
  const auto max = std::max_element(sums.begin(), sums.end(),
                                    [](const auto& left, const auto& right) { return left.second < right.second; });
  return max == sums.end() ? clients_.end() : find_oldest_answer(quota, max->first);
}

bool HttpServer::close_and_wait(std::unique_lock<std::mutex>& lock, ClientIterator target) {
  if (!close_connection(target)) return false;
  bytes_released_.wait_for(lock, kReleaseTimeout, [this, before = release_count_] { return release_count_ != before; });
  return true;
}

bool HttpServer::stream(Client& client, const HttpReply& reply, bool keep_alive) {
  Connection& connection = *client.connection;
  const RequestReader& reader = client.reader;
  const bool counted = reply.stream_bytes.has_value(), chunked = !counted && reader.is_http_1_1();
  const auto framing = counted ? HttpFraming::counted : chunked ? HttpFraming::chunked : HttpFraming::until_closed;
  const bool can_continue = keep_alive && (counted || chunked);
  if (!connection.write(format_head(reply, framing, reader.is_http_1_1(), can_continue, sends_hsts_))) return false;
  const ScopedFlag waiting_flag(*this, client.is_waiting);
  ConnectionEventSink sink(connection, chunked, stopping_,
                           counted ? limits_.write_timeout_ms : limits_.event_write_timeout_ms);
  try {
    reply.stream(sink);
  } catch (const std::exception&) {
    log(LogLevel::error, "api", "a stream of {} failed inside the server", reader.request().path);
    return false;
  }
  if (counted) return sink.sent_bytes() == *reply.stream_bytes && sink.is_open() && keep_alive;
  return sink.is_open() && chunked && connection.write(encode_chunk({})) && keep_alive;
}

void HttpServer::reap() {
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

}  // namespace mycojobs::api
