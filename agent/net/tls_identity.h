// The identity of a server that clients know by its public key, which they have received over a trusted channel. Such a
// server needs neither a CA nor a name.
#pragma once

#include <string>

#include "base/result.h"

namespace mycojobs {

// Creates a key (ECDSA, P-256) and a self-signed certificate for it in one file of mode 0600, which is the value of
// both TlsSettings::certificate and TlsSettings::key. An existing file is left unchanged, also if another process
// creates it at the same time. Errors: io (the file, or OpenSSL).
Result<void> create_tls_identity(const std::string& path);

// Returns the SHA-256 of the public key of the first certificate in a file, as hex digits. Errors: not_found, io,
// invalid (the content). The message begins with the path.
Result<std::string> read_public_key_sha256(const std::string& certificate_path);

}  // namespace mycojobs
