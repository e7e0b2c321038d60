#include "shortest.h"

#include <algorithm>

namespace mycojobs::sim {

std::string get_violation_kind(const std::string& violation) {
  std::string kind = violation.substr(0, violation.find('\n'));
  std::erase_if(kind, [](char c) { return c >= '0' && c <= '9'; });
  return kind;
}

MinimalFailure shorten(std::uint64_t seed, LifeSettings settings) {
  const auto run_life = [&](const std::set<std::string>& suppressed_events) {
    settings.suppressed_events = suppressed_events;
    Life life(seed, settings);
    const LifeReport report = life.run();
    return MinimalFailure{suppressed_events, life.event_names(), report.violation};
  };
  MinimalFailure smallest = run_life({});
  const std::string kind = get_violation_kind(smallest.violation);
  const auto remove_events = [&](std::size_t size) {
    bool has_shrunk = false;
    for (std::size_t from = 0; from < smallest.event_names.size();) {
      std::set<std::string> suppressed = smallest.suppressed_events;
      const std::size_t until = std::min(from + size, smallest.event_names.size());
      for (std::size_t i = from; i < until; ++i) suppressed.insert(smallest.event_names[i]);
      MinimalFailure candidate = run_life(suppressed);
      if (get_violation_kind(candidate.violation) == kind &&
          candidate.event_names.size() < smallest.event_names.size()) {
        smallest = std::move(candidate);
        has_shrunk = true;
      } else {
        from += size;
      }
    }
    return has_shrunk;
  };
  for (std::size_t size = smallest.event_names.size() / 2; size > 1; size /= 2) remove_events(size);
  while (remove_events(1)) {
  }
  return smallest;
}

std::string to_text(const MinimalFailure& shortest) {
  std::string text = "minimized: " + std::to_string(shortest.event_names.size()) + " events";
  for (const std::string& each : shortest.event_names)
    text += (&each == &shortest.event_names.front() ? ": " : ", ") + each;
  return text + "\n" + shortest.violation;
}

}  // namespace mycojobs::sim
