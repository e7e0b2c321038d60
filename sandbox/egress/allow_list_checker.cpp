#include "sandbox/egress/allow_list_checker.h"

#include <algorithm>
#include <optional>

namespace mycojobs::egress {
namespace {

enum class AllowingEntryKind { range, single };  // kind of entry that allows the address

struct Block {
  const char* base;
  unsigned prefix;
  const char* kind;
  AllowingEntryKind allowed_by = AllowingEntryKind::range;
};
// IANA's special-purpose registries (RFC 6890 and its updates), preceded by metadata services of clouds. The first
// match is used.
constexpr Block kBlocks[] = {
    {"169.254.169.254", 32, "cloud metadata", AllowingEntryKind::single},
    {"169.254.170.2", 32, "cloud metadata", AllowingEntryKind::single},
    {"169.254.170.23", 32, "cloud metadata", AllowingEntryKind::single},
    {"100.100.100.200", 32, "cloud metadata", AllowingEntryKind::single},
    {"192.0.0.192", 32, "cloud metadata", AllowingEntryKind::single},
    {"168.63.129.16", 32, "cloud metadata", AllowingEntryKind::single},
    {"fd00:ec2::254", 128, "cloud metadata", AllowingEntryKind::single},
    {"fd00:ec2::23", 128, "cloud metadata", AllowingEntryKind::single},
    {"fd20:ce::254", 128, "cloud metadata", AllowingEntryKind::single},
    {"0.0.0.0", 8, "this host", AllowingEntryKind::single},
    {"127.0.0.0", 8, "loopback", AllowingEntryKind::single},
    {"10.0.0.0", 8, "private"},
    {"172.16.0.0", 12, "private"},
    {"192.168.0.0", 16, "private"},
    {"100.64.0.0", 10, "shared by a carrier"},
    {"169.254.0.0", 16, "link-local"},
    {"192.0.0.0", 24, "reserved"},
    {"192.0.2.0", 24, "for documentation"},
    {"192.88.99.0", 24, "reserved"},
    {"198.18.0.0", 15, "for benchmarks"},
    {"198.51.100.0", 24, "for documentation"},
    {"203.0.113.0", 24, "for documentation"},
    {"224.0.0.0", 4, "multicast"},
    {"255.255.255.255", 32, "broadcast"},
    {"240.0.0.0", 4, "reserved"},
    {"::", 128, "this host", AllowingEntryKind::single},
    {"::1", 128, "loopback", AllowingEntryKind::single},
    {"64:ff9b:1::", 48, "private (NAT64)"},
    {"100::", 64, "discarded"},
    {"2001:db8::", 32, "for documentation"},
    {"3fff::", 20, "for documentation"},
    {"fc00::", 7, "private"},
    {"fe80::", 10, "link-local"},
    {"fec0::", 10, "site-local"},
    {"ff00::", 8, "multicast"},
};

struct Wrapper {
  const char* base;
  unsigned prefix;
  unsigned offset;  // offset of the IPv4 address in the bytes
  bool is_inverted;
  const char* kind;
};
// IPv6 addresses that contain an IPv4 address.
constexpr Wrapper kWrappers[] = {
    {"::ffff:0.0.0.0", 96, 12, false, "IPv4-mapped"},
    {"::ffff:0:0:0", 96, 12, false, "IPv4-translated"},
    {"::", 96, 12, false, "IPv4-compatible"},
    {"64:ff9b::", 96, 12, false, "NAT64"},
    {"2002::", 16, 2, false, "6to4"},
    {"2001::", 32, 4, false, "Teredo"},
    {"2001::", 32, 12, true, "Teredo"},
};

IpAddress parse_literal(const char* text, bool is_v6) {
  IpAddress out{is_v6, {}};
  if (const auto parsed = parse_ip(text)) out = *parsed;
  return out;
}

struct Range {
  IpAddress base;
  unsigned prefix = 0;
};
struct SpecialAddress {
  std::string kind;
  std::optional<Range> block;  // empty if only an entry for a single address allows the address
};

struct ParsedTables {
  std::vector<std::pair<Range, const Block*>> blocks;
  std::vector<std::pair<Range, const Wrapper*>> wrappers;
  ParsedTables() {
    for (const auto& row : kBlocks) blocks.push_back({{parse_literal(row.base, false), row.prefix}, &row});
    for (const auto& row : kWrappers) wrappers.push_back({{parse_literal(row.base, true), row.prefix}, &row});
  }
};
const ParsedTables& tables() {
  static const ParsedTables kTables;
  return kTables;
}

IpAddress extract_ipv4(const IpAddress& address, unsigned offset, bool is_inverted) {
  IpAddress out;
  for (unsigned i = 0; i < 4; ++i) {
    out.bytes[i] = static_cast<std::uint8_t>(address.bytes[offset + i] ^ (is_inverted ? 0xff : 0));
  }
  return out;
}

// Returns every IPv4 address to which packets for the IPv6 address may be sent, and the kind of the mapping.
std::vector<std::pair<IpAddress, const char*>> extract_embedded_addresses(const IpAddress& address) {
  std::vector<std::pair<IpAddress, const char*>> addresses;
  if (!address.is_v6) return addresses;
  for (const auto& [range, row] : tables().wrappers) {
    if (is_in_range(address, range.base, range.prefix))
      addresses.emplace_back(extract_ipv4(address, row->offset, row->is_inverted), row->kind);
  }
  // ISATAP (RFC 5214): the interface identifier is 0:5efe or 200:5efe, followed by the IPv4 address.
  if ((address.bytes[8] & 0xfd) == 0 && address.bytes[9] == 0 && address.bytes[10] == 0x5e && address.bytes[11] == 0xfe)
    addresses.emplace_back(extract_ipv4(address, 12, false), "ISATAP");
  return addresses;
}

std::optional<SpecialAddress> find_special(const IpAddress& address) {
  for (const auto& [range, row] : tables().blocks) {
    if (!is_in_range(address, range.base, range.prefix)) continue;
    if (row->allowed_by == AllowingEntryKind::single) return SpecialAddress{row->kind, {}};
    return SpecialAddress{row->kind, range};
  }
  if (!address.is_v6) return {};
  bool is_nat64 = false;
  for (const auto& [v4, kind] : extract_embedded_addresses(address)) {
    if (const auto embedded = find_special(v4))
      return SpecialAddress{embedded->kind + " (" + kind + " " + to_text(v4) + ")", {}};
    is_nat64 = is_nat64 || std::string_view(kind) == "NAT64";
  }
  // In the rest of IPv6, only 2000::/3 is allocated.
  if (!is_nat64 && (address.bytes[0] & 0xe0) != 0x20) return SpecialAddress{"reserved", {}};
  return {};
}

bool is_host_address(const IpAddress& address, const std::vector<IpAddress>& host_addresses) {
  const auto is_listed = [&](const IpAddress& candidate) {
    return std::find(host_addresses.begin(), host_addresses.end(), candidate) != host_addresses.end();
  };
  if (is_listed(address)) return true;
  const auto embedded = extract_embedded_addresses(address);
  return std::any_of(embedded.begin(), embedded.end(),
                     [&](const auto& candidate) { return is_listed(candidate.first); });
}

// Formats an allow-list entry: "10.1.2.3:5432".
std::string format_entry(const IpAddress& address, std::uint16_t port) {
  return to_text(HostPort{Host{"", address}, port});
}

}  // namespace

Result<void> AllowListChecker::check_request(const HostPort& target) const {
  for (const auto& entry : entries_) {
    if (!entry.allows_port(target.port)) continue;
    if (target.host.address ? entry.allows_address(*target.host.address) : entry.allows_name(target.host.name))
      return {};
  }
  const std::string text = to_text(target);
  return fail(Code::denied, text + " is not on this job's list; to allow: net = [\"" + text + "\"]");
}

Result<void> AllowListChecker::check_address(const HostPort& target, const IpAddress& address,
                                             const std::vector<IpAddress>& host_addresses) const {
  std::optional<SpecialAddress> special_address = find_special(address);
  if (is_host_address(address, host_addresses)) special_address = SpecialAddress{"an address of the host itself", {}};
  if (!special_address) return {};
  for (const auto& entry : entries_) {
    if (!entry.allows_port(target.port) || !entry.allows_address(address)) continue;
    if (entry.is_single_address()) return {};
    if (special_address->block && entry.prefix >= special_address->block->prefix) return {};
  }
  const std::string entry = format_entry(address, target.port);
  const std::string subject = target.host.address ? entry : to_text(target) + " is " + to_text(address) + ", which";
  return fail(Code::denied, subject + " is not public (" + special_address->kind + "); to allow: net = [\"" + entry +
                                "\"]" + (special_address->block ? " or its range" : ""));
}

std::string find_special_kind(const IpAddress& address) {
  const auto special_address = find_special(address);
  return special_address ? special_address->kind : "";
}

}  // namespace mycojobs::egress
