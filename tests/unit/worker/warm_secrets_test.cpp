#include "worker/runs/warm_secrets.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "support/hand_clock.h"
#include "support/process.h"

namespace mycojobs::test {
namespace {

using Keys = std::vector<std::string>;

class WarmSecretsTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directory(folder_ / "7"); }
  void put(const std::string& name, const std::string& value) const {
    ASSERT_EQ(::chmod(folder_.write("7/" + name, value).c_str(), 0600), 0);
  }
  void given(const std::string& key, const std::vector<std::string>& names) {
    RunSpec spec;
    spec.context = 7;
    spec.limits.wall_ms = 1000;
    spec.warm = {10, 5000, key, key};
    warm_.on_run_started(spec, secrets_.rescan()->values(names).value(), clock_.boot_ms());
  }
  Keys look() {
    return warm_.list_outdated_keys(
        [this](Id, const std::vector<Secret>& each) { return secrets_.rescan()->contains(each); }, clock_.boot_ms());
  }
  Keys list_outdated_keys() {
    clock_.advance(WarmSecrets::kCheckMs + 1);
    return look();
  }

  TempDir folder_;
  ManualClock clock_;
  Secrets secrets_{{folder_.path().string(), ""}, 7};
  WarmSecrets warm_;
};

TEST_F(WarmSecretsTest, NamesTheKeysWithChangedSecrets) {
  EXPECT_TRUE(warm_.empty());
  put("db", "value one");
  put("mail", "value two");
  given("both", {"db", "mail"});
  given("mail", {"mail"});
  EXPECT_EQ(list_outdated_keys(), Keys{});
  put("db", "another");
  EXPECT_EQ(list_outdated_keys(), Keys{"both"});
  EXPECT_EQ(look(), Keys{}) << "it has looked just now";
  EXPECT_EQ(list_outdated_keys(), Keys{"both"}) << "a run that was prepared before may have begun since";
  std::filesystem::remove(folder_ / "7/mail");
  EXPECT_EQ(list_outdated_keys(), (Keys{"both", "mail"}));
  put("db", "value one");
  put("mail", "value two");
  EXPECT_EQ(list_outdated_keys(), Keys{}) << "what it holds is right again";
}

TEST_F(WarmSecretsTest, WatchesWhileAProcessMayExist) {
  put("db", "value one");
  given("a", {"db"});
  EXPECT_EQ(list_outdated_keys(), Keys{});
  clock_.advance(3600000);
  EXPECT_EQ(list_outdated_keys(), Keys{});
  EXPECT_TRUE(warm_.empty());
}

}  // namespace
}  // namespace mycojobs::test
