// Limits the bytes of large bodies and answers that connections hold in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace mycojobs::api {

// Bodies and answers up to this length are not counted: all connections together hold a few MiB of them.
inline constexpr std::size_t kSmallBody = 64U << 10;

// Counts the body of one request while it is read.
class BodyMemoryBudget {
 public:
  virtual ~BodyMemoryBudget() = default;
  // length: bytes of the body that were read so far. Returns false if a limit is exceeded.
  virtual bool grow(std::size_t length) = 0;
};

// Bytes that the connections of one class hold in memory, in total and by actor. Not thread-safe.
class HeldBytes {
 public:
  enum class Fit { fits, all_full, actor_full };

  HeldBytes(std::size_t max, std::size_t most_of_actor) : most_(max), most_of_actor_(most_of_actor) {}
  // Adds the bytes if neither limit is exceeded. The limit of an actor does not apply to actor 0, nor to the first body
  // of an actor.
  Fit add(std::uint64_t actor, std::size_t bytes) {
    if (actor != 0 && of(actor) > 0 && of(actor) + bytes > most_of_actor_) return Fit::actor_full;
    if (all_ + bytes > most_) return Fit::all_full;
    add_anyway(actor, bytes);
    return Fit::fits;
  }
  void add_anyway(std::uint64_t actor, std::size_t bytes) {
    all_ += bytes;
    of_actor_[actor] += bytes;
  }
  void remove(std::uint64_t actor, std::size_t bytes) {
    all_ -= bytes;
    if ((of_actor_[actor] -= bytes) == 0) of_actor_.erase(actor);
  }

 private:
  std::size_t of(std::uint64_t actor) const {
    const auto found = of_actor_.find(actor);
    return found == of_actor_.end() ? 0 : found->second;
  }

  std::size_t most_, most_of_actor_, all_ = 0;
  std::map<std::uint64_t, std::size_t> of_actor_;
};

}  // namespace mycojobs::api
