// What of a life must happen so that it goes wrong: the rest is left out, by halves, then one by one, until without any
// one more it would not go wrong in the same way (the first line of its trouble but for numbers).
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "life.h"

namespace mycojobs::sim {

struct Shortest {
  std::set<std::string> left_out;
  std::vector<std::string> happened;
  std::string trouble;
};
Shortest shorten(std::uint64_t seed, LifeSettings);
std::string kind_of(const std::string& trouble);
std::string shown(const Shortest&);

}  // namespace mycojobs::sim
