#include "net/web_address.h"

#include <algorithm>

#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxUrlBytes = 2048;

tl::unexpected<Error> refuse_url(std::string_view url, const std::string& reason) {
  return fail(Code::invalid, excerpt(url) + ": " + reason);
}

bool is_dots(std::string_view segment) {
  segment = segment.substr(0, segment.find(';'));  // some servers treat the rest as parameters
  std::string plain;
  for (std::size_t i = 0; i < segment.size(); ++i) {
    const bool escaped = segment.substr(i, 3) == "%2e" || segment.substr(i, 3) == "%2E";
    plain += escaped ? '.' : segment[i];
    i += escaped ? 2 : 0;
  }
  return plain == "." || plain == "..";
}

// Returns whether the path has an escape that a server may treat as '/' or as the end of the path.
bool hides_parts(std::string_view path) {
  path = path.substr(0, path.find('?'));
  for (const std::string_view escape : {"%2f", "%2F", "%5c", "%5C", "%00"}) {
    if (path.find(escape) != std::string_view::npos) return true;
  }
  return false;
}

// A server may treat "/a/../b" as "/b", which an entry "/a/" does not allow.
bool has_dots(std::string_view path) {
  path = path.substr(0, path.find('?'));
  while (!path.empty()) {
    path.remove_prefix(1);  // removes the '/'
    const std::size_t end = std::min(path.find('/'), path.size());
    if (is_dots(path.substr(0, end))) return true;
    path.remove_prefix(end);
  }
  return false;
}

Result<WebAddress> read_address(std::string_view url, bool any_port) {
  WebAddress out;
  if (url.size() > kMaxUrlBytes)
    return refuse_url(url.substr(0, 64), "is longer than " + std::to_string(kMaxUrlBytes) + " bytes");
  out.encrypted = url.starts_with("https://");
  if (!out.encrypted && !url.starts_with("http://")) return refuse_url(url, "does not begin with https:// or http://");
  const bool odd = std::any_of(url.begin(), url.end(), [](char c) {
    return static_cast<unsigned char>(c) <= ' ' || static_cast<unsigned char>(c) >= 0x7f || c == '\\' || c == '#';
  });
  if (odd) return refuse_url(url, "has a blank, a control character, a letter beyond ASCII, '\\' or '#' in it");
  const std::string_view remainder = url.substr(out.encrypted ? 8 : 7);
  std::string_view host_port = remainder.substr(0, remainder.find_first_of("/?"));
  out.path = remainder.substr(host_port.size());
  if (!out.path.empty() && out.path[0] == '?') out.path.insert(0, "/");
  if (hides_parts(out.path)) return refuse_url(url, "has %2f, %5c or %00 in its path");
  if (has_dots(out.path)) return refuse_url(url, "has '.' or '..' as a part of its path");
  const bool any = any_port && host_port.ends_with(":*");
  if (any) host_port.remove_suffix(2);
  auto parsed = parse_host_port(host_port, out.encrypted ? 443 : 80);
  if (!parsed) return refuse_url(url, parsed.error().message);
  out.host_port = std::move(*parsed);
  if (any) out.host_port.port = 0;
  return out;
}

bool continues_entry(std::string_view path, std::string_view entry) {
  if (entry.empty() || entry == "/" || path == entry) return true;
  if (!path.starts_with(entry)) return false;
  return entry.ends_with('/') || path[entry.size()] == '/' || path[entry.size()] == '?';
}

bool allows(const WebAddress& entry, const WebAddress& address) {
  return entry.encrypted == address.encrypted && entry.host_port.host == address.host_port.host &&
         (entry.host_port.port == 0 || entry.host_port.port == address.host_port.port) &&
         continues_entry(address.path, entry.path);
}

}  // namespace

Result<WebAddress> parse_web_address(std::string_view url) { return read_address(url, false); }

Result<Webhooks> Webhooks::parse(const std::vector<std::string>& entries) {
  Webhooks webhooks;
  std::string text;
  for (const std::string& entry : entries) {
    MJ_TRY(address, read_address(entry, true));
    webhooks.allowed_.push_back(std::move(address));
    text += (text.empty() ? "" : ", ") + entry;
  }
  if (!text.empty()) webhooks.text_ = std::move(text);
  return webhooks;
}

Result<void> Webhooks::check(std::string_view url) const {
  MJ_TRY(address, parse_web_address(url));
  if (std::any_of(allowed_.begin(), allowed_.end(), [&](const auto& entry) { return allows(entry, address); }))
    return {};
  return fail(Code::denied,
              excerpt(url, 200) +
                  ": is not a webhook that the coordinator may call; its setting coordinator.webhooks allows " + text_);
}

}  // namespace mycojobs
