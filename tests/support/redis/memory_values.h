// Values of the imitated Redis: replies, and the contents of its databases.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "model/records.h"
#include "store/redis/redis_link.h"

namespace mycojobs::memory {

using Words = std::span<const std::string_view>;  // a command and its arguments

struct MemoryReply {
  enum class Kind { nil, status, error, number, text, list };
  Kind kind = Kind::nil;
  std::string text;  // for Kind::status, error and text
  std::int64_t number = 0;
  std::vector<MemoryReply> items;
};

inline MemoryReply nil_reply() { return {}; }
MemoryReply status(std::string_view line);  // line breaks are replaced by blanks
MemoryReply error(std::string_view line);
inline MemoryReply text_reply(std::string_view text) { return {MemoryReply::Kind::text, std::string(text), 0, {}}; }
inline MemoryReply list_reply(std::vector<MemoryReply> items) {
  return {MemoryReply::Kind::list, {}, 0, std::move(items)};
}
template <class Number>
MemoryReply number_reply(Number number) {
  return {MemoryReply::Kind::number, {}, static_cast<std::int64_t>(number), {}};
}
template <class Texts>
MemoryReply texts_reply(const Texts& texts) {
  std::vector<MemoryReply> items;
  items.reserve(texts.size());
  for (const auto& each : texts) items.push_back(text_reply(each));
  return list_reply(std::move(items));
}

// Creates the error of a command; the client receives only the text, as an error reply.
[[nodiscard]] inline tl::unexpected<Error> refuse(std::string_view text) {
  return fail(Code::invalid, std::string(text));
}
[[nodiscard]] inline tl::unexpected<Error> syntax_error() { return refuse("ERR syntax error"); }
// Rejects an option of Redis that the imitation lacks, so that a test that needs the option fails clearly.
[[nodiscard]] inline tl::unexpected<Error> not_imitated(std::string_view what) {
  return refuse("ERR not imitated: " + std::string(what));
}

// Converts to the reply of a Redis client: encodes the reply in the protocol and parses it with hiredis.
Reply to_reply(const MemoryReply&);

// Contents of the databases: plain values, so that a snapshot is a copy. Collections are sorted where Redis guarantees
// no order, so that the same calls return the same replies.

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
  auto operator<=>(const StreamId&) const = default;  // NOLINT(modernize-use-nullptr): false positive
};

struct Stream {
  std::map<StreamId, Fields> entries;
  StreamId last, max_deleted;  // `last` counts removed entries too
  std::uint64_t added = 0;

  bool operator==(const Stream&) const = default;
};

using Value = std::variant<Text, Hash, List, Set, Zset, Stream>;  // only streams and texts may be empty
using Database = std::map<std::string, Value, std::less<>>;
using Databases = std::map<Id, Database>;

}  // namespace mycojobs::memory
