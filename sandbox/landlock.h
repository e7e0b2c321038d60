// Landlock, as a second wall behind the mounts and seccomp: no row of the tests rests on it alone. What is newer than
// the headers of Debian 12 is defined here. Source: the kernel's userspace-api/landlock.
#pragma once

#include <linux/landlock.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "mycojobs/sandbox.h"

namespace mycojobs::sandbox {

inline constexpr std::uint64_t kLandlockTruncate = 1ULL << 14;     // ABI 3
inline constexpr std::uint64_t kLandlockBindConnectTcp = 3;        // ABI 4
inline constexpr std::uint64_t kLandlockIoctlDevice = 1ULL << 15;  // ABI 5
inline constexpr std::uint64_t kLandlockScopeAll = 3;              // ABI 6: abstract unix sockets, signals
inline constexpr std::uint32_t kLandlockLogOff = 1U | 1U << 2;     // ABI 7: of this program, of domains below

struct RulesetAttr {
  std::uint64_t handled_access_fs, handled_access_net, scoped;
};

// 0: this kernel has none.
inline int landlock_abi() {
  const long abi = ::syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  return abi > 0 ? static_cast<int>(abi) : 0;
}

// Every right that this ABI has is handled, so that what no rule grants is refused.
inline RulesetAttr every_right(int abi) {
  RulesetAttr attr{(LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1, 0, 0};
  if (abi >= 2) attr.handled_access_fs |= LANDLOCK_ACCESS_FS_REFER;
  if (abi >= 3) attr.handled_access_fs |= kLandlockTruncate;
  if (abi >= 4) attr.handled_access_net = kLandlockBindConnectTcp;
  if (abi >= 5) attr.handled_access_fs |= kLandlockIoctlDevice;
  if (abi >= 6) attr.scoped = kLandlockScopeAll;
  return attr;
}

// 0 or errno. The audit log of the host has no record of what is denied: a job could fill it.
inline int restrict_self(int ruleset, int abi) {
  const std::uint32_t flags = abi >= 7 ? kLandlockLogOff : 0;
  return ::syscall(SYS_landlock_restrict_self, ruleset, flags) == 0 ? 0 : errno;
}

// 0 or errno.
inline int add_rule(int ruleset, int place, std::uint64_t rights) {
  const landlock_path_beneath_attr rule{rights, place};
  return ::syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0 ? 0 : errno;
}

}  // namespace mycojobs::sandbox
