// HTTP/1.1 messages as bytes, for the server (agent/api) and the proxy (sandbox/egress). Boost.Beast parses requests
// and writes heads; only http_wire.cpp uses it. Additional rules are stricter than the parser, which accepts more than
// RFC 9112 allows: a message that two readers could interpret differently is rejected. Pure.
//
//   METHOD SP target SP HTTP/1.x CRLF  (name ":" value CRLF)*  CRLF  body
//
// Rejected: a line that ends without CR LF or continues in the next line, blanks before a colon, control characters, a
// Content-Length with anything but digits, any coding but chunked, chunks in HTTP/1.0, a length that is given in two
// ways, a repeated Host, Origin or Authorization, more than 200 header fields.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace mycojobs {

std::string lower_case(std::string_view);  // ASCII only

// Body of the answer, with status 400, to a request in plain text on a port that uses TLS.
inline constexpr std::string_view kTlsRequiredText = "this port uses TLS: write https:// in the address\n";

using HttpFields = std::vector<std::pair<std::string, std::string>>;  // in their original spelling

// Parser of one request.
class HttpRequestParser {
 public:
  // With `trailers`, fields after a chunked body are accepted.
  explicit HttpRequestParser(std::size_t max_head_bytes, bool trailers = false);
  HttpRequestParser(HttpRequestParser&&) noexcept;
  HttpRequestParser& operator=(HttpRequestParser&&) noexcept;
  ~HttpRequestParser();

  // Returns the size of the head, or 0 if the head is incomplete; the caller then passes the same bytes again with more
  // bytes. Errors: invalid, too_large.
  Result<std::size_t> parse_head(std::string_view bytes);
  bool has_head() const;
  // REQUIRES for the functions below: has_head().
  const std::string& method() const;
  const std::string& target() const;  // never empty, without blanks and control characters
  const HttpFields& fields() const;   // fields of the head
  bool is_http_1_1() const;
  bool is_keep_alive() const;  // the client requests a persistent connection

  // Receives the body in parts. begin() receives the length if the head declares it. An error ends the request.
  struct Body {
    virtual ~Body() = default;
    virtual Result<void> begin(std::uint64_t) { return {}; }
    virtual Result<void> add(std::string_view) { return {}; }
  };
  // Reads body bytes after the head. Returns the number of bytes that belong to the request. The caller passes the
  // remaining bytes again with more bytes: they are an incomplete line of a chunk, or belong to the next request.
  // Errors: invalid; too_large (over 16 KiB of chunk extensions and trailers); errors of `Body`.
  Result<std::size_t> parse_body(std::string_view bytes, Body&);
  bool is_complete() const;

 private:
  class Parser;
  std::size_t max_head_bytes_;
  std::size_t searched_bytes_ = 0;  // number of bytes in which the end of the head was not found
  std::unique_ptr<Parser> parser_;
};

enum class HttpFraming { counted, chunked, until_closed };
struct HttpAnswerHead {
  int status = 200;
  HttpFields fields;  // without the fields of framing and connection
  HttpFraming framing = HttpFraming::counted;
  std::size_t length = 0;  // for HttpFraming::counted
  bool http_1_1 = true, keep_alive = false;
};
std::string to_text(const HttpAnswerHead&);
std::string encode_chunk(std::string_view bytes);  // an empty text produces the last chunk

}  // namespace mycojobs
