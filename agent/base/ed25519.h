// Ed25519 signatures (RFC 8032), from libsodium. Keys and signatures are lower-case hex texts of 32 and 64 bytes.
// Thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace mycojobs {

bool is_public_key(std::string_view text);  // 64 lower-case hex characters that encode a point of the curve

bool verify_ed25519(std::string_view public_key, std::string_view bytes, std::string_view signature);

// A key pair. The destructor wipes the secret half from memory; the secret half is never shown.
class SigningKey {
 public:
  static SigningKey make();  // Creates a new key pair.
  // Reads a file that save() wrote. Errors: `not_found`, `io`, `denied` (other users can read the file; names the
  // chmod), `invalid`.
  static Result<SigningKey> load(const std::string& file);
  // Writes a new file that only its owner can read. Errors: `conflict` (the file exists), `io`.
  Result<void> save(const std::string& file) const;

  ~SigningKey();
  SigningKey(SigningKey&&) noexcept;
  SigningKey& operator=(SigningKey&&) = delete;

  const std::string& public_key() const { return public_; }
  std::string sign(std::string_view bytes) const;

 private:
  explicit SigningKey(std::string seed);
  std::string secret_;  // bytes
  std::string public_;  // hex
};

}  // namespace mycojobs
