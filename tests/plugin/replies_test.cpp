// Replies of a plugin are untrusted input: each fault is named.
#include "executors/plugin/plugin_json.h"

#include <gtest/gtest.h>

#include "text/base64.h"

namespace mycojobs::plugin {
namespace {

std::string prepare_problem(const std::string& more) {
  const auto read = parse_prepare_reply(R"({"command": ["/bin/cat"])" + (more.empty() ? "" : ", " + more) + "}");
  return read ? "" : read.error().message;
}

std::string files_problem(const std::string& path, const std::string& file = R"({"text": ""})") {
  return prepare_problem(R"("files": {")" + path + "\": " + file + "}");
}

TEST(PluginReplies, OfPrepareAreReadCompletely) {
  const auto read = parse_prepare_reply(R"({"command": ["/bin/cat", "{script}"], "script_file": "a.txt",
    "environment": {"A": "b"}, "files": {"lib/x": {"base64": "AP8=", "mode": "0700"}, "y": {"text": "z"}},
    "notes": ["one\ntwo"]})");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->command, (std::vector<std::string>{"/bin/cat", "{script}"}));
  EXPECT_EQ(read->script_file, "a.txt");
  EXPECT_EQ(read->environment, (TextMap{{"A", "b"}}));
  ASSERT_EQ(read->files.size(), 2U);
  EXPECT_EQ(read->files[0].bytes, std::string("\0\xff", 2));
  EXPECT_EQ(read->files[0].mode, 0700U);
  EXPECT_EQ(read->files[1].mode, 0644U);
  EXPECT_EQ(read->notes, std::vector<std::string>{"one two"});
}

TEST(PluginReplies, RejectionContainsOnlyItsReason) {
  EXPECT_EQ(parse_prepare_reply(R"({"error": "no", "field": "script"})")->refusal->field, "script");
  EXPECT_FALSE(parse_prepare_reply(R"({"error": ""})"));
  EXPECT_FALSE(parse_prepare_reply(R"({"error": "no", "command": ["/bin/cat"]})"));
  EXPECT_EQ(parse_probe_reply(R"({"error": "no"})")->refusal->reason, "no");
}

TEST(PluginReplies, MissingProgramIsInvalid) {
  for (const char* text : {"{}", R"({"command": []})", R"({"command": [1]})", R"({"command": ["cat"]})",
                           R"({"command": ["/bin/cat", "a\u0000b"]})", "[]", "null", "", "{\"command\""}) {
    EXPECT_FALSE(parse_prepare_reply(text)) << text;
  }
}

TEST(PluginReplies, StayInTheJobsFolder) {
  EXPECT_EQ(files_problem("a/b"), "");
  for (const char* path : {"", "/etc/passwd", "../x", "a/../b", "a/./b", "a//b", "a/", "artifacts/x", "secrets/x",
                           "inputs", ".result", "script", "script/x", "a\\u0000b"}) {
    EXPECT_NE(files_problem(path), "") << path;
  }
  EXPECT_NE(files_problem(std::string(256, 'x')), "");
  EXPECT_NE(prepare_problem(R"("script_file": "a/b")"), "");
  EXPECT_NE(prepare_problem(R"("script_file": "..")"), "");
}

TEST(PluginReplies, ErrorsInAFileAreNamed) {
  EXPECT_NE(files_problem("a", "{}").find("give either text or base64"), std::string::npos);
  EXPECT_NE(files_problem("a", R"({"text": "", "base64": ""})").find("either text or base64"), std::string::npos);
  EXPECT_NE(files_problem("a", R"({"base64": "A"})").find("it is not base64"), std::string::npos);
  for (const char* mode : {"4755", "0x1", "", "888", "00000001000"})
    EXPECT_NE(files_problem("a", R"({"text": "", "mode": ")" + std::string(mode) + "\"}"), "") << mode;
  EXPECT_NE(files_problem("a", R"({"text": "", "mode": 420})"), "");
}

TEST(PluginReplies, DoNotChangeTheAgentsVariables) {
  EXPECT_EQ(prepare_problem(R"("environment": {"LANG": "C"})"), "");
  for (const char* name : {"MYCOJOBS_RESULT", "", "A=B", "A\\u0000"})
    EXPECT_NE(prepare_problem(R"("environment": {")" + std::string(name) + R"(": "x"})"), "") << name;
}

TEST(PluginReplies, OfInterpretAreAResultAnErrorOrNeither) {
  EXPECT_FALSE(parse_interpret_reply("{}")->result);
  EXPECT_EQ(parse_interpret_reply(R"({"result": {"a": "b"}})")->result->at("a"), "b");
  const auto error = parse_interpret_reply(R"({"error": {"message": "m", "type": "T", "line": 3, "retry": 1.5}})");
  ASSERT_TRUE(error) << error.error().message;
  EXPECT_EQ(error->error_line, 3U);
  EXPECT_EQ(error->retry_after_ms, 1500U);
  EXPECT_TRUE(parse_interpret_reply(R"({"error": {"message": "m", "retry": false}})")->retry_forbidden);
  for (const char* text :
       {R"({"result": {}, "error": {"message": "m"}})", R"({"error": "m"})", R"({"error": {}})",
        R"({"error": {"message": "m", "line": -1}})", R"({"error": {"message": "m", "line": 5e9}})",
        R"({"error": {"message": "m", "retry": true}})", R"({"error": {"message": "m", "retry": -1}})",
        R"({"result": []})", R"({"result": {"a": 1}})", R"({"results": {}})"}) {
    EXPECT_FALSE(parse_interpret_reply(text)) << text;
  }
}

TEST(Base64, MatchesTheRfc) {
  EXPECT_EQ(decode_base64(""), "");
  EXPECT_EQ(decode_base64("Zg=="), "f");
  EXPECT_EQ(decode_base64("Zm8="), "fo");
  EXPECT_EQ(decode_base64("Zm9vYmFy"), "foobar");
  EXPECT_EQ(decode_base64("+/+/"), "\xfb\xff\xbf");
  for (const char* bytes : {"", "f", "fo", "foo", "\xfb\xff\xbf"})
    EXPECT_EQ(decode_base64(encode_base64(bytes)), bytes);
  for (const char* text : {"Z", "Zg", "Zg=", "Zh==", "Zm9=", "====", "Zg==Zg==", "Zm 9", "Zm-_"})
    EXPECT_FALSE(decode_base64(text)) << text;
}

}  // namespace
}  // namespace mycojobs::plugin
