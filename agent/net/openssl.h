// Loads OpenSSL on first use, so that a process without TLS neither loads nor initializes it. Only net/tls*.cpp use it.
#pragma once

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "base/result.h"

namespace mycojobs {

// The used functions of libssl and libcrypto, as declared by the headers of OpenSSL 3.
#define MJ_OPENSSL_FUNCTIONS(APPLY)         \
  APPLY(ASN1_INTEGER_set)                   \
  APPLY(ASN1_STRING_get0_data)              \
  APPLY(ASN1_STRING_length)                 \
  APPLY(ASN1_TIME_to_tm)                    \
  APPLY(BIO_clear_flags)                    \
  APPLY(BIO_ctrl)                           \
  APPLY(BIO_free)                           \
  APPLY(BIO_get_data)                       \
  APPLY(BIO_get_new_index)                  \
  APPLY(BIO_meth_new)                       \
  APPLY(BIO_meth_set_ctrl)                  \
  APPLY(BIO_meth_set_read)                  \
  APPLY(BIO_meth_set_write)                 \
  APPLY(BIO_new)                            \
  APPLY(BIO_new_mem_buf)                    \
  APPLY(BIO_s_mem)                          \
  APPLY(BIO_set_data)                       \
  APPLY(BIO_set_flags)                      \
  APPLY(BIO_set_init)                       \
  APPLY(ERR_clear_error)                    \
  APPLY(ERR_peek_error)                     \
  APPLY(ERR_reason_error_string)            \
  APPLY(EVP_PKEY_Q_keygen)                  \
  APPLY(EVP_PKEY_free)                      \
  APPLY(EVP_sha256)                         \
  APPLY(GENERAL_NAMES_free)                 \
  APPLY(GENERAL_NAME_get0_value)            \
  APPLY(OPENSSL_init_ssl)                   \
  APPLY(OPENSSL_sk_num)                     \
  APPLY(OPENSSL_sk_value)                   \
  APPLY(PEM_read_bio_PrivateKey)            \
  APPLY(PEM_read_bio_X509_AUX)              \
  APPLY(PEM_write_bio_PrivateKey)           \
  APPLY(PEM_write_bio_X509)                 \
  APPLY(SSL_CTX_check_private_key)          \
  APPLY(SSL_CTX_ctrl)                       \
  APPLY(SSL_CTX_free)                       \
  APPLY(SSL_CTX_get0_certificate)           \
  APPLY(SSL_CTX_get_cert_store)             \
  APPLY(SSL_CTX_new)                        \
  APPLY(SSL_CTX_sess_set_new_cb)            \
  APPLY(SSL_CTX_set_default_verify_paths)   \
  APPLY(SSL_CTX_set_options)                \
  APPLY(SSL_CTX_set_session_id_context)     \
  APPLY(SSL_CTX_use_PrivateKey)             \
  APPLY(SSL_CTX_use_certificate)            \
  APPLY(SSL_SESSION_free)                   \
  APPLY(SSL_SESSION_is_resumable)           \
  APPLY(SSL_ctrl)                           \
  APPLY(SSL_do_handshake)                   \
  APPLY(SSL_free)                           \
  APPLY(SSL_get0_param)                     \
  APPLY(SSL_get0_peer_certificate)          \
  APPLY(SSL_get0_verified_chain)            \
  APPLY(SSL_get_error)                      \
  APPLY(SSL_get_ex_data)                    \
  APPLY(SSL_get_ex_data_X509_STORE_CTX_idx) \
  APPLY(SSL_get_version)                    \
  APPLY(SSL_has_pending)                    \
  APPLY(SSL_new)                            \
  APPLY(SSL_read_ex)                        \
  APPLY(SSL_session_reused)                 \
  APPLY(SSL_set0_rbio)                      \
  APPLY(SSL_set0_wbio)                      \
  APPLY(SSL_set1_host)                      \
  APPLY(SSL_set_accept_state)               \
  APPLY(SSL_set_connect_state)              \
  APPLY(SSL_set_ex_data)                    \
  APPLY(SSL_set_hostflags)                  \
  APPLY(SSL_set_session)                    \
  APPLY(SSL_set_verify)                     \
  APPLY(SSL_shutdown)                       \
  APPLY(SSL_write_ex)                       \
  APPLY(TLS_method)                         \
  APPLY(X509_NAME_add_entry_by_txt)         \
  APPLY(X509_NAME_oneline)                  \
  APPLY(X509_STORE_CTX_get_current_cert)    \
  APPLY(X509_STORE_CTX_get_error)           \
  APPLY(X509_STORE_CTX_get_error_depth)     \
  APPLY(X509_STORE_CTX_get_ex_data)         \
  APPLY(X509_STORE_add_cert)                \
  APPLY(X509_VERIFY_PARAM_set1_ip_asc)      \
  APPLY(X509_VERIFY_PARAM_set_flags)        \
  APPLY(X509_free)                          \
  APPLY(X509_get0_notAfter)                 \
  APPLY(X509_get0_notBefore)                \
  APPLY(X509_get_X509_PUBKEY)               \
  APPLY(X509_get_ext_d2i)                   \
  APPLY(X509_get_issuer_name)               \
  APPLY(X509_get_serialNumber)              \
  APPLY(X509_get_subject_name)              \
  APPLY(X509_getm_notAfter)                 \
  APPLY(X509_getm_notBefore)                \
  APPLY(X509_gmtime_adj)                    \
  APPLY(X509_new)                           \
  APPLY(X509_set_issuer_name)               \
  APPLY(X509_set_pubkey)                    \
  APPLY(X509_set_version)                   \
  APPLY(X509_sign)                          \
  APPLY(X509_verify_cert_error_string)      \
  APPLY(i2d_X509_PUBKEY)

// The loaded functions, under their names. The macros of OpenSSL do not use this table, so callers write the functions
// behind them, such as SSL_CTX_ctrl().
struct OpenSsl {
#define MJ_DECLARE_FUNCTION(name) decltype(&::name) name = nullptr;  // NOLINT(*-identifier-naming)
  MJ_OPENSSL_FUNCTIONS(MJ_DECLARE_FUNCTION)
#undef MJ_DECLARE_FUNCTION
};

// Returns the functions; the library stays loaded. Error `io`: the library is missing or cannot be loaded; the next
// call tries again. Thread-safe.
Result<const OpenSsl*> load_openssl();

}  // namespace mycojobs
