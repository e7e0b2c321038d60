#include "net/tls_errors.h"

#include <fmt/format.h>
#include <openssl/sslerr.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <memory>

#include "net/host.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxNameBytes = 200;
constexpr int kMaxListedNames = 5;

// Phrases of the texts about certificates that may become valid (can_certificate_become_valid()).
constexpr const char* kExpired = " expired on ";
constexpr const char* kNotYetValid = " is not valid before ";
constexpr const char* kSelfSigned = "certificate is self-signed and not trusted";
constexpr const char* kUnknownCa = "certificate was issued by an unknown CA";

std::string format_date(const OpenSsl& openssl, const ASN1_TIME* time) {
  const std::time_t seconds = to_unix_time(openssl, time);
  std::tm parts{};
  char text[32] = "";
  if (seconds == 0 || ::gmtime_r(&seconds, &parts) == nullptr) return "an unreadable date";
  (void)std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &parts);
  return text;
}

// Formats a name of a certificate, such as "/O=Example/CN=Example CA". The text is from the peer.
std::string format_name(const OpenSsl& openssl, const X509_NAME* name) {
  char text[kMaxNameBytes + 1] = "";
  if (openssl.X509_NAME_oneline(name, text, sizeof text) == nullptr) return "an unreadable name";
  return to_ascii(text, kMaxNameBytes);
}

std::string format_alternative_name(const OpenSsl& openssl, const GENERAL_NAME* name) {
  int type = 0;
  const auto* value = static_cast<const ASN1_STRING*>(openssl.GENERAL_NAME_get0_value(name, &type));
  if (value == nullptr || (type != GEN_DNS && type != GEN_IPADD)) return {};
  const std::string_view bytes(reinterpret_cast<const char*>(openssl.ASN1_STRING_get0_data(value)),
                               static_cast<std::size_t>(openssl.ASN1_STRING_length(value)));
  if (type == GEN_DNS) return to_ascii(bytes, kMaxNameBytes);
  IpAddress address;
  if (bytes.size() != 4 && bytes.size() != address.bytes.size()) return {};
  address.is_v6 = bytes.size() != 4;
  std::copy(bytes.begin(), bytes.end(), address.bytes.begin());
  return to_text(address);
}

// Lists the host names and addresses of a certificate; without any, its subject.
std::string list_names(const OpenSsl& openssl, X509* certificate) {
  using NamesOwner = std::unique_ptr<GENERAL_NAMES, decltype(openssl.GENERAL_NAMES_free)>;
  const NamesOwner names(
      static_cast<GENERAL_NAMES*>(openssl.X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)),
      openssl.GENERAL_NAMES_free);
  const auto* stack = reinterpret_cast<const OPENSSL_STACK*>(names.get());
  const int count = stack == nullptr ? 0 : openssl.OPENSSL_sk_num(stack);
  std::string out;
  int listed_count = 0;
  for (int i = 0; i < count; ++i) {
    const std::string name =
        format_alternative_name(openssl, static_cast<const GENERAL_NAME*>(openssl.OPENSSL_sk_value(stack, i)));
    if (name.empty()) continue;
    if (++listed_count > kMaxListedNames) return out + ", ...";
    out += (out.empty() ? "" : ", ") + name;
  }
  return out.empty() ? format_name(openssl, openssl.X509_get_subject_name(certificate)) : out;
}

// An alert of the peer, or an error of OpenSSL. {0} is the name of the table of settings.
struct TlsErrorRow {
  int reason;
  Code code;
  fmt::string_view client_text;  // with a certificate of this client
  fmt::string_view text_without_certificate;
};

constexpr fmt::string_view kCertificateRequired = "the server requires a client certificate: set {0}.cert and {0}.key";
constexpr fmt::string_view kCertificateRejected = "the server rejects the client certificate ({0}.cert)";

constexpr std::array kTlsErrors{
    TlsErrorRow{SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED, Code::denied, kCertificateRequired, kCertificateRequired},
    TlsErrorRow{SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE, Code::denied,
                "the server rejects the handshake: it has no TLS version or cipher in common, or rejects the client "
                "certificate ({0}.cert)",
                "the server rejects the handshake: it requires a client certificate ({0}.cert and {0}.key), or has no "
                "TLS version or cipher in common"},
    TlsErrorRow{SSL_R_TLSV1_ALERT_UNKNOWN_CA, Code::denied,
                "the server does not trust the CA of the client certificate ({0}.cert)", kCertificateRequired},
    TlsErrorRow{SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED, Code::denied,
                "the server rejects the client certificate ({0}.cert): it has expired", kCertificateRequired},
    TlsErrorRow{SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED, Code::denied,
                "the server rejects the client certificate ({0}.cert): it was revoked", kCertificateRequired},
    TlsErrorRow{SSL_R_SSLV3_ALERT_BAD_CERTIFICATE, Code::denied, kCertificateRejected, kCertificateRequired},
    TlsErrorRow{SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE, Code::denied, kCertificateRejected, kCertificateRequired},
    TlsErrorRow{SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN, Code::denied, kCertificateRejected, kCertificateRequired},
    TlsErrorRow{SSL_R_TLSV1_ALERT_ACCESS_DENIED, Code::denied, kCertificateRejected, kCertificateRequired},
    TlsErrorRow{SSL_R_TLSV1_ALERT_PROTOCOL_VERSION, Code::unavailable,
                "the server supports neither TLS 1.2 nor TLS 1.3", "the server supports neither TLS 1.2 nor TLS 1.3"},
    TlsErrorRow{SSL_R_UNSUPPORTED_PROTOCOL, Code::unavailable, "the peer supports neither TLS 1.2 nor TLS 1.3",
                "the peer supports neither TLS 1.2 nor TLS 1.3"},
};

}  // namespace

std::int64_t to_unix_time(const OpenSsl& openssl, const ASN1_TIME* time) {
  std::tm parts{};
  if (time == nullptr || openssl.ASN1_TIME_to_tm(time, &parts) != 1) return 0;
  return ::timegm(&parts);
}

std::string describe_rejected_certificate(const OpenSsl& openssl, X509_STORE_CTX* store, const TlsSettings& settings,
                                          std::string_view expected_name) {
  const int error = openssl.X509_STORE_CTX_get_error(store);
  X509* const certificate = openssl.X509_STORE_CTX_get_current_cert(store);
  if (certificate == nullptr) return openssl.X509_verify_cert_error_string(error);
  const bool is_ca = openssl.X509_STORE_CTX_get_error_depth(store) > 0;
  const std::string subject =
      is_ca ? "the certificate of its CA " + format_name(openssl, openssl.X509_get_subject_name(certificate))
            : std::string("its certificate");
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return subject + kExpired + format_date(openssl, openssl.X509_get0_notAfter(certificate)) + ": renew it";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return subject + kNotYetValid + format_date(openssl, openssl.X509_get0_notBefore(certificate)) +
             ": check the clocks of both hosts";
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
      return std::string("its ") + kSelfSigned + ": set " + settings.table + ".ca to a copy of it";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_CERT_UNTRUSTED:
      return std::string("its ") + kUnknownCa + ", " + format_name(openssl, openssl.X509_get_issuer_name(certificate)) +
             ": set " + settings.table + ".ca to the file with the certificate of this CA";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return "its certificate is for " + list_names(openssl, certificate) + ", not for " + std::string(expected_name) +
             ": use a name of the certificate in the address, or set " + settings.table + ".server_name";
    case X509_V_ERR_INVALID_PURPOSE:
      return subject + " is for another purpose (extended key usage)";
    default:
      return subject + " is rejected: " + openssl.X509_verify_cert_error_string(error);
  }
}

bool can_certificate_become_valid(const Error& error) {
  constexpr std::array kPhrases{kExpired, kNotYetValid, kSelfSigned, kUnknownCa};
  return error.code == Code::denied && std::any_of(kPhrases.begin(), kPhrases.end(), [&](const char* phrase) {
           return error.message.find(phrase) != std::string::npos;
         });
}

Error describe_tls_error(const OpenSsl& openssl, unsigned long error, const TlsSettings& settings, TlsRole role) {
  const int reason = ERR_GET_REASON(error);
  if (role == TlsRole::client && ERR_GET_LIB(error) == ERR_LIB_SSL) {
    for (const TlsErrorRow& row : kTlsErrors) {
      if (row.reason != reason) continue;
      const fmt::string_view text = settings.certificate.empty() ? row.text_without_certificate : row.client_text;
      return {row.code, fmt::format(fmt::runtime(text), settings.table)};
    }
  }
  const char* const text = openssl.ERR_reason_error_string(error);
  return {Code::unavailable, "TLS: " + std::string(text != nullptr ? text : "unknown error")};
}

}  // namespace mycojobs
