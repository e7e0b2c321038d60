#include "sandbox/launcher/id_map.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>

#include "base/errno_text.h"
#include "base/fd.h"

namespace mycojobs::sandbox {
namespace {

constexpr const char* kLockFile = "lock";

// The folder must belong to this user and not be writable for others; otherwise another user could claim all ids.
bool is_trusted(int folder) {
  struct stat info {};
  return ::fstat(folder, &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() &&
         (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

Fd open_folder(const std::string& path) {
  for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    (void)::mkdir(path.substr(0, slash).c_str(), 0755);
    if (slash == std::string::npos) break;
  }
  Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (folder && !is_trusted(folder.get())) {
    folder.reset();
    errno = EPERM;
  }
  return folder;
}

Fd lock_folder(const std::string& path) {
  const Fd folder = open_folder(path);
  if (!folder) return {};
  Fd lock(::openat(folder.get(), kLockFile, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  while (lock && ::flock(lock.get(), LOCK_EX) != 0) {
    if (errno != EINTR) lock.reset();
  }
  return lock;
}

bool is_same_file(int a_fd, int b_fd) {
  struct stat a {
  }, b{};
  return ::fstat(a_fd, &a) == 0 && ::fstat(b_fd, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

}  // namespace

IdRegistry IdRegistry::open(const std::string& folder) {
  IdRegistry registry;
  registry.folder_ = folder;
  const auto with_problem = [&](const std::string& subject) {
    registry.problem_ = fmt::format(
        "{}: {}: agents on this host can use the same user ids for their jobs; give each agent its own range", subject,
        errno_text(errno));
    return std::move(registry);
  };
  const Fd lock = lock_folder(folder);
  if (!lock) return with_problem(folder);
  for (int number = 0;; ++number) {
    const std::string path = fmt::format("{}/{}", folder, number);
    registry.entry_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!registry.entry_ && errno == EEXIST) continue;
    if (!registry.entry_ || ::flock(registry.entry_.get(), LOCK_EX | LOCK_NB) != 0) return with_problem(path);
    return registry;
  }
}

void IdRegistry::remove_entry(int fd) {
  char path[4096];
  const ssize_t size = ::readlink(fmt::format("/proc/self/fd/{}", fd).c_str(), path, sizeof path - 1);
  if (size <= 0) return;
  path[size] = '\0';
  struct stat by_descriptor {
  }, by_name{};
  if (::fstat(fd, &by_descriptor) == 0 && ::lstat(path, &by_name) == 0 && by_descriptor.st_ino == by_name.st_ino &&
      by_descriptor.st_dev == by_name.st_dev)
    (void)::unlink(path);
}

IdRegistry IdRegistry::adopt(Fd entry, const std::string& folder) {
  IdRegistry registry;
  registry.folder_ = folder;
  registry.entry_ = std::move(entry);
  return registry;
}

IdRegistry::Session IdRegistry::open_session() const { return {*this, entry_ ? lock_folder(folder_) : Fd()}; }

std::vector<IdSpan> IdRegistry::Session::list_ranges_in_use() const {
  std::vector<IdSpan> spans;
  DIR* const names = lock_ ? ::opendir(registry_.folder_.c_str()) : nullptr;
  if (names == nullptr) return spans;
  while (const dirent* name = ::readdir(names)) {
    if (name->d_name[0] < '0' || name->d_name[0] > '9') continue;
    const Fd entry(::openat(::dirfd(names), name->d_name, O_RDWR | O_NOFOLLOW | O_CLOEXEC));
    if (!entry || is_same_file(entry.get(), registry_.entry_.get())) continue;
    if (::flock(entry.get(), LOCK_EX | LOCK_NB) == 0) {
      (void)::unlinkat(::dirfd(names), name->d_name, 0);
      continue;
    }
    char text[64] = {};
    unsigned long long base = 0, count = 0;
    if (::pread(entry.get(), text, sizeof text - 1, 0) > 0 && std::sscanf(text, "%llu %llu", &base, &count) == 2)
      spans.push_back({base, count});
  }
  ::closedir(names);
  return spans;
}

bool IdRegistry::Session::register_range(const IdSpan& span) const {
  if (!registry_.entry_) return true;
  const std::string text = fmt::format("{} {}\n", span.base, span.count);
  return lock_ && ::pwrite(registry_.entry_.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
}

namespace {

bool parse_number(const std::string& text, std::uint64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

// Parses lines of name:base:count.
std::vector<IdSpan> read_spans(const char* path) {
  std::vector<IdSpan> spans;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream parts(line);
    std::string name, base, count;
    if (!std::getline(parts, name, ':') || !std::getline(parts, base, ':') || !std::getline(parts, count)) continue;
    IdSpan used;
    if (!parse_number(base, used.base) || !parse_number(count, used.count)) continue;
    spans.push_back(used);
  }
  return spans;
}

std::vector<IdSpan> read_user_spans() {
  std::vector<IdSpan> spans = read_spans("/etc/subuid");
  for (const IdSpan& span : read_spans("/etc/subgid")) spans.push_back(span);
  return spans;
}

// Returns the end of the first overlapping range, or 0.
std::uint64_t find_overlap_end(const std::vector<IdSpan>& ranges, const IdSpan& candidate) {
  for (const auto& used : ranges) {
    if (candidate.overlaps(used)) return used.base + used.count;
  }
  return 0;
}

// In a container only some ids exist, and an id map may not contain others.
bool are_ids_mapped(const char* map, const IdSpan& candidate) {
  std::ifstream file(map);
  for (IdSpan inside, outside; file >> inside.base >> outside.base >> inside.count;) {
    if (inside.base <= candidate.base && candidate.base + candidate.count <= inside.base + inside.count) return true;
  }
  return false;
}

// True in a user namespace that does not map all ids of the host.
bool is_in_limited_user_namespace() {
  return !are_ids_mapped("/proc/self/uid_map", {0, std::numeric_limits<std::uint32_t>::max()});
}

}  // namespace

bool contains_id(const std::vector<IdSpan>& spans, std::uint32_t id) {
  return find_overlap_end(spans, IdSpan{id, 1}) != 0;
}

Result<ChosenIds> choose_ids(std::uint32_t base, std::uint32_t count, IdRegistry& registry) {
  if (::geteuid() != 0) return ChosenIds{IdRange{0, 1}, {}};
  constexpr std::uint64_t kLastId = 0xfffffffe;
  constexpr std::uint32_t kMinCount = 2048;  // 1000 are reserved for the system, the others are for jobs
  if (count < kMinCount)
    return fail(Code::invalid, fmt::format("sandbox.uid_range: at least {} ids are needed", kMinCount));
  // A container may have only 65536 ids, but does not share them with other users.
  const std::uint32_t min = is_in_limited_user_namespace() ? 1000 : 65536;
  if (base < min)
    return fail(Code::invalid, fmt::format("sandbox.uid_range: starts below {}, where the host's own users are", min));
  IdSpan candidate{base, count};
  const auto session = registry.open_session();
  UsedIds used{session.list_ranges_in_use(), read_user_spans()};
  for (std::uint64_t end = 1; end != 0 && candidate.base + candidate.count <= kLastId;
       candidate.base = std::max(end, candidate.base)) {
    end = find_overlap_end(used.of_users, candidate);
    if (end == 0) end = find_overlap_end(used.of_launchers, candidate);
  }
  if (candidate.base + candidate.count > kLastId) {
    return fail(Code::invalid,
                "sandbox.uid_range: overlaps /etc/subuid or the ids of other agents, and no ids above are free");
  }
  if (!are_ids_mapped("/proc/self/uid_map", candidate) || !are_ids_mapped("/proc/self/gid_map", candidate)) {
    return fail(Code::unsupported,
                fmt::format("uid: the ids {} to {} do not exist here (a container?): set sandbox.uid_range to ids of "
                            "/proc/self/uid_map that no other agent of this host has",
                            candidate.base, candidate.base + candidate.count - 1));
  }
  if (!session.register_range(candidate))
    return fail(Code::io, std::string("uid: ") + IdRegistry::kFolder + ": cannot be written: " + errno_text(errno));
  return ChosenIds{IdRange{static_cast<std::uint32_t>(candidate.base), count}, std::move(used)};
}

bool are_ids_mapped(const FileOwner& owner) {
  return are_ids_mapped("/proc/self/uid_map", {owner.uid, 1}) && are_ids_mapped("/proc/self/gid_map", {owner.gid, 1});
}

int write_process_file(pid_t pid, const char* name, const std::string& text) {
  const Fd file(::open(fmt::format("/proc/{}/{}", pid, name).c_str(), O_WRONLY | O_CLOEXEC));
  if (!file) return errno;
  return ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : errno;
}

int write_id_maps(pid_t pid, const IdRange& range, const std::optional<FileOwner>& fixed_owner) {
  if (range.has_id_per_job()) {
    std::string uid_map = fmt::format("0 {} {}\n", range.base, range.count), gid_map = uid_map;
    if (fixed_owner) {
      uid_map += fmt::format("{} {} 1\n", range.fixed_uid(), fixed_owner->uid);
      gid_map += fmt::format("{} {} 1\n", range.fixed_uid(), fixed_owner->gid);
    }
    if (int error = write_process_file(pid, "uid_map", uid_map); error != 0) return error;
    return write_process_file(pid, "gid_map", gid_map);
  }
  // required before gid_map without root
  if (int error = write_process_file(pid, "setgroups", "deny"); error != 0) return error;
  if (int error = write_process_file(pid, "uid_map", fmt::format("0 {} 1\n", ::geteuid())); error != 0) return error;
  return write_process_file(pid, "gid_map", fmt::format("0 {} 1\n", ::getegid()));
}

}  // namespace mycojobs::sandbox
