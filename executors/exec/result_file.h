// What a program writes into $MYCOJOBS_RESULT and $MYCOJOBS_PROGRESS, as text. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "domain/result_values.h"
#include "mycojobs/result.h"

namespace mycojobs {

// One JSON object (each value keeps its type), or lines of texts
//
//   key=value
//   key<<END
//   any lines
//   END
//
// A byte order mark at the beginning is skipped. Blank lines between entries are passed over; a key that comes twice
// has its last value. Error invalid: names the line or the key.
Result<HandedBack> parse_result_file(std::string_view text);

struct Progress {
  std::optional<double> fraction;  // 0 to 1
  std::string text;
};
// "0.4", "0.4 half of it", "40%", "40 % half of it", or text alone.
Progress parse_progress(std::string_view line);

}  // namespace mycojobs
