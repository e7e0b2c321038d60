// Streams: commands that read.
#include <algorithm>
#include <array>

#include "store/memory/memory_stream.h"

namespace mycojobs::memory {
namespace {

// One end of a range; "(id": without it.
Result<StreamId> range_end(std::string_view text, bool is_start) {
  const bool open = text.starts_with('(');
  MJ_TRY(id, stream_id(open ? text.substr(1) : text, is_start ? 0 : kLastId.seq, !open));
  if (!open) return id;
  if (is_start) {
    if (id == kLastId) return refuse("ERR invalid start ID for the interval");
    return id.seq == kLastId.seq ? StreamId{id.ms + 1, 0} : StreamId{id.ms, id.seq + 1};
  }
  if (id == StreamId{}) return refuse("ERR invalid end ID for the interval");
  return id.seq == 0 ? StreamId{id.ms - 1, kLastId.seq} : StreamId{id.ms, id.seq - 1};
}

// XRANGE key start end [COUNT n]; XREVRANGE key end start [COUNT n]
Result<Answer> range(const Call& call, bool reversed) {
  MJ_TRY(start, range_end(call.words[reversed ? 3 : 2], true));
  MJ_TRY(end, range_end(call.words[reversed ? 2 : 3], false));
  std::int64_t count = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 4; i < call.words.size(); i += 2) {
    if (i + 1 == call.words.size() || !is_word(call.words[i], "COUNT")) return syntax_error();
    MJ_TRY(asked, integer(call.words[i + 1]));
    count = std::max<std::int64_t>(asked, 0);
  }
  MJ_TRY(stream, call.find<Stream>(call.words[1]));
  if (stream == nullptr) return list_of({});
  if (count == 0) return nil();
  std::vector<Answer> entries;
  if (start > end) return list_of({});
  const auto first = stream->entries.lower_bound(start), behind = stream->entries.upper_bound(end);
  if (reversed) {
    for (auto at = behind; at != first && count > 0; --count) entries.push_back(entry_of(*--at));
  } else {
    for (auto at = first; at != behind && count > 0; ++at, --count) entries.push_back(entry_of(*at));
  }
  return list_of(std::move(entries));
}
Result<Answer> xrange(const Call& call) { return range(call, false); }
Result<Answer> xrevrange(const Call& call) { return range(call, true); }

Result<Answer> xlen(const Call& call) {
  MJ_TRY(stream, call.find<Stream>(call.words[1]));
  return number_of(stream == nullptr ? 0 : stream->entries.size());
}

// XREAD [COUNT n] [BLOCK ms] STREAMS key ... id ...: what is there now; who may wait asks again (memory_server.cpp).
Result<Answer> xread(const Call& call) {
  std::int64_t count = 0;
  std::size_t at = 1;
  for (; at + 1 < call.words.size() && !is_word(call.words[at], "STREAMS"); at += 2) {
    const bool counts = is_word(call.words[at], "COUNT");
    if (!counts && !is_word(call.words[at], "BLOCK")) return syntax_error();
    MJ_TRY(number, integer(call.words[at + 1], counts ? kNotInteger : "ERR timeout is not an integer or out of range"));
    if (!counts && number < 0) return refuse("ERR timeout is negative");
    if (counts) count = number;
  }
  if (at + 1 >= call.words.size()) return syntax_error();
  const Words streams = call.words.subspan(at + 1);
  if (streams.size() % 2 != 0) {
    return refuse("ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.");
  }
  if (count <= 0) count = std::numeric_limits<std::int64_t>::max();
  std::vector<Answer> read;
  for (std::size_t i = 0; i < streams.size() / 2; ++i) {
    MJ_TRY(stream, call.find<Stream>(streams[i]));
    if (streams[i + streams.size() / 2] == "$") return not_imitated("XREAD $");
    MJ_TRY(after, stream_id(streams[i + streams.size() / 2], 0, false));
    std::vector<Answer> entries;
    if (stream == nullptr) continue;
    auto next = stream->entries.upper_bound(after);
    for (std::int64_t left = count; next != stream->entries.end() && left > 0; ++next, --left) {
      entries.push_back(entry_of(*next));
    }
    if (!entries.empty()) read.push_back(list_of({text_of(streams[i]), list_of(std::move(entries))}));
  }
  return read.empty() ? nil() : list_of(std::move(read));
}

// XINFO STREAM key: the fields that do not tell how Redis stores it.
Result<Answer> xinfo(const Call& call) {
  if (!is_word(call.words[1], "STREAM") || call.words.size() != 3) return not_imitated("XINFO but for STREAM key");
  MJ_TRY(stream, call.find<Stream>(call.words[2]));
  if (stream == nullptr) return refuse("ERR no such key");
  const auto& entries = stream->entries;
  return list_of({text_of("length"), number_of(entries.size()),                                  //
                  text_of("last-generated-id"), text_of(id_text(stream->last)),                  //
                  text_of("max-deleted-entry-id"), text_of(id_text(stream->max_deleted)),        //
                  text_of("entries-added"), number_of(stream->added),                            //
                  text_of("recorded-first-entry-id"),                                            //
                  text_of(id_text(entries.empty() ? StreamId() : entries.begin()->first)),       //
                  text_of("first-entry"), entries.empty() ? nil() : entry_of(*entries.begin()),  //
                  text_of("last-entry"), entries.empty() ? nil() : entry_of(*std::prev(entries.end()))});
}

constexpr std::array kStreamReadsCommands{
    CommandRow{"XRANGE", -4, Access::reads, xrange}, CommandRow{"XREVRANGE", -4, Access::reads, xrevrange},
    CommandRow{"XLEN", 2, Access::reads, xlen},      CommandRow{"XREAD", -4, Access::reads, xread},
    CommandRow{"XINFO", -3, Access::reads, xinfo},
};

}  // namespace

std::span<const CommandRow> stream_reading_commands() { return kStreamReadsCommands; }

}  // namespace mycojobs::memory
