// The examples that AWS publishes for Signature Version 4 of S3 ("Authenticating Requests: Using the Authorization
// Header"), with its example credentials.
#include "net/aws_signature.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/sha256.h"

namespace mycojobs {
namespace {

const AwsCredentials kExampleCredentials{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};

AwsRequest make_example(std::string method, std::string path, std::map<std::string, std::string> query = {}) {
  AwsRequest request{std::move(method), std::move(path), std::move(query), {}};
  request.headers = {{"host", "examplebucket.s3.amazonaws.com"},
                     {"x-amz-content-sha256", sha256_hex("")},
                     {"x-amz-date", "20130524T000000Z"}};
  return request;
}

std::string sign_example(const AwsRequest& request) {
  const std::string header = sign_aws_request(request, kExampleCredentials, "us-east-1");
  EXPECT_THAT(header, testing::StartsWith(
                          "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"));
  return header.substr(header.find("Signature=") + 10);
}

TEST(AwsSignature, GetObject) {
  AwsRequest request = make_example("GET", "/test.txt");
  request.headers["range"] = "bytes=0-9";
  EXPECT_EQ(sign_example(request), "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST(AwsSignature, PutObject) {
  AwsRequest request = make_example("PUT", "/test$file.text");
  request.headers["date"] = "Fri, 24 May 2013 00:00:00 GMT";
  request.headers["x-amz-storage-class"] = "REDUCED_REDUNDANCY";
  request.headers["x-amz-content-sha256"] = sha256_hex("Welcome to Amazon S3.");
  EXPECT_EQ(sign_example(request), "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

TEST(AwsSignature, QueryWithoutValue) {
  EXPECT_EQ(sign_example(make_example("GET", "/", {{"lifecycle", ""}})),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

TEST(AwsSignature, ListObjects) {
  EXPECT_EQ(sign_example(make_example("GET", "/", {{"prefix", "J"}, {"max-keys", "2"}})),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(AwsSignature, EncodedTexts) {
  EXPECT_EQ(encode_aws_uri("a/b c~+\xc3\xa4", true), "a/b%20c~%2B%C3%A4");
  EXPECT_EQ(encode_aws_uri("a/b", false), "a%2Fb");
  EXPECT_EQ(encode_aws_query({{"a-", "1"}, {"a", "2"}, {"B", "/"}}), "B=%2F&a=2&a-=1");
  EXPECT_EQ(format_aws_time(1369353600), "20130524T000000Z");
}

}  // namespace
}  // namespace mycojobs
