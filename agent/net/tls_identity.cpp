#include "net/tls_identity.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string_view>

#include "base/errno_text.h"
#include "base/fd.h"
#include "base/random.h"
#include "base/sha256.h"
#include "net/openssl.h"
#include "net/tls_files.h"

namespace mycojobs {
namespace {

// Validity of the certificate, relative to the current time. Clients of mycojobs do not check the validity. Other tools
// do, so the validity begins a day in the past, for hosts with different clocks.
constexpr long kYearSeconds = 365L * 24 * 3600;
constexpr long kValidFromSeconds = -24L * 3600, kValidUntilSeconds = 20 * kYearSeconds;

using Key = std::unique_ptr<EVP_PKEY, decltype(OpenSsl::EVP_PKEY_free)>;
using Certificate = std::unique_ptr<X509, decltype(OpenSsl::X509_free)>;
using Buffer = std::unique_ptr<BIO, decltype(OpenSsl::BIO_free)>;

// Returns an unsigned certificate with the key, or null.
Certificate make_certificate(const OpenSsl& openssl, EVP_PKEY* key) {
  Certificate certificate(openssl.X509_new(), openssl.X509_free);
  if (!certificate) return certificate;
  X509* const x509 = certificate.get();
  X509_NAME* const name = openssl.X509_get_subject_name(x509);
  const auto* const common_name = reinterpret_cast<const unsigned char*>("mycojobs");
  const bool is_complete = openssl.X509_set_version(x509, 2) == 1 &&  // version 3
                           openssl.ASN1_INTEGER_set(openssl.X509_get_serialNumber(x509), 1) == 1 &&
                           openssl.X509_gmtime_adj(openssl.X509_getm_notBefore(x509), kValidFromSeconds) != nullptr &&
                           openssl.X509_gmtime_adj(openssl.X509_getm_notAfter(x509), kValidUntilSeconds) != nullptr &&
                           openssl.X509_set_pubkey(x509, key) == 1 &&
                           openssl.X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, common_name, -1, -1, 0) == 1 &&
                           openssl.X509_set_issuer_name(x509, name) == 1;
  if (!is_complete) certificate.reset();
  return certificate;
}

// Returns a new key and its certificate in PEM, or an empty text after an error of OpenSSL.
std::string make_identity_pem(const OpenSsl& openssl) {
  const Key key(openssl.EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"), openssl.EVP_PKEY_free);
  if (!key) return {};
  const Certificate certificate = make_certificate(openssl, key.get());
  const Buffer buffer(openssl.BIO_new(openssl.BIO_s_mem()), openssl.BIO_free);
  if (!certificate || !buffer || openssl.X509_sign(certificate.get(), key.get(), openssl.EVP_sha256()) <= 0 ||
      openssl.PEM_write_bio_PrivateKey(buffer.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) != 1 ||
      openssl.PEM_write_bio_X509(buffer.get(), certificate.get()) != 1)
    return {};
  char* text = nullptr;
  const long bytes = openssl.BIO_ctrl(buffer.get(), BIO_CTRL_INFO, 0, &text);
  return bytes > 0 ? std::string(text, static_cast<std::size_t>(bytes)) : std::string();
}

// Callback for encrypted files. The default callback of OpenSSL would read a passphrase from the terminal.
int refuse_passphrase(char*, int, int, void*) { return -1; }

Result<void> write_private_file(const std::string& path, std::string_view text) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return fail(Code::io, path + ": " + errno_text(errno));
  const ssize_t written = ::write(file.get(), text.data(), text.size());
  if (written < 0 || ::fsync(file.get()) != 0) return fail(Code::io, path + ": " + errno_text(errno));
  if (static_cast<std::size_t>(written) != text.size()) return fail(Code::io, path + ": the disk is full");
  return {};
}

}  // namespace

Result<void> create_tls_identity(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) return {};
  MJ_TRY(openssl, load_openssl());
  openssl->ERR_clear_error();
  std::string text = make_identity_pem(*openssl);
  openssl->ERR_clear_error();
  if (text.empty()) return fail(Code::io, path + ": OpenSSL cannot create a certificate");
  const std::string temporary_path = path + '.' + random_hex(8);
  auto result = write_private_file(temporary_path, text);
  ::explicit_bzero(text.data(), text.size());
  // link() fails with EEXIST, and does not replace the file, if another process has created the file.
  if (result && ::link(temporary_path.c_str(), path.c_str()) != 0 && errno != EEXIST)
    result = fail(Code::io, path + ": " + errno_text(errno));
  (void)::unlink(temporary_path.c_str());
  return result;
}

Result<std::string> read_public_key_sha256(const std::string& certificate_path) {
  MJ_TRY(openssl, load_openssl());
  MJ_TRY(file, read_pem_file(certificate_path));
  openssl->ERR_clear_error();
  const Buffer source(openssl->BIO_new_mem_buf(file.text.data(), static_cast<int>(file.text.size())),
                      openssl->BIO_free);
  const Certificate certificate(
      source ? openssl->PEM_read_bio_X509_AUX(source.get(), nullptr, refuse_passphrase, nullptr) : nullptr,
      openssl->X509_free);
  ::explicit_bzero(file.text.data(), file.text.size());
  const X509_PUBKEY* const key = certificate ? openssl->X509_get_X509_PUBKEY(certificate.get()) : nullptr;
  const int bytes = key == nullptr ? 0 : openssl->i2d_X509_PUBKEY(key, nullptr);
  std::string encoded(static_cast<std::size_t>(std::max(bytes, 0)), '\0');
  auto* end = reinterpret_cast<unsigned char*>(encoded.data());
  const bool is_encoded = bytes > 0 && openssl->i2d_X509_PUBKEY(key, &end) == bytes;
  openssl->ERR_clear_error();
  if (!is_encoded) return fail(Code::invalid, certificate_path + " has no certificate in PEM");
  return sha256_hex(encoded);
}

}  // namespace mycojobs
