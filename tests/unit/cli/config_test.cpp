#include "cli/config/config.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "text/json.h"

namespace mycojobs {
namespace {

// An example value for each option, different from the default, as flags and variables spell it.
const std::map<std::string, std::string> kExamples = {
    {"redis", "redis://example:7000"},
    {"redis_tls.ca", "/etc/mycojobs/ca.crt"},
    {"redis_tls.cert", "/etc/mycojobs/agent.crt"},
    {"redis_tls.key", "/etc/mycojobs/agent.key"},
    {"redis_tls.server_name", "redis.example.org"},
    {"redis_tls.insecure", "true"},
    {"redis_sentinel.user", "mycojobs"},
    {"redis_sentinel.password_file", "/etc/mycojobs/sentinel-password"},
    {"redis_wait_replicas", "2"},
    {"context", "3,7"},
    {"runner", "20"},
    {"runner_actor", "7"},
    {"coordinator.key", "here"},
    {"coordinator.deliveries", "32"},
    {"coordinator.cell_cache", "100"},
    {"coordinator.cell_cache_bytes", "1MiB"},
    {"coordinator.networks", "10.0.0.0/8,192.0.2.7"},
    {"coordinator.webhooks", "https://hooks.example.com/jobs/,http://127.0.0.1:*"},
    {"coordinator.webhook_secrets", "/etc/mycojobs/webhook-secrets"},
    {"slots", "9"},
    {"local", "false"},
    {"topic", "work.here"},
    {"script_types", "python,my-tool"},
    {"state_dir", "/srv/state"},
    {"libexec_dir", "/srv/libexec"},
    {"secrets_dir", "/srv/secrets"},
    {"secrets_redacted", "1/db,2/api.key"},
    {"plugins.dir", "/srv/plugins"},
    {"api.listen", "127.0.0.1:9700"},
    {"api.tokens", "/srv/tokens"},
    {"api.names", "https://jobs.example.org,http://jobs:9652"},
    {"api.tls.cert", "/srv/api.crt"},
    {"api.tls.key", "/srv/api.key"},
    {"api.insecure", "true"},
    {"https.ca", "/srv/ca.crt"},
    {"supervisor.listen", "127.0.0.1:3030"},
    {"mycelium.url", "http://127.0.0.1:8989"},
    {"mycelium.ip", "10.0.0.7"},
    {"mycelium.port", "8991"},
    {"health.listen", "127.0.0.1:9653"},
    {"metrics.listen", "127.0.0.1:9654"},
    {"metrics.tls.cert", "/srv/metrics.crt"},
    {"metrics.tls.key", "/srv/metrics.key"},
    {"trace.endpoint", "http://127.0.0.1:4318/v1/traces"},
    {"keys_dir", "/k"},
    {"runner_key", "alice"},
    {"lease", "1500ms"},
    {"grace", "3s"},
    {"coordinator.lease", "15s"},
    {"on_lease_lost", "continue"},
    {"retry.min", "250ms"},
    {"retry.max", "10m"},
    {"retention", "7d"},
    {"retention_failed", "14d"},
    {"retention_flows", "30d"},
    {"retention_count", "1000"},
    {"prerequisites.allow", "file:/data/,tcp:db.internal:5432,https://status.example.com"},
    {"prerequisites.timeout", "2h"},
    {"job.default_timeout", "2h"},
    {"job.max_script_bytes", "2MiB"},
    {"job.max_result_bytes", "4096"},
    {"job.max_artifact_bytes", "1MiB"},
    {"message.max_artifact_bytes", "1MiB"},
    {"message.max_incoming_bytes", "1GiB"},
    {"job.output_bytes", "1KiB"},
    {"job.log_export", "/var/log/mycojobs"},
    {"job.log_bytes", "8KiB"},
    {"job.output_rate", "1MiB"},
    {"job.frame_rate", "500"},
    {"quota.caller_bytes", "64MiB"},
    {"quota.context_bytes", "0"},
    {"quota.caller_artifact_bytes", "1GiB"},
    {"quota.context_artifact_bytes", "2GiB"},
    {"artifacts.holder_timeout", "2h"},
    {"artifacts.transfer_rate", "1MiB"},
    {"artifacts.listen", "10.0.0.5:7443"},
    {"artifacts.advertise", "agent.example.org"},
    {"artifacts.tls.cert", "/etc/mycojobs/artifacts.pem"},
    {"artifacts.tls.key", "/etc/mycojobs/artifacts.key"},
    {"artifacts.networks", "10.0.0.0/8,loopback"},
    {"artifacts.cache_bytes", "1GiB"},
    {"artifacts.cache_age", "2d"},
    {"uploads.expiry", "2h"},
    {"uploads.caller_bytes", "2MiB"},
    {"artifacts.store", "s3://bucket/prefix"},
    {"artifacts.store_endpoint", "https://s3.example.com"},
    {"artifacts.store_region", "eu-central-1"},
    {"artifacts.store_path_style", "true"},
    {"artifacts.store_credentials", "/etc/mycojobs/storage"},
    {"artifacts.store_timeout", "2h"},
    {"job.max_deliveries", "5"},
    {"sandbox.memory", "1GiB"},
    {"sandbox.pids", "128"},
    {"sandbox.tmp", "2MiB"},
    {"sandbox.allow_missing", "landlock,cgroup:pids"},
    {"sandbox.uid_range", "200000:65536"},
    {"sandbox.prewarmed", "3"},
    {"sandbox.reused_runs", "7"},
    {"sandbox.warm", "3"},
    {"sandbox.zygotes", "9"},
    {"sandbox.zygote_runs", "100"},
    {"sandbox.zygote_age", "10m"},
    {"v.compiler", "/opt/v/v"},
    {"v.flags", "prod,-g"},
    {"log.level", "debug"},
    {"log.format", "json"},
};

// Returns the value as the configuration file spells it.
std::string to_toml(const Option& option, const std::string& text) {
  if (option.type == OptionType::count || option.type == OptionType::flag) return text;
  if (!is_list(option.type)) return '"' + text + '"';
  const bool ids = option.name == "context";
  std::string out = "[";
  for (char c : text) out += c == ',' ? (ids ? std::string(", ") : std::string("\", \"")) : std::string(1, c);
  out += ']';
  if (!ids) {
    out.insert(1, "\"");
    out.insert(out.size() - 1, "\"");
  }
  return out;
}

class ConfigTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/mycojobs-config-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    sources_.host.cpus = 2;
    sources_.host.program_dir = "/opt/mycojobs/bin";
    sources_.host.environment = {{"HOME", "/home/somebody"}};
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& text) {
    std::ofstream(folder_ + "/c.toml", std::ios::binary) << text;
    return folder_ + "/c.toml";
  }
  Result<Config> load_with_file(const std::string& text) {
    sources_.flags.config_file = write(text);
    return load_config(sources_);
  }
  // Returns the error without the folder: "c.toml:1:1: ...".
  std::string get_file_error(const std::string& text) {
    const auto config = load_with_file(text);
    if (config) return "";
    const auto at = config.error().message.find("c.toml");
    return config.error().message.substr(at == std::string::npos ? 0 : at);
  }
  static std::string get_source(const Config& config, const std::string& name) {
    return get_value(config, name).source;
  }
  static ConfigValue get_value(const Config& config, const std::string& name) {
    for (const auto& value : config.values) {
      if (value.name == name) return value;
    }
    return {};
  }

  std::string folder_;
  ConfigSources sources_;
};

TEST_F(ConfigTest, InstalledProgramFindsItsHelpers) {
  sources_.host.installed_helpers = "/opt/mycojobs/libexec/mycojobs";
  const auto config = load_config(sources_);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->settings.libexec_dir, "/opt/mycojobs/libexec/mycojobs");
}

TEST_F(ConfigTest, DefaultsMatchTheManual) {
  const auto config = load_config(sources_);
  ASSERT_TRUE(config) << config.error().message;
  const Settings& settings = config->settings;
  EXPECT_EQ(settings.redis, "");
  EXPECT_EQ(settings.contexts, std::vector<Id>{1});
  EXPECT_EQ(settings.runner, 1U);
  EXPECT_EQ(settings.slots, 4U);
  EXPECT_TRUE(settings.local);
  EXPECT_TRUE(settings.script_types.empty());
  EXPECT_EQ(settings.state_dir, "/home/somebody/.local/state/mycojobs");
  EXPECT_EQ(settings.libexec_dir, "/opt/mycojobs/bin");
  EXPECT_EQ(settings.secrets_dir, "/home/somebody/.config/mycojobs/secrets");
  EXPECT_EQ(settings.redis_wait_replicas, 0U);
  EXPECT_EQ(settings.lease_ms, 30'000U);
  EXPECT_EQ(settings.grace_ms, 10'000U);
  EXPECT_EQ(settings.on_lease_lost, LeaseLostAction::kill);
  EXPECT_EQ(settings.retry_min_ms, 1'000U);
  EXPECT_EQ(settings.retry_max_ms, 300'000U);
  EXPECT_EQ(settings.retention_ms, 86'400'000U);
  EXPECT_EQ(settings.retention_count, 0U);
  EXPECT_TRUE(settings.prerequisites_allow.empty());
  EXPECT_EQ(settings.prerequisites_timeout_ms, 86'400'000U);
  EXPECT_EQ(settings.job_default_timeout_ms, 600'000U);
  EXPECT_EQ(settings.job_max_script_bytes, 4U << 20);
  EXPECT_EQ(settings.job_max_result_bytes, 1U << 20);
  EXPECT_EQ(settings.job_max_artifact_bytes, 64U << 20);
  EXPECT_EQ(settings.job_output_bytes, 1U << 20);
  EXPECT_EQ(settings.quota_caller_bytes, 512U << 20);
  EXPECT_EQ(settings.quota_context_bytes, 2048ULL << 20);
  EXPECT_EQ(settings.quota_caller_artifact_bytes, 1U << 30);
  EXPECT_EQ(settings.quota_context_artifact_bytes, 4ULL << 30);
  EXPECT_EQ(settings.artifacts_holder_timeout_ms, 86'400'000U);
  EXPECT_EQ(settings.artifacts_transfer_rate_bytes, 64U << 20);
  EXPECT_EQ(settings.artifacts_cache_bytes, 4ULL << 30);
  EXPECT_EQ(settings.artifacts_cache_age_ms, 7U * 86'400'000U);
  EXPECT_EQ(settings.uploads_expiry_ms, 86'400'000U);
  EXPECT_EQ(settings.uploads_caller_bytes, 1ULL << 30);
  EXPECT_EQ(settings.artifacts_store, "");
  EXPECT_EQ(settings.artifacts_store_endpoint, "");
  EXPECT_EQ(settings.artifacts_store_region, "us-east-1");
  EXPECT_FALSE(settings.artifacts_store_path_style);
  EXPECT_EQ(settings.artifacts_store_timeout_ms, 86'400'000U);
  EXPECT_EQ(settings.job_max_deliveries, 3U);
  EXPECT_EQ(settings.sandbox_memory_bytes, 256U << 20);
  EXPECT_EQ(settings.sandbox_pids, 64U);
  EXPECT_EQ(settings.sandbox_tmp_bytes, 64U << 20);
  EXPECT_TRUE(settings.sandbox_allow_missing.empty());
  EXPECT_EQ(settings.sandbox_uid_range, UidRange{});
  EXPECT_EQ(settings.log_level, LogLevel::info);
  EXPECT_EQ(settings.log_format, LogFormat::automatic);
  for (const auto& value : config->values) EXPECT_EQ(value.source, "default") << value.name;
}

TEST_F(ConfigTest, StateFolderFollowsTheUser) {
  sources_.host.environment["XDG_STATE_HOME"] = "/xdg";
  EXPECT_EQ(load_config(sources_)->settings.state_dir, "/xdg/mycojobs");
  sources_.host.environment["XDG_STATE_HOME"] = "relative";
  EXPECT_EQ(load_config(sources_)->settings.state_dir, "/home/somebody/.local/state/mycojobs");
  sources_.host.environment.clear();
  const auto homeless = load_config(sources_);
  ASSERT_FALSE(homeless);
  EXPECT_EQ(homeless.error().message, "state_dir: HOME is not set: give --state-dir or MYCOJOBS_STATE_DIR");
  sources_.host.root = true;
  sources_.flags.config_file = write("");
  EXPECT_EQ(load_config(sources_)->settings.state_dir, "/var/lib/mycojobs");
}

TEST_F(ConfigTest, SecretsAreBesideTheConfiguration) {
  sources_.host.environment["XDG_CONFIG_HOME"] = "/xdg";
  EXPECT_EQ(load_config(sources_)->settings.secrets_dir, "/xdg/mycojobs/secrets");
  sources_.host.root = true;
  sources_.flags.config_file = write("");
  EXPECT_EQ(load_config(sources_)->settings.secrets_dir, "/etc/mycojobs/secrets");
}

TEST_F(ConfigTest, ListsMayContainAnythingButCommas) {
  const auto config = load_with_file("[prerequisites]\nallow = [\"file:/My Data/\", \"http://h:80/?q\"]\n");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->settings.prerequisites_allow, (std::vector<std::string>{"file:/My Data/", "http://h:80/?q"}));
  EXPECT_EQ(get_file_error("[prerequisites]\nallow = [\"a,b\"]\n"),
            "c.toml:2:9: prerequisites.allow: is not a list, such as [\"a\", \"b\"]");
  EXPECT_EQ(get_file_error("[prerequisites]\nallow = [\"\"]\n"),
            "c.toml:2:9: prerequisites.allow: is not a list, such as [\"a\", \"b\"]");
  sources_.flags.config_file.clear();
  sources_.flags.values["prerequisites.allow"] = "file:/a,,file:/b";
  EXPECT_EQ(load_config(sources_).error().message, "--prerequisites-allow: has an empty item");
}

TEST_F(ConfigTest, EveryOptionHasAFlagVariableAndFileKey) {
  for (const Option& option : options()) {
    const std::string name(option.name);
    ASSERT_TRUE(kExamples.contains(name)) << name << " needs an example in this test";
    const std::string text = kExamples.at(name);
    Settings expected = load_config(sources_)->settings;
    ASSERT_TRUE(set_option(option, text, expected)) << name;

    const auto expect_set = [&](const ConfigSources& sources, const std::string& source) {
      const auto config = load_config(sources);
      ASSERT_TRUE(config) << config.error().message;
      EXPECT_NE(get_source(*config, name).find(source), std::string::npos) << name;
      std::visit([&](auto member) { EXPECT_TRUE(config->settings.*member == expected.*member) << name; },
                 option.member);
      EXPECT_NE(format_config(*config, false).find("\n" + name + " "), name == "redis" ? 0 : std::string::npos) << name;
      EXPECT_TRUE(parse_json(format_config(*config, true))->contains(name));
    };
    ConfigSources by_environment = sources_;
    by_environment.host.environment[get_variable_name(option)] = text;
    expect_set(by_environment, get_variable_name(option));

    ConfigSources by_file = sources_;
    by_file.flags.config_file = write(name + " = " + to_toml(option, text) + "\n");
    expect_set(by_file, "c.toml:1:");

    for (const char* command : {"agent", "dev", "run", "doctor", "config"}) {
      if (!accepts_flag(option, command)) continue;
      ConfigSources by_flag = sources_;
      CLI::App app;
      add_options(app, command, by_flag.flags);
      std::string line = get_flag_name(option) + ' ' + text;
      if (option.type == OptionType::flag)
        line = text == "true" ? get_flag_name(option) : "--no-" + get_flag_name(option).substr(2);
      app.parse(line);
      expect_set(by_flag, get_flag_name(option));
      EXPECT_NE(app.help().find(get_variable_name(option)), std::string::npos);
    }
    EXPECT_TRUE(accepts_flag(option, "agent") || accepts_flag(option, "coordinator"))
        << name << " must be a flag of the agent or of the coordinator";
  }
  EXPECT_EQ(kExamples.size(), options().size());
}

TEST_F(ConfigTest, EveryDefaultIsValidAndEveryNameIsUsedOnce) {
  std::set<std::string> names;
  for (const Option& option : options()) {
    Settings settings;
    const std::string fallback = option.computed ? option.computed(sources_.host) : std::string(option.fallback);
    const auto set = set_option(option, fallback, settings);
    EXPECT_TRUE(set) << option.name << ": " << set.error().message;
    EXPECT_TRUE(names.insert(get_flag_name(option)).second && names.insert(get_variable_name(option)).second)
        << option.name;
    EXPECT_FALSE(option.help.empty());
    EXPECT_EQ(option.help.find('\n'), std::string_view::npos);
  }
}

TEST_F(ConfigTest, FlagsOverrideEnvironmentFileAndDefault) {
  auto config = load_with_file("slots = 5\nrunner = 6\nlease = \"20s\"\n");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->settings.slots, 5U);
  sources_.host.environment["MYCOJOBS_SLOTS"] = "7";
  sources_.host.environment["MYCOJOBS_LEASE"] = "21s";
  sources_.flags.values["slots"] = "8";
  config = load_config(sources_);
  ASSERT_TRUE(config);
  EXPECT_EQ(config->settings.slots, 8U);
  EXPECT_EQ(config->settings.lease_ms, 21'000U);
  EXPECT_EQ(config->settings.runner, 6U);
  EXPECT_EQ(get_source(*config, "slots"), "--slots");
  EXPECT_EQ(get_source(*config, "lease"), "MYCOJOBS_LEASE");
  EXPECT_EQ(get_source(*config, "runner"), folder_ + "/c.toml:2:10");
  EXPECT_EQ(get_source(*config, "grace"), "default");
}

// A rate of 1 would let a job wait for hours after one read.
TEST_F(ConfigTest, ReadRatesAreZeroOrLargeEnough) {
  for (const std::string text : {"[job]\noutput_rate = \"0\"\n", "[job]\noutput_rate = \"64KiB\"\n",
                                 "[job]\nframe_rate = 0\n", "[job]\nframe_rate = 10\n"})
    EXPECT_EQ(get_file_error(text), "") << text;
  EXPECT_EQ(get_file_error("[job]\noutput_rate = \"1\"\n"),
            "c.toml:2:15: job.output_rate: 1 is out of range: give 0 or 65536 to 1099511627776 bytes");
  EXPECT_EQ(get_file_error("[job]\nframe_rate = 9\n"),
            "c.toml:2:14: job.frame_rate: 9 is out of range: give 0 or 10 to 1073741824");
}

TEST_F(ConfigTest, ErrorsNameThePlaceAndTheRemedy) {
  EXPECT_EQ(get_file_error("\nlease = 30\n"),
            "c.toml:2:9: lease: 30 has no unit: write 30s for seconds (units: ms, s, m, h, d)");
  EXPECT_EQ(get_file_error("slots = \"4\"\n"), "c.toml:1:9: slots: is not a whole number");
  EXPECT_EQ(get_file_error("slots = 0\n"), "c.toml:1:9: slots: 0 is out of range: give 1 to 4096");
  EXPECT_EQ(get_file_error("slots = -1\n"), "c.toml:1:9: slots: -1 is not a whole number");
  EXPECT_EQ(get_file_error("local = 1\n"), "c.toml:1:9: local: is not true or false");
  EXPECT_EQ(get_file_error("redis = 5\n"), "c.toml:1:9: redis: is not text in quotes");
  EXPECT_EQ(get_file_error("context = 3\n"), "c.toml:1:11: context: is not a list, such as [\"a\", \"b\"]");
  EXPECT_EQ(get_file_error("context = []\n"), "c.toml:1:11: context: is empty: name at least one");
  EXPECT_EQ(get_file_error("context = [0]\n"), "c.toml:1:11: context: 0 is out of range: give 1 to 4294967295");
  EXPECT_EQ(get_file_error("script_types = [\"a,b\"]\n"),
            "c.toml:1:16: script_types: is not a list, such as [\"a\", \"b\"]");
  EXPECT_EQ(get_file_error("script_types = [\"python\", \"v\", \"python\"]\n"),
            "c.toml:1:16: script_types: names \"python\" twice");
  EXPECT_EQ(get_file_error("context = [1, 7, 1]\n"), "c.toml:1:11: context: names 1 twice");
  EXPECT_EQ(get_file_error("script_types = [\"Python\"]\n"),
            "c.toml:1:16: script_types: \"Python\" is not a name: 1 to 32 of a-z, 0-9, '_' and '-', a letter first");
  EXPECT_EQ(get_file_error("[log]\nlevel = \"loud\"\n"),
            "c.toml:2:9: log.level: \"loud\" is not one of debug info warn error");
  EXPECT_EQ(get_file_error("[sandbox]\nuid_range = \"1000\"\n"),
            "c.toml:2:13: sandbox.uid_range: 1000 is not base:count, such as 100000:65536");
  sources_.flags.config_file.clear();
  sources_.host.environment["MYCOJOBS_LEASE"] = "30";
  EXPECT_EQ(load_config(sources_).error().message,
            "MYCOJOBS_LEASE: 30 has no unit: write 30s for seconds (units: ms, s, m, h, d)");
  sources_.flags.values["lease"] = "1ms";
  EXPECT_EQ(load_config(sources_).error().message, "--lease: \"1ms\" is out of range: give 1000 to 3600000 ms");
}

TEST_F(ConfigTest, UnknownKeysAreRejectedAtTheirPlace) {
  const std::string remedy = ": `mycojobs config print` lists all settings";
  EXPECT_EQ(get_file_error("slots = 4\nslotz = 5\n"), "c.toml:2:1: unknown key \"slotz\"" + remedy);
  EXPECT_EQ(get_file_error("[job]\nmax = 1\n"), "c.toml:2:1: unknown key \"job.max\"" + remedy);
  EXPECT_EQ(get_file_error("[jobs]\n"), "c.toml:1:2: unknown key \"jobs\"" + remedy);
  EXPECT_EQ(get_file_error("job = 1\n"), "c.toml:1:1: unknown key \"job\"" + remedy);
  EXPECT_EQ(get_file_error("slots = {a = 1}\n"), "c.toml:1:9: slots: is not a whole number");
  EXPECT_TRUE(get_file_error("slots = \n").starts_with("c.toml:1:9: ")) << get_file_error("slots = \n");
  EXPECT_TRUE(get_file_error("slots = 1\nslots = 2\n").starts_with("c.toml:2:"))
      << get_file_error("slots = 1\nslots = 2\n");
  EXPECT_TRUE(get_file_error("redis = \"\xFF\"\n").starts_with("c.toml:1:")) << "bytes that are not UTF-8";
}

TEST_F(ConfigTest, ContextMayHaveItsOwnRedis) {
  const auto config =
      load_with_file("[contexts.7]\nredis = \"redis://seven:6379\"\n[contexts.8]\nredis = \"unix:/r\"\n");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->settings.context_redis, (std::map<Id, std::string>{{7, "redis://seven:6379"}, {8, "unix:/r"}}));
  EXPECT_EQ(get_source(*config, "contexts.7.redis"), folder_ + "/c.toml:2:9");
  EXPECT_EQ(get_file_error("[contexts.0]\n"), "c.toml:1:11: contexts: 0 is not a context id from 1 to 4294967295");
  EXPECT_EQ(get_file_error("[contexts.4294967296]\n"),
            "c.toml:1:11: contexts: 4294967296 is not a context id from 1 to 4294967295");
  EXPECT_EQ(get_file_error("[contexts]\n7 = 5\n"), "c.toml:2:5: contexts.7: is not a table: write [contexts.7]");
  EXPECT_EQ(get_file_error("[contexts.7]\nslots = 5\n"),
            "c.toml:2:1: unknown key \"contexts.7.slots\": a context has redis = \"...\", redis_tls, a ceiling, "
            "python, volumes and files only");
  EXPECT_EQ(get_file_error("[contexts.7]\nredis = 5\n"), "c.toml:2:9: contexts.7.redis: is not an address in quotes");
  EXPECT_NE(get_file_error("[contexts.7]\nredis=\"a\"\n[contexts.07]\nredis=\"b\"\n"), "");
}

TEST_F(ConfigTest, ContextMayHaveItsOwnCertificates) {
  const std::string seven = "[contexts.7]\nredis = \"rediss://seven\"\n[contexts.7.redis_tls]\n";
  const auto config = load_with_file("redis = \"rediss://h\"\nredis_tls.ca = \"/ca\"\n" + seven +
                                     "ca = \"/seven\"\ncert = \"/c\"\nkey = \"/k\"\nserver_name = \"n\"\n");
  ASSERT_TRUE(config) << config.error().message;
  TlsSettings common, own;
  common.ca = "/ca";
  own.table = "contexts.7.redis_tls";
  own.ca = "/seven";
  own.certificate = "/c";
  own.key = "/k";
  own.server_name = "n";
  EXPECT_EQ(get_redis_tls(config->settings), common);
  EXPECT_EQ(get_redis_tls(config->settings, 8), common);
  EXPECT_EQ(get_redis_tls(config->settings, 7), own);
  EXPECT_EQ(get_source(*config, "contexts.7.redis_tls.ca"), folder_ + "/c.toml:6:1");
  EXPECT_TRUE(config->warnings.empty());
  EXPECT_TRUE(load_with_file(seven + "insecure = true\n")->settings.context_redis_tls.at(7).insecure);
  EXPECT_EQ(get_file_error(seven + "cas = \"/ca\"\n"),
            "c.toml:4:1: unknown key \"contexts.7.redis_tls.cas\": there are ca, cert, key, server_name and insecure");
  EXPECT_EQ(get_file_error(seven + "ca = 5\n"), "c.toml:4:1: contexts.7.redis_tls.ca: is not text in quotes");
  EXPECT_EQ(get_file_error(seven + "insecure = 1\n"),
            "c.toml:4:1: contexts.7.redis_tls.insecure: is not true or false");
  EXPECT_NE(get_file_error("[contexts.7.redis_tls]\nca = \"/ca\"\n").find("add contexts.7.redis"), std::string::npos);
}

TEST_F(ConfigTest, CertificatesWithoutTlsCauseAWarning) {
  const auto warnings_of = [&](const std::string& text) { return load_with_file(text)->warnings; };
  const std::string table = "[redis_tls]\nca = \"/ca\"\n";
  EXPECT_EQ(warnings_of("redis = \"redis://h\"\n" + table).size(), 1U);
  EXPECT_TRUE(warnings_of("redis = \"rediss://h\"\n" + table).empty());
  EXPECT_TRUE(warnings_of("redis = \"redis://h\"\n[redis_tls]\nca = \"\"\ninsecure = false\n").empty());
  EXPECT_TRUE(warnings_of(table + "[contexts.7]\nredis = \"rediss://seven\"\n").empty());
  const std::string own = "[contexts.7.redis_tls]\nca = \"/seven\"\n";
  EXPECT_EQ(warnings_of("[contexts.7]\nredis = \"redis://seven\"\n" + own).size(), 1U);
}

TEST_F(ConfigTest, SentinelSettingsWithoutSentinelsCauseAWarning) {
  const auto warnings_of = [&](const std::string& text) { return load_with_file(text)->warnings; };
  const std::string table = "[redis_sentinel]\nuser = \"me\"\n";
  EXPECT_EQ(warnings_of("redis = \"redis://h\"\n" + table).size(), 1U);
  EXPECT_TRUE(warnings_of("redis = \"redis+sentinel://h/m\"\n" + table).empty());
  EXPECT_TRUE(warnings_of(table + "[contexts.7]\nredis = \"rediss+sentinel://h/m\"\n").empty());
  EXPECT_TRUE(warnings_of("redis = \"rediss+sentinel://h/m\"\n[redis_tls]\nca = \"/ca\"\n").empty());
}

TEST_F(ConfigTest, NamedFileMustExist) {
  sources_.flags.config_file = folder_ + "/none.toml";
  auto config = load_config(sources_);
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().message, folder_ + "/none.toml: no such file");
  sources_.flags.config_file.clear();
  sources_.host.environment["MYCOJOBS_CONFIG"] = folder_;
  config = load_config(sources_);
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().message, "cannot read " + folder_ + ": EISDIR (Is a directory)");
  EXPECT_TRUE(load_with_file("")) << "an empty file is valid";
}

TEST_F(ConfigTest, UserFileIsFoundByDefault) {
  std::filesystem::create_directories(folder_ + "/mycojobs");
  std::ofstream(folder_ + "/mycojobs/config.toml") << "slots = 3\n";
  sources_.host.environment["XDG_CONFIG_HOME"] = folder_;
  EXPECT_EQ(load_config(sources_)->settings.slots, 3U);
  EXPECT_EQ(load_config(sources_)->file, folder_ + "/mycojobs/config.toml");
}

TEST_F(ConfigTest, UnknownVariableIsReported) {
  sources_.host.environment["MYCOJOBS_SLOT"] = "4";
  const auto config = load_config(sources_);
  ASSERT_TRUE(config);
  EXPECT_EQ(config->warnings, std::vector<std::string>{"the variable MYCOJOBS_SLOT is not a setting and was ignored"});
}

TEST_F(ConfigTest, FormerNamesAreReadAndReported) {
  sources_.host.environment["MYCOJOBS_SANDBOX_SLOT_RUNS"] = "9";
  const auto config = load_with_file("[sandbox]\nspares = 3\n");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->settings.sandbox_prewarmed, 3U);
  EXPECT_EQ(config->settings.sandbox_reused_runs, 9U);
  ASSERT_EQ(config->warnings.size(), 2U);
  EXPECT_NE(config->warnings[0].find("sandbox.spares is called sandbox.prewarmed now"), std::string::npos);
  EXPECT_NE(config->warnings[1].find("MYCOJOBS_SANDBOX_SLOT_RUNS: sandbox.slot_runs is called"), std::string::npos);
  sources_.flags.values["sandbox.spares"] = "5";
  EXPECT_EQ(load_config(sources_)->settings.sandbox_prewarmed, 5U);
}

TEST_F(ConfigTest, NamesOfOtherProgramsAreReadSilently) {
  sources_.flags.values["redis_url"] = "redis://other:6379";
  const auto config = load_config(sources_);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->settings.redis, "redis://other:6379");
  EXPECT_EQ(get_source(*config, "redis"), "--redis-url");
  EXPECT_TRUE(config->warnings.empty());
  for (const char* command : {"agent", "coordinator", "job"}) {
    FlagValues flags;
    CLI::App app;
    add_options(app, command, flags);
    app.parse("--redis-url redis://other:6379");
    EXPECT_EQ(flags.values["redis_url"], "redis://other:6379") << command;
  }
}

TEST_F(ConfigTest, MyceliumNodeIsSetByUrlOrByIpAndPort) {
  const auto url = [this] {
    const auto config = load_config(sources_);
    return config ? config->settings.mycelium_url : config.error().message;
  };
  EXPECT_EQ(url(), "");
  sources_.host.environment["MYCELIUM_URL"] = "http://node:8989/";
  EXPECT_EQ(url(), "http://node:8989");
  sources_.flags.values["mycelium.port"] = "9000";
  EXPECT_EQ(url(), "http://127.0.0.1:9000");
  sources_.flags.values = {{"mycelium.ip", "fd00::7"}};
  EXPECT_EQ(url(), "http://[fd00::7]:8990");
  sources_.flags.values["mycelium.url"] = "https://node.example:1";
  EXPECT_EQ(url(), "https://node.example:1");
  EXPECT_EQ(load_config(sources_)->warnings,
            std::vector<std::string>{"mycelium.ip and mycelium.port are passed over: mycelium.url is set"});
  for (const char* wrong : {"node:8989", "http://", "tcp://127.0.0.1:9651", "http://a:8989/api/v1"}) {
    sources_.flags.values = {{"mycelium.url", wrong}};
    EXPECT_NE(url().find("mycelium.url: \""), std::string::npos) << url();
  }
}

TEST_F(ConfigTest, PrintedConfigurationRoundTrips) {
  for (const auto& [name, text] : kExamples) sources_.flags.values[name] = text;
  const auto config = load_config(sources_);
  ASSERT_TRUE(config) << config.error().message;
  sources_.flags.values.clear();
  const auto again = load_with_file(format_config(*config, false));
  ASSERT_TRUE(again) << again.error().message << '\n' << format_config(*config, false);
  for (const auto& value : config->values) EXPECT_EQ(get_value(*again, value.name).text, value.text) << value.name;
}

TEST_F(ConfigTest, PasswordsAreNotPrinted) {
  sources_.flags.values["redis"] = "redis://me:se@c/ret@example:7000/0";
  const auto config = load_config(sources_);
  ASSERT_TRUE(config);
  for (bool as_json : {false, true}) {
    EXPECT_EQ(format_config(*config, as_json).find("ret@"), std::string::npos) << format_config(*config, as_json);
    EXPECT_NE(format_config(*config, as_json).find("redis://me:***@example:7000/0"), std::string::npos);
  }
  EXPECT_EQ(config->settings.redis, "redis://me:se@c/ret@example:7000/0");
}

TEST_F(ConfigTest, PasswordInAPublicFileIsAWarning) {
  const std::string text = "redis = \"redis://:secret@h:1\"\n[contexts.7]\nredis = \"redis://me:too@h:2\"\n";
  write(text);
  using std::filesystem::perms;
  const auto set_permissions = [&](perms mode) { std::filesystem::permissions(folder_ + "/c.toml", mode); };
  set_permissions(perms::owner_read | perms::owner_write | perms::group_read);
  EXPECT_TRUE(load_with_file(text)->warnings.empty());
  set_permissions(perms::owner_read | perms::owner_write | perms::others_read);
  const auto config = load_with_file(text);
  ASSERT_EQ(config->warnings.size(), 2U);
  EXPECT_EQ(config->warnings[0], folder_ +
                                     "/c.toml:1:9: redis holds a password, and every user of this host may read the "
                                     "file: chmod o-r " +
                                     folder_ + "/c.toml");
  EXPECT_NE(config->warnings[1].find("contexts.7.redis holds a password"), std::string::npos);
  EXPECT_TRUE(load_with_file("redis = \"redis://h:1\"\n[contexts.7]\nredis = \"unix:/a@b:c\"\n")->warnings.empty());
  EXPECT_EQ(check_config_file(write(text), sources_.host)->warnings.size(), 2U);
}

TEST_F(ConfigTest, CheckReadsOnlyTheFile) {
  sources_.host.environment["MYCOJOBS_SLOTS"] = "nonsense";
  EXPECT_TRUE(check_config_file(write("slots = 3\n"), sources_.host));
  EXPECT_FALSE(check_config_file(write("slots = \"x\"\n"), sources_.host));
}

TEST(Flags, ListsMayBeRepeatedOrJoined) {
  for (const char* line : {"--context 1 --context 2 file", "--context 1,2 file"}) {
    FlagValues flags;
    std::string file;
    CLI::App app;
    app.add_option("file", file);
    add_options(app, "agent", flags);
    app.parse(std::string(line));
    EXPECT_EQ(flags.values["context"], "1,2") << line;
    EXPECT_EQ(file, "file") << "a list does not include the next argument";
  }
}

TEST(Flags, AreThoseOfTheCommandOnly) {
  FlagValues flags;
  CLI::App app;
  add_options(app, "job", flags);
  EXPECT_THROW(app.parse("--slots 4"), CLI::ParseError);
  app.clear();
  app.parse("--redis unix:/r --config f.toml --redis unix:/s");
  EXPECT_EQ(flags.values, (std::map<std::string, std::string>{{"redis", "unix:/s"}}))
      << "the last value of a flag is used";
  EXPECT_EQ(flags.config_file, "f.toml");
}

}  // namespace
}  // namespace mycojobs
