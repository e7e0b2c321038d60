// Attacks on POST /supervisor. Each attempt is refused with a reason, is journaled if a known actor has signed it,
// stores nothing, and does not delay other requests.
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>
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

constexpr std::uint32_t kTwentyMinutes = 1200;  // in seconds

std::uint64_t unix_s() { return static_cast<std::uint64_t>(::time(nullptr)); }

// An HTTP server that answers each request as a supervisor that has stored the message.
class FakeSupervisor {
 public:
  FakeSupervisor() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_.get(), 8), 0);
    socklen_t size = sizeof address;
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { serve(); });
  }
  ~FakeSupervisor() {
    stop_ = true;
    thread_.join();
  }
  const std::string& url() const { return url_; }

 private:
  void serve() {
    const std::string body = R"({"jsonrpc":"2.0","id":1,"result":{"status":"stored"}})";
    const std::string response =
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
        "Content-Length: " +
        std::to_string(body.size()) + "\r\n\r\n" + body;
    while (!stop_) {
      pollfd listener_event{listener_.get(), POLLIN, 0};
      if (::poll(&listener_event, 1, 20) <= 0) continue;
      const Fd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      const timeval timeout{1, 0};
      ::setsockopt(connection.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
      std::string request;
      char bytes[65536];
      while (request.find("message.deliver") == std::string::npos || !request.ends_with("}")) {
        const ssize_t received = ::recv(connection.get(), bytes, sizeof bytes, 0);
        if (received <= 0) break;
        request.append(bytes, static_cast<std::size_t>(received));
      }
      (void)::send(connection.get(), response.data(), response.size(), MSG_NOSIGNAL);
    }
  }
  Fd listener_;
  std::string url_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Returns whether a connection to the port holds bytes that the server has not read. A line of /proc/net/tcp has the
// fields "sl local_address rem_address st tx_queue:rx_queue", of which the state 01 is an established connection.
bool has_unread_request(int port) {
  std::ifstream file("/proc/net/tcp");
  char port_suffix[8];
  std::snprintf(port_suffix, sizeof port_suffix, ":%04X", static_cast<unsigned>(port));
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string number, local_address, peer_address, state, queues;
    fields >> number >> local_address >> peer_address >> state >> queues;
    if (local_address.ends_with(port_suffix) && state == "01" && !queues.ends_with(":00000000")) return true;
  }
  return false;
}

class SupervisorAttacks : public ::testing::Test {
 protected:
  void SetUp() override {
    tenants_.start_both();
    alice_.start_runner();
    ASSERT_TRUE(wait_until_registered(alice_.redis, 20, kAlicesContext)) << alice_.agents.front()->err();
  }
  void TearDown() override {
    bob_.expect_verify_succeeds();
    alice_.expect_verify_succeeds();
  }
  // Returns "" if the supervisor accepted the request, and "CODE: MESSAGE" of its error otherwise.
  static std::string get_rejection(const HttpConnection::Reply& reply) {
    const json reply_json = json::parse(reply.body, nullptr, false);
    if (reply.status == 0 || !reply_json.is_object()) return "no answer";
    if (reply_json.contains("result")) return "";
    const json error = reply_json.value("error", json::object());
    return error.value("data", json::object()).value("word", "") + ": " + error.value("message", "");
  }
  // The coordinator looks up unknown keys once per second and answers "try again" until then. Repeats the request.
  static std::string send_and_get_rejection(const Tenant& to, const std::string& request) {
    std::string rejection;
    (void)eventually([&] {
      rejection = get_rejection(HttpConnection(to.port).post("/supervisor", request));
      return rejection.find("try again in a second") == std::string::npos;
    });
    return rejection;
  }
  // Expects that the request is refused with a message that contains `expected_text`. With `signer`, also expects that
  // the latest journal entry about a refusal contains this text and names this actor. Requests of unknown signers are
  // journaled only once per minute, so the caller omits `signer` for them.
  void expect_refused(const Tenant& to, const std::string& request, const std::string& expected_text,
                      std::optional<Id> signer = std::nullopt) {
    const std::string rejection = send_and_get_rejection(to, request);
    EXPECT_NE(rejection, "") << "accepted, instead of " << expected_text;
    EXPECT_NE(rejection.find(expected_text), std::string::npos) << rejection << " instead of " << expected_text;
    if (!signer) return;
    const json refusals = to.run_json({"context", "refusals"});
    ASSERT_FALSE(refusals.empty()) << expected_text;
    EXPECT_NE(refusals.front().dump().find(expected_text), std::string::npos)
        << expected_text << " in " << refusals.front();
    EXPECT_EQ(refusals.front().value("actor", 0U), *signer) << refusals.front();
  }
  Message sign_with(Message message, const SigningKey& key) const {
    EXPECT_TRUE(sign(message, key));
    return message;
  }
  static std::string make_request(const json& body, const SigningKey& key, EnvelopeKind kind, Id context,
                                  std::uint64_t sent_s = unix_s()) {
    return make_delivery_request(seal({kind, context, sent_s, {}}, body, key).value());
  }
  std::string make_request(const Message& message, Id context = kAlicesContext) const {
    return make_request({{"message", to_json(message)}}, bob_.load_key("supervisor"), EnvelopeKind::message, context);
  }
  Message make_valid_message(Id id) const { return make_message_from_bob(tenants_, id); }
  void expect_valid_message_is_delivered() {
    const std::string file = bob_.folder.write("good.py", "result = {'good': 'yes'}");
    expect_result(bob_({"message", "send", file, "--to", "9", "--address", alice_.url(), "--key", "bob", "--caller",
                        "12", "--follow"}),
                  0, "good = yes");
  }
  std::vector<std::string> list_stored_keys() const {
    auto keys = alice_.find_keys("message:*");
    for (const std::string pattern : {"mj:message:*", "job:*", "flow:*"}) {
      for (std::string& key : alice_.find_keys(pattern)) keys.push_back(std::move(key));
    }
    return keys;
  }

  Tenants tenants_;
  Tenant &bob_ = tenants_.bob, &alice_ = tenants_.alice;
};

TEST_F(SupervisorAttacks, InvalidMessageIsRejectedAndStoresNothing) {
  alice_.make_key("eve");
  const std::string mallorys_key = alice_.make_key("mallory"), deleted_actors_key = alice_.make_key("gone");
  ASSERT_EQ(alice_({"actor", "create", "--id", "7", "--key", mallorys_key, "--address", bob_.url()}).code, 0);
  ASSERT_EQ(alice_({"actor", "create", "--id", "8", "--key", deleted_actors_key, "--address", bob_.url()}).code, 0);
  ASSERT_EQ(alice_({"context", "grant", "9", "--submitter", "8"}).code, 0);
  ASSERT_EQ(alice_({"context", "create", "10", "--submitter", "5", "--context", "10"}).code, 0);
  ASSERT_EQ(send_and_get_rejection(alice_, make_request(sign_with(make_valid_message(900), alice_.load_key("gone")))),
            "")
      << "the key is still valid";
  ASSERT_TRUE(alice_.wait_for_value("message:8:900", "status", "processed"));
  ASSERT_EQ(alice_({"context", "revoke", "9", "--submitter", "8"}).code, 0);
  ASSERT_EQ(alice_({"actor", "delete", "8"}).code, 0);
  const auto keys_before = list_stored_keys();

  Message message = make_valid_message(1);
  message.job[0].script = "result = {'n': 'forged'}";
  expect_refused(alice_, make_request(message), "not of this content");
  message = make_valid_message(1);
  message.signature[10] = message.signature[10] == 'a' ? 'b' : 'a';
  expect_refused(alice_, make_request(message), "not of this content");
  message.signature.clear();
  expect_refused(alice_, make_request(message), "signature");
  message = make_valid_message(1);
  message.algorithm = "none";
  expect_refused(alice_, make_request(message), "algorithm");

  message = make_valid_message(1);
  message.target_context = 10;
  expect_refused(alice_, make_request(message), "target_context");
  EXPECT_NE(send_and_get_rejection(alice_, make_request(message, 10))
                .find("context: 10 does not accept messages on this host"),
            std::string::npos);
  EXPECT_EQ(alice_.run_json({"context", "refusals", "10", "--context", "10"}), json::array())
      << "a message to context 9 must not change the journal of context 10";
  EXPECT_NE(send_and_get_rejection(alice_, make_request(make_valid_message(1), 99)).find("denied"), std::string::npos)
      << "context 99 does not exist";

  expect_refused(alice_, make_request(sign_with(make_valid_message(1), alice_.load_key("eve"))),
                 "no actor here has the key");
  expect_refused(alice_, make_request(sign_with(make_valid_message(1), alice_.load_key("mallory"))), "actor 7", 7);
  EXPECT_EQ(alice_.run_json({"context", "refusals"}).front().value("list", ""), "submitters");
  message = sign_with(make_valid_message(1), alice_.load_key("mallory"));
  message.signer = tenants_.bobs_key;
  expect_refused(alice_, make_request(message), "not of this content");
  expect_refused(alice_, make_request(sign_with(make_valid_message(1), alice_.load_key("gone"))),
                 "no actor here has the key");

  message = make_valid_message(1);
  message.created_at -= kTwentyMinutes;
  expect_refused(alice_, make_request(sign_with(message, bob_.load_key("bob"))), "s ago");
  message.created_at += 2 * kTwentyMinutes;
  expect_refused(alice_, make_request(sign_with(message, bob_.load_key("bob"))), "ahead of the clock");
  message.timeout = 86400;
  expect_refused(alice_, make_request(sign_with(message, bob_.load_key("bob"))), "ahead of the clock");

  message = make_valid_message(1);
  message.job.assign(257, message.job[0]);
  expect_refused(alice_, make_request(sign_with(message, bob_.load_key("bob"))), "at most 256");
  message = make_valid_message(1);
  message.job[0].flow_id = 3;
  expect_refused(alice_, make_request(sign_with(message, bob_.load_key("bob"))), "flow_id", kBobsActorAtAlice);
  message = make_valid_message(1);
  message.job[0].caller_id = 6;
  expect_refused(alice_, make_request(sign_with(message, bob_.load_key("bob"))), "caller_id", kBobsActorAtAlice);

  // If this were accepted, answers to Bob would be sent to Alice's own supervisor.
  json envelope = json::parse(make_request(make_valid_message(1)))["params"]["envelope"];
  envelope["signer"] = tenants_.alices_supervisor;
  expect_refused(alice_, make_delivery_request(envelope), "signature", kBobsActorAtAlice);
  EXPECT_EQ(list_stored_keys(), keys_before);
  expect_valid_message_is_delivered();
}

TEST_F(SupervisorAttacks, NonRequestIsAnsweredWithAnError) {
  const auto keys_before = list_stored_keys();
  const std::string valid_request = make_request(make_valid_message(1));
  EXPECT_NE(send_and_get_rejection(alice_, valid_request.substr(0, valid_request.size() / 2)).find("not JSON"),
            std::string::npos);
  EXPECT_NE(send_and_get_rejection(alice_, std::string(kMaxRequestBytes + 1, ' ')).find("too_large"),
            std::string::npos);
  EXPECT_EQ(HttpConnection(alice_.port).post("/supervisor", std::string(17U << 20, ' ')).status, 413);
  EXPECT_NE(send_and_get_rejection(alice_, std::string(100000, '[')).find("invalid"), std::string::npos);
  const std::string opening_brackets(60, '['), closing_brackets(60, ']');
  for (const std::string& text :
       {std::string("{}"), std::string("[]"), std::string("1"), std::string(""), "[" + valid_request + "]",
        std::string(R"({"method":"message.deliver"})"), std::string(R"({"method":"message.deliver","params":5})"),
        std::string(R"({"method":"message.deliver","params":{"envelope":[]}})"), std::string(R"({"method":7})"),
        std::string(R"({"jsonrpc":"2.0","id":1,"method":"job.create","params":{}})"),
        R"({"id":)" + opening_brackets + closing_brackets + R"(,"method":"x"})"}) {
    EXPECT_NE(send_and_get_rejection(alice_, text).find("invalid"), std::string::npos) << text.substr(0, 200);
  }
  const json envelope = json::parse(valid_request)["params"]["envelope"];
  const std::pair<const char*, json> invalid_fields[] = {
      {"kind", "order"},  {"kind", 1},       {"context", 0},    {"context", -1}, {"context", "9"},
      {"context", 1e300}, {"sent", 0},       {"sent", nullptr}, {"signer", "x"}, {"signer", 5},
      {"body", "text"},   {"body", nullptr}, {"signature", 5},  {"more", 1},     {"algorithm", json::array()}};
  for (const auto& [name, value] : invalid_fields) {
    json changed = envelope;
    changed[name] = value;
    // In the envelope of a message these fields are only parsed, because its actor signs the message. In the envelope
    // of an answer, they must be valid.
    if (std::string(name) == "signature" || std::string(name) == "algorithm" || std::string(name) == "sent")
      changed["kind"] = "answer";
    const std::string rejection = send_and_get_rejection(alice_, make_delivery_request(changed));
    EXPECT_NE(rejection, "") << changed.dump().substr(0, 200);
    EXPECT_EQ(rejection.find("internal"), std::string::npos) << name << value << rejection;
    EXPECT_NE(rejection, "no answer") << name << value;
  }
  for (const json& body :
       {json::object(), json{{"message", 5}}, json{{"message", json::object()}},
        json{{"message", {{"id", "x"}, {"job", 5}}}}, json{{"message", {{"job", {{{"id", -1}}}}}}}}) {
    const std::string rejection = send_and_get_rejection(
        alice_, make_request(body, bob_.load_key("supervisor"), EnvelopeKind::message, kAlicesContext));
    EXPECT_TRUE(rejection.starts_with("invalid") || rejection.starts_with("denied")) << body << rejection;
  }
  {
    HttpConnection aborted_connection(alice_.port);
    EXPECT_TRUE(
        aborted_connection.send("POST /supervisor HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{\"jsonrpc\""));
  }
  EXPECT_EQ(HttpConnection(alice_.port).post("/supervisor", valid_request, "Origin: http://evil.test\r\n").status, 403);
  EXPECT_EQ(HttpConnection(alice_.port).post("/supervisor", valid_request, "Content-Encoding: gzip\r\n").status, 415);
  HttpConnection get_connection(alice_.port);
  EXPECT_TRUE(get_connection.send("GET /supervisor HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_EQ(get_connection.read().status, 405);
  EXPECT_EQ(list_stored_keys(), keys_before);
  expect_valid_message_is_delivered();
}

TEST_F(SupervisorAttacks, RepeatedMessageIsAcceptedAndAChangedOneIsNot) {
  const Message message = make_valid_message(1);
  const std::string request = make_request(message);
  EXPECT_EQ(send_and_get_rejection(alice_, request), "");
  ASSERT_TRUE(alice_.wait_for_value("message:5:1", "status", "processed"));
  const auto keys_before = list_stored_keys();
  EXPECT_EQ(send_and_get_rejection(alice_, request), "") << "a repeated message";
  json sealed_by_another =
      seal({EnvelopeKind::message, kAlicesContext, unix_s(), {}}, {{"message", to_json(message)}}, SigningKey::make())
          .value();
  EXPECT_EQ(send_and_get_rejection(alice_, make_delivery_request(sealed_by_another)), "");
  expect_refused(alice_, make_request(make_message_from_bob(tenants_, 1, "result = {'n': 'other'}")),
                 "with other content", kBobsActorAtAlice);
  EXPECT_EQ(list_stored_keys(), keys_before);
  EXPECT_TRUE(alice_.list_msg_in().empty()) << "a message with jobs is removed from msg_in when its jobs are created";
}

TEST_F(SupervisorAttacks, KeyChangeInvalidatesPendingMessages) {
  ::kill(alice_.coordinator->pid(), SIGSTOP);
  const std::string file = bob_.folder.write("x.py", "result = {'n': '1'}");
  const std::vector<std::string> arguments{"message",   "send",       file,       "--to", "9",
                                           "--address", alice_.url(), "--caller", "12"};
  const auto send_with_key = [&](const std::string& key) {
    auto arguments_with_key = arguments;
    arguments_with_key.insert(arguments_with_key.end(), {"--key", key});
    return bob_(arguments_with_key);
  };
  ASSERT_EQ(send_with_key("bob").code, 0);
  ASSERT_TRUE(eventually([&] { return has_unread_request(alice_.port); }));
  const std::string new_key = bob_.make_key("bob2");
  ASSERT_EQ(alice_({"actor", "update", "5", "--key", new_key}).code, 0);
  ASSERT_EQ(bob_({"actor", "update", "12", "--key", new_key}).code, 0);
  ::kill(alice_.coordinator->pid(), SIGCONT);
  ASSERT_TRUE(bob_.wait_for_value("message:12:1", "status", "error"));
  EXPECT_NE(bob_.read_field("message:12:1", "error").find("no actor here has the key"), std::string::npos)
      << bob_.read_field("message:12:1", "error");
  EXPECT_EQ(bob_.read_field("job:12:1", "detail"), "refused");
  EXPECT_TRUE(alice_.find_keys("job:*").empty());
  ASSERT_EQ(send_with_key("bob2").code, 0);
  EXPECT_TRUE(bob_.wait_for_value("message:12:2", "status", "processed"));
  expect_result(send_with_key("bob"), 65, "is not the key of actor 12");
}

TEST_F(SupervisorAttacks, AnswerCountsOnlyFromTheRecipient) {
  const FakeSupervisor fake_supervisor;
  const std::string mallorys_key = bob_.make_key("mallory");
  ASSERT_EQ(bob_({"runner", "create", "--id", "66", "--address", fake_supervisor.url(), "--pubkey", mallorys_key}).code,
            0);
  const auto send_to = [&](const std::string& url) {
    const std::string file = bob_.folder.write("sleep.py", kSleepScript);
    const ProcessResult result =
        bob_({"message", "send", file, "--to", "9", "--address", url, "--key", "bob", "--caller", "12"});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out.substr(3, result.out.find('\n') - 3);
  };
  const std::string to_alice = send_to(alice_.url()), to_mallory = send_to(fake_supervisor.url());
  ASSERT_TRUE(bob_.wait_for_value("message:12:" + to_alice, "status", "acknowledged"));
  ASSERT_TRUE(bob_.wait_for_value("message:12:" + to_mallory, "status", "acknowledged"));
  const auto make_answer = [&](const std::string& id, const std::string& job) {
    const std::string content = bob_.read_field("mj:message:message:12:" + id, "content");
    return json{{"of", {{"caller", 12}, {"id", std::stoi(id)}, {"content", content}}},
                {"status", "processed"},
                {"error", ""},
                {"last", true},
                {"jobs", {{{"key", job}, {"status", "finished"}, {"detail", "ok"}, {"result", {{"n", "lie"}}}}}}};
  };
  const SigningKey mallorys_signing_key = bob_.load_key("mallory"), unknown_key = SigningKey::make();
  const auto make_answer_request = [&](const json& body, const SigningKey& key, std::uint64_t sent_s = unix_s()) {
    return make_request(body, key, EnvelopeKind::answer, kBobsContext, sent_s);
  };
  expect_refused(bob_, make_answer_request(make_answer(to_alice, "job:12:1"), mallorys_signing_key),
                 "is not the coordinator to which");
  expect_refused(bob_, make_answer_request(make_answer(to_alice, "job:12:1"), unknown_key),
                 "is not the coordinator to which");
  expect_refused(bob_, make_answer_request(make_answer(to_mallory, "job:12:1"), mallorys_signing_key),
                 "is not a job of", 0);
  expect_refused(
      bob_, make_answer_request(make_answer(to_mallory, "job:12:2"), mallorys_signing_key, unix_s() - kTwentyMinutes),
      "s ago");
  json body = make_answer(to_mallory, "job:12:2");
  body["of"]["content"] = std::string(64, 'a');
  expect_refused(bob_, make_answer_request(body, mallorys_signing_key), "no such message was sent");
  body = make_answer("77", "job:12:2");
  expect_refused(bob_, make_answer_request(body, mallorys_signing_key), "content");
  body["of"]["content"] = std::string(64, 'a');
  expect_refused(bob_, make_answer_request(body, mallorys_signing_key), "no such message was sent");
  json sealed =
      json::parse(make_answer_request(make_answer(to_mallory, "job:12:2"), mallorys_signing_key))["params"]["envelope"];
  sealed["body"]["jobs"][0]["result"]["n"] = "changed on its way";
  expect_refused(bob_, make_delivery_request(sealed), "not of this content");
  sealed =
      json::parse(make_answer_request(make_answer(to_alice, "job:12:1"), mallorys_signing_key))["params"]["envelope"];
  sealed["signer"] = tenants_.alices_supervisor;
  expect_refused(bob_, make_delivery_request(sealed), "not of this content");
  for (const auto& [name, value] : std::vector<std::pair<std::string, json>>{
           {"jobs", 5}, {"jobs", {5}}, {"flow", 5}, {"jobs", json::array({{{"key", 7}}})}}) {
    body = make_answer(to_mallory, "job:12:2");
    body[name] = value;
    expect_refused(bob_, make_answer_request(body, mallorys_signing_key), "invalid");
  }
  const json message_ref = make_answer(to_alice, "job:12:1")["of"];
  const json lines{
      {"of", message_ref}, {"job", "job:12:1"}, {"lines", {{{"seq", 1}, {"text", "lie"}, {"stream", "out"}}}}};
  expect_refused(bob_, make_request(lines, mallorys_signing_key, EnvelopeKind::logs, kBobsContext),
                 "is not the coordinator to which");
  const json cancel{{"of", message_ref}, {"by", tenants_.bobs_key}, {"jobs", {"job:12:1"}}};
  expect_refused(alice_, make_request(cancel, mallorys_signing_key, EnvelopeKind::cancel, kAlicesContext), "signer");
  json cancel_of_unknown_message = cancel;
  cancel_of_unknown_message["of"]["id"] = 4000;
  expect_refused(
      alice_,
      make_request(cancel_of_unknown_message, bob_.load_key("supervisor"), EnvelopeKind::cancel, kAlicesContext),
      "no such message was received");
  EXPECT_EQ(bob_.read_field("message:12:" + to_alice, "status"), "acknowledged");
  EXPECT_EQ(bob_.read_field("message:12:" + to_mallory, "status"), "acknowledged");

  // Mallory may report the ends of jobs that Bob sent to her. Fields with a value of another type are ignored.
  body = make_answer(to_mallory, "job:12:2");
  body["status"] = 5;
  body["error"] = json::array({1});
  body["last"] = "yes";
  EXPECT_EQ(send_and_get_rejection(bob_, make_answer_request(body, mallorys_signing_key)), "");
  ASSERT_TRUE(bob_.wait_for_value("message:12:" + to_mallory, "status", "error"));
  EXPECT_EQ(bob_.read_field("job:12:2", "result"), R"({"n":"lie"})");
  EXPECT_EQ(
      send_and_get_rejection(bob_, make_answer_request(make_answer(to_mallory, "job:12:2"), mallorys_signing_key)), "")
      << "a repeated answer";
  EXPECT_EQ(bob_.read_field("message:12:" + to_mallory, "status"), "error")
      << "an answer after the end must not change the message";
  EXPECT_EQ(bob_({"job", "cancel", "job:12:1"}).code, 0);
  EXPECT_TRUE(bob_.wait_for_value("message:12:" + to_alice, "status", "error"));
}

TEST_F(SupervisorAttacks, DamagedRecordsDelayNoOthers) {
  bob_.cli({"SET", "message:12:50", "no hash"});
  bob_.cli({"HSET", "message:12:51", "id", "51", "caller_id", "12", "job", "no json"});
  bob_.cli({"HSET", "message:12:52", "id", "53", "caller_id", "12"});
  bob_.cli({"LPUSH", "msg_out", "message:12:50", "message:12:51", "nonsense", "message:12:52", "message:12:99"});
  expect_valid_message_is_delivered();
  EXPECT_TRUE(bob_.wait_for_value("message:12:51", "status", "error"));
  EXPECT_TRUE(bob_.wait_for_value("message:12:52", "status", "error"));
  EXPECT_TRUE(eventually([&] { return bob_.cli({"LLEN", "msg_out_coordinator"}) == "0"; }));
  bob_.cli({"DEL", "message:12:50"});
}

// Accepts connections at all addresses of 127.0.0.0/8 and never answers.
class Tarpit {
 public:
  Tarpit() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_.get(), 512), 0);
    socklen_t size = sizeof address;
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = std::to_string(ntohs(address.sin_port));
  }
  std::string url(int host, const std::string& path = "") const {
    return "http://127.0.0." + std::to_string(host) + ':' + port_ + path;
  }

 private:
  Fd listener_;
  std::string port_;
};

constexpr int kTarpitMessages = 40;     // more than the coordinator has outgoing workers
constexpr Seconds kMaxDeliveryTime(9);  // less than the time-out of one exchange

TEST_F(SupervisorAttacks, ManyPathsOfATarpitUseOneThread) {
  const Tarpit tarpit;
  const std::string key = SigningKey::make().public_key();
  std::string lines;
  for (int i = 0; i < kTarpitMessages; ++i) {
    Message message = make_valid_message(static_cast<Id>(1000 + i));
    message.target_address = tarpit.url(1, '/' + std::to_string(i));
    message.target_key = key;
    message = sign_with(message, bob_.load_key("bob"));
    const std::string id = std::to_string(100 + i);
    bob_.cli({"HSET", "runner:" + id, "id", id, "address", message.target_address, "pubkey", key});
    std::vector<std::string> arguments{"HSET", redis_key(message)};
    for (const auto& [name, value] : encode(message)) arguments.insert(arguments.end(), {name, value});
    bob_.cli(arguments);
    lines += "LPUSH msg_out " + redis_key(message) + '\n';
  }
  bob_.cli({}, lines);
  ASSERT_TRUE(eventually([&] { return bob_.read_field("message:12:1039", "transport_status") == "queued"; }));
  const auto start_time = std::chrono::steady_clock::now();
  expect_valid_message_is_delivered();
  EXPECT_LT(Seconds(std::chrono::steady_clock::now() - start_time).count(), kMaxDeliveryTime.count());
}

// The sender chooses the address for answers, here another host for each message.
TEST_F(SupervisorAttacks, AnswersOfOneSignerDoNotUseAllThreads) {
  const Tarpit tarpit;
  ASSERT_EQ(alice_({"actor", "create", "--id", "7", "--key", alice_.make_key("mallory")}).code, 0);
  ASSERT_EQ(alice_({"context", "grant", "9", "--submitter", "7"}).code, 0);
  for (int i = 0; i < kTarpitMessages; ++i) {
    alice_.redis.cli(0, {"HSET", "actor:7", "address", json::array({tarpit.url(2 + i)}).dump()});
    Message message = make_valid_message(static_cast<Id>(1000 + i));
    message.job.clear();
    message.message_type = MessageType::chat;
    message.message = "hello";
    ASSERT_EQ(send_and_get_rejection(alice_, make_request(sign_with(message, alice_.load_key("mallory")))), "");
  }
  const auto start_time = std::chrono::steady_clock::now();
  expect_valid_message_is_delivered();
  EXPECT_LT(Seconds(std::chrono::steady_clock::now() - start_time).count(), kMaxDeliveryTime.count());
}

// A client that can write messages can compute the message id of a flow's remote node and write that record first.
TEST_F(SupervisorAttacks, RemoteNodeIsSentAsItsCoordinatorSignedIt) {
  ASSERT_EQ(alice_({"actor", "create", "--id", "15", "--key", tenants_.bobs_supervisor, "--address", bob_.url()}).code,
            0);
  ASSERT_EQ(alice_({"context", "grant", "9", "--submitter", "15"}).code, 0);
  bob_.cli({"HSET", "runner:50", "target_context", "9"});
  std::vector<std::string> planted_keys;
  for (const std::string caller : {"1", "12"}) {
    for (int job = 1; job < 4; ++job) {
      const std::string name = "7 job:" + caller + ':' + std::to_string(job) + " 1";
      const std::string id = std::to_string(std::stoul(sha256_hex(name).substr(0, 8), nullptr, 16));
      planted_keys.push_back("message:" + caller + ':' + id);
      bob_.cli({"HSET", planted_keys.back(), "id", id, "caller_id", caller, "context_id", "7", "target_context", "9",
                "target_address", "http://127.0.0.1:9", "job",
                R"([{"id":1,"script":"result = {'n': 'planted'}","script_type":"python"}])"});
    }
  }
  const json flow{
      {"name", "remote"},
      {"jobs",
       {{"remote", {{"script", "result = {'n': '7'}"}, {"type", "python"}, {"supervisor_url", alice_.url()}}}}}};
  ASSERT_EQ(bob_({"flow", "start", bob_.folder.write("flow.json", flow.dump()), "--json"}).code, 0);
  const std::string key = bob_.find_keys("flow:*").at(0);
  EXPECT_TRUE(bob_.wait_for_value(key, "status", "finished")) << bob_.read_field(key, "error");
  EXPECT_NE(bob_.read_field(key, "result").find("\"7\""), std::string::npos) << bob_.read_field(key, "result");
  for (const std::string& planted_key : planted_keys)
    EXPECT_EQ(bob_.read_field(planted_key, "target_address"), "http://127.0.0.1:9");
}

// A client that can write messages can also write the end of a remote node into the message's record. The coordinator
// does not read the end from there.
TEST_F(SupervisorAttacks, EndOfARemoteNodeIsNotReadFromItsRecord) {
  ASSERT_EQ(alice_({"actor", "create", "--id", "15", "--key", tenants_.bobs_supervisor, "--address", bob_.url()}).code,
            0);
  ASSERT_EQ(alice_({"context", "grant", "9", "--submitter", "15"}).code, 0);
  bob_.cli({"HSET", "runner:50", "target_context", "9"});
  const json flow{{"name", "remote"},
                  {"jobs",
                   {{"remote",
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
  EXPECT_TRUE(bob_.wait_for_value(key, "status", "finished")) << bob_.read_field(key, "error");
  EXPECT_NE(bob_.read_field(key, "result").find("\"7\""), std::string::npos) << bob_.read_field(key, "result");
}

// Idle connections after one request, connections with unfinished requests, and 2,000 forged requests per second.
TEST_F(SupervisorAttacks, FloodDelaysNoOther) {
  std::vector<std::unique_ptr<HttpConnection>> open_connections;
  const std::string forged_request = [&] {
    Message message = make_valid_message(1);
    message.job[0].script = "forged";
    return make_request(message);
  }();
  for (int i = 0; i < 100; ++i) {
    open_connections.push_back(std::make_unique<HttpConnection>(alice_.port));
    if (i % 2 == 0) {
      open_connections.back()->post("/supervisor", forged_request);
    } else {
      open_connections.back()->send("POST /supervisor HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{");
    }
  }
  expect_valid_message_is_delivered();
  std::atomic<bool> stop{false};
  std::atomic<int> sent_requests{0}, denied_requests{0};
  std::vector<std::thread> flood_threads;
  constexpr int kThreads = 8, kRequestsPerThread = 2000 / kThreads;
  const auto start_time = std::chrono::steady_clock::now();
  for (int i = 0; i < kThreads; ++i) {
    flood_threads.emplace_back([&] {
      auto connection = std::make_unique<HttpConnection>(alice_.port);
      for (int n = 0; !stop; ++n) {
        std::this_thread::sleep_until(start_time + std::chrono::microseconds(1000000LL * n / kRequestsPerThread));
        const auto reply = connection->post("/supervisor", forged_request);
        ++sent_requests;
        if (reply.status == 200 && get_rejection(reply).starts_with("denied")) ++denied_requests;
        if (reply.status != 200) connection = std::make_unique<HttpConnection>(alice_.port);
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const auto delivery_start = std::chrono::steady_clock::now();
  expect_valid_message_is_delivered();
  const Seconds delivery_time = std::chrono::steady_clock::now() - delivery_start;
  const auto call_start = std::chrono::steady_clock::now();
  EXPECT_EQ(get_rejection(HttpConnection(alice_.port).post("/", R"({"jsonrpc":"2.0","id":1,"method":"system.ping"})"))
                .substr(0, 6),
            "denied")
      << "a call without a token must be denied";
  HttpConnection health_connection(alice_.port);
  EXPECT_TRUE(health_connection.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_EQ(health_connection.read().status, 200);
  const Seconds call_time = std::chrono::steady_clock::now() - call_start;
  std::this_thread::sleep_for(std::chrono::seconds(1));
  stop = true;
  for (std::thread& thread : flood_threads) thread.join();
  const Seconds flood_time = std::chrono::steady_clock::now() - start_time;
  std::printf(
      "flood: %.0f requests per second, a valid message was delivered in %.2f s, calls were answered in %.2f s\n",
      sent_requests / flood_time.count(), delivery_time.count(), call_time.count());
  EXPECT_GT(denied_requests, 100);
  EXPECT_LE(std::stoi(alice_.cli({"XLEN", "mj:refusals"})), 3)
      << "refusals of unknown signers are recorded once per minute";
  EXPECT_TRUE(alice_.find_keys("message:5:1").size() <= 1);
}

}  // namespace
}  // namespace mycojobs::test
