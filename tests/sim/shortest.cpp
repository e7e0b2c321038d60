#include "shortest.h"

#include <algorithm>

namespace mycojobs::sim {

std::string get_violation_kind(const std::string& violation) {
  std::string kind = violation.substr(0, violation.find('\n'));
  std::erase_if(kind, [](char c) { return c >= '0' && c <= '9'; });
  return kind;
}

Shortest shorten(std::uint64_t seed, LifeSettings settings) {
  const auto live = [&](const std::set<std::string>& suppressed_events) {
    settings.suppressed_events = suppressed_events;
    Life life(seed, settings);
    const LifeReport report = life.run();
    return Shortest{suppressed_events, life.event_names(), report.violation};
  };
  Shortest best = live({});
  const std::string kind = get_violation_kind(best.violation);
  const auto disabled_steps = [&](std::size_t size) {
    bool shorter = false;
    for (std::size_t from = 0; from < best.event_names.size();) {
      std::set<std::string> less = best.suppressed_events;
      const std::size_t until = std::min(from + size, best.event_names.size());
      for (std::size_t i = from; i < until; ++i) less.insert(best.event_names[i]);
      Shortest next = live(less);
      if (get_violation_kind(next.violation) == kind && next.event_names.size() < best.event_names.size()) {
        best = std::move(next);
        shorter = true;
      } else {
        from += size;
      }
    }
    return shorter;
  };
  for (std::size_t size = best.event_names.size() / 2; size > 1; size /= 2) disabled_steps(size);
  while (disabled_steps(1)) {
  }
  return best;
}

std::string to_text(const Shortest& shortest) {
  std::string text = "its shortest: " + std::to_string(shortest.event_names.size()) + " happenings";
  for (const std::string& each : shortest.event_names)
    text += (&each == &shortest.event_names.front() ? ": " : ", ") + each;
  return text + "\n" + shortest.violation;
}

}  // namespace mycojobs::sim
