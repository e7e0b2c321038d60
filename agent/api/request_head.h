// The head of a request, as RFC 9112 has it and no looser: what two readers could take for two things is refused.
//
//   METHOD SP target SP HTTP/1.x CRLF  (name ":" value CRLF)*  CRLF
//
// Refused: a line that ends without CR LF, one that goes on the next line, blanks before a colon, control characters, a
// Content-Length of anything but digits, any coding but chunked, a length that is told in two ways, Host, Origin,
// Authorization twice. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "api/http.h"

namespace mycojobs::api {

// How long the head is, with its blank line; 0: it has not ended yet. looked: bytes that were asked about before.
// Error invalid: no head begins so.
Result<std::size_t> head_length(std::string_view bytes, std::size_t looked = 0);

struct RequestHead {
  HttpRequest request;  // without query and body
  bool chunked = false;
};
// A whole head. Error invalid: names the header or the line.
Result<RequestHead> read_head(std::string_view head);

// The framing of a chunked body, byte for byte: sizes of 1 to 8 hexadecimal digits, CR LF where they belong, no
// trailers. Whoever else reads the bytes has them looked at here before.
class ChunkFraming {
 public:
  bool accept(std::string_view bytes);  // false, from then on: it is none
  bool over() const { return state_ == State::over; }

 private:
  enum class State { size, extension, size_lf, data, data_cr, data_lf, last_cr, last_lf, over, wrong };
  State next(char c);
  State after_size(char c) const;

  State state_ = State::size;
  std::uint32_t digits_ = 0;
  std::uint64_t left_ = 0;
};

}  // namespace mycojobs::api
