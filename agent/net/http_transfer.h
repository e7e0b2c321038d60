// HTTP requests whose bodies are files, with libcurl: bodies are neither read nor stored as a whole in memory.
// Connections are reused. Not thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "net/networks.h"

namespace mycojobs {

struct CurlHandle;

class HttpTransfer {
 public:
  struct Request {
    std::string method = "GET";  // GET, PUT, POST or DELETE
    std::string url;
    std::vector<std::string> headers = {};  // "name: value"
    // The body of PUT and POST: `body`, or a range of a file if `file` is not -1.
    std::string_view body = {};
    int file = -1;
    std::uint64_t file_offset = 0, file_bytes = 0;
    // Receives the body of an answer with status 200 or 206, in pieces. An error ends the transfer and is returned.
    // Without it, the body is collected in Answer::body.
    std::function<Result<void>(std::string_view)> on_body = nullptr;
    int body_status = 0;                      // if not 0, an answer with another status ends at its head
    std::string ca = {};                      // as in HttpPost
    const std::atomic<bool>* stop = nullptr;  // true ends the transfer within a second
    // SHA-256 of the public key of the server, as hex digits. If set, only a server with this key is accepted, and the
    // name, the CA and the validity of its certificate are not checked. REQUIRES: the address begins with https://.
    std::string server_key_sha256 = {};
    const Networks* networks = nullptr;  // as in HttpPost
    std::uint32_t connect_timeout_ms = 5000;
    std::uint32_t min_bytes_per_s = 1024, silence_s = 30;  // a transfer that is slower for this time is ended
  };
  struct Answer {
    int status = 0;
    std::map<std::string, std::string> headers = {};  // by lower-case name
    std::string body = {};                            // of an error, or without on_body
  };

  HttpTransfer();
  ~HttpTransfer();
  HttpTransfer(const HttpTransfer&) = delete;
  HttpTransfer& operator=(const HttpTransfer&) = delete;

  // The certificate of the server is verified. Redirects are not followed, and no proxy is used. Errors: unavailable
  // (no complete answer; the message has no URL), denied (outside of the networks), io (libcurl is missing), too_large
  // (an answer without on_body), those of on_body.
  Result<Answer> perform(const Request&);

 private:
  std::unique_ptr<CurlHandle> handle_;  // null before the first call
};

}  // namespace mycojobs
