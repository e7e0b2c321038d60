// TLS over stream sockets, with OpenSSL (net/openssl.h): TLS 1.2 and newer, verification of the peer, resumption of
// sessions, and certificates that are read again when their files change. Nothing here writes to a closed socket with a
// signal (SIGPIPE), and no message contains a key.
//
//   TlsContext context(settings);
//   MJ_TRY(stream, TlsStream::open(context, socket.get(), "redis.example.org", "redis.example.org:6379"));
//   MJ_CHECK(stream->handshake(deadline));
//   MJ_CHECK(stream->send_all("PING\r\n", deadline));
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "base/deadline.h"
#include "base/result.h"

struct ssl_st;  // SSL of OpenSSL

namespace mycojobs {

enum class TlsRole { client, server };

struct TlsSettings {
  std::string table = "redis_tls";  // name of the table with these settings, for messages
  // File or folder with the certificates of trusted CAs, PEM. Empty: a client trusts the CAs of the system, and a
  // server requires no certificates of clients.
  std::string ca;
  std::string certificate;  // file with the own certificate and the certificates of its CAs, PEM; empty: none
  std::string key;          // file with the private key of the certificate, PEM
  std::string server_name;  // name that the certificate of the server must have; empty: the host of the connection
  bool insecure = false;    // the certificate of the peer is not verified
  bool operator==(const TlsSettings&) const = default;
};

// The protocol and the certificates of a connection. Times are in seconds since the Unix epoch.
struct TlsState {
  std::string protocol;  // "TLSv1.3"
  bool is_resumed = false;
  std::int64_t peer_expiry_s = 0;  // first expiry in the chain of the peer's certificate; 0: no certificate
  std::int64_t own_expiry_s = 0;   // expiry of the own certificate; 0: no certificate
};

struct TlsCredentials;  // certificates and key that TlsContext::load() has read

// The certificates, the key and the resumable sessions of all connections with the same settings. Thread-safe.
class TlsContext {
 public:
  explicit TlsContext(TlsSettings settings, TlsRole role = TlsRole::client)
      : settings_(std::move(settings)), role_(role) {}
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  const TlsSettings& settings() const { return settings_; }
  TlsRole role() const { return role_; }
  // Reads the files if they were not read yet or have changed. If changed files cannot be used, for example because
  // only one of certificate and key was replaced yet, a warning is logged and the previous certificates stay in use.
  // Errors: not_found, io (a file, or OpenSSL itself), denied (other users can read the key), invalid (the content of a
  // file; a certificate without a key). Messages name the setting.
  Result<std::shared_ptr<TlsCredentials>> load();
  // Returns TlsState::own_expiry_s of the next connection. Errors: those of load().
  Result<std::int64_t> load_own_expiry_s();

 private:
  const TlsSettings settings_;
  const TlsRole role_;
  std::mutex mutex_;
  std::shared_ptr<TlsCredentials> credentials_;  // null until the files were read
  std::string rejected_files_;                   // state of changed files that could not be used
  std::string logged_error_;                     // error of the last attempt to read changed files
};

// A TLS connection over a connected, non-blocking stream socket, which the caller owns and closes after the stream.
// After an error the stream must not be used any more, except as is_handshake_pending() permits. Used by one thread.
// Errors of handshake(), send_all(), receive() and receive_available(): unavailable (time-out, closed, no TLS), denied
// (a certificate was rejected, by this side or by the peer).
class TlsStream {
 public:
  // host: name or IP address that the certificate must have, if the settings have no server_name. peer: address of the
  // server, under which its sessions are stored. A server passes two empty texts. Errors: those of TlsContext::load().
  static Result<std::unique_ptr<TlsStream>> open(TlsContext&, int fd, const std::string& host, const std::string& peer);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  Result<void> handshake(Deadline);
  // Like handshake(), but does not wait. Returns true when the handshake is complete; false: call again when the socket
  // is readable, or with needs_output() writable.
  Result<bool> try_handshake();
  Result<void> send_all(std::string_view, Deadline);
  // Receives at least one byte and at most buffer.size() bytes.
  Result<std::size_t> receive(std::span<char> buffer, Deadline);
  // As receive(), without waiting: 0 means that there is no data, for example because only a part of a record has
  // arrived, or a session ticket. The socket must then be readable again before the next call is of use.
  Result<std::size_t> receive_available(std::span<char> buffer);
  // Returns true if data may be available that does not make the socket readable, because it was read from the socket
  // together with earlier data.
  bool has_buffered_input() const;
  void shut_down();  // tells the peer that no more data follows; does not wait

  TlsState state() const;
  // Returns true if handshake() has reached its deadline and may be called again.
  bool is_handshake_pending() const { return has_timed_out_ && !is_established_; }
  bool needs_output() const { return needs_output_; }     // try_handshake() waits until the socket accepts output
  bool has_received() const { return first_byte_ >= 0; }  // any byte, also before the end of the handshake
  bool is_closed_by_peer() const { return is_closed_; }   // the last error was the end of the connection

  // The next functions are for callbacks of OpenSSL only.
  int read_socket(char* data, int size, bool& must_retry);
  int write_socket(const char* data, int size, bool& must_retry);
  void set_verify_error(std::string text) { verify_error_ = std::move(text); }
  std::string_view expected_name() const { return expected_name_; }
  const TlsSettings& settings() const { return settings_; }
  void store_session(void* session);

 private:
  enum class Step { done, needs_input, needs_output, failed };
  TlsStream(const TlsContext&, std::shared_ptr<TlsCredentials>, int fd, std::string host, std::string peer);
  Result<void> prepare_client();
  // Bounds the reads of the next operation of OpenSSL, which reads on as long as the peer sends messages without data.
  void limit_reads(Deadline);
  Step convert_result(int result);
  Result<void> repeat(Deadline, const char* time_out_text, const auto& operation);
  tl::unexpected<Error> make_error();
  std::int64_t find_peer_expiry() const;

  std::shared_ptr<TlsCredentials> credentials_;
  const TlsSettings settings_;
  const TlsRole role_;
  const int fd_;
  const std::string expected_name_, peer_;
  ssl_st* ssl_ = nullptr;
  bool is_established_ = false, is_closed_ = false, has_failed_ = false;
  bool has_timed_out_ = false, needs_output_ = false;
  bool is_drained_ = false;            // the last read has found no data
  int first_byte_ = -1;                // first byte that was received; -1: nothing was received
  int socket_error_ = 0;               // errno of the last failed call on the socket
  unsigned long tls_error_ = 0;        // error of OpenSSL; 0: none
  std::string verify_error_;           // reason why the certificate of the peer was rejected
  std::int64_t resumed_expiry_s_ = 0;  // peer_expiry_s of the connection whose session is resumed
  std::int64_t verified_s_ = 0;        // time at which the certificate of the resumed session was verified
  int reads_left_ = 0;                 // reads of the current operation that may follow after read_deadline_
  Deadline read_deadline_{};
};

}  // namespace mycojobs
