// Limits of the memory that large bodies and answers of connections use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace mycojobs::api {

// Bodies and answers up to this length are not counted: those of all connections together need only a few MiB.
inline constexpr std::size_t kMaxUncountedBytes = 64U << 10;

// Counts the bytes that the connections of one class hold in memory, in total and by actor. Not thread-safe.
class ByteQuota {
 public:
  enum class AddResult { added, total_exceeded, actor_exceeded };

  ByteQuota(std::size_t max_bytes, std::size_t max_actor_bytes)
      : max_bytes_(max_bytes), max_actor_bytes_(max_actor_bytes) {}
  // Adds the bytes if neither limit is exceeded. The limit of an actor does not apply to actor 0, nor to the first body
  // of an actor.
  AddResult add(std::uint64_t actor, std::size_t bytes) {
    if (actor != 0 && get_actor_bytes(actor) > 0 && get_actor_bytes(actor) + bytes > max_actor_bytes_)
      return AddResult::actor_exceeded;
    if (total_bytes_ + bytes > max_bytes_) return AddResult::total_exceeded;
    add_unchecked(actor, bytes);
    return AddResult::added;
  }
  void add_unchecked(std::uint64_t actor, std::size_t bytes) {
    total_bytes_ += bytes;
    actor_bytes_[actor] += bytes;
  }
  void remove(std::uint64_t actor, std::size_t bytes) {
    total_bytes_ -= bytes;
    if ((actor_bytes_[actor] -= bytes) == 0) actor_bytes_.erase(actor);
  }

 private:
  std::size_t get_actor_bytes(std::uint64_t actor) const {
    const auto it = actor_bytes_.find(actor);
    return it == actor_bytes_.end() ? 0 : it->second;
  }

  std::size_t max_bytes_, max_actor_bytes_, total_bytes_ = 0;
  std::map<std::uint64_t, std::size_t> actor_bytes_;
};

}  // namespace mycojobs::api
