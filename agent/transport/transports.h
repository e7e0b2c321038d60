// The transports of a process, chosen by address. One thread.
#pragma once

#include <optional>
#include <string>

#include "domain/networks.h"
#include "mycojobs/transport.h"
#include "transport/http.h"
#include "transport/local.h"
#include "transport/mycelium.h"

namespace mycojobs {

class Transports {
 public:
  // local: answers for the contexts of this process. http: what may be called. mycelium_url: of the node's API
  // (mycelium.url); empty: there is none.
  Transports(Answerer local, Networks http, const std::string& mycelium_url)
      : local_(std::move(local)), http_(std::move(http)) {
    if (!mycelium_url.empty()) mycelium_.emplace(mycelium_url);
  }
  // Never null; ours. Errors: invalid (an address of no kind, with the kinds there are), unsupported (of Mycelium, and
  // there is no node).
  Result<Transport*> of(const std::string& address);

 private:
  LocalTransport local_;
  HttpTransport http_;
  std::optional<MyceliumTransport> mycelium_;
};

}  // namespace mycojobs
