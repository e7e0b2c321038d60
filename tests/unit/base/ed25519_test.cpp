#include "base/ed25519.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/parse.h"
#include "support/process.h"

namespace mycojobs {
namespace {

using test::TempDir;

// Test vectors 1 and 2 of RFC 8032, section 7.1.
TEST(Ed25519, SignsAndVerifiesTheStandardVectors) {
  const TempDir folder;
  struct {
    std::string seed, key, bytes, signature;
  } const vectors[] = {
      {"9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
       "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
       "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe2"
       "4"
       "655141438e7a100b"},
      {"4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
       "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "\x72",
       "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302ae"
       "e"
       "b00d291612bb0c00"},
  };
  for (const auto& test_vector : vectors) {
    const std::string file = folder.write(test_vector.key, "mycojobs-ed25519-secret:" + test_vector.seed + "\n");
    ::chmod(file.c_str(), 0600);
    const auto key = SigningKey::load(file);
    ASSERT_TRUE(key) << key.error().message;
    EXPECT_EQ(key->public_key(), test_vector.key);
    EXPECT_EQ(key->sign(test_vector.bytes), test_vector.signature);
    EXPECT_TRUE(verify_ed25519(test_vector.key, test_vector.bytes, test_vector.signature));
    EXPECT_FALSE(verify_ed25519(test_vector.key, test_vector.bytes + "x", test_vector.signature));
  }
  EXPECT_FALSE(verify_ed25519(vectors[0].key, vectors[1].bytes, vectors[1].signature))
      << "the key belongs to another signature";
}

TEST(Ed25519, OnlyHexOfTheRightLengthIsParsed) {
  const SigningKey key = SigningKey::make();
  const std::string signature = key.sign("text");
  EXPECT_TRUE(verify_ed25519(key.public_key(), "text", signature));
  std::string upper = key.public_key();
  for (char& character : upper) character = static_cast<char>(std::toupper(character));
  const std::string invalid_texts[] = {
      "", "00", key.public_key() + "00", upper, std::string(64, 'x'), std::string(64, '\0')};
  for (const std::string& invalid : invalid_texts) {
    EXPECT_FALSE(verify_ed25519(invalid, "text", signature)) << invalid;
    EXPECT_FALSE(is_public_key(invalid)) << invalid;
    EXPECT_FALSE(verify_ed25519(key.public_key(), "text", invalid)) << invalid;
  }
  EXPECT_TRUE(is_public_key(key.public_key()));
  EXPECT_FALSE(is_public_key("01" + std::string(62, '0'))) << "a point of small order verifies every signature";
}

TEST(Ed25519, KeyIsReadableOnlyByItsOwner) {
  const TempDir folder;
  const std::string file = folder / "alice.key";
  const SigningKey key = SigningKey::make();
  ASSERT_TRUE(key.save(file));
  struct stat info {};
  ASSERT_EQ(::stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600U);
  const auto loaded_key = SigningKey::load(file);
  ASSERT_TRUE(loaded_key) << loaded_key.error().message;
  EXPECT_EQ(loaded_key->public_key(), key.public_key());
  EXPECT_EQ(loaded_key->sign("text"), key.sign("text"));
  EXPECT_EQ(key.save(file).error().code, Code::conflict);
  EXPECT_EQ(SigningKey::load(folder / "none").error().code, Code::not_found);
  ::chmod(file.c_str(), 0640);
  EXPECT_EQ(SigningKey::load(file).error().code, Code::denied);
  const std::string invalid_key_files[] = {
      "", "mycojobs-ed25519-secret:", "mycojobs-ed25519-secret:" + std::string(62, 'a'),
      "mycojobs-ed25519-secret:" + std::string(66, 'a'), std::string(100000, 'a')};
  for (const std::string& invalid : invalid_key_files) {
    const std::string path = folder.write("rubbish", invalid);
    ::chmod(path.c_str(), 0600);
    const auto loaded = SigningKey::load(path);
    ASSERT_FALSE(loaded) << invalid.size();
    EXPECT_EQ(loaded.error().code, Code::invalid);
  }
  EXPECT_EQ(SigningKey::load(folder.path()).error().code, Code::invalid) << "a folder";
}

}  // namespace
}  // namespace mycojobs
