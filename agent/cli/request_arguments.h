// Flags and arguments of requests: the flags of a request's parameters, ids, the context and the caller of a request,
// and the conversion of a service's errors.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/invocation.h"
#include "service/request_params.h"
#include "service/service_caller.h"

namespace mycojobs {

inline constexpr Id kDefaultCaller = 1;  // caller of jobs and flows if --caller is missing

// Returns flags for parameters of a request. params: names separated by spaces; "script_type=type" is the parameter
// script_type as the flag --type; "before:HEIGHT" has the placeholder HEIGHT. The flag has the help, the default and
// the allowed values of the parameter, and by default its name, with '-' instead of '_', and a placeholder of its type.
// REQUIRES: the table has the request and the parameters. params: a string literal.
std::vector<FlagRow> request_flags(std::string_view request, std::string_view params);
// Replaces the help of a flag, because the command has another default, limit or format than the request. REQUIRES: the
// flags have this one.
void set_flag_help(std::vector<FlagRow>&, std::string_view flag, std::string help);

// The parameters of a request, read from the command line.
class CommandRequest : public service::RequestParams {
 public:
  CommandRequest(const service::Request& request, std::shared_ptr<const nlohmann::json> values)
      : RequestParams(request, *values), values_(std::move(values)) {}

 private:
  std::shared_ptr<const nlohmann::json> values_;
};
// Reads the flags of a request's parameters and checks them against the table of requests. arguments: the parameters
// that are not flags. Durations and times are converted to numbers. Error `invalid` names the flag.
Result<CommandRequest> read_request(const Invocation&, const service::Request&, nlohmann::json arguments);
// Same, for the request of the command.
Result<CommandRequest> read_request(const Invocation&, nlohmann::json arguments);
Result<CommandRequest> read_request(const Invocation&);

// Parses a flag as a whole number above 0. Returns `fallback` if the flag is missing.
Result<std::uint64_t> parse_count_flag(const Invocation&, std::string_view flag, std::uint64_t fallback);
// Parses a flag as an id. Returns `fallback` if the flag is missing.
Result<Id> parse_id_flag(const Invocation&, std::string_view flag, Id fallback);
// Parses an id. Error invalid: "actor: "x" is no id ...".
Result<Id> parse_id(std::string_view label, std::string_view text);
// Returns the contexts of the settings, and all contexts whose database contains a key.
Result<std::vector<Id>> find_contexts(const Invocation&, Store&);
// Returns true if the configuration has a ceiling for the command's context. Otherwise the live agents of the context
// decide about policies (RequestContext::agents_decide).
bool has_configured_ceiling(const Invocation&);
// Prints a warning if the agents decide about policies and no live agent serves one of these types. types: the script
// types of jobs with a policy.
Result<void> warn_if_no_agent(const Invocation&, Store&, const std::set<std::string>& types);
// Returns the context of a request of this actor, without authentication, with the limits of the settings.
service::RequestContext make_request_context(const Invocation&, Id actor);
// Returns the context of the command's request: of the operator, or of the actor of --actor, whose rights are checked.
Result<service::RequestContext> request_context(const Invocation&);
// Converts an error of a service to an error of the command line: the name of a parameter is replaced by its flag, and
// `conflict`, which a retry cannot resolve here, becomes `invalid`. request: the request with the parameter; null: that
// of the command.
Error to_command_line_error(const Invocation&, Error, const service::Request* request = nullptr);
template <class T>
Result<T> to_command_line_error(const Invocation& call, Result<T> result, const service::Request* request = nullptr) {
  if (!result) return tl::unexpected<Error>(to_command_line_error(call, std::move(result).error(), request));
  return result;
}

// Parses the argument "12:2001"; an id without a caller uses the default caller.
Result<std::string> parse_job_argument(const Invocation&);

}  // namespace mycojobs
