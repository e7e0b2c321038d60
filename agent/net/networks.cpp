#include "net/networks.h"

#include <algorithm>

#include "base/parse.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

// A dual-stack IPv6 socket reports IPv4 addresses with this prefix: ::ffff:a.b.c.d.
constexpr std::array<std::uint8_t, 12> kMappedIpv4Prefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

// Returns the IPv4 address in a mapped address; other addresses are returned unchanged.
IpAddress unmap_ipv4(const IpAddress& address) {
  if (!address.is_v6 || !std::equal(kMappedIpv4Prefix.begin(), kMappedIpv4Prefix.end(), address.bytes.begin()))
    return address;
  IpAddress ipv4_address;
  std::copy(address.bytes.begin() + 12, address.bytes.end(), ipv4_address.bytes.begin());
  return ipv4_address;
}

}  // namespace

Result<Networks> Networks::parse(const std::vector<std::string>& entries) {
  Networks out;
  std::vector<std::string> texts;
  for (const std::string& entry : entries) {
    if (entry == "loopback") {
      texts.insert(texts.end(), {"127.0.0.0/8", "::1"});
    } else if (entry == "any") {
      texts.insert(texts.end(), {"0.0.0.0/0", "::/0"});
    } else {
      texts.push_back(entry);
    }
    out.text_ = out.text_ == "none" ? entry : out.text_ + ',' + entry;
  }
  for (const std::string& text : texts) {
    const auto slash = std::min(text.find('/'), text.size());
    const auto base = parse_ip(text.substr(0, slash));
    std::uint64_t prefix_bits = base ? base->bits() : 0;
    const bool has_valid_prefix = slash == text.size() || parse_u64(text.substr(slash + 1), prefix_bits);
    if (!base || !has_valid_prefix || prefix_bits > base->bits()) {
      return fail(
          Code::invalid,
          excerpt(text) +
              " is not a network: use loopback, any, an address such as 192.0.2.7 or a range such as 10.1.0.0/16");
    }
    out.ranges_.emplace_back(*base, static_cast<unsigned>(prefix_bits));
  }
  return out;
}

bool Networks::contains(const IpAddress& address) const {
  const IpAddress unmapped = unmap_ipv4(address);
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [&](const auto& range) { return is_in_range(unmapped, range.first, range.second); });
}

}  // namespace mycojobs
