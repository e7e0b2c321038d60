// Which user and group ids a zygote's namespace holds on this host.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.h"
#include "mycojobs/result.h"

namespace mycojobs::sandbox {

// Which ids the launchers of this host hand out, so that no two have one in common: the kernel counts a user's pipes,
// watches and processes together, whoever started them.
//
//   /run/mycojobs/ids/lock        held while somebody looks or enters
//   /run/mycojobs/ids/<number>    one a launcher: "base count\n". Its flock() says that the launcher or its guardian
//                                 lives; what nobody holds is removed by whoever looks next
struct IdSpan {
  std::uint64_t base = 0, count = 0;
  bool overlaps(const IdSpan& other) const { return base < other.base + other.count && other.base < base + count; }
};

class IdRegistry {
 public:
  static constexpr const char* kFolder = "/run/mycojobs/ids";

  IdRegistry() = default;  // without an entry: every range is free, and none is entered
  // Makes an entry, still without a range. Where the folder cannot be used: without an entry, and problem() says why.
  static IdRegistry open(const std::string& folder = kFolder);
  // Removes the entry behind a descriptor, when the last process that holds it leaves.
  static void remove_entry(int fd);
  // The same entry, by a descriptor that was handed down.
  static IdRegistry adopt(Fd entry, const std::string& folder = kFolder);

  int fd() const { return entry_.get(); }
  const std::string& problem() const { return problem_; }

  // Nobody else looks or enters while one of these lives.
  class Session {
   public:
    std::vector<IdSpan> taken() const;  // by others
    bool enter(const IdSpan&) const;

   private:
    friend class IdRegistry;
    Session(const IdRegistry& registry, Fd lock) : registry_(registry), lock_(std::move(lock)) {}
    const IdRegistry& registry_;
    Fd lock_;
  };
  Session session() const;

 private:
  std::string folder_, problem_;
  Fd entry_;
};

// Root: a wide range that nobody else uses, one id a job. An ordinary user: only the own id, which all jobs then share.
struct IdRange {
  std::uint32_t base = 0, count = 0;
  bool wide() const { return count > 1; }
};

// Moves the range up where /etc/subuid or /etc/subgid give it to somebody, or another launcher of this host has it, and
// enters it in the registry. Error: invalid, unsupported.
Result<IdRange> choose_ids(std::uint32_t base, std::uint32_t count, IdRegistry&);
int write_id_maps(pid_t, const IdRange&);  // 0 or errno; from outside the namespace

}  // namespace mycojobs::sandbox
