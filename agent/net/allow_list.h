// The destinations that a job may connect to (policy field `net`), as text and as data:
//
//   api.example.org:443      that name          192.0.2.7:5432      that address
//   *.example.org:443        any name below it,  192.0.2.0/24:443    that range
//                            not itself          [2001:db8::1]:443   the same for IPv6; [2001:db8::/32]:443
//   api.example.org:*        every port
//
// Private and other special addresses have further conditions: see sandbox/egress/allow_list_checker.h. Pure and
// thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "net/host.h"

namespace mycojobs {

struct AllowEntry {
  enum class Form { name, subdomains, range };
  Form form = Form::name;
  std::string name;        // for `name` and `subdomains`: lower case, without "*."
  IpAddress base;          // for `range`
  unsigned prefix = 0;     // number of bits; equal to base.bits() for a single address
  std::uint16_t port = 0;  // 0 means every port
  bool operator==(const AllowEntry&) const = default;

  bool is_single_address() const { return form == Form::range && prefix == base.bits(); }
  bool allows_port(std::uint16_t requested) const { return port == 0 || port == requested; }
  bool allows_name(std::string_view requested) const;  // REQUIRES: the name is in lower case
  bool allows_address(const IpAddress&) const;
};

// Error invalid: the message begins with the entry and names the text to write instead.
Result<AllowEntry> parse_allow_entry(std::string_view text);
Result<std::vector<AllowEntry>> parse_allow(const std::vector<std::string>& entries);

// Returns whether `wide` allows everything that `narrow` allows. Compares a job's request with an operator's ceiling.
bool covers(const AllowEntry& wide, const AllowEntry& narrow);

}  // namespace mycojobs
