#include "net/allow_list.h"

#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxEntryLength = 300;

tl::unexpected<Error> invalid_entry(std::string_view entry, const std::string& reason) {
  return fail(Code::invalid, excerpt(entry) + ": " + reason);
}

struct HostPortText {
  std::string_view host, port;
  bool is_bracketed = false;
};
// Splits "host:port" at the last colon and removes the brackets.
Result<HostPortText> split_host_port(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  const std::size_t bracket = text.rfind(']');
  if (colon == text.npos || (bracket != text.npos && bracket > colon)) {
    return invalid_entry(text, "the port is missing: write host:port, or host:* for every port");
  }
  HostPortText parts{text.substr(0, colon), text.substr(colon + 1), false};
  if (parts.host.size() >= 2 && parts.host.front() == '[' && parts.host.back() == ']') {
    parts.host = parts.host.substr(1, parts.host.size() - 2);
    parts.is_bracketed = true;
  } else if (parts.host.find(':') != text.npos) {
    return invalid_entry(text,
                         "an IPv6 address must be in brackets, for example [2001:db8::1]:443 or [2001:db8::/32]:443");
  }
  return parts;
}

bool has_host_bits(const IpAddress& base, unsigned prefix) {
  for (unsigned bit = prefix; bit < base.bits(); ++bit) {
    if (((base.bytes[bit / 8] >> (7 - bit % 8)) & 1U) != 0) return true;
  }
  return false;
}

IpAddress first_address(IpAddress base, unsigned prefix) {
  for (unsigned bit = prefix; bit < base.bits(); ++bit) {
    base.bytes[bit / 8] = static_cast<std::uint8_t>(base.bytes[bit / 8] & ~(1U << (7 - bit % 8)));
  }
  return base;
}

Result<AllowEntry> parse_range(std::string_view text, std::string_view host, std::size_t slash) {
  AllowEntry entry;
  entry.form = AllowEntry::Form::range;
  const auto base = parse_ip(host.substr(0, slash));
  if (!base) return invalid_entry(text, "a range must begin with a canonical address, for example 192.0.2.0/24:443");
  const std::string_view digits = host.substr(slash + 1);
  const auto prefix = digits == "0" ? std::optional<std::uint16_t>(std::uint16_t{0}) : parse_port(digits);
  if (!prefix || *prefix > base->bits()) {
    return invalid_entry(text,
                         "the prefix length of a range must be a number from 0 to " + std::to_string(base->bits()));
  }
  if (has_host_bits(*base, *prefix)) {
    return invalid_entry(
        text, "the range begins at " + to_text(first_address(*base, *prefix)) + ": write that, or the address alone");
  }
  entry.base = *base;
  entry.prefix = *prefix;
  return entry;
}

Result<AllowEntry> parse_host_part(std::string_view text, const HostPortText& parts) {
  AllowEntry entry;
  if (const std::size_t slash = parts.host.find('/'); slash != parts.host.npos)
    return parse_range(text, parts.host, slash);
  std::string_view host = parts.host;
  if (host == "*") return invalid_entry(text, "a wildcard needs a domain, as in *.example.org:443");
  if (host.starts_with("*.")) {
    entry.form = AllowEntry::Form::subdomains;
    host.remove_prefix(2);
  }
  if (host.find('*') != host.npos)
    return invalid_entry(text, "a wildcard must replace whole leading labels, for example *.example.org");
  auto parsed = parse_host(host);
  if (!parsed) return invalid_entry(text, parsed.error().message);
  if (parsed->address) {
    if (entry.form == AllowEntry::Form::subdomains)
      return invalid_entry(text, "a wildcard cannot precede an address: write a range instead");
    entry.form = AllowEntry::Form::range;
    entry.base = *parsed->address;
    entry.prefix = entry.base.bits();
  }
  entry.name = std::move(parsed->name);
  return entry;
}

}  // namespace

bool AllowEntry::allows_name(std::string_view requested) const {
  if (form == Form::name) return requested == name;
  return form == Form::subdomains && requested.size() > name.size() + 1 && requested.ends_with(name) &&
         requested[requested.size() - name.size() - 1] == '.';
}

bool AllowEntry::allows_address(const IpAddress& address) const {
  return form == Form::range && is_in_range(address, base, prefix);
}

Result<AllowEntry> parse_allow_entry(std::string_view text) {
  if (text.size() > kMaxEntryLength) return invalid_entry(text, "an entry has at most 300 characters");
  MJ_TRY(parts, split_host_port(text));
  MJ_TRY(entry, parse_host_part(text, parts));
  const bool is_v6_range = entry.form == AllowEntry::Form::range && entry.base.is_v6;
  if (parts.is_bracketed != is_v6_range) return invalid_entry(text, "only an IPv6 address or range can be in brackets");
  if (parts.port != "*") {
    const auto port = parse_port(parts.port);
    if (!port) return invalid_entry(text, "the port is a number from 1 to 65535, or * for every port");
    entry.port = *port;
  }
  return std::move(entry);
}

Result<std::vector<AllowEntry>> parse_allow(const std::vector<std::string>& entries) {
  std::vector<AllowEntry> out;
  out.reserve(entries.size());
  for (const auto& text : entries) {
    MJ_TRY(entry, parse_allow_entry(text));
    out.push_back(std::move(entry));
  }
  return out;
}

bool covers(const AllowEntry& wide, const AllowEntry& narrow) {
  if (wide.port != 0 && wide.port != narrow.port) return false;
  switch (narrow.form) {
    case AllowEntry::Form::name:
      return wide.allows_name(narrow.name);
    case AllowEntry::Form::subdomains:
      return wide.form == AllowEntry::Form::subdomains && (wide.name == narrow.name || wide.allows_name(narrow.name));
    case AllowEntry::Form::range:
      return wide.form == AllowEntry::Form::range && wide.prefix <= narrow.prefix && wide.allows_address(narrow.base);
  }
  return false;
}

}  // namespace mycojobs
