// Parses the texts that a program writes to $MYCOJOBS_RESULT and $MYCOJOBS_PROGRESS. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "model/result_values.h"

namespace mycojobs {

// Parses one JSON object, whose values keep their types, or lines of text:
//
//   key=value
//   key<<END
//   any lines
//   END
//
// A byte order mark at the beginning and blank lines between entries are skipped. The last value of a repeated key is
// used. Error invalid names the line or the key.
Result<ResultValues> parse_result_file(std::string_view text);

struct ProgramProgress {
  std::optional<double> fraction;  // 0 to 1
  std::string text;
};
// Accepts "0.4", "0.4 half of it", "40%", "40 % half of it", or text alone.
ProgramProgress parse_progress(std::string_view line);

}  // namespace mycojobs
