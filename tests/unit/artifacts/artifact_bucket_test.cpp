#include "artifacts/bucket/artifact_bucket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace mycojobs {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class ArtifactBucketTest : public testing::Test {
 protected:
  ArtifactBucketTest() {
    std::filesystem::create_directories(folder_);
    write_credentials("aws_access_key_id = KEY\naws_secret_access_key = SECRET\n");
    settings_.url = "s3://bucket/some/prefix";
    settings_.region = "eu-central-1";
    settings_.credentials = folder_ + "/credentials";
  }
  ~ArtifactBucketTest() override { std::filesystem::remove_all(folder_); }
  void write_credentials(const std::string& text, mode_t mode = 0600) {
    std::ofstream(folder_ + "/credentials") << text;
    ::chmod((folder_ + "/credentials").c_str(), mode);
  }
  std::string create_error() {
    const auto bucket = ArtifactBucket::create(settings_);
    return bucket ? "" : bucket.error().message;
  }

  const std::string folder_ = testing::TempDir() + "artifact_bucket_test." + std::to_string(::getpid());
  ArtifactBucket::Settings settings_;
};

TEST_F(ArtifactBucketTest, AcceptsBucketsWithAndWithoutPrefix) {
  for (const char* url : {"s3://bucket", "s3://bucket/jobs", "s3://my.bucket-1/a/b_c.d"}) {
    settings_.url = url;
    EXPECT_EQ(create_error(), "") << url;
  }
}

TEST_F(ArtifactBucketTest, RejectsOtherAddresses) {
  for (const char* url : {"", "bucket", "http://bucket/", "s3://", "s3://ab", "s3://bucket/", "s3://bucket/a/",
                          "s3://bucket//a", "s3://bucket/../a", "s3://bucket/a b", "s3://bu?ket"}) {
    settings_.url = url;
    EXPECT_THAT(create_error(), StartsWith("artifacts.store: ")) << url;
  }
}

TEST_F(ArtifactBucketTest, NamesTheWrongSetting) {
  settings_.endpoint = "s3.example.com";
  EXPECT_THAT(create_error(), StartsWith("artifacts.store_endpoint: "));
  settings_.endpoint = "";
  settings_.region = "eu/1";
  EXPECT_THAT(create_error(), StartsWith("artifacts.store_region: "));
  settings_.region = "eu-1";
  settings_.credentials = "";
  EXPECT_THAT(create_error(), StartsWith("artifacts.store_credentials: "));
}

TEST_F(ArtifactBucketTest, CredentialsAreReadableForTheirOwnerOnly) {
  write_credentials("aws_access_key_id = KEY\naws_secret_access_key = SECRET\n", 0640);
  EXPECT_THAT(create_error(), HasSubstr("mode 0640 gives other users access: chmod 600"));
  write_credentials("aws_secret_access_key = SECRET\n");
  EXPECT_THAT(create_error(), Not(HasSubstr("SECRET")));
  EXPECT_THAT(create_error(), HasSubstr("aws_access_key_id"));
}

TEST_F(ArtifactBucketTest, ManagedCredentialIsALinkThatAGroupCanRead) {
  const std::string managed = folder_ + "/managed";
  std::filesystem::create_directories(managed + "/data");
  std::filesystem::rename(settings_.credentials, managed + "/data/credentials");
  ::chmod((managed + "/data/credentials").c_str(), 0440);
  std::filesystem::create_symlink("data/credentials", managed + "/credentials");
  settings_.credentials = managed + "/credentials";
  EXPECT_THAT(create_error(), StartsWith("artifacts.store_credentials: "));
  ::setenv("CREDENTIALS_DIRECTORY", managed.c_str(), 1);
  EXPECT_EQ(create_error(), "");
  ::chmod((managed + "/data/credentials").c_str(), 0444);
  EXPECT_THAT(create_error(), HasSubstr("mode 0444"));
  ::unsetenv("CREDENTIALS_DIRECTORY");
}

TEST(AwsCredentialsFile, HasTheFormatOfOtherTools) {
  const auto credentials = parse_aws_credentials(
      "# of the backup user\n[default]\naws_access_key_id=KEY\r\naws_secret_access_key = a/b+c==\n\n"
      "aws_session_token = token\nregion = eu\n");
  ASSERT_TRUE(credentials) << credentials.error().message;
  EXPECT_EQ(*credentials, (AwsCredentials{"KEY", "a/b+c==", "token"}));
  EXPECT_FALSE(parse_aws_credentials("aws_access_key_id = a b\naws_secret_access_key = c\n"));
}

}  // namespace
}  // namespace mycojobs
