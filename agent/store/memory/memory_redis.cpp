#include "store/memory/memory_redis.h"

#include <map>

#include "store/memory/memory_command.h"

namespace mycojobs::memory {
namespace {

const CommandRow* find_row(std::string_view name) {
  static const auto rows = [] {
    std::map<std::string, const CommandRow*, std::less<>> all;
    for (const CommandRow* row : all_commands()) all.emplace(lower_case(row->name), row);
    return all;
  }();
  const auto found = rows.find(lower_case(name));
  return found == rows.end() ? nullptr : found->second;
}

Answer unknown(Words words) {
  std::string text = "ERR unknown command '" + std::string(words[0].substr(0, 128)) + "', with args beginning with: ";
  for (std::string_view each : words.subspan(1)) {
    if (text.size() >= 256) break;
    text += "'" + std::string(each.substr(0, 128)) + "' ";
  }
  return error(text);
}

}  // namespace

std::vector<const CommandRow*> all_commands() {
  std::vector<const CommandRow*> all;
  for (const auto& table :
       {key_commands(), text_commands(), hash_commands(), list_commands(), set_commands(), zset_commands(),
        zset_lex_commands(), zset_range_commands(), stream_commands(), stream_reading_commands(), server_commands()}) {
    for (const CommandRow& row : table) all.push_back(&row);
  }
  return all;
}

CommandKind command_kind(Words words) {
  if (words.empty()) return {};
  const CommandRow* row = find_row(words[0]);
  return row == nullptr ? CommandKind{words[0], false} : CommandKind{row->name, row->access == Access::writes};
}

Answer MemoryRedis::execute(Id database, Words words) {
  now_ms_ = clock_.unix_ms();
  return perform(database, words, false);
}

Answer MemoryRedis::perform(Id database, Words words, bool in_script) {
  if (words.empty()) return error("ERR no command");
  const CommandRow* row = find_row(words[0]);
  if (row == nullptr) return in_script ? error("ERR Unknown Redis command called from script") : unknown(words);
  const auto count = static_cast<int>(words.size());
  if (row->arity > 0 ? count != row->arity : count < -row->arity) {
    return in_script ? error("ERR Wrong number of args calling Redis command from script")
                     : error(wrong_number_of_words(row->name).value().message);
  }
  if (in_script && !row->in_scripts) {
    return error("ERR This Redis command is not allowed from script");
  }
  auto answer = row->run(Call{*this, database, databases_[database], words});
  return answer ? std::move(*answer) : error(answer.error().message);
}

Answer MemoryRedis::run(Id database, std::string_view sha1, std::string_view text, Words arguments) {
  now_ms_ = clock_.unix_ms();
  return evaluate(database, sha1, text, {}, arguments);
}

Answer MemoryRedis::evaluate(Id database, std::string_view sha1, std::string_view text, Words keys, Words arguments) {
  return lua_.run(sha1, text, keys, arguments, [&](Words words) { return perform(database, words, true); });
}

}  // namespace mycojobs::memory
