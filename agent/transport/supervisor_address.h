// Where a supervisor is: an http:// or https:// address, within the networks that the operator has named. Asked where
// the address is set; where it is called, HttpClient looks at what it has resolved to then.
#pragma once

#include <string>

#include "domain/networks.h"

namespace mycojobs {

// Empty, and what is no http address (of another transport), passes: nobody calls it. A name that does not resolve now
// passes too. Errors: invalid (no plain host and port), denied (outside of the networks).
Result<void> check_supervisor_address(const std::string& url, const Networks&);

}  // namespace mycojobs
