#include "net/aws_signature.h"

#include <algorithm>
#include <ctime>
#include <utility>
#include <vector>

#include "base/parse.h"
#include "base/sha256.h"

namespace mycojobs {
namespace {

constexpr std::size_t kDateDigits = 8;  // YYYYMMDD at the beginning of x-amz-date

}  // namespace

std::string encode_aws_uri(std::string_view text, bool keeps_slashes) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const bool is_plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
                          c == '.' || c == '_' || c == '~' || (c == '/' && keeps_slashes);
    if (is_plain) {
      encoded += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    encoded += '%';
    encoded += kDigits[byte >> 4U];
    encoded += kDigits[byte & 15U];
  }
  return encoded;
}

std::string encode_aws_query(const std::map<std::string, std::string>& query) {
  std::vector<std::pair<std::string, std::string>> encoded;
  for (const auto& [name, value] : query)
    encoded.emplace_back(encode_aws_uri(name, false), encode_aws_uri(value, false));
  std::sort(encoded.begin(), encoded.end());
  std::string text;
  for (const auto& [name, value] : encoded) text += (text.empty() ? "" : "&") + name + '=' + value;
  return text;
}

std::string format_aws_time(std::int64_t unix_s) {
  const auto time = static_cast<std::time_t>(unix_s);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  char text[32] = "";
  const std::size_t size = std::strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &parts);
  return {text, size};
}

std::string sign_aws_request(const AwsRequest& request, const AwsCredentials& credentials, const std::string& region) {
  const std::string& time = request.headers.at("x-amz-date");
  const std::string date = time.substr(0, kDateDigits);
  std::string headers, names;
  for (const auto& [name, value] : request.headers) {
    headers += name + ':' + value + '\n';
    names += (names.empty() ? "" : ";") + name;
  }
  const std::string canonical_request = request.method + '\n' + encode_aws_uri(request.path, true) + '\n' +
                                        encode_aws_query(request.query) + '\n' + headers + '\n' + names + '\n' +
                                        request.headers.at("x-amz-content-sha256");
  const std::string scope = date + '/' + region + "/s3/aws4_request";
  const std::string text = "AWS4-HMAC-SHA256\n" + time + '\n' + scope + '\n' + sha256_hex(canonical_request);
  std::string key = hmac_sha256("AWS4" + credentials.secret_access_key, date);
  for (const std::string& part : {region, std::string("s3"), std::string("aws4_request")}) key = hmac_sha256(key, part);
  return "AWS4-HMAC-SHA256 Credential=" + credentials.access_key_id + '/' + scope + ",SignedHeaders=" + names +
         ",Signature=" + to_hex(hmac_sha256(key, text));
}

}  // namespace mycojobs
