// Operations on messages: store, send, read. docs/tenants.md describes their path between contexts.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "service/service_caller.h"

namespace mycojobs::service {

// Sets target_key, which is part of the signed data, to the public key of the coordinator at target_address, from the
// record of a runner of the context. Error `denied`: there is no such record; target_key is then empty.
Result<void> set_target_key(RecordStore&, Id context, Message&);
// Stores a message. A message for its own context is delivered to its topic, if it has one. A message for another
// context (target_context, target_address) waits to be signed and posted, and its jobs without an id are numbered.
// owner_id: the owner; no value means the caller. The jobs of the message are checked as new jobs
// (service/job_service.h). Error `not_found`: no runner of the context has the topic.
Result<Message> send_message(const RequestContext&, Store&, std::optional<Id> owner_id, Message);
// Adds a stored message to msg_out. signature: provides the fields signature, signer, algorithm, created_at; empty
// means that the record has them. The supervisor verifies the signature and writes a failure to the message. Errors:
// `invalid` (the message is not signed), `conflict` (it was sent before).
Result<Message> post_message(const RequestContext&, Store&, Id owner, Id id, const Message& signature);
Result<Message> read_message(const RequestContext&, Store&, Id owner, Id id);
// Returns the messages that the caller can see, newest first, without text and jobs. limit: at most 1000.
Result<std::vector<Message>> list_messages(const RequestContext&, Store&, std::uint64_t limit);

// Returns the displayed status of a message: the name of its status, or `cancelled` if the message was cancelled before
// it had an effect.
std::string_view to_display_status(const Message&);
// Returns the record of the remote flow of a sent flow, or no value until the answer has arrived.
std::optional<Flow> get_flow_result(const Message&);
// Returns the message with `flow_result` as an object.
nlohmann::json message_to_json(const Message&);
// Cancels a message with everything that it carries: immediately, or when its current holder receives the request.
Result<Message> cancel_message(const RequestContext&, Store&, Id owner, Id id);
// Deletes a message. Error `conflict`: the message waits for its receiver, or its jobs or its result are awaited.
Result<void> delete_message(const RequestContext&, Store&, Id owner, Id id);

}  // namespace mycojobs::service
