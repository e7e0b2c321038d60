#include "sandbox/egress/http.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "domain/utf8.h"

namespace mycojobs::egress {
namespace {

constexpr std::string_view kFraming[] = {"host", "content-length", "transfer-encoding"};
constexpr std::string_view kOneHop[] = {"connection",
                                        "keep-alive",
                                        "proxy-connection",
                                        "proxy-authenticate",
                                        "proxy-authorization",
                                        "proxy-authentication-info",
                                        "te",
                                        "upgrade",
                                        "http2-settings"};

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

template <std::size_t N>
bool among(std::string_view name, const std::string_view (&names)[N]) {
  return std::any_of(std::begin(names), std::end(names), [&](std::string_view each) { return same_name(name, each); });
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return lower(c); });
  return out;
}

constexpr std::uint32_t kMaxDigits = 15;           // no overflow of 64 bits
constexpr std::uint32_t kMaxOverhead = 16U << 10;  // extensions and trailers are for nobody's benefit but a flood's

int hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

constexpr std::size_t kMaxFields = 200;
constexpr const char* kUse = "set HTTP_PROXY and HTTPS_PROXY as the job's environment has them";

tl::unexpected<Error> wrong(std::string why) { return fail(Code::invalid, std::move(why)); }

struct RequestLine {
  std::string_view method, target, version;
};

Result<RequestLine> parse_request_line(std::string_view line) {
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == line.npos || first == last) return wrong("no HTTP request line: " + shown(line));
  const RequestLine out{line.substr(0, first), line.substr(first + 1, last - first - 1), line.substr(last + 1)};
  if (!is_token(out.method)) return wrong("no HTTP method: " + shown(out.method));
  if (out.version != "HTTP/1.1" && out.version != "HTTP/1.0") {
    return wrong("the proxy speaks HTTP/1.1 and HTTP/1.0, not " + shown(out.version));
  }
  const auto visible = [](char c) { return c > ' ' && c < 0x7f; };
  if (out.target.empty() || !std::all_of(out.target.begin(), out.target.end(), visible)) {
    return wrong("the target of the request has characters that belong in no URL: " + shown(out.target));
  }
  return out;
}

// Lines end with CR LF and in no other way.
Result<std::vector<std::string_view>> split_lines(std::string_view head) {
  std::vector<std::string_view> lines;
  while (!head.empty()) {
    const std::size_t end = head.find("\r\n");
    if (end == head.npos) return wrong("a line of the request does not end with CR LF");
    const std::string_view line = head.substr(0, end);
    if (line.find_first_of(std::string_view("\r\n\0", 3)) != line.npos) {
      return wrong("a line of the request has a control character");
    }
    lines.push_back(line);
    head.remove_prefix(end + 2);
  }
  if (lines.size() < 2) return wrong("the request has no line");
  lines.pop_back();  // the empty one
  return lines;
}

Result<std::uint64_t> parse_length(std::string_view text) {
  std::uint64_t value = 0;
  if (text.empty() || text.size() > 18) return wrong("Content-Length is no number: " + shown(text));
  for (char c : text) {
    if (c < '0' || c > '9') return wrong("Content-Length is no number: " + shown(text));
    value = value * 10 + static_cast<std::uint64_t>(c - '0');
  }
  return value;
}

Result<Body> body_of(const std::vector<Field>& fields, bool http_1_1) {
  std::optional<std::string_view> length, encoding;
  for (const auto& [name, value] : fields) {
    auto* kept = same_name(name, "content-length")      ? &length
                 : same_name(name, "transfer-encoding") ? &encoding
                                                        : nullptr;
    if (kept == nullptr) continue;
    if (*kept) return wrong("the request has two fields " + shown(name));
    *kept = value;
  }
  if (encoding) {
    if (length) return wrong("the request has Content-Length and Transfer-Encoding: one of them lies");
    if (!http_1_1 || !same_name(*encoding, "chunked")) return wrong("Transfer-Encoding may be chunked, in HTTP/1.1");
    return Body::chunked();
  }
  if (!length) return Body();
  MJ_TRY(bytes, parse_length(*length));
  return Body::counted(bytes);
}

struct Url {
  HostPort target;
  std::string path;
};
Result<Url> parse_url(std::string_view url, std::string_view method) {
  constexpr std::string_view kScheme = "http://";
  if (url.starts_with('/') || url == "*") return wrong(std::string("this is a proxy, not a server: ") + kUse);
  if (!same_name(url.substr(0, kScheme.size()), kScheme)) {
    return wrong("the proxy takes http:// URLs, and CONNECT for the rest: " + shown(url));
  }
  url.remove_prefix(kScheme.size());
  const std::size_t end = std::min(url.find_first_of("/?#"), url.size());
  MJ_TRY(target, parse_host_port(url.substr(0, end), 80));
  std::string path(url.substr(end));
  if (path.find('#') != path.npos) return wrong("a URL is sent without its #fragment");
  if (path.empty() && method == "OPTIONS") path = "*";
  if (!path.starts_with('/') && path != "*") path.insert(0, "/");
  return Url{std::move(target), std::move(path)};
}

std::string forwarded(const RequestLine& line, const Url& url, const std::vector<Field>& fields) {
  const HopFields hop(fields);
  std::string host = to_text(url.target);
  if (url.target.port == 80) host.resize(host.rfind(':'));
  std::string out;
  out.append(line.method).append(" ").append(url.path).append(" ").append(line.version).append("\r\n");
  // From the URL, as the RFC wants it: what was judged is what the server sees.
  out.append("Host: ").append(host).append("\r\n");
  for (const auto& [name, value] : fields) {
    if (same_name(name, "host") || hop.contains(name)) continue;
    out.append(name).append(": ").append(value).append("\r\n");
  }
  out.append("Via: ").append(line.version.substr(5)).append(" mycojobs\r\nConnection: close\r\n\r\n");
  return out;
}

// Servers are read more kindly than jobs: bare LF too. One answer a connection leaves nothing to smuggle.
std::size_t end_of_head(std::string_view bytes) {
  for (std::size_t at = bytes.find('\n'); at != bytes.npos; at = bytes.find('\n', at + 1)) {
    const std::string_view rest = bytes.substr(at + 1);
    if (rest.starts_with("\n")) return at + 2;
    if (rest.starts_with("\r\n")) return at + 3;
  }
  return 0;
}

std::vector<std::string_view> lines_of(std::string_view head) {
  std::vector<std::string_view> lines;
  while (!head.empty()) {
    const std::size_t end = head.find('\n');
    std::string_view line = head.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) lines.push_back(line);
    head.remove_prefix(end == head.npos ? head.size() : end + 1);
  }
  return lines;
}

bool is_status_line(std::string_view line) {
  if (line.size() < 12 || !line.starts_with("HTTP/1.") || line[8] != ' ') return false;
  return line.substr(9, 3).find_first_not_of("0123456789") == line.npos && line.find('\0') == line.npos;
}

std::string rewritten(const std::vector<std::string_view>& lines, bool last) {
  std::vector<Field> fields;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    if (const auto field = parse_field(lines[i])) fields.push_back(*field);
  }
  const HopFields hop(fields);
  std::string out(lines.front());
  out += "\r\n";
  for (const auto& [name, value] : fields) {
    if (!hop.contains(name)) out.append(name).append(": ").append(value).append("\r\n");
  }
  if (last) out += "Connection: close\r\n";
  return out + "\r\n";
}

}  // namespace

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

bool is_token(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return (lower(c) >= 'a' && lower(c) <= 'z') || (c >= '0' && c <= '9') || kMarks.find(c) != kMarks.npos;
  });
}

std::optional<Field> parse_field(std::string_view line) {
  const std::size_t colon = line.find(':');
  if (colon == line.npos || !is_token(line.substr(0, colon))) return {};
  const std::string_view value = trimmed(line.substr(colon + 1));
  const auto control = [](char c) { return (c >= 0 && c < ' ' && c != '\t') || c == 0x7f; };
  if (std::any_of(value.begin(), value.end(), control)) return {};
  return Field{line.substr(0, colon), value};
}

// Once for a message: to read the lists anew for each field would cost the square of what a job sends.
HopFields::HopFields(const std::vector<Field>& all) {
  for (const auto& [name, value] : all) {
    if (!same_name(name, "connection")) continue;
    for (std::string_view left = value;;) {
      const std::size_t comma = left.find(',');
      listed_.insert(lower(trimmed(left.substr(0, comma))));
      if (comma == left.npos) break;
      left.remove_prefix(comma + 1);
    }
  }
}

bool HopFields::contains(std::string_view name) const {
  return !among(name, kFraming) && (among(name, kOneHop) || listed_.contains(lower(name)));
}

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

std::size_t head_size(std::string_view bytes) {
  const std::size_t end = bytes.find("\r\n\r\n");
  return end == bytes.npos ? 0 : end + 4;
}

Result<RequestHead> parse_request_head(std::string_view head) {
  MJ_TRY(lines, split_lines(head));
  MJ_TRY(line, parse_request_line(lines.front()));
  if (lines.size() > kMaxFields + 1) return wrong("the request has more than 200 header fields");
  std::vector<Field> fields;
  std::size_t hosts = 0;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const auto field = parse_field(lines[i]);
    if (!field) return wrong("no header field: " + shown(lines[i]));
    hosts += same_name(field->first, "host") ? 1 : 0;
    fields.push_back(*field);
  }
  if (hosts > 1) return wrong("the request has two fields \"Host\"");
  RequestHead out;
  if (line.method == "CONNECT") {
    out.tunnel = true;
    MJ_TRY(target, parse_host_port(line.target));
    out.target = std::move(target);
    return out;
  }
  MJ_TRY(url, parse_url(line.target, line.method));
  MJ_TRY(body, body_of(fields, line.version == "HTTP/1.1"));
  out.forward = forwarded(line, url, fields);
  out.target = std::move(url.target);
  out.body = body;
  return out;
}

Result<std::string> ResponseHead::feed(std::string_view bytes) {
  if (complete_) return std::string(bytes);
  waiting_ += bytes;
  std::string out;
  for (std::size_t size = 0; !complete_ && (size = end_of_head(waiting_)) != 0;) {
    const auto lines = lines_of(std::string_view(waiting_).substr(0, size));
    if (lines.empty() || !is_status_line(lines.front())) return fail(Code::invalid, "the server's answer is no HTTP/1");
    const std::string_view status = lines.front().substr(9, 3);
    // Nobody has asked for another protocol: Upgrade was taken out.
    if (status == "101") return fail(Code::invalid, "the server changed the protocol without being asked");
    complete_ = status.front() != '1';
    out += rewritten(lines, complete_);
    waiting_.erase(0, size);
  }
  if (complete_) {
    out += waiting_;
    waiting_ = {};
  } else if (waiting_.size() > kMaxHeadBytes) {
    return fail(Code::too_large, "the head of the server's answer is over 16 KiB");
  }
  return out;
}

}  // namespace mycojobs::egress
