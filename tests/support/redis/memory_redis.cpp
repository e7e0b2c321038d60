#include "support/redis/memory_redis.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>

#include "support/redis/memory_command.h"

namespace mycojobs::memory {
namespace {

MemoryReply line_reply(MemoryReply::Kind kind, std::string_view line) {
  MemoryReply out{kind, std::string(line), 0, {}};
  std::replace_if(
      out.text.begin(), out.text.end(), [](char c) { return c == '\r' || c == '\n'; }, ' ');
  return out;
}

void add_line(std::string& out, char sign, std::string_view text) {
  out += sign;
  out += text;
  out += "\r\n";
}

// RESP2 encoding.
void add(std::string& out, const MemoryReply& answer) {
  switch (answer.kind) {
    case MemoryReply::Kind::nil:
      return add_line(out, '$', "-1");
    case MemoryReply::Kind::status:
      return add_line(out, '+', answer.text);
    case MemoryReply::Kind::error:
      return add_line(out, '-', answer.text);
    case MemoryReply::Kind::number:
      return add_line(out, ':', std::to_string(answer.number));
    case MemoryReply::Kind::text:
      add_line(out, '$', std::to_string(answer.text.size()));
      out += answer.text;
      out += "\r\n";
      return;
    case MemoryReply::Kind::list:
      add_line(out, '*', std::to_string(answer.items.size()));
      for (const MemoryReply& item : answer.items) add(out, item);
      return;
  }
}

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

// Returns whether `c` is in the character class that starts at pattern[at]; moves `at` to the end of the class.
bool in_class(std::string_view pattern, std::size_t& at, char c) {
  ++at;
  const bool negated = at < pattern.size() && pattern[at] == '^';
  if (negated) ++at;
  bool found = false;
  for (;; ++at) {
    if (at >= pattern.size()) {
      --at;
      break;
    }
    if (pattern[at] == '\\' && at + 1 < pattern.size()) {
      found = found || pattern[++at] == c;
    } else if (pattern[at] == ']') {
      break;
    } else if (at + 2 < pattern.size() && pattern[at + 1] == '-') {
      const auto [low, high] = std::minmax(pattern[at], pattern[at + 2]);
      found = found || (c >= low && c <= high);
      at += 2;
    } else {
      found = found || pattern[at] == c;
    }
  }
  return found != negated;
}

const CommandRow* find_row(std::string_view name) {
  static const auto rows = [] {
    std::map<std::string, const CommandRow*, std::less<>> all;
    for (const CommandRow* row : all_commands()) {
      all.emplace(lower_case(row->name), row);
      all.emplace(row->name, row);  // the spelling that stores and scripts use
    }
    return all;
  }();
  auto found = rows.find(name);
  if (found == rows.end()) found = rows.find(lower_case(name));
  return found == rows.end() ? nullptr : found->second;
}

MemoryReply unknown(Words words) {
  std::string text = "ERR unknown command '" + std::string(words[0].substr(0, 128)) + "', with args beginning with: ";
  for (std::string_view each : words.subspan(1)) {
    if (text.size() >= 256) break;
    text += "'" + std::string(each.substr(0, 128)) + "' ";
  }
  return error(text);
}

}  // namespace

// Replies.

MemoryReply status(std::string_view line) { return line_reply(MemoryReply::Kind::status, line); }
MemoryReply error(std::string_view line) { return line_reply(MemoryReply::Kind::error, line); }

Reply to_reply(const MemoryReply& answer) {
  std::string protocol;
  add(protocol, answer);
  const std::unique_ptr<redisReader, void (*)(redisReader*)> reader(redisReaderCreate(), redisReaderFree);
  void* reply = nullptr;
  // The reader rejects a reply that is nested deeper than hiredis allows. The result is an empty reply, as after a lost
  // connection.
  if (redisReaderFeed(reader.get(), protocol.data(), protocol.size()) == REDIS_OK) {
    redisReaderGetReply(reader.get(), &reply);
  }
  return Reply(std::shared_ptr<const redisReply>(
      static_cast<redisReply*>(reply), [](const redisReply* r) { freeReplyObject(const_cast<redisReply*>(r)); }));
}

// Words of commands.

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), lower);
  return out;
}

bool is_word(std::string_view text, std::string_view upper_case) {
  return text.size() == upper_case.size() &&
         std::equal(text.begin(), text.end(), upper_case.begin(), [](char a, char b) { return lower(a) == lower(b); });
}

std::optional<std::int64_t> to_integer(std::string_view text) {
  const std::string_view digits = text.starts_with('-') ? text.substr(1) : text;
  if (digits.empty() || (digits[0] == '0' && text.size() > 1)) return std::nullopt;
  std::int64_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<double> to_real(std::string_view text) {
  if (text.empty() || std::isspace(static_cast<unsigned char>(text[0])) != 0) return std::nullopt;
  const std::string copy(text);
  char* end = nullptr;
  errno = 0;
  const double number = std::strtod(copy.c_str(), &end);
  const bool overflow = errno == ERANGE && (std::abs(number) == HUGE_VAL || number == 0);
  if (end != copy.c_str() + copy.size() || overflow || std::isnan(number)) return std::nullopt;
  return number;
}

Result<std::int64_t> parse_integer(std::string_view text, std::string_view otherwise) {
  const auto number = to_integer(text);
  if (!number) return refuse(otherwise);
  return *number;
}

Result<std::int64_t> parse_count(std::string_view text) {
  MJ_TRY(number, parse_integer(text, kNotPositive));
  if (number < 0) return refuse(kNotPositive);
  return number;
}

std::string real_to_text(double number) {
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  constexpr double kMaxWholeValue = 1e15;  // from 1e15 on "%.17g" may write an exponent
  if (std::abs(number) < kMaxWholeValue && std::trunc(number) == number && !std::signbit(number)) {
    return std::to_string(static_cast<std::int64_t>(number));
  }
  std::array<char, 40> text{};
  const int size = std::snprintf(text.data(), text.size(), "%.17g", number);
  return {text.data(), static_cast<std::size_t>(size)};
}

bool glob_matches(std::string_view pattern, std::string_view text) {
  std::size_t at = 0;
  for (; at < pattern.size() && (!text.empty() || pattern[at] == '*'); ++at) {
    if (pattern[at] == '*') {
      const std::string_view rest = pattern.substr(at + 1);
      for (std::size_t skipped = 0; skipped <= text.size(); ++skipped) {
        if (glob_matches(rest, text.substr(skipped))) return true;
      }
      return false;
    }
    if (pattern[at] == '[') {
      if (!in_class(pattern, at, text[0])) return false;
    } else if (pattern[at] != '?') {
      if (pattern[at] == '\\' && at + 1 < pattern.size()) ++at;
      if (pattern[at] != text[0]) return false;
    }
    text.remove_prefix(1);
  }
  return text.empty() && at >= pattern.size();
}

tl::unexpected<Error> wrong_number_of_words(std::string_view command) {
  return refuse("ERR wrong number of arguments for '" + lower_case(command) + "' command");
}

Section select_section(std::size_t size, std::int64_t start, std::int64_t end) {
  const auto count = static_cast<std::int64_t>(size);
  if (start < 0) start = std::max<std::int64_t>(start + count, 0);
  if (end < 0) end += count;
  end = std::min(end, count - 1);
  if (start > end) return {};
  return {static_cast<std::size_t>(start), static_cast<std::size_t>(end) + 1};
}

// The databases.

std::vector<const CommandRow*> all_commands() {
  std::vector<const CommandRow*> all;
  for (const auto& table : {key_commands(), text_commands(), hash_commands(), list_commands(), set_commands(),
                            zset_commands(), stream_commands(), server_commands()}) {
    for (const CommandRow& row : table) all.push_back(&row);
  }
  return all;
}

CommandKind command_kind(Words words) {
  if (words.empty()) return {};
  const CommandRow* row = find_row(words[0]);
  return row == nullptr ? CommandKind{words[0], false} : CommandKind{row->name, row->access == Access::writes};
}

MemoryReply MemoryRedis::execute(Id database, Words words) {
  now_ms_ = clock_.unix_ms();
  return perform(database, words, false);
}

MemoryReply MemoryRedis::perform(Id database, Words words, bool in_script) {
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
  steps_ += 1 + (answer ? answer->items.size() : 0);
  return answer ? std::move(*answer) : error(answer.error().message);
}

MemoryReply MemoryRedis::run(Id database, std::string_view sha1, std::string_view text, Words arguments) {
  now_ms_ = clock_.unix_ms();
  return evaluate(database, sha1, text, {}, arguments);
}

MemoryReply MemoryRedis::evaluate(Id database, std::string_view sha1, std::string_view text, Words keys,
                                  Words arguments) {
  // The connection keeps its database when a script selects another one.
  return lua_.run(sha1, text, keys, arguments, [&, selected = database](Words words) mutable {
    if (words.size() != 2 || !is_word(words[0], "SELECT")) return perform(selected, words, true);
    const auto index = to_integer(words[1]);
    if (!index || *index < 0) return error(kNotInteger);
    selected = static_cast<Id>(*index);
    return status("OK");
  });
}

}  // namespace mycojobs::memory
