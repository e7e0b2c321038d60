// In which trace the facts of a world stand: those that follow from an event that came with a `traceparent`, its steps,
// what they ask for and what follows from that. A journal knows no traces: the coordinator that has taken the event in
// does, for as long as it leads; who leads after it reads them from the jobs and flows that carry effects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>

namespace mycojobs {

class WorldTraces {
 public:
  // The facts behind `before`, up to `last`.
  void mark(std::uint64_t before, std::uint64_t last, const std::string& traceparent) {
    if (traceparent.empty()) return;
    for (std::uint64_t height = before + 1; height <= last; ++height) facts_[height] = traceparent;
    for (auto oldest = facts_.begin(); facts_.size() > kMost;)  // not this one: what it is for comes next
      oldest = oldest->first > before && oldest->first <= last ? std::next(oldest) : facts_.erase(oldest);
  }
  std::string of(std::uint64_t height) const {
    const auto found = facts_.find(height);
    return found == facts_.end() ? "" : found->second;
  }
  // What was decided behind this height was not committed.
  void forget_behind(std::uint64_t height) { facts_.erase(facts_.upper_bound(height), facts_.end()); }

 private:
  static constexpr std::size_t kMost = 10000;
  std::map<std::uint64_t, std::string> facts_;
};

}  // namespace mycojobs
