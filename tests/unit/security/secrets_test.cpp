#include "security/secrets.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/log.h"
#include "security/secret_watcher.h"
#include "support/hand_clock.h"
#include "support/process.h"
#include "support/standing_secrets.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;

class SecretsTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directory(folder_ / "7"); }
  std::string path(const std::string& name) const { return folder_ / ("7/" + name); }
  void write_secret(const std::string& name, const std::string& value, ::mode_t mode = 0600) const {
    folder_.write("7/" + name, value);
    ASSERT_EQ(::chmod(path(name).c_str(), mode), 0);
  }
  std::string redact(const std::string& text) {
    const auto redactor = make_redactor_of_all(secrets_);
    return redactor ? redactor->redact(text) : text;
  }
  // Returns the redactor of a job that was granted all secrets of its context.
  static std::shared_ptr<const Redactor> make_redactor_of_all(SecretReader& secrets) {
    const auto found = secrets.rescan();
    std::vector<Secret> granted;
    for (const Secret& each : found->all()) granted.push_back({each.name, each.value});
    return found->get_redactor(granted);
  }
  // Returns the log output of the call.
  std::string capture_log(const std::function<void()>& call) {
    ::testing::internal::CaptureStderr();
    init_log(LogLevel::warn, LogFormat::text);  // overrides the settings of earlier tests
    call();
    return ::testing::internal::GetCapturedStderr();
  }

  TempDir folder_;
  SecretSources job_states_{folder_.path().string(), ""};
  SecretReader secrets_{job_states_, 7};
};

TEST_F(SecretsTest, ContextHasOnlyItsOwnFiles) {
  write_secret("db-password", "hunter22\n");
  write_secret("api.key", "0123456789abcdef\r\n", 0400);
  EXPECT_EQ(redact("hunter22 0123456789abcdef\n"), "[secret db-password] [secret api.key]\n");
  EXPECT_EQ(secrets_.rescan()->get_secrets({"api.key"}).value().at(0).value, "0123456789abcdef");
  SecretReader other(job_states_, 8), none({}, 7);
  EXPECT_EQ(make_redactor_of_all(other), nullptr);
  EXPECT_EQ(make_redactor_of_all(none), nullptr);
}

// If all secrets were redacted, a job could guess a value by observing which of its lines are held back.
TEST_F(SecretsTest, JobIsRedactedOfItsGrantedSecretsOnly) {
  write_secret("mine", "granted value");
  write_secret("other", "value of other jobs");
  const auto found = secrets_.rescan();
  EXPECT_EQ(found->get_redactor({}), nullptr);
  const auto redactor = found->get_redactor({{"mine", "granted value"}});
  EXPECT_EQ(redactor->redact("granted value, value of other jobs"), "[secret mine], value of other jobs");
  EXPECT_EQ(found->get_redactor({{"mine", "granted value"}}), redactor) << "the redactor is built only once";
}

TEST_F(SecretsTest, OperatorMayRedactSecretsOfEveryJob) {
  job_states_.always_redacted = {"7/always", "8/other"};
  write_secret("always", "value of the operator");
  write_secret("other", "value of other jobs");
  const auto found = SecretReader(job_states_, 7).rescan();
  EXPECT_EQ(found->get_redactor({})->redact("value of the operator, value of other jobs"),
            "[secret always], value of other jobs");
  EXPECT_TRUE(check_always_redacted({"7/always", "4294967295/api.key"}));
  for (const char* entry : {"always", "/always", "7/", "x/always", "7/a/b", "7/.hidden", "7/with blank"})
    EXPECT_FALSE(check_always_redacted({entry})) << entry;
}

TEST_F(SecretsTest, RedactorsOfManyGrantsAreBounded) {
  for (int i = 0; i < 20; ++i) write_secret("K" + std::to_string(i), "value number " + std::to_string(i));
  const auto found = secrets_.rescan();
  std::weak_ptr<const Redactor> first = found->get_redactor({{"K0", ""}});
  EXPECT_FALSE(first.expired()) << "the redactor is retained for the next job";
  for (int i = 1; i < 20; ++i) EXPECT_TRUE(found->get_redactor({{"K" + std::to_string(i), ""}}));
  EXPECT_TRUE(first.expired());
}

TEST_F(SecretsTest, OneLineEndIsNotPartOfTheValue) {
  write_secret("K", "two\nlines\n\n");
  // Whitespace at the ends of a value is not part of the search.
  EXPECT_EQ(redact("two\nlines\n\n"), "[secret K]\n\n");
  write_secret("L", "");
  EXPECT_EQ(redact("two\nlines"), "[secret K]");
}

TEST_F(SecretsTest, InvalidSecretIsRejectedWithoutItsValue) {
  write_secret("open", "value-that-all-read", 0644);
  write_secret("group", "value-that-all-read", 0640);
  write_secret("short", "abc\n");
  write_secret("large", std::string(SecretReader::kMaxBytes + 10, 'x'));
  write_secret(".hidden", "value-that-all-read");
  write_secret("with blank", "value-that-all-read");
  fs::create_symlink(path("open"), path("link"));
  fs::create_directory(path("folder"));
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  if (::geteuid() == 0) {
    write_secret("foreign", "value-that-all-read");
    ASSERT_EQ(::chown(path("foreign").c_str(), 12345, 12345), 0);
  }
  write_secret("good", "good value");
  std::string out;
  const std::string log = capture_log([&] { out = redact("value-that-all-read good value"); });
  EXPECT_EQ(out, "value-that-all-read [secret good]");
  for (const char* line :
       {"open: mode 0644 gives other users access: chmod 600", "group: mode 0640", "short: the value has fewer than 4",
        "large: it has", ".hidden: a name is", "with blank: a name is", "link: it is not a regular file",
        "folder: it is not a regular file", "pipe: it is not a regular file"}) {
    std::string plain = log;
    std::erase(plain, '"');  // quotes around names
    EXPECT_NE(plain.find(line), std::string::npos) << line << " in " << plain;
  }
  if (::geteuid() == 0) {
    EXPECT_NE(log.find("user 12345 owns it: chown"), std::string::npos) << log;
  }
  EXPECT_EQ(log.find("value-that"), std::string::npos) << log;
  EXPECT_EQ(log.find("abc"), std::string::npos) << log;
  EXPECT_EQ(capture_log([&] { redact(""); }), "") << "the warning is logged only once";
}

TEST_F(SecretsTest, EachReadSeesChangesAndKeepsEarlierResults) {
  write_secret("K", "first value");
  const auto before = secrets_.rescan();
  EXPECT_EQ(secrets_.rescan(), before) << "nothing has changed";
  write_secret("K", "other value");  // changes only the file: the modification time of the folder stays
  write_secret("L", "second one");
  EXPECT_EQ(redact("first value other value second one"), "first value [secret K] [secret L]");
  EXPECT_EQ(before->get_redactor({{"K", "first value"}})->redact("first value other value"), "[secret K] other value");
  EXPECT_EQ(before->get_secrets({"K"}).value().front().value, "first value");
  ASSERT_EQ(::chmod(path("L").c_str(), 0644), 0);
  fs::remove(path("K"));
  EXPECT_EQ(make_redactor_of_all(secrets_), nullptr);
}

TEST_F(SecretsTest, ResultStaysWhileTheFolderIsUnreadable) {
  write_secret("K", "first value");
  const auto before = make_redactor_of_all(secrets_);
  ASSERT_TRUE(before);
  fs::rename(folder_ / "7", folder_ / "away");
  folder_.write("7", "not a folder");
  const std::string log = capture_log([&] { EXPECT_EQ(make_redactor_of_all(secrets_), before); });
  EXPECT_NE(log.find("/7: ENOTDIR"), std::string::npos) << log;
  EXPECT_EQ(capture_log([&] { secrets_.rescan(); }), "");
  fs::remove(folder_ / "7");
  fs::rename(folder_ / "away", folder_ / "7");
  write_secret("L", "second one");
  EXPECT_EQ(redact("first value second one"), "[secret K] [secret L]");
}

TEST_F(SecretsTest, SecretsAreUnknownUntilTheFolderIsRead) {
  fs::remove(folder_ / "7");
  folder_.write("7", "not a folder");
  EXPECT_EQ(secrets_.rescan(), nullptr);
  fs::remove(folder_ / "7");
  fs::create_directory(folder_ / "7");
  write_secret("K", "first value");
  EXPECT_EQ(redact("first value"), "[secret K]");
}

// Reading some of these files fails, as on a broken disk; others are readable.
TEST_F(SecretsTest, SecretsAreUnknownWhileAFileIsUnreadable) {
  SecretReader secrets({"/proc/self/task", ""}, static_cast<Id>(::gettid()));
  const std::string log = capture_log([&] { EXPECT_EQ(secrets.rescan(), nullptr); });
  EXPECT_NE(log.find("cannot be read, which is tried again"), std::string::npos) << log;
}

// Within a tick of the kernel's clock, a second write of the same size changes neither size nor times of the file.
TEST_F(SecretsTest, RecentlyChangedFileIsReadAgain) {
  for (int i = 0; i < 200; ++i) {
    const std::string value = "value " + std::to_string(100 + i);
    write_secret("K", value);
    ASSERT_EQ(redact(value), "[secret K]");
  }
}

TEST_F(SecretsTest, TotalSizeIsBounded) {
  for (std::size_t i = 0; i < 10; ++i)
    write_secret("K" + std::to_string(i), std::string(SecretReader::kMaxBytes, static_cast<char>('a' + i)));
  const std::string log = capture_log([&] { EXPECT_TRUE(make_redactor_of_all(secrets_)); });
  EXPECT_NE(log.find("K9"), std::string::npos) << log;
  EXPECT_EQ(log.find("K7"), std::string::npos) << log;
}

TEST_F(SecretsTest, WatchReadsAHangingDiskOnceItResumes) {
  fs::create_directory(folder_ / "8");
  write_secret("K", "first value");
  BlockingGate gate;
  BlockingSecretsClock clock(gate);
  clock.block_context(8);
  SecretWatcher watch(job_states_, {7, 8}, clock);
  EXPECT_TRUE(eventually([&] { return watch.get(7) != nullptr && gate.waiting_count() == 1; }));
  EXPECT_TRUE(watch.are_current(7, {{"K", "first value"}}));
  EXPECT_FALSE(watch.are_current(7, {{"K", "other value"}}));
  EXPECT_EQ(watch.get(8), nullptr);
  gate.open();
  EXPECT_TRUE(eventually([&] { return watch.get(8) != nullptr; }));
  write_secret("K", "other value");
  EXPECT_TRUE(eventually([&] { return watch.are_current(7, {{"K", "other value"}}); }));
}

// Periodic checks alone would detect about twenty changes in forty seconds.
TEST_F(SecretsTest, WatchSeesNewFoldersAndReplacedFilesAtOnce) {
  fs::remove_all(folder_ / "7");
  const SystemClock clock;
  SecretWatcher watch(job_states_, {7}, clock);
  ASSERT_TRUE(eventually([&] { return watch.get(7) != nullptr; }));
  const std::uint64_t began = clock.boot_ms();
  fs::create_directory(folder_ / "7");
  for (int i = 0; i < 20; ++i) {
    const std::string value = "value " + std::to_string(i);
    write_secret("K", value);
    ASSERT_TRUE(eventually([&] { return watch.are_current(7, {{"K", value}}); }));
  }
  EXPECT_LT(clock.boot_ms() - began, 10 * SecretWatcher::kCheckIntervalMs);
}

std::size_t count_secrets_threads() {
  std::size_t count = 0;
  for (const auto& task : fs::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    count += name.starts_with("secrets") ? 1 : 0;
  }
  return count;
}

TEST_F(SecretsTest, ManyContextsShareAFewThreads) {
  constexpr Id kContexts = 100;
  std::vector<Id> contexts;
  for (Id context = 1; context <= kContexts; ++context) {
    contexts.push_back(context);
    fs::create_directory(folder_ / std::to_string(context));
    const std::string file = folder_.write(std::to_string(context) + "/K", "value " + std::to_string(context));
    ASSERT_EQ(::chmod(file.c_str(), 0600), 0);
  }
  const SystemClock clock;
  SecretWatcher watch(job_states_, contexts, clock);
  const auto is_known = [&](Id context) { return watch.get(context) != nullptr; };
  ASSERT_TRUE(eventually([&] { return std::all_of(contexts.begin(), contexts.end(), is_known); }));
  EXPECT_LE(count_secrets_threads(), 4U);
  const std::string file = folder_.write("42/K", "other value");
  EXPECT_TRUE(eventually([&] { return watch.are_current(42, {{"K", "other value"}}); }));
  for (const Id context : contexts)
    EXPECT_TRUE(context == 42 || watch.are_current(context, {{"K", "value " + std::to_string(context)}})) << context;
}

TEST_F(SecretsTest, WatchWithoutContextsDoesNotWait) {
  const ManualClock clock;
  const auto found = SecretWatcher({}, {7}, clock).get(7);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->get_redactor({}), nullptr);
}

}  // namespace
}  // namespace mycojobs::test
