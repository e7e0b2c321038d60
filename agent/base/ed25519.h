// Signatures by ed25519 (RFC 8032), by libsodium. Keys and signatures are texts: lower-case hex of 32 and 64 bytes.
// Threads: any.
#pragma once

#include <string>
#include <string_view>

#include "mycojobs/result.h"

namespace mycojobs {

bool is_public_key(std::string_view text);  // 64 characters of lower-case hex that are a point of the curve

bool verify_ed25519(std::string_view public_key, std::string_view bytes, std::string_view signature);

// A pair of keys. The secret half is wiped from memory with it, and is never shown.
class SigningKey {
 public:
  static SigningKey make();  // a new one
  // As save() wrote it. Errors: not_found, io, denied (others may read the file; names the chmod), invalid.
  static Result<SigningKey> load(const std::string& file);
  // A new file, readable by its owner alone. Errors: conflict (it is there), io.
  Result<void> save(const std::string& file) const;

  ~SigningKey();
  SigningKey(SigningKey&&) noexcept;
  SigningKey& operator=(SigningKey&&) = delete;

  const std::string& public_key() const { return public_; }
  std::string sign(std::string_view bytes) const;

 private:
  explicit SigningKey(std::string secret);
  std::string secret_, public_;  // bytes; hex
};

}  // namespace mycojobs
