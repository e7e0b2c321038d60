// Sorted sets whose members have one score: ranges by the members' bytes.
#include <array>

#include "store/memory/memory_command.h"

namespace mycojobs::memory {
namespace {

struct Bound {
  std::string_view text;
  bool open = false;
  int infinite = 0;  // -1: before all, 1: behind all
};

Result<Bound> bound_of(std::string_view word) {
  if (word == "-") return Bound{{}, false, -1};
  if (word == "+") return Bound{{}, false, 1};
  if (word.starts_with('[') || word.starts_with('(')) return Bound{word.substr(1), word[0] == '(', 0};
  return refuse("ERR min or max not valid string range item");
}

std::vector<std::string> in_range(const Zset* zset, const Bound& min, const Bound& max, std::int64_t offset,
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
Result<Answer> zrangebylex(const Call& call) {
  std::int64_t offset = 0, limit = -1;
  for (std::size_t i = 4; i < call.words.size(); i += 3) {
    if (!is_word(call.words[i], "LIMIT") || i + 2 >= call.words.size()) return syntax_error();
    MJ_TRY(first, integer(call.words[i + 1]));
    MJ_TRY(count, integer(call.words[i + 2]));
    offset = first;
    limit = count;
  }
  MJ_TRY(min, bound_of(call.words[2]));
  MJ_TRY(max, bound_of(call.words[3]));
  MJ_TRY(zset, call.find<Zset>(call.words[1]));
  std::vector<Answer> found;
  for (const std::string& member : in_range(zset, min, max, offset, limit)) found.push_back(text_of(member));
  return list_of(std::move(found));
}

// ZLEXCOUNT key min max
Result<Answer> zlexcount(const Call& call) {
  MJ_TRY(min, bound_of(call.words[2]));
  MJ_TRY(max, bound_of(call.words[3]));
  MJ_TRY(zset, call.find<Zset>(call.words[1]));
  return number_of(in_range(zset, min, max, 0, -1).size());
}

constexpr std::array kLexCommands{
    CommandRow{"ZRANGEBYLEX", -4, Access::reads, zrangebylex},
    CommandRow{"ZLEXCOUNT", 4, Access::reads, zlexcount},
};

}  // namespace

std::span<const CommandRow> zset_lex_commands() { return kLexCommands; }

}  // namespace mycojobs::memory
