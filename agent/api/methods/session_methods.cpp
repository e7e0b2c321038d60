// The `session.` methods: logins by signed challenges. The path /session serves session.challenge and session.begin
// without a token (api/server.h).
#include <nlohmann/json.hpp>

#include "api/services.h"
#include "base/log.h"
#include "model/enums.h"
#include "security/signatures.h"

namespace mycojobs::api {
namespace session_methods {

using nlohmann::json;

// Returns the origin that the client must sign. A signature for this origin cannot be relayed to another server. Error
// `denied`: the client called an unknown origin.
Result<std::string> get_audience(const RpcCaller& caller) {
  if (!caller.origin.empty()) return caller.origin;
  return fail(
      Code::denied,
      "logins by key are for the origins in api.names. Where that is empty, they are for http://127.0.0.1 and "
      "http://localhost with the server's port, from its own host and through no proxy. The header Host names none of "
      "these: the operator must add the origin that you call, for example https://jobs.example.org, to api.names");
}

Result<json> challenge(Services& services, const json&, const RpcCaller& caller) {
  MJ_TRY(audience, get_audience(caller));
  const Sessions::Challenge challenge = services.sessions.create_challenge();
  return json{{"challenge", challenge.text}, {"audience", audience}, {"until_ms", challenge.expires_ms}};
}

// Clients without a token can call this method. Cheap checks therefore precede the check of the signature, and the
// store is accessed only with a valid signature.
Result<json> begin(Services& services, const json& params, const RpcCaller& caller) {
  const std::string text = params.at("challenge"), key = params.at("signer");
  MJ_TRY(audience, get_audience(caller));
  if (params.at("audience") != audience)
    return fail(Code::denied, "audience: it was signed for another server than " + audience);
  MJ_CHECK(services.sessions.check_challenge(text));
  MJ_CHECK(check_signature(params, "login", key));
  MJ_TRY(lease, services.login_backends.acquire());
  MJ_TRY(now_ms, lease.store().now_ms());
  MJ_TRY(actor, lease->public_keys.actors.find(lease.store(), key, now_ms / 1000));
  MJ_CHECK(services.sessions.consume_challenge(text, actor.id));
  Sessions::NewSession session = services.sessions.create_session(actor.id, key);
  log(LogLevel::info, "api", "actor {} has logged in by the key {}", actor.id, key);
  return json{{"token", std::move(session.token)}, {"actor", actor.id}, {"until_ms", session.expires_ms}};
}

Result<json> end(Services& services, const json&, const RpcCaller& caller) {
  if (caller.session.empty())
    return fail(Code::invalid, "this call has no session: a token of the file is valid until its row is removed");
  services.sessions.end_session(caller.session);
  return json{{"actor", caller.actor}};
}

template <class Handler>
void bind_session_method(Services& services, std::string_view name, Handler handler, std::vector<Method>& methods) {
  bind_method(
      name,
      [&services, name, handler](const json& values, const RpcCaller& caller) -> Result<json> {
        ++services.call_count;
        Result<json> outcome = handler(services, values, caller);
        if (!outcome && outcome.error().code == Code::denied) report_refusal(services, outcome.error());
        services.settings.metrics->add(Metric::rpc_calls, {name, outcome ? "ok" : to_string(outcome.error().code)});
        return outcome;
      },
      methods);
}

}  // namespace session_methods

void add_session_methods(Services& services, std::vector<Method>& methods) {
  using namespace session_methods;
  bind_session_method(services, "session.challenge", challenge, methods);
  bind_session_method(services, "session.begin", begin, methods);
  bind_session_method(services, "session.end", end, methods);
}

std::vector<Method> make_login_methods(Services& services) {
  std::vector<Method> methods;
  add_session_methods(services, methods);
  std::erase_if(methods, [](const Method& method) { return method.name == "session.end"; });
  return methods;
}

}  // namespace mycojobs::api
