// HTTP/1.1, as far as an API on a trusted machine needs it: a table of paths, whole bodies, event streams. Requests are
// parsed by Boost.Beast (domain/http_wire.h); sockets, deadlines and limits are ours.
//
//   connection: --header_ms, in the lobby--> head -> admitted: a thread --body_ms--> body -> handler --write_ms-->
//   answer
//               --idle_ms--> next head ...
//
// Threads: one accepts and reads first heads (lobby.h), each admitted connection has one; handlers are called from
// these.
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
  std::uint16_t port = 0;                      // that the server listens on
  std::string network = {};                    // the peer's address; of IPv6 its first 64 bits
  bool proven = false;                         // on this connection a peer has shown who it is
  // A call reports that it begins or ends to wait, for example for the end of a job. While it waits, its connection may
  // be closed in favour of another client. Returns false if that has happened; the call must then end. Null: a request
  // without a server.
  std::function<bool(bool waits)> note_wait = {};
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
  std::string proven = {};                 // a peer has shown who it is: its connection is kept before others
};

struct HttpRoute {
  std::string method, path;
  std::function<HttpReply(const HttpRequest&)> run;
};

// Class of a connection, by the head of its latest request. Connections are counted for each class.
enum class Standing {
  // The first three need no token. They have few places and one request each. A new connection replaces the oldest
  // connection whose request is incomplete or whose answer is not read.
  open,       // health, without a body
  page,       // files of the page, without a body: a browser asks for several at a time
  login,      // clients without a token; a network has a quarter of the places
  anonymous,  // loopback in `dev`
  token,      // an actor has a quarter of these at most
  operators,  // callers with an operator's token
  peer,  // supervisors of other hosts, which sign their requests: a new connection replaces the oldest one without a
         // valid signature, else the one that is silent longest; a supervisor has at most a quarter of the places
};
struct Admission {
  HttpReply refusal = {};  // a status of 400 or more refuses it
  Standing standing = Standing::anonymous;
  std::uint64_t actor = 0;  // actor whose share of connections and large bodies is used; 0: none
  // Answers the request if all places of the class are taken. Called in the accepting thread, so it must not block.
  // Null: status 503.
  std::function<HttpReply()> when_full = {};
};
using Admit = std::function<Admission(const HttpRequest&)>;

class HttpServer {
 public:
  // admit: looks at a request before it has a thread and before its body is read. Any thread.
  static Result<std::unique_ptr<HttpServer>> start(const std::string& listen, const ApiLimits&, std::vector<HttpRoute>,
                                                   Admit);
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
// Browsers name where a page came from. No page of another origin has business here; ours is of this server and port.
bool is_from_web_page(const HttpRequest&);
bool is_from_other_page(const HttpRequest&);
HttpReply web_page_refused();
// Whether its header Host names this machine by a loopback name: the name of another host leads here too, if whoever
// has that name says so.
bool names_loopback(const HttpRequest&);
bool names_this_host(const HttpRequest&);  // by the name that the machine has
HttpReply other_host_refused(const std::string& remedy);
HttpReply busy();                     // for a connection that is one too many
HttpReply no_json();                  // 415: a form, or a body that is compressed
HttpReply malformed(const Error&);    // 400 or 431: what is no request
HttpReply refuse_body(const Error&);  // 413 or 503, or 400: what is no body

}  // namespace mycojobs::api
