// Conditional changes of records: each call compares and changes in one step of the server, so that an update cannot
// overwrite a change of another client. REQUIRES: the store is a RedisStore (make_redis_stores(), or the tests'
// imitation of Redis); otherwise the error is unsupported. Used by the thread of the store.
#pragma once

#include <span>
#include <string>

#include "store/store.h"

namespace mycojobs {

// As SubmitStore::change_record(), if each field in `expected` still has this value (an empty text means that the
// field is absent). Error conflict: a field has another value, and nothing was changed.
Result<Fields> change_record_if(RecordStore&, Id context, const std::string& key, const Fields&,
                                const Fields& expected);

// Returns a short text that differs after each change of the context's record, of a job, of an active flow and of the
// lists of messages. The cost does not depend on the amount of data in the context.
Result<std::string> context_revision(RecordStore&, Id context);
// Deletes the context's record if its revision is still this revision. Returns false and changes nothing otherwise.
Result<bool> delete_context_if(RecordStore&, Id context, const std::string& revision);

// Fields of a context's record as read by the caller. An empty text means that the field is absent.
struct ExpectedContext {
  Id context = 0;
  Fields fields;
};
// Deletes the record of an actor if the fields of these contexts still have these values. The comparison and the
// deletion are one step for all contexts of the default server. Contexts with a server of their own are not compared.
// Returns false and changes nothing if a field has another value. Error not_found.
Result<bool> delete_actor_if(RecordStore&, Id actor, std::span<const ExpectedContext>);

// Writes the fields of the signature (none if the message is signed already) and pushes the message onto msg_out, once.
// Errors: not_found; conflict: the message was sent before.
Result<void> post_message_record(RecordStore&, Id context, const std::string& message_key, const Fields& signature);

}  // namespace mycojobs
