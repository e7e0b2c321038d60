// Landlock, a layer in addition to mounts and seccomp; no test relies on Landlock only. Defines constants that are
// missing in the headers of Debian 12. Source: the kernel's userspace-api/landlock.
#pragma once

#include <linux/landlock.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "sandbox/sandbox.h"

namespace mycojobs::sandbox {

inline constexpr std::uint64_t kLandlockTruncate = 1ULL << 14;     // ABI 3
inline constexpr std::uint64_t kLandlockBindConnectTcp = 3;        // ABI 4
inline constexpr std::uint64_t kLandlockIoctlDevice = 1ULL << 15;  // ABI 5
inline constexpr std::uint64_t kLandlockScopeAll = 3;              // ABI 6: abstract unix sockets, signals
inline constexpr std::uint32_t kLandlockLogOff = 1U | 1U << 2;     // ABI 7: of this program and of nested domains

struct RulesetAttr {
  std::uint64_t handled_access_fs, handled_access_net, scoped;
};

// Returns the ABI version, or 0 if this kernel does not support Landlock.
inline int landlock_abi() {
  const long abi = ::syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  return abi > 0 ? static_cast<int>(abi) : 0;
}

// Handles every right of this ABI, so that rights without a rule are refused.
inline RulesetAttr all_rights(int abi) {
  RulesetAttr attr{(LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1, 0, 0};
  if (abi >= 2) attr.handled_access_fs |= LANDLOCK_ACCESS_FS_REFER;
  if (abi >= 3) attr.handled_access_fs |= kLandlockTruncate;
  if (abi >= 4) attr.handled_access_net = kLandlockBindConnectTcp;
  if (abi >= 5) attr.handled_access_fs |= kLandlockIoctlDevice;
  if (abi >= 6) attr.scoped = kLandlockScopeAll;
  return attr;
}

// Returns 0 or an errno. Disables audit records of denials, with which a job could fill the host's log.
inline int restrict_self(int ruleset, int abi) {
  const std::uint32_t flags = abi >= 7 ? kLandlockLogOff : 0;
  return ::syscall(SYS_landlock_restrict_self, ruleset, flags) == 0 ? 0 : errno;
}

// Returns 0 or an errno.
inline int add_rule(int ruleset, int path_fd, std::uint64_t rights) {
  const landlock_path_beneath_attr rule{rights, path_fd};
  return ::syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0 ? 0 : errno;
}

}  // namespace mycojobs::sandbox
