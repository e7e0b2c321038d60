// Plugins that are rejected when they are loaded, and the error messages. The agent, here the test process, continues.
#include <sys/stat.h>
#include <unistd.h>

#include "plugin/plugins.h"

namespace mycojobs::test {
namespace {

using ::testing::Test;

struct RefusedRow {
  const char* fault;
  const char* says;
};

class PluginRejected : public Plugins, public ::testing::WithParamInterface<RefusedRow> {};

TEST_P(PluginRejected, ReportsItsReason) {
  EXPECT_NE(get_rejection(GetParam().fault).find(GetParam().says), std::string::npos)
      << get_rejection(GetParam().fault);
}

INSTANTIATE_TEST_SUITE_P(
    Handshake, PluginRejected,
    ::testing::Values(RefusedRow{"no_symbol", "exports no symbol mycojobs_plugin"},
                      RefusedRow{"symbol_is_function", "is not a struct mycojobs_plugin"},
                      RefusedRow{"short_symbol", "has 8 bytes, struct mycojobs_plugin has"},
                      RefusedRow{"too_old", "of plugin ABI 0, and this agent accepts 1: build it with"},
                      RefusedRow{"too_new", "of plugin ABI 2, and this agent accepts 1: install a newer mycojobs"},
                      RefusedRow{"wrong_size", "struct_size: it is"}, RefusedRow{"null_name", "name: it is NULL"},
                      RefusedRow{"bad_name", "name: \"cat; rm -rf /\" is not a valid name"},
                      RefusedRow{"wild_name", "it crashed: signal SIGSEGV (loading it)"},
                      RefusedRow{"no_types", "script_types: it is empty"},
                      RefusedRow{"bad_type", "script_types: \"Bad Type\" is not a valid name"},
                      RefusedRow{"same_type_twice", "script_types: \"cat\" is listed twice"},
                      RefusedRow{"bad_profile", "profile.memory"}, RefusedRow{"null_function", "probe: it is NULL"},
                      RefusedRow{"load_crash", "it crashed: signal SIGABRT (loading it)"},
                      RefusedRow{"load_exit", "it ended its host with exit code 0 (loading it)"},
                      RefusedRow{"load_throw", "it crashed: signal SIGABRT (loading it)"}),
    [](const auto& row) { return std::string(row.param.fault); });

TEST_F(Plugins, HangingLoadIsKilledAtTheDeadline) {
  auto options = make_options(copy_plugin(folder_, "load_hang"));
  options.load_timeout_ms = 300;
  const auto loaded = plugin::PluginClient::load(options, clock_);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, Code::unavailable);
  EXPECT_EQ(loaded.error().message, "it did not answer within 300 ms (loading it)");
}

TEST_F(Plugins, CPluginsWork) {
  auto loaded = load("in_c");
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ((*loaded)->description().name, "nothing");
  EXPECT_FALSE((*loaded)->description().interprets);
  EXPECT_EQ((*loaded)->probe().value_or(""), "true");
  const auto prepared = (*loaded)->prepare({1, 12}, kJob);
  ASSERT_TRUE(prepared) << prepared.error().message;
  EXPECT_EQ(prepared->command, std::vector<std::string>{"/bin/true"});
  EXPECT_TRUE((*loaded)->interpret({1, 12}, "{}"));
}

TEST_F(Plugins, NonSharedObjectIsRejected) {
  const std::string path = folder_.write("text.so", "#!/bin/sh\n");
  const auto loaded = plugin::PluginClient::load(make_options(path), clock_);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, Code::invalid);
  EXPECT_NE(loaded.error().message.find("it cannot be loaded: "), std::string::npos) << loaded.error().message;
  EXPECT_EQ(loaded.error().message.find("/proc/self"), std::string::npos) << loaded.error().message;
}

TEST_F(Plugins, FileWritableByOthersIsRejected) {
  const std::string path = copy_plugin(folder_, "none");
  const auto get_error = [&path, this] {
    const auto loaded = plugin::PluginClient::load(make_options(path), clock_);
    return loaded ? "" : loaded.error().message;
  };
  EXPECT_EQ(get_error(), "");
  ASSERT_EQ(::chmod(path.c_str(), 0664), 0);
  EXPECT_EQ(get_error(), "mode 0664: other users can write to it: chmod go-w");
  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0777), 0);
  EXPECT_EQ(get_error(),
            "its folder " + folder_.path().string() + "/: mode 0777: other users can write to it: chmod go-w");
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0700), 0);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
    EXPECT_EQ(get_error(), "mode 0600: it is loaded as user 65534, which cannot read it: chmod o+r");
    ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
    ASSERT_EQ(::chown(path.c_str(), 12345, 12345), 0);
    EXPECT_EQ(get_error(), "user 12345 owns it: chown it to root or to user 0");
  }
}

TEST_F(Plugins, NonRegularFileIsRejected) {
  const std::string path = copy_plugin(folder_, "none");
  ASSERT_EQ(::symlink(path.c_str(), (folder_ / "link.so").c_str()), 0);
  ASSERT_EQ(::mkfifo((folder_ / "pipe.so").c_str(), 0600), 0);
  for (const char* name : {"link.so", "pipe.so", "."}) {
    const auto loaded = plugin::PluginClient::load(make_options(folder_ / name), clock_);
    ASSERT_FALSE(loaded) << name;
    EXPECT_EQ(loaded.error().message, "it is not a regular file: put the plugin itself there") << name;
  }
  const auto missing = plugin::PluginClient::load(make_options(folder_ / "missing.so"), clock_);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::not_found);
}

}  // namespace
}  // namespace mycojobs::test
