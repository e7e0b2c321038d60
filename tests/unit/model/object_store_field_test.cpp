#include <gtest/gtest.h>

#include "model/artifact.h"

namespace mycojobs {
namespace {

const std::string kHash(64, 'a');
const std::string kArtifacts = R"({"a":{"bytes":1,"sha256":")" + kHash + R"(","text":true}})";
constexpr const char* kUrl = "s3://bucket/prefix";

TEST(ObjectStoreField, IsSetAndRemoved) {
  const std::string stored = set_object_store(kArtifacts, kUrl);
  ASSERT_EQ(read_artifact_list(stored).size(), 1U);
  EXPECT_EQ(read_artifact_list(stored)[0].object_store, kUrl);
  EXPECT_EQ(set_object_store(stored, ""), kArtifacts);
  EXPECT_EQ(read_artifact_list(kArtifacts)[0].object_store, "");
}

TEST(ObjectStoreField, OtherTextIsUnchanged) {
  for (const std::string text : {"", "[]", "x", R"({"a":1})"}) EXPECT_EQ(set_object_store(text, kUrl), text);
}

TEST(ObjectStoreField, IsNotPartOfMessages) {
  RemoteInput input;
  input.id = 7;
  input.artifacts = set_object_store(kArtifacts, kUrl);
  const auto received = parse_remote_inputs(remote_inputs_to_json({input}));
  ASSERT_TRUE(received);
  EXPECT_EQ(received->at(0).artifacts, kArtifacts);
}

}  // namespace
}  // namespace mycojobs
