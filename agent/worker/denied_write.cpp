#include "worker/denied_write.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/fd.h"
#include "text/json.h"

namespace mycojobs {
namespace {

// Texts of Python, libc and shells for EACCES, EROFS and EPERM.
constexpr std::string_view kDenials[] = {
    "Permission denied", "Read-only file system", "Operation not permitted", "[Errno 13]", "[Errno 30]", "[Errno 1]"};
constexpr std::size_t kMaxPathBytes = 4096;

bool reports_denial(std::string_view line) {
  return std::any_of(std::begin(kDenials), std::end(kDenials),
                     [line](std::string_view text) { return line.find(text) != std::string_view::npos; });
}

// A path inside of a folder, as it occurs in a text.
struct PathInFolder {
  const JobFolder* folder = nullptr;
  std::string relative;  // without a slash at its ends; empty for the folder itself
};

// Returns the end of the path that begins at `begin`. Programs put a quotation mark or a colon behind a path.
std::size_t find_path_end(std::string_view line, std::size_t begin) {
  const std::size_t end = std::min({line.find_first_of(":'\"`\r", begin), line.find("\u2019", begin), line.size()});
  return std::min(end, begin + kMaxPathBytes);
}

std::optional<PathInFolder> find_path(std::string_view line, const std::vector<JobFolder>& folders) {
  for (const JobFolder& folder : folders) {
    const std::size_t begin = line.find(folder.path);
    if (begin == std::string_view::npos) continue;
    std::string_view rest = line.substr(begin, find_path_end(line, begin) - begin).substr(folder.path.size());
    if (!rest.empty() && rest.front() != '/') continue;
    while (rest.starts_with('/')) rest.remove_prefix(1);
    while (rest.ends_with('/') || rest.ends_with(' ')) rest.remove_suffix(1);
    return PathInFolder{&folder, std::string(rest)};
  }
  return {};
}

// Opens the next file of a path. A file of another user may be replaced by a link at any time.
Fd open_entry(int parent, const std::string& name) {
  return Fd(::openat(parent, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
}

Fd open_path(const std::string& path) {
  Fd current(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  for (std::size_t begin = 1; current && begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    current = open_entry(current.get(), path.substr(begin, end - begin));
    begin = end + 1;
  }
  return current;
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

std::string find_cause(const PathInFolder& path) {
  const JobFolder& folder = *path.folder;
  if (!folder.writable) return folder.path + " is a volume with mode \"ro\"";
  constexpr unsigned kSearch = S_IXOTH, kCreate = S_IXOTH | S_IWOTH, kWrite = S_IWOTH;
  std::string shown = folder.path;
  Fd current = open_path(folder.host_path);
  for (std::size_t begin = 0;;) {
    struct stat info {};
    if (!current || ::fstat(current.get(), &info) != 0 || S_ISLNK(info.st_mode)) return {};
    const bool is_last = begin >= path.relative.size();
    if (!S_ISDIR(info.st_mode) || is_last) {
      const unsigned rights = S_ISDIR(info.st_mode) ? kCreate : kWrite;
      return has_rights(info, folder.owner, rights) ? "" : describe_owner(shown, info, folder.owner);
    }
    const std::size_t end = std::min(path.relative.find('/', begin), path.relative.size());
    const std::string name = path.relative.substr(begin, end - begin);
    Fd next = open_entry(current.get(), name);
    const unsigned rights = next ? kSearch : kCreate;
    if (name == ".." || !has_rights(info, folder.owner, rights))
      return name == ".." ? "" : describe_owner(shown, info, folder.owner);
    if (!next) return {};
    current = std::move(next);
    shown += '/' + name;
    begin = end + 1;
  }
}

}  // namespace

std::vector<JobFolder> list_job_folders(const Grants& grants, const FileOwner& files) {
  std::vector<JobFolder> folders;
  for (const std::string& path : grants.fs_write) folders.push_back({path, path, true, files});
  for (const Volume& volume : grants.volumes)
    folders.push_back({volume_mount_point(volume.name), volume.path, volume.writable, volume.owner});
  return folders;
}

FileOwner find_file_owner(const std::vector<ContextFiles>& files, ContextId context) {
  if (::geteuid() != 0) return {::geteuid(), ::getegid()};
  const auto entry = std::find_if(files.begin(), files.end(),
                                  [context](const ContextFiles& candidate) { return candidate.context == context; });
  return entry == files.end() ? default_file_owner(context) : entry->owner;
}

std::string explain_denied_write(std::string_view text, const std::vector<JobFolder>& folders) {
  while (!text.empty()) {
    const std::size_t newline = text.rfind('\n');
    const std::string_view line = newline == std::string_view::npos ? text : text.substr(newline + 1);
    const auto path = reports_denial(line) ? find_path(line, folders) : std::nullopt;
    if (path) return find_cause(*path);
    text = newline == std::string_view::npos ? std::string_view() : text.substr(0, newline);
  }
  return {};
}

void add_denied_write(JobEnd& end, const std::vector<JobFolder>& folders) {
  if (end.error.empty() || folders.empty()) return;
  std::string cause = explain_denied_write(end.error, folders);
  if (cause.empty()) {
    const auto info = parse_json(end.error_info);
    if (!info || !info->is_object() || !info->contains("stderr") || !info->at("stderr").is_string()) return;
    cause = explain_denied_write(info->at("stderr").get_ref<const std::string&>(), folders);
  }
  if (!cause.empty()) end.error += "; " + cause;
}

}  // namespace mycojobs
