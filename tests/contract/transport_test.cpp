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

constexpr std::uint32_t kLongTimeoutMs = 60'000, kShortTimeoutMs = 700;  // ms

std::string echo(std::string_view request) {
  const auto call = parse_json(request);
  if (!call || !call->is_object()) return "no request";
  return dump_json({{"jsonrpc", "2.0"}, {"id", (*call)["id"]}, {"result", (*call)["params"]}});
}

// The remote supervisor: records the parameters of each request and answers with a handler of the test. Thread-safe.
class RemoteSupervisor {
 public:
  std::string operator()(std::string_view request) {
    RequestHandler answer;
    {
      std::lock_guard lock(mutex_);
      const auto call = parse_json(request);
      requests_.push_back(call && call->is_object() ? (*call)["params"] : json());
      answer = handler_;
    }
    return answer(request);
  }
  void set_handler(RequestHandler answer) {
    std::lock_guard lock(mutex_);
    handler_ = std::move(answer);
  }
  std::vector<json> requests() {
    std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  std::mutex mutex_;
  std::vector<json> requests_;  // parameters of each request
  RequestHandler handler_ = echo;
};

// The remote end of a transport, which passes requests to the remote supervisor.
class TransportPeer {
 public:
  virtual ~TransportPeer() = default;
  virtual std::unique_ptr<Transport> make_transport() = 0;
  virtual std::string address() = 0;
  // Only for transports that leave the process:
  virtual std::string unreachable_address() { return ""; }  // an address without a supervisor
  // Restarts the server or node and calls the function while it is stopped. Returns false if this is not supported.
  virtual bool restart(const std::function<void()>&) { return false; }
};

class LocalPeer final : public TransportPeer {
 public:
  explicit LocalPeer(RemoteSupervisor& remote) : remote_(remote) {}
  std::unique_ptr<Transport> make_transport() override {
    return std::make_unique<LocalTransport>([this](std::string_view request) { return remote_(request); });
  }
  std::string address() override { return ""; }

 private:
  RemoteSupervisor& remote_;
};

class HttpPeer final : public TransportPeer {
 public:
  explicit HttpPeer(RemoteSupervisor& remote) : remote_(remote) { start("127.0.0.1:0"); }
  std::unique_ptr<Transport> make_transport() override {
    return std::make_unique<HttpTransport>(*Networks::parse({"loopback"}));
  }
  std::string address() override { return address_; }
  std::string unreachable_address() override { return "http://127.0.0.1:1"; }
  bool restart(const std::function<void()>& while_stopped) override {
    server_.reset();
    while_stopped();
    start(address_.substr(7));
    return true;
  }

 private:
  void start(const std::string& listen) {
    auto server = api::HttpServer::start(listen, {},
                                         {{"POST", kSupervisorPath,
                                           [this](const api::HttpRequest& from) {
                                             return api::HttpReply{200, "application/json", remote_(from.body), {}, {}};
                                           }}},
                                         [](const api::HttpRequest&) {
                                           return api::Admission{{}, api::ConnectionClass::token};
                                         });
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
    address_ = "http://127.0.0.1:" + std::to_string(server_->port());
  }

  RemoteSupervisor& remote_;
  std::unique_ptr<api::HttpServer> server_;
  std::string address_;
};

class MyceliumPeer final : public TransportPeer {
 public:
  explicit MyceliumPeer(RemoteSupervisor& remote) {
    const char* real = std::getenv("MYCELIUM_URL");
    if (real != nullptr) {
      const std::string urls = real;
      local_url_ = urls.substr(0, urls.find(','));
      remote_url_ = urls.substr(urls.find(',') + 1);
    } else {
      mesh_.emplace(2);
      local_url_ = (*mesh_)[0].rest_url;
      remote_url_ = (*mesh_)[1].rest_url;
    }
    const auto key = MyceliumNode(remote_url_).key(kLongTimeoutMs);
    EXPECT_TRUE(key) << key.error().message;
    address_ = key.value_or("");
    listener_.emplace(remote_url_, [&remote](std::string_view request) { return remote(request); });
  }
  std::unique_ptr<Transport> make_transport() override { return std::make_unique<MyceliumTransport>(local_url_); }
  std::string address() override { return address_; }
  std::string unreachable_address() override { return std::string(63, '0') + "7"; }
  bool restart(const std::function<void()>& while_stopped) override {
    if (!mesh_) return false;
    mesh_->control(0, "stop");
    while_stopped();
    mesh_->control(0, "start");
    return true;
  }

 private:
  std::optional<MyceliumMesh> mesh_;
  std::string local_url_, remote_url_, address_;
  std::optional<MyceliumListener> listener_;
};

struct TransportCase {
  const char* name;
  std::unique_ptr<TransportPeer> (*make)(RemoteSupervisor&);
};
template <class W>
TransportCase make_case(const char* name) {
  return {name, [](RemoteSupervisor& remote) -> std::unique_ptr<TransportPeer> { return std::make_unique<W>(remote); }};
}
void PrintTo(const TransportCase& test_case, std::ostream* out) { *out << test_case.name; }
const auto kNameOfCase = [](const auto& info) { return std::string(info.param.name); };

class TransportSuite : public ::testing::TestWithParam<TransportCase> {
 protected:
  Result<json> send_request(const json& parameters, std::uint32_t timeout_ms = kLongTimeoutMs) {
    return send_request(*transport_, parameters, timeout_ms);
  }
  Result<json> send_request(Transport& transport, const json& parameters, std::uint32_t timeout_ms = kLongTimeoutMs) {
    return transport.exchange(peer_->address(), encode_rpc_request("m", parameters), timeout_ms)
        .and_then(parse_rpc_answer);
  }
  Code error_code(const Result<json>& result) { return result ? Code::conflict : result.error().code; }

  RemoteSupervisor remote_;
  std::unique_ptr<TransportPeer> peer_ = GetParam().make(remote_);
  std::unique_ptr<Transport> transport_ = peer_->make_transport();
};
class AnyTransport : public TransportSuite {};
class RemoteTransport : public TransportSuite {};
INSTANTIATE_TEST_SUITE_P(Local, AnyTransport, ::testing::Values(make_case<LocalPeer>("local")), kNameOfCase);
INSTANTIATE_TEST_SUITE_P(Http, AnyTransport, ::testing::Values(make_case<HttpPeer>("http")), kNameOfCase);
INSTANTIATE_TEST_SUITE_P(Mycelium, AnyTransport, ::testing::Values(make_case<MyceliumPeer>("mycelium")), kNameOfCase);
INSTANTIATE_TEST_SUITE_P(Http, RemoteTransport, ::testing::Values(make_case<HttpPeer>("http")), kNameOfCase);
INSTANTIATE_TEST_SUITE_P(Mycelium, RemoteTransport, ::testing::Values(make_case<MyceliumPeer>("mycelium")),
                         kNameOfCase);

TEST_P(AnyTransport, CarriesARequestAndItsAnswer) {
  EXPECT_EQ(transport_->name(), GetParam().name);
  EXPECT_TRUE(transport_->is_address(peer_->address()));
  EXPECT_FALSE(transport_->is_address("redis://127.0.0.1:6379"));
  for (const json& id : {json(1), json("mine"), json(4294967296)}) {
    const json request = {{"jsonrpc", "2.0"}, {"id", id}, {"method", "m"}, {"params", {{"text", "gr\u00fc\u00df\n"}}}};
    const auto answer = transport_->exchange(peer_->address(), dump_json(request), kLongTimeoutMs);
    ASSERT_TRUE(answer) << answer.error().message;
    const auto read = parse_json(*answer);
    ASSERT_TRUE(read) << *answer;
    EXPECT_EQ((*read)["id"], id);
    EXPECT_EQ((*read)["result"], request["params"]);
  }
  EXPECT_EQ(remote_.requests().size(), 3U);
}

TEST_P(AnyTransport, CarriesTheErrorOfThePeer) {
  remote_.set_handler([](std::string_view request) {
    return dump_json({{"jsonrpc", "2.0"},
                      {"id", (*parse_json(request))["id"]},
                      {"error", {{"code", -32000}, {"message", "not yours"}, {"data", {{"word", "denied"}}}}}});
  });
  const auto answer = send_request({});
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::denied);
  EXPECT_EQ(answer.error().message, "not yours");
}

TEST_P(AnyTransport, CarriesMessagesUpToTheLimit) {
  const auto make_payload = [](std::size_t bytes) {
    return json(std::string(bytes - encode_rpc_request("m", "").size(), 'x'));
  };
  const json largest = make_payload(kMaxRequestBytes);
  const auto answer = send_request(largest);
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(*answer, largest);
  const auto refused = send_request(make_payload(kMaxRequestBytes + 1));
  ASSERT_EQ(error_code(refused), Code::too_large);
  EXPECT_NE(refused.error().message.find("1048576"), std::string::npos) << refused.error().message;
  EXPECT_EQ(remote_.requests().size(), 1U);
}

TEST_P(AnyTransport, AnswersHaveTheSameLimit) {
  std::size_t bytes = kMaxRequestBytes;
  remote_.set_handler([&bytes](std::string_view request) {
    const auto encode_reply = [](const json& id, std::size_t length) {
      return dump_json({{"jsonrpc", "2.0"}, {"id", id}, {"result", std::string(length, 'y')}});
    };
    return encode_reply((*parse_json(request))["id"], bytes - encode_reply(1, 0).size());
  });
  const auto answer = send_request({});
  ASSERT_TRUE(answer) << answer.error().message;
  bytes = kMaxRequestBytes + 1;
  EXPECT_EQ(error_code(send_request({})), Code::too_large);
  bytes = kMaxRequestBytes * 2;
  EXPECT_EQ(error_code(send_request({})), Code::too_large);
}

TEST_P(AnyTransport, ConcurrentRequestsGetTheirOwnAnswers) {
  const auto send_requests = [this](int sender) {
    const auto transport = peer_->make_transport();
    for (int i = 0; i < 20; ++i) {
      const auto answer = send_request(*transport, {{"who", sender}, {"i", i}});
      ASSERT_TRUE(answer) << answer.error().message;
      EXPECT_EQ(*answer, json({{"who", sender}, {"i", i}}));
    }
  };
  std::thread one(send_requests, 1), two(send_requests, 2);
  one.join();
  two.join();
  EXPECT_EQ(remote_.requests().size(), 40U);
}

TEST_P(AnyTransport, RetransmissionArrivesAgain) {
  EXPECT_TRUE(send_request({{"n", 1}}));
  EXPECT_TRUE(send_request({{"n", 1}}));
  EXPECT_EQ(remote_.requests(), (std::vector<json>{{{"n", 1}}, {{"n", 1}}}));
}

TEST_P(AnyTransport, GarbageIsNoResult) {
  for (const char* garbage : {"", "nonsense", "[1]", "17", "{\"id\":1}", "{\"result\"", "\xff\xfe"}) {
    remote_.set_handler([garbage](std::string_view) { return std::string(garbage); });
    ASSERT_EQ(error_code(send_request({})), Code::internal) << garbage;
  }
  remote_.set_handler(echo);
  EXPECT_TRUE(send_request({}));
}

TEST_P(RemoteTransport, RejectsAnAddressOfAnotherKind) {
  for (const char* address : {"", "ftp://127.0.0.1/", "redis://127.0.0.1"}) {
    EXPECT_FALSE(transport_->is_address(address));
    const auto answer = transport_->exchange(address, encode_rpc_request("m", {}), kLongTimeoutMs);
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, Code::invalid) << answer.error().message;
  }
}

TEST_P(RemoteTransport, MissingPeerIsUnavailableInTime) {
  const auto start_time = std::chrono::steady_clock::now();
  const auto answer = transport_->exchange(peer_->unreachable_address(), encode_rpc_request("m", {}), kShortTimeoutMs);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::unavailable) << answer.error().message;
  EXPECT_NE(answer.error().message.find(peer_->unreachable_address()), std::string::npos) << answer.error().message;
  EXPECT_LT(std::chrono::steady_clock::now() - start_time, std::chrono::seconds(30)) << "a node itself tries for 300 s";
  EXPECT_TRUE(send_request({})) << "other peers must be reachable";
}

TEST_P(RemoteTransport, LateAnswerIsNotMatchedToTheNextRequest) {
  std::mutex mutex;
  std::condition_variable changed;
  bool can_answer = false;
  remote_.set_handler([&](std::string_view request) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return can_answer; });
    return echo(request);
  });
  EXPECT_EQ(error_code(send_request({{"n", 1}}, kShortTimeoutMs)), Code::unavailable);
  ASSERT_TRUE(eventually([this] { return !remote_.requests().empty(); })) << "the request must have arrived";
  {
    std::lock_guard lock(mutex);
    can_answer = true;
  }
  changed.notify_all();
  const auto answer = send_request({{"n", 2}});
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(*answer, json({{"n", 2}}));
  EXPECT_EQ(remote_.requests().size(), 2U);
}

TEST_P(RemoteTransport, ResumesAfterACarrierRestart) {
  ASSERT_TRUE(send_request({}));
  const bool was_restarted =
      peer_->restart([this] { EXPECT_EQ(error_code(send_request({}, kShortTimeoutMs)), Code::unavailable); });
  if (!was_restarted) GTEST_SKIP() << "MYCELIUM_URL names a real node, which a test does not restart";
  EXPECT_TRUE(eventually([this] { return send_request({}).has_value(); }));
}

// --- behaviour of Mycelium only ---

class Mycelium : public ::testing::Test {
 protected:
  void start_listener() {
    listener_.emplace(mesh_[1].rest_url, [this](std::string_view request) { return remote_(request); });
  }
  Result<json> send_request(MyceliumTransport& transport, const json& parameters,
                            std::uint32_t timeout_ms = kLongTimeoutMs) {
    return transport.exchange(mesh_[1].key, encode_rpc_request("m", parameters), timeout_ms).and_then(parse_rpc_answer);
  }

  MyceliumMesh mesh_{3};
  RemoteSupervisor remote_;
  std::optional<MyceliumListener> listener_;
  MyceliumTransport transport_{mesh_[0].rest_url};
};

TEST_F(Mycelium, AddressesAreKeysOrIpsWithOptionalScheme) {
  start_listener();
  std::string upper_case_key = mesh_[1].key;
  for (char& c : upper_case_key) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  for (const std::string& address : {mesh_[1].key, upper_case_key, mesh_[1].ip}) {
    for (const std::string& text : {address, "mycelium://" + address}) {
      EXPECT_TRUE(transport_.is_address(text));
      const auto answer = transport_.exchange(text, encode_rpc_request("m", {}), kLongTimeoutMs);
      EXPECT_TRUE(answer) << text << ": " << answer.error().message;
    }
  }
  IpAddress address_in_same_range = *parse_ip(mesh_[1].ip);
  address_in_same_range.bytes[15] ^= 1U;
  const auto answer = transport_.exchange(to_text(address_in_same_range), encode_rpc_request("m", {}), kLongTimeoutMs);
  EXPECT_TRUE(answer) << "another address in the range of the node: " << answer.error().message;
  for (const std::string& text :
       {mesh_[1].key.substr(1), mesh_[1].key + "0", std::string("300::1"), std::string("600::"),
        std::string("127.0.0.1"), "mycelium://mycelium://" + mesh_[1].key}) {
    EXPECT_FALSE(transport_.is_address(text)) << text;
  }
}

TEST_F(Mycelium, BothNodeApisAreSupported) {
  MyceliumListener listener(mesh_[1].rpc_url, [this](std::string_view request) { return remote_(request); });
  MyceliumTransport by_rpc(mesh_[0].rpc_url);
  for (MyceliumTransport* transport : {&by_rpc, &transport_}) {
    const auto answer = send_request(*transport, {{"n", 1}});
    EXPECT_TRUE(answer) << answer.error().message;
  }
  mesh_.control(1, "offline");
  EXPECT_FALSE(send_request(by_rpc, {}, kShortTimeoutMs));
  std::string error_text;  // the error of an unresponsive node can be reported first
  EXPECT_TRUE(eventually([&] {
    const auto blocked_reply = send_request(by_rpc, {}, kShortTimeoutMs);
    error_text = blocked_reply ? "it is answered" : blocked_reply.error().message;
    return error_text.find("earlier request") != std::string::npos;
  })) << error_text;
}

TEST_F(Mycelium, NonNodeIsReportedWithTheRemedy) {
  RemoteSupervisor remote;
  HttpPeer server(remote);
  MyceliumTransport transport(server.address());
  const auto answer = send_request(transport, {});
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::internal);
  EXPECT_NE(answer.error().message.find("mycelium.url"), std::string::npos) << answer.error().message;
}

TEST_F(Mycelium, AnswersOfOthersAreIgnoredAndCounted) {
  remote_.set_handler([this](std::string_view request) {
    const std::string id = (*parse_json(request))["id"];
    const std::string topic = id.substr(0, id.rfind(':'));
    const auto encode_reply = [](const std::string& request_id, const char* result) {
      return dump_json({{"jsonrpc", "2.0"}, {"id", request_id}, {"result", result}});
    };
    mesh_.forge(0, 2, topic, encode_reply(id, "of another node"));
    mesh_.forge(0, 1, topic, encode_reply(topic + ":77", "to another request"));
    mesh_.forge(0, 1, topic, "garbage");
    mesh_.forge(0, 1, topic, dump_json({{"id", id}, {"method", "m"}}));
    mesh_.forge(0, 1, "supervisor.answer.elsewhere", encode_reply(id, "on another topic"));
    return encode_reply(id, "true");
  });
  start_listener();
  const auto answer = send_request(transport_, {});
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(*answer, "true");
  EXPECT_EQ(transport_.ignored(), 4U);
  const auto by_ip =
      transport_.exchange(mesh_[1].ip, encode_rpc_request("m", {}), kLongTimeoutMs).and_then(parse_rpc_answer);
  ASSERT_TRUE(by_ip);
  EXPECT_EQ(*by_ip, "true");
}

TEST_F(Mycelium, NothingIsQueuedForAnUnreachablePeer) {
  start_listener();
  mesh_.control(1, "offline");
  for (int i = 0; i < 3; ++i) {
    const auto answer = send_request(transport_, {{"n", i}}, kShortTimeoutMs);
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, Code::unavailable);
  }
  EXPECT_EQ(mesh_.counts(0).pushed, 1U);
  EXPECT_TRUE(remote_.requests().empty());
  mesh_.control(1, "online");
  const auto answer = send_request(transport_, {{"n", 7}});
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(*answer, json({{"n", 7}}));
  EXPECT_EQ(remote_.requests().size(), 2U);
}

TEST_F(Mycelium, RequestIsResentAfterTheNodeGaveUp) {
  MyceliumMesh mesh(2, 1);
  MyceliumTransport transport(mesh[0].rest_url);
  mesh.control(1, "offline");
  EXPECT_FALSE(transport.exchange(mesh[1].key, encode_rpc_request("m", {}), 300));
  EXPECT_FALSE(transport.exchange(mesh[1].key, encode_rpc_request("m", {}), kShortTimeoutMs * 4));
  EXPECT_EQ(mesh.counts(0).pushed, 2U);
}

TEST_F(Mycelium, LostRequestAndLostAnswerAreHarmless) {
  start_listener();
  mesh_.control(1, "lose");
  const auto lost = send_request(transport_, {{"n", 1}}, kShortTimeoutMs);
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, Code::unavailable);
  EXPECT_TRUE(remote_.requests().empty());
  mesh_.control(0, "lose");
  EXPECT_FALSE(send_request(transport_, {{"n", 1}}, kShortTimeoutMs * 2));
  ASSERT_TRUE(eventually([this] { return remote_.requests().size() == 1; }));
  EXPECT_TRUE(send_request(transport_, {{"n", 1}}));
  EXPECT_EQ(remote_.requests().size(), 2U);
}

TEST_F(Mycelium, DuplicateRequestIsAnsweredTwiceAndCountsOnce) {
  start_listener();
  mesh_.control(1, "double");
  EXPECT_TRUE(send_request(transport_, {{"n", 1}}));
  ASSERT_TRUE(eventually([this] { return listener_->answered() == 2; }));
  ASSERT_TRUE(eventually([this] { return mesh_.counts(0).inbox == 1; }));
  EXPECT_EQ(*send_request(transport_, {{"n", 2}}), json({{"n", 2}}));
  EXPECT_EQ(transport_.ignored(), 1U);
}

TEST_F(Mycelium, RequestIsResentToANodeThatForgotIt) {
  start_listener();
  mesh_.control(1, "offline");
  Result<json> answer = json();
  std::thread request_thread([&] { answer = send_request(transport_, {{"n", 1}}); });
  EXPECT_TRUE(eventually([this] { return mesh_.counts(0).pushed == 1; }));
  mesh_.control(0, "stop");
  mesh_.control(0, "start");
  mesh_.control(1, "online");
  request_thread.join();
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(remote_.requests().size(), 1U);
  EXPECT_EQ(mesh_.counts(0).pushed, 2U);
}

TEST_F(Mycelium, ClientThatWaitsForAReplyReceivesOne) {
  start_listener();
  HttpClient http;
  HttpPost post;
  post.url = mesh_[0].rest_url + "/api/v1/messages?reply_timeout=60";
  post.timeout_ms = kLongTimeoutMs;
  post.body = dump_json({{"dst", {{"pk", mesh_[1].key}}},
                         {"topic", "c3VwZXJ2aXNvci5ycGM="},
                         {"payload", encode_base64(encode_rpc_request("m", {{"n", 1}}))}});
  const auto reply = http.post(post);
  ASSERT_TRUE(reply) << reply.error().message;
  ASSERT_EQ(reply->status, 200) << reply->body;
  const auto payload = decode_base64((*parse_json(reply->body))["payload"].get<std::string>());
  EXPECT_EQ(*parse_rpc_answer(*payload), json({{"n", 1}}));
}

TEST_F(Mycelium, ListenerNeverAnswersAnAnswer) {
  start_listener();
  mesh_.forge(1, 0, std::string(kSupervisorTopic), dump_json({{"jsonrpc", "2.0"}, {"id", 1}, {"result", 7}}));
  mesh_.forge(1, 0, std::string(kSupervisorTopic), dump_json({{"id", nullptr}, {"error", json::object()}}));
  EXPECT_TRUE(eventually([this] { return listener_->ignored() == 2; }));
  EXPECT_EQ(mesh_.counts(1).pushed, 0U);
  EXPECT_TRUE(remote_.requests().empty());
  mesh_.forge(1, 0, std::string(kSupervisorTopic), "garbage");
  EXPECT_TRUE(eventually([this] { return mesh_.counts(1).pushed == 1; }))
      << "an invalid request is answered with an error";
}

TEST_F(Mycelium, ListenerReportsOutageAndRecoveryOnce) {
  ::testing::internal::CaptureStderr();
  init_log(LogLevel::info, LogFormat::json);
  mesh_.control(1, "stop");
  start_listener();
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));  // three polls
  EXPECT_FALSE(listener_->connected());
  mesh_.control(1, "start");
  EXPECT_TRUE(eventually([this] { return listener_->connected(); }));
  EXPECT_TRUE(send_request(transport_, {}));
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
  MyceliumNode node(mesh_[0].rest_url);
  const auto sent = node.push({mesh_[1].key, {}}, "t", std::string(1600 << 10, 'x'), kLongTimeoutMs);
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code, Code::too_large);
  EXPECT_NE(sent.error().message.find("2 MiB"), std::string::npos) << sent.error().message;
}

// The test nodes must have the pitfalls of real nodes; otherwise the tests above prove nothing.
TEST_F(Mycelium, FakeNodesHaveTheQuirksOfRealNodes) {
  HttpClient http;
  const auto get = [&](std::size_t node, const std::string& path) {
    HttpPost call;
    call.url = mesh_[node].rest_url + "/api/v1" + path;
    return http.get(call)->status;
  };
  MyceliumNode here(mesh_[0].rest_url), there(mesh_[1].rest_url);
  EXPECT_EQ(get(0, "/messages?timeout=1"), 204);
  EXPECT_GE(mesh_.counts(0).longest_hold_s, 1.0) << "a blocked pop holds the lock";
  mesh_.forge(1, 0, "topic", "x");
  EXPECT_EQ(get(1, "/messages?topic=dG9w"), 204) << "a filter matches only the whole topic";
  EXPECT_EQ(get(1, "/messages?peek=true&topic=dG9waWM%3D"), 200);
  EXPECT_EQ(get(1, "/messages?peek=true&topic=dG9waWM%3D"), 200) << "a peek removes no message";
  mesh_.control(1, "stop");
  mesh_.control(1, "start");
  EXPECT_EQ(mesh_.counts(1).inbox, 0U) << "a restart empties the inbox";
  const auto sent = here.push({mesh_[1].key, {}}, "topic", "x", kLongTimeoutMs);
  ASSERT_TRUE(sent);
  ASSERT_TRUE(eventually([&] { return mesh_.counts(1).inbox == 1; }));
  const auto message = there.pop("topic", kLongTimeoutMs);
  ASSERT_TRUE(message && *message);
  EXPECT_EQ(here.delivery(*sent, kLongTimeoutMs)->state, MyceliumNode::State::received);
  HttpPost status;
  status.url = mesh_[0].rest_url + "/api/v1/messages/status/" + *sent;
  EXPECT_EQ((*parse_json(http.get(status)->body))["state"], "read") << "a pop changes the state at the sender";
  ASSERT_TRUE(there.reply(**message, "late", kLongTimeoutMs));
  ASSERT_TRUE(eventually([&] { return mesh_.counts(0).inbox == 1; })) << "a reply without a waiting request";
  EXPECT_EQ(get(0, "/messages?topic=dG9waWM%3D"), 204) << "a reply has no topic";
}

// Version 0.7.10 drops a last chunk of 1 to 249 bytes, so such a message never arrives.
TEST_F(Mycelium, NodeNeverDeliversAShortLastChunk) {
  HttpClient http;
  const auto push = [&](std::size_t bytes) -> std::string {
    HttpPost post;
    post.url = mesh_[0].rest_url + "/api/v1/messages";
    post.body = dump_json({{"dst", {{"pk", mesh_[1].key}}}, {"payload", encode_base64(std::string(bytes, 'x'))}});
    return (*parse_json(http.post(post)->body))["id"];
  };
  MyceliumNode here(mesh_[0].rest_url);
  for (const std::size_t bytes : {1301U, 1549U, 2601U, 131301U}) {
    const std::string id = push(bytes);
    ASSERT_TRUE(eventually([&] { return here.delivery(id, kLongTimeoutMs)->state == MyceliumNode::State::sending; }))
        << bytes;
    EXPECT_EQ(here.delivery(id, kLongTimeoutMs)->acked, bytes / 1300) << bytes;
  }
  for (const std::size_t bytes : {1U, 249U, 1300U, 1550U, 2600U, 131550U}) {
    const std::string id = push(bytes);
    ASSERT_TRUE(eventually([&] { return here.delivery(id, kLongTimeoutMs)->state == MyceliumNode::State::received; }))
        << bytes;
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
  start_listener();
  for (std::size_t bytes = 1200; bytes < 3000; bytes += 60) {
    const json sent = std::string(bytes, 'x');
    const auto answer = send_request(transport_, sent);
    ASSERT_TRUE(answer) << bytes << ": " << answer.error().message;
    EXPECT_EQ(*answer, sent);
  }
  EXPECT_EQ(mesh_.counts(0).sending + mesh_.counts(1).sending, 0U);
}

TEST_F(Mycelium, RepliesOfAnyLengthArrive) {
  start_listener();
  HttpClient http;
  for (std::size_t bytes = 1200; bytes < 1600; bytes += 60) {
    HttpPost post;
    post.url = mesh_[0].rest_url + "/api/v1/messages?reply_timeout=60";
    post.timeout_ms = kLongTimeoutMs;
    const std::string request = pad_payload(encode_rpc_request("m", std::string(bytes, 'x')));
    post.body = dump_json(
        {{"dst", {{"pk", mesh_[1].key}}}, {"topic", "c3VwZXJ2aXNvci5ycGM="}, {"payload", encode_base64(request)}});
    const auto reply = http.post(post);
    ASSERT_TRUE(reply && reply->status == 200) << bytes;
  }
}

TEST_F(Mycelium, StuckRequestDoesNotBlockOthers) {
  start_listener();
  for (int i = 0; i < 3; ++i) {
    mesh_.control(1, "stick");
    const auto stuck = send_request(transport_, {{"stuck", i}}, kShortTimeoutMs * 5);
    ASSERT_FALSE(stuck);
    EXPECT_EQ(stuck.error().code, Code::unavailable);
    EXPECT_TRUE(transport_.is_peer_reachable()) << stuck.error().message;
    const auto answer = send_request(transport_, {{"n", i}});
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(*answer, json({{"n", i}}));
  }
  EXPECT_EQ(mesh_.counts(0).sending, 3U);
  mesh_.control(1, "stick");
  EXPECT_FALSE(send_request(transport_, {{"stuck", 3}}, kShortTimeoutMs * 5));
  const auto answer = send_request(transport_, {{"n", 3}}, kShortTimeoutMs * 5);
  ASSERT_FALSE(answer) << "four are stuck, and the node keeps each of them for 300 s";
  EXPECT_FALSE(transport_.is_peer_reachable());
}

// 400 requests of one node are queued before the request of another.
TEST_F(Mycelium, BusyPeerDoesNotBlockOthers) {
  static constexpr int kFlood = 400, kEachMs = 20;
  remote_.set_handler([](std::string_view request) {
    std::this_thread::sleep_for(std::chrono::milliseconds(kEachMs));
    return dump_json({{"jsonrpc", "2.0"}, {"id", (*parse_json(request))["id"]}, {"result", true}});
  });
  for (int i = 0; i < kFlood; ++i)
    mesh_.forge(1, 2, std::string(kSupervisorTopic), encode_rpc_request("m", {{"flood", i}}));
  start_listener();
  const auto start_time = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) {
    const auto answer = send_request(transport_, {{"n", i}});
    ASSERT_TRUE(answer) << answer.error().message;
  }
  const auto elapsed = std::chrono::steady_clock::now() - start_time;
  EXPECT_LT(elapsed, std::chrono::milliseconds(kFlood * kEachMs * 3 / 4))
      << "a single message would otherwise wait for all others";
  EXPECT_GT(listener_->dropped(), 0U) << "the number of stored messages is limited";
  std::size_t flood = 0;
  for (const json& request : remote_.requests()) flood += request.contains("flood") ? 1 : 0;
  EXPECT_GT(flood, 0U) << "the flooding peer is served, too";
}

TEST(MyceliumFairness, EachPeerIsServedInTurnWithItsShare) {
  MyceliumFairQueue queue({.max_peer_messages = 3, .max_peer_bytes = 10000, .max_bytes = 20000});
  const auto message = [](const std::string& from, const std::string& id, std::size_t bytes = 1) {
    return MyceliumMessage{id, {from, {}}, {}, std::string(bytes, 'x')};
  };
  const auto next = [&] {
    const auto found = queue.pop();
    return found ? found->id : "none";
  };
  for (const char* id : {"a1", "a2", "a3"}) EXPECT_TRUE(queue.enqueue(message("a", id)));
  EXPECT_FALSE(queue.enqueue(message("a", "a4"))) << "too many";
  EXPECT_TRUE(queue.enqueue(message("b", "b1")));
  EXPECT_TRUE(queue.enqueue(message("c", "c1")));
  EXPECT_EQ(next(), "a1");
  EXPECT_EQ(next(), "b1");
  EXPECT_TRUE(queue.enqueue(message("b", "b2")));
  EXPECT_EQ(next(), "c1");
  EXPECT_EQ(next(), "a2");
  EXPECT_EQ(next(), "b2");
  EXPECT_EQ(next(), "a3");
  EXPECT_EQ(next(), "none");
  EXPECT_TRUE(queue.enqueue(message("a", "large", 15000))) << "the first message of a peer is accepted at any size";
  EXPECT_FALSE(queue.enqueue(message("a", "a5"))) << "no other message fits beside it";
  EXPECT_FALSE(queue.enqueue(message("b", "b3", 9000)))
      << "a message of the peer with the most bytes is dropped, and this is reported";
  EXPECT_EQ(next(), "b3");
  EXPECT_EQ(next(), "none");
}

TEST_F(Mycelium, NodeThatSendsToItselfIsServed) {
  MyceliumListener listener(mesh_[0].rest_url, [this](std::string_view request) { return remote_(request); });
  const auto answer =
      transport_.exchange(mesh_[0].key, encode_rpc_request("m", {{"n", 1}}), kLongTimeoutMs).and_then(parse_rpc_answer);
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(*answer, json({{"n", 1}}));
}

TEST_F(Mycelium, TransportsAreChosenByAddress) {
  const auto networks = *Networks::parse({"loopback"});
  Transports all([](std::string_view) { return ""; }, networks, mesh_[0].rest_url);
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
