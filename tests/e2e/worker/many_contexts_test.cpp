// An agent with many contexts on one server: the number of threads is bounded, and every context is served.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "e2e/client.h"
#include "support/hanging_folder.h"

namespace mycojobs::test {
namespace {

constexpr int kContexts = 40;

class ManyContextsE2e : public ::testing::Test {
 protected:
  static std::string list_contexts() {
    std::string list;
    for (int context = 1; context <= kContexts; ++context) list += (list.empty() ? "" : ",") + std::to_string(context);
    return list;
  }
  static std::size_t count_threads(pid_t pid) {
    const std::filesystem::directory_iterator tasks("/proc/" + std::to_string(pid) + "/task");
    return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
  }
  Process start_agent_of_all(std::vector<std::string> options) {
    options.insert(options.end(), {"--slots", "4", "--context", list_contexts(), "--state-dir", folder_ / "agent"});
    Process agent = start_agent(folder_, redis_, 1, std::move(options));
    for (int context = 1; context <= kContexts; ++context)
      EXPECT_TRUE(wait_until_registered(redis_, 1, context)) << agent.err();
    return agent;
  }
  void expect_jobs_run(int first_id) {
    for (const int context : {1, 17, kContexts}) {
      const PlainJob job{
          .id = first_id, .context = context, .script = "import mycojobs\n(mycojobs.artifacts / 'f').write_text('x')"};
      submit(redis_, job);
      EXPECT_EQ(wait_for_status(redis_, job), "finished") << context;
    }
  }

  TempDir folder_;
  RedisServer redis_{folder_, {"--databases", "128"}};
};

TEST_F(ManyContextsE2e, ThreadsAreBounded) {
  const Process agent = start_agent_of_all({});
  expect_jobs_run(1);
  EXPECT_LE(count_threads(agent.pid()), 24U);
}

TEST_F(ManyContextsE2e, ContextsWithTheSameUrlShareThreads) {
  std::string config;
  for (int context = 1; context <= kContexts; ++context)
    config += "[contexts." + std::to_string(context) + "]\nredis = \"" + redis_.url() + "\"\n";
  const Process agent = start_agent_of_all({"--config", folder_.write("urls.toml", config)});
  expect_jobs_run(1);
  EXPECT_LE(count_threads(agent.pid()), 24U);
}

// The folder with the secrets of a context is a link to a disk that hangs. The other contexts have their folders beside
// it.
TEST_F(ManyContextsE2e, HangingSecretsDelayOnlyTheirContext) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "this machine has no /dev/fuse";
  HangingFolder hanging_disk;
  std::filesystem::create_directory(folder_ / "secrets");
  std::filesystem::create_symlink(hanging_disk.path(), folder_ / "secrets/2");
  Process agent = start_agent_of_all({"--secrets-dir", folder_ / "secrets"});
  ASSERT_TRUE(eventually([&] { return hanging_disk.waiting_count() > 0; }));
  const PlainJob blocked_job{.id = 1, .context = 2};
  submit(redis_, blocked_job);
  expect_jobs_run(1);
  expect_jobs_run(2);
  EXPECT_FALSE(has_ended(redis_, blocked_job)) << "another agent can claim the job";
  EXPECT_LE(count_threads(agent.pid()), 24U);
  hanging_disk.disconnect();
}

}  // namespace
}  // namespace mycojobs::test
