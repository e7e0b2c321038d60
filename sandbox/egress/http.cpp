#include "sandbox/egress/http.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "text/utf8.h"

namespace mycojobs::egress {
namespace {

constexpr std::string_view kFramingHeaders[] = {"host", "content-length", "transfer-encoding"};
constexpr std::string_view kHopByHopHeaders[] = {"connection",
                                                 "keep-alive",
                                                 "proxy-connection",
                                                 "proxy-authenticate",
                                                 "proxy-authorization",
                                                 "proxy-authentication-info",
                                                 "te",
                                                 "upgrade",
                                                 "http2-settings"};

char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool is_same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return to_lower(x) == to_lower(y); });
}

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

template <std::size_t N>
bool contains_name(std::string_view name, const std::string_view (&names)[N]) {
  return std::any_of(std::begin(names), std::end(names),
                     [&](std::string_view item) { return is_same_name(name, item); });
}

bool is_token(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return (to_lower(c) >= 'a' && to_lower(c) <= 'z') || (c >= '0' && c <= '9') || kMarks.find(c) != kMarks.npos;
  });
}

// Returns nullopt if the line is not a header field of RFC 9112: no folding, no space before the colon, no control
// characters.
std::optional<Field> parse_field(std::string_view line) {
  const std::size_t colon = line.find(':');
  if (colon == line.npos || !is_token(line.substr(0, colon))) return {};
  const std::string_view value = trim(line.substr(colon + 1));
  const auto is_control = [](unsigned char c) { return (c < ' ' && c != '\t') || c == 0x7f; };  // char may be signed
  if (std::any_of(value.begin(), value.end(), is_control)) return {};
  return Field{line.substr(0, colon), value};
}

constexpr const char* kProxyRemedy = "set HTTP_PROXY and HTTPS_PROXY as the job's environment has them";

tl::unexpected<Error> make_error(std::string reason) { return fail(Code::invalid, std::move(reason)); }

struct Url {
  HostPort target;
  std::string path;
};
Result<Url> parse_url(std::string_view url, std::string_view method) {
  constexpr std::string_view kScheme = "http://";
  if (url.starts_with('/') || url == "*")
    return make_error(std::string("this is a proxy, not a server: ") + kProxyRemedy);
  if (!is_same_name(url.substr(0, kScheme.size()), kScheme)) {
    return make_error("the proxy accepts http:// URLs, and CONNECT for other protocols: " + excerpt(url));
  }
  url.remove_prefix(kScheme.size());
  const std::size_t end = std::min(url.find_first_of("/?#"), url.size());
  MJ_TRY(target, parse_host_port(url.substr(0, end), 80));
  std::string path(url.substr(end));
  if (path.find('#') != path.npos) return make_error("a URL is sent without its #fragment");
  if (path.empty() && method == "OPTIONS") path = "*";
  if (!path.starts_with('/') && path != "*") path.insert(0, "/");
  return Url{std::move(target), std::move(path)};
}

std::string build_forwarded_request(const HttpRequestParser& request, const Url& url) {
  const std::vector<Field> fields(request.fields().begin(), request.fields().end());
  const HopFields hop_fields(fields);
  const std::string version = request.is_http_1_1() ? "1.1" : "1.0";
  std::string host = to_text(url.target);
  if (url.target.port == 80) host.resize(host.rfind(':'));
  std::string out;
  out.append(request.method()).append(" ").append(url.path).append(" HTTP/").append(version).append("\r\n");
  // The host is that of the URL, as the RFC requires, so that the server receives the checked host.
  out.append("Host: ").append(host).append("\r\n");
  for (const auto& [name, value] : fields) {
    if (is_same_name(name, "host") || hop_fields.contains(name)) continue;
    out.append(name).append(": ").append(value).append("\r\n");
  }
  out.append("Via: ").append(version).append(" mycojobs\r\nConnection: close\r\n\r\n");
  return out;
}

// Responses are parsed leniently: bare LF is accepted. With one response per connection, smuggling is impossible.
std::size_t find_head_end(std::string_view bytes) {
  for (std::size_t line_end = bytes.find('\n'); line_end != bytes.npos; line_end = bytes.find('\n', line_end + 1)) {
    const std::string_view remaining = bytes.substr(line_end + 1);
    if (remaining.starts_with("\n")) return line_end + 2;
    if (remaining.starts_with("\r\n")) return line_end + 3;
  }
  return 0;
}

std::vector<std::string_view> split_lines(std::string_view head) {
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

std::string rewrite_head(const std::vector<std::string_view>& lines, bool is_last) {
  std::vector<Field> fields;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    if (const auto field = parse_field(lines[i])) fields.push_back(*field);
  }
  const HopFields hop_fields(fields);
  std::string out(lines.front());
  out += "\r\n";
  for (const auto& [name, value] : fields) {
    if (!hop_fields.contains(name)) out.append(name).append(": ").append(value).append("\r\n");
  }
  if (is_last) out += "Connection: close\r\n";
  return out + "\r\n";
}

}  // namespace

// Parsed once per message: parsing the lists for each field would take quadratic time.
HopFields::HopFields(const std::vector<Field>& fields) {
  for (const auto& [name, value] : fields) {
    if (!is_same_name(name, "connection")) continue;
    for (std::string_view remaining = value;;) {
      const std::size_t comma = remaining.find(',');
      listed_.insert(lower_case(trim(remaining.substr(0, comma))));
      if (comma == remaining.npos) break;
      remaining.remove_prefix(comma + 1);
    }
  }
}

bool HopFields::contains(std::string_view name) const {
  return !contains_name(name, kFramingHeaders) &&
         (contains_name(name, kHopByHopHeaders) || listed_.contains(lower_case(name)));
}

Result<RequestHead> read_request_head(const HttpRequestParser& request) {
  const std::string& target = request.target();
  const auto is_visible = [](char c) { return c > ' ' && c < 0x7f; };
  if (!std::all_of(target.begin(), target.end(), is_visible))
    return make_error("the target of the request has characters that belong in no URL: " + excerpt(target));
  RequestHead out;
  if (request.method() == "CONNECT") {
    out.is_tunnel = true;
    MJ_TRY(host_port, parse_host_port(target));
    out.target = std::move(host_port);
    return out;
  }
  MJ_TRY(url, parse_url(target, request.method()));
  out.forwarded_head = build_forwarded_request(request, url);
  out.target = std::move(url.target);
  return out;
}

Result<std::string> ResponseHead::feed(std::string_view bytes) {
  if (is_complete_) return std::string(bytes);
  buffered_ += bytes;
  std::string out;
  for (std::size_t size = 0; !is_complete_ && (size = find_head_end(buffered_)) != 0;) {
    const auto lines = split_lines(std::string_view(buffered_).substr(0, size));
    if (lines.empty() || !is_status_line(lines.front())) return fail(Code::invalid, "the server's reply is not HTTP/1");
    const std::string_view status = lines.front().substr(9, 3);
    // The job cannot request another protocol, since Upgrade is removed.
    if (status == "101") return fail(Code::invalid, "the server changed the protocol without a request");
    is_complete_ = status.front() != '1';
    out += rewrite_head(lines, is_complete_);
    buffered_.erase(0, size);
  }
  if (is_complete_) {
    out += buffered_;
    buffered_ = {};
  } else if (buffered_.size() > kMaxHeadBytes) {
    return fail(Code::too_large, "the head of the server's answer is over 16 KiB");
  }
  return out;
}

}  // namespace mycojobs::egress
