// The API of a node of the Mycelium overlay (github.com/threefoldtech/mycelium, v0.7), as far as messages go. One
// thread.
//
// The address is that of its REST API (http://127.0.0.1:8989) or of its JSON-RPC (http://127.0.0.1:8990): which of both
// answers there is found out by the first call, and again after a failure. What one has to know:
//
//   - The node keeps its inbox in memory and forgets what was popped: a message is lost if we are, or if it restarts.
//   - A filter by topic takes the whole topic. Before v0.7.4 such a pop removed the message even where it should peek;
//     its sender did not hear that it was read, so that a message which had arrived stayed `received`.
//   - It cuts a message into chunks of 1300 bytes, and the receiving node drops a last chunk of 1 to 249 bytes each
//     time: the message stays `sending` for 300 s and never arrives. So payloads are padded (pad_payload).
//   - A pop that waits holds a lock that every other call needs: ours never wait.
//   - Replies carry no topic, so that no filter finds one; the node hands them to the call that waits for them, without
//     a look at who has sent them or whether it is a reply at all.
//   - For 300 s it tries to reach a peer that is away; the message is `pending` so long.
//   - The body of a request to REST is at most 2 MiB, which is 1.5 MiB of payload as base64.
#pragma once

#include <atomic>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "domain/mycelium.h"
#include "mycojobs/result.h"
#include "transport/http_client.h"

namespace mycojobs {

// A payload, with blanks behind it where a node would never deliver it as it is: a payload of more than 1300 bytes
// whose last chunk is shorter than 250 bytes. JSON allows these blanks, and MyceliumNode::pop() removes them.
std::string pad_payload(std::string_view text);

struct MyceliumMessage {
  std::string id;
  MyceliumAddress from, to;  // with key and address
  std::string payload;
};

class MyceliumNode {
 public:
  // stop: once true, calls end; null: never. Outlives this.
  explicit MyceliumNode(std::string url, const std::atomic<bool>* stop = nullptr) : url_(std::move(url)), stop_(stop) {}

  // Errors of all: unavailable (the node does not answer), too_large (its limit of a message), internal (it answers
  // what it should not). timeout_ms is that of a call to the node, which never waits for a peer.
  Result<std::string> key(std::uint32_t timeout_ms);  // its own, 64 characters of hex
  // Id of the message, which the node now tries to deliver. payload: JSON, which is padded; so is that of reply().
  Result<std::string> push(const MyceliumAddress& to, std::string_view topic, std::string_view payload,
                           std::uint32_t timeout_ms);
  Result<void> reply(const MyceliumMessage& of, std::string_view payload, std::uint32_t timeout_ms);
  Result<std::optional<MyceliumMessage>> pop(std::string_view topic, std::uint32_t timeout_ms);
  // unknown: the node has forgotten it. pending: the peer has not answered yet. sending: it has, and takes chunks.
  enum class State { unknown, pending, sending, received, aborted };
  struct Delivery {
    State state = State::unknown;
    std::uint64_t acked = 0;  // chunks that the peer has acknowledged, while it is `sending`
  };
  Result<Delivery> delivery(const std::string& id, std::uint32_t timeout_ms);

 private:
  enum class Api { unknown, rest, rpc };
  Result<void> find_api(std::uint32_t timeout_ms);
  Result<HttpAnswer> rest(const std::string& path, const nlohmann::json* body, std::uint32_t timeout_ms);
  // Its result. Errors besides: not_found, if the node answers an error.
  Result<nlohmann::json> rpc(std::string_view method, const nlohmann::json& params, std::uint32_t timeout_ms);
  Result<HttpAnswer> call(const std::string& url, const std::string* body, std::uint32_t timeout_ms);

  std::string url_;
  const std::atomic<bool>* stop_;
  HttpClient http_;
  Api api_ = Api::unknown;
};

}  // namespace mycojobs
