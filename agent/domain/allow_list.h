// The places that a job may connect to (policy `net`), as text and as data:
//
//   api.example.org:443      that name          192.0.2.7:5432      that address
//   *.example.org:443        any name below it,  192.0.2.0/24:443    that range
//                            not itself          [2001:db8::1]:443   the same for IPv6; [2001:db8::/32]:443
//   api.example.org:*        every port
//
// What private and other special addresses need besides is the judge's to say (sandbox/egress/judge.h). Pure; any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "domain/host.h"

namespace mycojobs {

struct AllowEntry {
  enum class Form { name, below, range };
  Form form = Form::name;
  std::string name;        // of `name` and `below`: lower case, without "*."
  IpAddress base;          // of `range`
  unsigned prefix = 0;     // bits; all of them: a single address
  std::uint16_t port = 0;  // 0: every port
  bool operator==(const AllowEntry&) const = default;

  bool single() const { return form == Form::range && prefix == base.bits(); }
  bool allows_port(std::uint16_t asked) const { return port == 0 || port == asked; }
  bool allows_name(std::string_view lower_case) const;
  bool allows_address(const IpAddress&) const;
};

// Errors: invalid, with the entry in front and what to write instead.
Result<AllowEntry> parse_allow_entry(std::string_view text);
Result<std::vector<AllowEntry>> parse_allow(const std::vector<std::string>& entries);

// Whether all that `narrow` allows is allowed by `wide` too: an operator's ceiling over a job's request.
bool covers(const AllowEntry& wide, const AllowEntry& narrow);

}  // namespace mycojobs
