#include "net/web_address.h"

#include <algorithm>

#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxUrlBytes = 2048;

tl::unexpected<Error> refuse_url(std::string_view url, const std::string& reason) {
  return fail(Code::invalid, excerpt(url) + ": " + reason);
}

bool is_dot_segment(std::string_view segment) {
  segment = segment.substr(0, segment.find(';'));  // some servers treat the rest as parameters
  std::string decoded;
  for (std::size_t i = 0; i < segment.size(); ++i) {
    const bool is_escaped_dot = segment.substr(i, 3) == "%2e" || segment.substr(i, 3) == "%2E";
    decoded += is_escaped_dot ? '.' : segment[i];
    i += is_escaped_dot ? 2 : 0;
  }
  return decoded == "." || decoded == "..";
}

// Returns whether the path has an escape that a server may treat as '/' or as the end of the path.
bool has_hidden_separator(std::string_view path) {
  path = path.substr(0, path.find('?'));
  for (const std::string_view escape : {"%2f", "%2F", "%5c", "%5C", "%00"}) {
    if (path.find(escape) != std::string_view::npos) return true;
  }
  return false;
}

// A server may treat "/a/../b" as "/b", which an entry "/a/" does not allow.
bool has_dot_segment(std::string_view path) {
  path = path.substr(0, path.find('?'));
  while (!path.empty()) {
    path.remove_prefix(1);  // removes the '/'
    const std::size_t end = std::min(path.find('/'), path.size());
    if (is_dot_segment(path.substr(0, end))) return true;
    path.remove_prefix(end);
  }
  return false;
}

Result<WebAddress> parse_address(std::string_view url, bool any_port) {
  WebAddress out;
  if (url.size() > kMaxUrlBytes)
    return refuse_url(url.substr(0, 64), "is longer than " + std::to_string(kMaxUrlBytes) + " bytes");
  out.uses_https = url.starts_with("https://");
  if (!out.uses_https && !url.starts_with("http://")) return refuse_url(url, "does not begin with https:// or http://");
  const bool has_invalid_character = std::any_of(url.begin(), url.end(), [](char c) {
    return static_cast<unsigned char>(c) <= ' ' || static_cast<unsigned char>(c) >= 0x7f || c == '\\' || c == '#';
  });
  if (has_invalid_character)
    return refuse_url(url, "has a blank, a control character, a letter beyond ASCII, '\\' or '#' in it");
  const std::string_view remainder = url.substr(out.uses_https ? 8 : 7);
  std::string_view host_port = remainder.substr(0, remainder.find_first_of("/?"));
  out.path = remainder.substr(host_port.size());
  if (!out.path.empty() && out.path[0] == '?') out.path.insert(0, "/");
  if (has_hidden_separator(out.path)) return refuse_url(url, "has %2f, %5c or %00 in its path");
  if (has_dot_segment(out.path)) return refuse_url(url, "has '.' or '..' as a part of its path");
  const bool is_any_port = any_port && host_port.ends_with(":*");
  if (is_any_port) host_port.remove_suffix(2);
  auto parsed = parse_host_port(host_port, out.uses_https ? 443 : 80);
  if (!parsed) return refuse_url(url, parsed.error().message);
  out.host_port = std::move(*parsed);
  if (is_any_port) out.host_port.port = 0;
  return out;
}

bool continues_entry(std::string_view path, std::string_view entry) {
  if (entry.empty() || entry == "/" || path == entry) return true;
  if (!path.starts_with(entry)) return false;
  return entry.ends_with('/') || path[entry.size()] == '/' || path[entry.size()] == '?';
}

bool allows(const WebAddress& entry, const WebAddress& address) {
  return entry.uses_https == address.uses_https && entry.host_port.host == address.host_port.host &&
         (entry.host_port.port == 0 || entry.host_port.port == address.host_port.port) &&
         continues_entry(address.path, entry.path);
}

}  // namespace

Result<WebAddress> parse_web_address(std::string_view url) { return parse_address(url, false); }

Result<WebhookAllowList> WebhookAllowList::parse(const std::vector<std::string>& entries) {
  WebhookAllowList allow_list;
  std::string text;
  for (const std::string& entry : entries) {
    MJ_TRY(address, parse_address(entry, true));
    allow_list.entries_.push_back(std::move(address));
    text += (text.empty() ? "" : ", ") + entry;
  }
  if (!text.empty()) allow_list.entries_text_ = std::move(text);
  return allow_list;
}

Result<void> WebhookAllowList::check_allowed(std::string_view url) const {
  MJ_TRY(address, parse_web_address(url));
  if (std::any_of(entries_.begin(), entries_.end(), [&](const auto& entry) { return allows(entry, address); }))
    return {};
  return fail(Code::denied,
              excerpt(url, 200) +
                  ": is not a webhook that the coordinator may call; its setting coordinator.webhooks allows " +
                  entries_text_);
}

}  // namespace mycojobs
