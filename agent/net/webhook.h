// Webhooks as specified at https://www.standardwebhooks.com: HTTP POST with the headers webhook-id, webhook-timestamp
// and, with secrets, webhook-signature. The functions are thread-safe, except that an HttpClient belongs to one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "net/http_client.h"

namespace mycojobs {

// Reads a file with a secret on each line: "whsec_" followed by base64, or any text of at least 16 bytes. Empty lines
// and lines with # are skipped. Errors `io` and `invalid` name the file and the line, but never its content.
Result<std::vector<std::string>> read_webhook_secrets(const std::string& path);

// Returns "v1,<base64>" for each secret, separated by blanks.
std::string sign_webhook(const std::vector<std::string>& secrets, std::string_view id, std::uint64_t unix_s,
                         std::string_view body);

struct WebhookCall {
  std::string url, id, body;
  std::vector<std::string> secrets;  // empty if the request is not signed
  std::uint64_t unix_s = 0;
  const std::atomic<bool>* stop = nullptr;
  std::string ca = {};  // see HttpPost
};
// Succeeds if the answer is 2xx within 10 s. Otherwise the error contains the answer, and the call can be retried.
Result<void> call_webhook(HttpClient&, const WebhookCall&);

}  // namespace mycojobs
