// What the commands of streams share: ids, trimming, entries as replies.
#pragma once

#include <limits>
#include <string>
#include <string_view>

#include "store/memory/memory_command.h"

namespace mycojobs::memory {

inline constexpr StreamId kLastId{std::numeric_limits<std::uint64_t>::max(), std::numeric_limits<std::uint64_t>::max()};
inline constexpr std::string_view kBadId = "ERR Invalid stream ID specified as stream command argument";

std::string id_text(const StreamId&);
// "ms-seq", or "ms": its seq is `missing_seq`. With `ends` also "-" and "+".
Result<StreamId> stream_id(std::string_view text, std::uint64_t missing_seq, bool ends);
Answer entry_of(const std::pair<const StreamId, Fields>&);

// What XADD and XTRIM may cut off: MAXLEN | MINID [= | ~] threshold.
struct Trimming {
  enum class By { nothing, length, id };
  By by = By::nothing;
  std::size_t length = 0;
  StreamId min;
};
// Reads the option at words[at] and moves `at` behind it; leaves both alone if there is none.
Result<void> read_trimming(Words words, std::size_t& at, Trimming&);
std::size_t trim(Stream&, const Trimming&);  // how many went

}  // namespace mycojobs::memory
