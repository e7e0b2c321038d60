// Stream commands.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <limits>

#include "support/redis/memory_command.h"

namespace mycojobs::memory {
namespace {

// Ids, entries as replies, trimming.

constexpr StreamId kLastId{std::numeric_limits<std::uint64_t>::max(), std::numeric_limits<std::uint64_t>::max()};
constexpr std::string_view kBadId = "ERR Invalid stream ID specified as stream command argument";

// The trimming option of XADD and XTRIM: MAXLEN | MINID [= | ~] threshold.
struct TrimOptions {
  enum class By { nothing, length, id };
  By by = By::nothing;
  std::size_t length = 0;
  StreamId min;
};

// Parses as leniently as Redis: leading blanks and zeros are accepted.
bool parse_part(std::string_view text, std::uint64_t& part) {
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

std::string to_text(const StreamId& id) { return std::to_string(id.ms) + "-" + std::to_string(id.seq); }

// Parses "ms-seq", or "ms" with the sequence number `missing_seq`. `ends`: "-" and "+" are accepted too.
Result<StreamId> parse_stream_id(std::string_view text, std::uint64_t missing_seq, bool ends) {
  if (ends && text == "-") return StreamId{};
  if (ends && text == "+") return kLastId;
  const auto dash = text.find('-');
  StreamId id{0, missing_seq};
  const bool parsed = parse_part(text.substr(0, dash), id.ms) &&
                      (dash == std::string_view::npos || parse_part(text.substr(dash + 1), id.seq));
  if (!parsed) return refuse(kBadId);
  return id;
}

MemoryReply entry_reply(const std::pair<const StreamId, Fields>& entry) {
  std::vector<MemoryReply> fields;
  for (const auto& [name, value] : entry.second) {
    fields.push_back(text_reply(name));
    fields.push_back(text_reply(value));
  }
  return list_reply({text_reply(to_text(entry.first)), list_reply(std::move(fields))});
}

// Parses the option at words[at] and moves `at` behind it. Without an option, `at` and `trimming` are unchanged.
Result<void> parse_trim_options(Words words, std::size_t& at, TrimOptions& trimming) {
  const bool by_length = is_word(words[at], "MAXLEN");
  if ((!by_length && !is_word(words[at], "MINID")) || at + 1 >= words.size()) return {};
  if (trimming.by != TrimOptions::By::nothing) {
    return refuse("ERR syntax error, MAXLEN and MINID options at the same time are not compatible");
  }
  ++at;
  if ((words[at] == "~" || words[at] == "=") && at + 1 < words.size()) ++at;
  if (by_length) {
    MJ_TRY(length, parse_integer(words[at]));
    if (length < 0) return refuse("ERR The MAXLEN argument must be >= 0.");
    trimming.length = static_cast<std::size_t>(length);
    trimming.by = TrimOptions::By::length;
  } else {
    MJ_TRY(min, parse_stream_id(words[at], 0, false));
    trimming.min = min;
    trimming.by = TrimOptions::By::id;
  }
  ++at;
  return {};
}

// Returns the number of removed entries.
std::size_t trim(Stream& stream, const TrimOptions& trimming) {
  auto& entries = stream.entries;
  const std::size_t before = entries.size();
  if (trimming.by == TrimOptions::By::id) entries.erase(entries.begin(), entries.lower_bound(trimming.min));
  if (trimming.by == TrimOptions::By::length) {
    while (entries.size() > trimming.length) entries.erase(entries.begin());
  }
  return before - entries.size();
}

// Writing commands.

constexpr std::uint64_t kMaxSeq = kLastId.seq;

struct WantedId {
  bool from_time = false;  // "*"
  bool next_seq = false;   // "ms-*"
  StreamId id;
};

Result<WantedId> wanted_id(std::string_view text) {
  WantedId wanted;
  wanted.from_time = text == "*";
  wanted.next_seq = text.ends_with("-*");
  if (wanted.from_time) return wanted;
  if (wanted.next_seq) text.remove_suffix(2);
  MJ_TRY(id, parse_stream_id(text, 0, false));
  wanted.id = id;
  return wanted;
}

// Returns the id of the new entry. Error: the id would not be the largest of the stream.
Result<StreamId> id_for(const Stream& stream, const WantedId& wanted, std::uint64_t now_ms) {
  const StreamId& last = stream.last;
  const auto too_small = refuse("ERR The ID specified in XADD is equal or smaller than the target stream top item");
  if (last == kLastId) {
    return refuse("ERR The stream has exhausted the last possible ID, unable to add more items");
  }
  if (wanted.from_time) {
    if (now_ms > last.ms) return StreamId{now_ms, 0};
    return last.seq < kMaxSeq ? StreamId{last.ms, last.seq + 1} : StreamId{last.ms + 1, 0};
  }
  StreamId id = wanted.id;
  if (wanted.next_seq && id.ms == last.ms) {
    if (last.seq == kMaxSeq) return too_small;
    id.seq = last.seq + 1;
  }
  if (id <= last) return too_small;
  return id;
}

// XADD key [NOMKSTREAM] [MAXLEN | MINID [= | ~] threshold] id name value ...
Result<MemoryReply> xadd(const Call& call) {
  TrimOptions trimming;
  bool only_if_there = false;
  std::size_t at = 2;
  while (at < call.words.size()) {
    const std::size_t before = at;
    MJ_CHECK(parse_trim_options(call.words, at, trimming));
    if (at == before && is_word(call.words[at], "LIMIT")) return not_imitated("XADD LIMIT");
    if (at == before && is_word(call.words[at], "NOMKSTREAM")) {
      only_if_there = true;
      ++at;
    }
    if (at == before) break;
  }
  if (at == call.words.size()) return wrong_number_of_words("xadd");
  MJ_TRY(wanted, wanted_id(call.words[at]));
  const Words fields = call.words.subspan(at + 1);
  if (fields.empty() || fields.size() % 2 != 0) return wrong_number_of_words("xadd");
  if (!wanted.from_time && !wanted.next_seq && wanted.id == StreamId{}) {
    return refuse("ERR The ID specified in XADD must be greater than 0-0");
  }
  MJ_TRY(old, call.find<Stream>(call.words[1]));
  if (old == nullptr && only_if_there) return nil_reply();
  const Stream none;
  MJ_TRY(id, id_for(old == nullptr ? none : *old, wanted, call.redis.now_ms()));
  MJ_TRY(stream, call.find_or_make<Stream>(call.words[1]));
  Fields entry;
  for (std::size_t i = 0; i < fields.size(); i += 2) entry.emplace_back(fields[i], fields[i + 1]);
  stream->entries.emplace_hint(stream->entries.end(), id, std::move(entry));
  stream->last = id;
  ++stream->added;
  trim(*stream, trimming);
  return text_reply(to_text(id));
}

Result<MemoryReply> xdel(const Call& call) {
  MJ_TRY(stream, call.find<Stream>(call.words[1]));
  if (stream == nullptr) return number_reply(0);
  std::vector<StreamId> ids;
  for (std::string_view word : call.words.subspan(2)) {
    MJ_TRY(id, parse_stream_id(word, 0, false));
    ids.push_back(id);
  }
  std::size_t count = 0;
  for (const StreamId& id : ids) {
    if (stream->entries.erase(id) == 0) continue;
    stream->max_deleted = std::max(stream->max_deleted, id);
    ++count;
  }
  return number_reply(count);
}

// XTRIM key MAXLEN | MINID [= | ~] threshold
Result<MemoryReply> xtrim(const Call& call) {
  TrimOptions trimming;
  std::size_t at = 2;
  MJ_CHECK(parse_trim_options(call.words, at, trimming));
  if (at < call.words.size() && is_word(call.words[at], "LIMIT")) return not_imitated("XTRIM LIMIT");
  if (at != call.words.size()) return syntax_error();
  MJ_TRY(stream, call.find<Stream>(call.words[1]));
  return number_reply(stream == nullptr ? 0 : trim(*stream, trimming));
}

// Reading commands.

// Parses one end of a range; "(id" excludes the id.
Result<StreamId> range_end(std::string_view text, bool is_start) {
  const bool open = text.starts_with('(');
  MJ_TRY(id, parse_stream_id(open ? text.substr(1) : text, is_start ? 0 : kLastId.seq, !open));
  if (!open) return id;
  if (is_start) {
    if (id == kLastId) return refuse("ERR invalid start ID for the interval");
    return id.seq == kLastId.seq ? StreamId{id.ms + 1, 0} : StreamId{id.ms, id.seq + 1};
  }
  if (id == StreamId{}) return refuse("ERR invalid end ID for the interval");
  return id.seq == 0 ? StreamId{id.ms - 1, kLastId.seq} : StreamId{id.ms, id.seq - 1};
}

// XRANGE key start end [COUNT n]; XREVRANGE key end start [COUNT n]
Result<MemoryReply> range(const Call& call, bool reversed) {
  MJ_TRY(start, range_end(call.words[reversed ? 3 : 2], true));
  MJ_TRY(end, range_end(call.words[reversed ? 2 : 3], false));
  std::int64_t count = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 4; i < call.words.size(); i += 2) {
    if (i + 1 == call.words.size() || !is_word(call.words[i], "COUNT")) return syntax_error();
    MJ_TRY(asked, parse_integer(call.words[i + 1]));
    count = std::max<std::int64_t>(asked, 0);
  }
  MJ_TRY(stream, call.find<Stream>(call.words[1]));
  if (stream == nullptr) return list_reply({});
  if (count == 0) return nil_reply();
  std::vector<MemoryReply> entries;
  if (start > end) return list_reply({});
  const auto first = stream->entries.lower_bound(start), behind = stream->entries.upper_bound(end);
  if (reversed) {
    for (auto at = behind; at != first && count > 0; --count) entries.push_back(entry_reply(*--at));
  } else {
    for (auto at = first; at != behind && count > 0; ++at, --count) entries.push_back(entry_reply(*at));
  }
  return list_reply(std::move(entries));
}
Result<MemoryReply> xrange(const Call& call) { return range(call, false); }
Result<MemoryReply> xrevrange(const Call& call) { return range(call, true); }

Result<MemoryReply> xlen(const Call& call) {
  MJ_TRY(stream, call.find<Stream>(call.words[1]));
  return number_reply(stream == nullptr ? 0 : stream->entries.size());
}

// XREAD [COUNT n] [BLOCK ms] STREAMS key ... id ...: returns the available entries at once; memory_server.cpp repeats a
// blocking call.
Result<MemoryReply> xread(const Call& call) {
  std::int64_t count = 0;
  std::size_t at = 1;
  for (; at + 1 < call.words.size() && !is_word(call.words[at], "STREAMS"); at += 2) {
    const bool counts = is_word(call.words[at], "COUNT");
    if (!counts && !is_word(call.words[at], "BLOCK")) return syntax_error();
    MJ_TRY(number,
           parse_integer(call.words[at + 1], counts ? kNotInteger : "ERR timeout is not an integer or out of range"));
    if (!counts && number < 0) return refuse("ERR timeout is negative");
    if (counts) count = number;
  }
  if (at + 1 >= call.words.size()) return syntax_error();
  const Words streams = call.words.subspan(at + 1);
  if (streams.size() % 2 != 0) {
    return refuse("ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.");
  }
  if (count <= 0) count = std::numeric_limits<std::int64_t>::max();
  std::vector<MemoryReply> read;
  for (std::size_t i = 0; i < streams.size() / 2; ++i) {
    MJ_TRY(stream, call.find<Stream>(streams[i]));
    if (streams[i + streams.size() / 2] == "$") return not_imitated("XREAD $");
    MJ_TRY(after, parse_stream_id(streams[i + streams.size() / 2], 0, false));
    std::vector<MemoryReply> entries;
    if (stream == nullptr) continue;
    auto next = stream->entries.upper_bound(after);
    for (std::int64_t left = count; next != stream->entries.end() && left > 0; ++next, --left) {
      entries.push_back(entry_reply(*next));
    }
    if (!entries.empty()) read.push_back(list_reply({text_reply(streams[i]), list_reply(std::move(entries))}));
  }
  return read.empty() ? nil_reply() : list_reply(std::move(read));
}

// XINFO STREAM key: the fields that do not depend on the internal representation in Redis.
Result<MemoryReply> xinfo(const Call& call) {
  if (!is_word(call.words[1], "STREAM") || call.words.size() != 3) return not_imitated("XINFO but for STREAM key");
  MJ_TRY(stream, call.find<Stream>(call.words[2]));
  if (stream == nullptr) return refuse("ERR no such key");
  const auto& entries = stream->entries;
  return list_reply({text_reply("length"), number_reply(entries.size()),                                        //
                     text_reply("last-generated-id"), text_reply(to_text(stream->last)),                        //
                     text_reply("max-deleted-entry-id"), text_reply(to_text(stream->max_deleted)),              //
                     text_reply("entries-added"), number_reply(stream->added),                                  //
                     text_reply("recorded-first-entry-id"),                                                     //
                     text_reply(to_text(entries.empty() ? StreamId() : entries.begin()->first)),                //
                     text_reply("first-entry"), entries.empty() ? nil_reply() : entry_reply(*entries.begin()),  //
                     text_reply("last-entry"), entries.empty() ? nil_reply() : entry_reply(*std::prev(entries.end()))});
}

constexpr std::array kStreamsCommands{
    CommandRow{"XADD", -5, Access::writes, xadd},          CommandRow{"XDEL", -3, Access::writes, xdel},
    CommandRow{"XTRIM", -4, Access::writes, xtrim},        CommandRow{"XRANGE", -4, Access::reads, xrange},
    CommandRow{"XREVRANGE", -4, Access::reads, xrevrange}, CommandRow{"XLEN", 2, Access::reads, xlen},
    CommandRow{"XREAD", -4, Access::reads, xread},         CommandRow{"XINFO", -3, Access::reads, xinfo},
};

}  // namespace

std::span<const CommandRow> stream_commands() { return kStreamsCommands; }

}  // namespace mycojobs::memory
