#include "api/request_head.h"

#include <algorithm>

#include "domain/utf8.h"

namespace mycojobs::api {
namespace {

constexpr std::size_t kMostHeaders = 200, kMostSizeDigits = 8, kMostExtension = 256, kMostLengthDigits = 15;

bool is_token_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}
bool is_token(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char); }
bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}
bool is_control(char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f; }

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

tl::unexpected<Error> wrong(const std::string& what) { return fail(Code::invalid, what); }

std::string_view next_line(std::string_view& rest) {
  const auto end = rest.find("\r\n");
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end + 2);
  return line;
}

Result<void> read_request_line(std::string_view line, HttpRequest& into) {
  const auto first = std::min(line.find(' '), line.size()), last = line.rfind(' ');
  if (last == std::string_view::npos || first == last || line.find(' ', first + 1) != last)
    return wrong("the first line is no METHOD PATH HTTP/1.1");
  const std::string_view target = line.substr(first + 1, last - first - 1), version = line.substr(last + 1);
  if (!is_token(line.substr(0, first)) || !target.starts_with('/') ||
      std::any_of(target.begin(), target.end(), [](char c) { return is_control(c) || c == '\t'; }))
    return wrong("the first line is no METHOD PATH HTTP/1.1");
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return wrong("the version is neither HTTP/1.1 nor HTTP/1.0");
  into.method = line.substr(0, first);
  into.path = target.substr(0, target.find_first_of("?#"));
  return {};
}

Result<void> read_header(std::string_view line, HttpRequest& into) {
  const auto colon = std::min(line.find(':'), line.size());
  const std::string_view name = line.substr(0, colon);
  if (line.starts_with(' ') || line.starts_with('\t')) return wrong("a header goes on in the next line");
  if (colon == line.size() || !is_token(name))
    return wrong("a header's name is followed by no colon, or has other characters than a name may: " +
                 shown(line.substr(0, 40)));
  std::string_view value = line.substr(colon + 1);
  value.remove_prefix(std::min(value.find_first_not_of(" \t"), value.size()));
  value = value.substr(0, value.find_last_not_of(" \t") + 1);
  if (std::any_of(value.begin(), value.end(), is_control))
    return wrong("the header " + std::string(name.substr(0, 40)) + " has control characters");
  const std::string key = lower(name);
  const bool fresh = into.headers.emplace(key, value).second;
  constexpr std::string_view kOnce[] = {"host", "origin", "authorization", "content-length", "transfer-encoding"};
  if (!fresh && std::find(std::begin(kOnce), std::end(kOnce), key) != std::end(kOnce))
    return wrong("the header " + key + " stands twice");
  return {};
}

}  // namespace

Result<std::size_t> head_length(std::string_view bytes, std::size_t looked) {
  for (std::size_t i = looked; i < bytes.size(); ++i) {
    if (bytes[i] == '\0') return wrong("the head has a NUL in it");
    if (bytes[i] == '\n' && (i == 0 || bytes[i - 1] != '\r')) return wrong("a line of the head ends without CR LF");
    if (bytes[i] != '\n' && i > 0 && bytes[i - 1] == '\r') return wrong("a line of the head has a CR in it");
    if (bytes[i] == '\n' && bytes.substr(0, i + 1).ends_with("\r\n\r\n")) return i + 1;
  }
  return 0;
}

Result<RequestHead> read_head(std::string_view head) {
  RequestHead out;
  MJ_CHECK(read_request_line(next_line(head), out.request));
  for (std::size_t count = 0; head != "\r\n"; ++count) {
    if (count == kMostHeaders) return wrong("there are over " + std::to_string(kMostHeaders) + " headers");
    MJ_CHECK(read_header(next_line(head), out.request));
  }
  const auto& headers = out.request.headers;
  const auto length = headers.find("content-length"), coding = headers.find("transfer-encoding");
  if (length != headers.end() && (!is_digits(length->second) || length->second.size() > kMostLengthDigits))
    return wrong("Content-Length: is no number of bytes");
  if (coding == headers.end()) return out;
  if (length != headers.end()) return wrong("the body's length is told in two ways");
  if (lower(coding->second) != "chunked") return wrong("Transfer-Encoding: chunked is the one there is");
  out.chunked = true;
  return out;
}

bool ChunkFraming::accept(std::string_view bytes) {
  for (std::size_t i = 0; i < bytes.size() && state_ != State::wrong; ++i) {
    if (state_ != State::data) {
      state_ = next(bytes[i]);
      continue;
    }
    const std::uint64_t some = std::min<std::uint64_t>(left_, bytes.size() - i);
    left_ -= some;
    i += some - 1;
    if (left_ == 0) state_ = State::data_cr;
  }
  return state_ != State::wrong;
}

ChunkFraming::State ChunkFraming::after_size(char c) const {
  if (digits_ == 0) return State::wrong;
  return c == '\r' ? State::size_lf : c == ';' ? State::extension : State::wrong;
}

ChunkFraming::State ChunkFraming::next(char c) {
  switch (state_) {
    case State::size: {
      constexpr std::string_view kDigits = "0123456789abcdef";
      const auto digit = kDigits.find(c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c);
      if (digit == std::string_view::npos) return after_size(c);
      if (++digits_ > kMostSizeDigits) return State::wrong;
      left_ = left_ * 16 + digit;
      return State::size;
    }
    case State::extension:
      if (c == '\r') return State::size_lf;
      return is_control(c) || ++digits_ > kMostExtension ? State::wrong : State::extension;
    case State::size_lf:
      digits_ = 0;
      return c != '\n' ? State::wrong : left_ == 0 ? State::last_cr : State::data;
    case State::data_cr:
      return c == '\r' ? State::data_lf : State::wrong;
    case State::data_lf:
      return c == '\n' ? State::size : State::wrong;
    case State::last_cr:
      return c == '\r' ? State::last_lf : State::wrong;
    case State::last_lf:
      return c == '\n' ? State::over : State::wrong;
    case State::data:
    case State::over:
    case State::wrong:
      break;
  }
  return State::wrong;
}

}  // namespace mycojobs::api
