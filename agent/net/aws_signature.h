// Signs HTTP requests for object storage (S3) with AWS Signature Version 4. The hash of the body is part of the
// signature, so the server detects a changed body. libcurl can sign, too, but version 7.88 (Debian 12) does not sort
// the parameters of a query before it signs them. Pure and thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace mycojobs {

struct AwsCredentials {
  std::string access_key_id, secret_access_key;
  std::string session_token = {};  // for temporary credentials; usually empty
  bool operator==(const AwsCredentials&) const = default;
};

struct AwsRequest {
  std::string method;
  std::string path;                          // begins with '/', not encoded
  std::map<std::string, std::string> query;  // not encoded
  // All headers that are signed, by lower-case name. REQUIRES: has `host`, `x-amz-content-sha256` and `x-amz-date`.
  std::map<std::string, std::string> headers;
};

// Encodes a text as AWS requires: all bytes except A-Z a-z 0-9 - . _ ~ become %XX.
std::string encode_aws_uri(std::string_view text, bool keeps_slashes);
// Returns the query in the order of its encoded names, as it is sent and signed: "list-type=2&prefix=a%2F".
std::string encode_aws_query(const std::map<std::string, std::string>& query);
// Returns the value of the header x-amz-date: "20130524T000000Z".
std::string format_aws_time(std::int64_t unix_s);
// Returns the value of the header Authorization.
std::string sign_aws_request(const AwsRequest&, const AwsCredentials&, const std::string& region);

}  // namespace mycojobs
