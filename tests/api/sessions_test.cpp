// Logins with a signed key: the scope of a challenge and of a session, and attacks: replay, other keys, other servers,
// use after the key was removed, and clients that only occupy places.
#include "api/auth/sessions.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "api/http/origin.h"
#include "api_fixture.h"
#include "base/fd.h"
#include "security/signatures.h"
#include "support/process.h"

namespace mycojobs {
namespace {

class HandClock final : public Clock {
 public:
  std::uint64_t now = 1'000'000;
  std::uint64_t unix_ms() const override { return 1'700'000'000'000 + now; }
  std::uint64_t boot_ms() const override { return now; }
};

TEST(Sessions, ChallengeIsValidOnceInTimeForItsServer) {
  HandClock clock;
  api::Sessions here(clock), there(clock);
  const std::string text = here.create_challenge().text;
  EXPECT_NE(text, here.create_challenge().text);
  EXPECT_TRUE(here.check_challenge(text));
  EXPECT_FALSE(there.check_challenge(text)) << "each process has a key of its own";
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    other[i] = other[i] == '1' ? '2' : '1';
    EXPECT_FALSE(here.check_challenge(other)) << other;
  }
  for (const char* none : {"", ".", "..", "a.b", "1.2.3"}) EXPECT_FALSE(here.check_challenge(none)) << none;
  EXPECT_FALSE(here.check_challenge(std::string(100'000, '.')));
  EXPECT_TRUE(here.consume_challenge(text, 12));
  EXPECT_FALSE(here.consume_challenge(text, 13));
  EXPECT_FALSE(here.check_challenge(text));
  const std::string later = here.create_challenge().text;
  clock.now += 59'999;
  EXPECT_TRUE(here.check_challenge(later));
  clock.now += 1;
  EXPECT_FALSE(here.consume_challenge(later, 12));
  EXPECT_FALSE(here.consume_challenge(text, 12)) << "what was forgotten as used is too old";
}

TEST(Sessions, SessionExpiresDespiteActivity) {
  HandClock clock;
  api::Sessions sessions(clock);
  const auto begun = sessions.create_session(12, "key");
  EXPECT_EQ(begun.expires_ms, clock.unix_ms() + 12 * 3600'000);
  for (int hour = 0; hour < 12; ++hour) {
    const auto found = sessions.find(begun.token);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->actor, 12U);
    EXPECT_EQ(found->key, "key");
    EXPECT_EQ(begun.token.find(found->id), std::string::npos);
    clock.now += 3600'000;
  }
  EXPECT_FALSE(sessions.find(begun.token));
  const auto next = sessions.create_session(12, "key");
  const std::string id = sessions.find(next.token)->id;
  EXPECT_TRUE(sessions.is_valid_session(id));
  sessions.end_session(id);
  EXPECT_FALSE(sessions.is_valid_session(id));
  EXPECT_FALSE(sessions.find(next.token));
  EXPECT_FALSE(sessions.find("mjs_"));
  EXPECT_FALSE(sessions.find("mjs_" + std::string(1 << 20, 'a')));
}

TEST(Sessions, ManySessionsOfOneActorDoNotEvictOthers) {
  HandClock clock;
  api::Sessions sessions(clock, {.max_per_actor = 3, .max_sessions = 5});
  const auto other = sessions.create_session(13, "k");
  std::vector<std::string> tokens;
  for (int i = 0; i < 10; ++i) tokens.push_back(sessions.create_session(12, "k").token);
  EXPECT_TRUE(sessions.find(other.token));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(sessions.find(tokens[i]).has_value(), i >= 7) << i;
}

TEST(Sessions, ConstantLoginsDoNotLockOthersOut) {
  HandClock clock;
  api::Sessions sessions(clock, {.max_used_per_actor = 3, .max_used_challenges = 5});
  const auto log_in = [&](Id actor) { return sessions.consume_challenge(sessions.create_challenge().text, actor); };
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(log_in(12));
  for (int i = 0; i < 10; ++i) {
    const auto refused = log_in(12);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::unavailable);
    EXPECT_TRUE(refused.error().message.starts_with("actor 12 has logged in 3 times"));
  }
  EXPECT_TRUE(log_in(13)) << "it takes nothing of what others have";
  clock.now += 60'000;
  EXPECT_TRUE(log_in(12));
}

class Login : public ApiTest {
 protected:
  SigningKey key_ = SigningKey::make();
  std::string operator_ = make_token(0, true);

  void SetUp() override {
    settings_.contexts = {1};
    start();
    token_ = operator_;
    ok("context.create", {{"id", 1}, {"admins", {1}}, {"readers", {12}}});
    ok("actor.create", {{"id", 12}, {"pubkey", key_.public_key()}});
    ok("actor.create", {{"id", 13}});
  }
  json at_session(const std::string& method, const json& params, std::vector<std::string> headers = {}) {
    const json body{{"jsonrpc", "2.0"}, {"id", 1}, {"method", method}, {"params", params}};
    HttpPost post{server_->url() + "/session", body.dump(), ""};
    post.headers = std::move(headers);
    auto answer = http_.post(post);
    if (!answer) return {{"transport", answer.error().message}};
    return json::parse(answer->body, nullptr, false);
  }
  json proof(const SigningKey& key, const char* kind = "login") {
    const json asked = at_session("session.challenge", json::object())["result"];
    json login{{"challenge", asked.at("challenge")}, {"audience", asked.at("audience")}};
    EXPECT_TRUE(sign(login, kind, key));
    return login;
  }
  std::string audience_for(const std::string& host) {
    return at_session("session.challenge", json::object(), {"Host: " + host})
        .value("result", json::object())
        .value("audience", "");
  }
  static std::string own_name() {
    std::array<char, 256> name{};
    (void)::gethostname(name.data(), name.size() - 1);
    return name.data();
  }
  static std::string why(const json& reply) {
    if (reply.contains("result")) return "none";
    return reply["error"]["data"].value("word", "") + " " + reply["error"].value("message", "");
  }
  // An unknown key is looked up once more before it is refused.
  std::string refused(const json& login) {
    std::string last;
    EXPECT_TRUE(test::eventually([&] {
      last = why(at_session("session.begin", login));
      return !last.starts_with("unavailable");
    }));
    return last;
  }
  std::string begin() { return at_session("session.begin", proof(key_))["result"].value("token", ""); }
  int get_status(const std::string& token) {
    auto answer = http_.post({server_->url() + "/rpc", R"({"jsonrpc":"2.0","id":1,"method":"context.rights"})", token});
    return answer ? answer->status : 0;
  }
};

TEST_F(Login, KeyHolderCallsOnlyAsItsActor) {
  const json reply = at_session("session.begin", proof(key_));
  ASSERT_TRUE(reply.contains("result")) << reply;
  EXPECT_EQ(reply["result"].at("actor"), 12);
  token_ = reply["result"].at("token").get<std::string>();
  const json may = ok("context.rights", json::object());
  EXPECT_EQ(may.at("actor"), 12);
  EXPECT_EQ(may.at("operator"), false);
  EXPECT_EQ(may.at("read_all"), true);
  EXPECT_EQ(to_string("context.verify", json::object()), "denied");
  EXPECT_EQ(to_string("job.start", {{"script", "x"}, {"script_type", "python"}}), "denied");
  EXPECT_EQ(to_string("actor.create", {{"id", 99}}), "denied");
  EXPECT_EQ(ok("session.end", json::object()).at("actor"), 12);
  EXPECT_EQ(get_status(token_), 401);
  token_ = operator_;
  EXPECT_EQ(to_string("session.end", json::object()), "invalid") << "a token of the file is no session";
}

TEST_F(Login, SignatureIsValidForOneLogin) {
  const json login = proof(key_);
  ASSERT_TRUE(at_session("session.begin", login).contains("result"));
  EXPECT_EQ(why(at_session("session.begin", login)), "denied challenge: was used before: ask for another");
  // Of concurrent attempts, only one succeeds.
  const json once = proof(key_);
  std::atomic<int> in{0};
  std::vector<std::thread> all;
  for (int i = 0; i < 8; ++i) {
    all.emplace_back([&] {
      const json body{{"jsonrpc", "2.0"}, {"id", 1}, {"method", "session.begin"}, {"params", once}};
      HttpClient client;
      const auto answer = client.post({server_->url() + "/session", body.dump(), ""});
      if (answer && json::parse(answer->body).contains("result")) ++in;
    });
  }
  for (std::thread& each : all) each.join();
  EXPECT_EQ(in, 1);
}

TEST_F(Login, WrongKeysTextsAndSignaturesAreRejected) {
  const SigningKey strangers = SigningKey::make();
  EXPECT_NE(refused(proof(strangers)).find("denied signer: no actor here has the key"), std::string::npos);
  json login = proof(strangers);
  login["signer"] = key_.public_key();
  EXPECT_EQ(refused(login), "denied signature: is not of this content by this key");
  for (const char* kind : {"receipt", "envelope", "message"})
    EXPECT_EQ(refused(proof(key_, kind)), "denied signature: is not of this content by this key") << kind;
  login = proof(key_);
  login["signature"] = std::string(128, '0');
  EXPECT_EQ(refused(login), "denied signature: is not of this content by this key");
  login["signature"] = "";
  EXPECT_EQ(refused(login), "denied signature: is missing");
  login["algorithm"] = "none";
  login["signature"] = std::string(128, '0');
  EXPECT_NE(refused(login).find("denied algorithm"), std::string::npos);
  login = proof(key_);
  login["challenge"] = at_session("session.challenge", json::object())["result"]["challenge"];
  EXPECT_EQ(refused(login), "denied signature: is not of this content by this key") << "it was signed for another one";
  login["challenge"] = "made up";
  EXPECT_EQ(refused(login), "denied challenge: was not issued by this server: request another");
  for (const char* point : {"0000000000000000000000000000000000000000000000000000000000000000",
                            "0100000000000000000000000000000000000000000000000000000000000000"}) {
    login = proof(key_);
    login["signer"] = point;  // a point of small order, for which any signature would fit some content
    EXPECT_TRUE(refused(login).starts_with("denied")) << point;
  }
}

TEST_F(Login, RevokedKeyEndsItsSessionsAndLogins) {
  const std::string session = begin();
  ASSERT_EQ(get_status(session), 200);
  test::Process stream(folder_,
                       {"curl", "-sN", "-H", "Authorization: Bearer " + session, server_->url() + "/events?context=1"});
  ASSERT_TRUE(test::eventually([&] { return stream.out().find("id: ") != std::string::npos; }));
  const SigningKey next = SigningKey::make();
  token_ = operator_;
  ok("actor.update", {{"id", 12}, {"pubkey", next.public_key()}});
  EXPECT_EQ(get_status(session), 401);
  EXPECT_NE(refused(proof(key_)).find("denied signer: no actor here has the key"), std::string::npos);
  EXPECT_TRUE(at_session("session.begin", proof(next)).contains("result"));
  // The open stream of the session ends with the next event.
  ok("actor.update", {{"id", 13}, {"pubkey", key_.public_key()}});
  EXPECT_EQ(get_status(session), 401) << "another actor's key is no way back";
  EXPECT_TRUE(test::eventually([&] { return !stream.is_running(); }));
}

TEST_F(Login, SignatureIsValidOnlyForItsOrigin) {
  json login = proof(key_);
  const std::string audience = login.at("audience");
  EXPECT_EQ(audience, server_->url());
  json other{{"challenge", login.at("challenge")}, {"audience", "http://evil.example:9652"}};
  ASSERT_TRUE(sign(other, "login", key_));
  EXPECT_EQ(refused(other), "denied audience: it was signed for another server than " + audience);
  // A server in between would have to name its own origin, which is not permitted here.
  EXPECT_NE(why(at_session("session.begin", other, {"Host: evil.example:9652"})).find("api.names"), std::string::npos);
  const std::string port = std::to_string(server_->port()), next = std::to_string(server_->port() == 1 ? 2 : 1);
  for (const std::string& host :
       {std::string("evil.example:9652"), "127.0.0.1:" + next, std::string("127.0.0.1"), std::string("localhost"),
        "127.0.0.2:" + port, "localhost.evil.example:" + port, own_name() + ':' + port})
    EXPECT_NE(why(at_session("session.challenge", json::object(), {"Host: " + host})).find("api.names"),
              std::string::npos)
        << host;
  for (const std::string& host : {"localhost:" + port + ", evil", "127.0.0.1:" + port + "@evil"})
    EXPECT_NE(why(at_session("session.challenge", json::object(), {"Host: " + host})).find("Host"), std::string::npos)
        << host;
  for (const std::string& host : {"localhost:" + port, "127.0.0.1:" + port, "[::1]:" + port})
    EXPECT_EQ(audience_for(host), "http://" + host);
}

TEST_F(Login, ConfiguredOriginsAreSignedExactly) {
  settings_.origins = {"https://Jobs.example.org", "http://10.0.0.7:9652", "http://intern:80"};
  start();
  EXPECT_EQ(audience_for("jobs.example.org"), "https://jobs.example.org");
  EXPECT_EQ(audience_for("JOBS.example.org:443"), "https://jobs.example.org");
  EXPECT_EQ(audience_for("10.0.0.7:9652"), "http://10.0.0.7:9652");
  EXPECT_EQ(audience_for("intern"), "http://intern");
  for (const char* host : {"jobs.example.org:80", "jobs.example.org:9652", "10.0.0.7", "intern:443"})
    EXPECT_EQ(audience_for(host), "") << host;
  // A proxy on this host that does not keep Host makes any client one of loopback.
  EXPECT_EQ(audience_for("127.0.0.1:" + std::to_string(server_->port())), "");
}

TEST(PublicOrigin, InvalidOriginIsRejected) {
  for (const char* text : {"", "jobs.example.org", "jobs:9652", "https://", "https://a/", "https://a/path", "ftp://a",
                           "https://a@b", "https://a,b", "https://a b", "https://a:x", "//a"})
    EXPECT_FALSE(api::parse_origin(text)) << text;
  EXPECT_EQ(*api::parse_origin("HTTPS://A:443"), "https://a");
  EXPECT_EQ(*api::parse_origin("http://[::1]:80"), "http://[::1]");
  EXPECT_FALSE(api::parse_origins({"http://a", "https://a"})) << "their headers Host are the same";
  EXPECT_FALSE(api::parse_origins({"http://a", "https://a:80"})) << "Host a:80";
  EXPECT_FALSE(api::parse_origins({"https://a", "http://a:443"})) << "Host a:443";
  EXPECT_TRUE(api::parse_origins({"http://a:8080", "https://a"}));
  for (const char* port : {"080", "00443", "0", "65536", ""})
    EXPECT_FALSE(api::parse_origin(std::string("https://a:") + port)) << port << " would be equal to no header Host";
}

// Only a client on this host may use a loopback name; the port is that of the listening server.
TEST(PublicOrigin, LoopbackNamesAreOnlyForLoopbackPeers) {
  api::HttpRequest from;
  from.port = 9652;
  from.headers["host"] = "localhost:9652";
  EXPECT_EQ(api::find_origin(from, {}), "");
  EXPECT_EQ(api::find_origin(from, {"http://localhost:9652"}), "http://localhost:9652") << "as of a container's port";
  from.loopback = true;
  EXPECT_EQ(api::find_origin(from, {}), "http://localhost:9652");
  EXPECT_EQ(api::find_origin(from, {"https://jobs.example.org"}), "") << "names no host, and one is named";
  for (const char* header : {"forwarded", "x-forwarded-for", "x-forwarded-host", "via"}) {
    from.headers[header] = "x";
    EXPECT_EQ(api::find_origin(from, {}), "") << header << ": a proxy is before us";
    from.headers.erase(header);
  }
  EXPECT_EQ(api::find_origin(from, {}), "http://localhost:9652");
  from.headers["host"] = "localhost:9653";
  EXPECT_EQ(api::find_origin(from, {}), "");
  from.port = 80;
  from.headers["host"] = "localhost";
  EXPECT_EQ(api::find_origin(from, {}), "http://localhost");
  from.has_tls = true;
  EXPECT_EQ(api::find_origin(from, {}), "");
  from.port = 443;
  EXPECT_EQ(api::find_origin(from, {}), "https://localhost");
  from.port = 9652;
  from.headers["host"] = "localhost:9652";
  EXPECT_EQ(api::find_origin(from, {}), "https://localhost:9652");
  from.headers["origin"] = "http://localhost:9652";
  EXPECT_TRUE(api::is_cross_origin(from));
  from.headers["origin"] = "https://localhost:9652";
  EXPECT_FALSE(api::is_cross_origin(from));
}

TEST_F(Login, OtherCallsNeedAToken) {
  for (const char* method : {"system.info", "system.ping", "session.end", "job.list", "actor.list"})
    EXPECT_TRUE(why(at_session(method, json::object())).starts_with("method_not_found")) << method;
  EXPECT_EQ(get_status(""), 401);
  EXPECT_EQ(get_status("mjs_0000"), 401);
  auto two = http_.post({server_->url() + "/session",
                         R"([{"jsonrpc":"2.0","id":1,"method":"session.challenge"},)"
                         R"({"jsonrpc":"2.0","id":2,"method":"session.challenge"}])",
                         ""});
  ASSERT_TRUE(two);
  EXPECT_TRUE(why(json::parse(two->body)).starts_with("too_large"));
  auto large = http_.post({server_->url() + "/session", std::string(5000, ' '), ""});
  ASSERT_TRUE(large);
  EXPECT_EQ(large->status, 413);
  HttpPost from_page{server_->url() + "/session", R"({"jsonrpc":"2.0","id":1,"method":"session.challenge"})", ""};
  from_page.headers = {"Origin: http://evil.example"};
  auto strange = http_.post(from_page);
  ASSERT_TRUE(strange);
  EXPECT_EQ(strange->status, 403);
}

TEST_F(Login, IdleConnectionsDoNotBlockLogins) {
  std::vector<std::unique_ptr<test::Process>> silent;
  const std::string port = std::to_string(server_->port());
  for (int i = 0; i < 40; ++i) {
    silent.push_back(std::make_unique<test::Process>(
        folder_, std::vector<std::string>{"bash", "-c",
                                          "exec 3<>/dev/tcp/127.0.0.1/" + port +
                                              "; printf 'POST /session HTTP/1.1\\r\\nHost: 127.0.0.1:" + port +
                                              "\\r\\nContent-Type: application/json\\r\\nContent-Length: "
                                              "100\\r\\n\\r\\n{' >&3; echo sent; sleep 20"}));
  }
  for (const auto& each : silent)
    ASSERT_TRUE(test::eventually([&] { return each->out().find("sent") != std::string::npos; }));
  EXPECT_FALSE(begin().empty());
  token_ = operator_;
  EXPECT_EQ(ok("system.info", json::object()).value("role", ""), "coordinator");
}

}  // namespace
}  // namespace mycojobs
