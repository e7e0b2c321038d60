// mycojobs health
#include <nlohmann/json.hpp>
#include <string>

#include "api/http/socket.h"
#include "cli/command_output.h"
#include "cli/commands/commands.h"
#include "net/http_client.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

// Returns the address of the settings. A wildcard address is replaced by the loopback address.
Result<std::string> find_own_url(const Invocation& call) {
  const bool uses_api = call.settings.health_listen.empty();
  const std::string& listen = uses_api ? call.settings.api_listen : call.settings.health_listen;
  const bool shares_metrics = !uses_api && listen == call.settings.metrics_listen;
  const bool has_tls = (uses_api && has_certificate(get_api_tls(call.settings))) ||
                       (shares_metrics && has_certificate(get_metrics_tls(call.settings)));
  if (listen.empty()) {
    return fail(Code::invalid,
                "health.listen: names no address: give the agent and this command --health-listen "
                "127.0.0.1:9653, or --url");
  }
  MJ_TRY(address, api::parse_listen(listen));
  const std::string host = address.host.empty() ? "127.0.0.1" : address.host;
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (has_tls ? "https://" : "http://") + (is_ipv6 ? '[' + host + ']' : host) + ':' + std::to_string(address.port);
}

}  // namespace

Result<int> health_command(Invocation& call) {
  constexpr std::uint32_t kTimeoutMs = 3000;
  MJ_TRY(url, call.has("url") ? Result<std::string>(call.get("url")) : find_own_url(call));
  HttpPost request;
  request.url = url + (call.has("alive") ? "/healthz" : "/readyz");
  request.timeout_ms = kTimeoutMs;
  request.max_bytes = 64U << 10;
  request.ca = call.settings.https_ca;
  // The certificate of a server of this host names the host, not the loopback address.
  request.verifies_server = call.has("url");
  HttpClient client;
  auto response = client.get(request);
  nlohmann::json body{{"status", "unreachable"}};
  if (response) {
    auto parsed = parse_json(response->body);
    if (!parsed || !parsed->is_object() || !parsed->contains("status"))
      return fail(Code::invalid,
                  request.url + ": is not mycojobs: it answers with HTTP status " + std::to_string(response->status));
    body = std::move(*parsed);
  } else {
    body["reason"] = response.error().message +
                     "; an agent answers where its setting health.listen says, a coordinator or `dev` also at "
                     "api.listen: does one run there? --url names another place";
  }
  const std::string status = body["status"].is_string() ? body["status"].get<std::string>() : "?";
  const std::string reason =
      body.contains("reason") && body["reason"].is_string() ? body["reason"].get<std::string>() : "";
  print_answer(call, body, to_ascii(status + (reason.empty() ? "" : ": " + reason), 500));
  return response && response->status == 200 ? 0 : 1;
}

}  // namespace mycojobs
