// The transports of a process, selected by address. Not thread-safe.
#pragma once

#include <optional>
#include <string>

#include "messaging/transport/http_transport.h"
#include "messaging/transport/local_transport.h"
#include "messaging/transport/mycelium_transport.h"
#include "messaging/transport/transport.h"
#include "net/networks.h"

namespace mycojobs {

class Transports {
 public:
  // local: answers for the contexts of this process. http: networks that may be called. mycelium_url: URL of the node's
  // API (mycelium.url); empty: no Mycelium node is used.
  Transports(RequestHandler local, Networks http, const std::string& mycelium_url)
      : local_(std::move(local)), http_(std::move(http)) {
    if (!mycelium_url.empty()) mycelium_.emplace(mycelium_url);
  }
  // Returns the transport of an address; never null, owned by this object. Errors: `invalid` (unknown kind of address;
  // lists the known kinds), `unsupported` (a Mycelium address without a node).
  Result<Transport*> of(const std::string& address);

 private:
  LocalTransport local_;
  HttpTransport http_;
  std::optional<MyceliumTransport> mycelium_;
};

}  // namespace mycojobs
