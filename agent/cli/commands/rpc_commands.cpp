// mycojobs rpc, mycojobs key token
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "api/auth/tokens.h"
#include "base/parse.h"
#include "cli/command_output.h"
#include "cli/commands/commands.h"
#include "cli/config/config_file.h"
#include "cli/run_service.h"
#include "cli/terminal.h"
#include "net/json_rpc_client.h"
#include "text/json.h"

namespace mycojobs {
namespace {

constexpr std::uint32_t kMaxCallMs = 3'700'000;  // limit of job.run

std::string get_environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Returns --url, COORDINATOR_URL, or the address at which a coordinator with these settings listens.
std::string find_url(const Invocation& call) {
  if (call.has("url")) return call.get("url");
  if (const std::string url = get_environment_variable("COORDINATOR_URL"); !url.empty()) return url;
  return (has_certificate(get_api_tls(call.settings)) ? "https://" : "http://") + call.settings.api_listen;
}

Result<std::string> read_token(const Invocation& call) {
  if (!call.has("token-file")) return get_environment_variable("MYCOJOBS_TOKEN");
  MJ_TRY(text, read_text_file(call.get("token-file")));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
  return std::move(text);
}

// Adds the remedy to an error without a reply: which service to start, and which setting has its address.
Error add_remedy(Error error, const std::string& url) {
  const bool has_remedy = error.message.starts_with(url + ": TLS: ");
  if (error.code != Code::unavailable || !error.message.starts_with(url + ": ") || has_remedy) return error;
  error.message +=
      "; JSON-RPC is served by `mycojobs coordinator` or `mycojobs dev`, where the setting api.listen says; --url or "
      "COORDINATOR_URL names another place";
  return error;
}

}  // namespace

Result<int> rpc_command(Invocation& call) {
  std::string text = call.arguments.size() > 1 ? call.arguments[1] : "{}";
  if (text == "-") text.assign(std::istreambuf_iterator<char>(std::cin), {});
  auto params = parse_exact_json(text);
  if (!params) return fail(params.error(), "JSON");
  if (!params->is_structured()) return fail(Code::invalid, "JSON: give an object, such as '{\"id\": 1}'");
  MJ_TRY(token, read_token(call));
  exit_on_stop_signals();
  HttpClient client;
  const std::string url = find_url(call);
  auto reply =
      call_rpc(client, {url, token, call.arguments.at(0), kMaxCallMs, nullptr, call.settings.https_ca}, *params);
  if (!reply) return tl::unexpected<Error>(add_remedy(std::move(reply).error(), url));
  return print_json(*reply);
}

Result<int> key_token_command(Invocation& call) {
  api::RpcCaller caller;
  caller.operator_token = call.has("operator");
  std::uint64_t actor = 0;
  if (call.has("actor") == caller.operator_token)
    return fail(Code::invalid, "name the owner of the token: either --actor ID, or --operator");
  if (call.has("actor") && (!parse_u64(call.get("actor"), actor) || actor == 0 || actor > UINT32_MAX))
    return fail(Code::invalid, "--actor: a whole number from 1 to 4294967295");
  caller.actor = static_cast<Id>(actor);
  const std::string& file = call.settings.api_tokens;
  if (file.empty()) return fail(Code::invalid, "api.tokens: names no file: give --api-tokens FILE");
  std::error_code error;
  const auto folder = std::filesystem::path(file).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  MJ_TRY(token, api::add_token(file, caller, call.get("note")));
  if (call.json) {
    print_json_line({{"token", token}, {"file", file}, {"actor", caller.actor}, {"operator", caller.operator_token}});
  } else {
    print_message("kept as a hash in " + file + "; this is the only time that the token is shown:");
    print(token + "\n");
  }
  return 0;
}

}  // namespace mycojobs
