// The message API of a node of the Mycelium overlay (github.com/threefoldtech/mycelium, v0.7). Not thread-safe.
//
// The URL is the address of its REST API (http://127.0.0.1:8989) or of its JSON-RPC API (http://127.0.0.1:8990). The
// first call detects the API, and so does the first call after a failure. Relevant properties of the node:
//
//   - The node keeps its inbox in memory and forgets popped messages: a message is lost if the agent or the node ends.
//   - A filter by topic takes the whole topic. Before v0.7.4 such a pop removed the message even with peek; the sender
//     was not informed that the message was read, so that an arrived message stayed `received`.
//   - A message is cut into chunks of 1300 bytes, and the receiving node always drops a last chunk of 1 to 249 bytes:
//     the message stays `sending` for 300 s and never arrives. Payloads are therefore padded (pad_payload).
//   - A pop that waits holds a lock that every other call needs, so pop() never waits.
//   - Replies have no topic, so that no filter finds them. The node passes them to the call that waits for a reply,
//     without a check of the sender or of the kind of the message.
//   - The node tries to reach an unreachable peer for 300 s; the message is `pending` for that time.
//   - The body of a REST request is at most 2 MiB, which is 1.5 MiB of payload as base64.
#pragma once

#include <atomic>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "net/http_client.h"
#include "net/mycelium_address.h"

namespace mycojobs {

// Returns a payload with trailing spaces if a node would otherwise never deliver it: a payload of more than 1300 bytes
// with a last chunk of less than 250 bytes. JSON allows these spaces, and MyceliumNode::pop() removes them.
std::string pad_payload(std::string_view text);

struct MyceliumMessage {
  std::string id;
  MyceliumAddress from, to;  // with key and address
  std::string payload;
};

class MyceliumNode {
 public:
  // Once `stop` is true, the current call and all later calls end. It must outlive this object, and is null if calls
  // cannot be stopped.
  explicit MyceliumNode(std::string url, const std::atomic<bool>* stop = nullptr) : url_(std::move(url)), stop_(stop) {}

  // Errors of all functions: `unavailable` (the node does not answer), `too_large` (the node's limit of a message),
  // `internal` (unexpected answer). timeout_ms limits the call to the node, which never waits for a peer.
  Result<std::string> key(std::uint32_t timeout_ms);  // Returns the key of the node: 64 hex characters.
  // Passes a message to the node, which then tries to deliver it, and returns the id of the message. The payload is
  // JSON, which push() and reply() pad.
  Result<std::string> push(const MyceliumAddress& to, std::string_view topic, std::string_view payload,
                           std::uint32_t timeout_ms);
  Result<void> reply(const MyceliumMessage& request, std::string_view payload, std::uint32_t timeout_ms);
  Result<std::optional<MyceliumMessage>> pop(std::string_view topic, std::uint32_t timeout_ms);
  enum class State {
    unknown,  // the node does not have the message any more
    pending,  // the peer has not answered yet
    sending,  // the peer receives chunks
    received,
    aborted
  };
  struct Delivery {
    State state = State::unknown;
    std::uint64_t acked = 0;  // number of chunks that the peer has acknowledged, while `sending`
  };
  Result<Delivery> delivery(const std::string& id, std::uint32_t timeout_ms);

 private:
  enum class Api { unknown, rest, rpc };
  Result<void> detect_api(std::uint32_t timeout_ms);
  Result<HttpAnswer> call_rest(const std::string& path, const nlohmann::json* body, std::uint32_t timeout_ms);
  // Returns the result. Additional error: `not_found`, if the node answers with an error.
  Result<nlohmann::json> call_json_rpc(std::string_view method, const nlohmann::json& params, std::uint32_t timeout_ms);
  Result<HttpAnswer> call(const std::string& url, const std::string* body, std::uint32_t timeout_ms);

  std::string url_;
  const std::atomic<bool>* stop_;
  HttpClient http_;
  Api api_ = Api::unknown;
};

}  // namespace mycojobs
