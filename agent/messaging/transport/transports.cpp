#include "messaging/transport/transports.h"

#include "text/utf8.h"

namespace mycojobs {

Result<Transport*> Transports::select(const std::string& address) {
  if (local_.is_address(address)) return &local_;
  if (http_.is_address(address)) return &http_;
  if (mycelium_ && mycelium_->is_address(address)) return &*mycelium_;
  if (parse_mycelium(address))
    return fail(Code::unsupported,
                "address: " + excerpt(address, 80) +
                    " is reached over Mycelium, but no node is configured: set mycelium.url to its API");
  return fail(Code::invalid,
              "address: " + excerpt(address, 80) +
                  " is not an address of a supervisor: use http://HOST:PORT, https://..., 64 hex characters (a key of "
                  "Mycelium) or an IP address in 400::/7, with or without mycelium://");
}

}  // namespace mycojobs
