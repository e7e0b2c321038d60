// Sets.
#include <array>

#include "store/memory/memory_command.h"

namespace mycojobs::memory {
namespace {

Result<Answer> sadd(const Call& call) {
  MJ_TRY(set, call.find_or_make<Set>(call.words[1]));
  std::size_t count = 0;
  for (std::string_view member : call.words.subspan(2)) count += set->emplace(member).second ? 1 : 0;
  return number_of(count);
}

Result<Answer> srem(const Call& call) {
  MJ_TRY(set, call.find<Set>(call.words[1]));
  if (set == nullptr) return number_of(0);
  std::size_t count = 0;
  for (std::string_view member : call.words.subspan(2)) {
    const auto found = set->find(member);
    if (found == set->end()) continue;
    set->erase(found);
    ++count;
  }
  call.drop_if_empty(call.words[1], set);
  return number_of(count);
}

Result<Answer> scard(const Call& call) {
  MJ_TRY(set, call.find<Set>(call.words[1]));
  return number_of(set == nullptr ? 0 : set->size());
}

Result<Answer> sismember(const Call& call) {
  MJ_TRY(set, call.find<Set>(call.words[1]));
  return number_of(set != nullptr && set->contains(call.words[2]) ? 1 : 0);
}

Result<Answer> smembers(const Call& call) {
  MJ_TRY(set, call.find<Set>(call.words[1]));
  return set == nullptr ? list_of({}) : texts_of(*set);
}

// SPOP key [count]: the first ones.
Result<Answer> spop(const Call& call) {
  if (call.words.size() > 3) return syntax_error();
  const bool many = call.words.size() == 3;
  std::int64_t count = 1;
  if (many) {
    MJ_TRY(asked, count_of(call.words[2]));
    count = asked;
  }
  MJ_TRY(set, call.find<Set>(call.words[1]));
  if (set == nullptr) return many ? list_of({}) : nil();
  std::vector<Answer> taken;
  for (; count > 0 && !set->empty(); --count) taken.push_back(text_of(set->extract(set->begin()).value()));
  call.drop_if_empty(call.words[1], set);
  return many ? list_of(std::move(taken)) : std::move(taken[0]);
}

// SRANDMEMBER key [count]: the first ones; a negative count begins again where the set ends.
Result<Answer> srandmember(const Call& call) {
  if (call.words.size() > 3) return syntax_error();
  const bool many = call.words.size() == 3;
  std::int64_t count = 1;
  if (many) {
    MJ_TRY(asked, integer(call.words[2]));
    if (asked < -1000000) {  // for Redis one less than that would be too much
      return refuse("ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807");
    }
    count = asked;
  }
  MJ_TRY(set, call.find<Set>(call.words[1]));
  if (set == nullptr) return many ? list_of({}) : nil();
  if (!many) return text_of(*set->begin());
  std::vector<Answer> members;
  for (auto each = set->begin(); count > 0 && each != set->end(); ++each, --count) members.push_back(text_of(*each));
  for (auto each = set->begin(); count < 0; ++count) {
    members.push_back(text_of(*each));
    if (++each == set->end()) each = set->begin();
  }
  return list_of(std::move(members));
}

constexpr std::array kSetsCommands{
    CommandRow{"SADD", -3, Access::writes, sadd},
    CommandRow{"SREM", -3, Access::writes, srem},
    CommandRow{"SCARD", 2, Access::reads, scard},
    CommandRow{"SISMEMBER", 3, Access::reads, sismember},
    CommandRow{"SMEMBERS", 2, Access::reads, smembers},
    CommandRow{"SPOP", -2, Access::writes, spop},
    CommandRow{"SRANDMEMBER", -2, Access::reads, srandmember},
};

}  // namespace

std::span<const CommandRow> set_commands() { return kSetsCommands; }

}  // namespace mycojobs::memory
