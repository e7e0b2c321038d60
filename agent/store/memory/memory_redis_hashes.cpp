// Hashes.
#include <array>

#include "store/memory/memory_command.h"

namespace mycojobs::memory {
namespace {

const std::string* field_of(const Hash* hash, std::string_view name) {
  if (hash == nullptr) return nullptr;
  const auto found = hash->find(name);
  return found == hash->end() ? nullptr : &found->second;
}

Result<Answer> hset(const Call& call) {
  if (call.words.size() % 2 != 0) return wrong_number_of_words(call.words[0]);
  MJ_TRY(hash, call.find_or_make<Hash>(call.words[1]));
  const std::size_t before = hash->size();
  for (std::size_t i = 2; i < call.words.size(); i += 2) {
    hash->insert_or_assign(std::string(call.words[i]), std::string(call.words[i + 1]));
  }
  return number_of(hash->size() - before);
}

Result<Answer> hsetnx(const Call& call) {
  MJ_TRY(hash, call.find_or_make<Hash>(call.words[1]));
  return number_of(hash->emplace(call.words[2], call.words[3]).second ? 1 : 0);
}

Result<Answer> hget(const Call& call) {
  MJ_TRY(hash, call.find<Hash>(call.words[1]));
  const std::string* value = field_of(hash, call.words[2]);
  return value == nullptr ? nil() : text_of(*value);
}

Result<Answer> hmget(const Call& call) {
  MJ_TRY(hash, call.find<Hash>(call.words[1]));
  std::vector<Answer> values;
  for (std::string_view name : call.words.subspan(2)) {
    const std::string* value = field_of(hash, name);
    values.push_back(value == nullptr ? nil() : text_of(*value));
  }
  return list_of(std::move(values));
}

Result<Answer> hgetall(const Call& call) {
  MJ_TRY(hash, call.find<Hash>(call.words[1]));
  std::vector<Answer> all;
  if (hash == nullptr) return list_of({});
  for (const auto& [name, value] : *hash) {
    all.push_back(text_of(name));
    all.push_back(text_of(value));
  }
  return list_of(std::move(all));
}

Result<Answer> hkeys(const Call& call) {
  MJ_TRY(hash, call.find<Hash>(call.words[1]));
  std::vector<Answer> names;
  if (hash == nullptr) return list_of({});
  for (const auto& field : *hash) names.push_back(text_of(field.first));
  return list_of(std::move(names));
}

Result<Answer> hdel(const Call& call) {
  MJ_TRY(hash, call.find<Hash>(call.words[1]));
  if (hash == nullptr) return number_of(0);
  std::size_t count = 0;
  for (std::string_view name : call.words.subspan(2)) {
    const auto found = hash->find(name);
    if (found == hash->end()) continue;
    hash->erase(found);
    ++count;
  }
  call.drop_if_empty(call.words[1], hash);
  return number_of(count);
}

Result<Answer> hexists(const Call& call) {
  MJ_TRY(hash, call.find<Hash>(call.words[1]));
  return number_of(field_of(hash, call.words[2]) != nullptr ? 1 : 0);
}

Result<Answer> hlen(const Call& call) {
  MJ_TRY(hash, call.find<Hash>(call.words[1]));
  return number_of(hash == nullptr ? 0 : hash->size());
}

Result<Answer> hstrlen(const Call& call) {
  MJ_TRY(hash, call.find<Hash>(call.words[1]));
  const std::string* value = field_of(hash, call.words[2]);
  return number_of(value == nullptr ? 0 : value->size());
}

Result<Answer> hincrby(const Call& call) {
  MJ_TRY(by, integer(call.words[3]));
  MJ_TRY(hash, call.find<Hash>(call.words[1]));
  std::int64_t number = 0;
  if (const std::string* value = field_of(hash, call.words[2])) {
    MJ_TRY(old, integer(*value, "ERR hash value is not an integer"));
    number = old;
  }
  if (__builtin_add_overflow(number, by, &number)) return refuse("ERR increment or decrement would overflow");
  MJ_TRY(target, call.find_or_make<Hash>(call.words[1]));
  target->insert_or_assign(std::string(call.words[2]), std::to_string(number));
  return number_of(number);
}

constexpr std::array kHashesCommands{
    CommandRow{"HSET", -4, Access::writes, hset},      CommandRow{"HSETNX", 4, Access::writes, hsetnx},
    CommandRow{"HGET", 3, Access::reads, hget},        CommandRow{"HMGET", -3, Access::reads, hmget},
    CommandRow{"HGETALL", 2, Access::reads, hgetall},  CommandRow{"HKEYS", 2, Access::reads, hkeys},
    CommandRow{"HDEL", -3, Access::writes, hdel},      CommandRow{"HEXISTS", 3, Access::reads, hexists},
    CommandRow{"HLEN", 2, Access::reads, hlen},        CommandRow{"HSTRLEN", 3, Access::reads, hstrlen},
    CommandRow{"HINCRBY", 4, Access::writes, hincrby},
};

}  // namespace

std::span<const CommandRow> hash_commands() { return kHashesCommands; }

}  // namespace mycojobs::memory
