// mycojobs health
#include <nlohmann/json.hpp>
#include <string>

#include "api/http/http_server.h"
#include "cli/commands/command_table.h"
#include "cli/terminal.h"
#include "net/http_client.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

// A wildcard address is replaced by the loopback address.
Result<std::string> health_url(const Invocation& call) {
  if (call.has("url")) return call.get("url");
  const std::string& listen =
      call.settings.health_listen.empty() ? call.settings.api_listen : call.settings.health_listen;
  if (listen.empty()) {
    return fail(Code::invalid,
                "health.listen: names no address: give the agent and this command --health-listen "
                "127.0.0.1:9653, or --url");
  }
  MJ_TRY(address, api::parse_listen(listen));
  const std::string host = address.host.empty() ? "127.0.0.1" : address.host;
  const bool six = host.find(':') != std::string::npos;
  return "http://" + (six ? '[' + host + ']' : host) + ':' + std::to_string(address.port);
}

Result<int> health(Invocation& call) {
  constexpr std::uint32_t kTimeoutMs = 3000;
  MJ_TRY(url, health_url(call));
  HttpPost ask;
  ask.url = url + (call.has("alive") ? "/healthz" : "/readyz");
  ask.timeout_ms = kTimeoutMs;
  ask.max_bytes = 64U << 10;
  HttpClient client;
  auto answer = client.get(ask);
  nlohmann::json body{{"status", "unreachable"}};
  if (answer) {
    auto parsed = parse_json(answer->body);
    if (!parsed || !parsed->is_object() || !parsed->contains("status"))
      return fail(Code::invalid,
                  ask.url + ": is not mycojobs: it answers with HTTP status " + std::to_string(answer->status));
    body = std::move(*parsed);
  } else {
    body["reason"] = answer.error().message +
                     "; an agent answers where its setting health.listen says, a coordinator or `dev` also at "
                     "api.listen: does one run there? --url names another place";
  }
  const std::string status = body["status"].is_string() ? body["status"].get<std::string>() : "?";
  const std::string reason =
      body.contains("reason") && body["reason"].is_string() ? body["reason"].get<std::string>() : "";
  print(call.json ? dump_json(body) + "\n" : ascii(status + (reason.empty() ? "" : ": " + reason), 500) + "\n");
  return answer && answer->status == 200 ? 0 : 1;
}

}  // namespace

int health_command(Invocation& call) { return finish(health(call)); }

}  // namespace mycojobs
