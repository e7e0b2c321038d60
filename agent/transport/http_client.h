// HTTP POST and GET, by libcurl: to supervisors of other hosts, and to a coordinator. Connections are reused. One
// thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "domain/networks.h"
#include "mycojobs/result.h"

namespace mycojobs {

// Where a supervisor is: an http:// or https:// address, within the networks that the operator has named. Asked where
// the address is set; where it is called, HttpClient looks at what it has resolved to then.
//
// Empty, and what is no http address (of another transport), passes: nobody calls it. A name that does not resolve now
// passes too. Errors: invalid (no plain host and port), denied (outside of the networks).
Result<void> check_supervisor_address(const std::string& url, const Networks&);

struct HttpPost {
  std::string url, body;
  std::string bearer;  // token; empty: none
  std::uint32_t timeout_ms = 30000;
  std::size_t max_bytes = 64U << 20;  // of the answer; 0: it is dropped
  // Addresses that may be connected to, looked at after the name has been resolved; null: any. Outlives the call.
  const Networks* networks = nullptr;
  std::vector<std::string> headers = {};    // "name: value"
  const std::atomic<bool>* stop = nullptr;  // once true, the call ends within a second; null: it runs on
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
  // Redirects are not followed: a token goes to the address that was named and to no other. No proxy.
  // Errors: unavailable (nobody answers in time), io (no libcurl), invalid (no address), denied (outside of the
  // networks), too_large.
  Result<HttpAnswer> post(const HttpPost& call) { return perform(call, false); }
  Result<HttpAnswer> get(const HttpPost& call) { return perform(call, true); }  // its body is not sent

 private:
  Result<void> open();  // with the first call: what calls nobody loads no libcurl
  Result<HttpAnswer> perform(const HttpPost&, bool get);
  struct Handle;
  std::unique_ptr<Handle> handle_;  // null before the first call
};

}  // namespace mycojobs
