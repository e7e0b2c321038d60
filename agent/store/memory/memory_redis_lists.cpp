// Lists.
#include <algorithm>
#include <array>

#include "store/memory/memory_command.h"

namespace mycojobs::memory {
namespace {

std::string take(List& list, bool left) {
  std::string entry = std::move(left ? list.front() : list.back());
  left ? list.pop_front() : list.pop_back();
  return entry;
}
void put(List& list, bool left, std::string entry) {
  left ? list.push_front(std::move(entry)) : list.push_back(std::move(entry));
}

Result<Answer> push(const Call& call, bool left) {
  MJ_TRY(list, call.find_or_make<List>(call.words[1]));
  for (std::string_view entry : call.words.subspan(2)) put(*list, left, std::string(entry));
  return number_of(list->size());
}
Result<Answer> lpush(const Call& call) { return push(call, true); }
Result<Answer> rpush(const Call& call) { return push(call, false); }

// LPOP key [count]
Result<Answer> pop(const Call& call, bool left) {
  if (call.words.size() > 3) return wrong_number_of_words(call.words[0]);
  std::int64_t count = 1;
  if (call.words.size() == 3) {
    MJ_TRY(asked, count_of(call.words[2]));
    count = asked;
  }
  MJ_TRY(list, call.find<List>(call.words[1]));
  if (list == nullptr) return nil();
  std::vector<Answer> taken;
  for (; count > 0 && !list->empty(); --count) taken.push_back(text_of(take(*list, left)));
  call.drop_if_empty(call.words[1], list);
  return call.words.size() == 3 ? list_of(std::move(taken)) : std::move(taken[0]);
}
Result<Answer> lpop(const Call& call) { return pop(call, true); }
Result<Answer> rpop(const Call& call) { return pop(call, false); }

Result<Answer> llen(const Call& call) {
  MJ_TRY(list, call.find<List>(call.words[1]));
  return number_of(list == nullptr ? 0 : list->size());
}

Result<Answer> lindex(const Call& call) {
  MJ_TRY(list, call.find<List>(call.words[1]));
  if (list == nullptr) return nil();
  MJ_TRY(index, integer(call.words[2]));
  const auto size = static_cast<std::int64_t>(list->size());
  if (index < 0) index += size;
  if (index < 0 || index >= size) return nil();
  return text_of((*list)[static_cast<std::size_t>(index)]);
}

Result<Answer> lrange(const Call& call) {
  MJ_TRY(start, integer(call.words[2]));
  MJ_TRY(end, integer(call.words[3]));
  MJ_TRY(list, call.find<List>(call.words[1]));
  std::vector<Answer> entries;
  const Section part = section(list == nullptr ? 0 : list->size(), start, end);
  for (std::size_t i = part.first; i < part.last; ++i) entries.push_back(text_of((*list)[i]));
  return list_of(std::move(entries));
}

// Where the entry stands: at most `count`, from the left or from the right.
std::vector<std::size_t> positions(const List& list, std::string_view entry, std::size_t count, bool from_left) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < list.size() && found.size() < count; ++i) {
    const std::size_t at = from_left ? i : list.size() - 1 - i;
    if (list[at] == entry) found.push_back(at);
  }
  return found;
}

Result<Answer> lrem(const Call& call) {
  MJ_TRY(count, integer(call.words[2]));
  MJ_TRY(list, call.find<List>(call.words[1]));
  if (list == nullptr) return number_of(0);
  const std::size_t most = count == 0 ? list->size() : static_cast<std::size_t>(std::abs(count));
  auto found = positions(*list, call.words[3], most, count >= 0);
  std::sort(found.rbegin(), found.rend());
  for (std::size_t at : found) list->erase(list->begin() + static_cast<std::ptrdiff_t>(at));
  call.drop_if_empty(call.words[1], list);
  return number_of(found.size());
}

// LPOS key entry [COUNT n] [MAXLEN n]
Result<Answer> lpos(const Call& call) {
  bool many = false;
  std::int64_t count = 1;
  std::int64_t most = 0;
  for (std::size_t i = 3; i < call.words.size(); i += 2) {
    if (i + 1 == call.words.size()) return syntax_error();
    if (is_word(call.words[i], "RANK")) return not_imitated("LPOS RANK");
    const bool counts = is_word(call.words[i], "COUNT");
    if (!counts && !is_word(call.words[i], "MAXLEN")) return syntax_error();
    const std::string_view otherwise = counts ? "ERR COUNT can't be negative" : "ERR MAXLEN can't be negative";
    MJ_TRY(asked, integer(call.words[i + 1], otherwise));
    if (asked < 0) return refuse(otherwise);
    many = many || counts;
    (counts ? count : most) = asked;
  }
  MJ_TRY(list, call.find<List>(call.words[1]));
  if (list == nullptr) return many ? list_of({}) : nil();
  std::vector<Answer> found;
  for (std::size_t at :
       positions(*list, call.words[2], count == 0 ? list->size() : static_cast<std::size_t>(count), true)) {
    if (most == 0 || at < static_cast<std::size_t>(most)) found.push_back(number_of(at));
  }
  if (many) return list_of(std::move(found));
  return found.empty() ? nil() : std::move(found[0]);
}

Result<bool> is_left(std::string_view word) {
  if (is_word(word, "LEFT")) return true;
  if (is_word(word, "RIGHT")) return false;
  return syntax_error();
}

Result<Answer> lmove(const Call& call) {
  MJ_TRY(from_left, is_left(call.words[3]));
  MJ_TRY(to_left, is_left(call.words[4]));
  MJ_TRY(source, call.find<List>(call.words[1]));
  if (source == nullptr) return nil();
  MJ_TRY(target, call.find_or_make<List>(call.words[2]));
  std::string entry = take(*source, from_left);
  put(*target, to_left, entry);
  call.drop_if_empty(call.words[1], source);
  return text_of(entry);
}

constexpr std::array kListsCommands{
    CommandRow{"LPUSH", -3, Access::writes, lpush}, CommandRow{"RPUSH", -3, Access::writes, rpush},
    CommandRow{"LPOP", -2, Access::writes, lpop},   CommandRow{"RPOP", -2, Access::writes, rpop},
    CommandRow{"LLEN", 2, Access::reads, llen},     CommandRow{"LINDEX", 3, Access::reads, lindex},
    CommandRow{"LRANGE", 4, Access::reads, lrange}, CommandRow{"LREM", 4, Access::writes, lrem},
    CommandRow{"LPOS", -3, Access::reads, lpos},    CommandRow{"LMOVE", 5, Access::writes, lmove},
};

}  // namespace

std::span<const CommandRow> list_commands() { return kListsCommands; }

}  // namespace mycojobs::memory
