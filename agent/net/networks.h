// Networks that an operator allows a coordinator to call. Pure and thread-safe.
//
//   loopback         127.0.0.0/8 and ::1          10.1.0.0/16, fd00::/8   that range
//   any              every address                192.0.2.7, ::1          that address
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "net/host.h"

namespace mycojobs {

class Networks {
 public:
  // Error invalid: names the entry.
  static Result<Networks> parse(const std::vector<std::string>& entries);
  // An IPv4-mapped IPv6 address (::ffff:10.0.0.1) is treated as the IPv4 address.
  bool contains(const IpAddress&) const;
  bool is_empty() const { return ranges_.empty(); }
  const std::string& text() const { return text_; }  // the entries: "loopback,10.0.0.0/8"; "none" without entries

 private:
  std::vector<std::pair<IpAddress, unsigned>> ranges_;
  std::string text_ = "none";
};

}  // namespace mycojobs
