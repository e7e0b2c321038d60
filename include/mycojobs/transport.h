// Port: how supervisors of different hosts speak with each other: a request goes there, its answer comes back. A
// request is JSON-RPC 2.0 as text (transport/rpc_client.h); what stands in it is signed (domain/envelope.h), so that a
// transport is trusted with nothing but carrying. Losing a request or its answer is possible, and so is that it arrives
// twice: who sends repeats, who receives knows what it has.
//
// Implementations: transport/local.h, http.h, mycelium.h; transport/transports.h chooses. One thread an instance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "mycojobs/result.h"

namespace mycojobs {

inline constexpr std::size_t kMaxRequestBytes = 1U << 20;  // of a request, and of an answer
inline Result<void> check_request_size(std::size_t bytes, const std::string& what = "request") {
  if (bytes <= kMaxRequestBytes) return {};
  return fail(Code::too_large, "the " + what + " takes " + std::to_string(bytes) +
                                   " bytes; between supervisors at most " + std::to_string(kMaxRequestBytes));
}

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;                      // "http"
  virtual bool is_address(const std::string& address) const = 0;  // whether it is one of this transport's kind
  // Errors: unavailable (nobody answers in time; it may have arrived), denied (an address that the operator has not
  // allowed), invalid (none of this transport's), too_large.
  virtual Result<std::string> exchange(const std::string& address, const std::string& request,
                                       std::uint32_t timeout_ms) = 0;
  // Whether the peer was there during the last exchange() although that was `unavailable`: the request alone was stuck
  // on its way, so another one may pass.
  virtual bool is_peer_there() const { return false; }
};

// The other end: a request to its answer. Any thread. It answers JSON-RPC, whatever the request is.
using Answerer = std::function<std::string(std::string_view request)>;

}  // namespace mycojobs
