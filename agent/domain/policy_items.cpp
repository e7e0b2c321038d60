// The items of a policy's lists: what each may look like.
#include <algorithm>
#include <array>

#include "base/ids.h"
#include "domain/allow_list.h"
#include "domain/policy_fields.h"
#include "domain/utf8.h"

namespace mycojobs::policies {
namespace {

constexpr std::size_t kMaxPathBytes = 4095;   // PATH_MAX counts the NUL
constexpr std::size_t kMaxSecretBytes = 255;  // of a file name
constexpr std::array kRoots =
    std::to_array<std::string_view>({"/srv", "/opt", "/home", "/var", "/mnt", "/media", "/data"});

bool is_control(char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

Result<std::string> check_folder(std::string_view path) {
  if (path.size() > kMaxPathBytes) {
    return fail(Code::invalid,
                "a path of " + std::to_string(path.size()) + " bytes is longer than " + std::to_string(kMaxPathBytes));
  }
  if (!path.starts_with('/')) return fail(Code::invalid, shown(path) + " is not an absolute path");
  if (!is_utf8(path) || std::any_of(path.begin(), path.end(), is_control)) {
    return fail(Code::invalid, shown(path) + " has control characters in it, or is not UTF-8");
  }
  std::string normal;
  for (std::size_t from = 0; from < path.size();) {
    const std::size_t end = std::min(path.find('/', from), path.size());
    const std::string_view part = path.substr(from, end - from);
    if (part == "..") return fail(Code::invalid, shown(path) + " has \"..\" in it: name the folder itself");
    if (!part.empty() && part != ".") normal.append("/").append(part);
    from = end + 1;
  }
  const auto below = [&normal](std::string_view root) {
    return is_within(normal, root) && normal.size() > root.size();
  };
  if (!std::any_of(kRoots.begin(), kRoots.end(), below)) {
    return fail(Code::invalid, shown(path) + " is not below /srv, /opt, /home, /var, /mnt, /media or /data");
  }
  return normal;
}

bool is_within(std::string_view path, std::string_view folder) {
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

Result<std::string> check_allow_entry(std::string_view entry) {
  std::string normal(entry);
  std::transform(normal.begin(), normal.end(), normal.begin(), lower);
  MJ_CHECK(parse_allow_entry(normal));
  return normal;
}

bool covers_entry(std::string_view granted, std::string_view asked) {
  const auto wide = parse_allow_entry(granted);
  const auto narrow = parse_allow_entry(asked);
  return wide && narrow && covers(*wide, *narrow);
}

Result<std::string> check_syscall(std::string_view name, PolicyKind kind) {
  if (is_granted_by_exec(name))
    return fail(Code::invalid, shown(name) + " is not granted by name: exec = true grants it");
  if (is_known_syscall(name) || (kind == PolicyKind::ceiling && name == "*")) return std::string(name);
  return fail(Code::invalid, shown(name) + " is no system call: names are as in syscalls(2), such as \"keyctl\"");
}

Result<std::string> check_secret(std::string_view name) {
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return is_digit(c) || is_lower(lower(c)) || c == '-' || c == '_' || c == '.';
  });
  if (plain && !name.empty() && name.front() != '.' && name.size() <= kMaxSecretBytes) return std::string(name);
  return fail(Code::invalid, shown(name) +
                                 " is not the name of a secret: 1 to 255 of a-z, A-Z, 0-9, '_', '-' and "
                                 "'.', not '.' first");
}

}  // namespace mycojobs::policies
