// Port: exchanges requests and replies between supervisors of different hosts. A request is JSON-RPC 2.0 text
// (net/json_rpc_client.h) with signed content (messaging/envelope.h), so a transport is trusted for delivery only. A
// request or its reply may be lost or arrive twice: the sender repeats, and the receiver detects duplicates.
//
// Implementations: messaging/transport/local_transport.h, http_transport.h, mycelium_transport.h;
// messaging/transport/transports.h selects one. Not thread-safe: each thread uses its own instance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace mycojobs {

inline constexpr std::size_t kMaxRequestBytes = 1U << 20;  // limit of a request and of a reply
inline Result<void> check_request_size(std::size_t bytes, const std::string& what = "request") {
  if (bytes <= kMaxRequestBytes) return {};
  return fail(Code::too_large, "the " + what + " takes " + std::to_string(bytes) +
                                   " bytes; between supervisors at most " + std::to_string(kMaxRequestBytes));
}

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;                      // for example "http"
  virtual bool is_address(const std::string& address) const = 0;  // true if the transport supports the address
  // Errors: unavailable (no reply in time; the request may have arrived), denied (the operator does not allow the
  // address), invalid (the transport does not support the address), too_large.
  virtual Result<std::string> exchange(const std::string& address, const std::string& request,
                                       std::uint32_t timeout_ms) = 0;
  // Returns true if the last exchange() failed with `unavailable` although the peer was reachable: only that request
  // got lost, so another request may succeed.
  virtual bool is_peer_reachable() const { return false; }
};

// Server side: returns the JSON-RPC reply to any request. Must be thread-safe.
using RequestHandler = std::function<std::string(std::string_view request)>;

}  // namespace mycojobs
