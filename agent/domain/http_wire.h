// HTTP/1.1 as bytes, for who serves it (agent/api) and who passes it on (sandbox/egress). Boost.Beast parses requests
// and writes heads; http_wire.cpp alone knows it. Above its parser stand rules of ours, because it reads more kindly
// than RFC 9112 asks for: what two readers could take for two things is refused.
//
//   METHOD SP target SP HTTP/1.x CRLF  (name ":" value CRLF)*  CRLF  body
//
// Refused: a line that ends without CR LF or goes on in the next one, blanks before a colon, control characters, a
// Content-Length of anything but digits, any coding but chunked, chunks in HTTP/1.0, a length that is given in two
// ways, Host, Origin, Authorization twice, over 200 header fields. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mycojobs/result.h"

namespace mycojobs {

std::string lower_case(std::string_view);  // of ASCII

using HttpFields = std::vector<std::pair<std::string, std::string>>;  // as they were written

// One request, from its first byte to its last.
class HttpRequestParser {
 public:
  // trailers: fields behind a chunked body are taken; else they are refused.
  explicit HttpRequestParser(std::size_t most_head_bytes, bool trailers = false);
  HttpRequestParser(HttpRequestParser&&) noexcept;
  HttpRequestParser& operator=(HttpRequestParser&&) noexcept;
  ~HttpRequestParser();

  // How many of the bytes are its head; 0: it has not ended yet, give them again with what follows. Errors: invalid,
  // too_large.
  Result<std::size_t> take_head(std::string_view bytes);
  bool has_head() const;
  // These need the head.
  const std::string& method() const;
  const std::string& target() const;  // never empty, without blanks and control characters
  const HttpFields& fields() const;   // the head's
  bool is_http_1_1() const;
  bool keeps_alive() const;  // the client asks for another request on this connection

  // What the body holds, as it comes, and that it will be so long, if the head says so. An error ends the request.
  struct Body {
    virtual ~Body() = default;
    virtual Result<void> begin(std::uint64_t) { return {}; }
    virtual Result<void> add(std::string_view) { return {}; }
  };
  // After the head: how many of the bytes belong to the request. Give those behind them again with what follows: they
  // are part of a line of a chunk, or of the next request. Errors: invalid; too_large (over 16 KiB of chunk extensions
  // and trailers); the body's.
  Result<std::size_t> take_body(std::string_view bytes, Body&);
  bool done() const;

 private:
  class Parser;
  std::size_t most_head_bytes_, looked_ = 0;  // at so many bytes of the head
  std::unique_ptr<Parser> parser_;
};

enum class HttpFraming { counted, chunked, until_closed };
struct HttpAnswerHead {
  int status = 200;
  HttpFields fields;  // without those of the framing and the connection
  HttpFraming framing = HttpFraming::counted;
  std::size_t length = 0;  // if it is counted
  bool http_1_1 = true, keep_alive = false;
};
std::string to_text(const HttpAnswerHead&);
std::string chunk_text(std::string_view bytes);  // no bytes: the last one

}  // namespace mycojobs
