#include "store/memory/memory_stream.h"

#include <cerrno>
#include <cstdlib>

namespace mycojobs::memory {
namespace {

// Read as freely as Redis does: with blanks or zeros in front.
bool read_part(std::string_view text, std::uint64_t& part) {
  const auto number = to_integer(text);
  if (number) {
    part = static_cast<std::uint64_t>(*number);
    return *number >= 0;
  }
  const std::string copy(text);
  char* end = nullptr;
  errno = 0;
  part = std::strtoull(copy.c_str(), &end, 10);
  return errno == 0 && !copy.empty() && *end == '\0';
}

}  // namespace

std::string id_text(const StreamId& id) { return std::to_string(id.ms) + "-" + std::to_string(id.seq); }

Result<StreamId> stream_id(std::string_view text, std::uint64_t missing_seq, bool ends) {
  if (ends && text == "-") return StreamId{};
  if (ends && text == "+") return kLastId;
  const auto dash = text.find('-');
  StreamId id{0, missing_seq};
  const bool parsed = read_part(text.substr(0, dash), id.ms) &&
                      (dash == std::string_view::npos || read_part(text.substr(dash + 1), id.seq));
  if (!parsed) return refuse(kBadId);
  return id;
}

Answer entry_of(const std::pair<const StreamId, Fields>& entry) {
  std::vector<Answer> fields;
  for (const auto& [name, value] : entry.second) {
    fields.push_back(text_of(name));
    fields.push_back(text_of(value));
  }
  return list_of({text_of(id_text(entry.first)), list_of(std::move(fields))});
}

Result<void> read_trimming(Words words, std::size_t& at, Trimming& trimming) {
  const bool by_length = is_word(words[at], "MAXLEN");
  if ((!by_length && !is_word(words[at], "MINID")) || at + 1 >= words.size()) return {};
  if (trimming.by != Trimming::By::nothing) {
    return refuse("ERR syntax error, MAXLEN and MINID options at the same time are not compatible");
  }
  ++at;
  if ((words[at] == "~" || words[at] == "=") && at + 1 < words.size()) ++at;
  if (by_length) {
    MJ_TRY(length, integer(words[at]));
    if (length < 0) return refuse("ERR The MAXLEN argument must be >= 0.");
    trimming.length = static_cast<std::size_t>(length);
    trimming.by = Trimming::By::length;
  } else {
    MJ_TRY(min, stream_id(words[at], 0, false));
    trimming.min = min;
    trimming.by = Trimming::By::id;
  }
  ++at;
  return {};
}

std::size_t trim(Stream& stream, const Trimming& trimming) {
  auto& entries = stream.entries;
  const std::size_t before = entries.size();
  if (trimming.by == Trimming::By::id) entries.erase(entries.begin(), entries.lower_bound(trimming.min));
  if (trimming.by == Trimming::By::length) {
    while (entries.size() > trimming.length) entries.erase(entries.begin());
  }
  return before - entries.size();
}

}  // namespace mycojobs::memory
