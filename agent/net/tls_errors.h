// Texts for operators about failed TLS handshakes and rejected certificates.
#pragma once

#include <cstdint>
#include <string>

#include "net/openssl.h"
#include "net/tls.h"

namespace mycojobs {

// Time of a certificate in seconds since the Unix epoch; 0 if it cannot be read.
std::int64_t to_unix_time(const OpenSsl&, const ASN1_TIME*);
// Describes why OpenSSL rejects the certificate of the peer, with the remedy.
std::string describe_rejected_certificate(const OpenSsl&, X509_STORE_CTX*, const TlsSettings&,
                                          std::string_view expected_name);
// Converts an error of OpenSSL, which is often an alert of the peer: unavailable, or denied if a certificate was
// rejected.
Error describe_tls_error(const OpenSsl&, unsigned long error, const TlsSettings&, TlsRole);
// Returns true for the error of a TlsStream, also with a prefix, that rejects a certificate of the peer because it has
// expired, is not valid yet, or is of an unknown CA. Such a certificate may become valid without a change on this host.
bool can_certificate_become_valid(const Error&);

}  // namespace mycojobs
