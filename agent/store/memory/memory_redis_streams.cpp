// Streams: commands that write.
#include <algorithm>
#include <array>

#include "store/memory/memory_stream.h"

namespace mycojobs::memory {
namespace {

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
  MJ_TRY(id, stream_id(text, 0, false));
  wanted.id = id;
  return wanted;
}

// The id that the new entry gets. Error: it would not be the stream's largest.
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
Result<Answer> xadd(const Call& call) {
  Trimming trimming;
  bool only_if_there = false;
  std::size_t at = 2;
  while (at < call.words.size()) {
    const std::size_t before = at;
    MJ_CHECK(read_trimming(call.words, at, trimming));
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
  if (old == nullptr && only_if_there) return nil();
  const Stream none;
  MJ_TRY(id, id_for(old == nullptr ? none : *old, wanted, call.redis.now_ms()));
  MJ_TRY(stream, call.find_or_make<Stream>(call.words[1]));
  Fields entry;
  for (std::size_t i = 0; i < fields.size(); i += 2) entry.emplace_back(fields[i], fields[i + 1]);
  stream->entries.emplace_hint(stream->entries.end(), id, std::move(entry));
  stream->last = id;
  ++stream->added;
  trim(*stream, trimming);
  return text_of(id_text(id));
}

Result<Answer> xdel(const Call& call) {
  MJ_TRY(stream, call.find<Stream>(call.words[1]));
  if (stream == nullptr) return number_of(0);
  std::vector<StreamId> ids;
  for (std::string_view word : call.words.subspan(2)) {
    MJ_TRY(id, stream_id(word, 0, false));
    ids.push_back(id);
  }
  std::size_t count = 0;
  for (const StreamId& id : ids) {
    if (stream->entries.erase(id) == 0) continue;
    stream->max_deleted = std::max(stream->max_deleted, id);
    ++count;
  }
  return number_of(count);
}

// XTRIM key MAXLEN | MINID [= | ~] threshold
Result<Answer> xtrim(const Call& call) {
  Trimming trimming;
  std::size_t at = 2;
  MJ_CHECK(read_trimming(call.words, at, trimming));
  if (at < call.words.size() && is_word(call.words[at], "LIMIT")) return not_imitated("XTRIM LIMIT");
  if (at != call.words.size()) return syntax_error();
  MJ_TRY(stream, call.find<Stream>(call.words[1]));
  return number_of(stream == nullptr ? 0 : trim(*stream, trimming));
}

constexpr std::array kStreamsCommands{
    CommandRow{"XADD", -5, Access::writes, xadd},
    CommandRow{"XDEL", -3, Access::writes, xdel},
    CommandRow{"XTRIM", -4, Access::writes, xtrim},
};

}  // namespace

std::span<const CommandRow> stream_commands() { return kStreamsCommands; }

}  // namespace mycojobs::memory
