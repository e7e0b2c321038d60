// A coordinator whose disk hangs under the files of one context still delivers mail, including that context's mail.
#include <gtest/gtest.h>

#include <filesystem>

#include "artifacts/local_artifact_store.h"
#include "base/clock.h"
#include "coordinator/coordinator.h"
#include "support/process.h"
#include "support/redis/memory_server.h"
#include "support/still_file.h"

namespace mycojobs {
namespace {

using test::eventually;

class TidyTest : public testing::Test {
 protected:
  // Supervisors remove invalid entries from msg_out.
  void expect_mail_goes_on(Id context) {
    server_.run_command(context, {"LPUSH", "msg_out", "message:12:7"});
    EXPECT_TRUE(eventually([&] {
      return server_.run_command(context, {"EXISTS", "msg_out"}).number() == 0;
    })) << "context "
        << context;
  }

  test::TempDir folder_;
  SystemClock clock_;
  MemoryServer server_{clock_};
};

TEST_F(TidyTest, HangingDiskDelaysNoOtherContext) {
  std::filesystem::create_directories(folder_ / "contexts/1/objects");
  const std::string nobodys = folder_.write("contexts/2/objects/nobodys", "bytes");
  test::BlockingFile lock(folder_ / "contexts/1/lock");
  CoordinatorSettings settings;
  settings.contexts = {1, 2};
  settings.files = {make_artifact_store(folder_.path().string(), clock_, 1000, 64U << 20), 1U << 20};
  Coordinator coordinator(server_, clock_, settings);
  const auto started = coordinator.start_threads();
  ASSERT_TRUE(started) << started.error().message;
  ASSERT_TRUE(eventually([&] { return lock.is_waited_for(); }));
  expect_mail_goes_on(1);
  expect_mail_goes_on(2);
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(nobodys); }));
  EXPECT_TRUE(lock.is_blocked());
  lock.unblock();
}

}  // namespace
}  // namespace mycojobs
