#include "sandbox/zygote/landlock_rules.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "sandbox/landlock.h"
#include "sandbox/open_path.h"
#include "sandbox/zygote/child.h"

namespace mycojobs::sandbox {
namespace {

constexpr std::uint64_t kReadFolder = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
constexpr std::uint64_t kWritableFolder = kReadFolder | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |
                                          LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_DIR |
                                          LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_FIFO |
                                          LANDLOCK_ACCESS_FS_MAKE_SYM | LANDLOCK_ACCESS_FS_REFER | kLandlockTruncate;

struct FolderRule {
  const char* path;
  std::uint64_t rights;
};
constexpr FolderRule kFolders[] = {
    {"/", kReadFolder | LANDLOCK_ACCESS_FS_EXECUTE},
    {"/dev", kReadFolder | LANDLOCK_ACCESS_FS_WRITE_FILE | kLandlockTruncate},
    {"/dev/shm", kWritableFolder},
    {"/tmp", kWritableFolder},
    {"/job", kWritableFolder},
};

RulesetAttr make_ruleset(int abi, Network network) {
  RulesetAttr attr = all_rights(abi);
  if (network != Network::none) attr.handled_access_net = 0;  // the job has its own network
  return attr;
}

int add_folder(int ruleset, const FolderRule& folder, std::uint64_t mask) {
  const Fd parent(::open(folder.path, O_PATH | O_CLOEXEC));
  return parent ? add_rule(ruleset, parent.get(), folder.rights & mask) : errno;
}

// Landlock accepts fewer rights for a file than for a folder.
int add_granted(int ruleset, const std::string& path, std::uint64_t mask) {
  const Fd path_fd = open_without_links(path);
  struct stat info {};
  if (!path_fd || ::fstat(path_fd.get(), &info) != 0) return errno;
  const std::uint64_t file_rights = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | kLandlockTruncate;
  return add_rule(ruleset, path_fd.get(), (S_ISDIR(info.st_mode) ? kWritableFolder : file_rights) & mask);
}

}  // namespace

int restrict_with_landlock(int abi, bool exec, const Grants& grants) {
  const RulesetAttr attr = make_ruleset(abi, grants.network);
  // An older kernel has a shorter structure, and accepts a longer one if the unknown fields are zero.
  const Fd ruleset(static_cast<int>(::syscall(SYS_landlock_create_ruleset, &attr, sizeof attr, 0)));
  if (!ruleset) return errno;
  std::uint64_t mask = attr.handled_access_fs;
  if (!exec) mask &= ~static_cast<std::uint64_t>(LANDLOCK_ACCESS_FS_EXECUTE);
  for (const FolderRule& folder : kFolders) {
    FolderRule rule = folder;
    if (exec && (rule.rights & LANDLOCK_ACCESS_FS_MAKE_REG) != 0) rule.rights |= LANDLOCK_ACCESS_FS_EXECUTE;
    if (int error = add_folder(ruleset.get(), rule, mask); error != 0) return error;
  }
  for (const auto& path : grants.fs_write) {
    if (int error = add_granted(ruleset.get(), path, mask); error != 0) return error;
  }
  for (const Volume& volume : grants.volumes) {
    if (!volume.writable) continue;
    if (int error = add_granted(ruleset.get(), volume_mount_point(volume.name), mask); error != 0) return error;
  }
  if (grants.packages.writable) {
    if (int error = add_granted(ruleset.get(), kPackagesFolder, mask); error != 0) return error;
  }
  return restrict_self(ruleset.get(), abi);
}

int make_job_domain(int abi) {
  // A domain that does not handle moving files between folders forbids it. This domain allows it; the domain above
  // decides.
  const std::uint64_t rights = abi >= 2 ? LANDLOCK_ACCESS_FS_REFER : LANDLOCK_ACCESS_FS_MAKE_BLOCK;
  const RulesetAttr attr{rights, 0, abi >= 6 ? kLandlockScopeAll : 0};
  Fd ruleset(static_cast<int>(::syscall(SYS_landlock_create_ruleset, &attr, sizeof attr, 0)));
  if (!ruleset) return -errno;
  const int error = abi >= 2 ? add_folder(ruleset.get(), {"/", LANDLOCK_ACCESS_FS_REFER}, rights) : 0;
  return error != 0 ? -error : ruleset.release();
}

}  // namespace mycojobs::sandbox
