#include "api/auth/tokens.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/sha256.h"
#include "support/process.h"

namespace mycojobs::api {
namespace {

using test::TempDir;

TEST(Tokens, NewTokenIsAcceptedAndNotStoredInPlain) {
  const TempDir folder;
  const std::string file = folder / "tokens";
  const auto token = add_token(file, {12, false, false}, "deploys from CI");
  ASSERT_TRUE(token) << token.error().message;
  const auto machine_room = add_token(file, {0, false, true}, "");
  ASSERT_TRUE(machine_room);
  const std::string text = test::read_file(file);
  EXPECT_EQ(text.find(*token), std::string::npos);
  EXPECT_NE(text.find(sha256_hex(*token) + " 12 deploys from CI\n"), std::string::npos) << text;
  struct stat facts {};
  ASSERT_EQ(::stat(file.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600);

  Tokens tokens(file);
  ASSERT_TRUE(tokens.reload_if_changed());
  ASSERT_TRUE(tokens.find(*token));
  EXPECT_EQ(tokens.find(*token)->actor, 12U);
  EXPECT_FALSE(tokens.find(*token)->operator_token);
  EXPECT_TRUE(tokens.find(*machine_room)->operator_token);
  EXPECT_FALSE(tokens.find(*token + "x"));
  EXPECT_FALSE(tokens.find(""));
  EXPECT_FALSE(tokens.find(sha256_hex(*token)));
  EXPECT_FALSE(tokens.find(std::string(1 << 20, 'x')));
}

TEST(Tokens, ChangedFileIsReloadedAndInvalidFileDeniesAll) {
  const TempDir folder;
  const std::string file = folder / "tokens";
  Tokens tokens(file);
  ASSERT_TRUE(tokens.reload_if_changed());
  EXPECT_FALSE(tokens.has_tokens());
  const std::string token = *add_token(file, {12, false, false}, "");
  ASSERT_TRUE(tokens.reload_if_changed());
  EXPECT_TRUE(tokens.find(token));
  folder.write("tokens", "nonsense\n");
  const auto bad = tokens.reload_if_changed();
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().message.find("line 1"), std::string::npos) << bad.error().message;
  EXPECT_FALSE(tokens.find(token));
  EXPECT_FALSE(tokens.reload_if_changed()) << "a bad file stays bad until it changes";
  std::filesystem::remove(file);
  ASSERT_TRUE(tokens.reload_if_changed());
  EXPECT_FALSE(tokens.has_tokens());
}

TEST(Tokens, FileWritableByOthersIsRejected) {
  const TempDir folder;
  const std::string file = folder / "tokens";
  ASSERT_TRUE(add_token(file, {12, false, false}, ""));
  ASSERT_EQ(::chmod(file.c_str(), 0666), 0);
  Tokens tokens(file);
  const auto refused = tokens.reload_if_changed();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::denied);
  EXPECT_FALSE(tokens.has_tokens());
}

TEST(Tokens, ErrorsContainTheLineOfTheRow) {
  const std::string hash(64, 'a');
  EXPECT_EQ(parse_tokens("# a comment\n\n  " + hash + "\t12  a note \r\n" + hash + " operator")->size(), 2U);
  for (const std::string& row : {hash, hash + " 0", hash + " 4294967296", hash + " -1", hash + " admin",
                                 std::string(64, 'A') + " 12", std::string(63, 'a') + " 12"}) {
    const auto read = parse_tokens("\n" + row);
    ASSERT_FALSE(read) << row;
    EXPECT_EQ(read.error().code, Code::invalid);
    EXPECT_NE(read.error().message.find("line 2"), std::string::npos) << read.error().message;
  }
  EXPECT_FALSE(add_token("/nowhere/tokens", {1, false, false}, ""));
  EXPECT_FALSE(add_token("/tmp/never", {1, false, false}, "two\nlines"));
}

}  // namespace
}  // namespace mycojobs::api
