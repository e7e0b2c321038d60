// The trace of each fact of a deployment. An event with a `traceparent` puts its own fact, the steps that it causes and
// their effects into that trace. The journal does not store traces: the coordinator that accepted the event remembers
// them while it leads. A later leader reads them from the jobs and flows that perform the effects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>

namespace mycojobs {

class DeploymentTraces {
 public:
  // Assigns the trace to the facts after height `before`, up to and including height `last`.
  void mark(std::uint64_t before, std::uint64_t last, const std::string& traceparent) {
    if (traceparent.empty()) return;
    for (std::uint64_t height = before + 1; height <= last; ++height) facts_[height] = traceparent;
    // The new facts are kept, since the steps that they cause will read their trace.
    for (auto oldest = facts_.begin(); facts_.size() > kMaxTraces;)
      oldest = oldest->first > before && oldest->first <= last ? std::next(oldest) : facts_.erase(oldest);
  }
  // Returns the trace of a fact, or an empty text if the fact has none.
  std::string find(std::uint64_t height) const {
    const auto found = facts_.find(height);
    return found == facts_.end() ? "" : found->second;
  }
  // Removes the facts after this height, which were decided but not committed.
  void erase_after(std::uint64_t height) { facts_.erase(facts_.upper_bound(height), facts_.end()); }

 private:
  static constexpr std::size_t kMaxTraces = 10000;
  std::map<std::uint64_t, std::string> facts_;
};

}  // namespace mycojobs
