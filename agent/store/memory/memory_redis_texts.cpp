// Strings.
#include <array>

#include "store/memory/memory_command.h"

namespace mycojobs::memory {
namespace {

Result<Answer> get(const Call& call) {
  MJ_TRY(text, call.find<Text>(call.words[1]));
  return text == nullptr ? nil() : text_of(*text);
}

// SET key value [NX | XX]
Result<Answer> set(const Call& call) {
  bool if_absent = false, if_present = false;
  for (std::string_view option : call.words.subspan(3)) {
    if (is_word(option, "NX") && !if_present) {
      if_absent = true;
    } else if (is_word(option, "XX") && !if_absent) {
      if_present = true;
    } else if (is_word(option, "GET") || is_word(option, "EX") || is_word(option, "PX")) {
      return not_imitated("SET " + std::string(option));
    } else {
      return syntax_error();
    }
  }
  const bool there = call.keys.contains(call.words[1]);
  if (there ? if_absent : if_present) return nil();
  call.keys.insert_or_assign(std::string(call.words[1]), Text(call.words[2]));
  return status("OK");
}

Result<Answer> add(const Call& call, std::int64_t by) {
  MJ_TRY(text, call.find<Text>(call.words[1]));
  std::int64_t number = 0;
  if (text != nullptr) {
    MJ_TRY(old, integer(*text));
    number = old;
  }
  if (__builtin_add_overflow(number, by, &number)) return refuse("ERR increment or decrement would overflow");
  call.keys.insert_or_assign(std::string(call.words[1]), std::to_string(number));
  return number_of(number);
}

Result<Answer> incr(const Call& call) { return add(call, 1); }

Result<Answer> incrby(const Call& call) {
  MJ_TRY(by, integer(call.words[2]));
  return add(call, by);
}

constexpr std::array kTextsCommands{
    CommandRow{"GET", 2, Access::reads, get},
    CommandRow{"SET", -3, Access::writes, set},
    CommandRow{"INCR", 2, Access::writes, incr},
    CommandRow{"INCRBY", 3, Access::writes, incrby},
};

}  // namespace

std::span<const CommandRow> text_commands() { return kTextsCommands; }

}  // namespace mycojobs::memory
