// What the proxy reads of HTTP/1: header fields, the head and the body of a job's request, the head of the server's
// answer. Pure; any thread. Jobs are read strictly: what two programs could read in two ways is refused (request
// smuggling).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "domain/host.h"
#include "mycojobs/result.h"

namespace mycojobs::egress {

using Field = std::pair<std::string_view, std::string_view>;  // as it was written, without the spaces around the value

bool same_name(std::string_view, std::string_view);  // without regard to case
bool is_token(std::string_view);                     // RFC 9110, section 5.6.2

// Nothing: the line is no header field as RFC 9112 has it (no folding, no space before the colon, no control
// character).
std::optional<Field> parse_field(std::string_view line);

// The fields of a message that are for the next hop alone (RFC 9110, section 7.6.1): those known, and those that its
// Connection fields list. Those that frame the message (Host, Content-Length, Transfer-Encoding) never are.
class HopFields {
 public:
  explicit HopFields(const std::vector<Field>& all);
  bool contains(std::string_view name) const;

 private:
  std::set<std::string> listed_;  // lower case
};

// Where the body of a request ends (RFC 9112, section 6): what follows it is no part of what was judged.
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

inline constexpr std::size_t kMaxHeadBytes = 16U << 10;

// Bytes up to and with the empty line; 0: not there yet.
std::size_t head_size(std::string_view bytes);

struct RequestHead {
  HostPort target;
  bool tunnel = false;  // CONNECT
  std::string forward;  // else: what the server gets, hop-by-hop fields taken out, "Connection: close"
  Body body;
};
// `head` as long as head_size() said. HTTP/1.0 and 1.1: CONNECT host:port, or an absolute http:// target.
// Errors: invalid, one line for the author of the job.
Result<RequestHead> parse_request_head(std::string_view head);

// The server's answer to a plain HTTP request on its way to the job. Its head says "Connection: close" whatever the
// server thinks of it, because a second request on the same connection would be one that nobody has judged.
class ResponseHead {
 public:
  // What goes on to the job of these bytes: nothing until the head is whole, all after it.
  // Errors: invalid, no HTTP/1 answer, or a head over 16 KiB.
  Result<std::string> feed(std::string_view bytes);
  bool complete() const { return complete_; }  // the final head, not that of a 1xx answer

 private:
  std::string waiting_;
  bool complete_ = false;
};

}  // namespace mycojobs::egress
