// The user and group ids of the host that a zygote's namespace uses.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "sandbox/volume.h"

namespace mycojobs::sandbox {

// Registry of the ids that launchers of this host use, so that their ranges do not overlap: the kernel limits pipes,
// watches and processes per user id, regardless of the launcher.
//
//   /run/mycojobs/ids/lock        held during a lookup or registration
//   /run/mycojobs/ids/<number>    one per launcher: "base count\n". Its flock() is held while the launcher or its
//                                 guardian exists; files without lock are removed by the next lookup
struct IdSpan {
  std::uint64_t base = 0, count = 0;
  bool overlaps(const IdSpan& other) const { return base < other.base + other.count && other.base < base + count; }
};

class IdRegistry {
 public:
  static constexpr const char* kFolder = "/run/mycojobs/ids";

  IdRegistry() = default;  // without an entry: every range is free, and none is registered
  // Creates an entry without a range. If the folder cannot be used, there is no entry, and problem() has the reason.
  static IdRegistry open(const std::string& folder = kFolder);
  // Removes the entry of a descriptor. Called when the last process with this descriptor exits.
  static void remove_entry(int fd);
  // Adopts an entry by its inherited descriptor.
  static IdRegistry adopt(Fd entry, const std::string& folder = kFolder);

  int fd() const { return entry_.get(); }
  const std::string& problem() const { return problem_; }

  // The registry is locked while a Session exists: other processes can neither look up nor register ranges.
  class Session {
   public:
    std::vector<IdSpan> list_ranges_in_use() const;  // ranges of other launchers
    bool register_range(const IdSpan&) const;

   private:
    friend class IdRegistry;
    Session(const IdRegistry& registry, Fd lock) : registry_(registry), lock_(std::move(lock)) {}
    const IdRegistry& registry_;
    Fd lock_;
  };
  Session open_session() const;

 private:
  std::string folder_, problem_;
  Fd entry_;
};

// The user ids of an agent's jobs. An agent that is root has a range of ids, so that each job has an id of its own. For
// any other agent, count is 1 and all jobs have the id of the agent.
struct IdRange {
  std::uint32_t base = 0, count = 0;
  bool has_id_per_job() const { return count > 1; }
  // The id of ContextFiles::owner in the namespace, if it has a fixed uid. It is above the ids of other jobs.
  std::uint32_t fixed_uid() const { return count; }
};

// Ranges of ids that are in use on this host.
struct UsedIds {
  std::vector<IdSpan> of_launchers;  // ids of the jobs of other launchers
  std::vector<IdSpan> of_users;      // /etc/subuid and /etc/subgid
};
bool contains_id(const std::vector<IdSpan>&, std::uint32_t id);

struct ChosenIds {
  IdRange range;
  UsedIds used;  // empty if the range is that of an ordinary user
};
// Moves the range to higher ids if it overlaps /etc/subuid, /etc/subgid or another launcher's range, and registers it.
// Errors: invalid, unsupported, io.
Result<ChosenIds> choose_ids(std::uint32_t base, std::uint32_t count, IdRegistry&);
// Returns 0 or an errno; called from outside of the namespace. `fixed_owner` gets the id IdRange::fixed_uid()
// in the namespace.
int write_id_maps(pid_t, const IdRange&, const std::optional<FileOwner>& fixed_owner);
int write_process_file(pid_t, const char* name, const std::string& text);  // of /proc/PID; returns 0 or an errno
bool are_ids_mapped(const FileOwner&);  // true if the ids exist in the user namespace of this process

}  // namespace mycojobs::sandbox
