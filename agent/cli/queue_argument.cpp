#include "cli/queue_argument.h"

#include <algorithm>

#include "domain/utf8.h"

namespace mycojobs {

Result<std::string> queue_argument(std::string_view text, const std::vector<QueueInfo>& known) {
  if (is_script_type(text)) return queue_key(text);
  if (text.starts_with("queue:") && is_script_type(text.substr(6))) return std::string(text);
  const bool there =
      std::any_of(known.begin(), known.end(), [text](const QueueInfo& info) { return info.queue == text; });
  if (there) return std::string(text);
  return fail(Code::invalid, shown(text) +
                                 " is no queue: give python, queue:python or a key that `mycojobs queue list` "
                                 "shows");
}

}  // namespace mycojobs
