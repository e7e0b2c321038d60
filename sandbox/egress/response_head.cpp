#include "sandbox/egress/response_head.h"

#include <vector>

#include "sandbox/egress/header_fields.h"
#include "sandbox/egress/request_head.h"

namespace mycojobs::egress {
namespace {

// Servers are read more kindly than jobs: bare LF too. One answer a connection leaves nothing to smuggle.
std::size_t end_of_head(std::string_view bytes) {
  for (std::size_t at = bytes.find('\n'); at != bytes.npos; at = bytes.find('\n', at + 1)) {
    const std::string_view rest = bytes.substr(at + 1);
    if (rest.starts_with("\n")) return at + 2;
    if (rest.starts_with("\r\n")) return at + 3;
  }
  return 0;
}

std::vector<std::string_view> lines_of(std::string_view head) {
  std::vector<std::string_view> lines;
  while (!head.empty()) {
    const std::size_t end = head.find('\n');
    std::string_view line = head.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) lines.push_back(line);
    head.remove_prefix(end == head.npos ? head.size() : end + 1);
  }
  return lines;
}

bool is_status_line(std::string_view line) {
  if (line.size() < 12 || !line.starts_with("HTTP/1.") || line[8] != ' ') return false;
  return line.substr(9, 3).find_first_not_of("0123456789") == line.npos && line.find('\0') == line.npos;
}

std::string rewritten(const std::vector<std::string_view>& lines, bool last) {
  std::vector<Field> fields;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    if (const auto field = parse_field(lines[i])) fields.push_back(*field);
  }
  const HopFields hop(fields);
  std::string out(lines.front());
  out += "\r\n";
  for (const auto& [name, value] : fields) {
    if (!hop.contains(name)) out.append(name).append(": ").append(value).append("\r\n");
  }
  if (last) out += "Connection: close\r\n";
  return out + "\r\n";
}

}  // namespace

Result<std::string> ResponseHead::feed(std::string_view bytes) {
  if (complete_) return std::string(bytes);
  waiting_ += bytes;
  std::string out;
  for (std::size_t size = 0; !complete_ && (size = end_of_head(waiting_)) != 0;) {
    const auto lines = lines_of(std::string_view(waiting_).substr(0, size));
    if (lines.empty() || !is_status_line(lines.front())) return fail(Code::invalid, "the server's answer is no HTTP/1");
    const std::string_view status = lines.front().substr(9, 3);
    // Nobody has asked for another protocol: Upgrade was taken out.
    if (status == "101") return fail(Code::invalid, "the server changed the protocol without being asked");
    complete_ = status.front() != '1';
    out += rewritten(lines, complete_);
    waiting_.erase(0, size);
  }
  if (complete_) {
    out += waiting_;
    waiting_ = {};
  } else if (waiting_.size() > kMaxHeadBytes) {
    return fail(Code::too_large, "the head of the server's answer is over 16 KiB");
  }
  return out;
}

}  // namespace mycojobs::egress
