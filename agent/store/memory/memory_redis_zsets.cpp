// Sorted sets: one member at a time.
#include <array>

#include "store/memory/memory_command.h"

namespace mycojobs::memory {
namespace {

struct AddOptions {
  bool if_absent = false, if_present = false, if_greater = false, if_less = false, count_changed = false;
};

// Returns the index of the first word behind the options.
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
Result<Answer> zadd(const Call& call) {
  AddOptions options;
  MJ_TRY(first, read_options(call, options));
  std::vector<std::pair<double, std::string_view>> members;
  for (std::size_t i = first; i < call.words.size(); i += 2) {
    const auto score = to_real(call.words[i]);
    if (!score) return refuse("ERR value is not a valid float");
    // There is no -0.
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
  return number_of(options.count_changed ? added + changed : added);
}

Result<Answer> zrem(const Call& call) {
  MJ_TRY(zset, call.find<Zset>(call.words[1]));
  if (zset == nullptr) return number_of(0);
  std::size_t count = 0;
  for (std::string_view member : call.words.subspan(2)) count += zset->erase(member) ? 1 : 0;
  call.drop_if_empty(call.words[1], zset);
  return number_of(count);
}

Result<Answer> zscore(const Call& call) {
  MJ_TRY(zset, call.find<Zset>(call.words[1]));
  if (zset == nullptr) return nil();
  const auto found = zset->scores.find(call.words[2]);
  return found == zset->scores.end() ? nil() : text_of(real_text(found->second));
}

Result<Answer> zcard(const Call& call) {
  MJ_TRY(zset, call.find<Zset>(call.words[1]));
  return number_of(zset == nullptr ? 0 : zset->order.size());
}

// ZPOPMIN key [count]
Result<Answer> zpopmin(const Call& call) {
  if (call.words.size() > 3) return syntax_error();
  std::int64_t count = 1;
  if (call.words.size() == 3) {
    MJ_TRY(asked, count_of(call.words[2]));
    count = asked;
  }
  MJ_TRY(zset, call.find<Zset>(call.words[1]));
  std::vector<Answer> taken;
  if (zset == nullptr) return list_of({});
  for (; count > 0 && !zset->empty(); --count) {
    const auto first = *zset->order.begin();
    taken.push_back(text_of(first.second));
    taken.push_back(text_of(real_text(first.first)));
    zset->erase(first.second);
  }
  call.drop_if_empty(call.words[1], zset);
  return list_of(std::move(taken));
}

constexpr std::array kZsetsCommands{
    CommandRow{"ZADD", -4, Access::writes, zadd},       CommandRow{"ZREM", -3, Access::writes, zrem},
    CommandRow{"ZSCORE", 3, Access::reads, zscore},     CommandRow{"ZCARD", 2, Access::reads, zcard},
    CommandRow{"ZPOPMIN", -2, Access::writes, zpopmin},
};

}  // namespace

std::span<const CommandRow> zset_commands() { return kZsetsCommands; }

}  // namespace mycojobs::memory
