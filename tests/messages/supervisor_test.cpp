// The supervisor of a context on its thread, with an imitated Mycelium node between it and its peer.
#include "messaging/supervisor.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/clock.h"
#include "model/codec.h"
#include "net/json_rpc_client.h"
#include "security/signatures.h"
#include "support/mycelium_mesh.h"
#include "support/process.h"
#include "support/redis/memory_server.h"

namespace mycojobs {
namespace {

using nlohmann::json;
using test::eventually;

constexpr Id kSender = 12;

class SupervisorOverMycelium : public ::testing::Test {
 protected:
  SupervisorOverMycelium() {
    redis_.run_command(1, {"HSET", "context:1", "id", "1", "submitters", "[12]"});
    redis_.run_command(0, {"HSET", "actor:12", "id", "12", "pubkey", sender_.public_key()});
    redis_.run_command(1, {"HSET", "runner:7", "id", "7", "address", address_, "pubkey", peer_key_});
  }
  void send(Id id) {
    Message message;
    message.id = id;
    message.caller_id = kSender;
    message.context_id = 1;
    message.message_type = MessageType::chat;
    message.message = "hello";
    message.target_address = address_;
    message.target_key = peer_key_;
    message.target_context = 2;
    message.created_at = static_cast<std::uint32_t>(clock_.unix_ms() / 1000);
    ASSERT_TRUE(sign(message, sender_));
    ASSERT_TRUE(store_->save(1, redis_key(message), encode(message)));
    ASSERT_TRUE(store_->push_to_msg_out(1, redis_key(message)));
  }
  std::unique_ptr<Supervisor> start() {
    SupervisorSettings settings;
    settings.messages = {1, std::make_shared<const SigningKey>(SigningKey::make()), true};
    settings.transports = [url = mesh_[0].rest_url] {
      return std::make_unique<Transports>([](std::string_view) { return ""; }, *Networks::parse({"loopback"}), url);
    };
    return Supervisor::start(redis_, clock_, pool_, std::move(settings)).value();
  }
  std::string mark(Id id, const std::string& field) {
    return std::string(redis_.run_command(1, {"HGET", "mj:message:message:12:" + std::to_string(id), field}).text());
  }

  SystemClock clock_;
  LoopPool pool_{"test"};
  MemoryServer redis_{clock_};
  std::unique_ptr<Store> store_ = redis_.open().value();
  test::MyceliumMesh mesh_{2};
  SigningKey sender_ = SigningKey::make();
  std::string address_ = "mycelium://" + mesh_[1].key, peer_key_ = SigningKey::make().public_key();
  MyceliumListener peer_{mesh_[1].rest_url, [](std::string_view request) {
                           return answer_rpc(request, kMaxRequestBytes, [](std::string_view, const json&) {
                             return Result<json>(json{{"status", "stored"}});
                           });
                         }};
};

// Regression test: a request that was stuck at the node failed all others to that peer at each retry.
TEST_F(SupervisorOverMycelium, StuckMessageDoesNotBlockOthers) {
  mesh_.control(1, "stick");
  for (const Id id : {101, 102, 103}) send(id);
  const auto supervisor = start();
  ASSERT_TRUE(eventually([&] { return mark(101, "why") != ""; }));
  ASSERT_TRUE(eventually([&] { return mark(102, "delivered_ms") != "" && mark(103, "delivered_ms") != ""; }));
  EXPECT_EQ(mark(102, "tries") + mark(103, "tries"), "") << mark(102, "why");
}

}  // namespace
}  // namespace mycojobs
