// Keys of any type.
#include <array>

#include "store/memory/memory_command.h"

namespace mycojobs::memory {
namespace {

constexpr std::array<std::string_view, std::variant_size_v<Value>> kTypes{"string", "hash", "list",
                                                                          "set",    "zset", "stream"};

Result<Answer> type(const Call& call) {
  const auto found = call.keys.find(call.words[1]);
  return status(found == call.keys.end() ? "none" : kTypes[found->second.index()]);
}

Result<Answer> exists(const Call& call) {
  std::size_t count = 0;
  for (std::string_view key : call.words.subspan(1)) count += call.keys.contains(key) ? 1 : 0;
  return number_of(count);
}

Result<Answer> del(const Call& call) {
  std::size_t count = 0;
  for (std::string_view key : call.words.subspan(1)) {
    const auto found = call.keys.find(key);
    if (found == call.keys.end()) continue;
    call.keys.erase(found);
    ++count;
  }
  return number_of(count);
}

// SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]: everything at once.
Result<Answer> scan(const Call& call) {
  const auto cursor = to_integer(call.words[1]);
  if (!cursor || *cursor < 0) return refuse("ERR invalid cursor");
  std::string_view pattern = "*", wanted;
  for (std::size_t i = 2; i < call.words.size(); i += 2) {
    if (i + 1 == call.words.size()) return syntax_error();
    if (is_word(call.words[i], "MATCH")) {
      pattern = call.words[i + 1];
    } else if (is_word(call.words[i], "TYPE")) {
      wanted = call.words[i + 1];
    } else if (is_word(call.words[i], "COUNT")) {
      MJ_TRY(count, integer(call.words[i + 1]));
      if (count < 1) return syntax_error();
    } else {
      return syntax_error();
    }
  }
  std::vector<Answer> found;
  for (const auto& [key, value] : call.keys) {
    const bool fits = wanted.empty() || is_word(wanted, kTypes[value.index()]);
    if (*cursor == 0 && fits && glob_matches(pattern, key)) found.push_back(text_of(key));
  }
  return list_of({text_of("0"), list_of(std::move(found))});
}

Result<Answer> dbsize(const Call& call) { return number_of(call.keys.size()); }

Result<Answer> flushdb(const Call& call) {
  call.keys.clear();
  return status("OK");
}

Result<Answer> flushall(const Call& call) {
  for (auto& each : call.redis.databases()) each.second.clear();
  return status("OK");
}

// MEMORY USAGE key [SAMPLES n]: of a hash what its fields and values have, of all else nothing.
Result<Answer> memory(const Call& call) {
  if (!is_word(call.words[1], "USAGE")) return not_imitated("MEMORY but for USAGE");
  const auto found = call.keys.find(call.words[2]);
  std::size_t bytes = 0;
  if (found != call.keys.end()) {
    if (const auto* hash = std::get_if<Hash>(&found->second)) {
      for (const auto& [name, value] : *hash) bytes += name.size() + value.size();
    }
  }
  return number_of(bytes);
}

constexpr std::array kKeysCommands{
    CommandRow{"TYPE", 2, Access::reads, type},           CommandRow{"EXISTS", -2, Access::reads, exists},
    CommandRow{"DEL", -2, Access::writes, del},           CommandRow{"UNLINK", -2, Access::writes, del},
    CommandRow{"SCAN", -2, Access::reads, scan},          CommandRow{"DBSIZE", 1, Access::reads, dbsize},
    CommandRow{"MEMORY", -3, Access::reads, memory},      CommandRow{"FLUSHDB", -1, Access::writes, flushdb},
    CommandRow{"FLUSHALL", -1, Access::writes, flushall},
};

}  // namespace

std::span<const CommandRow> key_commands() { return kKeysCommands; }

}  // namespace mycojobs::memory
