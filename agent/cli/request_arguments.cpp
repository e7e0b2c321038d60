#include "cli/request_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/parse.h"
#include "cli/command_output.h"
#include "inspect/job_view.h"
#include "inspect/runner_view.h"
#include "service/record_service.h"
#include "text/json.h"
#include "text/timestamp.h"
#include "text/units.h"
#include "text/utf8.h"

namespace mycojobs {

namespace {

// Returns the placeholder of the value of a parameter in the help.
std::string_view find_placeholder(const service::Param& param) {
  constexpr std::pair<std::string_view, std::string_view> kPlaceholders[] = {
      {"boolean", ""},         {"id", "ID"},        {"ids", "ID"},
      {"count", "N"},          {"integer", "N"},    {"ms", "DURATION"},
      {"seconds", "DURATION"}, {"unix_ms", "WHEN"}, {"any", "JSON"}};
  if (!param.choices.empty()) return "WORD";
  for (const auto& [type, placeholder] : kPlaceholders) {
    if (type == param.type) return placeholder;
  }
  return "TEXT";
}

bool is_list_param(const service::Param& param) { return param.type == "ids" || param.type == "texts"; }

std::string to_flag_name(std::string_view param) {
  std::string name(param);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// Returns the number, or the text if it is not a whole number: the check of the parameter then reports it.
nlohmann::json parse_whole_number(std::string_view text) {
  std::uint64_t number = 0;
  if (parse_u64(text, number)) return number;
  if (!text.starts_with('-') || !parse_u64(text.substr(1), number) || number > INT64_MAX) return text;
  return -static_cast<std::int64_t>(number);
}

// Parses an age ("2h") or a time as milliseconds since 1970.
Result<std::uint64_t> parse_past_time(const Invocation& call, const std::string& text) {
  const std::uint64_t now = call.dependencies.clock.unix_ms();
  if (const auto age = parse_duration_ms(text)) return now - std::min(now, *age);
  if (auto time_ms = parse_time_ms(text)) return *time_ms;
  return fail(Code::invalid, excerpt(text) + " is neither a time ago (30m, 2h, 1d) nor a time (2030-01-31 12:00)");
}

template <class T>
Result<nlohmann::json> to_json_result(Result<T> parsed) {
  if (!parsed) return tl::unexpected<Error>(std::move(parsed).error());
  return nlohmann::json(std::move(*parsed));
}

Result<nlohmann::json> parse_flag_value(const Invocation& call, const service::Param& param, const std::string& text) {
  if (param.type == "boolean") return nlohmann::json(true);
  if (param.type == "ms") return to_json_result(parse_duration_ms(text));
  if (param.type == "seconds") return to_json_result(parse_duration_s(text));
  if (param.type == "unix_ms") return to_json_result(parse_past_time(call, text));
  if (param.type == "any") return to_json_result(parse_exact_json(text));
  const bool is_number = param.type == "id" || param.type == "ids" || param.type == "count" || param.type == "integer";
  return is_number ? parse_whole_number(text) : nlohmann::json(text);
}

// Returns the flag on the command line that sets a parameter of a request or is named like it, or null. request: null
// if the command has flags of one request only.
const FlagRow* find_flag(const Invocation& call, const service::Request* request, std::string_view param) {
  for (const FlagRow& flag : call.command->flags) {
    const bool is_match = flag.param == nullptr ? flag.name == to_flag_name(param)
                          : request != nullptr  ? flag.param == service::find_param(*request, param)
                                                : flag.param->name == param;
    if (is_match && call.has(flag.name)) return &flag;
  }
  return nullptr;
}

}  // namespace

std::vector<FlagRow> request_flags(std::string_view request, std::string_view params) {
  std::vector<FlagRow> flags;
  while (!params.empty()) {
    const std::string_view word = params.substr(0, params.find(' '));
    params.remove_prefix(std::min(word.size() + 1, params.size()));
    const std::string_view names = word.substr(0, word.find(':'));
    const std::string_view name = names.substr(0, names.find('='));
    const service::Param* param = service::find_param(*service::find_request(request), name);
    assert(param != nullptr);
    flags.push_back({name == names ? to_flag_name(name) : std::string(names.substr(name.size() + 1)),
                     names == word ? find_placeholder(*param) : word.substr(names.size() + 1),
                     service::describe_param(*param), is_list_param(*param), param->choices, param});
  }
  return flags;
}

void set_flag_help(std::vector<FlagRow>& flags, std::string_view flag, std::string help) {
  const auto it = std::find_if(flags.begin(), flags.end(), [&](const FlagRow& row) { return row.name == flag; });
  assert(it != flags.end());
  it->help = std::move(help);
}

Result<CommandRequest> read_request(const Invocation& call, const service::Request& request, nlohmann::json arguments) {
  for (const FlagRow& flag : call.command->flags) {
    if (flag.param == nullptr || flag.param != service::find_param(request, flag.param->name)) continue;
    for (const std::string& text : call.get_all(flag.name)) {
      auto value = parse_flag_value(call, *flag.param, text);
      if (!value) return fail(value.error(), "--" + flag.name);
      nlohmann::json& target = arguments[std::string(flag.param->name)];
      if (is_list_param(*flag.param)) {
        target.push_back(std::move(*value));
      } else {
        target = std::move(*value);
      }
    }
  }
  if (const auto problem = service::validate_params(request, arguments))
    return tl::unexpected<Error>(to_command_line_error(call, {Code::invalid, problem->message}, &request));
  return CommandRequest(request, std::make_shared<const nlohmann::json>(std::move(arguments)));
}

Result<CommandRequest> read_request(const Invocation& call, nlohmann::json arguments) {
  return read_request(call, *call.command->request, std::move(arguments));
}

Result<CommandRequest> read_request(const Invocation& call) { return read_request(call, nlohmann::json::object()); }

Result<std::uint64_t> parse_count_flag(const Invocation& call, std::string_view flag, std::uint64_t fallback) {
  if (!call.has(flag)) return fallback;
  std::uint64_t count = 0;
  if (!parse_u64(call.get(flag), count) || count == 0) {
    return fail(Code::invalid,
                fmt::format("--{}: must be a whole number, 1 or more, not {}", flag, excerpt(call.get(flag))));
  }
  return count;
}

Result<Id> parse_id_flag(const Invocation& call, std::string_view flag, Id fallback) {
  return call.has(flag) ? parse_id("--" + std::string(flag), call.get(flag)) : fallback;
}

Result<Id> parse_id(std::string_view label, std::string_view text) {
  std::uint64_t id = 0;
  if (parse_u64(text, id) && id >= 1 && id <= UINT32_MAX) return static_cast<Id>(id);
  return fail(Code::invalid,
              fmt::format("{}: {} is not an id: use a whole number from 1 to {}", label, excerpt(text), UINT32_MAX));
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

Error to_command_line_error(const Invocation& call, Error error, const service::Request* request) {
  if (error.code == Code::conflict) error.code = Code::invalid;
  const std::size_t field_end = error.message.find(':');
  if (field_end == std::string::npos) return error;
  if (request == nullptr) request = call.command->request;
  if (const FlagRow* flag = find_flag(call, request, error.message.substr(0, field_end)))
    error.message.replace(0, field_end, "--" + flag->name);
  return error;
}

Result<std::string> parse_job_argument(const Invocation& call) {
  return parse_job_key(call.arguments.at(0), kDefaultCaller);
}

}  // namespace mycojobs
