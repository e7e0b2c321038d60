#include "sandbox/egress/request_head.h"

#include <algorithm>

#include "domain/utf8.h"
#include "sandbox/egress/header_fields.h"

namespace mycojobs::egress {
namespace {

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
  // From the URL, as the RFC wants it: what was judged is what the server is told.
  out.append("Host: ").append(host).append("\r\n");
  for (const auto& [name, value] : fields) {
    if (same_name(name, "host") || hop.contains(name)) continue;
    out.append(name).append(": ").append(value).append("\r\n");
  }
  out.append("Via: ").append(line.version.substr(5)).append(" mycojobs\r\nConnection: close\r\n\r\n");
  return out;
}

}  // namespace

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

}  // namespace mycojobs::egress
