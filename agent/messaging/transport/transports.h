// The transports of a process, selected by address. Not thread-safe.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "messaging/transport/http_transport.h"
#include "messaging/transport/local_transport.h"
#include "messaging/transport/mycelium_transport.h"
#include "messaging/transport/transport.h"
#include "net/networks.h"

namespace mycojobs {

class Transports {
 public:
  // local_handler answers for the contexts of this process. http_networks are the networks that may be called, and
  // https_ca is HttpPost::ca of these calls.
  // mycelium_url is the URL of the API of the node (mycelium.url), or empty if no Mycelium node is used.
  Transports(RequestHandler local_handler, Networks http_networks, const std::string& mycelium_url,
             std::string https_ca = {})
      : local_(std::move(local_handler)), http_(std::move(http_networks), std::move(https_ca)) {
    if (!mycelium_url.empty()) mycelium_.emplace(mycelium_url);
  }
  // Returns the transport for an address; never null, owned by this object. Errors: `invalid` (unknown kind of address;
  // lists the known kinds), `unsupported` (a Mycelium address without a node).
  Result<Transport*> select(const std::string& address);

 private:
  LocalTransport local_;
  HttpTransport http_;
  std::optional<MyceliumTransport> mycelium_;
};

}  // namespace mycojobs
