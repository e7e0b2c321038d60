#include "net/networks.h"

#include <algorithm>

#include "base/parse.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};  // prefix of ::ffff:0:0/96

IpAddress unmapped(const IpAddress& address) {
  if (!address.v6 || !std::equal(kMapped.begin(), kMapped.end(), address.bytes.begin())) return address;
  IpAddress four;
  std::copy(address.bytes.begin() + 12, address.bytes.end(), four.bytes.begin());
  return four;
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
    std::uint64_t bits = base ? base->bits() : 0;
    const bool sized = slash == text.size() || parse_u64(text.substr(slash + 1), bits);
    if (!base || !sized || bits > base->bits()) {
      return fail(
          Code::invalid,
          excerpt(text) +
              " is not a network: use loopback, any, an address such as 192.0.2.7 or a range such as 10.1.0.0/16");
    }
    out.ranges_.emplace_back(*base, static_cast<unsigned>(bits));
  }
  return out;
}

bool Networks::contains(const IpAddress& address) const {
  const IpAddress plain = unmapped(address);
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [&](const auto& range) { return in_range(plain, range.first, range.second); });
}

}  // namespace mycojobs
