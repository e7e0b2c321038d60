// Commands of hashes, lists and sets.
#include <algorithm>
#include <array>

#include "support/redis/memory_command.h"

namespace mycojobs::memory {
namespace {

// Hashes.

const std::string* find_field(const Hash* hash, std::string_view name) {
  if (hash == nullptr) return nullptr;
  const auto found = hash->find(name);
  return found == hash->end() ? nullptr : &found->second;
}

Result<MemoryReply> hset(const Call& call) {
  if (call.words.size() % 2 != 0) return wrong_number_of_words(call.words[0]);
  MJ_TRY(hash, call.find_or_make<Hash>(call.words[1]));
  const std::size_t before = hash->size();
  for (std::size_t i = 2; i < call.words.size(); i += 2) {
    hash->insert_or_assign(std::string(call.words[i]), std::string(call.words[i + 1]));
  }
  return number_reply(hash->size() - before);
}

Result<MemoryReply> hsetnx(const Call& call) {
  MJ_TRY(hash, call.find_or_make<Hash>(call.words[1]));
  return number_reply(hash->emplace(call.words[2], call.words[3]).second ? 1 : 0);
}

Result<MemoryReply> hget(const Call& call) {
  MJ_TRY(hash, call.find<Hash>(call.words[1]));
  const std::string* value = find_field(hash, call.words[2]);
  return value == nullptr ? nil_reply() : text_reply(*value);
}

Result<MemoryReply> hmget(const Call& call) {
  MJ_TRY(hash, call.find<Hash>(call.words[1]));
  std::vector<MemoryReply> values;
  for (std::string_view name : call.words.subspan(2)) {
    const std::string* value = find_field(hash, name);
    values.push_back(value == nullptr ? nil_reply() : text_reply(*value));
  }
  return list_reply(std::move(values));
}

Result<MemoryReply> hgetall(const Call& call) {
  MJ_TRY(hash, call.find<Hash>(call.words[1]));
  std::vector<MemoryReply> all;
  if (hash == nullptr) return list_reply({});
  for (const auto& [name, value] : *hash) {
    all.push_back(text_reply(name));
    all.push_back(text_reply(value));
  }
  return list_reply(std::move(all));
}

Result<MemoryReply> hkeys(const Call& call) {
  MJ_TRY(hash, call.find<Hash>(call.words[1]));
  std::vector<MemoryReply> names;
  if (hash == nullptr) return list_reply({});
  for (const auto& field : *hash) names.push_back(text_reply(field.first));
  return list_reply(std::move(names));
}

Result<MemoryReply> hdel(const Call& call) {
  MJ_TRY(hash, call.find<Hash>(call.words[1]));
  if (hash == nullptr) return number_reply(0);
  std::size_t count = 0;
  for (std::string_view name : call.words.subspan(2)) {
    const auto found = hash->find(name);
    if (found == hash->end()) continue;
    hash->erase(found);
    ++count;
  }
  call.drop_if_empty(call.words[1], hash);
  return number_reply(count);
}

Result<MemoryReply> hexists(const Call& call) {
  MJ_TRY(hash, call.find<Hash>(call.words[1]));
  return number_reply(find_field(hash, call.words[2]) != nullptr ? 1 : 0);
}

Result<MemoryReply> hlen(const Call& call) {
  MJ_TRY(hash, call.find<Hash>(call.words[1]));
  return number_reply(hash == nullptr ? 0 : hash->size());
}

Result<MemoryReply> hstrlen(const Call& call) {
  MJ_TRY(hash, call.find<Hash>(call.words[1]));
  const std::string* value = find_field(hash, call.words[2]);
  return number_reply(value == nullptr ? 0 : value->size());
}

Result<MemoryReply> hincrby(const Call& call) {
  MJ_TRY(by, parse_integer(call.words[3]));
  MJ_TRY(hash, call.find<Hash>(call.words[1]));
  std::int64_t number = 0;
  if (const std::string* value = find_field(hash, call.words[2])) {
    MJ_TRY(old, parse_integer(*value, "ERR hash value is not an integer"));
    number = old;
  }
  if (__builtin_add_overflow(number, by, &number)) return refuse("ERR increment or decrement would overflow");
  MJ_TRY(target, call.find_or_make<Hash>(call.words[1]));
  target->insert_or_assign(std::string(call.words[2]), std::to_string(number));
  return number_reply(number);
}

constexpr std::array kHashesCommands{
    CommandRow{"HSET", -4, Access::writes, hset},      CommandRow{"HSETNX", 4, Access::writes, hsetnx},
    CommandRow{"HGET", 3, Access::reads, hget},        CommandRow{"HMGET", -3, Access::reads, hmget},
    CommandRow{"HGETALL", 2, Access::reads, hgetall},  CommandRow{"HKEYS", 2, Access::reads, hkeys},
    CommandRow{"HDEL", -3, Access::writes, hdel},      CommandRow{"HEXISTS", 3, Access::reads, hexists},
    CommandRow{"HLEN", 2, Access::reads, hlen},        CommandRow{"HSTRLEN", 3, Access::reads, hstrlen},
    CommandRow{"HINCRBY", 4, Access::writes, hincrby},
};

// Lists.

std::string take(List& list, bool left) {
  std::string entry = std::move(left ? list.front() : list.back());
  left ? list.pop_front() : list.pop_back();
  return entry;
}
void put(List& list, bool left, std::string entry) {
  left ? list.push_front(std::move(entry)) : list.push_back(std::move(entry));
}

Result<MemoryReply> push(const Call& call, bool left) {
  MJ_TRY(list, call.find_or_make<List>(call.words[1]));
  for (std::string_view entry : call.words.subspan(2)) put(*list, left, std::string(entry));
  return number_reply(list->size());
}
Result<MemoryReply> lpush(const Call& call) { return push(call, true); }
Result<MemoryReply> rpush(const Call& call) { return push(call, false); }

// LPOP key [count]
Result<MemoryReply> pop(const Call& call, bool left) {
  if (call.words.size() > 3) return wrong_number_of_words(call.words[0]);
  std::int64_t count = 1;
  if (call.words.size() == 3) {
    MJ_TRY(asked, parse_count(call.words[2]));
    count = asked;
  }
  MJ_TRY(list, call.find<List>(call.words[1]));
  if (list == nullptr) return nil_reply();
  std::vector<MemoryReply> taken;
  for (; count > 0 && !list->empty(); --count) taken.push_back(text_reply(take(*list, left)));
  call.drop_if_empty(call.words[1], list);
  return call.words.size() == 3 ? list_reply(std::move(taken)) : std::move(taken[0]);
}
Result<MemoryReply> lpop(const Call& call) { return pop(call, true); }
Result<MemoryReply> rpop(const Call& call) { return pop(call, false); }

Result<MemoryReply> llen(const Call& call) {
  MJ_TRY(list, call.find<List>(call.words[1]));
  return number_reply(list == nullptr ? 0 : list->size());
}

Result<MemoryReply> lindex(const Call& call) {
  MJ_TRY(list, call.find<List>(call.words[1]));
  if (list == nullptr) return nil_reply();
  MJ_TRY(index, parse_integer(call.words[2]));
  const auto size = static_cast<std::int64_t>(list->size());
  if (index < 0) index += size;
  if (index < 0 || index >= size) return nil_reply();
  return text_reply((*list)[static_cast<std::size_t>(index)]);
}

Result<MemoryReply> lrange(const Call& call) {
  MJ_TRY(start, parse_integer(call.words[2]));
  MJ_TRY(end, parse_integer(call.words[3]));
  MJ_TRY(list, call.find<List>(call.words[1]));
  std::vector<MemoryReply> entries;
  const Section part = select_section(list == nullptr ? 0 : list->size(), start, end);
  for (std::size_t i = part.first; i < part.last; ++i) entries.push_back(text_reply((*list)[i]));
  return list_reply(std::move(entries));
}

// Returns up to `count` positions of the entry within the first `max` entries, counted from the left or from the
// right.
std::vector<std::size_t> positions(const Call& call, const List& list, std::string_view entry, std::size_t count,
                                   bool from_left, std::size_t max) {
  std::vector<std::size_t> found;
  std::size_t i = 0;
  for (; i < std::min(list.size(), max) && found.size() < count; ++i) {
    const std::size_t at = from_left ? i : list.size() - 1 - i;
    if (list[at] == entry) found.push_back(at);
  }
  call.redis.add_steps(i);
  return found;
}

Result<MemoryReply> lrem(const Call& call) {
  MJ_TRY(count, parse_integer(call.words[2]));
  MJ_TRY(list, call.find<List>(call.words[1]));
  if (list == nullptr) return number_reply(0);
  const std::size_t max = count == 0 ? list->size() : static_cast<std::size_t>(std::abs(count));
  auto found = positions(call, *list, call.words[3], max, count >= 0, list->size());
  std::sort(found.rbegin(), found.rend());
  for (std::size_t at : found) list->erase(list->begin() + static_cast<std::ptrdiff_t>(at));
  call.drop_if_empty(call.words[1], list);
  return number_reply(found.size());
}

// LPOS key entry [COUNT n] [MAXLEN n]
Result<MemoryReply> lpos(const Call& call) {
  bool many = false;
  std::int64_t count = 1;
  std::int64_t max = 0;
  for (std::size_t i = 3; i < call.words.size(); i += 2) {
    if (i + 1 == call.words.size()) return syntax_error();
    if (is_word(call.words[i], "RANK")) return not_imitated("LPOS RANK");
    const bool counts = is_word(call.words[i], "COUNT");
    if (!counts && !is_word(call.words[i], "MAXLEN")) return syntax_error();
    const std::string_view otherwise = counts ? "ERR COUNT can't be negative" : "ERR MAXLEN can't be negative";
    MJ_TRY(asked, parse_integer(call.words[i + 1], otherwise));
    if (asked < 0) return refuse(otherwise);
    many = many || counts;
    (counts ? count : max) = asked;
  }
  MJ_TRY(list, call.find<List>(call.words[1]));
  if (list == nullptr) return many ? list_reply({}) : nil_reply();
  std::vector<MemoryReply> found;
  const std::size_t wanted = count == 0 ? list->size() : static_cast<std::size_t>(count);
  const std::size_t searched = max == 0 ? list->size() : static_cast<std::size_t>(max);
  for (std::size_t at : positions(call, *list, call.words[2], wanted, true, searched))
    found.push_back(number_reply(at));
  if (many) return list_reply(std::move(found));
  return found.empty() ? nil_reply() : std::move(found[0]);
}

Result<bool> is_left(std::string_view word) {
  if (is_word(word, "LEFT")) return true;
  if (is_word(word, "RIGHT")) return false;
  return syntax_error();
}

Result<MemoryReply> lmove(const Call& call) {
  MJ_TRY(from_left, is_left(call.words[3]));
  MJ_TRY(to_left, is_left(call.words[4]));
  MJ_TRY(source, call.find<List>(call.words[1]));
  if (source == nullptr) return nil_reply();
  MJ_TRY(target, call.find_or_make<List>(call.words[2]));
  std::string entry = take(*source, from_left);
  put(*target, to_left, entry);
  call.drop_if_empty(call.words[1], source);
  return text_reply(entry);
}

constexpr std::array kListsCommands{
    CommandRow{"LPUSH", -3, Access::writes, lpush}, CommandRow{"RPUSH", -3, Access::writes, rpush},
    CommandRow{"LPOP", -2, Access::writes, lpop},   CommandRow{"RPOP", -2, Access::writes, rpop},
    CommandRow{"LLEN", 2, Access::reads, llen},     CommandRow{"LINDEX", 3, Access::reads, lindex},
    CommandRow{"LRANGE", 4, Access::reads, lrange}, CommandRow{"LREM", 4, Access::writes, lrem},
    CommandRow{"LPOS", -3, Access::reads, lpos},    CommandRow{"LMOVE", 5, Access::writes, lmove},
};

// Sets.

Result<MemoryReply> sadd(const Call& call) {
  MJ_TRY(set, call.find_or_make<Set>(call.words[1]));
  std::size_t count = 0;
  for (std::string_view member : call.words.subspan(2)) count += set->emplace(member).second ? 1 : 0;
  return number_reply(count);
}

Result<MemoryReply> srem(const Call& call) {
  MJ_TRY(set, call.find<Set>(call.words[1]));
  if (set == nullptr) return number_reply(0);
  std::size_t count = 0;
  for (std::string_view member : call.words.subspan(2)) {
    const auto found = set->find(member);
    if (found == set->end()) continue;
    set->erase(found);
    ++count;
  }
  call.drop_if_empty(call.words[1], set);
  return number_reply(count);
}

Result<MemoryReply> scard(const Call& call) {
  MJ_TRY(set, call.find<Set>(call.words[1]));
  return number_reply(set == nullptr ? 0 : set->size());
}

Result<MemoryReply> sismember(const Call& call) {
  MJ_TRY(set, call.find<Set>(call.words[1]));
  return number_reply(set != nullptr && set->contains(call.words[2]) ? 1 : 0);
}

Result<MemoryReply> smembers(const Call& call) {
  MJ_TRY(set, call.find<Set>(call.words[1]));
  return set == nullptr ? list_reply({}) : texts_reply(*set);
}

// SPOP key [count]: deterministic, removes the first members.
Result<MemoryReply> spop(const Call& call) {
  if (call.words.size() > 3) return syntax_error();
  const bool many = call.words.size() == 3;
  std::int64_t count = 1;
  if (many) {
    MJ_TRY(asked, parse_count(call.words[2]));
    count = asked;
  }
  MJ_TRY(set, call.find<Set>(call.words[1]));
  if (set == nullptr) return many ? list_reply({}) : nil_reply();
  std::vector<MemoryReply> taken;
  for (; count > 0 && !set->empty(); --count) taken.push_back(text_reply(set->extract(set->begin()).value()));
  call.drop_if_empty(call.words[1], set);
  return many ? list_reply(std::move(taken)) : std::move(taken[0]);
}

// SRANDMEMBER key [count]: deterministic, returns the first members. A negative count restarts at the beginning when
// the set is exhausted.
Result<MemoryReply> srandmember(const Call& call) {
  if (call.words.size() > 3) return syntax_error();
  const bool many = call.words.size() == 3;
  std::int64_t count = 1;
  if (many) {
    MJ_TRY(asked, parse_integer(call.words[2]));
    if (asked < -1000000) {  // far above the limit of Redis, to bound the reply
      return refuse("ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807");
    }
    count = asked;
  }
  MJ_TRY(set, call.find<Set>(call.words[1]));
  if (set == nullptr) return many ? list_reply({}) : nil_reply();
  if (!many) return text_reply(*set->begin());
  std::vector<MemoryReply> members;
  for (auto each = set->begin(); count > 0 && each != set->end(); ++each, --count) members.push_back(text_reply(*each));
  for (auto each = set->begin(); count < 0; ++count) {
    members.push_back(text_reply(*each));
    if (++each == set->end()) each = set->begin();
  }
  return list_reply(std::move(members));
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

std::span<const CommandRow> hash_commands() { return kHashesCommands; }
std::span<const CommandRow> list_commands() { return kListsCommands; }
std::span<const CommandRow> set_commands() { return kSetsCommands; }

}  // namespace mycojobs::memory
