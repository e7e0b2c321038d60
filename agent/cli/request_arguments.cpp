#include "cli/request_arguments.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/parse.h"
#include "cli/command_output.h"
#include "inspect/job_view.h"
#include "inspect/runner_view.h"
#include "service/record_service.h"
#include "text/utf8.h"

namespace mycojobs {

Result<std::uint64_t> parse_count_flag(const Invocation& call, std::string_view flag, std::uint64_t fallback) {
  if (!call.has(flag)) return fallback;
  std::uint64_t count = 0;
  if (!parse_u64(call.get(flag), count) || count == 0)
    return fail(Code::invalid, fmt::format("--{}: a whole number above 0", flag));
  return count;
}

Result<Id> parse_id_flag(const Invocation& call, std::string_view flag, Id fallback) {
  if (!call.has(flag)) return fallback;
  std::uint64_t id = 0;
  if (!parse_u64(call.get(flag), id) || id == 0 || id > UINT32_MAX)
    return fail(Code::invalid, fmt::format("--{}: {} is not an id: use a whole number from 1 to 4294967295", flag,
                                           excerpt(call.get(flag))));
  return static_cast<Id>(id);
}

Result<Id> parse_id(std::string_view label, std::string_view text) {
  std::uint64_t id = 0;
  if (parse_u64(text, id) && id >= 1 && id <= UINT32_MAX) return static_cast<Id>(id);
  return fail(Code::invalid,
              fmt::format("{}: \"{}\" is not an id: use a whole number from 1 to {}", label, text, UINT32_MAX));
}

Result<std::vector<Id>> find_contexts(const Invocation& call, Store& store) {
  std::vector<Id> ids = call.settings.contexts;
  for (const auto& entry : call.settings.context_redis) ids.push_back(entry.first);
  return service::list_known_contexts(store, ids);
}

bool has_configured_ceiling(const Invocation& call) {
  const Ceilings& ceilings = call.settings.ceilings;
  const auto default_fields = ceilings.written_fields.find(0);
  return ceilings.contexts.contains(call.context()) ||
         (default_fields != ceilings.written_fields.end() && default_fields->second.any());
}

service::RequestContext make_request_context(const Invocation& call, Id actor) {
  return {call.context(),
          actor,
          EntryPoint::command,
          true,
          call.settings.job_max_script_bytes,
          {},
          std::make_shared<const Ceilings>(call.settings.ceilings),
          !has_configured_ceiling(call)};
}

Result<void> warn_if_no_agent(const Invocation& call, Store& store, const std::set<std::string>& types) {
  if (types.empty() || has_configured_ceiling(call)) return {};
  MJ_TRY(runners, store.runners(call.context()));
  for (const std::string& type : types) {
    const bool is_served = std::any_of(runners.begin(), runners.end(), [&](const RunnerInfo& runner) {
      return get_presence(runner) == RunnerPresence::live && serves_queue(runner, queue_key(type));
    });
    if (is_served) continue;
    print_warning("no live agent runs " + type +
                  ": the agent that takes the job decides whether its policy is allowed");
  }
  return {};
}

Result<service::RequestContext> request_context(const Invocation& call) {
  const service::RequestContext operator_request = make_request_context(call, kDefaultCaller);
  if (!call.has("actor")) return operator_request;
  MJ_TRY(actor, parse_id_flag(call, "actor", kDefaultCaller));
  return service::impersonate(operator_request, actor, "actor");
}

Error to_command_line_error(const Invocation& call, Error error) {
  if (error.code == Code::conflict) error.code = Code::invalid;
  const std::size_t field_end = error.message.find(':');
  if (field_end == std::string::npos) return error;
  std::string flag = error.message.substr(0, field_end);
  std::replace(flag.begin(), flag.end(), '_', '-');
  if (flag == "idempotency-key" && !call.has(flag)) flag = "key";
  if (call.has(flag)) error.message.replace(0, field_end, "--" + flag);
  return error;
}

Result<std::string> parse_job_argument(const Invocation& call) {
  return parse_job_key(call.arguments.at(0), kDefaultCaller);
}

}  // namespace mycojobs
