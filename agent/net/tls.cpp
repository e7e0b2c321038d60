#include "net/tls.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/errno_text.h"
#include "base/log.h"
#include "base/service_manager.h"
#include "net/host.h"
#include "net/openssl.h"
#include "net/tls_errors.h"
#include "net/tls_files.h"
#include "text/utf8.h"

namespace mycojobs {

struct TlsCredentials {
  // A session that the next connection to the same server can resume.
  struct StoredSession {
    SSL_SESSION* session = nullptr;
    std::int64_t peer_expiry_s = 0;
    std::int64_t verified_s = 0;  // time of the full handshake
  };

  TlsCredentials(const OpenSsl& functions, SSL_CTX* ssl_context, std::string files_state)
      : openssl(functions), context(ssl_context), files(std::move(files_state)) {}
  ~TlsCredentials() {
    for (const auto& entry : sessions) openssl.SSL_SESSION_free(entry.second.session);
    openssl.SSL_CTX_free(context);
  }
  TlsCredentials(const TlsCredentials&) = delete;
  TlsCredentials& operator=(const TlsCredentials&) = delete;

  const OpenSsl& openssl;
  SSL_CTX* const context;
  const std::string files;  // state of the files that were read
  std::int64_t own_expiry_s = 0;
  std::mutex mutex;
  std::map<std::string, StoredSession> sessions;  // by TlsStream::peer_ and the expected name
};

namespace {

constexpr std::int64_t kMaxResumptionS = 24 * 3600;  // a certificate is verified again after this time
constexpr int kMaxReads = 16;                        // reads of one operation after its deadline

// Reads one set of files into a context of OpenSSL. Every error names the setting and the file.
class CredentialsReader {
 public:
  CredentialsReader(const OpenSsl& openssl, const TlsSettings& settings, TlsRole role, SSL_CTX* context)
      : openssl_(openssl), settings_(settings), role_(role), context_(context) {}

  Result<void> read() {
    openssl_.ERR_clear_error();
    MJ_CHECK(read_ca());
    if (settings_.certificate.empty() && settings_.key.empty()) return {};
    if (settings_.certificate.empty()) return reject("cert", "is not set, but " + settings_.table + ".key is");
    if (settings_.key.empty()) return reject("key", "is not set, but " + settings_.table + ".cert is");
    MJ_CHECK(read_chain());
    MJ_CHECK(read_key());
    openssl_.ERR_clear_error();
    if (openssl_.SSL_CTX_check_private_key(context_) == 1) return {};
    return reject("key", settings_.key + " is not the key of the certificate in " + settings_.certificate);
  }

 private:
  using Certificate = std::unique_ptr<X509, decltype(OpenSsl::X509_free)>;

  tl::unexpected<Error> reject(std::string_view setting, const std::string& problem, Code code = Code::invalid) const {
    return fail(code, fmt::format("{}.{}: {}", settings_.table, setting, problem));
  }
  Code error_code() const {
    return ERR_GET_REASON(openssl_.ERR_peek_error()) == ERR_R_MALLOC_FAILURE ? Code::io : Code::invalid;
  }
  std::string describe_error() const {
    const char* const text = openssl_.ERR_reason_error_string(openssl_.ERR_peek_error());
    return text == nullptr ? "" : fmt::format(" ({})", text);
  }
  // Never asks for a passphrase, which would read from the terminal.
  static int refuse_passphrase(char*, int, int, void* is_encrypted) {
    *static_cast<bool*>(is_encrypted) = true;
    return -1;
  }

  Result<std::vector<Certificate>> read_certificates(std::string_view setting, const std::string& path) const {
    const auto file = read_pem_file(path);
    if (!file) return reject(setting, file.error().message, file.error().code);
    openssl_.ERR_clear_error();
    BIO* const source = openssl_.BIO_new_mem_buf(file->text.data(), static_cast<int>(file->text.size()));
    std::vector<Certificate> out;
    bool is_encrypted = false;
    while (X509* const certificate =
               source == nullptr ? nullptr
                                 : openssl_.PEM_read_bio_X509_AUX(source, nullptr, &refuse_passphrase, &is_encrypted))
      out.emplace_back(certificate, openssl_.X509_free);
    openssl_.BIO_free(source);
    const unsigned long error = openssl_.ERR_peek_error();
    const bool is_end = ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
    if (!out.empty() && is_end) return out;
    const std::string problem = out.empty() ? " has no certificate in PEM" : " has a certificate that is not valid PEM";
    return reject(setting, path + problem + describe_error(), error_code());
  }
  Result<void> read_chain() const {
    MJ_TRY(chain, read_certificates("cert", settings_.certificate));
    bool is_used = openssl_.SSL_CTX_use_certificate(context_, chain.front().get()) == 1;
    for (std::size_t i = 1; is_used && i < chain.size(); ++i) {
      is_used = openssl_.SSL_CTX_ctrl(context_, SSL_CTRL_CHAIN_CERT, 0, chain[i].get()) == 1;
      if (is_used) (void)chain[i].release();  // the context owns it
    }
    if (is_used) return {};
    return reject("cert", settings_.certificate + " cannot be used" + describe_error(), error_code());
  }

  Result<void> add_cas(const std::string& path) const {
    MJ_TRY(certificates, read_certificates("ca", path));
    X509_STORE* const store = openssl_.SSL_CTX_get_cert_store(context_);
    for (const Certificate& certificate : certificates) {
      if (openssl_.X509_STORE_add_cert(store, certificate.get()) != 1)
        return reject("ca", path + " cannot be used" + describe_error(), error_code());
    }
    return {};
  }
  Result<void> add_ca_folder(const std::string& path) const {
    const auto folder = list_ca_folder(path);
    if (!folder) return reject("ca", folder.error().message, folder.error().code);
    if (folder->files.empty()) return reject("ca", path + " has no file *.pem, *.crt or *.cer");
    for (const std::string& file : folder->files) {
      if (auto added = add_cas(file); !added && !(folder->has_hash_names && added.error().code == Code::not_found))
        return added;
    }
    return {};
  }
  Result<void> read_ca() const {
    if (settings_.ca.empty()) {
      // OpenSSL reads the certificate that a handshake needs, since reading all takes 45 ms of CPU. A missing bundle of
      // the system is no error here: it makes every certificate one of an unknown CA.
      if (role_ == TlsRole::client) openssl_.SSL_CTX_set_default_verify_paths(context_);
      return {};
    }
    return is_folder(settings_.ca) ? add_ca_folder(settings_.ca) : add_cas(settings_.ca);
  }

  Result<void> check_key_owner(const struct stat& info) const {
    if (is_managed_credential(settings_.key) && (info.st_mode & S_IRWXO) == 0) return {};
    if (info.st_uid != 0 && info.st_uid != ::geteuid()) {
      return reject(
          "key",
          fmt::format("user {} owns {} and can read it: chown it to user {}", info.st_uid, settings_.key, ::geteuid()),
          Code::denied);
    }
    if ((info.st_mode & 077) != 0) {
      return reject("key",
                    fmt::format("{} has the mode {:04o}, so that other users can read it: chmod 600", settings_.key,
                                info.st_mode & 07777),
                    Code::denied);
    }
    return {};
  }
  Result<void> read_key() const {
    auto file = read_pem_file(settings_.key);
    if (!file) return reject("key", file.error().message, file.error().code);
    std::string& text = file->text;
    auto checked = check_key_owner(file->info);
    BIO* const source = checked ? openssl_.BIO_new_mem_buf(text.data(), static_cast<int>(text.size())) : nullptr;
    bool is_encrypted = false;
    EVP_PKEY* const key = source == nullptr
                              ? nullptr
                              : openssl_.PEM_read_bio_PrivateKey(source, nullptr, &refuse_passphrase, &is_encrypted);
    openssl_.BIO_free(source);
    ::explicit_bzero(text.data(), text.size());
    MJ_CHECK(checked);
    if (is_encrypted) return reject("key", settings_.key + " needs a passphrase: decrypt it with `openssl pkey`");
    if (key == nullptr) return reject("key", settings_.key + " has no private key in PEM");
    const bool is_used = openssl_.SSL_CTX_use_PrivateKey(context_, key) == 1;
    openssl_.EVP_PKEY_free(key);
    if (is_used) return {};
    return reject("key", settings_.key + " is not the key of the certificate in " + settings_.certificate);
  }

  const OpenSsl& openssl_;
  const TlsSettings& settings_;
  const TlsRole role_;
  SSL_CTX* context_;
};

TlsStream* get_stream(const OpenSsl& openssl, const SSL* ssl) {
  return static_cast<TlsStream*>(openssl.SSL_get_ex_data(ssl, 0));
}

// The library is loaded before any of these callbacks can be called.
const OpenSsl& loaded_openssl() {
  static const OpenSsl* const functions = *load_openssl();
  return *functions;
}

int on_new_session(SSL* ssl, SSL_SESSION* session) {
  get_stream(loaded_openssl(), ssl)->store_session(session);
  return 1;  // the stream owns the session
}

int on_verified(int is_ok, X509_STORE_CTX* store) {
  if (is_ok == 1) return 1;
  const OpenSsl& openssl = loaded_openssl();
  const auto* ssl =
      static_cast<const SSL*>(openssl.X509_STORE_CTX_get_ex_data(store, openssl.SSL_get_ex_data_X509_STORE_CTX_idx()));
  TlsStream& stream = *get_stream(openssl, ssl);
  stream.set_verify_error(describe_rejected_certificate(openssl, store, stream.settings(), stream.expected_name()));
  return 0;
}

// The next functions connect OpenSSL with the socket. Its own BIO of a socket would raise SIGPIPE.
int write_bio(BIO* bio, const char* data, int size) {
  const OpenSsl& openssl = loaded_openssl();
  openssl.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
  bool must_retry = false;
  const int count = static_cast<TlsStream*>(openssl.BIO_get_data(bio))->write_socket(data, size, must_retry);
  if (must_retry) openssl.BIO_set_flags(bio, BIO_FLAGS_WRITE | BIO_FLAGS_SHOULD_RETRY);
  return count;
}
int read_bio(BIO* bio, char* data, int size) {
  const OpenSsl& openssl = loaded_openssl();
  openssl.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
  bool must_retry = false;
  const int count = static_cast<TlsStream*>(openssl.BIO_get_data(bio))->read_socket(data, size, must_retry);
  if (must_retry) openssl.BIO_set_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY);
  return count;
}
long control_bio(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO* make_bio(const OpenSsl& openssl, TlsStream* stream) {
  static BIO_METHOD* const method = [&openssl] {
    BIO_METHOD* const out = openssl.BIO_meth_new(openssl.BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "mycojobs socket");
    openssl.BIO_meth_set_write(out, &write_bio);
    openssl.BIO_meth_set_read(out, &read_bio);
    openssl.BIO_meth_set_ctrl(out, &control_bio);
    return out;
  }();
  BIO* const bio = openssl.BIO_new(method);
  if (bio == nullptr) return nullptr;
  openssl.BIO_set_data(bio, stream);
  openssl.BIO_set_init(bio, 1);
  return bio;
}

// Sets everything that does not depend on files.
void configure_context(const OpenSsl& openssl, SSL_CTX* context, TlsRole role) {
  openssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_2_VERSION, nullptr);
  openssl.SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  openssl.SSL_CTX_ctrl(context, SSL_CTRL_MODE,
                       SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS,
                       nullptr);
  // One recv() for several records, instead of two for each.
  openssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_READ_AHEAD, 1, nullptr);
  if (role == TlsRole::client) {
    openssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL,
                         nullptr);
    openssl.SSL_CTX_sess_set_new_cb(context, &on_new_session);
  } else {
    static constexpr unsigned char kSessionContext[] = "mycojobs";
    // Clients resume sessions with tickets, so that sessions use no memory of the server.
    openssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF, nullptr);
    openssl.SSL_CTX_set_session_id_context(context, kSessionContext, sizeof kSessionContext - 1);
  }
}

Result<std::shared_ptr<TlsCredentials>> read_credentials(const TlsSettings& settings, TlsRole role, std::string files) {
  MJ_TRY(openssl, load_openssl());
  SSL_CTX* const context = openssl->SSL_CTX_new(openssl->TLS_method());
  if (context == nullptr) return fail(Code::io, "OpenSSL does not start: out of memory");
  auto credentials = std::make_shared<TlsCredentials>(*openssl, context, std::move(files));
  configure_context(*openssl, context, role);
  MJ_CHECK(CredentialsReader(*openssl, settings, role, context).read());
  const X509* const own = openssl->SSL_CTX_get0_certificate(context);
  if (own != nullptr) credentials->own_expiry_s = to_unix_time(*openssl, openssl->X509_get0_notAfter(own));
  return credentials;
}

}  // namespace

Result<std::shared_ptr<TlsCredentials>> TlsContext::load() {
  const std::lock_guard lock(mutex_);
  std::string files = describe_tls_files(settings_, role_);
  if (credentials_ && (credentials_->files == files || rejected_files_ == files)) return credentials_;
  auto credentials = read_credentials(settings_, role_, files);
  if (credentials) {
    if (credentials_) log(LogLevel::info, "tls", "{}: the changed files were read", settings_.table);
    rejected_files_.clear();
    logged_error_.clear();
    return credentials_ = std::move(*credentials);
  }
  if (!credentials_) return credentials;
  // Lack of descriptors or memory passes, so that the next connection reads the files again.
  if (credentials.error().code != Code::io) rejected_files_ = std::move(files);
  if (std::exchange(logged_error_, credentials.error().message) != credentials.error().message)
    log(LogLevel::warn, "tls", "{}; the previous certificates stay in use", credentials.error().message);
  return credentials_;
}

Result<std::int64_t> TlsContext::load_own_expiry_s() {
  MJ_TRY(credentials, load());
  return credentials->own_expiry_s;
}

TlsStream::TlsStream(const TlsContext& context, std::shared_ptr<TlsCredentials> credentials, int fd, std::string host,
                     std::string peer)
    : credentials_(std::move(credentials)),
      settings_(context.settings()),
      role_(context.role()),
      fd_(fd),
      expected_name_(settings_.server_name.empty() ? std::move(host) : settings_.server_name),
      peer_(std::move(peer)) {}

TlsStream::~TlsStream() {
  if (ssl_ != nullptr) credentials_->openssl.SSL_free(ssl_);
}

Result<std::unique_ptr<TlsStream>> TlsStream::open(TlsContext& context, int fd, const std::string& host,
                                                   const std::string& peer) {
  MJ_TRY(credentials, context.load());
  std::unique_ptr<TlsStream> stream(new TlsStream(context, credentials, fd, host, peer));
  const OpenSsl& openssl = credentials->openssl;
  openssl.ERR_clear_error();
  stream->ssl_ = openssl.SSL_new(credentials->context);
  BIO* const reader = make_bio(openssl, stream.get());
  BIO* const writer = make_bio(openssl, stream.get());
  if (stream->ssl_ == nullptr || reader == nullptr || writer == nullptr) {
    openssl.BIO_free(reader);
    openssl.BIO_free(writer);
    return fail(Code::io, "OpenSSL does not start: out of memory");
  }
  openssl.SSL_set0_rbio(stream->ssl_, reader);
  openssl.SSL_set0_wbio(stream->ssl_, writer);
  openssl.SSL_set_ex_data(stream->ssl_, 0, stream.get());
  if (stream->role_ == TlsRole::client) {
    MJ_CHECK(stream->prepare_client());
  } else {
    const int mode = stream->settings_.ca.empty() ? SSL_VERIFY_NONE : SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT;
    openssl.SSL_set_verify(stream->ssl_, mode, &on_verified);
    openssl.SSL_set_accept_state(stream->ssl_);
  }
  return stream;
}

Result<void> TlsStream::prepare_client() {
  const OpenSsl& openssl = credentials_->openssl;
  // OpenSSL checks no name at all for an empty text, and any sub-domain for a leading point.
  const bool has_odd_character =
      std::any_of(expected_name_.begin(), expected_name_.end(), [](unsigned char c) { return c <= ' ' || c == 0x7f; });
  if (expected_name_.empty() || expected_name_.front() == '.' || has_odd_character)
    return fail(Code::invalid, fmt::format("{}.server_name: \"{}\" is not a host name or IP address", settings_.table,
                                           to_ascii(expected_name_, 80)));
  // OpenSSL calls the function also if it ignores the result.
  if (settings_.insecure) {
    openssl.SSL_set_verify(ssl_, SSL_VERIFY_NONE, nullptr);
  } else {
    openssl.SSL_set_verify(ssl_, SSL_VERIFY_PEER, &on_verified);
  }
  openssl.SSL_set_hostflags(ssl_, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  // A certificate in redis_tls.ca is trusted, also if it is not self-signed.
  openssl.X509_VERIFY_PARAM_set_flags(openssl.SSL_get0_param(ssl_), X509_V_FLAG_PARTIAL_CHAIN);
  const bool is_ip_address =
      openssl.X509_VERIFY_PARAM_set1_ip_asc(openssl.SSL_get0_param(ssl_), expected_name_.c_str()) == 1;
  if (!is_ip_address && (openssl.SSL_set1_host(ssl_, expected_name_.c_str()) != 1 ||
                         openssl.SSL_ctrl(ssl_, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                                          const_cast<char*>(expected_name_.c_str())) != 1))
    return fail(Code::invalid, fmt::format("{}.server_name: OpenSSL does not accept the name {}", settings_.table,
                                           to_ascii(expected_name_, 80)));
  openssl.ERR_clear_error();
  const std::lock_guard lock(credentials_->mutex);
  // A resumed session skips the verification, so a certificate that has expired since then, or was verified long ago,
  // is not resumed.
  const std::int64_t now_s = std::time(nullptr);
  const auto stored = credentials_->sessions.find(peer_ + ' ' + expected_name_);
  if (stored != credentials_->sessions.end() && openssl.SSL_SESSION_is_resumable(stored->second.session) == 1 &&
      (settings_.insecure ||
       (stored->second.peer_expiry_s > now_s && now_s - stored->second.verified_s < kMaxResumptionS))) {
    openssl.SSL_set_session(ssl_, stored->second.session);
    resumed_expiry_s_ = stored->second.peer_expiry_s;
    verified_s_ = stored->second.verified_s;
  }
  openssl.SSL_set_connect_state(ssl_);
  return {};
}

void TlsStream::store_session(void* session) {
  const std::int64_t peer_expiry_s = find_peer_expiry();
  const bool is_resumed = credentials_->openssl.SSL_session_reused(ssl_) == 1;
  const std::int64_t verified_s = is_resumed ? verified_s_ : std::time(nullptr);
  const std::lock_guard lock(credentials_->mutex);
  TlsCredentials::StoredSession& stored = credentials_->sessions[peer_ + ' ' + expected_name_];
  credentials_->openssl.SSL_SESSION_free(stored.session);
  stored = {static_cast<SSL_SESSION*>(session), peer_expiry_s, verified_s};
}

void TlsStream::limit_reads(Deadline deadline) {
  reads_left_ = kMaxReads;
  read_deadline_ = deadline;
}

int TlsStream::read_socket(char* data, int size, bool& must_retry) {
  if (reads_left_-- <= 0 && Deadline::clock::now() >= read_deadline_) {
    must_retry = true;
    return -1;
  }
  ssize_t count = 0;
  do {
    count = ::recv(fd_, data, static_cast<std::size_t>(size), 0);
  } while (count < 0 && errno == EINTR);
  if (count > 0) {
    if (first_byte_ < 0) first_byte_ = static_cast<unsigned char>(*data);
    return static_cast<int>(count);
  }
  must_retry = count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  if (count < 0 && !must_retry) socket_error_ = errno;
  is_closed_ = is_closed_ || count == 0 || socket_error_ == ECONNRESET;
  return static_cast<int>(count);
}

int TlsStream::write_socket(const char* data, int size, bool& must_retry) {
  ssize_t count = 0;
  do {
    count = ::send(fd_, data, static_cast<std::size_t>(size), MSG_NOSIGNAL);
  } while (count < 0 && errno == EINTR);
  must_retry = count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  if (count < 0 && !must_retry) {
    socket_error_ = errno;
    is_closed_ = is_closed_ || socket_error_ == ECONNRESET || socket_error_ == EPIPE;
  }
  return static_cast<int>(count);
}

TlsStream::Step TlsStream::convert_result(int result) {
  const OpenSsl& openssl = credentials_->openssl;
  if (result == 1) return Step::done;
  switch (openssl.SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
      return Step::needs_input;
    case SSL_ERROR_WANT_WRITE:
      return Step::needs_output;
    case SSL_ERROR_ZERO_RETURN:
      is_closed_ = true;
      break;
    case SSL_ERROR_SSL:
      tls_error_ = openssl.ERR_peek_error();
      break;
    default:
      break;
  }
  has_failed_ = true;
  return Step::failed;
}

// Repeats an operation until it is done. REQUIRES: the operation returns a Step.
Result<void> TlsStream::repeat(Deadline deadline, const char* time_out_text, const auto& operation) {
  for (;;) {
    credentials_->openssl.ERR_clear_error();
    limit_reads(deadline);
    const Step step = operation();
    if (step == Step::done) return {};
    if (step == Step::failed) return make_error();
    const bool is_flooded = reads_left_ < 0 && Deadline::clock::now() >= deadline;
    const short events = step == Step::needs_input ? POLLIN : POLLOUT;
    const int error = is_flooded ? ETIMEDOUT : wait_for_events(fd_, events, deadline);
    if (error == 0) continue;
    has_timed_out_ = error == ETIMEDOUT;
    has_failed_ = true;
    return fail(Code::unavailable, has_timed_out_ ? time_out_text : errno_text(error));
  }
}

tl::unexpected<Error> TlsStream::make_error() {
  constexpr int kFirstRecordType = 0x14, kLastRecordType = 0x17;
  if (!verify_error_.empty()) return fail(Code::denied, verify_error_);
  if (first_byte_ >= 0 && (first_byte_ < kFirstRecordType || first_byte_ > kLastRecordType))
    return fail(Code::unavailable, "the peer answers in plain text: the port does not use TLS");
  const int reason = ERR_GET_REASON(tls_error_);
  const bool is_truncated =
      tls_error_ != 0 && ERR_GET_LIB(tls_error_) == ERR_LIB_SSL && reason == SSL_R_UNEXPECTED_EOF_WHILE_READING;
  if (tls_error_ != 0 && !is_truncated)
    return tl::unexpected(describe_tls_error(credentials_->openssl, tls_error_, settings_, role_));
  is_closed_ = is_closed_ || is_truncated;
  if (socket_error_ != 0 && socket_error_ != ECONNRESET && socket_error_ != EPIPE)
    return fail(Code::unavailable, errno_text(socket_error_));
  return fail(Code::unavailable, std::string(role_ == TlsRole::client ? "the server" : "the client") +
                                     " closed the connection" + (is_established_ ? "" : " during the TLS handshake"));
}

Result<void> TlsStream::handshake(Deadline deadline) {
  MJ_CHECK(repeat(deadline, "the TLS handshake was not completed in time",
                  [this] { return convert_result(credentials_->openssl.SSL_do_handshake(ssl_)); }));
  is_established_ = true;
  has_failed_ = false;
  return {};
}

Result<bool> TlsStream::try_handshake() {
  credentials_->openssl.ERR_clear_error();
  limit_reads(Deadline::min());
  const Step step = convert_result(credentials_->openssl.SSL_do_handshake(ssl_));
  if (step == Step::failed) return make_error();
  needs_output_ = step == Step::needs_output;
  is_established_ = step == Step::done;
  return is_established_;
}

Result<void> TlsStream::send_all(std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    std::size_t count = 0;
    auto sent = repeat(deadline, "no answer in time", [&] {
      return convert_result(credentials_->openssl.SSL_write_ex(ssl_, bytes.data(), bytes.size(), &count));
    });
    if (!sent && is_closed_ && tls_error_ == 0) {
      // With TLS 1.3 a server rejects a client certificate after the handshake: its alert may precede the close.
      char byte = 0;
      socket_error_ = 0;
      auto received = receive_available(std::span(&byte, 1));
      if (!received) return tl::unexpected(std::move(received).error());
    }
    if (!sent) return sent;
    bytes.remove_prefix(count);
  }
  return {};
}

Result<std::size_t> TlsStream::receive(std::span<char> buffer, Deadline deadline) {
  std::size_t count = 0;
  MJ_CHECK(repeat(deadline, "no answer in time", [&] {
    return convert_result(credentials_->openssl.SSL_read_ex(ssl_, buffer.data(), buffer.size(), &count));
  }));
  is_drained_ = false;
  return count;
}

Result<std::size_t> TlsStream::receive_available(std::span<char> buffer) {
  std::size_t count = 0;
  credentials_->openssl.ERR_clear_error();
  limit_reads(Deadline::min());
  const Step step = convert_result(credentials_->openssl.SSL_read_ex(ssl_, buffer.data(), buffer.size(), &count));
  if (step == Step::failed) return make_error();
  is_drained_ = step != Step::done;
  return step == Step::done ? count : 0;
}

bool TlsStream::has_buffered_input() const { return !is_drained_ && credentials_->openssl.SSL_has_pending(ssl_) == 1; }

void TlsStream::shut_down() {
  if (!is_established_ || has_failed_) return;
  credentials_->openssl.ERR_clear_error();
  (void)credentials_->openssl.SSL_shutdown(ssl_);  // a failure means that the connection is closed already
}

std::int64_t TlsStream::find_peer_expiry() const {
  const OpenSsl& openssl = credentials_->openssl;
  if (openssl.SSL_session_reused(ssl_) == 1) return resumed_expiry_s_;
  std::int64_t expiry_s = 0;
  const auto add = [&](const X509* certificate) {
    const std::int64_t time = to_unix_time(openssl, openssl.X509_get0_notAfter(certificate));
    expiry_s = expiry_s == 0 ? time : std::min(expiry_s, time);
  };
  const auto* chain = reinterpret_cast<const OPENSSL_STACK*>(openssl.SSL_get0_verified_chain(ssl_));
  const int count = chain == nullptr ? 0 : openssl.OPENSSL_sk_num(chain);
  for (int i = 0; i < count; ++i) add(static_cast<const X509*>(openssl.OPENSSL_sk_value(chain, i)));
  if (const X509* const certificate = count > 0 ? nullptr : openssl.SSL_get0_peer_certificate(ssl_)) add(certificate);
  return expiry_s;
}

TlsState TlsStream::state() const {
  const OpenSsl& openssl = credentials_->openssl;
  return {openssl.SSL_get_version(ssl_), openssl.SSL_session_reused(ssl_) == 1, find_peer_expiry(),
          credentials_->own_expiry_s};
}

}  // namespace mycojobs
