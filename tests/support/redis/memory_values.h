// Values of the imitated Redis: replies, and what the databases hold.
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

#include "mycojobs/records.h"
#include "mycojobs/result.h"
#include "store/link.h"

namespace mycojobs::memory {

// A reply.

using Words = std::span<const std::string_view>;  // of a command

struct Answer {
  enum class Kind { nil, status, error, number, text, list };
  Kind kind = Kind::nil;
  std::string text;  // of a status, an error, a text
  std::int64_t number = 0;
  std::vector<Answer> items;
};

inline Answer nil() { return {}; }
Answer status(std::string_view line);  // blanks for what would end the line
Answer error(std::string_view line);
inline Answer text_of(std::string_view text) { return {Answer::Kind::text, std::string(text), 0, {}}; }
inline Answer list_of(std::vector<Answer> items) { return {Answer::Kind::list, {}, 0, std::move(items)}; }
template <class Number>
Answer number_of(Number number) {
  return {Answer::Kind::number, {}, static_cast<std::int64_t>(number), {}};
}
template <class Texts>
Answer texts_of(const Texts& texts) {
  std::vector<Answer> items;
  items.reserve(texts.size());
  for (const auto& each : texts) items.push_back(text_of(each));
  return list_of(std::move(items));
}

// An error reply; the text is all that a client sees of it.
[[nodiscard]] inline tl::unexpected<Error> refuse(std::string_view text) {
  return fail(Code::invalid, std::string(text));
}
[[nodiscard]] inline tl::unexpected<Error> syntax_error() { return refuse("ERR syntax error"); }
// An option that Redis has and we have not: a test that needs it should say so.
[[nodiscard]] inline tl::unexpected<Error> not_imitated(std::string_view what) {
  return refuse("ERR not imitated: " + std::string(what));
}

// As a client of Redis gets it: through the protocol's text and hiredis' reader.
Reply to_reply(const Answer&);

// What databases hold: plain values, copied as a whole for a snapshot. Collections are sorted where Redis keeps no
// promised order, so that the same calls give the same replies.

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
