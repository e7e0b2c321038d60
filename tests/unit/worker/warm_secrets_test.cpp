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
  void write_secret(const std::string& name, const std::string& value) const {
    ASSERT_EQ(::chmod(folder_.write("7/" + name, value).c_str(), 0600), 0);
  }
  void add_run(const std::string& key, const std::vector<std::string>& names) {
    RunSpec spec;
    spec.context = 7;
    spec.limits.wall_ms = 1000;
    spec.warm = {10, 5000, key, key};
    warm_.on_run_started(spec, secrets_.rescan()->get_secrets(names).value(), clock_.boot_ms());
  }
  Keys rescan() {
    return warm_.list_outdated_keys(
        [this](Id, const std::vector<Secret>& each) { return secrets_.rescan()->contains(each); }, clock_.boot_ms());
  }
  Keys list_outdated_keys() {
    clock_.advance(WarmSecrets::kCheckIntervalMs + 1);
    return rescan();
  }

  TempDir folder_;
  ManualClock clock_;
  SecretReader secrets_{{folder_.path().string(), ""}, 7};
  WarmSecrets warm_;
};

TEST_F(WarmSecretsTest, NamesTheKeysWithChangedSecrets) {
  EXPECT_TRUE(warm_.empty());
  write_secret("db", "value one");
  write_secret("mail", "value two");
  add_run("both", {"db", "mail"});
  add_run("mail", {"mail"});
  EXPECT_EQ(list_outdated_keys(), Keys{});
  write_secret("db", "another");
  EXPECT_EQ(list_outdated_keys(), Keys{"both"});
  EXPECT_EQ(rescan(), Keys{}) << "the files were read a moment ago";
  EXPECT_EQ(list_outdated_keys(), Keys{"both"}) << "a run with the old secrets may have started";
  std::filesystem::remove(folder_ / "7/mail");
  EXPECT_EQ(list_outdated_keys(), (Keys{"both", "mail"}));
  write_secret("db", "value one");
  write_secret("mail", "value two");
  EXPECT_EQ(list_outdated_keys(), Keys{}) << "the files have the stored values again";
}

TEST_F(WarmSecretsTest, WatchesWhileAProcessMayExist) {
  write_secret("db", "value one");
  add_run("a", {"db"});
  EXPECT_EQ(list_outdated_keys(), Keys{});
  clock_.advance(3600000);
  EXPECT_EQ(list_outdated_keys(), Keys{});
  EXPECT_TRUE(warm_.empty());
}

}  // namespace
}  // namespace mycojobs::test
