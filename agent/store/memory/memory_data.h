// What the databases of the imitated Redis hold: plain values, copied as a whole for a snapshot. Collections are sorted
// where Redis keeps no promised order, so that the same calls give the same replies.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "mycojobs/records.h"

namespace mycojobs::memory {

using Text = std::string;
using Hash = std::map<std::string, std::string, std::less<>>;
using List = std::deque<std::string>;  // front() is the left end
using Set = std::set<std::string, std::less<>>;

struct Zset {
  std::map<std::string, double, std::less<>> scores;
  std::set<std::pair<double, std::string>> order;

  bool operator==(const Zset&) const = default;
  bool empty() const { return order.empty(); }
  void put(std::string_view member, double score) {
    erase(member);
    scores.emplace(member, score);
    order.emplace(score, member);
  }
  bool erase(std::string_view member) {
    const auto found = scores.find(member);
    if (found == scores.end()) return false;
    order.erase({found->second, found->first});
    scores.erase(found);
    return true;
  }
};

struct StreamId {
  std::uint64_t ms = 0, seq = 0;
  auto operator<=>(const StreamId&) const = default;  // NOLINT(modernize-use-nullptr): nothing to do with pointers
};

struct Stream {
  std::map<StreamId, Fields> entries;
  StreamId last, max_deleted;  // last: also of entries that are gone
  std::uint64_t added = 0;

  bool operator==(const Stream&) const = default;
};

using Value = std::variant<Text, Hash, List, Set, Zset, Stream>;  // none is empty, streams and texts aside
using Database = std::map<std::string, Value, std::less<>>;
using Databases = std::map<Id, Database>;

}  // namespace mycojobs::memory
