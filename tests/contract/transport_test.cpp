// One suite for all transports between supervisors: local, http, mycelium.
//
// The Mycelium nodes are those of tests/support/mycelium_node.py. With MYCELIUM_URL in the environment, real nodes are
// used. The value is the API address of one node, used for both ends, or of two nodes, separated by a comma, the
// requester first:
//
//   MYCELIUM_URL=http://127.0.0.1:8989,http://10.0.0.2:8989 build/bin/contract_tests --gtest_filter='*Mycelium/*'
//
// Tests that restart a node are skipped with real nodes.
#include "messaging/transport/transport.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "api/http/http_server.h"
#include "base/log.h"
#include "messaging/transport/transports.h"
#include "model/codec.h"
#include "net/json_rpc_client.h"
#include "support/mycelium_mesh.h"
#include "text/base64.h"
#include "text/json.h"

namespace mycojobs {
namespace {

using nlohmann::json;
using test::eventually;
using test::MyceliumMesh;

constexpr std::uint32_t kLong = 60'000, kShort = 700;  // ms

std::string echo(std::string_view request) {
  const auto call = parse_json(request);
  if (!call || !call->is_object()) return "no request";
  return dump_json({{"jsonrpc", "2.0"}, {"id", (*call)["id"]}, {"result", (*call)["params"]}});
}

// The remote supervisor. Thread-safe.
class Other {
 public:
  std::string operator()(std::string_view request) {
    RequestHandler answer;
    {
      std::lock_guard lock(mutex_);
      const auto call = parse_json(request);
      seen_.push_back(call && call->is_object() ? (*call)["params"] : json());
      answer = answer_;
    }
    return answer(request);
  }
  void answers(RequestHandler answer) {
    std::lock_guard lock(mutex_);
    answer_ = std::move(answer);
  }
  std::vector<json> seen() {
    std::lock_guard lock(mutex_);
    return seen_;
  }

 private:
  std::mutex mutex_;
  std::vector<json> seen_;  // parameters of each request
  RequestHandler answer_ = echo;
};

// A transport to the remote supervisor.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual std::unique_ptr<Transport> transport() = 0;
  virtual std::string address() = 0;
  // For transports that leave the process:
  virtual std::string nowhere() { return ""; }                        // an address without a supervisor
  virtual bool restart(const std::function<void()>& /*meanwhile*/) {  // restarts the carrier; false: not supported
    return false;
  }
};

class LocalWire final : public Wire {
 public:
  explicit LocalWire(Other& other) : other_(other) {}
  std::unique_ptr<Transport> transport() override {
    return std::make_unique<LocalTransport>([this](std::string_view request) { return other_(request); });
  }
  std::string address() override { return ""; }

 private:
  Other& other_;
};

class HttpWire final : public Wire {
 public:
  explicit HttpWire(Other& other) : other_(other) { start("127.0.0.1:0"); }
  std::unique_ptr<Transport> transport() override {
    return std::make_unique<HttpTransport>(*Networks::parse({"loopback"}));
  }
  std::string address() override { return address_; }
  std::string nowhere() override { return "http://127.0.0.1:1"; }
  bool restart(const std::function<void()>& meanwhile) override {
    server_.reset();
    meanwhile();
    start(address_.substr(7));
    return true;
  }

 private:
  void start(const std::string& listen) {
    auto server = api::HttpServer::start(listen, {},
                                         {{"POST", kSupervisorPath,
                                           [this](const api::HttpRequest& from) {
                                             return api::HttpReply{200, "application/json", other_(from.body), {}, {}};
                                           }}},
                                         [](const api::HttpRequest&) {
                                           return api::Admission{{}, api::ConnectionClass::token};
                                         });
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
    address_ = "http://127.0.0.1:" + std::to_string(server_->port());
  }

  Other& other_;
  std::unique_ptr<api::HttpServer> server_;
  std::string address_;
};

class MyceliumWire final : public Wire {
 public:
  explicit MyceliumWire(Other& other) {
    const char* real = std::getenv("MYCELIUM_URL");
    if (real != nullptr) {
      const std::string urls = real;
      here_ = urls.substr(0, urls.find(','));
      there_ = urls.substr(urls.find(',') + 1);
    } else {
      mesh_.emplace(2);
      here_ = (*mesh_)[0].rest;
      there_ = (*mesh_)[1].rest;
    }
    const auto key = MyceliumNode(there_).key(kLong);
    EXPECT_TRUE(key) << key.error().message;
    address_ = key.value_or("");
    listener_.emplace(there_, [&other](std::string_view request) { return other(request); });
  }
  std::unique_ptr<Transport> transport() override { return std::make_unique<MyceliumTransport>(here_); }
  std::string address() override { return address_; }
  std::string nowhere() override { return std::string(63, '0') + "7"; }
  bool restart(const std::function<void()>& meanwhile) override {
    if (!mesh_) return false;
    mesh_->control(0, "stop");
    meanwhile();
    mesh_->control(0, "start");
    return true;
  }

 private:
  std::optional<MyceliumMesh> mesh_;
  std::string here_, there_, address_;
  std::optional<MyceliumListener> listener_;
};

struct Kind {
  const char* name;
  std::unique_ptr<Wire> (*make)(Other&);
};
template <class W>
Kind kind(const char* name) {
  return {name, [](Other& other) -> std::unique_ptr<Wire> { return std::make_unique<W>(other); }};
}
void PrintTo(const Kind& each, std::ostream* out) { *out << each.name; }
const auto kNameOfKind = [](const auto& info) { return std::string(info.param.name); };

class TransportSuite : public ::testing::TestWithParam<Kind> {
 protected:
  Result<json> ask(const json& parameters, std::uint32_t timeout_ms = kLong) {
    return ask(*transport_, parameters, timeout_ms);
  }
  Result<json> ask(Transport& by, const json& parameters, std::uint32_t timeout_ms = kLong) {
    return by.exchange(wire_->address(), rpc_request("m", parameters), timeout_ms).and_then(read_rpc_answer);
  }
  Code error_code_name(const Result<json>& result) { return result ? Code::conflict : result.error().code; }

  Other other_;
  std::unique_ptr<Wire> wire_ = GetParam().make(other_);
  std::unique_ptr<Transport> transport_ = wire_->transport();
};
class AnyTransport : public TransportSuite {};
class RemoteTransport : public TransportSuite {};
INSTANTIATE_TEST_SUITE_P(Local, AnyTransport, ::testing::Values(kind<LocalWire>("local")), kNameOfKind);
INSTANTIATE_TEST_SUITE_P(Http, AnyTransport, ::testing::Values(kind<HttpWire>("http")), kNameOfKind);
INSTANTIATE_TEST_SUITE_P(Mycelium, AnyTransport, ::testing::Values(kind<MyceliumWire>("mycelium")), kNameOfKind);
INSTANTIATE_TEST_SUITE_P(Http, RemoteTransport, ::testing::Values(kind<HttpWire>("http")), kNameOfKind);
INSTANTIATE_TEST_SUITE_P(Mycelium, RemoteTransport, ::testing::Values(kind<MyceliumWire>("mycelium")), kNameOfKind);

TEST_P(AnyTransport, CarriesARequestAndItsAnswer) {
  EXPECT_EQ(transport_->name(), GetParam().name);
  EXPECT_TRUE(transport_->is_address(wire_->address()));
  EXPECT_FALSE(transport_->is_address("redis://127.0.0.1:6379"));
  for (const json& id : {json(1), json("mine"), json(4294967296)}) {
    const json request = {{"jsonrpc", "2.0"}, {"id", id}, {"method", "m"}, {"params", {{"text", "gr\u00fc\u00df\n"}}}};
    const auto answer = transport_->exchange(wire_->address(), dump_json(request), kLong);
    ASSERT_TRUE(answer) << answer.error().message;
    const auto read = parse_json(*answer);
    ASSERT_TRUE(read) << *answer;
    EXPECT_EQ((*read)["id"], id);
    EXPECT_EQ((*read)["result"], request["params"]);
  }
  EXPECT_EQ(other_.seen().size(), 3U);
}

TEST_P(AnyTransport, CarriesTheErrorOfThePeer) {
  other_.answers([](std::string_view request) {
    return dump_json({{"jsonrpc", "2.0"},
                      {"id", (*parse_json(request))["id"]},
                      {"error", {{"code", -32000}, {"message", "not yours"}, {"data", {{"word", "denied"}}}}}});
  });
  const auto answer = ask({});
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::denied);
  EXPECT_EQ(answer.error().message, "not yours");
}

TEST_P(AnyTransport, CarriesMessagesUpToTheLimit) {
  const auto request_of = [](std::size_t bytes) { return json(std::string(bytes - rpc_request("m", "").size(), 'x')); };
  const json largest = request_of(kMaxRequestBytes);
  const auto answer = ask(largest);
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(*answer, largest);
  const auto refused = ask(request_of(kMaxRequestBytes + 1));
  ASSERT_EQ(error_code_name(refused), Code::too_large);
  EXPECT_NE(refused.error().message.find("1048576"), std::string::npos) << refused.error().message;
  EXPECT_EQ(other_.seen().size(), 1U);
}

TEST_P(AnyTransport, AnswersHaveTheSameLimit) {
  std::size_t bytes = kMaxRequestBytes;
  other_.answers([&bytes](std::string_view request) {
    const auto answer = [](const json& id, std::size_t length) {
      return dump_json({{"jsonrpc", "2.0"}, {"id", id}, {"result", std::string(length, 'y')}});
    };
    return answer((*parse_json(request))["id"], bytes - answer(1, 0).size());
  });
  const auto answer = ask({});
  ASSERT_TRUE(answer) << answer.error().message;
  bytes = kMaxRequestBytes + 1;
  EXPECT_EQ(error_code_name(ask({})), Code::too_large);
  bytes = kMaxRequestBytes * 2;
  EXPECT_EQ(error_code_name(ask({})), Code::too_large);
}

TEST_P(AnyTransport, ConcurrentRequestsGetTheirOwnAnswers) {
  const auto speak = [this](int who) {
    const auto transport = wire_->transport();
    for (int i = 0; i < 20; ++i) {
      const auto answer = ask(*transport, {{"who", who}, {"i", i}});
      ASSERT_TRUE(answer) << answer.error().message;
      EXPECT_EQ(*answer, json({{"who", who}, {"i", i}}));
    }
  };
  std::thread one(speak, 1), two(speak, 2);
  one.join();
  two.join();
  EXPECT_EQ(other_.seen().size(), 40U);
}

TEST_P(AnyTransport, RetransmissionArrivesAgain) {
  EXPECT_TRUE(ask({{"n", 1}}));
  EXPECT_TRUE(ask({{"n", 1}}));
  EXPECT_EQ(other_.seen(), (std::vector<json>{{{"n", 1}}, {{"n", 1}}}));
}

TEST_P(AnyTransport, GarbageIsNoResult) {
  for (const char* garbage : {"", "nonsense", "[1]", "17", "{\"id\":1}", "{\"result\"", "\xff\xfe"}) {
    other_.answers([garbage](std::string_view) { return std::string(garbage); });
    ASSERT_EQ(error_code_name(ask({})), Code::internal) << garbage;
  }
  other_.answers(echo);
  EXPECT_TRUE(ask({}));
}

TEST_P(RemoteTransport, RejectsAnAddressOfAnotherKind) {
  for (const char* address : {"", "ftp://127.0.0.1/", "redis://127.0.0.1"}) {
    EXPECT_FALSE(transport_->is_address(address));
    const auto answer = transport_->exchange(address, rpc_request("m", {}), kLong);
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, Code::invalid) << answer.error().message;
  }
}

TEST_P(RemoteTransport, MissingPeerIsUnavailableInTime) {
  const auto start_time = std::chrono::steady_clock::now();
  const auto answer = transport_->exchange(wire_->nowhere(), rpc_request("m", {}), kShort);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::unavailable) << answer.error().message;
  EXPECT_NE(answer.error().message.find(wire_->nowhere()), std::string::npos) << answer.error().message;
  EXPECT_LT(std::chrono::steady_clock::now() - start_time, std::chrono::seconds(30)) << "of 300 that a node tries";
  EXPECT_TRUE(ask({})) << "others are reached";
}

TEST_P(RemoteTransport, LateAnswerIsNotMatchedToTheNextRequest) {
  std::mutex mutex;
  std::condition_variable changed;
  bool go = false;
  other_.answers([&](std::string_view request) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return go; });
    return echo(request);
  });
  EXPECT_EQ(error_code_name(ask({{"n", 1}}, kShort)), Code::unavailable);
  ASSERT_TRUE(eventually([this] { return !other_.seen().empty(); })) << "it had arrived";
  {
    std::lock_guard lock(mutex);
    go = true;
  }
  changed.notify_all();
  const auto answer = ask({{"n", 2}});
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(*answer, json({{"n", 2}}));
  EXPECT_EQ(other_.seen().size(), 2U);
}

TEST_P(RemoteTransport, ResumesAfterACarrierRestart) {
  ASSERT_TRUE(ask({}));
  const bool done = wire_->restart([this] { EXPECT_EQ(error_code_name(ask({}, kShort)), Code::unavailable); });
  if (!done) GTEST_SKIP() << "MYCELIUM_URL names a real node, which a test does not restart";
  EXPECT_TRUE(eventually([this] { return ask({}).has_value(); }));
}

// --- behaviour of Mycelium only ---

class Mycelium : public ::testing::Test {
 protected:
  void listen() {
    listener_.emplace(mesh_[1].rest, [this](std::string_view request) { return other_(request); });
  }
  Result<json> ask(MyceliumTransport& by, const json& parameters, std::uint32_t timeout_ms = kLong) {
    return by.exchange(mesh_[1].key, rpc_request("m", parameters), timeout_ms).and_then(read_rpc_answer);
  }

  MyceliumMesh mesh_{3};
  Other other_;
  std::optional<MyceliumListener> listener_;
  MyceliumTransport transport_{mesh_[0].rest};
};

TEST_F(Mycelium, AddressesAreKeysOrIpsWithOptionalScheme) {
  listen();
  std::string upper = mesh_[1].key;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  for (const std::string& address : {mesh_[1].key, upper, mesh_[1].ip}) {
    for (const std::string& text : {address, "mycelium://" + address}) {
      EXPECT_TRUE(transport_.is_address(text));
      const auto answer = transport_.exchange(text, rpc_request("m", {}), kLong);
      EXPECT_TRUE(answer) << text << ": " << answer.error().message;
    }
  }
  IpAddress beside = *parse_ip(mesh_[1].ip);
  beside.bytes[15] ^= 1U;
  const auto answer = transport_.exchange(to_text(beside), rpc_request("m", {}), kLong);
  EXPECT_TRUE(answer) << "another address of its range: " << answer.error().message;
  for (const std::string& text :
       {mesh_[1].key.substr(1), mesh_[1].key + "0", std::string("300::1"), std::string("600::"),
        std::string("127.0.0.1"), "mycelium://mycelium://" + mesh_[1].key}) {
    EXPECT_FALSE(transport_.is_address(text)) << text;
  }
}

TEST_F(Mycelium, BothNodeApisAreSupported) {
  MyceliumListener listener(mesh_[1].rpc, [this](std::string_view request) { return other_(request); });
  MyceliumTransport by_rpc(mesh_[0].rpc);
  for (MyceliumTransport* each : {&by_rpc, &transport_}) {
    const auto answer = ask(*each, {{"n", 1}});
    EXPECT_TRUE(answer) << answer.error().message;
  }
  mesh_.control(1, "offline");
  EXPECT_FALSE(ask(by_rpc, {}, kShort));
  std::string why;  // the error of an unresponsive node can be reported first
  EXPECT_TRUE(eventually([&] {
    const auto blocked_reply = ask(by_rpc, {}, kShort);
    why = blocked_reply ? "it is answered" : blocked_reply.error().message;
    return why.find("earlier request") != std::string::npos;
  })) << why;
}

TEST_F(Mycelium, NonNodeIsReportedWithTheRemedy) {
  Other other;
  HttpWire server(other);
  MyceliumTransport transport(server.address());
  const auto answer = ask(transport, {});
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::internal);
  EXPECT_NE(answer.error().message.find("mycelium.url"), std::string::npos) << answer.error().message;
}

TEST_F(Mycelium, AnswersOfOthersAreIgnoredAndCounted) {
  other_.answers([this](std::string_view request) {
    const std::string id = (*parse_json(request))["id"];
    const std::string topic = id.substr(0, id.rfind(':'));
    const auto answer = [](const std::string& of, const char* what) {
      return dump_json({{"jsonrpc", "2.0"}, {"id", of}, {"result", what}});
    };
    mesh_.forge(0, 2, topic, answer(id, "of another node"));
    mesh_.forge(0, 1, topic, answer(topic + ":77", "to another request"));
    mesh_.forge(0, 1, topic, "garbage");
    mesh_.forge(0, 1, topic, dump_json({{"id", id}, {"method", "m"}}));
    mesh_.forge(0, 1, "supervisor.answer.elsewhere", answer(id, "on another topic"));
    return answer(id, "true");
  });
  listen();
  const auto answer = ask(transport_, {});
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(*answer, "true");
  EXPECT_EQ(transport_.ignored(), 4U);
  const auto by_ip = transport_.exchange(mesh_[1].ip, rpc_request("m", {}), kLong).and_then(read_rpc_answer);
  ASSERT_TRUE(by_ip);
  EXPECT_EQ(*by_ip, "true");
}

TEST_F(Mycelium, NothingIsQueuedForAnUnreachablePeer) {
  listen();
  mesh_.control(1, "offline");
  for (int i = 0; i < 3; ++i) {
    const auto answer = ask(transport_, {{"n", i}}, kShort);
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, Code::unavailable);
  }
  EXPECT_EQ(mesh_.counts(0).pushed, 1U);
  EXPECT_TRUE(other_.seen().empty());
  mesh_.control(1, "online");
  const auto answer = ask(transport_, {{"n", 7}});
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(*answer, json({{"n", 7}}));
  EXPECT_EQ(other_.seen().size(), 2U);
}

TEST_F(Mycelium, RequestIsResentAfterTheNodeGaveUp) {
  MyceliumMesh mesh(2, 1);
  MyceliumTransport transport(mesh[0].rest);
  mesh.control(1, "offline");
  EXPECT_FALSE(transport.exchange(mesh[1].key, rpc_request("m", {}), 300));
  EXPECT_FALSE(transport.exchange(mesh[1].key, rpc_request("m", {}), kShort * 4));
  EXPECT_EQ(mesh.counts(0).pushed, 2U);
}

TEST_F(Mycelium, LostRequestAndLostAnswerAreHarmless) {
  listen();
  mesh_.control(1, "lose");
  const auto lost = ask(transport_, {{"n", 1}}, kShort);
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, Code::unavailable);
  EXPECT_TRUE(other_.seen().empty());
  mesh_.control(0, "lose");
  EXPECT_FALSE(ask(transport_, {{"n", 1}}, kShort * 2));
  ASSERT_TRUE(eventually([this] { return other_.seen().size() == 1; }));
  EXPECT_TRUE(ask(transport_, {{"n", 1}}));
  EXPECT_EQ(other_.seen().size(), 2U);
}

TEST_F(Mycelium, DuplicateRequestIsAnsweredTwiceAndCountsOnce) {
  listen();
  mesh_.control(1, "double");
  EXPECT_TRUE(ask(transport_, {{"n", 1}}));
  ASSERT_TRUE(eventually([this] { return listener_->answered() == 2; }));
  ASSERT_TRUE(eventually([this] { return mesh_.counts(0).inbox == 1; }));
  EXPECT_EQ(*ask(transport_, {{"n", 2}}), json({{"n", 2}}));
  EXPECT_EQ(transport_.ignored(), 1U);
}

TEST_F(Mycelium, RequestIsResentToANodeThatForgotIt) {
  listen();
  mesh_.control(1, "offline");
  Result<json> answer = json();
  std::thread asks([&] { answer = ask(transport_, {{"n", 1}}); });
  EXPECT_TRUE(eventually([this] { return mesh_.counts(0).pushed == 1; }));
  mesh_.control(0, "stop");
  mesh_.control(0, "start");
  mesh_.control(1, "online");
  asks.join();
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(other_.seen().size(), 1U);
  EXPECT_EQ(mesh_.counts(0).pushed, 2U);
}

TEST_F(Mycelium, ClientThatWaitsForAReplyReceivesOne) {
  listen();
  HttpClient http;
  HttpPost post;
  post.url = mesh_[0].rest + "/api/v1/messages?reply_timeout=60";
  post.timeout_ms = kLong;
  post.body = dump_json({{"dst", {{"pk", mesh_[1].key}}},
                         {"topic", "c3VwZXJ2aXNvci5ycGM="},
                         {"payload", encode_base64(rpc_request("m", {{"n", 1}}))}});
  const auto reply = http.post(post);
  ASSERT_TRUE(reply) << reply.error().message;
  ASSERT_EQ(reply->status, 200) << reply->body;
  const auto payload = decode_base64((*parse_json(reply->body))["payload"].get<std::string>());
  EXPECT_EQ(*read_rpc_answer(*payload), json({{"n", 1}}));
}

TEST_F(Mycelium, ListenerNeverAnswersAnAnswer) {
  listen();
  mesh_.forge(1, 0, std::string(kSupervisorTopic), dump_json({{"jsonrpc", "2.0"}, {"id", 1}, {"result", 7}}));
  mesh_.forge(1, 0, std::string(kSupervisorTopic), dump_json({{"id", nullptr}, {"error", json::object()}}));
  EXPECT_TRUE(eventually([this] { return listener_->ignored() == 2; }));
  EXPECT_EQ(mesh_.counts(1).pushed, 0U);
  EXPECT_TRUE(other_.seen().empty());
  mesh_.forge(1, 0, std::string(kSupervisorTopic), "garbage");
  EXPECT_TRUE(eventually([this] { return mesh_.counts(1).pushed == 1; })) << "but garbage: by an error";
}

TEST_F(Mycelium, ListenerReportsOutageAndRecoveryOnce) {
  ::testing::internal::CaptureStderr();
  init_log(LogLevel::info, LogFormat::json);
  mesh_.control(1, "stop");
  listen();
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));  // three polls
  EXPECT_FALSE(listener_->connected());
  mesh_.control(1, "start");
  EXPECT_TRUE(eventually([this] { return listener_->connected(); }));
  EXPECT_TRUE(ask(transport_, {}));
  listener_.reset();
  const std::string output = ::testing::internal::GetCapturedStderr();
  const auto count = [&output](const std::string& what) {
    std::size_t found = 0;
    for (auto at = output.find(what); at != std::string::npos; at = output.find(what, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("\"warn"), 1U) << output;
  EXPECT_EQ(count("is available again"), 1U) << output;
  EXPECT_EQ(count(mesh_[1].key), 1U) << output;
}

TEST_F(Mycelium, MessageOverTheNodesLimitIsTooLarge) {
  MyceliumNode node(mesh_[0].rest);
  const auto sent = node.push({mesh_[1].key, {}}, "t", std::string(1600 << 10, 'x'), kLong);
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code, Code::too_large);
  EXPECT_NE(sent.error().message.find("2 MiB"), std::string::npos) << sent.error().message;
}

// The test nodes must have the pitfalls of real nodes; otherwise the tests above prove nothing.
TEST_F(Mycelium, FakeNodesHaveTheQuirksOfRealNodes) {
  HttpClient http;
  const auto get = [&](std::size_t node, const std::string& path) {
    HttpPost call;
    call.url = mesh_[node].rest + "/api/v1" + path;
    return http.get(call)->status;
  };
  MyceliumNode here(mesh_[0].rest), there(mesh_[1].rest);
  EXPECT_EQ(get(0, "/messages?timeout=1"), 204);
  EXPECT_GE(mesh_.counts(0).longest_hold_s, 1.0) << "a pop that waits holds the lock";
  mesh_.forge(1, 0, "topic", "x");
  EXPECT_EQ(get(1, "/messages?topic=dG9w"), 204) << "a filter takes the whole topic";
  EXPECT_EQ(get(1, "/messages?peek=true&topic=dG9waWM%3D"), 200);
  EXPECT_EQ(get(1, "/messages?peek=true&topic=dG9waWM%3D"), 200) << "peek removes nothing";
  mesh_.control(1, "stop");
  mesh_.control(1, "start");
  EXPECT_EQ(mesh_.counts(1).inbox, 0U) << "the inbox is memory";
  const auto sent = here.push({mesh_[1].key, {}}, "topic", "x", kLong);
  ASSERT_TRUE(sent);
  ASSERT_TRUE(eventually([&] { return mesh_.counts(1).inbox == 1; }));
  const auto message = there.pop("topic", kLong);
  ASSERT_TRUE(message && *message);
  EXPECT_EQ(here.delivery(*sent, kLong)->state, MyceliumNode::State::received);
  HttpPost status;
  status.url = mesh_[0].rest + "/api/v1/messages/status/" + *sent;
  EXPECT_EQ((*parse_json(http.get(status)->body))["state"], "read") << "a pop by topic tells the sender";
  ASSERT_TRUE(there.reply(**message, "late", kLong));
  ASSERT_TRUE(eventually([&] { return mesh_.counts(0).inbox == 1; })) << "a reply for which nobody waits";
  EXPECT_EQ(get(0, "/messages?topic=dG9waWM%3D"), 204) << "has no topic";
}

// Version 0.7.10 drops a last chunk of 1 to 249 bytes, so such a message never arrives.
TEST_F(Mycelium, NodeNeverDeliversAShortLastChunk) {
  HttpClient http;
  const auto push = [&](std::size_t bytes) -> std::string {
    HttpPost post;
    post.url = mesh_[0].rest + "/api/v1/messages";
    post.body = dump_json({{"dst", {{"pk", mesh_[1].key}}}, {"payload", encode_base64(std::string(bytes, 'x'))}});
    return (*parse_json(http.post(post)->body))["id"];
  };
  MyceliumNode here(mesh_[0].rest);
  for (const std::size_t bytes : {1301U, 1549U, 2601U, 131301U}) {
    const std::string id = push(bytes);
    ASSERT_TRUE(eventually([&] { return here.delivery(id, kLong)->state == MyceliumNode::State::sending; })) << bytes;
    EXPECT_EQ(here.delivery(id, kLong)->acked, bytes / 1300) << bytes;
  }
  for (const std::size_t bytes : {1U, 249U, 1300U, 1550U, 2600U, 131550U}) {
    const std::string id = push(bytes);
    ASSERT_TRUE(eventually([&] { return here.delivery(id, kLong)->state == MyceliumNode::State::received; })) << bytes;
  }
  EXPECT_EQ(mesh_.counts(0).sending, 4U);
  EXPECT_EQ(mesh_.counts(1).inbox, 6U);
}

TEST(MyceliumPadding, LastChunkHasNeverOneTo249Bytes) {
  for (std::size_t bytes = 0; bytes < 6000; ++bytes) {
    const std::string text(bytes, 'x'), padded = pad_payload(text);
    const std::size_t last = padded.size() % 1300;
    ASSERT_TRUE(padded.size() <= 1300 || last == 0 || last >= 250) << bytes;
    ASSERT_LE(padded.size(), bytes + 249);
    ASSERT_EQ(padded.substr(0, bytes), text);
    ASSERT_EQ(padded.find_first_not_of(' ', bytes), std::string::npos);
  }
}

TEST_F(Mycelium, RequestsAndAnswersOfAnyLengthArrive) {
  listen();
  for (std::size_t bytes = 1200; bytes < 3000; bytes += 60) {
    const json sent = std::string(bytes, 'x');
    const auto answer = ask(transport_, sent);
    ASSERT_TRUE(answer) << bytes << ": " << answer.error().message;
    EXPECT_EQ(*answer, sent);
  }
  EXPECT_EQ(mesh_.counts(0).sending + mesh_.counts(1).sending, 0U);
}

TEST_F(Mycelium, RepliesOfAnyLengthArrive) {
  listen();
  HttpClient http;
  for (std::size_t bytes = 1200; bytes < 1600; bytes += 60) {
    HttpPost post;
    post.url = mesh_[0].rest + "/api/v1/messages?reply_timeout=60";
    post.timeout_ms = kLong;
    const std::string request = pad_payload(rpc_request("m", std::string(bytes, 'x')));
    post.body = dump_json(
        {{"dst", {{"pk", mesh_[1].key}}}, {"topic", "c3VwZXJ2aXNvci5ycGM="}, {"payload", encode_base64(request)}});
    const auto reply = http.post(post);
    ASSERT_TRUE(reply && reply->status == 200) << bytes;
  }
}

TEST_F(Mycelium, StuckRequestDoesNotBlockOthers) {
  listen();
  for (int i = 0; i < 3; ++i) {
    mesh_.control(1, "stick");
    const auto stuck = ask(transport_, {{"stuck", i}}, kShort * 5);
    ASSERT_FALSE(stuck);
    EXPECT_EQ(stuck.error().code, Code::unavailable);
    EXPECT_TRUE(transport_.is_peer_reachable()) << stuck.error().message;
    const auto answer = ask(transport_, {{"n", i}});
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(*answer, json({{"n", i}}));
  }
  EXPECT_EQ(mesh_.counts(0).sending, 3U);
  mesh_.control(1, "stick");
  EXPECT_FALSE(ask(transport_, {{"stuck", 3}}, kShort * 5));
  const auto answer = ask(transport_, {{"n", 3}}, kShort * 5);
  ASSERT_FALSE(answer) << "four are stuck, and the node keeps each of them for 300 s";
  EXPECT_FALSE(transport_.is_peer_reachable());
}

// 400 requests of one node are queued before the request of another.
TEST_F(Mycelium, BusyPeerDoesNotBlockOthers) {
  static constexpr int kFlood = 400, kEachMs = 20;
  other_.answers([](std::string_view request) {
    std::this_thread::sleep_for(std::chrono::milliseconds(kEachMs));
    return dump_json({{"jsonrpc", "2.0"}, {"id", (*parse_json(request))["id"]}, {"result", true}});
  });
  for (int i = 0; i < kFlood; ++i) mesh_.forge(1, 2, std::string(kSupervisorTopic), rpc_request("m", {{"flood", i}}));
  listen();
  const auto start_time = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) {
    const auto answer = ask(transport_, {{"n", i}});
    ASSERT_TRUE(answer) << answer.error().message;
  }
  const auto took = std::chrono::steady_clock::now() - start_time;
  EXPECT_LT(took, std::chrono::milliseconds(kFlood * kEachMs * 3 / 4)) << "one alone would stand behind all of them";
  EXPECT_GT(listener_->dropped(), 0U) << "and nothing is kept without a limit";
  std::size_t flood = 0;
  for (const json& each : other_.seen()) flood += each.contains("flood") ? 1 : 0;
  EXPECT_GT(flood, 0U) << "it has its turns, too";
}

TEST(MyceliumFairness, EachPeerIsServedInTurnWithItsShare) {
  MyceliumFairQueue turns({.max_peer_messages = 3, .max_peer_bytes = 10000, .max_bytes = 20000});
  const auto message = [](const std::string& from, const std::string& id, std::size_t bytes = 1) {
    return MyceliumMessage{id, {from, {}}, {}, std::string(bytes, 'x')};
  };
  const auto next = [&] {
    const auto found = turns.pop();
    return found ? found->id : "none";
  };
  for (const char* id : {"a1", "a2", "a3"}) EXPECT_TRUE(turns.enqueue(message("a", id)));
  EXPECT_FALSE(turns.enqueue(message("a", "a4"))) << "too many";
  EXPECT_TRUE(turns.enqueue(message("b", "b1")));
  EXPECT_TRUE(turns.enqueue(message("c", "c1")));
  EXPECT_EQ(next(), "a1");
  EXPECT_EQ(next(), "b1");
  EXPECT_TRUE(turns.enqueue(message("b", "b2")));
  EXPECT_EQ(next(), "c1");
  EXPECT_EQ(next(), "a2");
  EXPECT_EQ(next(), "b2");
  EXPECT_EQ(next(), "a3");
  EXPECT_EQ(next(), "none");
  EXPECT_TRUE(turns.enqueue(message("a", "large", 15000))) << "one is taken whatever its size";
  EXPECT_FALSE(turns.enqueue(message("a", "a5"))) << "and no more beside it";
  EXPECT_FALSE(turns.enqueue(message("b", "b3", 9000))) << "who has most makes room, and that is told";
  EXPECT_EQ(next(), "b3");
  EXPECT_EQ(next(), "none");
}

TEST_F(Mycelium, NodeThatSendsToItselfIsServed) {
  MyceliumListener listener(mesh_[0].rest, [this](std::string_view request) { return other_(request); });
  const auto answer = transport_.exchange(mesh_[0].key, rpc_request("m", {{"n", 1}}), kLong).and_then(read_rpc_answer);
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(*answer, json({{"n", 1}}));
}

TEST_F(Mycelium, TransportsAreChosenByAddress) {
  const auto networks = *Networks::parse({"loopback"});
  Transports all([](std::string_view) { return ""; }, networks, mesh_[0].rest);
  const std::map<std::string, std::string> kinds = {{"", "local"},
                                                    {"http://127.0.0.1:3030", "http"},
                                                    {"https://there", "http"},
                                                    {mesh_[1].key, "mycelium"},
                                                    {"mycelium://" + mesh_[1].ip, "mycelium"}};
  for (const auto& [address, name] : kinds) {
    const auto found = all.select(address);
    ASSERT_TRUE(found) << address;
    EXPECT_EQ((*found)->name(), name);
  }
  const auto none = all.select("ftp://there");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::invalid);
  for (const char* part : {"ftp://there", "http://HOST:PORT", "400::/7"})
    EXPECT_NE(none.error().message.find(part), std::string::npos) << none.error().message;
  Transports without([](std::string_view) { return ""; }, networks, "");
  const auto no_node = without.select(mesh_[1].key);
  ASSERT_FALSE(no_node);
  EXPECT_EQ(no_node.error().code, Code::unsupported);
  EXPECT_NE(no_node.error().message.find("mycelium.url"), std::string::npos);
}

}  // namespace
}  // namespace mycojobs
