// Attacks on POST /supervisor. Each attempt is refused with a reason, is journaled if a known actor has signed it,
// stores nothing, and does not delay other requests.
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <optional>
#include <thread>

#include "base/sha256.h"
#include "e2e/client.h"
#include "e2e/tenants.h"
#include "messaging/envelope.h"
#include "messaging/message_receiver.h"
#include "messaging/transport/transport.h"
#include "model/codec.h"

namespace mycojobs::test {
namespace {

using nlohmann::json;

constexpr std::uint32_t kTwentyMinutes = 1200;

std::uint64_t unix_s() { return static_cast<std::uint64_t>(::time(nullptr)); }

// Pretends to be a supervisor that has stored every message it receives.
class Pretender {
 public:
  Pretender() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
    EXPECT_EQ(::listen(listener_.get(), 8), 0);
    socklen_t size = sizeof at;
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&at), &size);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(at.sin_port));
    thread_ = std::thread([this] { serve(); });
  }
  ~Pretender() {
    stop_ = true;
    thread_.join();
  }
  const std::string& url() const { return url_; }

 private:
  void serve() {
    const std::string body = R"({"jsonrpc":"2.0","id":1,"result":{"status":"stored"}})";
    const std::string answer =
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
        "Content-Length: " +
        std::to_string(body.size()) + "\r\n\r\n" + body;
    while (!stop_) {
      pollfd waiting{listener_.get(), POLLIN, 0};
      if (::poll(&waiting, 1, 20) <= 0) continue;
      const Fd guest(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      const timeval patience{1, 0};
      ::setsockopt(guest.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
      std::string text;
      char bytes[65536];
      while (text.find("message.deliver") == std::string::npos || !text.ends_with("}")) {
        const ssize_t got = ::recv(guest.get(), bytes, sizeof bytes, 0);
        if (got <= 0) break;
        text.append(bytes, static_cast<std::size_t>(got));
      }
      (void)::send(guest.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    }
  }
  Fd listener_;
  std::string url_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class TenantsHostile : public ::testing::Test {
 protected:
  void SetUp() override {
    both_.start_both();
    alice_.work();
    ASSERT_TRUE(wait_until_registered(alice_.redis, 20, kAlicesContext)) << alice_.agents.front()->err();
  }
  void TearDown() override {
    bob_.expect_verified();
    alice_.expect_verified();
  }
  // Returns "" if the supervisor accepted the request, otherwise "word: message".
  static std::string get_answer(const HttpWire::Reply& reply) {
    const json answer = json::parse(reply.body, nullptr, false);
    if (reply.status == 0 || !answer.is_object()) return "no answer";
    if (answer.contains("result")) return "";
    const json error = answer.value("error", json::object());
    return error.value("data", json::object()).value("word", "") + ": " + error.value("message", "");
  }
  // The coordinator looks up unknown keys once per second and answers "try again" until then. Repeats the request.
  static std::string get_error(const Tenant& to, const std::string& request) {
    std::string answer;
    (void)eventually([&] {
      answer = get_answer(HttpWire(to.port).post("/supervisor", request));
      return answer.find("try again in a second") == std::string::npos;
    });
    return answer;
  }
  // `by`: the actor in the journal. Requests of unknown signers are journaled once per minute, so they are not checked.
  void expect_refused(const Tenant& to, const std::string& request, const std::string& words,
                      std::optional<Id> by = std::nullopt) {
    const std::string answer = get_error(to, request);
    EXPECT_NE(answer, "") << "taken, instead of " << words;
    EXPECT_NE(answer.find(words), std::string::npos) << answer << " instead of " << words;
    if (!by) return;
    const json notes = to.json({"context", "refusals"});
    ASSERT_FALSE(notes.empty()) << words;
    EXPECT_NE(notes.front().dump().find(words), std::string::npos) << words << " in " << notes.front();
    EXPECT_EQ(notes.front().value("actor", 0U), *by) << notes.front();
  }
  Message signed_by(Message message, const SigningKey& key) const {
    EXPECT_TRUE(sign(message, key));
    return message;
  }
  static std::string enveloped(const json& body, const SigningKey& key, EnvelopeKind kind, Id context,
                               std::uint64_t sent_s = unix_s()) {
    return delivery(seal({kind, context, sent_s, {}}, body, key).value());
  }
  std::string enveloped(const Message& message, Id context = kAlicesContext) const {
    return enveloped({{"message", to_json(message)}}, bob_.key("supervisor"), EnvelopeKind::message, context);
  }
  Message good(Id id) const { return message_of_bob(both_, id); }
  void expect_a_good_one_crosses() {
    const std::string file = bob_.folder.write("good.py", "result = {'good': 'yes'}");
    expect_says(bob_({"message", "send", file, "--to", "9", "--address", alice_.url(), "--key", "bob", "--caller", "12",
                      "--follow"}),
                0, "good = yes");
  }
  std::vector<std::string> stored() const {
    auto all = alice_.find_keys("message:*");
    for (const std::string pattern : {"mj:message:*", "job:*", "flow:*"}) {
      for (std::string& key : alice_.find_keys(pattern)) all.push_back(std::move(key));
    }
    return all;
  }

  Tenants both_;
  Tenant &bob_ = both_.bob, &alice_ = both_.alice;
};

TEST_F(TenantsHostile, InvalidMessageIsRejectedAndStoresNothing) {
  alice_.make_key("eve");
  const std::string mallory = alice_.make_key("mallory"), gone = alice_.make_key("gone");
  ASSERT_EQ(alice_({"actor", "create", "--id", "7", "--key", mallory, "--address", bob_.url()}).code, 0);
  ASSERT_EQ(alice_({"actor", "create", "--id", "8", "--key", gone, "--address", bob_.url()}).code, 0);
  ASSERT_EQ(alice_({"context", "grant", "9", "--submitter", "8"}).code, 0);
  ASSERT_EQ(alice_({"context", "create", "10", "--submitter", "5", "--context", "10"}).code, 0);
  ASSERT_EQ(get_error(alice_, enveloped(signed_by(good(900), alice_.key("gone")))), "") << "its key counts, so far";
  ASSERT_TRUE(alice_.wait_for_value("message:8:900", "status", "processed"));
  ASSERT_EQ(alice_({"context", "revoke", "9", "--submitter", "8"}).code, 0);
  ASSERT_EQ(alice_({"actor", "delete", "8"}).code, 0);
  const auto before = stored();

  Message message = good(1);
  message.job[0].script = "result = {'n': 'forged'}";
  expect_refused(alice_, enveloped(message), "not of this content");
  message = good(1);
  message.signature[10] = message.signature[10] == 'a' ? 'b' : 'a';
  expect_refused(alice_, enveloped(message), "not of this content");
  message.signature.clear();
  expect_refused(alice_, enveloped(message), "signature");
  message = good(1);
  message.algorithm = "none";
  expect_refused(alice_, enveloped(message), "algorithm");

  message = good(1);
  message.target_context = 10;
  expect_refused(alice_, enveloped(message), "target_context");
  EXPECT_NE(get_error(alice_, enveloped(message, 10)).find("context: 10 does not accept messages on this host"),
            std::string::npos);
  EXPECT_EQ(alice_.json({"context", "refusals", "10", "--context", "10"}), json::array()) << "it is not touched";
  EXPECT_NE(get_error(alice_, enveloped(good(1), 99)).find("denied"), std::string::npos) << "no such context";

  expect_refused(alice_, enveloped(signed_by(good(1), alice_.key("eve"))), "no actor here has the key");
  expect_refused(alice_, enveloped(signed_by(good(1), alice_.key("mallory"))), "actor 7", 7);
  EXPECT_EQ(alice_.json({"context", "refusals"}).front().value("list", ""), "submitters");
  message = signed_by(good(1), alice_.key("mallory"));
  message.signer = both_.bobs_key;
  expect_refused(alice_, enveloped(message), "not of this content");
  expect_refused(alice_, enveloped(signed_by(good(1), alice_.key("gone"))), "no actor here has the key");

  message = good(1);
  message.created_at -= kTwentyMinutes;
  expect_refused(alice_, enveloped(signed_by(message, bob_.key("bob"))), "s ago");
  message.created_at += 2 * kTwentyMinutes;
  expect_refused(alice_, enveloped(signed_by(message, bob_.key("bob"))), "ahead of the clock");
  message.timeout = 86400;
  expect_refused(alice_, enveloped(signed_by(message, bob_.key("bob"))), "ahead of the clock");

  message = good(1);
  message.job.assign(257, message.job[0]);
  expect_refused(alice_, enveloped(signed_by(message, bob_.key("bob"))), "at most 256");
  message = good(1);
  message.job[0].flow_id = 3;
  expect_refused(alice_, enveloped(signed_by(message, bob_.key("bob"))), "flow_id", kBobAtAlice);
  message = good(1);
  message.job[0].caller_id = 6;
  expect_refused(alice_, enveloped(signed_by(message, bob_.key("bob"))), "caller_id", kBobAtAlice);

  // A client that could claim to be alice's own supervisor could make answers stay at alice.
  json envelope = json::parse(enveloped(good(1)))["params"]["envelope"];
  envelope["signer"] = both_.alices_supervisor;
  expect_refused(alice_, delivery(envelope), "signature", kBobAtAlice);
  EXPECT_EQ(stored(), before);
  expect_a_good_one_crosses();
}

TEST_F(TenantsHostile, NonRequestIsAnsweredWithAnError) {
  const auto before = stored();
  const std::string good_one = enveloped(good(1));
  EXPECT_NE(get_error(alice_, good_one.substr(0, good_one.size() / 2)).find("not JSON"), std::string::npos);
  EXPECT_NE(get_error(alice_, std::string(kMaxRequestBytes + 1, ' ')).find("too_large"), std::string::npos);
  EXPECT_EQ(HttpWire(alice_.port).post("/supervisor", std::string(17U << 20, ' ')).status, 413);
  EXPECT_NE(get_error(alice_, std::string(100000, '[')).find("invalid"), std::string::npos);
  const std::string nested(60, '['), closed(60, ']');
  for (const std::string& text :
       {std::string("{}"), std::string("[]"), std::string("1"), std::string(""), "[" + good_one + "]",
        std::string(R"({"method":"message.deliver"})"), std::string(R"({"method":"message.deliver","params":5})"),
        std::string(R"({"method":"message.deliver","params":{"envelope":[]}})"), std::string(R"({"method":7})"),
        std::string(R"({"jsonrpc":"2.0","id":1,"method":"job.create","params":{}})"),
        R"({"id":)" + nested + closed + R"(,"method":"x"})"}) {
    EXPECT_NE(get_error(alice_, text).find("invalid"), std::string::npos) << text.substr(0, 200);
  }
  const json envelope = json::parse(good_one)["params"]["envelope"];
  const std::pair<const char*, json> wrong[] = {
      {"kind", "order"},  {"kind", 1},       {"context", 0},    {"context", -1}, {"context", "9"},
      {"context", 1e300}, {"sent", 0},       {"sent", nullptr}, {"signer", "x"}, {"signer", 5},
      {"body", "text"},   {"body", nullptr}, {"signature", 5},  {"more", 1},     {"algorithm", json::array()}};
  for (const auto& [name, value] : wrong) {
    json changed = envelope;
    changed[name] = value;
    // A message is signed by its actor, so only the form of these envelope fields is checked. An answer needs valid
    // ones.
    if (std::string(name) == "signature" || std::string(name) == "algorithm" || std::string(name) == "sent")
      changed["kind"] = "answer";
    const std::string answer = get_error(alice_, delivery(changed));
    EXPECT_NE(answer, "") << changed.dump().substr(0, 200);
    EXPECT_EQ(answer.find("internal"), std::string::npos) << name << value << answer;
    EXPECT_NE(answer, "no answer") << name << value;
  }
  for (const json& body :
       {json::object(), json{{"message", 5}}, json{{"message", json::object()}},
        json{{"message", {{"id", "x"}, {"job", 5}}}}, json{{"message", {{"job", {{{"id", -1}}}}}}}}) {
    const std::string answer =
        get_error(alice_, enveloped(body, bob_.key("supervisor"), EnvelopeKind::message, kAlicesContext));
    EXPECT_TRUE(answer.starts_with("invalid") || answer.starts_with("denied")) << body << answer;
  }
  {
    HttpWire cut(alice_.port);
    EXPECT_TRUE(cut.send("POST /supervisor HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{\"jsonrpc\""));
  }
  EXPECT_EQ(HttpWire(alice_.port).post("/supervisor", good_one, "Origin: http://evil.test\r\n").status, 403);
  EXPECT_EQ(HttpWire(alice_.port).post("/supervisor", good_one, "Content-Encoding: gzip\r\n").status, 415);
  HttpWire get(alice_.port);
  EXPECT_TRUE(get.send("GET /supervisor HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_EQ(get.read().status, 405);
  EXPECT_EQ(stored(), before);
  expect_a_good_one_crosses();
}

TEST_F(TenantsHostile, RepeatedMessageIsAcceptedAndAChangedOneIsNot) {
  const Message first = good(1);
  const std::string request = enveloped(first);
  EXPECT_EQ(get_error(alice_, request), "");
  ASSERT_TRUE(alice_.wait_for_value("message:5:1", "status", "processed"));
  const auto before = stored();
  EXPECT_EQ(get_error(alice_, request), "") << "known";
  json sealed_by_another =
      seal({EnvelopeKind::message, kAlicesContext, unix_s(), {}}, {{"message", to_json(first)}}, SigningKey::make())
          .value();
  EXPECT_EQ(get_error(alice_, delivery(sealed_by_another)), "");
  expect_refused(alice_, enveloped(message_of_bob(both_, 1, "result = {'n': 'other'}")), "with other content",
                 kBobAtAlice);
  EXPECT_EQ(stored(), before);
  EXPECT_TRUE(alice_.msg_in().empty()) << "a message of jobs leaves msg_in when its jobs are made";
}

TEST_F(TenantsHostile, KeyChangeInvalidatesPendingMessages) {
  ::kill(alice_.coordinator->pid(), SIGSTOP);
  const std::string file = bob_.folder.write("x.py", "result = {'n': '1'}");
  const std::vector<std::string> words{"message",   "send",       file,       "--to", "9",
                                       "--address", alice_.url(), "--caller", "12"};
  const auto with_key = [&](const std::string& key) {
    auto all = words;
    all.insert(all.end(), {"--key", key});
    return bob_(all);
  };
  ASSERT_EQ(with_key("bob").code, 0);
  const std::string fresh = bob_.make_key("bob2");
  ASSERT_EQ(alice_({"actor", "update", "5", "--key", fresh}).code, 0);
  ASSERT_EQ(bob_({"actor", "update", "12", "--key", fresh}).code, 0);
  ::kill(alice_.coordinator->pid(), SIGCONT);
  ASSERT_TRUE(bob_.wait_for_value("message:12:1", "status", "error"));
  EXPECT_NE(bob_.field("message:12:1", "error").find("no actor here has the key"), std::string::npos);
  EXPECT_EQ(bob_.field("job:12:1", "detail"), "refused");
  EXPECT_TRUE(alice_.find_keys("job:*").empty());
  ASSERT_EQ(with_key("bob2").code, 0);
  EXPECT_TRUE(bob_.wait_for_value("message:12:2", "status", "processed"));
  expect_says(with_key("bob"), 65, "is not the key of actor 12");
}

TEST_F(TenantsHostile, AnswerCountsOnlyFromTheRecipient) {
  const Pretender pretender;
  const std::string mallory = bob_.make_key("mallory");
  ASSERT_EQ(bob_({"runner", "create", "--id", "66", "--address", pretender.url(), "--pubkey", mallory}).code, 0);
  const auto send_to = [&](const std::string& url) {
    const std::string file = bob_.folder.write("sleep.py", kSleeps);
    const ProcessResult result =
        bob_({"message", "send", file, "--to", "9", "--address", url, "--key", "bob", "--caller", "12"});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out.substr(3, result.out.find('\n') - 3);
  };
  const std::string to_alice = send_to(alice_.url()), to_mallory = send_to(pretender.url());
  ASSERT_TRUE(bob_.wait_for_value("message:12:" + to_alice, "status", "acknowledged"));
  ASSERT_TRUE(bob_.wait_for_value("message:12:" + to_mallory, "status", "acknowledged"));
  const auto answer_to = [&](const std::string& id, const std::string& job) {
    const std::string content = bob_.field("mj:message:message:12:" + id, "content");
    return json{{"of", {{"caller", 12}, {"id", std::stoi(id)}, {"content", content}}},
                {"status", "processed"},
                {"error", ""},
                {"last", true},
                {"jobs", {{{"key", job}, {"status", "finished"}, {"detail", "ok"}, {"result", {{"n", "lie"}}}}}}};
  };
  const SigningKey evil = bob_.key("mallory"), nobody = SigningKey::make();
  const auto answer = [&](const json& body, const SigningKey& key, std::uint64_t sent_s = unix_s()) {
    return enveloped(body, key, EnvelopeKind::answer, kBobsContext, sent_s);
  };
  expect_refused(bob_, answer(answer_to(to_alice, "job:12:1"), evil), "is not the coordinator to which");
  expect_refused(bob_, answer(answer_to(to_alice, "job:12:1"), nobody), "is not the coordinator to which");
  expect_refused(bob_, answer(answer_to(to_mallory, "job:12:1"), evil), "is not a job of", 0);
  expect_refused(bob_, answer(answer_to(to_mallory, "job:12:2"), evil, unix_s() - kTwentyMinutes), "s ago");
  json body = answer_to(to_mallory, "job:12:2");
  body["of"]["content"] = std::string(64, 'a');
  expect_refused(bob_, answer(body, evil), "no such message was sent");
  body = answer_to("77", "job:12:2");
  expect_refused(bob_, answer(body, evil), "content");
  body["of"]["content"] = std::string(64, 'a');
  expect_refused(bob_, answer(body, evil), "no such message was sent");
  json sealed = json::parse(answer(answer_to(to_mallory, "job:12:2"), evil))["params"]["envelope"];
  sealed["body"]["jobs"][0]["result"]["n"] = "changed on its way";
  expect_refused(bob_, delivery(sealed), "not of this content");
  sealed = json::parse(answer(answer_to(to_alice, "job:12:1"), evil))["params"]["envelope"];
  sealed["signer"] = both_.alices_supervisor;
  expect_refused(bob_, delivery(sealed), "not of this content");
  for (const auto& [name, value] : std::vector<std::pair<std::string, json>>{
           {"jobs", 5}, {"jobs", {5}}, {"flow", 5}, {"jobs", json::array({{{"key", 7}}})}}) {
    body = answer_to(to_mallory, "job:12:2");
    body[name] = value;
    expect_refused(bob_, answer(body, evil), "invalid");
  }
  const json of = answer_to(to_alice, "job:12:1")["of"];
  const json lines{{"of", of}, {"job", "job:12:1"}, {"lines", {{{"seq", 1}, {"text", "lie"}, {"stream", "out"}}}}};
  expect_refused(bob_, enveloped(lines, evil, EnvelopeKind::logs, kBobsContext), "is not the coordinator to which");
  const json cancel{{"of", of}, {"by", both_.bobs_key}, {"jobs", {"job:12:1"}}};
  expect_refused(alice_, enveloped(cancel, evil, EnvelopeKind::cancel, kAlicesContext), "signer");
  json early = cancel;
  early["of"]["id"] = 4000;
  expect_refused(alice_, enveloped(early, bob_.key("supervisor"), EnvelopeKind::cancel, kAlicesContext),
                 "no such message was received");
  EXPECT_EQ(bob_.field("message:12:" + to_alice, "status"), "acknowledged");
  EXPECT_EQ(bob_.field("message:12:" + to_mallory, "status"), "acknowledged");

  // Mallory may report ends of jobs that were sent to her. Fields of the wrong type are ignored.
  body = answer_to(to_mallory, "job:12:2");
  body["status"] = 5;
  body["error"] = json::array({1});
  body["last"] = "yes";
  EXPECT_EQ(get_error(bob_, answer(body, evil)), "");
  ASSERT_TRUE(bob_.wait_for_value("message:12:" + to_mallory, "status", "error"));
  EXPECT_EQ(bob_.field("job:12:2", "result"), R"({"n":"lie"})");
  EXPECT_EQ(get_error(bob_, answer(answer_to(to_mallory, "job:12:2"), evil)), "") << "known";
  EXPECT_EQ(bob_.field("message:12:" + to_mallory, "status"), "error") << "late answers change nothing";
  EXPECT_EQ(bob_({"job", "cancel", "job:12:1"}).code, 0);
  EXPECT_TRUE(bob_.wait_for_value("message:12:" + to_alice, "status", "error"));
}

TEST_F(TenantsHostile, DamagedRecordsDelayNoOthers) {
  bob_.cli({"SET", "message:12:50", "no hash"});
  bob_.cli({"HSET", "message:12:51", "id", "51", "caller_id", "12", "job", "no json"});
  bob_.cli({"HSET", "message:12:52", "id", "53", "caller_id", "12"});
  bob_.cli({"LPUSH", "msg_out", "message:12:50", "message:12:51", "nonsense", "message:12:52", "message:12:99"});
  expect_a_good_one_crosses();
  EXPECT_TRUE(bob_.wait_for_value("message:12:51", "status", "error"));
  EXPECT_TRUE(bob_.wait_for_value("message:12:52", "status", "error"));
  EXPECT_TRUE(eventually([&] { return bob_.cli({"LLEN", "msg_out_coordinator"}) == "0"; }));
  bob_.cli({"DEL", "message:12:50"});
}

// Accepts connections at all addresses of 127.0.0.0/8 and never answers.
class Tarpit {
 public:
  Tarpit() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_ANY);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
    EXPECT_EQ(::listen(listener_.get(), 512), 0);
    socklen_t size = sizeof at;
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&at), &size);
    port_ = std::to_string(ntohs(at.sin_port));
  }
  std::string url(int host, const std::string& path = "") const {
    return "http://127.0.0." + std::to_string(host) + ':' + port_ + path;
  }

 private:
  Fd listener_;
  std::string port_;
};

constexpr int kTarpits = 40;   // more than there are outgoing workers
constexpr Seconds kOneTry(9);  // less than the time-out of one exchange

TEST_F(TenantsHostile, ManyPathsOfATarpitUseOneThread) {
  const Tarpit tarpit;
  const std::string key = SigningKey::make().public_key();
  std::string lines;
  for (int i = 0; i < kTarpits; ++i) {
    Message message = good(static_cast<Id>(1000 + i));
    message.target_address = tarpit.url(1, '/' + std::to_string(i));
    message.target_key = key;
    message = signed_by(message, bob_.key("bob"));
    const std::string id = std::to_string(100 + i);
    bob_.cli({"HSET", "runner:" + id, "id", id, "address", message.target_address, "pubkey", key});
    std::vector<std::string> words{"HSET", redis_key(message)};
    for (const auto& [name, value] : encode(message)) words.insert(words.end(), {name, value});
    bob_.cli(words);
    lines += "LPUSH msg_out " + redis_key(message) + '\n';
  }
  bob_.cli({}, lines);
  ASSERT_TRUE(eventually([&] { return bob_.field("message:12:1039", "transport_status") == "queued"; }));
  const auto begun = std::chrono::steady_clock::now();
  expect_a_good_one_crosses();
  EXPECT_LT(Seconds(std::chrono::steady_clock::now() - begun).count(), kOneTry.count());
}

// The sender chooses the address for answers, here another host for each message.
TEST_F(TenantsHostile, AnswersOfOneSignerDoNotUseAllThreads) {
  const Tarpit tarpit;
  ASSERT_EQ(alice_({"actor", "create", "--id", "7", "--key", alice_.make_key("mallory")}).code, 0);
  ASSERT_EQ(alice_({"context", "grant", "9", "--submitter", "7"}).code, 0);
  for (int i = 0; i < kTarpits; ++i) {
    alice_.redis.cli(0, {"HSET", "actor:7", "address", json::array({tarpit.url(2 + i)}).dump()});
    Message message = good(static_cast<Id>(1000 + i));
    message.job.clear();
    message.message_type = MessageType::chat;
    message.message = "hello";
    ASSERT_EQ(get_error(alice_, enveloped(signed_by(message, alice_.key("mallory")))), "");
  }
  const auto begun = std::chrono::steady_clock::now();
  expect_a_good_one_crosses();
  EXPECT_LT(Seconds(std::chrono::steady_clock::now() - begun).count(), kOneTry.count());
}

// A client that can write messages knows the id under which a node of a flow is sent.
TEST_F(TenantsHostile, RemoteNodeIsSentAsItsCoordinatorSignedIt) {
  ASSERT_EQ(alice_({"actor", "create", "--id", "15", "--key", both_.bobs_supervisor, "--address", bob_.url()}).code, 0);
  ASSERT_EQ(alice_({"context", "grant", "9", "--submitter", "15"}).code, 0);
  bob_.cli({"HSET", "runner:50", "target_context", "9"});
  std::vector<std::string> planted;
  for (const std::string caller : {"1", "12"}) {
    for (int job = 1; job < 4; ++job) {
      const std::string name = "7 job:" + caller + ':' + std::to_string(job) + " 1";
      const std::string id = std::to_string(std::stoul(sha256_hex(name).substr(0, 8), nullptr, 16));
      planted.push_back("message:" + caller + ':' + id);
      bob_.cli({"HSET", planted.back(), "id", id, "caller_id", caller, "context_id", "7", "target_context", "9",
                "target_address", "http://127.0.0.1:9", "job",
                R"([{"id":1,"script":"result = {'n': 'planted'}","script_type":"python"}])"});
    }
  }
  const json flow{
      {"name", "far"},
      {"jobs", {{"far", {{"script", "result = {'n': '7'}"}, {"type", "python"}, {"supervisor_url", alice_.url()}}}}}};
  ASSERT_EQ(bob_({"flow", "start", bob_.folder.write("flow.json", flow.dump()), "--json"}).code, 0);
  const std::string key = bob_.find_keys("flow:*").at(0);
  EXPECT_TRUE(bob_.wait_for_value(key, "status", "finished")) << bob_.field(key, "error");
  EXPECT_NE(bob_.field(key, "result").find("\"7\""), std::string::npos) << bob_.field(key, "result");
  for (const std::string& each : planted) EXPECT_EQ(bob_.field(each, "target_address"), "http://127.0.0.1:9");
}

// A client that can write messages can also write the end of a remote node, but the coordinator does not read it there.
TEST_F(TenantsHostile, EndOfARemoteNodeIsNotReadFromItsRecord) {
  ASSERT_EQ(alice_({"actor", "create", "--id", "15", "--key", both_.bobs_supervisor, "--address", bob_.url()}).code, 0);
  ASSERT_EQ(alice_({"context", "grant", "9", "--submitter", "15"}).code, 0);
  bob_.cli({"HSET", "runner:50", "target_context", "9"});
  const json flow{{"name", "far"},
                  {"jobs",
                   {{"far",
                     {{"script", "import time\ntime.sleep(3)\nresult = {'n': '7'}"},
                      {"type", "python"},
                      {"supervisor_url", alice_.url()}}}}}};
  ASSERT_EQ(bob_({"flow", "start", bob_.folder.write("flow.json", flow.dump()), "--json"}).code, 0);
  const std::string key = bob_.find_keys("flow:*").at(0);
  ASSERT_TRUE(eventually([&] { return !bob_.find_keys("message:*").empty(); }));
  const std::string message = bob_.find_keys("message:*").at(0);
  ASSERT_TRUE(bob_.wait_for_value(message, "status", "acknowledged"));
  bob_.cli({"HSET", message, "status", "processed", "answer",
            R"([{"key":"job:1:1","status":"finished","result":{"n":"forged"}}])"});
  EXPECT_TRUE(bob_.wait_for_value(key, "status", "finished")) << bob_.field(key, "error");
  EXPECT_NE(bob_.field(key, "result").find("\"7\""), std::string::npos) << bob_.field(key, "result");
}

// Idle connections after one request, connections with unfinished requests, and 2,000 forged requests per second.
TEST_F(TenantsHostile, FloodDelaysNoOther) {
  std::vector<std::unique_ptr<HttpWire>> holding;
  const std::string forged = [&] {
    Message message = good(1);
    message.job[0].script = "forged";
    return enveloped(message);
  }();
  for (int i = 0; i < 100; ++i) {
    holding.push_back(std::make_unique<HttpWire>(alice_.port));
    if (i % 2 == 0) {
      holding.back()->post("/supervisor", forged);
    } else {
      holding.back()->send("POST /supervisor HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{");
    }
  }
  expect_a_good_one_crosses();
  std::atomic<bool> stop{false};
  std::atomic<int> asked{0}, refused{0};
  std::vector<std::thread> flood;
  constexpr int kThreads = 8, kEach = 2000 / kThreads;
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < kThreads; ++i) {
    flood.emplace_back([&] {
      auto wire = std::make_unique<HttpWire>(alice_.port);
      for (int n = 0; !stop; ++n) {
        std::this_thread::sleep_until(begun + std::chrono::microseconds(1000000LL * n / kEach));
        const auto reply = wire->post("/supervisor", forged);
        ++asked;
        if (reply.status == 200 && get_answer(reply).starts_with("denied")) ++refused;
        if (reply.status != 200) wire = std::make_unique<HttpWire>(alice_.port);
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const auto sending = std::chrono::steady_clock::now();
  expect_a_good_one_crosses();
  const Seconds crossed = std::chrono::steady_clock::now() - sending;
  const auto asking = std::chrono::steady_clock::now();
  EXPECT_EQ(
      get_answer(HttpWire(alice_.port).post("/", R"({"jsonrpc":"2.0","id":1,"method":"system.ping"})")).substr(0, 6),
      "denied")
      << "the answer to a call without a token";
  HttpWire health(alice_.port);
  EXPECT_TRUE(health.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_EQ(health.read().status, 200);
  const Seconds answered = std::chrono::steady_clock::now() - asking;
  std::this_thread::sleep_for(std::chrono::seconds(1));
  stop = true;
  for (std::thread& each : flood) each.join();
  const Seconds all = std::chrono::steady_clock::now() - begun;
  std::printf("flood: %.0f requests a second, a good message crossed in %.2f s, calls were answered in %.2f s\n",
              asked / all.count(), crossed.count(), answered.count());
  EXPECT_GT(refused, 100);
  EXPECT_LE(std::stoi(alice_.cli({"XLEN", "mj:refusals"})), 3) << "a note a minute";
  EXPECT_TRUE(alice_.find_keys("message:5:1").size() <= 1);
}

}  // namespace
}  // namespace mycojobs::test
