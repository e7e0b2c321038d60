#include "net/curl_errors.h"

#include <openssl/x509_vfy.h>

#include "text/utf8.h"

namespace mycojobs {

std::string describe_tls_failure(const std::string& ca, CURLcode result, long verify_result,
                                 std::string_view error_text) {
  if (result == CURLE_SSL_CACERT_BADFILE) return "https.ca: " + ca + " has no readable certificate in PEM";
  if (result == CURLE_SSL_CONNECT_ERROR) {
    // OpenSSL reads the first bytes of an answer in plain text as a record of another version or with a wrong length.
    for (const char* text : {"wrong version number", "packet length too long", "record layer failure"}) {
      if (error_text.find(text) != std::string_view::npos)
        return "the server answers in plain text: the port does not use TLS; write http:// in the address";
    }
    return "the handshake failed: " + to_ascii(error_text, 200);
  }
  if (result == CURLE_SSL_PINNEDPUBKEYNOTMATCH) return "the server has another key";
  if (result != CURLE_PEER_FAILED_VERIFICATION) return {};
  // libcurl compares names itself, after OpenSSL has accepted the certificate, and leaves the result unspecified. The
  // text depends on the version: "... target host name 'X'", "... target hostname 'X'", "... target ipv4 address 'X'".
  if (error_text.find(" target ") != std::string_view::npos)
    return "the certificate of the server is for another host: use a name of the certificate in the address";
  switch (verify_result) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return "the certificate of the server, or of its CA, has expired: renew it";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "the certificate of the server is not valid yet: check the clocks of both hosts";
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
      return "the certificate of the server is self-signed and not trusted: set https.ca to a copy of it";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return "the certificate of the server was issued by an unknown CA: set https.ca to the file with the certificate "
             "of this CA";
    default:
      return "the certificate of the server is rejected: " + to_ascii(error_text, 200);
  }
}

}  // namespace mycojobs
