// The combination of profile, request and ceiling: examples and random policies.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "security/ceilings.h"
#include "security/profiles.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kMebi = 1ULL << 20;

PolicyRequest asked(const std::string& text) {
  const ParsedPolicy read = read_policy(text, "policy");
  EXPECT_TRUE(read.ok()) << join(read.problems);
  return read.request;
}
Ceiling make_ceiling(const std::string& text, Id context = 3) {
  const ParsedPolicy read = read_policy(text, "ceiling", PolicyKind::ceiling);
  EXPECT_TRUE(read.ok()) << join(read.problems);
  return {apply_request(default_ceiling(), read.request), context, {"/var/lib/mycojobs", "/srv/agent/config.toml"}};
}
std::string get_refusal(const std::string& text, const std::string& ceiling = "{}") {
  const auto combined = apply_ceiling_or_fail(profile("python"), asked(text), make_ceiling(ceiling));
  return combined ? "" : combined.error().message;
}

TEST(Combine, RequestAboveTheCeilingIsRejectedWithTheRemedy) {
  EXPECT_EQ(get_refusal(R"({"memory":"2 GiB"})", R"({"memory":"512 MiB"})"),
            "policy.memory: 2 GiB is more than the ceiling of 512 MiB for context 3: ask for less, or let the operator "
            "raise [contexts.3.ceiling] memory");
  EXPECT_EQ(get_refusal(R"({"exec":true})"),
            "policy.exec: is not allowed for context 3: leave it out, or let the operator set [contexts.3.ceiling] "
            "exec = true");
  EXPECT_EQ(get_refusal(R"({"fs.read":["/srv/a"]})"),
            "policy.fs.read: \"/srv/a\" is not allowed for context 3: leave it out, or let the operator name it in "
            "[contexts.3.ceiling] fs.read");
  EXPECT_NE(get_refusal(R"({"cpu":"2 h","wall":"2 h","pids":257})", R"({"cpu":"1 h","wall":"1 h"})"), "");
  EXPECT_EQ(get_refusal(R"({"cpu":"2 h","wall":"2 h","pids":256,"output.kill":true,"output.merge":true,"log.full":true,"log.keep":"64 MiB","artifacts.optional":true})"), "");
}

TEST(Combine, WarmIsRejectedUnlessTheCeilingHasIt) {
  EXPECT_EQ(get_refusal(R"({"warm":{"runs":10}})"),
            "policy.warm.runs: warm scripts are not allowed for context 3: leave it out, or let the operator set "
            "[contexts.3.ceiling] warm.runs");
  EXPECT_EQ(get_refusal(R"({"warm":{"runs":0}})"), "");
  EXPECT_EQ(get_refusal(R"({"warm":{"runs":10,"idle":"1 m"}})", R"({"warm":{"runs":10}})"), "");
  EXPECT_EQ(
      get_refusal(R"({"warm":{"runs":11}})", R"({"warm":{"runs":10}})"),
      "policy.warm.runs: 11 is more than the ceiling of 10 for context 3: ask for less, or let the operator raise "
      "[contexts.3.ceiling] warm.runs");
  EXPECT_EQ(get_refusal(R"({"warm":{"runs":10,"idle":"1 h"}})", R"({"warm":{"runs":10}})"),
            "policy.warm.idle: 1 h is more than the ceiling of 10 m for context 3: ask for less, or let the operator "
            "raise [contexts.3.ceiling] warm.idle");
}

TEST(Combine, WarmIsForProfilesWithWarmHosts) {
  const Policy warm = apply_request(profile("python"), asked(R"({"warm.runs":2})"));
  EXPECT_TRUE(check_warm("python", warm));
  EXPECT_TRUE(check_warm("v.run", profile("v.run")));
  const auto refused = check_warm("command", warm);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::invalid);
  EXPECT_EQ(refused.error().message,
            "policy.warm.runs: command has no warm processes (python, sal, osis have): omit it");
}

TEST(Combine, EveryRefusalIsReported) {
  const GrantedPolicy all =
      apply_ceiling(profile("python"), asked(R"({"memory":"2 GiB","exec":true,"net":["a:1"],"fs.write":["/srv/a"],
                                       "secrets":["T"],"syscalls.add":["keyctl","chroot"]})"),
                    make_ceiling("{}"));
  std::vector<std::string> fields;
  for (const auto& problem : all.problems) fields.push_back(problem.field);
  EXPECT_EQ(fields, (std::vector<std::string>{"policy.memory", "policy.exec", "policy.fs.write", "policy.net",
                                              "policy.syscalls.add", "policy.syscalls.add", "policy.secrets"}));
}

TEST(Combine, ManyRefusalsAreCountedInOneLine) {
  std::string text = R"({"syscalls.add":["read")";
  for (const char* name : {"write", "open", "close", "stat", "fstat", "lstat", "poll", "lseek", "mmap"})
    text += std::string(",\"") + name + '"';
  const std::string answer = get_refusal(text + "]}");
  EXPECT_TRUE(answer.ends_with("; and 2 more")) << answer;
}

// Attack case SN15 of tests/sandbox/rows.txt.
TEST(Combine, NetworkIsGrantedByEntry) {
  const std::string open = R"({"net":["example.org:443","*.internal:5432","[2001:db8::1]:80"]})";
  EXPECT_NE(get_refusal(R"({"net":"loopback"})").find("policy.net: network is not allowed"), std::string::npos);
  EXPECT_EQ(get_refusal(R"({"net":"none"})"), "");
  EXPECT_EQ(get_refusal(R"({"net":"loopback"})", R"({"net":"loopback"})"), "");
  EXPECT_NE(get_refusal(R"({"net":["a:1"]})", R"({"net":"loopback"})"), "");
  EXPECT_EQ(get_refusal(R"({"net":"loopback"})", open), "");
  EXPECT_EQ(get_refusal(R"({"net":["EXAMPLE.org:443","db.internal:5432","*.db.internal:5432"]})", open), "");
  for (const char* entry : {"example.org:80", "a.example.org:443", "internal:5432", "dbinternal:5432",
                            "db.internal:5433", "*.org:443", "[2001:db8::2]:80"}) {
    EXPECT_NE(get_refusal(R"({"net":[")" + std::string(entry) + "\"]}", open).find(entry), std::string::npos) << entry;
  }
}

TEST(Combine, FoldersAreGrantedWithTheirSubfolders) {
  const std::string open = R"({"fs.read":["/srv/a"],"fs.write":["/data/w","/var/lib","/srv/agent"]})";
  EXPECT_EQ(get_refusal(R"({"fs.read":["/srv/a","/srv/a/b","/data/w/x"],"fs.write":["/data/w"]})", open), "");
  for (const char* path : {"/srv/b", "/srv/ab", "/home/a"}) {
    EXPECT_NE(get_refusal(R"({"fs.read":[")" + std::string(path) + "\"]}", open), "") << path;
  }
  EXPECT_NE(get_refusal(R"({"fs.write":["/srv/a"]})", open), "");
  for (const char* path : {"/var/lib", "/var/lib/mycojobs", "/var/lib/mycojobs/contexts/1", "/srv/agent"}) {
    EXPECT_NE(get_refusal(R"({"fs.write":[")" + std::string(path) + "\"]}", open).find("the agent's own"),
              std::string::npos)
        << path;
  }
  EXPECT_EQ(get_refusal(R"({"fs.write":["/var/lib/other","/srv/agent/data"]})", open), "");
}

TEST(Combine, NeverInnocentCallsMustBeNamedByTheCeiling) {
  EXPECT_EQ(get_refusal(R"({"syscalls.add":["chroot","inotify_init1"]})", R"({"syscalls.add":["*"]})"), "");
  EXPECT_NE(get_refusal(R"({"syscalls.add":["ptrace"]})", R"({"syscalls.add":["*"]})").find("\"ptrace\""),
            std::string::npos);
  EXPECT_EQ(get_refusal(R"({"syscalls.add":["ptrace"]})", R"({"syscalls.add":["ptrace"]})"), "");
}

// "*" excludes calls that another field grants or limits.
TEST(Combine, CallsOfOtherFieldsMustBeNamedByTheCeiling) {
  for (const char* name : {"socket", "bind", "connect", "sendto", "prlimit64", "setrlimit", "memfd_create", "mmap",
                           "sched_setaffinity", "setpriority", "fcntl"}) {
    const std::string asked = R"({"syscalls.add":[")" + std::string(name) + R"("]})";
    EXPECT_NE(get_refusal(asked, R"({"syscalls.add":["*"]})").find(name), std::string::npos) << name;
    EXPECT_EQ(get_refusal(asked, asked), "");
  }
}

TEST(Combine, AdditionsAddAndReplaceReplaces) {
  Policy own;
  own.fs_read = {"/srv/a"};
  own.network = Network::allow_list;
  own.net_allow = {"a:1"};
  const auto folders = [&](const char* text) { return apply_request(own, asked(text)).fs_read; };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(folders(R"({"fs.read":["/srv/b","/srv/a"]})"), (Texts{"/srv/a", "/srv/b"}));
  EXPECT_EQ(folders(R"({"replace":{"fs":{"read":["/srv/b"]}}})"), (Texts{"/srv/b"}));
  EXPECT_EQ(folders(R"({"replace.fs.read":[]})"), Texts{});
  EXPECT_EQ(apply_request(own, asked(R"({"net":["b:1"]})")).net_allow, (Texts{"a:1", "b:1"}));
  EXPECT_EQ(apply_request(own, asked(R"({"replace":{"net":["b:1"]}})")).net_allow, (Texts{"b:1"}));
  EXPECT_EQ(apply_request(own, asked(R"({"net":"loopback"})")).net_allow, Texts{});
}

TEST(Combine, DefaultIsLoweredToTheCeiling) {
  Policy own;
  own.memory_bytes = 1024 * kMebi;
  own.fs_read = {"/srv/a", "/srv/b/c"};
  own.exec = true;
  const auto combined = apply_ceiling_or_fail(
      own, {}, make_ceiling(R"({"memory":"64 MiB","fs.read":["/srv/a/x","/srv/b"],"wall":"1 m"})"));
  ASSERT_TRUE(combined);
  EXPECT_EQ(combined->memory_bytes, 64 * kMebi);
  EXPECT_EQ(combined->fs_read, (std::vector<std::string>{"/srv/a/x", "/srv/b/c"}));
  EXPECT_FALSE(combined->exec);
  EXPECT_EQ(combined->wall_ms, 60000U);
}

TEST(Combine, ProfileIsUnchangedWithoutAWrittenCeiling) {
  for (const Profile& each : profiles()) {
    const auto combined = apply_ceiling_or_fail(each.policy, {}, Ceilings().get(1));
    ASSERT_TRUE(combined) << each.name;
    EXPECT_EQ(*combined, each.policy) << each.name;
  }
}

TEST(Combine, WrittenCeilingLowersOnlyItsField) {
  Policy own;
  own.exec = true;
  own.memory_bytes = 4096 * kMebi;
  own.syscalls = {"mprotect"};
  Ceilings ceilings;
  ceilings.written_fields[3].set(static_cast<std::size_t>(PolicyField::exec));
  const auto others = apply_ceiling_or_fail(own, {}, ceilings.get(1));
  const auto lowered = apply_ceiling_or_fail(own, {}, ceilings.get(3));
  ASSERT_TRUE(others && lowered);
  EXPECT_EQ(*others, own);
  EXPECT_FALSE(lowered->exec);
  EXPECT_EQ(lowered->memory_bytes, own.memory_bytes);
  EXPECT_EQ(lowered->syscalls, own.syscalls);
}

TEST(DefaultCeiling, KeepsNoMoreOutputThanTheDefault) {
  EXPECT_EQ(default_ceiling().output_bytes, Policy{}.output_bytes);
}

TEST(Profiles, MatchTheManualsTable) {
  EXPECT_EQ(profile("python"), Policy{});
  EXPECT_EQ(profile("v.compile").memory_bytes, 1024 * kMebi);
  EXPECT_TRUE(profile("v.compile").exec && profile("command").exec && profile("native").exec && profile("v.run").exec);
  EXPECT_FALSE(profile("python").exec || profile("sal").exec);
  EXPECT_EQ(profile("osis").memory_bytes, 64 * kMebi);
  EXPECT_EQ(profile("sal").pids, 4U);
  EXPECT_EQ(profile("sal").open_files, 32U);
  EXPECT_EQ(profile("sal").output_bytes, 256U << 10);
  EXPECT_EQ(get_profile_name("v"), "v.run");
  EXPECT_EQ(get_profile_name("rust"), "native");
  EXPECT_EQ(get_profile_name("bash"), "command");
  EXPECT_EQ(get_profile_name("command"), "command");
  EXPECT_EQ(get_profile_name("sal"), "sal");
}

TEST(PolicyGrant, EveryFieldReachesTheRun) {
  Policy all;
  all.fs_read = {"/srv/a"};
  all.fs_write = {"/srv/b"};
  all.network = Network::allow_list;
  all.net_allow = {"a:1"};
  all.exec = true;
  all.cpu_ms = 1;
  all.memory_bytes = 2;
  all.pids = 3;
  all.wall_ms = 4;
  all.disk_bytes = 5;
  all.file_bytes = 6;
  all.open_files = 7;
  all.syscalls = {"keyctl"};
  RunSpec spec;
  apply_policy(spec, all, 1000);
  EXPECT_EQ(spec.limits, (Limits{2, 3, 4, 1, 7, 6, 5, true}));
  EXPECT_EQ(spec.grants, (Grants{{"/srv/a"}, {"/srv/b"}, Network::allow_list, {"a:1"}, {"keyctl"}}));
  apply_policy(spec, all, 3);
  EXPECT_EQ(spec.limits.wall_ms, 3U) << "the smaller of the two";
  all.wall_ms = 0;
  apply_policy(spec, all, 3);
  EXPECT_EQ(spec.limits.wall_ms, 3U);
}

TEST(Diff, NamesEachFieldThatDiffers) {
  Policy after;
  EXPECT_TRUE(diff({}, after).empty());
  after.memory_bytes = 64 * kMebi;
  after.file_bytes = 5000;
  after.fs_read = {"/srv/a"};
  after.network = Network::loopback;
  after.wall_ms = 90000;
  using All = std::vector<PolicyDifference>;
  EXPECT_EQ(diff({}, after), (All{{PolicyField::fs_read, "[]", "[\"/srv/a\"]"},
                                  {PolicyField::net, "\"none\"", "\"loopback\""},
                                  {PolicyField::memory, "\"256 MiB\"", "\"64 MiB\""},
                                  {PolicyField::wall, "\"unlimited\"", "\"90 s\""},
                                  {PolicyField::file_size, "\"64 MiB\"", "5000"}}));
}

class Random {
 public:
  explicit Random(unsigned seed) : random_(seed) {}
  std::size_t choose_below(std::size_t n) { return random_() % n; }

  std::vector<std::string> choose_some(const std::vector<std::string>& all) {
    std::vector<std::string> out;
    for (const auto& each : all) {
      if (choose_below(3) == 0) out.push_back(each);
    }
    return out;
  }
  std::vector<std::string> folders() {
    return choose_some({"/srv/a", "/srv/a/b", "/srv/a/b/c", "/srv/ab", "/data/x", "/data/x/y", "/var/lib/mycojobs/z"});
  }
  Policy policy() {
    Policy p;
    p.fs_read = folders();
    p.fs_write = folders();
    p.network = static_cast<Network>(choose_below(3));
    p.net_allow = choose_some({"a.b.c:1", "*.b.c:1", "*.c:1", "a.b.c:2"});
    if (p.network == Network::allow_list && p.net_allow.empty()) p.net_allow = {"x:1"};
    if (p.network != Network::allow_list) p.net_allow.clear();
    p.exec = choose_below(2) == 0;
    p.output_kill = choose_below(2) == 0;
    p.output_merge = choose_below(2) == 0;
    p.log_full = choose_below(2) == 0;
    p.artifacts_optional = choose_below(2) == 0;
    p.cpu_ms = choose_below(4);
    p.wall_ms = choose_below(4);
    p.memory_bytes = 4 * kMebi + choose_below(4);
    p.pids = static_cast<std::uint32_t>(1 + choose_below(4));
    p.disk_bytes = 4096 + choose_below(4);
    p.file_bytes = 4096 + choose_below(4);
    p.open_files = static_cast<std::uint32_t>(32 + choose_below(4));
    p.output_bytes = 1 + choose_below(4);
    p.log_bytes = 1 + choose_below(4);
    p.syscalls = choose_some({"ptrace", "keyctl", "chroot", "read"});
    p.secrets = choose_some({"A", "B", "C"});
    p.volumes = choose_some({"backup", "data"});
    p.warm_runs = static_cast<std::uint32_t>(choose_below(4));
    p.warm_idle_ms = 1 + choose_below(4);
    return p;
  }
  Ceiling ceiling() {
    Ceiling out{policy(), 7, {"/var/lib/mycojobs"}};
    if (choose_below(3) == 0) out.max.syscalls.push_back("*");
    return out;
  }
  PolicyRequest request() {
    PolicyRequest out{policy(), random_(), {}};
    ++out.values.cpu_ms;  // a request cannot ask for "unlimited"
    ++out.values.wall_ms;
    for (PolicyField field : {PolicyField::fs_read, PolicyField::fs_write, PolicyField::net, PolicyField::syscalls,
                              PolicyField::secrets, PolicyField::volumes}) {
      const auto at = static_cast<std::size_t>(field);
      out.replaced_fields[at] = out.named_fields[at] && choose_below(2) == 0;
    }
    return out;
  }

 private:
  std::mt19937 random_;
};

bool is_below(const std::string& path, const std::vector<std::string>& folders) {
  return std::any_of(folders.begin(), folders.end(),
                     [&](const std::string& folder) { return path == folder || path.starts_with(folder + '/'); });
}
bool has(const std::vector<std::string>& all, const std::string& item) {
  return std::find(all.begin(), all.end(), item) != all.end();
}
std::uint64_t limit(std::uint64_t value) { return value == 0 ? UINT64_MAX : value; }

// An independent implementation of the ceiling check.
void expect_under(const Policy& combined, const Ceiling& ceiling) {
  const Policy& max = ceiling.max;
  for (const auto& path : combined.fs_read) {
    EXPECT_TRUE(is_below(path, max.fs_read) || is_below(path, max.fs_write)) << path;
    EXPECT_FALSE(is_below(path, ceiling.agent_folders)) << path;
  }
  for (const auto& path : combined.fs_write) {
    EXPECT_TRUE(is_below(path, max.fs_write)) << path;
    EXPECT_FALSE(is_below(path, ceiling.agent_folders)) << path;
  }
  EXPECT_LE(combined.network, max.network);
  for (const auto& entry : combined.net_allow) {
    const std::string after_star = entry.substr(std::min(entry.find('.'), entry.size()));
    EXPECT_TRUE(has(max.net_allow, entry) || has(max.net_allow, "*" + after_star) ||
                (entry.ends_with(".c:1") && has(max.net_allow, "*.c:1")))
        << entry;
  }
  EXPECT_EQ(combined.network == Network::allow_list, !combined.net_allow.empty());
  EXPECT_LE(combined.exec, max.exec);
  EXPECT_LE(limit(combined.cpu_ms), limit(max.cpu_ms));
  EXPECT_LE(limit(combined.wall_ms), limit(max.wall_ms));
  EXPECT_LE(combined.memory_bytes, max.memory_bytes);
  EXPECT_LE(combined.pids, max.pids);
  EXPECT_LE(combined.disk_bytes, max.disk_bytes);
  EXPECT_LE(combined.file_bytes, max.file_bytes);
  EXPECT_LE(combined.open_files, max.open_files);
  EXPECT_LE(combined.output_bytes, max.output_bytes);
  for (const auto& name : combined.syscalls) {
    const bool innocent = name != "ptrace" && name != "keyctl";
    EXPECT_TRUE(has(max.syscalls, name) || (innocent && has(max.syscalls, "*"))) << name;
  }
  for (const auto& name : combined.secrets) EXPECT_TRUE(has(max.secrets, name)) << name;
  for (const auto& name : combined.volumes) EXPECT_TRUE(has(max.volumes, name)) << name;
}

TEST(CombineRandom, IsIdempotentAndNeverAboveTheCeiling) {
  Random random(20261121);
  std::size_t granted = 0;
  for (int round = 0; round < 20000; ++round) {
    SCOPED_TRACE(round);
    const Policy own = random.policy();
    const PolicyRequest request = random.request();
    const Ceiling ceiling = random.ceiling();
    const GrantedPolicy combined = apply_ceiling(own, request, ceiling);
    expect_under(combined.policy, ceiling);
    granted += combined.problems.empty() ? 1 : 0;
    const auto again = apply_ceiling_or_fail(combined.policy, {}, ceiling);
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(*again, combined.policy);
    const auto idle = apply_ceiling_or_fail(own, {}, ceiling);
    ASSERT_TRUE(idle) << idle.error().message;
    expect_under(*idle, ceiling);
    // If the ceiling allows the whole profile, the policy is unchanged.
    if (round % 10 == 0) {
      EXPECT_TRUE(apply_ceiling_or_fail(own, {}, Ceiling{own, 1, {}}));
      EXPECT_EQ(apply_ceiling_or_fail(own, {}, Ceiling{own, 1, {}})->memory_bytes, own.memory_bytes);
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(granted, 0U);
}

TEST(CombineRandom, EveryRequestRoundTrips) {
  Random random(7);
  for (int round = 0; round < 2000; ++round) {
    const std::string text = write_policy(random.request());
    const ParsedPolicy read = read_policy(text, "policy");
    ASSERT_TRUE(read.ok()) << join(read.problems) << "\n" << text;
    EXPECT_EQ(write_policy(read.request), text);
  }
}

}  // namespace
}  // namespace mycojobs
