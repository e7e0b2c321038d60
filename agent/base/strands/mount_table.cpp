#include "base/strands/mount_table.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <sstream>
#include <string_view>

namespace mycojobs {
namespace {

// The kernel writes blanks, tabs, line ends and backslashes as three octal digits after a backslash.
std::string decode_octal_escapes(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      decoded += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

bool is_below(std::string_view path, std::string_view folder) {
  return folder == "/" || (path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/'));
}

}  // namespace

MountTable::MountTable() : mountinfo_(::open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC)) {}

void MountTable::read_if_changed() {
  pollfd changed{mountinfo_.get(), POLLPRI, 0};
  if (!mountinfo_ || (is_read_ && ::poll(&changed, 1, 0) == 0)) return;
  is_read_ = true;
  std::string text;
  std::array<char, 8192> buffer;  // NOLINT(*-member-init): filled by pread
  for (ssize_t size = 1; size > 0;) {
    size = ::pread(mountinfo_.get(), buffer.data(), buffer.size(), static_cast<off_t>(text.size()));
    if (size > 0) text.append(buffer.data(), static_cast<std::size_t>(size));
  }
  mount_points_.clear();
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string id, parent, device, root, mount_point;
    if (fields >> id >> parent >> device >> root >> mount_point)
      mount_points_.push_back(decode_octal_escapes(mount_point));
  }
}

std::string MountTable::find_mount_point(const std::string& path) {
  read_if_changed();
  const std::string normal_path = std::filesystem::path(path).lexically_normal().string();
  std::string longest = "/";
  for (const std::string& mount_point : mount_points_) {
    if (mount_point.size() > longest.size() && is_below(normal_path, mount_point)) longest = mount_point;
  }
  return longest;
}

}  // namespace mycojobs
