// Ceilings in the configuration file.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/config/config.h"
#include "cli/config/config_file.h"
#include "model/codec.h"
#include "support/process.h"

namespace mycojobs::test {
namespace {

class CeilingsTest : public ::testing::Test {
 protected:
  Result<Config> load_with_file(const std::string& text) {
    ConfigSources sources;
    sources.host.environment = {{"HOME", folder_.path().string()}};
    sources.flags.config_file = folder_.write("c.toml", text);
    return load_config(sources);
  }
  std::string get_error(const std::string& text) {
    const auto config = load_with_file(text);
    return config ? "" : config.error().message.substr(folder_.path().string().size() + 1);
  }
  static std::string format_value(const Config& config, const std::string& name) {
    for (const auto& each : config.values) {
      if (each.name == name) return each.text + " from " + each.source.substr(each.source.rfind('/') + 1);
    }
    return "";
  }
  TempDir folder_;
};

TEST_F(CeilingsTest, BuiltInCeilingIsGenerousAndClosed) {
  const auto config = load_with_file("");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->settings.ceilings.standard, default_ceiling());
  const Policy& max = config->settings.ceilings.standard;
  EXPECT_TRUE(max.fs_read.empty() && max.fs_write.empty() && max.secrets.empty() && max.syscalls.empty());
  EXPECT_EQ(max.network, Network::none);
  EXPECT_FALSE(max.exec);
  EXPECT_EQ(format_value(*config, "ceiling.memory"), "\"1 GiB\" from default");
}

TEST_F(CeilingsTest, ContextsOverrideTheCommonCeiling) {
  const auto config = load_with_file(R"(
[ceiling]
memory = "512 MiB"
fs.read = ["/srv/common"]
[contexts.3.ceiling]
net = ["example.org:443"]
fs.read = ["/srv/three"]
wall = "1 h"
[contexts.4]
redis = "redis://other"
[contexts.4.ceiling]
exec = true
)");
  ASSERT_TRUE(config) << config.error().message;
  const Ceilings& all = config->settings.ceilings;
  EXPECT_EQ(all.get(1).max.memory_bytes, 512U << 20);
  EXPECT_EQ(all.get(3).max.memory_bytes, 512U << 20);
  EXPECT_EQ(all.get(3).max.fs_read, std::vector<std::string>{"/srv/three"});
  EXPECT_EQ(all.get(3).max.wall_ms, 3'600'000U);
  EXPECT_EQ(all.get(1).max.network, Network::none);
  EXPECT_TRUE(all.get(4).max.exec);
  EXPECT_FALSE(all.get(3).max.exec);
  EXPECT_EQ(format_value(*config, "contexts.3.ceiling.wall"), "\"1 h\" from c.toml:8:1");
  EXPECT_EQ(format_value(*config, "contexts.3.ceiling.memory"), "")
      << "only fields of the context's own ceiling are shown";
}

TEST_F(CeilingsTest, SettingsRaiseTheBuiltInCeiling) {
  const auto raised = load_with_file("[sandbox]\nmemory = \"3GiB\"\npids = 1000\n");
  ASSERT_TRUE(raised);
  EXPECT_EQ(raised->settings.ceilings.standard.memory_bytes, 3ULL << 30);
  EXPECT_EQ(raised->settings.ceilings.standard.pids, 1000U);
  const auto config = load_with_file("[sandbox]\nmemory = \"3GiB\"\n[ceiling]\nmemory = \"1 GiB\"\n");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->settings.ceilings.standard.memory_bytes, 1ULL << 30);
  EXPECT_TRUE(make_operator_defaults(config->settings).names(PolicyField::memory));
  EXPECT_FALSE(make_operator_defaults(config->settings).names(PolicyField::pids));
}

// Attack case SH2 of tests/sandbox/rows.txt: with any of these errors the agent does not start.
TEST_F(CeilingsTest, ErrorsNameTheirPlace) {
  EXPECT_EQ(get_error("[ceiling]\nmemory = -1\n"),
            "c.toml:2:1: ceiling.memory: -1 is not a size: bytes, or text such as \"64 MiB\"");
  EXPECT_EQ(get_error("[ceiling]\nmemory = \"99999999999 TiB\"\n"),
            "c.toml:2:1: ceiling.memory: \"99999999999TiB\" is too large");
  EXPECT_EQ(get_error("[contexts.3.ceiling]\npids = 0\n"),
            "c.toml:2:1: contexts.3.ceiling.pids: 0 is out of range: give 1 to 1048576, or leave it out");
  EXPECT_EQ(get_error("[ceiling.syscalls]\nadd = [\n\"read\",\n\"raed\"]\n"),
            "c.toml:4:1: ceiling.syscalls.add[1]: \"raed\" is not a system call: use a name of syscalls(2), such as "
            "\"keyctl\"");
  EXPECT_EQ(get_error("[ceiling]\nsyscalls.add = [\"*\", \"bpf\"]\n"),
            "c.toml:2:22: ceiling.syscalls.add[1]: \"bpf\" is never granted: it allows an escape from any sandbox");
  EXPECT_NE(get_error("[ceiling]\nmemmory = 1\n").find("c.toml:2:1: ceiling.memmory: is not a field of a policy"),
            std::string::npos);
  EXPECT_NE(get_error("ceiling = 5\n").find("c.toml:1:11: ceiling: is not a table"), std::string::npos);
  EXPECT_NE(get_error("[contexts.3]\nceiling = []\n").find("contexts.3.ceiling: is not a table"), std::string::npos);
  EXPECT_NE(get_error("[ceiling]\nfs.read = [\"/etc\"]\n").find("c.toml:2:12: ceiling.fs.read[0]"), std::string::npos)
      << get_error("[ceiling]\nfs.read = [\"/etc\"]\n");
  EXPECT_NE(get_error("[ceiling]\noutput.kill = false\n").find("ceiling.output.kill: "), std::string::npos);
  EXPECT_NE(get_error("[contexts.7.ceiling]\npids=1\n[contexts.07.ceiling]\npids=2\n").find("is given twice"),
            std::string::npos);
  for (const char* format_value : {"inf", "nan", "1979-05-27", "07:32:00", "1.5", "-9223372036854775808", "[]", "{}"}) {
    EXPECT_NE(get_error(std::string("[ceiling]\nmemory = ") + format_value + "\n").find("c.toml:2:"), std::string::npos)
        << format_value;
  }
}

TEST_F(CeilingsTest, PrintedCeilingRoundTrips) {
  const auto config = load_with_file(R"(
[ceiling]
syscalls.add = ["*", "ptrace"]
net = "loopback"
cpu = "90 s"
file_size = 5000
[contexts.3.ceiling]
cpu = "unlimited"
secrets = ["A"]
fs.write = ["/srv/\"quoted\""]
)");
  ASSERT_TRUE(config) << config.error().message;
  const std::string printed = format_config(*config, false);
  const auto reread = load_with_file(printed);
  ASSERT_TRUE(reread) << reread.error().message << '\n' << printed;
  EXPECT_EQ(reread->settings.ceilings, config->settings.ceilings);
  const auto values = nlohmann::json::parse(format_config(*config, true));
  EXPECT_EQ(values["ceiling.syscalls.add"]["value"], (std::vector<std::string>{"*", "ptrace"}));
  EXPECT_EQ(values["contexts.3.ceiling.cpu"]["value"], "unlimited");
  EXPECT_EQ(values["ceiling.file_size"]["value"], 5000);
}

TEST_F(CeilingsTest, AgentsOwnFoldersAreNeverGranted) {
  const auto config = load_with_file("state_dir = \"/srv/x/../state/\"\nsecrets_dir = \"/home/me/secrets\"\n");
  ASSERT_TRUE(config) << config.error().message;
  const auto& own = config->settings.ceilings.agent_folders;
  for (const std::string& path : {std::string("/srv/state"), std::string("/home/me/secrets"), folder_ / "c.toml"}) {
    EXPECT_NE(std::find(own.begin(), own.end(), path), own.end()) << path;
  }
}

TEST_F(CeilingsTest, BothKindsOfPolicyFilesNameTheLine) {
  const auto toml = read_policy_file(folder_.write("a.toml", "memory = \"64 MiB\"\n[fs]\nread = [\"/srv/a\"]\n"));
  const auto as_json =
      read_policy_file(folder_.write("a.json", "{\"memory\": 67108864,\n \"fs\": {\n  \"read\": [\"/srv/a\"]}}\n"));
  ASSERT_TRUE(toml && as_json);
  EXPECT_TRUE(toml->ok() && as_json->ok());
  EXPECT_EQ(toml->request, as_json->request);

  const auto get_message = [&](const std::string& name, const std::string& text) {
    const auto read = read_policy_file(folder_.write(name, text));
    const std::string answer = read ? join(read->problems) : read.error().message;
    return answer.substr(std::min(answer.size(), folder_.path().string().size() + 1));
  };
  EXPECT_EQ(get_message("b.json", "{\n \"ab\": {\"c\\\"\": [1, \"}\"]},\n \"pids\": 0}").substr(0, 10), "b.json:2:2");
  EXPECT_NE(
      get_message("b.json", "{\n \"exec\": true, \"memory\": \"8 MiB\",\n \"fs\": {\"read\": [\"/srv/a\",\n \"b\"]}}")
          .find("b.json:4:2: policy.fs.read[1]: "),
      std::string::npos);
  EXPECT_NE(
      get_message("b.toml", "exec = true\n[fs]\nread = [\"/srv/a\",\n \"b\"]\n").find("b.toml:4:2: policy.fs.read[1]"),
      std::string::npos);
  EXPECT_NE(get_message("b.json", "{\n \"pids\": ]}").find("b.json: not JSON at line 2"), std::string::npos);
  EXPECT_NE(get_message("b.toml", "pids = ]").find("b.toml:1:8: "), std::string::npos);
  EXPECT_NE(get_message("b.yaml", "").find("use .toml or .json"), std::string::npos);
  EXPECT_NE(get_message("b.json", std::string(100000, ' ') + "{}").find("over the limit"), std::string::npos);
  EXPECT_NE(get_message("b.toml", "a = \"" + std::string(100000, 'x') + "\"\n").find("over the limit"),
            std::string::npos);
}

TEST_F(CeilingsTest, VolumesOfAContextAreItsCeiling) {
  auto config = load_with_file(R"(
[contexts.3.volumes.backup]
path = "/srv/backup"
mode = "rw"
owner = 34567
[contexts.3.volumes.etc]
path = "/etc/ssl"
mode = "ro"
owner = "root"
[contexts.3.files]
owner = 34568
fixed_uid = true
)");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_TRUE(resolve_owners(config->settings, {3}).empty());
  const Ceiling ceiling = config->settings.ceilings.get(3);
  EXPECT_EQ(ceiling.max.volumes, (std::vector<std::string>{"backup", "etc"}));
  ASSERT_EQ(ceiling.volumes.size(), 2U);
  EXPECT_EQ(ceiling.volumes[0], (Volume{"backup", "/srv/backup", true, {34567, 34567}}));
  EXPECT_EQ(ceiling.volumes[1], (Volume{"etc", "/etc/ssl", false, {0, 0}}));
  EXPECT_EQ(config->settings.context_files, (std::vector<ContextFiles>{{3, {34568, 34568}, true}}));
  EXPECT_TRUE(config->settings.ceilings.get(4).max.volumes.empty());
  EXPECT_EQ(format_value(*config, "contexts.3.volumes.backup.path"), "\"/srv/backup\" from c.toml:3:1");
  EXPECT_EQ(format_value(*config, "contexts.3.files.fixed_uid"), "true from c.toml:12:1");

  PolicyRequest request = read_policy(R"({"volumes": ["backup", "other"]})", "policy").request;
  const GrantedPolicy granted = apply_ceiling(Policy{}, request, ceiling);
  EXPECT_EQ(granted.policy.volumes, std::vector<std::string>{"backup"});
  ASSERT_EQ(granted.problems.size(), 1U);
  EXPECT_EQ(granted.problems[0].message,
            "policy.volumes: context 3 has no volume other: leave it out, or let the operator add "
            "[contexts.3.volumes.other]");
}

TEST_F(CeilingsTest, InvalidVolumesAreRejectedWithTheirPosition) {
  const auto error = [this](const std::string& lines) { return get_error("[contexts.1.volumes.data]\n" + lines); };
  EXPECT_EQ(error("path = \"/srv/a\"\nmode = \"rw\"\n"), "c.toml:1:21: contexts.1.volumes.data: has no owner");
  EXPECT_EQ(error("path = \"/srv/a\"\nmode = \"rw\"\nowner = 0\n"),
            "c.toml:4:1: contexts.1.volumes.data.owner: jobs never write as root: name another user, or use mode = "
            "\"ro\"");
  EXPECT_EQ(error("path = \"/srv/../a\"\n"),
            "c.toml:2:1: contexts.1.volumes.data.path: is not the whole path of a folder, as \"/srv/backup\"");
  EXPECT_EQ(error("path = \"/proc/sys\"\n"), "c.toml:2:1: contexts.1.volumes.data.path: is below /proc");
  EXPECT_EQ(error("mode = \"x\"\n"), "c.toml:2:1: contexts.1.volumes.data.mode: is not \"ro\" or \"rw\"");
  EXPECT_EQ(error("size = 1\n"),
            "c.toml:2:1: contexts.1.volumes.data.size: is unknown: there are path, mode and owner");
  EXPECT_NE(get_error("[contexts.1.volumes.\"a/b\"]\n").substr(0, 60).find("a/b"), std::string::npos);
  EXPECT_EQ(get_error("[contexts.1.files]\nfixed_uid = true\n"),
            "c.toml:1:1: contexts.1.files: has no owner: name the user to whom files of jobs belong");
  EXPECT_NE(get_error("[contexts.1.ceiling]\nvolumes = [\"data\"]\n").find("the volumes of a context are its ceiling"),
            std::string::npos);
}

TEST_F(CeilingsTest, VolumeThatLeadsToTheAgentsFoldersIsRejected) {
  for (const char* path : {"/srv/state", "/srv/state/x", "/srv"}) {
    const std::string text = std::string("state_dir = \"/srv/state\"\n[contexts.1.volumes.data]\npath = \"") + path +
                             "\"\nmode = \"ro\"\nowner = \"root\"\n";
    EXPECT_NE(get_error(text).find("leads to the agent's own folder /srv/state"), std::string::npos) << path;
  }
}

// Other hosts and commands use the same file; only the start of the agent needs the user.
TEST_F(CeilingsTest, UnknownOwnerIsReportedWhenItIsNeeded) {
  auto config = load_with_file(
      "[contexts.1.volumes.data]\npath = \"/srv/a\"\nmode = \"rw\"\nowner = \"mycojobs-no-such-user\"\n"
      "[contexts.2.volumes.data]\npath = \"/srv/b\"\nmode = \"rw\"\nowner = 34567\n");
  ASSERT_TRUE(config) << config.error().message;
  Settings& settings = config->settings;
  EXPECT_EQ(settings.ceilings.volumes.at(2).front().owner, kUnknownFileOwner) << "not looked up yet";
  EXPECT_TRUE(resolve_owners(settings, {2}).empty());
  EXPECT_EQ(settings.ceilings.volumes.at(2).front().owner, (FileOwner{34567, 34567}));
  const auto rejected = resolve_owners(settings, {2, 1});
  ASSERT_EQ(rejected.size(), 1U);
  EXPECT_EQ(rejected.front().name, "contexts.1.volumes.data.owner");
  EXPECT_EQ(rejected.front().error.code, Code::not_found);
  EXPECT_EQ(rejected.front().error.message, "there is no user mycojobs-no-such-user on this host");
  EXPECT_EQ(settings.ceilings.volumes.at(1).front().owner, kUnknownFileOwner) << "never root";
}

}  // namespace
}  // namespace mycojobs::test
