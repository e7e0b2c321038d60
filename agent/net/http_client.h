// HTTP POST, GET and PUT with libcurl, to supervisors of other hosts and to a coordinator. Connections are reused. Not
// thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "net/networks.h"

namespace mycojobs {

struct CurlHandle;

// Checks the address of a supervisor: an http:// or https:// address within the networks of the operator. Called where
// the address is set; HttpClient checks the resolved address again for each call.
//
// An empty address and an address of another transport are accepted, since they are not called over HTTP. A name that
// cannot be resolved now is accepted too. Errors: `invalid` (not a plain host and port), `denied` (outside of the
// networks).
Result<void> check_supervisor_address(const std::string& url, const Networks&);

struct HttpPost {
  std::string url, body;
  std::string bearer;  // token, or empty
  std::uint32_t timeout_ms = 30000;
  std::size_t max_bytes = 64U << 20;  // maximum size of the answer; 0 drops the answer
  // Networks of addresses that may be connected to, checked after the name is resolved. Null permits any address. Must
  // outlive the call.
  const Networks* networks = nullptr;
  std::vector<std::string> headers = {};    // "name: value"
  const std::atomic<bool>* stop = nullptr;  // true ends the call within a second; null if the call cannot be stopped
  // File with the certificates of trusted CAs, PEM, for https:// (the setting https.ca). Empty: the CAs of the system.
  std::string ca = {};
  bool verifies_server = true;  // false: any certificate is accepted. REQUIRES: the call sends nothing secret.
};
struct HttpAnswer {
  int status = 0;
  std::string body;
};

class HttpClient {
 public:
  HttpClient();
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  // Redirects are not followed, so that a token is sent only to the given address. No proxy is used. Errors:
  // `unavailable` (no answer in time; "URL: TLS: ..." for a rejected certificate or a failed handshake), `io` (libcurl
  // is missing), `invalid` (not an address), `denied` (outside of the networks), `too_large`.
  Result<HttpAnswer> post(const HttpPost& call) { return perform(call, Verb::post); }
  Result<HttpAnswer> get(const HttpPost& call) { return perform(call, Verb::get); }  // the body is not sent
  // Sends a file from its first byte on in place of the body (PUT).
  Result<HttpAnswer> put_file(const HttpPost& call, int fd, std::uint64_t bytes) {
    return perform(call, Verb::put, fd, bytes);
  }

 private:
  Result<void> open();  // on the first call, so that a process without calls does not load libcurl
  enum class Verb { get, post, put };
  Result<HttpAnswer> perform(const HttpPost&, Verb, int fd = -1, std::uint64_t file_bytes = 0);
  std::unique_ptr<CurlHandle> handle_;  // null before the first call
};

}  // namespace mycojobs
