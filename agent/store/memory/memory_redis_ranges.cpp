// Sorted sets: ranges.
#include <array>
#include <cmath>
#include <cstdlib>
#include <iterator>

#include "store/memory/memory_command.h"

namespace mycojobs::memory {
namespace {

struct ScoreRange {
  double min = 0, max = 0;
  bool min_open = false, max_open = false;

  bool above_min(double score) const { return min_open ? score > min : score >= min; }
  bool below_max(double score) const { return max_open ? score < max : score <= max; }
};

// Read more freely than a score: "" is 0, and what is too large is infinite.
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
  std::int64_t offset = 0, limit = -1;  // negative: all
};

// What is left of the words from `at`: [WITHSCORES] [LIMIT offset count], and for ZRANGE [BYSCORE] [REV].
Result<RangeOptions> read_options(const Call& call, bool plain_range) {
  RangeOptions options;
  options.by_score = !plain_range;
  for (std::size_t i = 4; i < call.words.size(); ++i) {
    const std::string_view word = call.words[i];
    if (is_word(word, "WITHSCORES")) {
      options.with_scores = true;
    } else if (is_word(word, "LIMIT") && i + 2 < call.words.size()) {
      MJ_TRY(offset, integer(call.words[i + 1]));
      MJ_TRY(limit, integer(call.words[i + 2]));
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

void add(std::vector<Answer>& out, const std::pair<double, std::string>& member, bool with_score) {
  out.push_back(text_of(member.second));
  if (with_score) out.push_back(text_of(real_text(member.first)));
}

template <class Iterator>
std::vector<Answer> by_index(Iterator begin, std::size_t size, std::int64_t start, std::int64_t end, bool with_scores) {
  std::vector<Answer> out;
  const Section part = section(size, start, end);
  std::advance(begin, static_cast<std::ptrdiff_t>(part.first));
  for (std::size_t i = part.first; i < part.last; ++i) add(out, *begin++, with_scores);
  return out;
}

// From the first member within the range's near end to the last within its far end.
template <class Iterator, class Near, class Far>
std::vector<Answer> by_score(Iterator at, Iterator end, Near near, Far far, const RangeOptions& options) {
  std::vector<Answer> out;
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

std::vector<Answer> in_range(const Zset& zset, const ScoreRange& range, const RangeOptions& options) {
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

Result<Answer> scored(const Call& call, const RangeOptions& options) {
  const std::size_t min = options.reversed ? 3 : 2;
  MJ_TRY(range, score_range(call.words[min], call.words[5 - min]));
  MJ_TRY(zset, call.find<Zset>(call.words[1]));
  return list_of(zset == nullptr ? std::vector<Answer>() : in_range(*zset, range, options));
}

// ZRANGE key start stop [BYSCORE] [REV] [LIMIT offset count] [WITHSCORES]
Result<Answer> zrange(const Call& call) {
  MJ_TRY(options, read_options(call, true));
  if (options.by_score) return scored(call, options);
  MJ_TRY(start, integer(call.words[2]));
  MJ_TRY(end, integer(call.words[3]));
  MJ_TRY(zset, call.find<Zset>(call.words[1]));
  if (zset == nullptr) return list_of({});
  const auto& order = zset->order;
  return list_of(options.reversed ? by_index(order.rbegin(), order.size(), start, end, options.with_scores)
                                  : by_index(order.begin(), order.size(), start, end, options.with_scores));
}

// ZRANGEBYSCORE key min max [WITHSCORES] [LIMIT offset count]
Result<Answer> zrangebyscore(const Call& call) {
  MJ_TRY(options, read_options(call, false));
  return scored(call, options);
}

Result<Answer> zcount(const Call& call) {
  MJ_TRY(range, score_range(call.words[2], call.words[3]));
  MJ_TRY(zset, call.find<Zset>(call.words[1]));
  return number_of(zset == nullptr ? 0 : in_range(*zset, range, {}).size());
}

constexpr std::array kRangesCommands{
    CommandRow{"ZRANGE", -4, Access::reads, zrange},
    CommandRow{"ZRANGEBYSCORE", -4, Access::reads, zrangebyscore},
    CommandRow{"ZCOUNT", 4, Access::reads, zcount},
};

}  // namespace

std::span<const CommandRow> zset_range_commands() { return kRangesCommands; }

}  // namespace mycojobs::memory
