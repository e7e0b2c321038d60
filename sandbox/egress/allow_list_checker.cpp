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
  AllowingEntryKind opens = AllowingEntryKind::range;
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
  bool inverted;
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

IpAddress literal(const char* text, bool v6) {
  IpAddress out{v6, {}};
  if (const auto parsed = parse_ip(text)) out = *parsed;
  return out;
}

struct Range {
  IpAddress base;
  unsigned prefix = 0;
};
struct Special {
  std::string kind;
  std::optional<Range> block;  // empty: only a single address allows it
};

struct ParsedTables {
  std::vector<std::pair<Range, const Block*>> blocks;
  std::vector<std::pair<Range, const Wrapper*>> wrappers;
  ParsedTables() {
    for (const auto& row : kBlocks) blocks.push_back({{literal(row.base, false), row.prefix}, &row});
    for (const auto& row : kWrappers) wrappers.push_back({{literal(row.base, true), row.prefix}, &row});
  }
};
const ParsedTables& tables() {
  static const ParsedTables kTables;
  return kTables;
}

IpAddress unwrapped(const IpAddress& address, unsigned offset, bool inverted) {
  IpAddress out;
  for (unsigned i = 0; i < 4; ++i) {
    out.bytes[i] = static_cast<std::uint8_t>(address.bytes[offset + i] ^ (inverted ? 0xff : 0));
  }
  return out;
}

// Returns every IPv4 address that the IPv6 address may lead to, and the kind of the mapping.
std::vector<std::pair<IpAddress, const char*>> inside(const IpAddress& address) {
  std::vector<std::pair<IpAddress, const char*>> found;
  if (!address.v6) return found;
  for (const auto& [range, row] : tables().wrappers) {
    if (in_range(address, range.base, range.prefix))
      found.emplace_back(unwrapped(address, row->offset, row->inverted), row->kind);
  }
  // ISATAP (RFC 5214): the interface identifier is 0:5efe or 200:5efe, followed by the IPv4 address.
  if ((address.bytes[8] & 0xfd) == 0 && address.bytes[9] == 0 && address.bytes[10] == 0x5e && address.bytes[11] == 0xfe)
    found.emplace_back(unwrapped(address, 12, false), "ISATAP");
  return found;
}

std::optional<Special> special(const IpAddress& address) {
  for (const auto& [range, row] : tables().blocks) {
    if (!in_range(address, range.base, range.prefix)) continue;
    if (row->opens == AllowingEntryKind::single) return Special{row->kind, {}};
    return Special{row->kind, range};
  }
  if (!address.v6) return {};
  bool nat64 = false;
  for (const auto& [v4, kind] : inside(address)) {
    if (const auto of = special(v4)) return Special{of->kind + " (" + kind + " " + to_text(v4) + ")", {}};
    nat64 = nat64 || std::string_view(kind) == "NAT64";
  }
  // In the rest of IPv6, only 2000::/3 is allocated.
  if (!nat64 && (address.bytes[0] & 0xe0) != 0x20) return Special{"reserved", {}};
  return {};
}

bool is_own(const IpAddress& address, const std::vector<IpAddress>& own) {
  const auto among = [&](const IpAddress& each) { return std::find(own.begin(), own.end(), each) != own.end(); };
  if (among(address)) return true;
  const auto wrapped = inside(address);
  return std::any_of(wrapped.begin(), wrapped.end(), [&](const auto& each) { return among(each.first); });
}

// Formats an allow-list entry: "10.1.2.3:5432".
std::string entry_for(const IpAddress& address, std::uint16_t port) {
  return to_text(HostPort{Host{"", address}, port});
}

}  // namespace

Result<void> AllowListChecker::check_request(const HostPort& asked) const {
  for (const auto& entry : entries_) {
    if (!entry.allows_port(asked.port)) continue;
    if (asked.host.address ? entry.allows_address(*asked.host.address) : entry.allows_name(asked.host.name)) return {};
  }
  const std::string text = to_text(asked);
  return fail(Code::denied, text + " is not on this job's list; to allow: net = [\"" + text + "\"]");
}

Result<void> AllowListChecker::check_address(const HostPort& asked, const IpAddress& address,
                                             const std::vector<IpAddress>& own) const {
  std::optional<Special> found = special(address);
  if (is_own(address, own)) found = Special{"an address of the host itself", {}};
  if (!found) return {};
  for (const auto& entry : entries_) {
    if (!entry.allows_port(asked.port) || !entry.allows_address(address)) continue;
    if (entry.single()) return {};
    if (found->block && entry.prefix >= found->block->prefix) return {};
  }
  const std::string entry = entry_for(address, asked.port);
  const std::string what = asked.host.address ? entry : to_text(asked) + " is " + to_text(address) + ", which";
  return fail(Code::denied, what + " is not public (" + found->kind + "); to allow: net = [\"" + entry + "\"]" +
                                (found->block ? " or its range" : ""));
}

std::string special_kind(const IpAddress& address) {
  const auto found = special(address);
  return found ? found->kind : "";
}

}  // namespace mycojobs::egress
