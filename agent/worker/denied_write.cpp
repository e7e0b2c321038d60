#include "worker/denied_write.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "sandbox/open_path.h"
#include "text/json.h"

namespace mycojobs {
namespace {

// Texts of Python, libc and shells for EACCES, EPERM and EROFS.
constexpr std::string_view kDenials[] = {"Permission denied", "Operation not permitted", "[Errno 13]", "[Errno 1]"};
constexpr std::string_view kReadOnlyDenials[] = {"Read-only file system", "[Errno 30]"};
constexpr std::size_t kMaxPathBytes = 4096;

bool contains_any(std::string_view line, std::span<const std::string_view> texts) {
  return std::any_of(texts.begin(), texts.end(),
                     [line](std::string_view text) { return line.find(text) != std::string_view::npos; });
}

// Returns whether a path can begin here. Behind any other character, the text is a part of a longer path.
bool can_path_begin(std::string_view line, std::size_t begin) {
  const std::string_view before = line.substr(0, begin);
  return before.empty() || std::string_view(" \t'\"`:=([{<>,;").find(before.back()) != std::string_view::npos ||
         before.ends_with("\u2018") || before.ends_with("\u201c");
}

// Returns the end of the path that begins at `begin`. Programs put a quotation mark or a colon behind a path.
std::size_t find_path_end(std::string_view line, std::size_t begin) {
  const std::size_t end = std::min(
      {line.find_first_of(":'\"`\r", begin), line.find("\u2019", begin), line.find("\u201d", begin), line.size()});
  return std::min(end, begin + kMaxPathBytes);
}

// Returns the path in the folder, without a slash at its ends, or no value if the line has none.
std::optional<std::string> find_relative_path(std::string_view line, const std::string& folder) {
  for (std::size_t begin = line.find(folder); begin != std::string_view::npos; begin = line.find(folder, begin + 1)) {
    const std::size_t end = find_path_end(line, begin);
    if (!can_path_begin(line, begin) || end < begin + folder.size()) continue;
    std::string_view rest = line.substr(begin + folder.size(), end - begin - folder.size());
    if (!rest.empty() && rest.front() != '/') continue;
    while (rest.starts_with('/')) rest.remove_prefix(1);
    while (rest.ends_with('/') || rest.ends_with(' ')) rest.remove_suffix(1);
    return std::string(rest);
  }
  return {};
}

// The longest folder that occurs decides, since a folder can be inside of another.
std::optional<DeniedAccess> find_in_line(std::string_view line, const std::vector<JobFolder>& folders) {
  const bool is_read_only = contains_any(line, kReadOnlyDenials);
  if (!is_read_only && !contains_any(line, kDenials)) return {};
  std::optional<DeniedAccess> longest;
  for (const JobFolder& folder : folders) {
    if (longest && longest->folder.path.size() >= folder.path.size()) continue;
    if (auto relative = find_relative_path(line, folder.path))
      longest = DeniedAccess{folder, std::move(*relative), is_read_only};
  }
  return longest;
}

std::optional<DeniedAccess> find_in_text(std::string_view text, const std::vector<JobFolder>& folders) {
  while (!text.empty()) {
    const std::size_t newline = text.rfind('\n');
    if (auto found = find_in_line(newline == std::string_view::npos ? text : text.substr(newline + 1), folders))
      return found;
    text = newline == std::string_view::npos ? std::string_view() : text.substr(0, newline);
  }
  return {};
}

// Opens the next file of a path. A file of another user may be replaced by a link at any time.
Fd open_entry(int parent, const std::string& name) {
  return Fd(::openat(parent, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
}

// Returns whether the mode bits give the job these rights (as in S_IRWXO).
bool has_rights(const struct stat& info, const FileOwner& owner, unsigned rights) {
  const unsigned mode = info.st_mode;
  if (info.st_uid == owner.uid) return (mode >> 6 & rights) == rights;
  if (info.st_gid == owner.gid) return (mode >> 3 & rights) == rights;
  return (mode & rights) == rights;
}

std::string describe_owner(const std::string& path, const struct stat& info, const FileOwner& owner) {
  return fmt::format("{} belongs to user {} and has mode {:04o}; files of this job belong to user {}", path,
                     info.st_uid, info.st_mode & 07777U, owner.uid);
}

// Jobs may search folders and read files of a read-only volume. A right that a job lacks there is one to read.
struct NeededRights {
  unsigned search = S_IXOTH, folder = S_IXOTH | S_IWOTH, file = S_IWOTH;
};

NeededRights get_needed_rights(const JobFolder& folder) {
  return folder.writable ? NeededRights{} : NeededRights{S_IXOTH, S_IXOTH | S_IROTH, S_IROTH};
}

std::string find_missing_right(const DeniedAccess& access) {
  const JobFolder& folder = access.folder;
  const NeededRights needed = get_needed_rights(folder);
  std::string shown = folder.path;
  Fd current = open_without_links(folder.host_path);
  for (std::size_t begin = 0;;) {
    struct stat info {};
    if (!current || ::fstat(current.get(), &info) != 0 || S_ISLNK(info.st_mode)) return {};
    const bool is_last = begin >= access.relative.size();
    if (!S_ISDIR(info.st_mode) || is_last) {
      const unsigned rights = S_ISDIR(info.st_mode) ? needed.folder : needed.file;
      return has_rights(info, folder.owner, rights) ? "" : describe_owner(shown, info, folder.owner);
    }
    const std::size_t end = std::min(access.relative.find('/', begin), access.relative.size());
    const std::string name = access.relative.substr(begin, end - begin);
    Fd next = open_entry(current.get(), name);
    const unsigned rights = next || !folder.writable ? needed.search : needed.folder;
    if (name == ".." || !has_rights(info, folder.owner, rights))
      return name == ".." ? "" : describe_owner(shown, info, folder.owner);
    if (!next) return {};
    current = std::move(next);
    shown += '/' + name;
    begin = end + 1;
  }
}

std::string find_read_only_cause(const JobFolder& folder) {
  if (!folder.writable) return folder.path + " is a volume with mode \"ro\"";
  struct statvfs info {};
  const Fd host_folder = open_without_links(folder.host_path);
  if (!host_folder || ::fstatvfs(host_folder.get(), &info) != 0 || (info.f_flag & ST_RDONLY) == 0) return {};
  return fmt::format(
      "{} is mounted read-only on the host: mount it with rw, or add it to ReadWritePaths= of the systemd unit of the "
      "agent",
      folder.host_path);
}

}  // namespace

std::vector<JobFolder> list_job_folders(const Grants& grants, const FileOwner& file_owner) {
  std::vector<JobFolder> folders;
  for (const std::string& path : grants.fs_write) folders.push_back({path, path, true, file_owner});
  for (const Volume& volume : grants.volumes)
    folders.push_back({volume_mount_point(volume.name), volume.path, volume.writable, volume.owner});
  return folders;
}

FileOwner find_file_owner(const std::vector<ContextFiles>& files, ContextId context) {
  if (::geteuid() != 0) return {::geteuid(), ::getegid()};
  const ContextFiles* entry = find_context_files(files, context);
  return entry == nullptr ? default_file_owner(context) : entry->owner;
}

std::optional<DeniedAccess> find_denied_access(const JobEnd& end, const std::vector<JobFolder>& folders) {
  if (end.error.empty() || folders.empty()) return {};
  if (auto access = find_in_text(end.error, folders)) return access;
  const auto info = parse_json(end.error_info);
  if (!info || !info->is_object() || !info->contains("stderr") || !info->at("stderr").is_string()) return {};
  return find_in_text(info->at("stderr").get_ref<const std::string&>(), folders);
}

std::string find_cause(const DeniedAccess& access) {
  return access.is_read_only ? find_read_only_cause(access.folder) : find_missing_right(access);
}

}  // namespace mycojobs
