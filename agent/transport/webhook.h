// A webhook as https://www.standardwebhooks.com describes it: HTTP POST with the headers webhook-id, webhook-timestamp
// and, with secrets, webhook-signature. One thread; the functions: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/result.h"
#include "transport/http_client.h"

namespace mycojobs {

// One a line, "whsec_" with base64 behind it, or any text of 16 bytes or more; empty lines and those with # are passed
// over. Error io or invalid: names the file and the line, never what stands there.
Result<std::vector<std::string>> read_webhook_secrets(const std::string& path);

// "v1,<base64>", one for each secret, with a blank between.
std::string webhook_signature(const std::vector<std::string>& secrets, std::string_view id, std::uint64_t unix_s,
                              std::string_view body);

struct WebhookCall {
  std::string url, id, body;
  std::vector<std::string> secrets;  // empty: not signed
  std::uint64_t unix_s = 0;
  const std::atomic<bool>* stop = nullptr;
};
// Answered with 2xx within 10 s. Else the error says what came, and is worth another try.
Result<void> call_webhook(HttpClient&, const WebhookCall&);

}  // namespace mycojobs
