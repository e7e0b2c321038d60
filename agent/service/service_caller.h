// Requests of users and programs to a context. The commands and JSON-RPC parse a request and format the result;
// the functions of this module do the work in between:
//
//   check values and limits  ->  rights (security/rights.h)  ->  store, advance_run()  ->  result
//
// The first argument of each function is the caller. An error about a field starts with the name of the field:
// "comment: is over 4096 bytes ...". Error `denied` is the same for a resource of another actor and for a missing
// resource.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "jobs/job_limits.h"
#include "security/rights.h"
#include "store/store.h"

namespace mycojobs {
struct Ceilings;
}

namespace mycojobs::service {

inline constexpr std::uint64_t kMaxScriptBytes = 4U << 20;  // used where no setting gives a limit

// The caller of a request and the context of the request.
struct RequestContext {
  Id context = 0;
  Id actor = 0;                                      // owner of created resources; the actor in journals
  EntryPoint entry_point = EntryPoint::rpc;          // decides whether a context without a record is open to the caller
  bool is_operator = false;                          // has all rights, but an approval step cannot name it
  std::uint64_t max_script_bytes = kMaxScriptBytes;  // limit for a created job: the setting job.max_script_bytes
  std::string traceparent = {};                      // trace of the request; created resources belong to the same trace
  std::shared_ptr<const Ceilings> ceilings = {};     // ceilings of created jobs; null: the built-in ceilings
  // Set for a command whose configuration has no ceiling: the ceilings of the live agents replace `ceilings`.
  bool agents_decide = false;
};

// Returns a context in which the caller acts as the actor `actor_id`, with the rights of that actor. Without
// `actor_id`, returns the context of the caller. Error `denied` names `field`: only an operator can name another actor.
Result<RequestContext> impersonate(const RequestContext&, std::optional<Id> actor_id, const char* field);
// Returns the owner of a resource that is about to be created. Error `denied`: only an operator can name another actor.
Result<Id> resolve_owner(const RequestContext&, std::optional<Id> actor_id);

// Loads the access control lists of the context, in the form that the table of rights needs. Error `invalid`: the lists
// of the context cannot be parsed, so access to the context is closed.
Result<AclContext> load_acl_context(const RequestContext&, Store&);
// Returns the error for a refusal and records the refusal in the context (Store::record_refusal), if the context has a
// record.
Error refuse(Store&, const Refusal&);
Result<void> check_permission(const RequestContext&, Store&, Action, const Resource& = {});
// Returns the actor whose resources the caller can list, or no value if the caller can list all resources.
Result<std::optional<Id>> find_listable_actor(const RequestContext&, Store&);
// Loads the hash at `key` for a caller that is allowed this action. Only a caller with the right to all resources
// receives `not_found`. get_owner: returns the owner from the fields. name: the name in errors, such as "flow 7".
Result<Fields> open_record(const RequestContext&, Store&, Action, const std::string& key, const std::string& name,
                           Id (*get_owner)(const Fields&));

// Returns whether the error means that the resource is missing or invalid (its key holds another type).
inline bool is_absent(const Error& error) { return error.code == Code::not_found || error.code == Code::invalid; }

// ---- limits that several requests share ----

inline constexpr std::size_t kMaxKey = 255;

// Returns the operator's limits for created jobs (jobs/job_limits.h). The agent that claims a job checks its own
// configuration again.
JobLimits get_job_limits(const RequestContext&);
// Same, but with agents_decide, the ceilings are those that the live agents of the context publish. With agents_decide,
// the function above returns limits that refuse only malformed policies.
Result<JobLimits> get_job_limits(const RequestContext&, Store&);
Result<void> check_script(const RequestContext&, const std::string& script);
Result<void> check_policy(const RequestContext&, const Job&);
Result<void> check_policy(const RequestContext&, Store&, const Job&);
Result<void> check_length(const char* field, const std::string& text, std::size_t max);
// Checks an idempotency key. Error `invalid`: the key is given but empty.
Result<void> check_key(const char* field, const std::optional<std::string>& key);

}  // namespace mycojobs::service
