// Shared helpers of the command implementations. Each value type has its own command table.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "support/redis/memory_redis.h"

namespace mycojobs::memory {

inline constexpr std::string_view kWrongType = "WRONGTYPE Operation against a key holding the wrong kind of value";
inline constexpr std::string_view kNotInteger = "ERR value is not an integer or out of range";
inline constexpr std::string_view kNotPositive = "ERR value is out of range, must be positive";

// The context of one command: the database and the words of the command.
struct Call {
  MemoryRedis& redis;
  Id database;
  Database& keys;
  Words words;  // the command name and its arguments

  // Returns nullptr if the key does not exist, and an error if the key holds another type.
  template <class T>
  Result<T*> find(std::string_view key) const {
    const auto found = keys.find(key);
    if (found == keys.end()) return nullptr;
    if (T* value = std::get_if<T>(&found->second)) return value;
    return refuse(kWrongType);
  }
  // Creates the key if it does not exist. The caller must then add an element or call drop_if_empty().
  template <class T>
  Result<T*> find_or_make(std::string_view key) const {
    MJ_TRY(found, find<T>(key));
    if (found == nullptr) found = &std::get<T>(keys.emplace(key, T()).first->second);
    return found;
  }
  template <class T>
  void drop_if_empty(std::string_view key, const T* value) const {
    if (value->empty()) keys.erase(keys.find(key));
  }
};

enum class Access { reads, writes };

struct CommandRow {
  std::string_view name;
  int arity;  // number of words including the name; negative: minimum number
  Access access;
  Result<MemoryReply> (*run)(const Call&);
  bool in_scripts = true;
};
std::span<const CommandRow> key_commands();
std::span<const CommandRow> text_commands();
std::span<const CommandRow> hash_commands();
std::span<const CommandRow> list_commands();
std::span<const CommandRow> set_commands();
std::span<const CommandRow> zset_commands();
std::span<const CommandRow> stream_commands();
std::span<const CommandRow> server_commands();
std::vector<const CommandRow*> all_commands();  // the rows of all tables above

// Parsing of command words, with the rules of Redis.
bool is_word(std::string_view text, std::string_view upper_case);
std::string lower_case(std::string_view text);
std::optional<std::int64_t> to_integer(std::string_view text);
std::optional<double> to_real(std::string_view text);
Result<std::int64_t> parse_integer(std::string_view text, std::string_view otherwise = kNotInteger);
Result<std::int64_t> parse_count(std::string_view text);  // error if negative
std::string real_to_text(double number);
bool glob_matches(std::string_view pattern, std::string_view text);
tl::unexpected<Error> wrong_number_of_words(std::string_view command);

// The half-open range [first, last) of a list of `size` that `start` and `end` select; negative indexes count from the
// end of the list. first == last: the range is empty.
struct Section {
  std::size_t first = 0, last = 0;
};
Section select_section(std::size_t size, std::int64_t start, std::int64_t end);

}  // namespace mycojobs::memory
