// Parsing policies: accepted and rejected texts, and the errors.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/policy_json.h"
#include "sandbox/seccomp/filter.h"
#include "text/json.h"

namespace mycojobs {
namespace {

ParsedPolicy parse(const std::string& text, PolicyKind kind = PolicyKind::request) {
  return read_policy(text, "policy", kind);
}
std::string get_problems(const std::string& text, PolicyKind kind = PolicyKind::request) {
  return join(parse(text, kind).problems);
}

TEST(PolicyText, EveryNameIsReadNestedOrWithDots) {
  for (const char* text :
       {R"({"fs":{"read":["/srv/a"],"write":["/data/b"]},"net":["Example.org:443"],"exec":true,"cpu":"30 s",
            "memory":"64 MiB","pids":16,"wall":10000,"disk":"8MiB","file_size":4096,"open_files":64,
            "output":{"keep":"1 KiB","kill":true,"merge":true},"syscalls":{"add":["keyctl"]},"secrets":["TOKEN"],
            "warm":{"runs":1000,"idle":"90s"},"artifacts":{"optional":true},"volumes":["data"],
            "log":{"keep":"1 MiB","full":true},"python":{"requirements":["numpy<2"]}})",
        R"({"fs.read":["/srv/a"],"fs.write":["/data/b"],"net":["example.org:443"],"exec":true,"cpu":30000,
            "memory":67108864,"pids":16,"wall":"10s","disk":8388608,"file_size":"4 KiB","open_files":64,
            "output.keep":1024,"output.kill":true,"output.merge":true,"syscalls.add":["keyctl"],"secrets":["TOKEN"],
            "warm.runs":1000,"warm.idle":90000,"artifacts.optional":true,"volumes":["data"],"log":"full",
            "log.keep":1048576,"python.requirements":["numpy<2"]})"}) {
    const ParsedPolicy parsed = parse(text);
    ASSERT_TRUE(parsed.ok()) << join(parsed.problems);
    EXPECT_TRUE(parsed.request.named_fields.all());
    EXPECT_TRUE(parsed.request.replaced_fields.none());
    const Policy& policy = parsed.request.values;
    EXPECT_EQ(policy.fs_read, std::vector<std::string>{"/srv/a"});
    EXPECT_EQ(policy.fs_write, std::vector<std::string>{"/data/b"});
    EXPECT_EQ(policy.volumes, std::vector<std::string>{"data"});
    EXPECT_EQ(policy.python_requirements, std::vector<std::string>{"numpy<2"});
    EXPECT_EQ(policy.network, Network::allow_list);
    EXPECT_EQ(policy.net_allow, std::vector<std::string>{"example.org:443"});
    EXPECT_TRUE(policy.exec && policy.output_kill && policy.output_merge && policy.artifacts_optional &&
                policy.log_full);
    EXPECT_EQ(policy.log_bytes, 1U << 20);
    EXPECT_EQ(policy.cpu_ms, 30000U);
    EXPECT_EQ(policy.memory_bytes, 64U << 20);
    EXPECT_EQ(policy.pids, 16U);
    EXPECT_EQ(policy.wall_ms, 10000U);
    EXPECT_EQ(policy.disk_bytes, 8U << 20);
    EXPECT_EQ(policy.file_bytes, 4096U);
    EXPECT_EQ(policy.open_files, 64U);
    EXPECT_EQ(policy.output_bytes, 1024U);
    EXPECT_EQ(policy.syscalls, std::vector<std::string>{"keyctl"});
    EXPECT_EQ(policy.secrets, std::vector<std::string>{"TOKEN"});
    EXPECT_EQ(policy.warm_runs, 1000U);
    EXPECT_EQ(policy.warm_idle_ms, 90000U);
    EXPECT_EQ(parse(write_policy(parsed.request)).request, parsed.request) << write_policy(parsed.request);
  }
}

TEST(PolicyText, EmptyTextRequestsNothing) {
  for (const char* text : {"", "{}", R"({"fs":{}})", R"({"replace":{}})"}) {
    EXPECT_TRUE(parse(text).ok()) << text;
    EXPECT_TRUE(parse(text).request.named_fields.none()) << text;
  }
}

TEST(PolicyText, ReplaceIsForListsAndRoundTrips) {
  const ParsedPolicy parsed = parse(R"({"replace":{"fs":{"read":["/srv/a"]},"net":["a:1"],"syscalls.add":[]}})");
  ASSERT_TRUE(parsed.ok()) << join(parsed.problems);
  EXPECT_TRUE(parsed.request.replaces(PolicyField::fs_read));
  EXPECT_TRUE(parsed.request.replaces(PolicyField::net));
  EXPECT_TRUE(parsed.request.replaces(PolicyField::syscalls));
  EXPECT_EQ(parse(write_policy(parsed.request)).request, parsed.request) << write_policy(parsed.request);
  EXPECT_EQ(get_problems(R"({"replace":{"memory":"1 GiB"}})"),
            "policy.replace.memory: only lists are added to: write memory");
  EXPECT_EQ(get_problems(R"({"fs.read":["/srv/a"],"replace.fs.read":[]})"),
            "policy.replace.fs.read: is given twice: give it once, or below replace");
  EXPECT_NE(get_problems(R"({"replace":{"replace":{"fs":{"read":[]}}}})"), "");
}

// Attack cases SQ20 and SH2 of tests/sandbox/rows.txt: each error names the field.
TEST(PolicyText, ErrorsAreRejectedByName) {
  struct InvalidPolicy {
    const char *text, *expected_error;
  };
  const InvalidPolicy rows[] = {
      {R"({"memmory":1})", "policy.memmory: is not a field of a policy: there are fs.read, fs.write, net"},
      {R"({"fs":{"exec":[]}})", "policy.fs.exec: is not a field of a policy"},
      {R"({"\u0007\n":1})", "is not a field of a policy"},
      {R"({"fs":[]})", "policy.fs: is not an object"},
      {R"({"replace":[]})", "policy.replace: is not a field of a policy"},
      {R"([])", "policy: \"[]\" is not an object"},
      {R"({"memory":)", "policy: not JSON at line 1"},
      {R"({"memory":1,"memory":2})", "policy: JSON has the same key twice"},
      {R"({"fs":{"read":[]},"fs.read":[]})", "is given twice"},
      {R"({"memory":-1})", "policy.memory: -1 is not a size"},
      {R"({"memory":0})", "policy.memory: 0 bytes is out of range: give 4 MiB to 1 TiB"},
      {R"({"memory":1.5})", "policy.memory: 1.5 is not a size"},
      {R"({"memory":18446744073709551616})", "policy.memory: "},
      {R"({"memory":18446744073709551615})", "policy.memory: 18446744073709551615 bytes is out of range"},
      {R"({"memory":"99999999999999999999 GiB"})", "policy.memory: "},
      {R"({"memory":"64 MB"})", "policy.memory: \"64MB\" is not a size"},
      {R"({"memory":"-64 MiB"})", "policy.memory: "},
      {R"({"memory":true})", "policy.memory: \"true\" is not a size"},
      {R"({"memory":null})", "policy.memory: is null"},
      {R"({"memory":"unlimited"})", "policy.memory: "},
      {R"({"wall":0})", "policy.wall: 0 ms is out of range"},
      {R"({"wall":-5})", "policy.wall: -5 is not a time"},
      {R"({"wall":"0 s"})", "policy.wall: 0 ms is out of range"},
      {R"({"wall":"30"})", "policy.wall: 30 has no unit"},
      {R"({"wall":"unlimited"})", "policy.wall: "},
      {R"({"cpu":0})", "policy.cpu: "},
      {R"({"cpu":1099511627777})", "policy.cpu: 1099511627777 ms is out of range"},
      {R"({"pids":0})", "policy.pids: 0 is out of range: give 1 to 1048576"},
      {R"({"pids":"4"})", R"(policy.pids: "4" is not a whole number)"},
      {R"({"pids":4294967297})", "policy.pids: 4294967297 is out of range"},
      {R"({"open_files":3})", "policy.open_files: 3 is out of range"},
      {R"({"exec":"yes"})", "policy.exec: \"yes\" is not true or false"},
      {R"({"exec":1})", "policy.exec: 1 is not true or false"},
      {R"({"net":"all"})", "policy.net: "},
      {R"({"net":[]})", "policy.net: "},
      {R"({"net":["example.org"]})", "policy.net[0]: \"example.org\": the port is missing"},
      {R"({"net":["example.org:0"]})", "policy.net[0]: "},
      {R"({"net":["example.org:65536"]})", "policy.net[0]: "},
      {R"({"net":[":443"]})", "policy.net[0]: "},
      {R"({"net":["a b:443"]})", "policy.net[0]: "},
      {R"({"net":["a/b:443"]})", "policy.net[0]: "},
      {R"({"net":["a:1","*.:2"]})", "policy.net[1]: "},
      {R"({"fs.read":"/srv/a"})", "policy.fs.read: \"/srv/a\" is not a list"},
      {R"({"fs.read":[1]})", "policy.fs.read[0]: 1 is not text"},
      {R"({"fs.read":["srv/a"]})", "policy.fs.read[0]: \"srv/a\" is not an absolute path"},
      {R"({"fs.read":["/srv/a/../../etc"]})", "has \"..\" in it"},
      {R"({"fs.read":["/etc"]})", "policy.fs.read[0]: \"/etc\" is not below /srv"},
      {R"({"fs.read":["/"]})", "is not below"},
      {R"({"fs.read":["/srv"]})", "is not below"},
      {R"({"fs.read":["/srv/"]})", "is not below"},
      {R"({"fs.read":["/srvx/a"]})", "is not below"},
      {R"({"fs.read":["/srv/a\n"]})", "control characters"},
      {R"({"fs.read":["/srv/a\u0000b"]})", "control characters"},
      {R"({"syscalls.add":["keyctrl"]})", "policy.syscalls.add[0]: \"keyctrl\" is not a system call"},
      {R"({"syscalls.add":["*"]})", "policy.syscalls.add[0]: \"*\" is not a system call"},
      {R"({"syscalls.add":["fork"]})",
       "policy.syscalls.add[0]: \"fork\" is never granted by name: exec = true grants new processes"},
      {R"({"syscalls.add":["execveat"]})", "policy.syscalls.add[0]: \"execveat\" is never granted by name"},
      {R"({"syscalls.add":["ptrace","bpf"]})",
       "policy.syscalls.add[1]: \"bpf\" is never granted: it allows an escape from any sandbox"},
      {R"({"secrets":["../x"]})", "policy.secrets[0]: "},
      {R"({"secrets":[".."]})", "policy.secrets[0]: "},
      {R"({"secrets":[""]})", "policy.secrets[0]: "},
      {R"({"volumes":["../x"]})", "policy.volumes[0]: "},
      {R"({"volumes":["/srv"]})", "policy.volumes[0]: "},
      {R"({"volumes":[""]})", "policy.volumes[0]: "},
      {R"({"python.requirements":["a @ https://b"]})", "policy.python.requirements[0]: "},
  };
  for (const InvalidPolicy& row : rows) {
    const std::string problems = get_problems(row.text);
    EXPECT_NE(problems.find(row.expected_error), std::string::npos) << row.text << "\n" << problems;
    EXPECT_EQ(problems.find('\n'), std::string::npos) << problems;
  }
}

std::string make_list(const std::string& field, std::size_t count, const std::string& item) {
  auto list = nlohmann::json::array();
  for (std::size_t i = 0; i < count; ++i) list.push_back(item + std::to_string(i + 1));
  return dump_json({{field, list}});
}

TEST(PolicyText, CountsAndLengthsAreBounded) {
  EXPECT_EQ(get_problems(make_list("fs.read", 16, "/srv/")), "");
  EXPECT_EQ(get_problems(make_list("fs.read", 17, "/srv/")), "policy.fs.read: 17 folders are more than 16");
  EXPECT_EQ(get_problems(make_list("net", 64, "a:")), "");
  EXPECT_EQ(get_problems(make_list("net", 65, "a:")), "policy.net: 65 entries are more than 64");
  EXPECT_EQ(get_problems(make_list("secrets", 17, "s")), "policy.secrets: 17 secrets are more than 16");
  EXPECT_EQ(get_problems(make_list("syscalls.add", 65, "x")), "policy.syscalls.add: 65 system calls are more than 64");
  EXPECT_NE(get_problems(R"({"fs.read":["/srv/)" + std::string(4096, 'a') + "\"]}"), "");
  EXPECT_NE(get_problems(R"({"net":[")" + std::string(400, 'a') + ":1\"]}"), "");
  EXPECT_NE(get_problems("{\"a\":\"" + std::string(kMaxPolicyBytes, 'a') + "\"}").find("over the limit"),
            std::string::npos);
  auto both_lists = nlohmann::json::parse(make_list("fs.read", 9, "/srv/"));
  both_lists["fs.write"] = nlohmann::json::parse(make_list("x", 8, "/data/"))["x"];
  EXPECT_EQ(get_problems(dump_json(both_lists)), "policy.fs: 17 folders are more than 16");
  std::string long_object = "{";
  for (int i = 0; i < 2000; ++i) long_object += "\"x" + std::to_string(i) + "\":1,";
  EXPECT_LE(parse(long_object + "\"y\":1}").problems.size(), 32U);
}

TEST(PolicyText, FoldersAreInNormalForm) {
  const ParsedPolicy parsed = parse(R"({"fs.read":["/srv//a/./b/","/srv/a/b","/home/x"]})");
  ASSERT_TRUE(parsed.ok()) << join(parsed.problems);
  EXPECT_EQ(parsed.request.values.fs_read, (std::vector<std::string>{"/srv/a/b", "/home/x"}));
}

TEST(PolicyText, CeilingAllowsUnlimitedAndAnyCallButNotKill) {
  const ParsedPolicy parsed =
      parse(R"({"cpu":"unlimited","wall":"unlimited","syscalls.add":["*"]})", PolicyKind::ceiling);
  ASSERT_TRUE(parsed.ok()) << join(parsed.problems);
  EXPECT_EQ(parsed.request.values.cpu_ms, 0U);
  EXPECT_EQ(parsed.request.values.wall_ms, 0U);
  EXPECT_EQ(parse(write_policy({parsed.request.values, parsed.request.named_fields, {}}), PolicyKind::ceiling).ok(),
            false)
      << "no limit is written as null, which a ceiling does not accept";
  EXPECT_NE(get_problems(R"({"output.kill":true})", PolicyKind::ceiling), "");
  EXPECT_NE(get_problems(R"({"output.merge":true})", PolicyKind::ceiling), "");
  EXPECT_NE(get_problems(R"({"artifacts.optional":true})", PolicyKind::ceiling), "");
  EXPECT_NE(get_problems(R"({"python.requirements":["a"]})", PolicyKind::ceiling), "");
  EXPECT_NE(get_problems(R"({"log":"full"})", PolicyKind::ceiling), "");
  EXPECT_EQ(get_problems(R"({"log.keep":"1 GiB"})", PolicyKind::ceiling), "");
  EXPECT_NE(get_problems(R"({"replace":{"fs":{"read":[]}}})", PolicyKind::ceiling), "");
  EXPECT_NE(get_problems(R"({"memory":"unlimited"})", PolicyKind::ceiling), "");
}

TEST(PolicyText, NeverInnocentCallsMatchTheSandbox) {
  std::size_t forbidden_count = 0;
  for (const char* name : sandbox::forbidden_calls()) {
    EXPECT_TRUE(is_forbidden_syscall(name)) << name;
    EXPECT_TRUE(is_known_syscall(name)) << name;
    ++forbidden_count;
  }
  EXPECT_GT(forbidden_count, 30U);
  std::size_t allowed_count = 0;
  for (const auto& names : {sandbox::allowed_calls(), sandbox::allowed_calls_with_exec()}) {
    for (const char* name : names) {
      EXPECT_FALSE(is_forbidden_syscall(name)) << name;
      ++allowed_count;
    }
  }
  for (const auto& call : sandbox::refused_calls()) EXPECT_FALSE(is_forbidden_syscall(call.syscall)) << call.syscall;
  EXPECT_GT(allowed_count, 100U);
  EXPECT_FALSE(is_forbidden_syscall("read"));
  EXPECT_TRUE(is_known_syscall("read"));
  EXPECT_FALSE(is_known_syscall(""));
}

}  // namespace
}  // namespace mycojobs
