// The sandbox on hosts that lack a feature: it refuses to start and names cause and remedy, or reports the missing
// layer.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "fake_kernel.h"
#include "fixture.h"
#include "sandbox/attempts/attempts.h"
#include "sandbox/denied/denied.h"
#include "sandbox/landlock.h"

namespace mycojobs::test {
namespace {

// Returns "started" or the error.
std::string try_start(const SandboxConfig& config) {
  const auto sandbox = start_sandbox(config);
  return sandbox ? "started" : sandbox.error().message;
}

struct MissingLayer {
  const char* description;
  std::vector<Fault> faults;
  const char* step;    // The step that the error names.
  const char* remedy;  // Part of the remedy in the error.
};

// SH3, SH4
TEST(Honesty, MissingLayerPreventsTheStartWithItsRemedy) {
  constexpr std::uint64_t kUserNamespace = CLONE_NEWUSER;
  const std::vector<MissingLayer> rows = {
      {"SH3 no Landlock", {{"landlock_create_ruleset", -ENOSYS}}, "landlock", "andlock"},
      {"SH3 Landlock not at boot", {{"landlock_create_ruleset", -EOPNOTSUPP}}, "landlock", "andlock"},
      {"SH3 ruleset refused", {{"landlock_create_ruleset", -EPERM, 2, 0xff, 0}}, "landlock", ""},
      {"SH3 restriction refused", {{"landlock_restrict_self", -EPERM}}, "landlock", ""},
      {"SH3 rules refused", {{"landlock_add_rule", -EINVAL}}, "landlock", ""},
      {"SH3 no user namespaces", {{"clone", -EPERM, 0, kUserNamespace, kUserNamespace}}, "zygote_namespaces", "userns"},
      {"SH3 no user namespaces left",
       {{"clone", -ENOSPC, 0, kUserNamespace, kUserNamespace}},
       "zygote_namespaces",
       "max_user_namespaces"},
      {"SH3 not in this kernel",
       {{"clone", -EINVAL, 0, kUserNamespace, kUserNamespace}},
       "zygote_namespaces",
       "kernel must"},
      {"SH4 AppArmor, at open",
       {{"openat", -EACCES, 2, O_ACCMODE, O_WRONLY, "/uid_map", 1}},
       "zygote_write_maps",
       "AppArmor"},
      {"SH4 AppArmor, at write", {{"write", -EPERM, 0, 0, 0, "/uid_map", -1, 0}}, "zygote_write_maps", "AppArmor"},
      {"SH4 the map of groups", {{"write", -EPERM, 0, 0, 0, "/gid_map", -1, 0}}, "zygote_write_maps", "AppArmor"},
      {"SH3 mounts forbidden", {{"mount", -EACCES}}, "zygote_root", "AppArmor"},
      {"SH3 masked /proc", {{"mount", -EPERM}}, "zygote_root", "systempaths"},
      {"SH3 no mount_setattr", {{"mount_setattr", -ENOSYS}}, "zygote_root", ""},
      {"SH3 no pivot_root", {{"pivot_root", -EPERM}}, "zygote_pivot", ""},
      {"SH3 old proc",
       {{"openat", -ENOENT, 2, O_ACCMODE, O_WRONLY, "max_user_namespaces", 1}},
       "zygote_userns_limit",
       "user.max_user"},
      {"SH3 ineffective limit", {{"unshare", 0, 0, kUserNamespace, kUserNamespace}}, "zygote_userns_limit", ""},
      {"SH3 no mount namespace", {{"unshare", -EPERM, 0, CLONE_NEWNS, CLONE_NEWNS}}, "namespaces", ""},
      {"SH3 ids stay", {{"setresuid", -EPERM}}, "zygote_ids", ""},
      {"SH3 capabilities stay", {{"capset", -EPERM}}, "", ""},
      {"SH3 no_new_privs stays off", {{"prctl", -EINVAL, 0, 0xff, 38}}, "", ""},
      {"SH3 no supervisor", {{"seccomp", -EBUSY, 1, 8, 8}}, "seccomp", ""},
      {"SH3 no seccomp", {{"seccomp", -EINVAL}}, "", ""},
      {"SH3 no session", {{"setsid", -EPERM}}, "mycojobs-launcher", "create a session"},
      {"SH3 keyring refused", {{"keyctl", -EDQUOT}}, "keyring", ""},
  };
  for (const auto& row : rows) {
    const std::string output = run_with_faults(row.faults, [] { return try_start(make_test_config()); });
    EXPECT_EQ(output.rfind("sandbox: ", 0), 0U) << row.description << ": " << output;
    EXPECT_NE(output.find(row.step), std::string::npos) << row.description << ": " << output;
    EXPECT_NE(output.find(row.remedy), std::string::npos) << row.description << ": " << output;
  }
  EXPECT_EQ(run_with_faults({{"vhangup", -EPERM}}, [] { return try_start(make_test_config()); }), "started");
}

// A kernel with audit writes Landlock denials to the log of the host unless flags disable it (ABI 7). Older kernels
// have no such flags.
TEST(Honesty, DenialsOfJobsAreNotWrittenToTheAuditLog) {
  const auto run_once = [] {
    auto sandbox = start_sandbox(make_test_config());
    if (!sandbox) return sandbox.error().message;
    RunSpec spec = make_spec();
    spec.grants.network = Network::allow_list;  // The proxy is confined, too.
    spec.grants.net_allow = {"127.0.0.1:9"};
    const RunResult run_result = run_attempts(**sandbox, spec, "getpid");
    return std::string(to_string(run_result.outcome.status)) + run_result.outcome.reason;
  };
  constexpr std::uint64_t kLogSameExecOff = 1, kLogSubdomainsOff = 4;
  if (sandbox::landlock_abi() >= 7) {
    EXPECT_EQ(run_with_faults({{"landlock_restrict_self", -EPERM, 1, kLogSameExecOff, 0},
                               {"landlock_restrict_self", -EPERM, 1, kLogSubdomainsOff, 0}},
                              run_once),
              "ok");
  }
  // An older kernel rejects the flags. Its ABI version is simulated only if the real kernel knows all rights of it.
  std::vector<Fault> old_kernel = {{"landlock_restrict_self", -EINVAL, 1, kLogSameExecOff, kLogSameExecOff},
                                   {"landlock_restrict_self", -EINVAL, 1, kLogSubdomainsOff, kLogSubdomainsOff}};
  if (sandbox::landlock_abi() >= 7) old_kernel.push_back({"landlock_create_ruleset", 6, 2, 0xff, 1});
  EXPECT_EQ(run_with_faults(old_kernel, run_once), "ok");
}

// SH3: a false success. System calls that set ids, capabilities or the filter return success without an effect.
TEST(Honesty, NonWorkingLayerIsFoundByATrial) {
  std::vector<std::pair<const char*, std::vector<Fault>>> rows = {
      {"seccomp", {{"seccomp", 60, 1, 8, 8}}},
      {"capabilities", {{"capset", 0}, {"prctl", 0, 0, 0xff, 24}}},
      {"pivot", {{"pivot_root", 0}}},
  };
  // An unprivileged user cannot be traced in this way without no_new_privs.
  if (::geteuid() == 0) rows.push_back({"no_new_privs", {{"prctl", 0, 0, 0xff, 38}}});
  for (const auto& [layer, faults] : rows) {
    const std::string output = run_with_faults(faults, [] { return try_start(make_test_config()); });
    EXPECT_EQ(output.rfind("sandbox: ", 0), 0U) << layer << ": " << output;
  }
}

// Returns the reported state of the Landlock layer of this kernel, followed by the rows with unexpected results.
std::string describe_unexpected_results(SandboxConfig config) {
  auto sandbox = start_sandbox(config);
  if (!sandbox) return sandbox.error().message;
  const RunResult run_result = run_attempts(**sandbox, make_spec(), "getpid");
  std::string output = "none";
  for (const auto& layer : run_result.outcome.layers) {
    if (layer.rfind("landlock:", 0) == 0) output = layer;
  }
  for (const auto* rows : {&file_rows(), &network_rows(), &kernel_rows(), &capability_rows(), &combined_rows()}) {
    for (const auto& text : find_unexpected_results(**sandbox, *rows)) output += "\n" + text;
  }
  for (const auto& text : find_unexpected_results(**sandbox, exec_rows(), true)) output += "\n" + text;
  return output;
}

// SH3, SH6: all rows hold without Landlock and with each of its older versions.
TEST(Honesty, NoRowDependsOnLandlock) {
  for (long abi = 1; abi <= 5; ++abi) {
    const std::vector<Fault> faults = {{"landlock_create_ruleset", abi, 2, 0xff, 1}};
    EXPECT_EQ(run_with_faults(faults, [] { return describe_unexpected_results(make_test_config()); }),
              "landlock:" + std::to_string(abi));
  }
  SandboxConfig config_without_landlock = make_test_config();
  config_without_landlock.allow_missing.emplace_back("landlock");
  const std::string output = run_with_faults({{"landlock_create_ruleset", -ENOSYS}},
                                             [&] { return describe_unexpected_results(config_without_landlock); });
  EXPECT_EQ(output.rfind("none", 0), 0U) << output;
  // Landlock alone prevents one case: an executed program can write to files of /proc about itself.
  std::istringstream lines(output.substr(4));
  for (std::string line; std::getline(lines, line);) {
    const std::string id = line.substr(0, line.find(':'));
    EXPECT_TRUE(line.empty() || id == "SK17" || id == "SZ17" || id == "SZ19" || id == "SZ29") << line;
  }
}

// SH3
TEST(Honesty, UnwritableCgroupsAreNamedUnlessOptional) {
  const std::vector<Fault> read_only_cgroups = {{"mkdir", -EROFS, 0, 0, 0, "/cgroup", 0}};
  SandboxConfig strict_config = make_test_config();
  strict_config.allow_missing.clear();
  const std::string output = run_with_faults(read_only_cgroups, [&] { return try_start(strict_config); });
  EXPECT_NE(output.find("cgroup:memory: missing"), std::string::npos) << output;
  EXPECT_NE(output.find("Delegate"), std::string::npos) << output;
  SandboxConfig lenient_config = strict_config;
  lenient_config.allow_missing = {"cgroup:memory", "cgroup:pids"};
  const std::string result = run_with_faults(read_only_cgroups, [&]() -> std::string {
    auto sandbox = start_sandbox(lenient_config);
    if (!sandbox) return sandbox.error().message;
    const RunResult run_result = run_attempts(**sandbox, make_spec(), "touch 512");
    std::string layers;
    for (const auto& layer : run_result.outcome.layers) layers += layer.rfind("cgroup:", 0) == 0 ? layer + " " : "";
    return layers + run_result.get_result("touch 512");
  });
  EXPECT_EQ(result, "ENOMEM") << "the missing layers are reported, and an rlimit replaces the group";
}

// SH3: the group is created, but its limit cannot be set.
TEST(Honesty, RejectedLimitStartsNoJob) {
  if (!can_limit_by_cgroup()) GTEST_SKIP() << "this host permits no cgroups with limits";
  const std::vector<Fault> faults = {{"write", -EACCES, 0, 0, 0, "memory.", -1, 0}};
  const std::string output = run_with_faults(faults, [] { return try_start(make_test_config()); });
  EXPECT_NE(output.find("cgroup_make"), std::string::npos) << output;
}

// SF27: /dev/null is a link to another device, then a regular file.
TEST(Honesty, WrongDevicePreventsTheStart) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can create another /dev";
  for (const bool is_link : {true, false}) {
    const std::string output = run_with_faults({{"vhangup", -EPERM}}, [&]() -> std::string {
      char folder[] = "/tmp/mycojobs-dev-XXXXXX";
      if (::mkdtemp(folder) == nullptr || ::unshare(CLONE_NEWNS) != 0) return "no namespace";
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
      ::mount("/dev", folder, nullptr, MS_BIND | MS_REC, nullptr);
      ::mount("dev", "/dev", "tmpfs", 0, nullptr);
      for (const char* name : {"zero", "full", "random", "urandom"}) {
        const std::string path = std::string("/dev/") + name;
        ::close(::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0666));
        ::mount((std::string(folder) + "/" + name).c_str(), path.c_str(), nullptr, MS_BIND, nullptr);
      }
      if (is_link) {
        if (::symlink("/dev/zero", "/dev/null") != 0) return "no link";
      } else {
        ::close(::open("/dev/null", O_CREAT | O_WRONLY | O_CLOEXEC, 0666));
      }
      const std::string result = try_start(make_test_config());
      ::umount2(folder, MNT_DETACH);
      ::rmdir(folder);
      return result;
    });
    EXPECT_NE(output.find("zygote_root"), std::string::npos) << output;
    EXPECT_NE(output.find("device node"), std::string::npos) << output;
  }
}

// A job can read the same configuration of host programs as every user of the host, and no secrets.
TEST(Honesty, PrivateConfigurationIsHiddenFromJobs) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can create another /etc";
  const std::string lines =
      "read /etc/R/Renviron\nread /etc/R/repositories\nread /etc/java-17-openjdk/security/java.security\n"
      "read /etc/java-17-openjdk/security/keys.p12\nread /etc/fonts/fonts.conf\nread /etc/services";
  const std::string output = run_with_faults({{"vhangup", -EPERM}}, [&]() -> std::string {
    if (::unshare(CLONE_NEWNS) != 0) return "no namespace";
    ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    const auto write = [](const std::string& path, const std::string& text, mode_t mode) {
      std::filesystem::create_directories(std::filesystem::path(path).parent_path());
      std::ofstream(path) << text;
      ::chmod(path.c_str(), mode);
    };
    if (::mount("etc", "/etc", "tmpfs", 0, "mode=755") != 0) return "no mount";
    write("/etc/R/Renviron", "GITHUB_PAT=secret\nR_LIBS_SITE='/x'\n", 0644);
    write("/etc/R/repositories", "https://user:secret@cran.example\n", 0644);
    write("/etc/java-17-openjdk/security/java.security", "plain=1\n", 0644);
    write("/etc/java-17-openjdk/security/keys.p12", "secret\n", 0644);
    write("/etc/fonts/fonts.conf", "secret\n", 0644);
    ::chmod("/etc/fonts", 0700);
    write("/etc/services", "secret\n", 0600);
    auto sandbox = start_sandbox(make_test_config());
    if (!sandbox) return sandbox.error().message;
    const RunResult run_result = run_attempts(**sandbox, make_spec(), lines);
    std::string output_text(to_string(run_result.outcome.status));
    for (const auto& [line, result] : run_result.results) output_text += "\n" + line + ": " + result;
    return output_text;
  });
  EXPECT_EQ(output.rfind("ok", 0), 0U) << output;
  EXPECT_EQ(output.find("secret"), std::string::npos) << output;
  EXPECT_NE(output.find("R_LIBS_SITE='/x'"), std::string::npos) << output;
  EXPECT_NE(output.find("plain=1"), std::string::npos) << output;
  for (const char* line : {"repositories", "keys.p12", "fonts.conf", "services"})
    EXPECT_NE(output.find(line + std::string(": ENOENT")), std::string::npos) << output;
}

}  // namespace
}  // namespace mycojobs::test
