// Messages: writing, sending, reading. docs/tenants.md draws their way between contexts.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "service/caller.h"

namespace mycojobs::service {

// Writes target_key, which is signed: the public key of the coordinator at target_address, by the record of a runner of
// the context. Error denied: there is none, and target_key is empty.
Result<void> name_target(RecordStore&, Id context, Message&);
// Stored. One for its own context is handed to its topic, if it names one; one for another context (target_context,
// target_address) waits to be signed and posted, and its jobs without an id get one. owner: whose; nothing: who asks.
// Its jobs are checked as new ones (service/jobs.h). Error not_found: its topic is that of no runner of the context.
Result<Message> send_message(const Caller&, Store&, std::optional<Id> owner, Message);
// Puts a stored message on msg_out. signature: its fields signature, signer, algorithm, created_at; empty: the record
// has them. What does not hold is found by the supervisor, which writes it on the message. Errors: invalid (it is not
// signed), conflict (it was sent before).
Result<Message> post_message(const Caller&, Store&, Id maker, Id id, const Message& signature);
Result<Message> read_message(const Caller&, Store&, Id maker, Id id);
// The newest first, without text and jobs; of those that the caller may see. limit: at most 1000.
Result<std::vector<Message>> list_messages(const Caller&, Store&, std::uint64_t limit);

// It ends, and all that it carries: at once, or once whoever has it got the request.
// How it stands for people: the word of its status, but `cancelled` of one that was before it came to anything.
std::string_view message_word(const Message&);
// The record of the remote flow that a sent flow became, once its answer has arrived.
std::optional<Flow> flow_result(const Message&);
// The message with `flow_result` as an object.
nlohmann::json message_json(const Message&);
Result<Message> cancel_message(const Caller&, Store&, Id maker, Id id);
// Error conflict: it waits to be taken, or its jobs or its result are awaited.
Result<void> delete_message(const Caller&, Store&, Id maker, Id id);

}  // namespace mycojobs::service
