// Topics, and messages between contexts. Errors and thread-safety: store/store.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/job_end.h"
#include "model/records.h"

namespace mycojobs {

class StoreConnection;

// A job of a message, with its present or future queue.
struct MessageJob {
  Job job;
  std::string queue;  // "queue:python", "mj:queue:runner20"
};
// Conversion of a received message into jobs.
struct AcceptMessage {
  std::string list;  // list that holds the message key: a topic or msg_in
  std::string message_key;
  std::vector<MessageJob> jobs;
  Id flow = 0;                            // the flow that was created from the message
  std::vector<std::string> origins = {};  // keys of the jobs in the sender's context, in the same order
  std::string files_holder = {};          // coordinator that has the files of the message; empty without files
};
// Result of accepting or routing a message.
struct AcceptedMessage {
  std::vector<std::string> job_keys;
  bool repeated = false;  // the message was accepted or sent before, and nothing was changed
};

// A message that is sent to another context, or received from one.
struct MessageState {
  // content_hash() (security/signatures.h); a message with the same key and another hash is a different message.
  std::string content_hash;
  Fields extra_fields;  // additional fields of the mark; names in store/keys.toml
};
// Request to send a message to another context.
struct RouteMessage {
  std::string message_key;
  MessageState mark;
  // Time limits for the delivery, from now, and for the answer, from the delivery. 0 means no limit.
  std::uint64_t delivery_timeout_ms = 0, result_timeout_ms = 0;
  std::vector<MessageJob> jobs;
};
// Result of MessageStore::receive_message().
enum class Arrival {
  stored,
  duplicate,            // the message was received before
  content_conflict,     // the sender has used this id for other content
  key_in_use,           // another message has this key
  inbox_full,           // too many messages wait
  sender_limit_reached  // too many messages of this sender wait, or they are too large
};

// An action for a sent message, with the message's mark.
struct OutboxEntry {
  std::string entry;  // "send message:12:101"
  std::string kind, message_key;
  Fields mark;
};
// Result of MessageStore::due_messages().
struct DueMessages {
  std::vector<OutboxEntry> outbox;
  std::vector<std::string> inbox;  // message keys
  std::uint64_t next_ms = 0;       // time until the next entry is due, or 0 if no entry waits
  std::uint64_t now_ms = 0;        // clock of Redis
};
// Result of an action of the outbox.
struct MailResult {
  enum class Kind { delivered, retry, failed, closed };
  Kind kind = Kind::closed;
  std::uint64_t retry_delay_ms = 0;  // for `retry`: time until the next attempt
  // If the kind is `failed`, both texts are written to the ends of the jobs. If the kind is `retry`, an empty reason
  // means that the attempt is not counted.
  std::string detail, reason;
  Fields extra_fields = {};  // additional fields for the mark
};

// End of a job in the answer to a message.
struct RemoteJobEnd {
  std::string job_key;
  Fields extra_fields;  // record fields, in addition to those of the end
  JobEnd end;
};
// Answer to a sent message.
struct AnswerMessage {
  std::string message_key, content_hash;
  std::string reason;  // reason of the rejection, or empty if the message was processed
  Fields fields;       // record fields of the message
  std::vector<RemoteJobEnd> jobs;
  bool is_last = true;            // false if the ends of more jobs follow in another answer
  std::string router_answer;      // for a message that carries a router's job: data of the answer, stored in the mark
  std::string files_holder = {};  // coordinator that has the files of the jobs; empty without files
};

// Topics, and messages between contexts (diagram in docs/tenants.md).
class MessageStore {
 public:
  explicit MessageStore(StoreConnection& connection) : connection_(connection) {}

  // Returns the message keys that are stored for a topic, oldest first.
  Result<std::vector<std::string>> topic_pending(Id context, const std::string& topic);
  // Returns messages that clients have put on msg_out, oldest first. Each stays on msg_out_coordinator until it is
  // routed or rejected.
  Result<std::vector<std::string>> msg_out_keys(Id context);
  // Pushes the message key onto msg_out, as clients do.
  Result<void> push_to_msg_out(Id context, const std::string& message_key);
  // Writes the fields of the signature (none if the message is signed already) and pushes the message onto msg_out,
  // once. Errors: not_found; conflict: the message was sent before.
  Result<void> post_message(Id context, const std::string& message_key, const Fields& signature);
  // Stores the message if fields are given, pushes its key onto the topic's list and publishes the hint.
  Result<void> send_to_topic(Id context, const std::string& topic, const std::string& message_key,
                             const Fields& message);
  // Converts a message's jobs into records and queue entries, marks the message acknowledged and removes it from its
  // list. This is one atomic step, once per message. The message becomes processed (or error) at the end of its last
  // job.
  Result<AcceptedMessage> accept_message(Id context, const AcceptMessage&);
  // Closes a message that creates no jobs and removes it from its list. With a reason, the message is invalid and gets
  // the status error. With an empty reason, it is text for people and is processed.
  Result<void> close_message(Id context, const std::string& list, const std::string& message_key,
                             const std::string& reason);

  // Starts sending a message, in one atomic step, once per message. Its jobs stay `planned` here until the answer
  // arrives.
  Result<AcceptedMessage> route_message(Id context, const RouteMessage&);
  // Stores a valid message that was received from another context. `fields` is its record, or empty if the record
  // exists.
  Result<Arrival> receive_message(Id context, const std::string& message_key, const MessageState&,
                                  const Fields& fields);
  // Returns messages that are to be sent or accepted now, at most max of each kind. Each message is returned to one
  // caller, and again after redelivery_delay_ms. clock_went_back: the clock of the store was set back, so that messages
  // with a later time are due, too.
  Result<DueMessages> due_messages(Id context, std::uint32_t max, std::uint32_t redelivery_delay_ms,
                                   bool clock_went_back);
  Result<void> complete_delivery(Id context, const OutboxEntry&, const MailResult&);
  // Ends the jobs of a sent message, and the message, as the answer specifies. Returns false if no such message was
  // sent.
  Result<bool> answer_message(Id context, const AnswerMessage&);
  // Cancels all jobs of a message permanently: for a sent message here and at the receiver, for an unaccepted message
  // at once. Ended jobs are not changed. Error not_found.
  Result<void> cancel_message(Id context, const std::string& message_key);
  // Appends log lines to a job of a sent message. Returns the last stored line number; 0 if no such message was sent.
  Result<std::uint64_t> append_remote_log(Id context, const std::string& message_key, const std::string& content_hash,
                                          const std::string& job_key, const std::vector<Log>&);
  // Reserves at most 1000 consecutive job ids of a caller and returns the first.
  Result<Id> reserve_jobs(Id context, Id caller, std::uint32_t count);
  // Deletes at most max messages that ended more than retention_ms ago. Returns their number.
  Result<std::uint32_t> retire_messages(Id context, std::uint64_t retention_ms, std::uint32_t max);

 private:
  StoreConnection& connection_;
};

}  // namespace mycojobs
