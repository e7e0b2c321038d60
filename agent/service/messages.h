// Messages: sending, reading.
#pragma once

#include <optional>
#include <vector>

#include "service/caller.h"

namespace mycojobs::service {

// Stored, and handed to its topic if it names one. owner: whose; nothing: who asks. Its jobs are checked as new ones
// (service/jobs.h). Error not_found: its topic is that of no runner of the context.
Result<Message> send_message(const Caller&, Store&, std::optional<Id> owner, Message);
Result<Message> read_message(const Caller&, Store&, Id maker, Id id);
// The newest first, without text and jobs; of those that the caller may see. limit: at most 1000.
Result<std::vector<Message>> list_messages(const Caller&, Store&, std::uint64_t limit);

}  // namespace mycojobs::service
