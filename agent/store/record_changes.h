// Changes of records that are made of what was read before: they happen only if it still holds, in one step of the
// server. The stores must be those of make_redis_stores() or of the tests' imitation. Error unsupported: it is another
// one.
#pragma once

#include <span>
#include <string>

#include "mycojobs/store.h"

namespace mycojobs {

// As Store::change_record(), if each field in `expected` still has this value (an empty text: the field is absent).
// Error conflict: a field has another value, and nothing was changed.
Result<Fields> change_record_if(RecordStore&, Id context, const std::string& key, const Fields&,
                                const Fields& expected);

// A text that differs after each change of the context's record, of a job, of an active flow and of the lists of
// messages. It is short, and reading it takes the same time however much the context holds.
Result<std::string> context_revision(RecordStore&, Id context);
// Deletes the context's record if its revision is still this one. False: it is another one, and nothing was changed.
Result<bool> delete_context_if(RecordStore&, Id context, const std::string& revision);

// Fields of the record of a context as they were read; an empty text: the field is absent.
struct ExpectedContext {
  Id context = 0;
  Fields fields;
};
// Deletes the record of an actor if the fields still have these values. The comparison and the deletion are one step
// for all contexts of the default server. Contexts with a server of their own are not compared. False: a field has
// another value, and nothing was changed. Error not_found.
Result<bool> delete_actor_if(RecordStore&, Id actor, std::span<const ExpectedContext>);

// Writes the fields of the signature (none: it is signed already) and pushes the message onto msg_out, once. Errors:
// not_found; conflict: it was sent before.
Result<void> post_message_record(RecordStore&, Id context, const std::string& message_key, const Fields& signature);

// Pauses a queue, or lets it go on. True: it was not so before; of several calls at the same time that is one.
Result<bool> set_queue_paused(RecordStore&, Id context, const std::string& queue, bool paused);

}  // namespace mycojobs
