// Memory of an idle agent as counted by the kernel. The limits do not depend on time.
#include <unistd.h>

#include "e2e/world.h"

namespace mycojobs::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kHasSanitizer = true;  // the sanitizer's shadow memory would exceed the limits
#else
constexpr bool kHasSanitizer = false;
#endif

// Returns the anonymous memory of a process (the sum over its mappings), or 0 if it has ended.
double read_anonymous_mib(pid_t pid) {
  const std::string text = read_file("/proc/" + std::to_string(pid) + "/smaps_rollup");
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
  int zygote_count = 0;
  for (const pid_t pid : descendants(agent.pid())) {
    if (read_process_name(pid) != "mj-python") continue;
    ++zygote_count;
    if (!kHasSanitizer) {
      EXPECT_LT(read_anonymous_mib(pid), 22) << "interpreter, modules, and the unused parts of huge pages";
    }
  }
  EXPECT_EQ(zygote_count, 1);
  EXPECT_GT(read_anonymous_mib(agent.pid()), 0);
  if (!kHasSanitizer) {
    EXPECT_LT(read_anonymous_mib(agent.pid()), 3);
  }
}

// libcurl loads thirty libraries, among them OpenSSL. An agent whose jobs need no outgoing calls, and whose Redis needs
// no TLS, loads neither.
TEST(Resident, LibcurlIsLoadedOnlyByCallers) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_agent(folder, redis, 1);
  const PlainJob job;
  submit(redis, job);
  ASSERT_EQ(wait_for_status(redis, job), "finished") << agent.err();
  const std::string maps = read_file("/proc/" + std::to_string(agent.pid()) + "/maps");
  EXPECT_NE(maps.find("libhiredis"), std::string::npos);
  EXPECT_EQ(maps.find("libcurl"), std::string::npos);
  EXPECT_EQ(maps.find("libssl"), std::string::npos);
}

}  // namespace
}  // namespace mycojobs::test
