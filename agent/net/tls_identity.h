// Creates and reads TLS identities, which consist of a key and a self-signed certificate. Clients verify the public key
// of the server, which they have received over a trusted channel, and neither a CA nor a host name.
#pragma once

#include <string>

#include "base/result.h"

namespace mycojobs {

// Creates a file of mode 0600 with a key (ECDSA, P-256) and a self-signed certificate. The file can be used for both
// TlsSettings::certificate and TlsSettings::key. An existing file is not changed, even if another process creates the
// file at the same time. Error io: the file cannot be written, or OpenSSL has failed.
Result<void> create_tls_identity(const std::string& path);

// Returns the SHA-256 of the public key of the first certificate in a file, as hex digits. Errors: not_found, io,
// invalid (the file contains no certificate). The message begins with the path.
Result<std::string> read_public_key_sha256(const std::string& certificate_path);

}  // namespace mycojobs
