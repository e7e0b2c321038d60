// Messages for failed calls of libcurl.
#pragma once

#include <string>
#include <string_view>

#include "net/curl.h"

namespace mycojobs {

// Describes a failed handshake or a rejected certificate, with the remedy. Returns an empty text for other errors.
// verify_result: X509_V_* of OpenSSL. error_text: of libcurl. ca: the setting https.ca.
std::string describe_tls_failure(const std::string& ca, CURLcode result, long verify_result,
                                 std::string_view error_text);

}  // namespace mycojobs
