// HTTP/1.1, as far as an API on a trusted machine needs it: a table of paths, whole bodies, event streams. Framing is
// cpp-httplib's; sockets, deadlines and limits are ours, because its own wait for as long as a client sends something.
//
//   connection: first byte --header_ms--> head --body_ms--> body -> handler --write_ms--> answer --idle_ms--> next
//
// Threads: one accepts, each connection has one; the handlers are called from these.
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
#include "mycojobs/result.h"

namespace mycojobs::api {

struct HttpRequest {
  std::string method, path, body;
  std::map<std::string, std::string> query;    // the first of each name
  std::map<std::string, std::string> headers;  // names in lower case; the first of each
  bool loopback = false;                       // the peer's address is one
  // The header's value; empty: none.
  std::string header(const std::string& lower_case_name) const;
};

// The client's end of an event stream.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual bool send(std::string_view text) = 0;  // false: the client is gone, too slow, or we are stopping
  virtual bool open() const = 0;
};

struct HttpReply {
  int status = 200;
  std::string type = "application/json", body;
  std::vector<std::pair<std::string, std::string>> headers;
  std::function<void(EventSink&)> stream;  // instead of a body: writes events until it returns
};

struct HttpRoute {
  std::string method, path;
  std::function<HttpReply(const HttpRequest&)> run;
};

class HttpServer {
 public:
  // admit: looks at a request before its body is read; a reply with a status of 400 or more refuses it.
  static Result<std::unique_ptr<HttpServer>> start(const std::string& listen, const ApiLimits&, std::vector<HttpRoute>,
                                                   std::function<HttpReply(const HttpRequest&)> admit);
  virtual ~HttpServer() = default;
  virtual std::uint16_t port() const = 0;
  virtual std::string url() const = 0;
  virtual void stop() = 0;
  virtual std::uint32_t connections() const = 0;
};

struct ListenAddress {
  std::string host;
  std::uint16_t port = 0;
  bool loopback = false;
};
// "127.0.0.1:9652", "[::1]:9652", "localhost:9652", ":9652" is every address. Error invalid names the remedy.
Result<ListenAddress> parse_listen(const std::string& text);
// {"error": {...}} as JSON-RPC has it, for what is refused before it is a call.
HttpReply refuse(int status, const std::string& word, const std::string& message, const std::string& remedy);
// 404 or 405, if there is no such route; else an empty reply.
HttpReply refuse_route(const std::vector<HttpRoute>&, const std::string& method, const std::string& path);
std::string busy_text();  // what a connection gets that is one too many: 503, head and body

}  // namespace mycojobs::api
