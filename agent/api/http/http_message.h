// Requests and replies of the HTTP server as handlers use them, and the replies that refuse a request.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace mycojobs::api {

struct Admission;  // api/http/http_server.h

struct HttpRequest {
  std::string method, path, body;
  std::map<std::string, std::string> query;    // the first value of each name
  std::map<std::string, std::string> headers;  // names in lower case; the first value of each name
  bool loopback = false;                       // the peer has a loopback address
  bool has_tls = false;                        // the request was sent to this server with TLS
  std::uint16_t port = 0;                      // port of the server
  std::string network = {};                    // the peer's IPv4 address, or the first 64 bits of its IPv6 address
  bool has_signed_before = false;              // an earlier request of this connection had a valid signature
  // Reports that the handler starts or stops waiting, for example for the end of a job. While the handler waits, the
  // server may close the connection in favour of another client. Returns false if the connection was closed; the
  // handler must then return. Null if the request does not belong to a server.
  std::function<bool(bool is_waiting)> report_wait = {};
  // Counts the connection to another class after the handler has authenticated its client. Returns false if the limits
  // do not allow the change; the handler must then refuse the request. Null if the request does not belong to a server.
  std::function<bool(const Admission&)> readmit = {};
  // Returns the value of a header, or an empty text if the request does not have it.
  std::string header(const std::string& lower_case_name) const;
  // Returns the value of a parameter of the query, or an empty text if the query does not have it.
  std::string parameter(const std::string& name) const;
};

// Sends events, or the blocks of a file, to one client.
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
  // Number of bytes that `stream` sends, for the header Content-Length. If the stream sends another number, the
  // connection is closed, so that the client detects it. No value: the length is unknown.
  std::optional<std::uint64_t> stream_bytes = {};
  std::string signer_key = {};  // key of the peer that signed the request; protects its connection from being closed
};

// Receives the body of a request in parts, so that a large body is not held in memory.
class BodyReceiver {
 public:
  virtual ~BodyReceiver() = default;
  // After an error the rest of the body is not read, and write_error_reply() makes the answer.
  virtual Result<void> write(std::string_view bytes) = 0;
  virtual HttpReply write_error_reply(const Error&) = 0;
  // Called after the last byte of a complete body.
  virtual HttpReply finish() = 0;
};
struct BodyStream {
  std::unique_ptr<BodyReceiver> receiver = {};
  HttpReply refusal = {};        // sent if `receiver` is null
  std::uint64_t max_bytes = 0;   // maximum size of the body
  std::uint32_t timeout_ms = 0;  // for the complete body, instead of ApiLimits::body_timeout_ms
};

struct HttpRoute {
  std::string method, path;
  std::function<HttpReply(const HttpRequest&)> handler;
  // If set, it is called instead of the handler, before the body is read. The body is received in parts then.
  std::function<BodyStream(const HttpRequest&)> open_body = {};
};

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
