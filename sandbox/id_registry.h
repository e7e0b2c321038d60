// Which ids the launchers of this host hand out, so that no two have one in common: the kernel counts a user's pipes,
// watches and processes together, whoever started them.
//
//   /run/mycojobs/ids/lock        held while somebody looks or enters
//   /run/mycojobs/ids/<number>    one a launcher: "base count\n". Its flock() says that the launcher or its guardian
//                                 lives; what nobody holds is removed by whoever looks next
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.h"

namespace mycojobs::sandbox {

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

}  // namespace mycojobs::sandbox
