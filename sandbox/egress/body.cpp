#include "sandbox/egress/body.h"

#include <algorithm>

namespace mycojobs::egress {
namespace {

constexpr std::uint32_t kMaxDigits = 15;           // no overflow of 64 bits
constexpr std::uint32_t kMaxOverhead = 16U << 10;  // extensions and trailers are for nobody's benefit but a flood's

int hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

Body Body::counted(std::uint64_t bytes) {
  Body body;
  body.left_ = bytes;
  if (bytes > 0) body.state_ = State::counted;
  return body;
}

Body Body::chunked() {
  Body body;
  body.state_ = State::size;
  return body;
}

Result<std::size_t> Body::take(std::string_view bytes) {
  std::size_t taken = 0;
  while (taken < bytes.size() && state_ != State::done) {
    if (state_ != State::counted && state_ != State::data) {
      MJ_CHECK(step(bytes[taken++]));
      continue;
    }
    const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(left_, bytes.size() - taken));
    taken += part;
    left_ -= part;
    if (left_ == 0) state_ = state_ == State::counted ? State::done : State::data_cr;
  }
  return taken;
}

// One byte of the framing:
//   size [extension] CR LF  data CR LF  ...  0 CR LF  {line CR LF}  CR LF
Result<void> Body::step(char c) {
  const auto wrong = [] { return fail(Code::invalid, "the chunks of the request's body are malformed"); };
  const auto expect = [&](char wanted, State next) -> Result<void> {
    if (c != wanted) return wrong();
    state_ = next;
    return {};
  };
  switch (state_) {
    case State::size:
      if (const int value = hex(c); value >= 0) {
        if (++digits_ > kMaxDigits) return wrong();
        left_ = left_ * 16 + static_cast<std::uint64_t>(value);
        return {};
      }
      if (digits_ == 0 || (c != ';' && c != '\r')) return wrong();
      state_ = c == ';' ? State::extension : State::size_lf;
      return {};
    case State::extension:
    case State::line:
      if (++overhead_ > kMaxOverhead) return fail(Code::too_large, "the chunk extensions or trailers are too long");
      if (c == '\r') {
        state_ = state_ == State::extension ? State::size_lf : State::line_lf;
      } else if ((c >= 0 && c < ' ' && c != '\t') || c == 0x7f) {
        return wrong();
      }
      return {};
    case State::size_lf:
      digits_ = 0;
      return expect('\n', left_ == 0 ? State::line_start : State::data);
    case State::data_cr:
      return expect('\r', State::data_lf);
    case State::data_lf:
      return expect('\n', State::size);
    case State::line_start:
      if (c == '\r') return expect('\r', State::last_lf);
      state_ = State::line;
      return step(c);
    case State::line_lf:
      return expect('\n', State::line_start);
    case State::last_lf:
      return expect('\n', State::done);
    case State::done:
    case State::counted:
    case State::data:
      break;
  }
  return wrong();
}

}  // namespace mycojobs::egress
