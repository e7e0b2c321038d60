// Which queue an argument means.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/store.h"

namespace mycojobs {

// "python" or "queue:python" name queue:python; a full key of another kind (a runner's own queue) is taken if it is one
// of `known`. Error invalid.
Result<std::string> queue_argument(std::string_view text, const std::vector<QueueInfo>& known);

}  // namespace mycojobs
