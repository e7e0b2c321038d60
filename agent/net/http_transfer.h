// Sends HTTP requests with libcurl. Bodies can be files, which are sent and received in pieces, so that a large file
// does not occupy memory. Connections are reused. Not thread-safe.
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
    // Receives the body of an answer in pieces. An error of the function ends the transfer, and perform() returns the
    // error. If null, or for other answers than those of body_status, the body is stored in Answer::body.
    std::function<Result<void>(std::string_view)> on_body = nullptr;
    // Only bodies of answers with this status are passed to on_body; 0 means 200 and 206. If not 0, the body of an
    // answer with another status is not received.
    int body_status = 0;
    std::string ca = {};                      // as in HttpPost
    const std::atomic<bool>* stop = nullptr;  // true ends the transfer within a second
    // SHA-256 of the public key of the server, as hex digits. If set, only a server with this key is accepted, and the
    // name, the CA and the validity of its certificate are not checked. REQUIRES: the address begins with https://.
    std::string server_key_sha256 = {};
    const Networks* networks = nullptr;  // as in HttpPost
    std::uint32_t connect_timeout_ms = 5000;
    std::uint32_t min_bytes_per_s = 1024, max_slow_s = 30;  // a transfer ends if its rate is too low for max_slow_s
  };
  struct Answer {
    int status = 0;
    std::map<std::string, std::string> headers = {};  // by lower-case name
    std::string body = {};                            // without the bytes that were passed to on_body
  };

  HttpTransfer();
  ~HttpTransfer();
  HttpTransfer(const HttpTransfer&) = delete;
  HttpTransfer& operator=(const HttpTransfer&) = delete;

  // Sends a request, and waits for the answer. Verifies the certificate of the server. Does not follow redirects, and
  // does not use proxies. Errors: unavailable (no complete answer; the message has no URL), denied (the address is
  // outside of the networks), io (libcurl is missing, or the file cannot be read), too_large (Answer::body would be too
  // large), and the errors of on_body.
  Result<Answer> perform(const Request&);

 private:
  std::unique_ptr<CurlHandle> handle_;  // null before the first call
};

}  // namespace mycojobs
