// Sorted set commands.
#include <array>
#include <cmath>
#include <cstdlib>
#include <iterator>

#include "support/redis/memory_command.h"

namespace mycojobs::memory {
namespace {

// Adding and removing single members.

struct AddOptions {
  bool if_absent = false, if_present = false, if_greater = false, if_less = false, count_changed = false;
};

// Parses the options and returns the index of the first word after them.
Result<std::size_t> read_options(const Call& call, AddOptions& options) {
  std::size_t at = 2;
  for (; at < call.words.size(); ++at) {
    const std::string_view word = call.words[at];
    if (is_word(word, "NX")) {
      options.if_absent = true;
    } else if (is_word(word, "XX")) {
      options.if_present = true;
    } else if (is_word(word, "GT")) {
      options.if_greater = true;
    } else if (is_word(word, "LT")) {
      options.if_less = true;
    } else if (is_word(word, "CH")) {
      options.count_changed = true;
    } else if (is_word(word, "INCR")) {
      return not_imitated("ZADD INCR");
    } else {
      break;
    }
  }
  if (at == call.words.size() || (call.words.size() - at) % 2 != 0) return syntax_error();
  if (options.if_absent && options.if_present) {
    return refuse("ERR XX and NX options at the same time are not compatible");
  }
  if (int{options.if_greater} + int{options.if_less} + int{options.if_absent} > 1) {
    return refuse("ERR GT, LT, and/or NX options at the same time are not compatible");
  }
  return at;
}

// ZADD key [NX | XX] [GT | LT] [CH] score member ...
Result<MemoryReply> zadd(const Call& call) {
  AddOptions options;
  MJ_TRY(first, read_options(call, options));
  std::vector<std::pair<double, std::string_view>> members;
  for (std::size_t i = first; i < call.words.size(); i += 2) {
    const auto score = to_real(call.words[i]);
    if (!score) return refuse("ERR value is not a valid float");
    // The addition turns -0.0 into 0.0.
    members.emplace_back(*score + 0.0, call.words[i + 1]);
  }
  MJ_TRY(zset, call.find_or_make<Zset>(call.words[1]));
  std::size_t added = 0, changed = 0;
  for (const auto& [score, member] : members) {
    const auto found = zset->scores.find(member);
    if (found == zset->scores.end()) {
      if (options.if_present) continue;
      ++added;
    } else {
      const double old = found->second;
      const bool refused =
          options.if_absent || (options.if_greater && score <= old) || (options.if_less && score >= old);
      if (refused || score == old) continue;
      ++changed;
    }
    zset->put(member, score);
  }
  call.drop_if_empty(call.words[1], zset);
  return number_reply(options.count_changed ? added + changed : added);
}

Result<MemoryReply> zrem(const Call& call) {
  MJ_TRY(zset, call.find<Zset>(call.words[1]));
  if (zset == nullptr) return number_reply(0);
  std::size_t count = 0;
  for (std::string_view member : call.words.subspan(2)) count += zset->erase(member) ? 1 : 0;
  call.drop_if_empty(call.words[1], zset);
  return number_reply(count);
}

Result<MemoryReply> zscore(const Call& call) {
  MJ_TRY(zset, call.find<Zset>(call.words[1]));
  if (zset == nullptr) return nil_reply();
  const auto found = zset->scores.find(call.words[2]);
  return found == zset->scores.end() ? nil_reply() : text_reply(real_to_text(found->second));
}

Result<MemoryReply> zcard(const Call& call) {
  MJ_TRY(zset, call.find<Zset>(call.words[1]));
  return number_reply(zset == nullptr ? 0 : zset->order.size());
}

// ZPOPMIN key [count]
Result<MemoryReply> zpopmin(const Call& call) {
  if (call.words.size() > 3) return syntax_error();
  std::int64_t count = 1;
  if (call.words.size() == 3) {
    MJ_TRY(asked, parse_count(call.words[2]));
    count = asked;
  }
  MJ_TRY(zset, call.find<Zset>(call.words[1]));
  std::vector<MemoryReply> taken;
  if (zset == nullptr) return list_reply({});
  for (; count > 0 && !zset->empty(); --count) {
    const auto first = *zset->order.begin();
    taken.push_back(text_reply(first.second));
    taken.push_back(text_reply(real_to_text(first.first)));
    zset->erase(first.second);
  }
  call.drop_if_empty(call.words[1], zset);
  return list_reply(std::move(taken));
}

// Ranges by score and by index.

struct ScoreRange {
  double min = 0, max = 0;
  bool min_open = false, max_open = false;

  bool above_min(double score) const { return min_open ? score > min : score >= min; }
  bool below_max(double score) const { return max_open ? score < max : score <= max; }
};

// Parses more leniently than a score: "" is 0, and an overflow is infinite.
bool read_bound(std::string_view text, double& bound, bool& open) {
  open = text.starts_with('(');
  const std::string number(open ? text.substr(1) : text);
  char* end = nullptr;
  bound = std::strtod(number.c_str(), &end);
  return *end == '\0' && !std::isnan(bound);
}

Result<ScoreRange> score_range(std::string_view min, std::string_view max) {
  ScoreRange range;
  if (!read_bound(min, range.min, range.min_open) || !read_bound(max, range.max, range.max_open)) {
    return refuse("ERR min or max is not a float");
  }
  return range;
}

struct RangeOptions {
  bool by_score = false, reversed = false, with_scores = false;
  std::int64_t offset = 0, limit = -1;  // negative limit: unlimited
};

// Parses the options from the word 4 on: [WITHSCORES] [LIMIT offset count], and for ZRANGE also [BYSCORE] [REV].
Result<RangeOptions> read_options(const Call& call, bool plain_range) {
  RangeOptions options;
  options.by_score = !plain_range;
  for (std::size_t i = 4; i < call.words.size(); ++i) {
    const std::string_view word = call.words[i];
    if (is_word(word, "WITHSCORES")) {
      options.with_scores = true;
    } else if (is_word(word, "LIMIT") && i + 2 < call.words.size()) {
      MJ_TRY(offset, parse_integer(call.words[i + 1]));
      MJ_TRY(limit, parse_integer(call.words[i + 2]));
      options.offset = offset;
      options.limit = limit;
      i += 2;
    } else if (plain_range && is_word(word, "REV")) {
      options.reversed = true;
    } else if (plain_range && is_word(word, "BYSCORE")) {
      options.by_score = true;
    } else if (plain_range && is_word(word, "BYLEX")) {
      return not_imitated("ZRANGE BYLEX");
    } else {
      return syntax_error();
    }
  }
  if (options.limit != -1 && !options.by_score) {
    return refuse("ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX");
  }
  return options;
}

void add(std::vector<MemoryReply>& out, const std::pair<double, std::string>& member, bool with_score) {
  out.push_back(text_reply(member.second));
  if (with_score) out.push_back(text_reply(real_to_text(member.first)));
}

template <class Iterator>
std::vector<MemoryReply> by_index(Iterator begin, std::size_t size, std::int64_t start, std::int64_t end,
                                  bool with_scores) {
  std::vector<MemoryReply> out;
  const Section part = select_section(size, start, end);
  std::advance(begin, static_cast<std::ptrdiff_t>(part.first));
  for (std::size_t i = part.first; i < part.last; ++i) add(out, *begin++, with_scores);
  return out;
}

// Returns the members from the first within the near end of the range to the last within the far end.
template <class Iterator, class Near, class Far>
std::vector<MemoryReply> by_score(Iterator at, Iterator end, Near near, Far far, const RangeOptions& options) {
  std::vector<MemoryReply> out;
  std::int64_t passed = 0;
  for (; at != end && !near(at->first); ++at) {
  }
  for (std::int64_t left = options.limit; at != end && left != 0 && far(at->first); ++at) {
    if (passed++ < options.offset) continue;
    add(out, *at, options.with_scores);
    --left;
  }
  return out;
}

std::vector<MemoryReply> in_range(const Zset& zset, const ScoreRange& range, const RangeOptions& options) {
  const auto near_min = [&](double score) { return range.above_min(score); };
  const auto near_max = [&](double score) { return range.below_max(score); };
  const auto& order = zset.order;
  if (options.offset < 0) return {};
  if (!options.reversed) return by_score(order.lower_bound({range.min, ""}), order.end(), near_min, near_max, options);
  const auto behind = std::isinf(range.max) && range.max > 0
                          ? order.end()
                          : order.lower_bound({std::nextafter(range.max, HUGE_VAL), ""});
  return by_score(std::make_reverse_iterator(behind), order.rend(), near_max, near_min, options);
}

Result<MemoryReply> scored(const Call& call, const RangeOptions& options) {
  const std::size_t min = options.reversed ? 3 : 2;
  MJ_TRY(range, score_range(call.words[min], call.words[5 - min]));
  MJ_TRY(zset, call.find<Zset>(call.words[1]));
  return list_reply(zset == nullptr ? std::vector<MemoryReply>() : in_range(*zset, range, options));
}

// ZRANGE key start stop [BYSCORE] [REV] [LIMIT offset count] [WITHSCORES]
Result<MemoryReply> zrange(const Call& call) {
  MJ_TRY(options, read_options(call, true));
  if (options.by_score) return scored(call, options);
  MJ_TRY(start, parse_integer(call.words[2]));
  MJ_TRY(end, parse_integer(call.words[3]));
  MJ_TRY(zset, call.find<Zset>(call.words[1]));
  if (zset == nullptr) return list_reply({});
  const auto& order = zset->order;
  return list_reply(options.reversed ? by_index(order.rbegin(), order.size(), start, end, options.with_scores)
                                     : by_index(order.begin(), order.size(), start, end, options.with_scores));
}

// ZRANGEBYSCORE key min max [WITHSCORES] [LIMIT offset count]
Result<MemoryReply> zrangebyscore(const Call& call) {
  MJ_TRY(options, read_options(call, false));
  return scored(call, options);
}

Result<MemoryReply> zcount(const Call& call) {
  MJ_TRY(range, score_range(call.words[2], call.words[3]));
  MJ_TRY(zset, call.find<Zset>(call.words[1]));
  return number_reply(zset == nullptr ? 0 : in_range(*zset, range, {}).size());
}

// Lexicographic ranges of members with equal scores.

struct LexBound {
  std::string_view text;
  bool open = false;
  int infinite = 0;  // -1: before all members, 1: after all members
};

Result<LexBound> parse_lex_bound(std::string_view word) {
  if (word == "-") return LexBound{{}, false, -1};
  if (word == "+") return LexBound{{}, false, 1};
  if (word.starts_with('[') || word.starts_with('(')) return LexBound{word.substr(1), word[0] == '(', 0};
  return refuse("ERR min or max not valid string range item");
}

std::vector<std::string> in_range(const Zset* zset, const LexBound& min, const LexBound& max, std::int64_t offset,
                                  std::int64_t limit) {
  std::vector<std::string> out;
  if (zset == nullptr || min.infinite > 0 || max.infinite < 0 || offset < 0) return out;
  for (auto at = zset->order.lower_bound({zset->order.begin()->first, std::string(min.text)});
       at != zset->order.end() && limit != 0; ++at) {
    const std::string& member = at->second;
    if (min.open && min.infinite == 0 && member == min.text) continue;
    if (max.infinite == 0 && (max.open ? member >= max.text : member > max.text)) break;
    if (offset-- > 0) continue;
    out.push_back(member);
    --limit;
  }
  return out;
}

// ZRANGEBYLEX key min max [LIMIT offset count]
Result<MemoryReply> zrangebylex(const Call& call) {
  std::int64_t offset = 0, limit = -1;
  for (std::size_t i = 4; i < call.words.size(); i += 3) {
    if (!is_word(call.words[i], "LIMIT") || i + 2 >= call.words.size()) return syntax_error();
    MJ_TRY(first, parse_integer(call.words[i + 1]));
    MJ_TRY(count, parse_integer(call.words[i + 2]));
    offset = first;
    limit = count;
  }
  MJ_TRY(min, parse_lex_bound(call.words[2]));
  MJ_TRY(max, parse_lex_bound(call.words[3]));
  MJ_TRY(zset, call.find<Zset>(call.words[1]));
  std::vector<MemoryReply> found;
  for (const std::string& member : in_range(zset, min, max, offset, limit)) found.push_back(text_reply(member));
  return list_reply(std::move(found));
}

// ZLEXCOUNT key min max
Result<MemoryReply> zlexcount(const Call& call) {
  MJ_TRY(min, parse_lex_bound(call.words[2]));
  MJ_TRY(max, parse_lex_bound(call.words[3]));
  MJ_TRY(zset, call.find<Zset>(call.words[1]));
  return number_reply(in_range(zset, min, max, 0, -1).size());
}

constexpr std::array kZsetsCommands{
    CommandRow{"ZADD", -4, Access::writes, zadd},
    CommandRow{"ZREM", -3, Access::writes, zrem},
    CommandRow{"ZSCORE", 3, Access::reads, zscore},
    CommandRow{"ZCARD", 2, Access::reads, zcard},
    CommandRow{"ZPOPMIN", -2, Access::writes, zpopmin},
    CommandRow{"ZRANGE", -4, Access::reads, zrange},
    CommandRow{"ZRANGEBYSCORE", -4, Access::reads, zrangebyscore},
    CommandRow{"ZCOUNT", 4, Access::reads, zcount},
    CommandRow{"ZRANGEBYLEX", -4, Access::reads, zrangebylex},
    CommandRow{"ZLEXCOUNT", 4, Access::reads, zlexcount},
};

}  // namespace

std::span<const CommandRow> zset_commands() { return kZsetsCommands; }

}  // namespace mycojobs::memory
