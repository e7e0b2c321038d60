// Invalid frames from an agent, a zygote or an init are rejected or dropped and do not affect other runs.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "fixture.h"
#include "mutate.h"
#include "raw_launcher.h"
#include "sandbox/messages.h"
#include "support/build_paths.h"
#include "support/test_settings.h"

namespace mycojobs::test {
namespace {

std::uint64_t read_fuzz_seconds() { return read_setting("MYCOJOBS_FUZZ_SECONDS", 5); }

// SI3, SI4: invalid input from the agent ends the launcher cleanly, with all processes that it started.
TEST(Frames, MalformedFramesEndTheLauncherCleanly) {
  sandbox::Configure configuration;
  configuration.uid_base = 1878982656;
  configuration.uid_count = 65536;
  configuration.allow_missing = {"cgroup:memory", "cgroup:pids"};
  const std::string configure = sandbox::encode(configuration);
  const std::string launch = sandbox::encode(sandbox::Launch{make_spec()});
  struct MalformedInput {
    const char* description;
    std::vector<std::string> frames;
    std::size_t descriptors;
  };
  const MalformedInput inputs[] = {
      {"unknown kind", {std::string("\xfe")}, 0},
      {"truncated", {configure.substr(0, configure.size() - 3)}, 0},
      {"too long", {configure + "x"}, 0},
      {"4 GiB text", {std::string("\x01\x00\xff\xff\xff\xff", 6)}, 0},
      {"launch before configure", {launch}, 4},
      {"configure twice", {configure, configure}, 0},
      {"launch without descriptors", {configure, launch}, 0},
      {"launch with too many", {configure, launch}, 7},
      {"descriptors beyond the limit", {configure, launch}, 12},
      {"noise", {configure, std::string(16000, '\x02')}, 0},
  };
  for (const auto& input : inputs) {
    RawLauncher launcher;
    for (const auto& frame : input.frames) launcher.send(frame, &frame == &input.frames.back() ? input.descriptors : 0);
    EXPECT_EQ(launcher.wait(), 0) << input.description;
  }
}

// SZ43: the launcher may reject or accept each frame. It must not crash, hang, or affect another launcher.
TEST(Frames, MutatedAgentFramesCrashNoLauncher) {
  DedicatedSandbox other_sandbox = start_dedicated_sandbox();
  Random random(choose_seed("MYCOJOBS_FUZZ_SEED"));
  sandbox::Configure configure;
  configure.uid_base = 1878982656;
  configure.uid_count = 65536;
  configure.allow_missing = {"cgroup:memory", "cgroup:pids"};
  configure.hosts = make_test_config().hosts;
  configure.max_zygote_runs = 100;
  RunSpec spec = make_spec(1000);
  const std::vector<std::string> frames = {sandbox::encode(sandbox::Launch{spec}),
                                           sandbox::encode(sandbox::Kill{spec.run, KillReason::cancelled, 0}),
                                           sandbox::encode(sandbox::Fence{spec.run, 1}), sandbox::encode(configure)};
  const std::uint64_t deadline = now_boot_ms() + read_fuzz_seconds() * 1000;
  std::size_t round_count = 0;
  for (; now_boot_ms() < deadline; ++round_count) {
    RawLauncher launcher;
    const std::string configure_frame = sandbox::encode(configure);
    launcher.send(random() % 4 == 0 ? mutate(configure_frame, random) : configure_frame,
                  random() % 16 == 0 ? random() % 9 : 0);
    for (std::uint64_t remaining = random() % 40; remaining > 0; --remaining) {
      const std::uint64_t descriptors = random() % 4 == 0 ? random() % 9 : 4;
      const std::string frame = mutate(frames[random() % frames.size()], random);
      if (!launcher.send(frame, frame[0] == 2 ? descriptors : random() % 8 == 0 ? 1 : 0)) break;
      if (random() % 8 == 0) launcher.drain();
    }
    launcher.close_connection();
    ASSERT_EQ(launcher.wait(), 0) << "round " << round_count;
  }
  std::cout << round_count << " launchers" << std::endl;
  EXPECT_EQ(to_string(run_attempts(*other_sandbox.sandbox, make_spec(), "getpid").outcome.status), "ok");
}

// SZ44: a compromised script host sends mutated frames before it serves, while it serves, and from a job that is not
// confined yet. Its runs may end in any way. The launcher and the runs of other hosts must not be affected.
TEST(Frames, MutatedZygoteOrInitFramesAffectNoOther) {
  char folder[] = "/tmp/mycojobs-hosts-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  std::filesystem::permissions(folder, std::filesystem::perms(0755));
  Random random(choose_seed("MYCOJOBS_FUZZ_SEED"));
  const std::uint64_t deadline = now_boot_ms() + read_fuzz_seconds() * 1000;
  std::size_t run_count = 0;
  for (int round = 0; now_boot_ms() < deadline; ++round) {
    SandboxConfig config = make_test_config();
    for (int i = 0; i < 30; ++i) {
      const char* const kinds[] = {"garble-", "rogue-", "status-"};
      const std::string name = kinds[i % 3] + std::to_string(random() % 1000000);
      const std::string path = std::string(folder) + "/" + name;
      if (!std::filesystem::exists(path)) std::filesystem::create_symlink(mj::test::program_path("bad_host"), path);
      config.hosts.push_back({name, path});
    }
    DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(config);
    StartedRun unaffected = start_attempts(*dedicated_sandbox.sandbox, make_spec(), "print up\nsleep 60000");
    wait_for_output(unaffected, "up");
    for (const auto& host : config.hosts) {
      const std::string& name = host.name;
      if (name == "attempt" || now_boot_ms() > deadline) continue;
      for (int times = 0; times < 2; ++times, ++run_count) {
        RunSpec spec = make_spec(2000);
        spec.host = name;
        run_attempts(*dedicated_sandbox.sandbox, spec, "getpid");
        EXPECT_TRUE(dedicated_sandbox.sandbox->alive()) << name;
        if (!dedicated_sandbox.sandbox->alive()) return std::filesystem::remove_all(folder), void();
      }
    }
    dedicated_sandbox.sandbox->kill(unaffected.spec.run, KillReason::cancelled, 0);
    EXPECT_EQ(to_string(wait_for_end(*dedicated_sandbox.sandbox, unaffected).outcome.status), "cancelled");
    EXPECT_EQ(to_string(run_attempts(*dedicated_sandbox.sandbox, make_spec(), "getpid").outcome.status), "ok");
    EXPECT_FALSE(is_reaped(dedicated_sandbox.launcher));
  }
  std::cout << run_count << " runs" << std::endl;
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace mycojobs::test
