// HTTP/1.1 on the wire: requests are read, and heads of answers written, by Boost.Beast, which wire.cpp alone knows.
// Above its parser stand rules of ours, because it reads more kindly than RFC 9112 asks for: what two readers could
// take for two things is refused.
//
//   METHOD SP /target SP HTTP/1.x CRLF  (name ":" value CRLF)*  CRLF  body
//
// Refused: a line that ends without CR LF or goes on in the next one, a target that is no path, a Content-Length of
// anything but digits, any coding but chunked, chunks in HTTP/1.0, trailers, Host, Origin, Authorization or a length
// told twice. Of one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "api/body_share.h"
#include "api/http.h"

namespace mycojobs::api {

struct RequestLimits {
  std::size_t head_bytes = 0, body_bytes = 0;
};

// One request, from its first byte to its last.
class RequestReader {
 public:
  explicit RequestReader(const RequestLimits&);
  RequestReader(RequestReader&&) noexcept;
  RequestReader& operator=(RequestReader&&) noexcept;
  ~RequestReader();

  // How many of the bytes are its head; 0: it has not ended yet, give them again with what follows. Errors: invalid,
  // too_large.
  Result<std::size_t> take_head(std::string_view bytes);
  bool has_head() const;
  // After the head: how many of the bytes belong to it. Errors: invalid, too_large, unavailable (the share is used up).
  Result<std::size_t> take_body(std::string_view bytes, BodyShare&);
  bool done() const;

  HttpRequest& request();
  const HttpRequest& request() const;
  // These need the head.
  bool is_http_1_1() const;
  bool keeps_alive() const;      // the client asks for another request on this connection
  bool awaits_continue() const;  // it sends the body when it has been told to

 private:
  class Parser;
  RequestLimits limits_;
  std::unique_ptr<Parser> parser_;
  std::size_t looked_ = 0;   // at so many bytes of the head
  std::size_t framing_ = 0;  // bytes of the body, with those that frame it
};

enum class Framing { counted, chunked, until_closed };
std::string head_text(const HttpReply&, Framing, bool http_1_1, bool keep_alive);
std::string chunk_text(std::string_view bytes);  // no bytes: the last one
std::string wire_text(const HttpReply&);         // head and body, after which the connection is closed

}  // namespace mycojobs::api
