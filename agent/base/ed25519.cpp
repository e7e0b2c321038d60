#include "base/ed25519.h"

#include <fcntl.h>
#include <sodium/core.h>
#include <sodium/crypto_core_ed25519.h>
#include <sodium/crypto_sign_ed25519.h>
#include <sodium/utils.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <optional>

#include "base/errno_text.h"
#include "base/fd.h"
#include "base/parse.h"

namespace mycojobs {
namespace {

constexpr std::string_view kKeyFilePrefix =
    "mycojobs-ed25519-secret:";  // start of a key file; 64 hex characters and a newline follow
constexpr std::size_t kSeedHex = 2 * std::size_t{crypto_sign_ed25519_SEEDBYTES};

// Initialises the library on first use.
void initialize_library() {
  static const bool kReady = ::sodium_init() >= 0;
  if (!kReady) std::abort();  // no source of random numbers: keys would not be secret
}

const unsigned char* as_bytes(std::string_view bytes) { return reinterpret_cast<const unsigned char*>(bytes.data()); }
unsigned char* as_bytes(std::string& bytes) { return reinterpret_cast<unsigned char*>(bytes.data()); }

std::optional<std::string> from_hex(std::string_view text, std::size_t bytes) {
  if (!is_hex(text, 2 * bytes)) return std::nullopt;
  std::string out(bytes, '\0');
  if (::sodium_hex2bin(as_bytes(out), out.size(), text.data(), text.size(), nullptr, nullptr, nullptr) != 0)
    return std::nullopt;
  return out;
}

}  // namespace

bool is_public_key(std::string_view text) {
  const auto key = from_hex(text, crypto_sign_ed25519_PUBLICKEYBYTES);
  return key && ::crypto_core_ed25519_is_valid_point(as_bytes(*key)) == 1;
}

bool verify_ed25519(std::string_view public_key, std::string_view bytes, std::string_view signature) {
  const auto key = from_hex(public_key, crypto_sign_ed25519_PUBLICKEYBYTES);
  const auto sign = from_hex(signature, crypto_sign_ed25519_BYTES);
  return key && sign &&
         ::crypto_sign_ed25519_verify_detached(as_bytes(*sign), as_bytes(bytes), bytes.size(), as_bytes(*key)) == 0;
}

SigningKey::SigningKey(std::string seed) : secret_(crypto_sign_ed25519_SECRETKEYBYTES, '\0') {
  std::string key(crypto_sign_ed25519_PUBLICKEYBYTES, '\0');
  ::crypto_sign_ed25519_seed_keypair(as_bytes(key), as_bytes(secret_), as_bytes(seed));
  ::sodium_memzero(seed.data(), seed.size());
  public_ = to_hex(key);
}

SigningKey::~SigningKey() { ::sodium_memzero(secret_.data(), secret_.size()); }
SigningKey::SigningKey(SigningKey&& other) noexcept
    : secret_(std::move(other.secret_)), public_(std::move(other.public_)) {}

SigningKey SigningKey::make() {
  initialize_library();
  std::string key(crypto_sign_ed25519_PUBLICKEYBYTES, '\0'), secret(crypto_sign_ed25519_SECRETKEYBYTES, '\0');
  ::crypto_sign_ed25519_keypair(as_bytes(key), as_bytes(secret));
  std::string seed(secret.substr(0, crypto_sign_ed25519_SEEDBYTES));  // the private key of RFC 8032
  ::sodium_memzero(secret.data(), secret.size());
  return SigningKey(std::move(seed));
}

Result<SigningKey> SigningKey::load(const std::string& file) {
  initialize_library();
  const Fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd && errno == ENOENT)
    return fail(Code::not_found, file + ": the key does not exist; create it with `mycojobs key new`");
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) return fail(Code::io, file + ": " + errno_text(errno));
  if (!S_ISREG(info.st_mode)) return fail(Code::invalid, file + ": is not a file");
  if ((info.st_mode & 077) != 0)
    return fail(Code::denied, file + ": other users can read this key: run chmod 600 on it");
  std::string text(kKeyFilePrefix.size() + kSeedHex + 2, '\0');
  const ssize_t read = ::read(fd.get(), text.data(), text.size());
  if (read < 0) return fail(Code::io, file + ": " + errno_text(errno));
  text.resize(static_cast<std::size_t>(read));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  std::optional<std::string> seed;
  if (text.starts_with(kKeyFilePrefix))
    seed = from_hex(std::string_view(text).substr(kKeyFilePrefix.size()), crypto_sign_ed25519_SEEDBYTES);
  ::sodium_memzero(text.data(), text.size());
  if (!seed) return fail(Code::invalid, file + ": is not a key of `mycojobs key new`");
  return SigningKey(std::move(*seed));
}

Result<void> SigningKey::save(const std::string& file) const {
  const Fd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd && errno == EEXIST) return fail(Code::conflict, file + ": is there already; a key is not overwritten");
  if (!fd) return fail(Code::io, file + ": " + errno_text(errno));
  std::string text(kKeyFilePrefix);
  text += to_hex(std::string_view(secret_).substr(0, crypto_sign_ed25519_SEEDBYTES)) + '\n';
  const bool is_written = write_all(fd.get(), text) && ::fsync(fd.get()) == 0;
  const int error = errno;
  ::sodium_memzero(text.data(), text.size());
  if (is_written) return {};
  ::unlink(file.c_str());
  return fail(Code::io, file + ": " + errno_text(error));
}

std::string SigningKey::sign(std::string_view bytes) const {
  std::string signature(crypto_sign_ed25519_BYTES, '\0');
  ::crypto_sign_ed25519_detached(as_bytes(signature), nullptr, as_bytes(bytes), bytes.size(), as_bytes(secret_));
  return to_hex(signature);
}

}  // namespace mycojobs
