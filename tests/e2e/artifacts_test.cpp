// Artifacts and secrets of real jobs, end to end, as an operator sees them.
#include <sys/stat.h>

#include <csignal>
#include <filesystem>

#include "base/sha256.h"
#include "e2e/artifact_operator.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;

class ArtifactsE2e : public ArtifactOperator {
 protected:
  std::string state_dir() const { return folder_ / "state"; }
  Process start_runner_1_with_state(std::vector<std::string> more_options = {}) {
    more_options.insert(more_options.end(), {"--lease", "2s"});
    Process agent = start_agent(folder_, redis_, 1, more_options);
    EXPECT_TRUE(wait_until_registered(redis_, 1)) << agent.err();
    return agent;
  }
  // Runs `job artifacts` on the host of the agent.
  ProcessResult run_job_artifacts(std::vector<std::string> words) const {
    words.insert(words.begin(), {program_path(), "job", "artifacts"});
    words.insert(words.end(), {"--redis", redis_.url(), "--state-dir", state_dir()});
    return run(folder_, words);
  }
  std::size_t count_files(const std::string& below) const {
    return count_files_in(state_dir() + "/contexts/1/" + below);
  }
};

const std::string kWriteArtifacts = R"(
import mycojobs
a = mycojobs.artifacts
(a / "text.txt").write_text("hello\n")
(a / "deep" / "er").mkdir(parents=True)
(a / "deep" / "er" / "bytes").write_bytes(bytes(range(256)) * 2000)
)";

TEST_F(ArtifactsE2e, JobLeavesFilesAndItsDependentReadsThem) {
  Process agent = start_runner_1_with_state();
  const std::string key = run_to_end(kWriteArtifacts, {"--name", "build"});
  const std::string id = key.substr(key.rfind(':') + 1);
  const std::string reading_job = run_to_end(
      "import hashlib, pathlib\n"
      "p = pathlib.Path('/job/inputs')\n"
      "result['all'] = ' '.join(sorted(str(f.relative_to(p)) for f in p.rglob('*') if f.is_file()))\n"
      "result['hash'] = hashlib.sha256((p / 'build/deep/er/bytes').read_bytes()).hexdigest()\n",
      {"--depends", id, "--input", "build"});
  std::string bytes;
  for (int i = 0; i < 512000; ++i) bytes += static_cast<char>(i & 255);
  EXPECT_EQ(mycojobs_.read_field(reading_job, "result"),
            R"({"all":"build/deep/er/bytes build/text.txt","hash":")" + sha256_hex(bytes) + "\"}");
  expect_result(run_job_artifacts({key}), 0, "deep/er/bytes");
  EXPECT_EQ(run_job_artifacts({key, "text.txt"}).out, "hello\n");
  EXPECT_EQ(sha256_hex(run_job_artifacts({key, "deep/er/bytes"}).out), sha256_hex(bytes));
  expect_result(run_job_artifacts({key, "--output", folder_ / "out"}), 0, "wrote deep/er/bytes");
  EXPECT_EQ(read_file(folder_ / "out/deep/er/bytes"), bytes);
  expect_result(run_job_artifacts({key, "--output", folder_ / "out"}), 65, "exists already");
  expect_result(run_job_artifacts({key, "none"}), 66, "stored no artifact \"none\"");
  EXPECT_EQ(mycojobs_({"job", "artifacts", key, "text.txt"}).out, "hello\n") << "fetched through Redis";
  expect_result(mycojobs_({"job", "show", key}), 0, "text.txt (6 B)");
}

TEST_F(ArtifactsE2e, OutputLinksAreNotFollowed) {
  Process agent = start_runner_1_with_state();
  const std::string key = run_to_end(kWriteArtifacts);
  fs::create_directories(folder_ / "out");
  fs::create_directories(folder_ / "elsewhere");
  fs::create_directory_symlink(folder_ / "elsewhere", folder_ / "out/deep");
  fs::create_symlink(folder_ / "elsewhere/file", folder_ / "out/text.txt");
  EXPECT_NE(run_job_artifacts({key, "--output", folder_ / "out"}).code, 0);
  EXPECT_NE(run_job_artifacts({key, "text.txt", "--output", folder_ / "out"}).code, 0);
  EXPECT_TRUE(fs::is_empty(folder_ / "elsewhere"));
}

TEST_F(ArtifactsE2e, DamagedFileIsNotReturned) {
  Process agent = start_runner_1_with_state();
  const std::string key = run_to_end(kWriteArtifacts);
  for (const auto& entry : fs::directory_iterator(state_dir() + "/contexts/1/objects"))
    if (entry.file_size() == 6) folder_.write(fs::relative(entry.path(), folder_.path()).string(), "hellO\n");
  expect_result(run_job_artifacts({key, "text.txt", "--output", folder_ / "text"}), 74, "is damaged");
  EXPECT_FALSE(fs::exists(folder_ / "text"));
}

TEST_F(ArtifactsE2e, NonFileIsDroppedWithALogLine) {
  Process agent = start_runner_1_with_state({"--job-max-artifact-bytes", "1MiB"});
  const std::string key = run_to_end(R"(
import mycojobs, os
a = mycojobs.artifacts
os.symlink("/etc/passwd", a / "link")
os.mkfifo(a / "fifo")
(a / "two").write_text("x")
os.link(a / "two", a / "names")
(a / "line\nend\x1b[31m").write_text("x")
with open(a / "sparse", "wb") as f:
    f.truncate(8 << 20)
d = a
for i in range(40):
    d = d / "d"
    d.mkdir()
(d / "deep").write_text("x")
(a / ("l" * 255)).write_text("long")
(a / "zz good").write_text("good")
)");
  const std::string log =
      read_job_log(folder_, redis_, PlainJob{.caller = 1, .id = 1}) + mycojobs_({"job", "logs", key}).err;
  for (const char* name : {"artifact link:", "artifact fifo:", "artifact two:", "artifact names:", "artifact sparse:"})
    EXPECT_NE(log.find(name), std::string::npos) << name << log;
  EXPECT_EQ(log.find('\x1b'), std::string::npos);
  const auto stored_artifacts = nlohmann::json::parse(mycojobs_.read_field(key, "artifacts"));
  EXPECT_EQ(stored_artifacts.size(), 2U) << stored_artifacts;
  EXPECT_TRUE(stored_artifacts.contains("zz good") && stored_artifacts.contains(std::string(255, 'l')));
}

TEST_F(ArtifactsE2e, RunFailsWhenAnArtifactIsDropped) {
  Process agent = start_runner_1_with_state({"--job-max-artifact-bytes", "1MiB"});
  const std::string excessive_script =
      folder_.write("large.py",
                    "import mycojobs, os\nwith open(mycojobs.artifacts / 'big', 'wb') as f: f.truncate(2 << 20)\n"
                    "os.symlink('big', mycojobs.artifacts / 'ln')\n");
  const ProcessResult dropped_result = mycojobs_({"run", excessive_script, "--json"});
  EXPECT_EQ(dropped_result.code, 1) << dropped_result.err;
  const auto job = nlohmann::json::parse(dropped_result.out);
  EXPECT_EQ(job["status"], "finished");
  EXPECT_EQ(job["artifacts_dropped"], nlohmann::json::parse(R"([{"name": "big", "reason": "bytes", "limit": 1048576,
                                       "setting": "job.max_artifact_bytes"},
                                      {"name": "ln", "reason": "link", "optional": true}])"));
  expect_result(mycojobs_({"run", excessive_script}), 1, "artifact big: not kept: over the limit of 1048576 bytes");
  expect_result(mycojobs_({"job", "show", job["key"].get<std::string>()}), 0, "big: not kept: over the limit");
  const std::string optional = folder_.write("optional.toml", "artifacts.optional = true\n");
  const ProcessResult optional_result = mycojobs_({"run", excessive_script, "--json", "--policy", optional});
  EXPECT_EQ(optional_result.code, 0) << optional_result.err;
  EXPECT_EQ(nlohmann::json::parse(optional_result.out)["artifacts_dropped"].size(), 2U);
  const std::string link_script = folder_.write(
      "links.py",
      "import mycojobs, os\nos.symlink('x', mycojobs.artifacts / 'ln')\nos.mkfifo(mycojobs.artifacts / 'f')\n");
  const ProcessResult link_result = mycojobs_({"run", link_script, "--json"});
  EXPECT_EQ(link_result.code, 0) << link_result.err;
  EXPECT_EQ(nlohmann::json::parse(link_result.out)["artifacts_dropped"].size(), 2U);
}

TEST_F(ArtifactsE2e, SparseFilesOfManyJobsStayWithinTheQuota) {
  const std::vector<std::string> settings{"--quota-caller-artifact-bytes", "128MiB"};
  Process agent = start_runner_1_with_state(settings);
  const std::string sparse_script =
      "import mycojobs\nwith open(mycojobs.artifacts / 'sparse', 'wb') as f:\n"
      "    f.truncate(60 << 20)\n    f.write(b'%d')\n";
  const auto run_and_read_dropped = [&](int number) {
    std::string script = sparse_script;
    return mycojobs_.read_field(run_to_end(script.replace(script.find("%d"), 2, std::to_string(number))),
                                "artifacts_dropped");
  };
  for (int number : {1, 2}) EXPECT_EQ(run_and_read_dropped(number), "");
  const std::string list = run_and_read_dropped(3);
  ASSERT_FALSE(list.empty());
  EXPECT_EQ(nlohmann::json::parse(list), nlohmann::json::parse(R"([{"name": "sparse", "reason": "caller_quota",
      "limit": 134217728, "setting": "quota.caller_artifact_bytes"}])"));
  std::uint64_t on_disk = 0;
  for (const auto& entry : fs::directory_iterator(state_dir() + "/contexts/1/objects")) {
    struct stat info {};
    if (::stat(entry.path().c_str(), &info) == 0) on_disk += static_cast<std::uint64_t>(info.st_blocks) * 512;
  }
  EXPECT_LE(on_disk, 1U << 20);
  agent.signal(SIGTERM);
  EXPECT_EQ(agent.wait().code, 0);
  Process second_agent = start_runner_1_with_state(settings);
  EXPECT_NE(run_and_read_dropped(4), "") << "the usage must be counted again after a restart";
}

TEST_F(ArtifactsE2e, ScriptsBeyondTheQuotaAreRejected) {
  const std::string large = folder_.write("large.py", "#" + std::string(1 << 20, 'x') + "\n");
  for (int i = 0; i < 3; ++i)
    ASSERT_EQ(mycojobs_({"job", "submit", large, "--quota-caller-bytes", "4MiB"}).code, 0) << i;
  expect_result(mycojobs_({"job", "submit", large, "--quota-caller-bytes", "4MiB"}), 65, "quota.caller_bytes");
  EXPECT_EQ(mycojobs_({"job", "submit", large, "--quota-caller-bytes", "4MiB", "--caller", "2"}).code, 0);
}

TEST_F(ArtifactsE2e, UnreadableFolderIsReportedInTheLog) {
  Process agent = start_runner_1_with_state();
  const std::string key = run_to_end(R"(
import mycojobs, os
(mycojobs.artifacts / "report.txt").write_text("x")
os.chmod(mycojobs.artifacts, 0o300)
)");
  const std::string log =
      read_job_log(folder_, redis_, PlainJob{.caller = 1, .id = 1}) + mycojobs_({"job", "logs", key}).err;
  EXPECT_NE(log.find("the folder of artifacts: not kept: cannot be opened"), std::string::npos) << log;
}

TEST_F(ArtifactsE2e, OnlyAThousandOfManyFilesAreStored) {
  Process agent = start_runner_1_with_state();
  const std::string key =
      run_to_end("import mycojobs\nfor i in range(10000): (mycojobs.artifacts / f'f{i}').write_text('x')");
  EXPECT_EQ(nlohmann::json::parse(mycojobs_.read_field(key, "artifacts")).size(), 1000U);
  EXPECT_EQ(count_files("objects"), 1U);
}

TEST_F(ArtifactsE2e, ArtifactsAreRemovedWithTheRecord) {
  Process agent = start_runner_1_with_state({"--retention", "1s"});
  const std::string key = run_to_end(kWriteArtifacts);
  EXPECT_TRUE(eventually([&] { return count_files("objects") + count_files("jobs") == 0; })) << agent.err();
}

TEST_F(ArtifactsE2e, LeftoversOfAKilledAgentAreRemovedByTheNext) {
  {
    Process agent = start_runner_1_with_state();
    const std::string slow_job = mycojobs_.submit(
        "import mycojobs, time\n(mycojobs.artifacts / 'x').write_bytes(b'x' * 50000000)\nprint('up', flush=True)\n");
    EXPECT_TRUE(
        eventually([&] { return count_files("spool") > 0 || mycojobs_.read_field(slow_job, "status") == "finished"; }));
    agent.signal(SIGKILL);
    agent.wait();
  }
  fs::create_directories(state_dir() + "/contexts/1/spool/dead");
  folder_.write("state/contexts/1/spool/dead/0", "half");
  folder_.write("state/contexts/1/spool/dead.lock", "");
  Process next_agent = start_runner_1_with_state();
  EXPECT_TRUE(mycojobs_.wait_for_value("job:1:1", "status", "finished"));
  EXPECT_TRUE(eventually([&] { return count_files("spool") == 0; })) << next_agent.err();
  EXPECT_EQ(count_files("objects"), 1U);
}

class SecretsE2e : public ArtifactsE2e {
 protected:
  const std::string key_ = "-----BEGIN KEY-----\nc2VjcmV0IGtleSBvZiB0ZXN0\n-----END KEY-----\n";
  const std::string bytes_ = std::string("\0\xff\x01 binary \x80\n", 14);
  std::string config_;

  void SetUp() override {
    fs::create_directories(folder_ / "secrets/1");
    fs::create_directories(folder_ / "credentials");
    write_secret("secrets/1/db", "hunter2-of-the-test\n");
    write_secret("secrets/1/key", key_);
    write_secret("secrets/1/unasked", "nobody-may-have-this");
    write_secret("credentials/mycojobs.1.bytes", bytes_);
    config_ = folder_.write("conf.toml", "secrets_dir = \"" + folder_ / "secrets" +
                                             "\"\n[ceiling]\nsecrets = [\"db\", \"key\", \"bytes\", \"absent\"]\n");
    ::setenv("CREDENTIALS_DIRECTORY", (folder_ / "credentials").c_str(), 1);
  }
  void TearDown() override { ::unsetenv("CREDENTIALS_DIRECTORY"); }
  void write_secret(const std::string& name, const std::string& value) {
    ASSERT_EQ(::chmod(folder_.write(name, value).c_str(), 0600), 0);
  }
  std::string write_policy(const std::string& names) {
    return folder_.write("policy.toml", "secrets = [" + names + "]\n");
  }
};

TEST_F(SecretsE2e, ValuesReachTheJobExactlyAndNoOutput) {
  Process agent = start_runner_1_with_state({"--config", config_});
  const std::string key =
      mycojobs_.submit(R"(
import mycojobs, hashlib, sys
def sha(name): return hashlib.sha256(open("/job/secrets/" + name, "rb").read()).hexdigest()
mycojobs.result["key"] = sha("key")
mycojobs.result["bytes"] = sha("bytes")
s = mycojobs.secret("db")
mycojobs.result["leak"] = s
mycojobs.progress(0.5, s)
print(s)
print(s, file=sys.stderr)
a = mycojobs.artifacts
(a / "leak").write_text("x" * 65530 + s + "\n" + open("/job/secrets/key").read())
(a / ("of " + s)).write_text("n")
raise ValueError(s)
)",
                       {"--config", config_, "--policy", write_policy("\"db\", \"key\", \"bytes\"")});
  ASSERT_TRUE(mycojobs_.wait_for_value(key, "status", "error")) << agent.err();
  EXPECT_EQ(mycojobs_.read_field(key, "detail"), "exception") << mycojobs_.read_field(key, "error");
  const std::string everything = redis_.cli(1, {"HGETALL", key}) + mycojobs_({"job", "logs", key}).out +
                                 mycojobs_({"job", "logs", key}).err + run_job_artifacts({key, "leak"}).out;
  EXPECT_EQ(everything.find("hunter2-of"), std::string::npos) << everything;
  EXPECT_EQ(everything.find("c2VjcmV0IGtleSBvZiB0ZXN0"), std::string::npos) << everything;
  EXPECT_NE(run_job_artifacts({key, "leak"}).out.find("x[secret db]\n"), std::string::npos);
  EXPECT_NE(run_job_artifacts({key}).out.find("of [secret db]"), std::string::npos);
}

TEST_F(SecretsE2e, MultiLineKeysAndBytesAreUnchanged) {
  Process agent = start_runner_1_with_state({"--config", config_});
  const std::string key = run_to_end(
      "import hashlib\nfor n in ('key', 'bytes', 'db'): result[n] = "
      "hashlib.sha256(open('/job/secrets/' + n, 'rb').read()).hexdigest()",
      {"--config", config_, "--policy", write_policy("\"db\", \"key\", \"bytes\"")});
  EXPECT_EQ(mycojobs_.read_field(key, "result"), R"({"bytes":")" + sha256_hex(bytes_) + R"(","db":")" +
                                                     sha256_hex("hunter2-of-the-test") + R"(","key":")" +
                                                     sha256_hex(key_) + "\"}");
}

// Output must not be delayed or redacted because it equals (the start of) a secret that the job was not granted.
TEST_F(SecretsE2e, LogDoesNotDependOnSecretsWithoutAGrant) {
  Process agent = start_runner_1_with_state({"--config", config_});
  const std::string key = mycojobs_.submit(R"(
import time
print("nobody-may", end="", flush=True)
time.sleep(60)
)",
                                           {"--config", config_});
  const auto log = [&] { return mycojobs_({"job", "logs", key}).out; };
  EXPECT_TRUE(eventually([&] { return log().find("nobody-may") != std::string::npos; })) << log() << agent.err();
  ASSERT_EQ(mycojobs_({"job", "cancel", key}).code, 0);
  const std::string whole =
      run_to_end("print('nobody-may-have-this'); result['a'] = 'hunter2-of-the-test'", {"--config", config_});
  EXPECT_EQ(mycojobs_({"job", "logs", whole}).out, "nobody-may-have-this\n");
  EXPECT_EQ(mycojobs_.read_field(whole, "result"), R"({"a":"hunter2-of-the-test"})");
}

TEST_F(SecretsE2e, SecretOutsideTheCeilingIsRejectedTwice) {
  Process agent = start_runner_1_with_state({"--config", config_});
  expect_result(mycojobs_({"job", "submit", folder_.write("j.py", "pass"), "--config", config_, "--policy",
                           write_policy("\"unasked\"")}),
                65, "policy.secrets: \"unasked\" is not allowed");
  PlainJob job_outside_ceiling{.caller = 3, .id = 1, .script = "print(open('/job/secrets/unasked').read())"};
  job_outside_ceiling.extra_fields = {"policy", R"({"secrets":["unasked"]})"};
  submit(redis_, job_outside_ceiling);
  EXPECT_EQ(wait_for_status(redis_, job_outside_ceiling), "error");
  EXPECT_EQ(read_field(redis_, job_outside_ceiling, "detail"), "policy_refused");
  PlainJob job_with_absent_secret{.caller = 3, .id = 2};
  job_with_absent_secret.extra_fields = {"policy", R"({"secrets":["absent"]})"};
  submit(redis_, job_with_absent_secret);
  EXPECT_EQ(wait_for_status(redis_, job_with_absent_secret), "error");
  EXPECT_NE(read_field(redis_, job_with_absent_secret, "error").find("does not exist on this host"), std::string::npos);
}

TEST_F(SecretsE2e, ListAndCheckShowNamesAndStatesOnly) {
  folder_.write("secrets/1/open", "value-that-all-read");
  ::chmod((folder_ / "secrets/1/open").c_str(), 0644);
  const ProcessResult list = run(folder_, {program_path(), "secret", "list", "--config", config_});
  for (const char* words :
       {"absent   missing", "bytes    ready", "open     refused", "unasked  not granted", "chmod 600"})
    EXPECT_NE(list.out.find(words), std::string::npos) << words << "\n" << list.out << list.err;
  EXPECT_EQ((list.out + list.err).find("hunter2"), std::string::npos);
  expect_result(run(folder_, {program_path(), "secret", "check", "--config", config_}), 1, "chmod 600");
}

}  // namespace
}  // namespace mycojobs::test
