// Here and in http_stream.h alone cpp-httplib is known: it reads heads and bodies and writes answers, over connections
// of ours.
#include "api/http.h"

#include <httplib.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <list>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "api/body_share.h"
#include "api/http_stream.h"
#include "api/lobby.h"
#include "api/refusals.h"
#include "api/request_head.h"
#include "api/rpc.h"
#include "api/socket.h"
#include "base/errno_text.h"
#include "base/log.h"
#include "domain/codec.h"

namespace mycojobs::api {

namespace {

using std::chrono::milliseconds;

constexpr std::size_t kLargeBodies = 3;  // of the greatest length, at one time

struct Client {
  Standing standing = Standing::open;
  std::thread thread;
  std::unique_ptr<Connection> connection;
  bool done = false;
};

class Server final : public HttpServer, private httplib::Server {
 public:
  Server(Listening listening, std::string host, ApiLimits limits, std::vector<HttpRoute> routes, Admit admit)
      : listening_(std::move(listening)),
        host_(std::move(host)),
        limits_(limits),
        routes_(std::move(routes)),
        admit_(std::move(admit)),
        event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        lobby_(limits.lobby, limits.header_bytes, limits.header_ms) {
    svr_sock_ = listening_.socket.get();  // without it the library takes itself for stopped
    set_payload_max_length(limits_.body_bytes);
    set_default_headers({{"Cache-Control", "no-store"}, {"X-Content-Type-Options", "nosniff"}});
    set_pre_routing_handler([this](const auto& from, auto& to) { return admit_or_refuse(from, to); });
    set_exception_handler([](const auto& from, auto& to, std::exception_ptr) {
      log(LogLevel::error, "api", "{} {} failed inside the server", from.method, from.path);
      to.status = 500;
    });
    set_logger([](const auto&, const auto& reply) { status_ = reply.status; });
    for (const HttpRoute& route : routes_) add(route);
    thread_ = std::thread([this] { accept_loop(); });
  }
  ~Server() override { Server::stop(); }

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
    svr_sock_ = INVALID_SOCKET;
    const std::uint64_t one = 1;
    (void)!::write(event_.get(), &one, sizeof one);
    thread_.join();
    const auto none_runs = [this] {
      reap();
      return clients_.empty();
    };
    std::unique_lock lock(mutex_);
    for (Client& client : clients_) {
      if (!client.done) ::shutdown(client.connection->fd(), SHUT_RD);  // what is being answered is answered
    }
    ended_.wait(lock, none_runs);
  }

 private:
  void add(const HttpRoute& route) {
    std::string pattern = route.path;  // no character of it but '.' means anything to a pattern
    if (const auto dot = pattern.find('.'); dot != std::string::npos) pattern.insert(dot, "\\");
    if (route.method == "POST") {
      Post(pattern, [this, &route](const httplib::Request& from, httplib::Response& to,
                                   const httplib::ContentReader& content) { with_body(route, from, to, content); });
    } else {
      Get(pattern, [this, &route](const httplib::Request& from, httplib::Response& to) {
        give(route.run(request_of(from, connection_->fd())), to);
      });
    }
  }

  void with_body(const HttpRoute& route, const httplib::Request& from, httplib::Response& to,
                 const httplib::ContentReader& content) {
    HttpRequest request = request_of(from, connection_->fd());
    bool large = false, crowded = false;
    BodyShare share(bodies_held_, kLargeBodies * limits_.body_bytes);
    const bool whole = content([&](const char* data, std::size_t size) {
      large = request.body.size() + size > limits_.body_bytes;
      crowded = !large && !share.grow(request.body.size() + size);
      if (!large && !crowded) request.body.append(data, size);
      return !large && !crowded;
    });
    if (crowded) {
      return give(refuse(503, "unavailable", "too many large bodies are being read", "call again in a moment"), to);
    }
    if (large || to.status == 413) {
      return give(refuse(413, "too_large", "the body is over " + std::to_string(limits_.body_bytes) + " bytes",
                         "send less at one time"),
                  to);
    }
    if (connection_->misframed()) return give(malformed({Code::invalid, "the body is not chunked as it says"}), to);
    if (!whole) return give(refuse(400, "invalid_request", "the body ends too early", "send all of it"), to);
    give(route.run(request), to);
  }

  httplib::Server::HandlerResponse admit_or_refuse(const httplib::Request& from, httplib::Response& to) {
    Admission admission = look_at(request_of(from, connection_->fd()));
    if (admission.refusal.status >= 400) return handle(std::move(admission.refusal), to);
    if (from.is_multipart_form_data()) return handle(no_json(), to);
    return httplib::Server::HandlerResponse::Unhandled;
  }
  Admission look_at(const HttpRequest& from) const {
    HttpReply reply = refuse_route(routes_, from.method, from.path);
    if (reply.status >= 400) return {std::move(reply)};
    if (from.headers.contains("content-encoding")) return {no_json()};
    return admit_(from);
  }
  HandlerResponse handle(HttpReply reply, httplib::Response& to) {
    give(std::move(reply), to);
    return HandlerResponse::Handled;
  }

  void give(HttpReply reply, httplib::Response& to) {
    to.status = reply.status;
    for (const auto& [name, value] : reply.headers) to.set_header(name, value);
    if (!reply.stream) {
      if (!reply.body.empty()) to.set_content(std::move(reply.body), reply.type.c_str());
      return;
    }
    to.set_chunked_content_provider(reply.type.c_str(),
                                    [this, run = std::move(reply.stream)](std::size_t, httplib::DataSink& sink) {
                                      Sink events(sink, *connection_, stopping_, limits_.event_write_ms);
                                      run(events);
                                      if (events.open()) sink.done();
                                      return false;
                                    });
  }

  void accept_loop() {
    std::vector<pollfd> entries;
    while (!stopping_) {
      entries.assign({{listening_.socket.get(), POLLIN, 0}, {event_.get(), POLLIN, 0}});
      lobby_.add_to(entries);
      const int soon = refused_.empty() ? -1 : 200, due = lobby_.timeout_ms();
      (void)::poll(entries.data(), entries.size(), soon < 0 ? due : due < 0 ? soon : std::min(soon, due));
      refused_.close_old();
      {
        const std::lock_guard lock(mutex_);
        reap();
      }
      if (stopping_) break;
      for (Lobby::Guest& guest : lobby_.look(entries.data() + 2)) arrive(guest);
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
        lobby_.enter(std::move(socket));
        continue;
      }
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        log(LogLevel::warn, "api", "no connection can be taken: {}", errno_text(errno));
        std::this_thread::sleep_for(milliseconds(100));
      }
      return;
    }
  }

  // Its first head is there, or never will be.
  void arrive(Lobby::Guest& guest) {
    auto head = guest.head ? read_head(std::string_view(guest.bytes).substr(0, *guest.head))
                           : Result<RequestHead>(tl::unexpected<Error>(guest.head.error()));
    if (!head) return refused_.refuse(std::move(guest.socket), wire_text(malformed(head.error())));
    head->request.loopback = is_loopback_peer(guest.socket.get());
    const Admission admission = look_at(head->request);
    if (admission.refusal.status >= 400) return refused_.refuse(std::move(guest.socket), wire_text(admission.refusal));
    take(std::move(guest), admission.standing);
  }

  void take(Lobby::Guest guest, Standing standing) {
    const std::lock_guard lock(mutex_);
    const auto count = std::count_if(clients_.begin(), clients_.end(),
                                     [&](const Client& client) { return client.standing == standing; });
    const std::uint32_t most = standing == Standing::open ? limits_.open : limits_.connections;
    if (count >= most) return refused_.refuse(std::move(guest.socket), wire_text(busy()));
    Client& client = clients_.emplace_back();
    client.standing = standing;
    client.connection = std::make_unique<Connection>(std::move(guest.socket), std::move(guest.bytes));
    try {
      client.thread = std::thread([this, &client] { converse(client); });
    } catch (const std::system_error&) {
      Fd back(::dup(client.connection->fd()));
      clients_.pop_back();
      refused_.refuse(std::move(back), wire_text(busy()));
    }
  }

  void converse(Client& client) {
    Connection& connection = *client.connection;
    connection_ = &connection;
    connection.expect(limits_.header_ms, limits_.header_bytes);
    while (!stopping_ && connection.wait_for_byte() && one_request(connection) && client.standing != Standing::open) {
      connection.expect(limits_.idle_ms, limits_.header_bytes);
    }
    const std::lock_guard lock(mutex_);
    connection.close();
    client.done = true;
    ended_.notify_all();
    const std::uint64_t one = 1;
    (void)!::write(event_.get(), &one, sizeof one);
  }

  // The next head, if it is one: httplib reads it less strictly.
  std::optional<RequestHead> next_head(Connection& connection) {
    const auto length = connection.wait_for_head();
    if (length && *length == 0) return std::nullopt;
    auto head = length ? read_head(connection.ahead().substr(0, *length))
                       : Result<RequestHead>(tl::unexpected<Error>(length.error()));
    if (head) return std::move(*head);
    if (head.error().code == Code::unavailable) return std::nullopt;
    const std::string text = wire_text(malformed(head.error()));
    connection.allow(limits_.write_ms);
    (void)connection.write(text.data(), text.size());
    return std::nullopt;
  }

  // True: another one may follow on this connection.
  bool one_request(Connection& connection) {
    connection.expect(limits_.header_ms, limits_.header_bytes);
    const auto head = next_head(connection);
    if (!head) return false;
    ConnectionStream stream(connection, stopping_, limits_.write_ms);
    bool closed = false;
    status_ = 0;
    bool last = false;
    const bool done = process_request(stream, stopping_, closed, [&](httplib::Request& request) {
      connection.expect(limits_.body_ms, limits_.body_bytes + limits_.header_bytes);
      if (head->chunked) connection.watch_chunks();
      // A body that nobody reads would be taken for the next request.
      last = request.method != "POST" && (request.has_header("Content-Length") || head->chunked);
      request.headers.erase("Accept-Encoding");
      request.ranges.clear();
    });
    return done && !closed && !last && status_ < 400 && !connection.broken() && !connection.misframed() && !stopping_;
  }

  // With the lock held.
  void reap() {
    std::uint64_t count = 0;
    (void)!::read(event_.get(), &count, sizeof count);
    for (auto client = clients_.begin(); client != clients_.end();) {
      if (!client->done) {
        ++client;
        continue;
      }
      client->thread.join();  // it has nothing left to do but to return
      client = clients_.erase(client);
    }
  }

  static thread_local Connection* connection_;  // of this thread
  static thread_local int status_;              // of its latest answer
  Listening listening_;
  std::string host_;
  ApiLimits limits_;
  std::vector<HttpRoute> routes_;
  Admit admit_;
  Fd event_;
  Lobby lobby_;                            // of the accepting thread
  std::atomic<std::uint32_t> waiting_{0};  // in it
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::atomic<std::size_t> bodies_held_{0};
  std::list<Client> clients_;
  Refusals refused_;  // of the accepting thread
  std::thread thread_;
};

thread_local Connection* Server::connection_ = nullptr;
thread_local int Server::status_ = 0;

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(const std::string& listen, const ApiLimits& limits,
                                                      std::vector<HttpRoute> routes, Admit admit) {
  MJ_TRY(address, parse_listen(listen));
  MJ_TRY(listening, open_listening(address));
  return std::make_unique<Server>(std::move(listening), address.host.empty() ? "127.0.0.1" : address.host, limits,
                                  std::move(routes), std::move(admit));
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
HttpReply web_page_refused() {
  return refuse(403, "denied", "calls of web pages are refused", "call from a program, without the header Origin");
}

HttpReply refuse_route(const std::vector<HttpRoute>& routes, const std::string& method, const std::string& path) {
  bool path_known = false, known = false;
  std::string remedy;
  for (const HttpRoute& route : routes) {
    remedy += (remedy.empty() ? "" : ", ") + route.method + ' ' + route.path;
    path_known = path_known || route.path == path;
    known = known || (route.path == path && route.method == (method == "HEAD" ? "GET" : method));
  }
  if (!path_known) return refuse(404, "not_found", "there is nothing at this path", remedy);
  if (!known) return refuse(405, "invalid_request", "this path does not take " + method.substr(0, 16), remedy);
  return {};
}

std::string wire_text(const HttpReply& reply) {
  std::string text = "HTTP/1.1 " + std::to_string(reply.status) + " Refused\r\nContent-Type: " + reply.type;
  for (const auto& [name, value] : reply.headers) text += "\r\n" + name + ": " + value;
  return text +
         "\r\nCache-Control: no-store\r\nConnection: close\r\nContent-Length: " + std::to_string(reply.body.size()) +
         "\r\n\r\n" + reply.body;
}

HttpReply no_json() {
  return refuse(415, "invalid_request", "the body must be JSON as it is", "send no form and no compressed body");
}

HttpReply malformed(const Error& error) {
  if (error.code == Code::too_large) return refuse(431, "too_large", error.message, "send shorter headers");
  return refuse(400, "invalid_request", error.message, "send HTTP/1.1 as RFC 9112 has it");
}

HttpReply busy() {
  HttpReply reply = refuse(503, "unavailable", "too many connections are open", "call again in a moment");
  reply.headers.emplace_back("Retry-After", "1");
  return reply;
}

}  // namespace mycojobs::api
