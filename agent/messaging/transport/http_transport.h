// Transport between supervisors over HTTP: POST <address>/supervisor. An address is http://HOST:PORT or https://...
#pragma once

#include <utility>

#include "messaging/transport/transport.h"
#include "net/http_client.h"
#include "net/networks.h"

namespace mycojobs {

inline constexpr const char* kSupervisorPath = "/supervisor";

class HttpTransport final : public Transport {
 public:
  // networks: addresses that may be called. ca: see HttpPost.
  explicit HttpTransport(Networks networks, std::string ca = {}) : networks_(std::move(networks)), ca_(std::move(ca)) {}

  std::string_view name() const override { return "http"; }
  bool is_address(const std::string& address) const override {
    return address.starts_with("http://") || address.starts_with("https://");
  }
  Result<std::string> exchange(const std::string& address, const std::string& request,
                               std::uint32_t timeout_ms) override;

 private:
  Networks networks_;
  std::string ca_;
  HttpClient http_;
};

}  // namespace mycojobs
