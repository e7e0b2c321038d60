// What people and programs ask of a context, by whichever way they come: the commands and JSON-RPC read a request and
// show an answer, and this room does what lies between.
//
//   check values and limits  ->  rights (domain/rights.h)  ->  store, progress()  ->  result
//
// Each function takes who asks first. A field that is wrong stands at the beginning of the error: "comment: is over
// 4096 bytes ...". Error denied is the same for what is another's and for what is not there.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "domain/job_limits.h"
#include "domain/rights.h"
#include "mycojobs/store.h"

namespace mycojobs {
struct Ceilings;
}

namespace mycojobs::service {

inline constexpr std::uint64_t kMaxScriptBytes = 4U << 20;  // where no setting says otherwise

// Who asks, and in which context.
struct Caller {
  Id context = 0;
  Id actor = 0;                                      // whose it is what it makes; who stands in journals
  WayIn way = WayIn::rpc;                            // whether a context without a record is open to it
  bool is_operator = false;                          // may do everything, but is nobody whom a step could name
  std::uint64_t max_script_bytes = kMaxScriptBytes;  // of a job that it makes: the setting job.max_script_bytes
  std::string traceparent = {};                      // in which trace it asks; what it makes stands there, too
  std::shared_ptr<const Ceilings> ceilings = {};  // the operator's, of the jobs that it makes; null: the built-in ones
  // A command whose configuration has no ceiling: the ceilings of live agents stand instead of `ceilings`.
  bool agents_decide = false;
};

// As whom an operator names, who is then asked for its own rights. Nothing: as itself. Error denied: it is no operator
// and names another; `field` stands in it.
Result<Caller> as_named(const Caller&, std::optional<Id> named, const char* field);
// Whose thing it is about to make. Error denied: another's, and it is no operator.
Result<Id> owner(const Caller&, std::optional<Id> named);

// The context, as the table of rights wants it. Error invalid: its lists cannot be read, which closes it.
Result<Place> place_of(const Caller&, Store&);
// The error of a refusal, which is noted in the context (Store::note_refusal), if that has a record.
Error refuse(Store&, const Refusal&);
Result<void> may(const Caller&, Store&, Action, const Thing& = {});
// Of whom it may list things: nothing: of all; else of this actor.
Result<std::optional<Id>> sight(const Caller&, Store&);
// The hash at this key, for who may do this with it. Only who may do it with everything hears `not_found`. maker: whose
// it is, by its fields; name: "flow 7".
Result<Fields> open_record(const Caller&, Store&, Action, const std::string& key, const std::string& name,
                           Id (*maker)(const Fields&));

// No such thing, or what is there is none: its key holds another type.
inline bool is_absent(const Error& error) { return error.code == Code::not_found || error.code == Code::invalid; }

// ---- limits that several requests share ----

inline constexpr std::size_t kMaxKey = 255;

// The operator's for the jobs that it makes (domain/job_limits.h). Whoever claims a job asks again, by its own
// configuration.
JobLimits limits_of(const Caller&);
// The same, where agents decide with the ceilings that the live agents of the context publish. Without a store, such
// limits refuse only policies that are not well formed.
Result<JobLimits> limits_of(const Caller&, Store&);
Result<void> check_script(const Caller&, const std::string& script);
Result<void> check_policy(const Caller&, const Job&);
Result<void> check_policy(const Caller&, Store&, const Job&);
Result<void> check_length(const char* field, const std::string& text, std::size_t most);
// An idempotency key. Error invalid: it is given and empty, and would be none.
Result<void> check_key(const char* field, const std::optional<std::string>& key);

}  // namespace mycojobs::service
