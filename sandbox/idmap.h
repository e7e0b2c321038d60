// Which user and group ids a zygote's namespace holds on this host.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "mycojobs/result.h"

namespace mycojobs::sandbox {

// Root: a wide range that nobody else uses, one id a job. An ordinary user: only the own id, which all jobs then share.
struct IdRange {
  std::uint32_t base = 0, count = 0;
  bool wide() const { return count > 1; }
};

class IdRegistry;

// Moves the range up where /etc/subuid or /etc/subgid give it to somebody, or another launcher of this host has it, and
// enters it in the registry. Error: invalid, unsupported.
Result<IdRange> choose_ids(std::uint32_t base, std::uint32_t count, IdRegistry&);
int write_id_maps(pid_t, const IdRange&);  // 0 or errno; from outside the namespace

}  // namespace mycojobs::sandbox
