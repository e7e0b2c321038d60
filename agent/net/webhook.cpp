#include "net/webhook.h"

#include <cerrno>
#include <fstream>

#include "base/errno_text.h"
#include "base/sha256.h"
#include "text/base64.h"

namespace mycojobs {
namespace {

constexpr std::uint32_t kTimeoutMs = 10000;
constexpr std::size_t kMinSecretBytes = 16, kMaxSecretBytes = 1024;
constexpr std::string_view kBase64Prefix = "whsec_";

// Returns an empty text if the line is not a secret.
std::string parse_secret(std::string_view line) {
  if (!line.starts_with(kBase64Prefix)) return std::string(line);
  line.remove_prefix(kBase64Prefix.size());
  return decode_base64(line).value_or("");
}

}  // namespace

Result<std::vector<std::string>> read_webhook_secrets(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    const bool is_missing = errno == ENOENT || errno == ENOTDIR;
    return fail(is_missing ? Code::not_found : Code::io,
                path + ": " + errno_text(errno) + " (coordinator.webhook_secrets)");
  }
  std::vector<std::string> secrets;
  std::string line;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (line.empty() || line[0] == '#') continue;
    std::string secret = parse_secret(line);
    if (secret.size() < kMinSecretBytes || secret.size() > kMaxSecretBytes) {
      return fail(Code::invalid, path + ": line " + std::to_string(number) +
                                     " is not a secret: use whsec_ and base64 of 16 to 1024 bytes, for example "
                                     "whsec_$(openssl rand -base64 32)");
    }
    secrets.push_back(std::move(secret));
  }
  if (secrets.empty()) return fail(Code::invalid, path + ": has no secret in it (coordinator.webhook_secrets)");
  return secrets;
}

std::string sign_webhook(const std::vector<std::string>& secrets, std::string_view id, std::uint64_t unix_s,
                         std::string_view body) {
  std::string text(id), signatures;
  text.append(".").append(std::to_string(unix_s)).append(".").append(body);
  for (const std::string& secret : secrets) {
    if (!signatures.empty()) signatures += ' ';
    signatures += "v1," + encode_base64(hmac_sha256(secret, text));
  }
  return signatures;
}

Result<void> call_webhook(HttpClient& http, const WebhookCall& call) {
  HttpPost post;
  post.url = call.url;
  post.body = call.body;
  post.timeout_ms = kTimeoutMs;
  post.max_bytes = 0;  // the answer's body is not used
  post.stop = call.stop;
  post.ca = call.ca;
  post.headers = {"webhook-id: " + call.id, "webhook-timestamp: " + std::to_string(call.unix_s)};
  if (!call.secrets.empty())
    post.headers.push_back("webhook-signature: " + sign_webhook(call.secrets, call.id, call.unix_s, call.body));
  MJ_TRY(answer, http.post(post));
  if (answer.status < 200 || answer.status > 299)
    return fail(Code::unavailable, call.url + ": answers " + std::to_string(answer.status));
  return {};
}

}  // namespace mycojobs
