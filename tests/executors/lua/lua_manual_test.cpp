// Runs every example of the manual's pages on Lua unchanged, in the sandbox, with the policy that the example names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "lua_driver.h"
#include "lua_servers.h"
#include "model/policy_json.h"
#include "security/profiles.h"
#include "support/build_paths.h"

namespace mycojobs::test {
namespace {

// Returns the blocks of Lua code of a page.
std::vector<std::string> extract_code_blocks(const std::string& page) {
  std::vector<std::string> blocks;
  std::ifstream file(mj::test::source_path("docs/executors/") + page);
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line == "```lua") {
      inside = true;
      blocks.emplace_back();
    } else if (line == "```") {
      inside = false;
    } else if (inside) {
      blocks.back() += line + "\n";
    }
  }
  return blocks;
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t position = 0; (position = text.find(from, position)) != std::string::npos; position += to.size())
    text.replace(position, from.size(), to);
}

// Returns the profile of the executor with the changes of the lines "-- policy: name = value".
Policy make_policy(const std::string& block, const std::string& executor) {
  std::string json;
  std::istringstream lines(block);
  const std::string prefix = "-- policy: ";
  for (std::string line; std::getline(lines, line) && line.starts_with(prefix);) {
    const std::size_t equals = line.find(" = ");
    json += (json.empty() ? "\"" : ",\"") + line.substr(prefix.size(), equals - prefix.size()) +
            "\":" + line.substr(equals + 3);
  }
  const ParsedPolicy parsed = read_policy("{" + json + "}", "policy");
  EXPECT_TRUE(parsed.ok()) << json;
  Policy policy = profile(executor);
  const Policy& requested = parsed.request.values;
  policy.exec = requested.exec || policy.exec;
  if (parsed.request.names(PolicyField::pids)) policy.pids = requested.pids;
  policy.fs_write = requested.fs_write;
  policy.network = requested.network;
  policy.net_allow = requested.net_allow;
  return policy;
}

// A folder that can be granted to a job. The examples call it /srv/data.
class GrantedFolder {
 public:
  GrantedFolder() {
    if (::mkdtemp(path_) == nullptr) throw std::runtime_error("mkdtemp");
    std::filesystem::permissions(path_, std::filesystem::perms(0777));
  }
  ~GrantedFolder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_; }

 private:
  char path_[32] = "/var/tmp/mycojobs-lua-XXXXXX";
};

TEST(LuaManual, EveryExampleOfSalRuns) {
  const auto blocks = extract_code_blocks("sal.md");
  ASSERT_GT(blocks.size(), 10U);
  const GrantedFolder folder;
  const RedisServer redis;
  const HttpServer web(
      [](const std::string& head, const std::string&) { return format_http_response("200 OK", head); });
  const HttpServer mycelium(make_mycelium_handler());
  for (std::string block : blocks) {
    // Without a grant, the path stays unchanged, because the example is about the denial.
    if (block.find("-- policy: fs.write") != std::string::npos) replace_all(block, "/srv/data", folder.path());
    replace_all(block, "127.0.0.1:6379", "127.0.0.1:" + std::to_string(redis.port()));
    replace_all(block, "127.0.0.1:8080", "127.0.0.1:" + std::to_string(web.port()));
    replace_all(block, "\"127.0.0.1\", 8080", "\"127.0.0.1\", " + std::to_string(web.port()));
    replace_all(block, "127.0.0.1:8989", "127.0.0.1:" + std::to_string(mycelium.port()));
    const LuaRunResult result = run_lua_confined(LuaJob{.script = block, .policy = make_policy(block, "sal")});
    EXPECT_EQ(result.end.error, "") << block << result.err;
    EXPECT_EQ(result.end.status, JobStatus::finished) << block << result.outcome.reason;
  }
}

TEST(LuaManual, EveryExampleOfOsisRuns) {
  const auto blocks = extract_code_blocks("osis.md");
  ASSERT_FALSE(blocks.empty());
  for (const std::string& block : blocks) {
    FakeObjects objects;
    const LuaRunResult result =
        run_lua_confined(LuaJob{.script = block,
                                .executor = "osis",
                                .policy = make_policy(block, "osis"),
                                .agent = [&](const std::string& call) { return objects.answer(call); }});
    EXPECT_EQ(result.end.error, "") << block << result.err;
    EXPECT_GT(objects.calls, 0U);
  }
}

}  // namespace
}  // namespace mycojobs::test
