// Where the body of a request ends (RFC 9112, section 6): what follows it is no part of what was judged.
#pragma once

#include <cstdint>
#include <string_view>

#include "mycojobs/result.h"

namespace mycojobs::egress {

class Body {
 public:
  Body() = default;  // none
  static Body counted(std::uint64_t bytes);
  static Body chunked();

  // How many bytes at the front belong to the body. Error: invalid, the chunks are not as the RFC has them.
  Result<std::size_t> take(std::string_view bytes);
  bool done() const { return state_ == State::done; }

 private:
  enum class State {
    done,
    counted,
    size,
    extension,
    size_lf,
    data,
    data_cr,
    data_lf,
    line_start,
    line,
    line_lf,
    last_lf
  };
  Result<void> step(char);

  State state_ = State::done;
  std::uint64_t left_ = 0;      // of the body or the chunk
  std::uint32_t digits_ = 0;    // of the chunk's size
  std::uint32_t overhead_ = 0;  // bytes of extensions and trailers so far
};

}  // namespace mycojobs::egress
