// Memory of an idle agent as counted by the kernel. The limits do not depend on time.
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "e2e/world.h"

namespace mycojobs::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCountsShadows = true;  // memory of the sanitizer
#else
constexpr bool kCountsShadows = false;
#endif

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Returns the process and all its descendants.
std::vector<pid_t> find_process_tree(pid_t root) {
  std::vector<pid_t> found{root};
  for (std::size_t i = 0; i < found.size(); ++i) {
    std::istringstream children(
        read_text("/proc/" + std::to_string(found[i]) + "/task/" + std::to_string(found[i]) + "/children"));
    for (pid_t child = 0; children >> child;) found.push_back(child);
  }
  return found;
}

// Returns the anonymous memory of a process (the sum over its mappings), or 0 if it has ended.
double anonymous_mib(pid_t pid) {
  const std::string text = read_text("/proc/" + std::to_string(pid) + "/smaps_rollup");
  const auto at = text.find("Anonymous:");
  return at == std::string::npos ? 0 : std::stod(text.substr(at + 10)) / 1024;
}

TEST(Resident, IdleAgentAndItsPythonAreSmall) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_agent(folder, redis, 1);
  const PlainJob job;
  submit(redis, job);
  ASSERT_EQ(wait_for_status(redis, job), "finished") << agent.err();
  int zygotes = 0;
  for (const pid_t pid : find_process_tree(agent.pid())) {
    if (read_text("/proc/" + std::to_string(pid) + "/comm") != "mj-python\n") continue;
    ++zygotes;
    if (!kCountsShadows) {
      EXPECT_LT(anonymous_mib(pid), 22) << "interpreter, modules, and what of huge pages is unused";
    }
  }
  EXPECT_EQ(zygotes, 1);
  EXPECT_GT(anonymous_mib(agent.pid()), 0);
  if (!kCountsShadows) {
    EXPECT_LT(anonymous_mib(agent.pid()), 3);
  }
}

// libcurl loads thirty libraries. An agent whose jobs need no outgoing calls does not load it.
TEST(Resident, LibcurlIsLoadedOnlyByCallers) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_agent(folder, redis, 1);
  const PlainJob job;
  submit(redis, job);
  ASSERT_EQ(wait_for_status(redis, job), "finished") << agent.err();
  const std::string maps = read_text("/proc/" + std::to_string(agent.pid()) + "/maps");
  EXPECT_NE(maps.find("libhiredis"), std::string::npos);
  EXPECT_EQ(maps.find("libcurl"), std::string::npos);
}

}  // namespace
}  // namespace mycojobs::test
