// The `session.` methods: logins by signed challenges. The path /session serves session.challenge and session.begin
// without a token (api/server.h).
#include <nlohmann/json.hpp>

#include "api/services.h"
#include "base/log.h"
#include "model/enums.h"
#include "security/signatures.h"

namespace mycojobs::api {
namespace sessions_methods {

using nlohmann::json;

// The signature names the origin that it is for, so that another server cannot relay it to this one.
Result<std::string> audience_of(const RpcCaller& caller) {
  if (!caller.origin.empty()) return caller.origin;
  return fail(
      Code::denied,
      "logins by key are for the origins in api.names. Where that is empty, they are for http://127.0.0.1 and "
      "http://localhost with the server's port, from its own host and through no proxy. The header Host names none of "
      "these: the operator must add the origin that you call, for example https://jobs.example.org, to api.names");
}

Result<json> challenge(Services& services, const RpcCaller& caller) {
  MJ_TRY(audience, audience_of(caller));
  const Sessions::Challenge made = services.sessions.challenge();
  return json{{"challenge", made.text}, {"audience", audience}, {"until_ms", made.until_ms}};
}

// Clients without a token can call this, so cheap checks precede the check of the signature, and the store is accessed
// only with a valid signature.
Result<json> begin(Services& services, const json& params, const RpcCaller& caller) {
  const std::string text = params.at("challenge"), key = params.at("signer");
  MJ_TRY(audience, audience_of(caller));
  if (params.at("audience") != audience)
    return fail(Code::denied, "audience: it was signed for another server than " + audience);
  MJ_CHECK(services.sessions.check(text));
  MJ_CHECK(check_signature(params, "login", key));
  MJ_TRY(lease, services.logins.take());
  MJ_TRY(now_ms, lease.store().now_ms());
  MJ_TRY(actor, lease->known.actors.find(lease.store(), key, now_ms / 1000));
  MJ_CHECK(services.sessions.consume_challenge(text, actor.id));
  Sessions::NewSession begun = services.sessions.begin(actor.id, key);
  log(LogLevel::info, "api", "actor {} has logged in by the key {}", actor.id, key);
  return json{{"token", std::move(begun.token)}, {"actor", actor.id}, {"until_ms", begun.until_ms}};
}

Result<json> end(Services& services, const RpcCaller& caller) {
  if (caller.session.empty())
    return fail(Code::invalid, "this call has no session: a token of the file is valid until its row is removed");
  services.sessions.end(caller.session);
  return json{{"actor", caller.actor}};
}

template <class Do>
Method session_method(Services& services, std::string_view name, std::string_view help, std::vector<Param> params,
                      std::string_view result, Do act) {
  return {name, help, std::move(params), result,
          [&services, name, act](const json& given, const RpcCaller& caller) -> Result<json> {
            ++services.calls;
            Result<json> answer = act(services, given, caller);
            if (!answer && answer.error().code == Code::denied) note_refusal(services, answer.error());
            services.settings.metrics->add(Metric::calls, {name, answer ? "ok" : to_string(answer.error().code)});
            return answer;
          }};
}

}  // namespace sessions_methods

void add_session_methods(Services& s, std::vector<Method>& all) {
  using namespace sessions_methods;
  all.push_back(session_method(
      s, "session.challenge", "request a challenge to sign", {}, "LoginChallenge: challenge, audience, until_ms",
      [](Services& services, const json&, const RpcCaller& caller) { return challenge(services, caller); }));
  all.push_back(session_method(
      s, "session.begin", "log in by a signed challenge",
      {{"challenge", "text", "as session.challenge has answered", true},
       {"audience", "text", "the origin that it is signed for, as the client calls it: https://jobs.example.org", true},
       {"signer", "text", "the actor's public key", true},
       {"algorithm", "text", "ed25519", true},
       {"signature", "text", "of all these (docs/rpc.md, Logins by key)", true}},
      "Session: token, actor, until_ms", begin));
  all.push_back(
      session_method(s, "session.end", "end the session by which it is called", {}, "SessionEnded: actor",
                     [](Services& services, const json&, const RpcCaller& caller) { return end(services, caller); }));
}

std::vector<Method> login_methods(Services& services) {
  std::vector<Method> all;
  add_session_methods(services, all);
  std::erase_if(all, [](const Method& each) { return each.name == "session.end"; });
  return all;
}

}  // namespace mycojobs::api
