#include "net/host.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxNameLength = 253;
constexpr std::size_t kMaxLabelLength = 63;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
std::string to_lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return to_lower(c); });
  return out;
}

tl::unexpected<Error> refuse_host(std::string_view text, const std::string& reason) {
  return fail(Code::invalid, excerpt(text) + ": " + reason);
}

const char* find_character_problem(char c) {
  if (static_cast<unsigned char>(c) >= 0x80) return "a host name is ASCII: write its xn-- form";
  if (c < ' ' || c == 0x7f) return "a control character is in no host name";
  switch (c) {
    case '%':
      return "neither percent-encoding nor a zone id is taken in a host";
    case '@':
      return "user information before a host is not accepted";
    case '[':
    case ']':
      return "brackets are only for an IPv6 address";
    case '*':
      return "a wildcard is not a host";
    default:
      break;
  }
  const bool is_allowed = (to_lower(c) >= 'a' && to_lower(c) <= 'z') || is_digit(c) || c == '-' || c == '.';
  return is_allowed ? nullptr : "a host name has letters, digits, hyphens and dots";
}

const char* find_label_problem(std::string_view label) {
  if (label.empty()) return "a host name has no empty label and no trailing dot";
  if (label.size() > kMaxLabelLength) return "a label of a host name has at most 63 characters";
  if (label.front() == '-' || label.back() == '-') return "a label neither begins nor ends with a hyphen";
  return nullptr;
}

// The C library interprets such names as addresses (inet_aton): 127.1, 0x7f.1, 2130706433.
bool ends_in_number(std::string_view name) {
  const std::string_view last_label = name.substr(name.rfind('.') + 1);  // npos + 1 is 0
  if (std::all_of(last_label.begin(), last_label.end(), is_digit)) return true;
  return last_label.starts_with("0x") && last_label.find_first_not_of("0123456789abcdef", 2) == std::string_view::npos;
}

}  // namespace

std::optional<IpAddress> parse_ip(std::string_view text) {
  if (text.empty() || text.size() >= INET6_ADDRSTRLEN || text.find('\0') != std::string_view::npos) return {};
  const std::string lower_case_text = to_lower(text);
  IpAddress address;
  address.is_v6 = lower_case_text.find(':') != std::string::npos;
  if (::inet_pton(address.is_v6 ? AF_INET6 : AF_INET, lower_case_text.c_str(), address.bytes.data()) != 1) return {};
  // Accept only the canonical spelling, so that every reader sees the same address.
  if (to_text(address) != lower_case_text) return {};
  return address;
}

std::string to_text(const IpAddress& address) {
  char text[INET6_ADDRSTRLEN] = "";
  ::inet_ntop(address.is_v6 ? AF_INET6 : AF_INET, address.bytes.data(), text, sizeof text);
  return text;
}

bool is_in_range(const IpAddress& address, const IpAddress& base, unsigned prefix) {
  if (address.is_v6 != base.is_v6) return false;
  for (unsigned bit = 0; bit < std::min(prefix, address.bits()); ++bit) {
    const unsigned difference = address.bytes[bit / 8] ^ base.bytes[bit / 8];
    if (((difference >> (7 - bit % 8)) & 1U) != 0) return false;
  }
  return true;
}

Result<Host> parse_host(std::string_view text) {
  if (text.empty()) return fail(Code::invalid, "the host is missing");
  if (auto address = parse_ip(text)) return Host{"", address};
  if (text.size() > kMaxNameLength) return refuse_host(text, "a host name has at most 253 characters");
  if (text.find(':') != std::string_view::npos && text.find_first_not_of("0123456789abcdefABCDEF:.") == text.npos) {
    in6_addr parsed{};
    if (::inet_pton(AF_INET6, std::string(text).c_str(), &parsed) != 1) return refuse_host(text, "no IPv6 address");
    IpAddress address{true, {}};
    std::memcpy(address.bytes.data(), &parsed, sizeof parsed);
    return refuse_host(text, "not a canonical address: write " + to_text(address));
  }
  if (text.find('%') != text.npos) return refuse_host(text, find_character_problem('%'));
  for (char c : text) {
    if (const char* reason = find_character_problem(c)) return refuse_host(text, reason);
  }
  const std::string name = to_lower(text);
  for (std::string_view remaining = name;;) {
    const std::size_t dot = remaining.find('.');
    if (const char* reason = find_label_problem(remaining.substr(0, dot))) return refuse_host(text, reason);
    if (dot == std::string_view::npos) break;
    remaining.remove_prefix(dot + 1);
  }
  if (ends_in_number(name)) {
    return refuse_host(text,
                       "not a canonical address: write four decimal numbers without leading zeros, as in 192.0.2.7");
  }
  return Host{name, {}};
}

std::optional<std::uint16_t> parse_port(std::string_view text) {
  if (text.empty() || text.size() > 5 || text.front() == '0' || !std::all_of(text.begin(), text.end(), is_digit)) {
    return {};
  }
  unsigned port = 0;
  for (char c : text) port = port * 10 + static_cast<unsigned>(c - '0');
  if (port > 65535) return {};
  return static_cast<std::uint16_t>(port);
}

Result<HostPort> parse_host_port(std::string_view text, std::uint16_t default_port) {
  std::string_view host = text;
  std::string_view port;
  const bool is_bracketed = text.starts_with('[');
  const std::size_t end = is_bracketed ? text.find(']') : text.find(':');
  if (is_bracketed && end == std::string_view::npos) return refuse_host(text, "the bracket is not closed");
  if (end != std::string_view::npos) {
    host = is_bracketed ? text.substr(1, end - 1) : text.substr(0, end);
    port = text.substr(end + (is_bracketed ? 1 : 0));
    if (!port.empty() && port.front() != ':')
      return refuse_host(text, "the bracket must be followed by a colon and the port");
    if (port.find(':', 1) != std::string_view::npos) {
      return refuse_host(text, "an IPv6 address must be in brackets, for example [2001:db8::1]:443");
    }
  }
  HostPort out;
  if (port.empty() && default_port != 0) {
    out.port = default_port;
  } else if (const auto number = port.empty() ? std::nullopt : parse_port(port.substr(1))) {
    out.port = *number;
  } else {
    return refuse_host(text, "the port is missing or not a number from 1 to 65535");
  }
  MJ_TRY(parsed, parse_host(host));
  if (is_bracketed != (parsed.address && parsed.address->is_v6))
    return refuse_host(text, "brackets are only for an IPv6 address");
  out.host = std::move(parsed);
  return out;
}

std::string extract_host(std::string_view address) {
  const std::size_t scheme = address.find("://");
  const std::size_t host_start = scheme == std::string_view::npos ? 0 : scheme + 3;
  std::string name(address.substr(host_start, address.find_first_of("/?#", host_start) - host_start));
  if (const std::size_t at = name.rfind('@'); at != std::string::npos) name.erase(0, at + 1);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

std::string to_text(const HostPort& target) {
  const auto& address = target.host.address;
  const std::string host = !address         ? target.host.name
                           : address->is_v6 ? '[' + to_text(*address) + ']'
                                            : to_text(*address);
  return host + ':' + std::to_string(target.port);
}

}  // namespace mycojobs
