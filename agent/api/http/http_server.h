// An HTTP/1.1 server with a table of paths, for complete bodies and event streams. Boost.Beast parses the requests
// (net/http_wire.h); this module implements sockets, deadlines and limits. The limits are those of ApiLimits.
//
//   accept -> first head -> admission -> body -> handler -> answer -> next head ...
//     |  pending         |   each admitted connection has a thread of its own
//
// Deadlines: ApiLimits::head_timeout_ms for a head, body_timeout_ms for a body, write_timeout_ms for an answer, and
// idle_timeout_ms until the next request begins.
//
// Threads: one thread accepts connections and reads their first heads (pending_connections.h). Handlers run in the
// threads of the connections.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/server.h"
#include "base/result.h"

namespace mycojobs::api {

struct HttpRequest {
  std::string method, path, body;
  std::map<std::string, std::string> query;    // the first value of each name
  std::map<std::string, std::string> headers;  // names in lower case; the first value of each name
  bool loopback = false;                       // the peer has a loopback address
  std::uint16_t port = 0;                      // port of the server
  std::string network = {};                    // the peer's IPv4 address, or the first 64 bits of its IPv6 address
  bool has_signed_before = false;              // an earlier request of this connection had a valid signature
  // Reports that the handler starts or stops waiting, for example for the end of a job. While the handler waits, the
  // server may close the connection in favour of another client. Returns false if the connection was closed; the
  // handler must then return. Null if the request does not belong to a server.
  std::function<bool(bool is_waiting)> report_wait = {};
  // Returns the value of a header, or an empty text if the request does not have it.
  std::string header(const std::string& lower_case_name) const;
};

// Sends events to one client.
class EventSink {
 public:
  virtual ~EventSink() = default;
  // Returns false if the client has closed the connection or reads too slowly, or if the server stops.
  virtual bool send(std::string_view text) = 0;
  virtual bool is_open() const = 0;
};

struct HttpReply {
  int status = 200;
  std::string type = "application/json", body;
  std::vector<std::pair<std::string, std::string>> headers;
  std::function<void(EventSink&)> stream;  // replaces the body: sends events until it returns
  std::string signer_key = {};  // key of the peer that signed the request; protects its connection from being closed
};

struct HttpRoute {
  std::string method, path;
  std::function<HttpReply(const HttpRequest&)> handler;
};

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
  // the connection has a thread. It is called by any thread. Errors: those of parse_listen() and open_listening().
  static Result<std::unique_ptr<HttpServer>> start(const std::string& listen, const ApiLimits&, std::vector<HttpRoute>,
                                                   AdmissionCheck);
  virtual ~HttpServer() = default;
  virtual std::uint16_t port() const = 0;
  virtual std::string url() const = 0;
  virtual void stop() = 0;  // waits until running handlers have answered
  virtual std::uint32_t count_connections() const = 0;
};

struct ListenAddress {
  std::string host;
  std::uint16_t port = 0;
  bool loopback = false;
};
// Parses "127.0.0.1:9652", "[::1]:9652", "localhost:9652" or ":9652" (all addresses). Error: invalid, with the remedy.
Result<ListenAddress> parse_listen(const std::string& text);
// Returns a JSON-RPC error, {"error": {...}}, for a request that is refused before a method is called.
HttpReply error_reply(int status, const std::string& error_code, const std::string& message, const std::string& remedy);
// Returns a reply with status 404 or 405 if there is no such route; else a reply with status 200.
HttpReply check_route(const std::vector<HttpRoute>&, const std::string& method, const std::string& path);
// Returns whether a web page in a browser sent the request. Such requests may be refused, because a page could
// otherwise use the browser's access to this server.
bool is_from_web_page(const HttpRequest&);
// Returns whether a web page of another origin than this server sent the request.
bool is_cross_origin(const HttpRequest&);
HttpReply web_page_refused_reply();
// Returns whether the header Host is a loopback name or address. Another name can resolve to a loopback address, since
// its owner controls its DNS records (DNS rebinding).
bool is_loopback_name(const HttpRequest&);
// Returns whether the header Host is the host name of this machine.
bool has_own_host_name(const HttpRequest&);
HttpReply other_host_refused_reply(const std::string& remedy);
HttpReply too_many_requests_reply();        // 503: too many connections
HttpReply not_json_reply();                 // 415: a form or a compressed body
HttpReply bad_request_reply(const Error&);  // 400 or 431: an invalid head
HttpReply body_error_reply(const Error&);   // 413 (too large), 503 (too many large bodies) or 400 (invalid)

}  // namespace mycojobs::api
