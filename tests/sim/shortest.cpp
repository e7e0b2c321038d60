#include "shortest.h"

#include <algorithm>

namespace mycojobs::sim {

std::string kind_of(const std::string& trouble) {
  std::string kind = trouble.substr(0, trouble.find('\n'));
  std::erase_if(kind, [](char c) { return c >= '0' && c <= '9'; });
  return kind;
}

Shortest shorten(std::uint64_t seed, LifeSettings settings) {
  const auto live = [&](const std::set<std::string>& left_out) {
    settings.left_out = left_out;
    Life life(seed, settings);
    const LifeReport report = life.run();
    return Shortest{left_out, life.happened(), report.trouble};
  };
  Shortest best = live({});
  const std::string kind = kind_of(best.trouble);
  const auto leave_out = [&](std::size_t size) {
    bool shorter = false;
    for (std::size_t from = 0; from < best.happened.size();) {
      std::set<std::string> less = best.left_out;
      const std::size_t until = std::min(from + size, best.happened.size());
      for (std::size_t i = from; i < until; ++i) less.insert(best.happened[i]);
      Shortest next = live(less);
      if (kind_of(next.trouble) == kind && next.happened.size() < best.happened.size()) {
        best = std::move(next);
        shorter = true;
      } else {
        from += size;
      }
    }
    return shorter;
  };
  for (std::size_t size = best.happened.size() / 2; size > 1; size /= 2) leave_out(size);
  while (leave_out(1)) {
  }
  return best;
}

std::string shown(const Shortest& shortest) {
  std::string text = "its shortest: " + std::to_string(shortest.happened.size()) + " happenings";
  for (const std::string& each : shortest.happened) text += (&each == &shortest.happened.front() ? ": " : ", ") + each;
  return text + "\n" + shortest.trouble;
}

}  // namespace mycojobs::sim
