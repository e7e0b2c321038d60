// Header fields of HTTP/1 messages: split, and what is meant for one hop only. Pure.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mycojobs::egress {

using Field = std::pair<std::string_view, std::string_view>;  // as it was written, without the spaces around the value

bool same_name(std::string_view, std::string_view);  // without regard to case
bool is_token(std::string_view);                     // RFC 9110, section 5.6.2

// Nothing: the line is no header field as RFC 9112 has it (no folding, no space before the colon, no control
// character).
std::optional<Field> parse_field(std::string_view line);

// The fields of a message that are for the next hop alone (RFC 9110, section 7.6.1): those known, and those that its
// Connection fields list. Those that frame the message (Host, Content-Length, Transfer-Encoding) never are.
class HopFields {
 public:
  explicit HopFields(const std::vector<Field>& all);
  bool contains(std::string_view name) const;

 private:
  std::set<std::string> listed_;  // lower case
};

}  // namespace mycojobs::egress
