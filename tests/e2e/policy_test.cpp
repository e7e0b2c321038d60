// Policies of real jobs: written to the record by a client with redis-cli, and given as files by an operator. The
// agents have ceilings.
#include <filesystem>
#include <fstream>

#include "e2e/client.h"

namespace mycojobs::test {
namespace {

class PlainPolicy : public ::testing::Test {
 protected:
  TempDir folder_;
  RedisServer redis_{folder_};
  Process agent_ = start_agent(folder_, redis_, 1, {"--config", folder_.write("c.toml", R"(
[contexts.1.ceiling]
memory = "128 MiB"
wall = "30 s"
)")});

  void SetUp() override { ASSERT_TRUE(wait_until_registered(redis_, 1)) << agent_.err(); }
  PlainJob submit_with_policy(int id, const std::string& policy, const std::string& script) {
    PlainJob job{.id = id, .script = script, .extra_fields = {"policy", policy}};
    submit(redis_, job);
    return job;
  }
  void expect_rejection(const PlainJob& job, const std::string& detail, const std::string& words) {
    wait_for_status(redis_, job);
    EXPECT_EQ(read_field(redis_, job, "detail"), detail) << read_field(redis_, job, "error") << agent_.err();
    EXPECT_NE(read_field(redis_, job, "error").find(words), std::string::npos) << read_field(redis_, job, "error");
  }
};

TEST_F(PlainPolicy, RequestAboveTheCeilingNeverRunsAndIsNamed) {
  const std::pair<const char*, const char*> rows[] = {
      {R"({"memory":"2 GiB"})",
       "policy.memory: 2 GiB is more than the ceiling of 128 MiB for context 1: ask for less, or let the operator "
       "raise [contexts.1.ceiling] memory"},
      {R"({"net":["example.org:443"]})", "policy.net: network is not allowed for context 1"},
      {R"({"exec":true})", "policy.exec: is not allowed"},
      {R"({"fs":{"write":["/srv"]}})", "policy.fs.write[0]: \"/srv\" is not below"},
      {R"({"fs":{"read":["/var/lib/x"]}})", "policy.fs.read: \"/var/lib/x\" is not allowed"},
      {R"({"syscalls":{"add":["ptrace"]}})", "policy.syscalls.add: \"ptrace\" is not allowed"},
      {R"({"secrets":["TOKEN"]})", "policy.secrets: \"TOKEN\" is not allowed"},
      {R"({"wall":0})", "policy.wall: 0 ms is out of range"},
      {R"({"wall":-1})", "policy.wall: -1 is not a time"},
      {R"({"walls":1})", "policy.walls: is not a field of a policy"},
      {"nonsense", "policy: not JSON at line 1"},
  };
  std::vector<PlainJob> jobs;
  for (const auto& [policy, words] : rows)
    jobs.push_back(submit_with_policy(static_cast<int>(jobs.size()) + 1, policy, "print('it ran')"));
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    expect_rejection(jobs[i], "policy_refused", rows[i].second);
    EXPECT_EQ(read_job_log(folder_, redis_, jobs[i]), "");
  }
  const PlainJob next{.caller = 99};
  submit(redis_, next);
  EXPECT_EQ(wait_for_status(redis_, next), "finished") << agent_.err();
}

TEST_F(PlainPolicy, LowerLimitsHold) {
  const PlainJob memory = submit_with_policy(1, R"({"memory":"48 MiB"})", "x = bytearray(b'x') * (100 << 20)");
  const PlainJob job_below_ceiling = submit_with_policy(2, "{}", "x = bytearray(b'x') * (80 << 20)");
  const PlainJob threads = submit_with_policy(3, R"({"pids":8})", R"(import threading
gate = threading.Event()
started = 0
try:
  for _ in range(40):
    threading.Thread(target=gate.wait).start()
    started += 1
except RuntimeError:
  print('no more')
gate.set()
result['few'] = started < 8
)");
  const PlainJob files = submit_with_policy(4, R"({"open_files":40})", R"(import errno
files = []
try:
  while True: files.append(open('/dev/null'))
except OSError as error:
  result['errno'] = errno.errorcode[error.errno]
result['few'] = len(files) < 40
)");
  const PlainJob large =
      submit_with_policy(5, R"({"file_size":"1 MiB"})", "open('/tmp/a', 'wb').write(b'x' * (2 << 20))");
  const PlainJob disk = submit_with_policy(6, R"({"disk":"1 MiB"})", "open('/tmp/a', 'wb').write(b'x' * (2 << 20))");
  const PlainJob wall = submit_with_policy(7, R"({"wall":"300 ms"})", "import time\ntime.sleep(600)");
  const PlainJob cpu = submit_with_policy(8, R"({"cpu":"300 ms"})", "while True: pass");

  wait_for_status(redis_, memory);
  const std::string detail = read_field(redis_, memory, "detail");
  EXPECT_TRUE(detail == "oom" ||
              (detail == "exception" && read_field(redis_, memory, "error").starts_with("MemoryError")))
      << detail << ": " << read_field(redis_, memory, "error");
  EXPECT_EQ(wait_for_status(redis_, job_below_ceiling), "finished")
      << "the ceiling of 128 MiB must allow 80 MiB: " << read_field(redis_, job_below_ceiling, "error");
  EXPECT_EQ(wait_for_status(redis_, threads), "finished") << read_field(redis_, threads, "error");
  EXPECT_EQ(read_field(redis_, threads, "result"), R"({"few":"true"})");
  EXPECT_EQ(read_job_log(folder_, redis_, threads), "no more\n");
  EXPECT_EQ(wait_for_status(redis_, files), "finished") << read_field(redis_, files, "error");
  EXPECT_EQ(read_field(redis_, files, "result"), R"({"errno":"EMFILE","few":"true"})");
  EXPECT_EQ(wait_for_status(redis_, large), "error");
  EXPECT_EQ(wait_for_status(redis_, disk), "error");
  EXPECT_NE(read_field(redis_, disk, "error").find("No space left"), std::string::npos)
      << read_field(redis_, disk, "error");
  expect_rejection(wall, "timeout", "300 ms");
  EXPECT_EQ(read_field(redis_, wall, "error").find("20 s"), std::string::npos)
      << "the policy's limit of 300 ms is below the record's timeout of 20 s";
  expect_rejection(cpu, "timeout_cpu", "");
}

TEST_F(PlainPolicy, ExcessOutputKillsOrIsShortenedByPolicy) {
  const std::string flood = "while True: print('x' * 99)";
  const PlainJob killed_flood = submit_with_policy(1, R"({"output":{"keep":"10 KiB","kill":true}})", flood);
  const PlainJob shortened_flood = submit_with_policy(2, R"({"output.keep":"1 KiB"})", "print('x' * 5000)");
  const PlainJob small_output = submit_with_policy(3, R"({"output":{"keep":"1 KiB","kill":true}})", "print('little')");
  expect_rejection(killed_flood, "output_limit", "over its output limit of 10240 bytes (policy.output.keep)");
  EXPECT_LE(read_job_log(folder_, redis_, killed_flood).size(), 10240U);
  EXPECT_EQ(wait_for_status(redis_, shortened_flood), "finished");
  EXPECT_EQ(read_job_log(folder_, redis_, shortened_flood).size(), 5001U) << "the rest is on the disk of the agent";
  EXPECT_EQ(wait_for_status(redis_, small_output), "finished") << read_field(redis_, small_output, "error");
}

TEST_F(PlainPolicy, MissingRequestIsLoweredToTheCeiling) {
  const PlainJob job{.script = "x = bytearray(b'x') * (200 << 20)"};
  submit(redis_, job);
  EXPECT_EQ(wait_for_status(redis_, job), "error") << "the default of 256 MiB is lowered to the ceiling of 128 MiB";
}

class OperatorPolicy : public Operator {
 protected:
  std::string config_ = folder_.write("ceiling.toml", "[contexts.3.ceiling]\nmemory = \"128 MiB\"\npids = 32\n");
};

TEST_F(OperatorPolicy, GrantsReachOnlyTheJobThatRequestsThem) {
  const TempDir host_folder(kGrantableParent);
  std::filesystem::permissions(host_folder.path(), std::filesystem::perms(0755));
  std::filesystem::create_directories(host_folder / "given");
  std::filesystem::create_directories(host_folder / "other");
  std::ofstream(host_folder / "given/text") << "hello from the host";
  std::ofstream(host_folder / "other/text") << "not for jobs";
  const std::string config = folder_.write(
      "open.toml", "[ceiling]\nfs.read = [\"" + host_folder.path().string() + "\"]\nnet = \"loopback\"\nexec = true\n");
  Process agent = start_registered_agent(1, {"--config", config});
  const std::string script = R"(import os, socket, subprocess
def tried(what):
  try: return str(what())
  except Exception as error: return type(error).__name__
def talk():
  with socket.create_server(('127.0.0.1', 0)) as server: return 'listens'
folder = os.environ['FOLDER']
result['read'] = tried(lambda: open(folder + '/given/text').read())
result['other'] = tried(lambda: open(folder + '/other/text').read())
result['write'] = tried(lambda: open(folder + '/given/new', 'w'))
result['net'] = tried(talk)
result['exec'] = tried(lambda: subprocess.run(['/bin/echo', 'x'], capture_output=True).stdout)
)";
  const std::string policy =
      folder_.write("p.toml", "fs.read = [\"" + (host_folder / "given") + "\"]\nnet = \"loopback\"\nexec = true\n");
  const std::vector<std::string> environment{"--env", "FOLDER=" + host_folder.path().string(), "--config", config};
  auto with_policy = environment;
  with_policy.insert(with_policy.end(), {"--policy", policy});
  const std::string granted = mycojobs_.submit(script, with_policy);
  const std::string plain = mycojobs_.submit(script, environment);
  ASSERT_TRUE(mycojobs_.wait_for_value(granted, "status", "finished"))
      << mycojobs_.read_field(granted, "error") << agent.err();
  ASSERT_TRUE(mycojobs_.wait_for_value(plain, "status", "finished"))
      << mycojobs_.read_field(plain, "error") << agent.err();
  const auto granted_result = nlohmann::json::parse(mycojobs_.read_field(granted, "result"));
  EXPECT_EQ(granted_result["read"], "hello from the host");
  EXPECT_EQ(granted_result["other"], "FileNotFoundError") << "a folder that only the ceiling names is not granted";
  EXPECT_EQ(granted_result["write"], "OSError") << "read-only";
  EXPECT_EQ(granted_result["net"], "listens");
  EXPECT_EQ(granted_result["exec"], "b'x\\n'");
  const auto plain_result = nlohmann::json::parse(mycojobs_.read_field(plain, "result"));
  EXPECT_EQ(plain_result["read"], "FileNotFoundError");
  EXPECT_EQ(plain_result["net"], "OSError");
  EXPECT_NE(plain_result["exec"], granted_result["exec"]);
}

TEST_F(OperatorPolicy, BothKindsOfFilesAreCheckedBeforeAnyWrite) {
  const std::string excessive_policy = folder_.write("much.toml", "memory = \"2 GiB\"\nexec = true\n");
  const std::string script = folder_.write("a.py", "pass");
  const std::string ceiling = folder_.write("ceiling.toml", "[ceiling]\nmemory = \"1 GiB\"\n");
  for (const char* command : {"job submit", "run"}) {
    std::vector<std::string> words{"job", "submit"};
    if (std::string(command) == "run") words = {"run"};
    words.insert(words.end(), {script, "--policy", excessive_policy, "--config", ceiling});
    expect_result(mycojobs_(words), 65, "policy.memory: 2 GiB is more than the ceiling of 1 GiB for context 1");
  }
  expect_result(mycojobs_({"job", "submit", script, "--policy", folder_ / "none.json"}), 66, "none.json");
  expect_result(mycojobs_({"job", "submit", script, "--policy", folder_.write("bad.json", "{\n\"pids\": 0}")}), 65,
                "bad.json:2:1: policy.pids: 0 is out of range");
  EXPECT_EQ(redis_.cli(1, {"DBSIZE"}), "0");

  const std::string toml = folder_.write("a.toml", "memory = \"64 MiB\"\noutput.keep = \"1 KiB\"\n");
  const std::string as_json = folder_.write("a.json", R"({"memory":"64MiB","output":{"keep":1024}})");
  const std::string toml_job = mycojobs_.submit("pass", {"--policy", toml});
  const std::string json_job = mycojobs_.submit("pass", {"--policy", as_json});
  EXPECT_EQ(mycojobs_.read_field(toml_job, "policy"), R"({"memory":67108864,"output":{"keep":1024}})");
  EXPECT_EQ(mycojobs_.read_field(json_job, "policy"), mycojobs_.read_field(toml_job, "policy"));
  EXPECT_EQ(mycojobs_.run_json({"job", "show", toml_job})["policy"]["memory"], 64 << 20);
  EXPECT_EQ(mycojobs_.read_field(mycojobs_.submit("pass", {"--policy", folder_.write("e.toml", "")}), "policy"), "");
}

TEST_F(OperatorPolicy, CommandWithoutACeilingUsesThatOfLiveAgents) {
  const std::string agent_config =
      folder_.write("agent.toml", "[ceiling]\nexec = true\nfs.read = [\"/srv/data\"]\nsecrets = [\"token\"]\n");
  const std::string exec = folder_.write("exec.toml", "exec = true\n");
  const std::string net = folder_.write("net.toml", "net = [\"example.org:443\"]\n");
  const std::string folder = folder_.write("folder.toml", "fs.read = [\"/srv/other\"]\n");
  const auto submit_job = [&](const std::string& policy, std::vector<std::string> more_options = {}) {
    more_options.insert(more_options.begin(), {"job", "submit", "-", "--type", "python", "--policy", policy});
    return mycojobs_(more_options, "pass");
  };
  expect_result(submit_job(exec), 0, "warning: no live agent runs python");
  Process agent = start_registered_agent(1, {"--config", agent_config});
  EXPECT_EQ(redis_.cli(1, {"HGET", "runner:1", "ceiling"}).find("/srv"), std::string::npos);
  const ProcessResult allowed = submit_job(exec);
  EXPECT_EQ(allowed.code, 0) << allowed.err;
  EXPECT_EQ(allowed.err, "") << "no warning, because a live agent allows the policy";
  EXPECT_TRUE(mycojobs_.wait_for_value(allowed.out.substr(0, allowed.out.find('\n')), "status", "finished"));
  expect_result(submit_job(net), 65, "so says the configuration of 1 live agent for python");
  const ProcessResult unknown = submit_job(folder);
  ASSERT_EQ(unknown.code, 0) << unknown.err;
  EXPECT_TRUE(mycojobs_.wait_for_value(unknown.out.substr(0, unknown.out.find('\n')), "detail", "policy_refused"));
  const std::string own_config = folder_.write("own.toml", "[ceiling]\nmemory = \"1 GiB\"\n");
  expect_result(submit_job(exec, {"--config", own_config}), 65, "policy.exec: is not allowed for context 1");
  const std::string flow = folder_.write(
      "flow.yaml", "name: x\njobs:\n  a: {script: pass, type: python, policy: {net: [\"example.org:443\"]}}\n");
  EXPECT_EQ(mycojobs_({"flow", "check", flow}).code, 0);
  expect_result(mycojobs_({"flow", "start", flow, "--detach"}), 65, "1 live agent for python");
}

TEST_F(OperatorPolicy, RejectedJobIsExplainedAndRunsWithLess) {
  Process agent = start_registered_agent(1);
  const std::string job = mycojobs_.submit("print('ran')", {"--delay", "0s"});
  ASSERT_TRUE(mycojobs_.wait_for_value(job, "status", "finished")) << agent.err();
  PlainJob rejected_job{.caller = 1, .id = 77, .extra_fields = {"policy", R"({"pids":100000})"}};
  submit(redis_, rejected_job);
  ASSERT_TRUE(mycojobs_.wait_for_cause(rejected_job.key(), "policy_refused"));
  const auto explanation = mycojobs_.run_json({"job", "explain", rejected_job.key()});
  EXPECT_NE(explanation["reason"].get<std::string>().find("policy.pids: 100000 is more than the ceiling of 256"),
            std::string::npos)
      << explanation;
  EXPECT_NE(explanation["next"].get<std::string>().find("HSET job:1:77 policy"), std::string::npos) << explanation;
  EXPECT_NE(mycojobs_({"job", "show", rejected_job.key()}).out.find("policy.pids"), std::string::npos);
  redis_.cli(1, {"HSET", rejected_job.key(), "policy", R"({"pids":32})"});
  EXPECT_EQ(mycojobs_({"job", "retry", rejected_job.key()}).code, 0);
  EXPECT_TRUE(mycojobs_.wait_for_value(rejected_job.key(), "status", "finished"))
      << mycojobs_.read_field(rejected_job.key(), "error");
  EXPECT_EQ(mycojobs_({"verify"}).code, 0);
}

TEST_F(OperatorPolicy, CheckShowsEveryRefusalOrTheEffectivePolicy) {
  const std::string bad = folder_.write("bad.toml", "pids = 0\nmemory = \"2 GiB\"\nnet = \"loopback\"\n");
  const ProcessResult result = mycojobs_({"policy", "check", bad, "--config", config_, "--context", "3"});
  EXPECT_EQ(result.code, 65);
  for (const char* words : {"bad.toml:1:1: policy.pids: 0", "policy.memory: 2 GiB is more than the ceiling of 128 MiB",
                            "policy.net: network is not allowed for context 3"}) {
    EXPECT_NE(result.err.find(words), std::string::npos) << words << "\n" << result.err;
  }
  const auto rejected_check = mycojobs_.run_json({"policy", "check", bad, "--config", config_, "--context", "3"});
  EXPECT_FALSE(rejected_check["ok"]);
  EXPECT_EQ(rejected_check["refusals"].size(), 3U);
  const std::string good = folder_.write("good.json", R"({"memory":"64 MiB"})");
  const auto granted = mycojobs_.run_json({"policy", "check", good, "--config", config_, "--context", "3"});
  EXPECT_TRUE(granted["ok"]);
  EXPECT_EQ(granted["policy"]["memory"], 64 << 20);
  EXPECT_EQ(granted["policy"]["pids"], 32) << "a field that was not requested is lowered to the ceiling";
  expect_result(mycojobs_({"policy", "check", good}), 0, "64 MiB");
  expect_result(mycojobs_({"policy", "check", good, "--type", "No"}), 65, "--type");
}

TEST_F(OperatorPolicy, DiffAndShowReportThePolicy) {
  const std::string a = folder_.write("a.toml", "memory = \"64 MiB\"\n");
  const std::string b = folder_.write("b.json", R"({"memory":67108864,"fs":{"read":["/srv/x"]}})");
  expect_result(mycojobs_({"policy", "diff", a, a}), 0, "");
  EXPECT_EQ(mycojobs_({"policy", "diff", a, a}).out, "");
  expect_result(mycojobs_({"policy", "diff", a, b}), 1, "[\"/srv/x\"]");
  const auto differences = mycojobs_.run_json({"policy", "diff", a, b});
  ASSERT_EQ(differences.size(), 1U);
  EXPECT_EQ(differences[0]["field"], "fs.read");
  const auto output = mycojobs_.run_json({"policy", "show", "--type", "sal", "--config", config_, "--context", "3"});
  EXPECT_EQ(output["policy"]["memory"], 64 << 20);
  EXPECT_EQ(output["ceiling"]["memory"], 128 << 20);
  EXPECT_EQ(output["policy"]["pids"], 4);
  expect_result(mycojobs_({"policy", "show", "--type", "v.compile"}), 0, "1 GiB");
}

TEST_F(OperatorPolicy, AgentWithAnImpossibleCeilingDoesNotStart) {
  const std::string config = folder_.write("bad.toml", "[ceiling]\nsyscalls.add = [\"raed\"]\n");
  const ProcessResult result = start_agent(folder_, redis_, 1, {"--config", config}).wait();
  EXPECT_EQ(result.code, 65);
  EXPECT_NE(result.err.find("bad.toml:2:17: ceiling.syscalls.add[0]: \"raed\" is not a system call"), std::string::npos)
      << result.err;
  expect_result(mycojobs_({"config", "check", config}), 65, "ceiling.syscalls.add[0]");
  const std::string never_granted_config = folder_.write("bpf.toml", "[ceiling]\nsyscalls.add = [\"bpf\"]\n");
  expect_result(mycojobs_({"config", "check", never_granted_config}), 65, "\"bpf\" is never granted");
  const ProcessResult printed = run(folder_, {program_path(), "config", "print", "--config", config_});
  EXPECT_NE(printed.out.find("contexts.3.ceiling.memory"), std::string::npos) << printed.out;
}

}  // namespace
}  // namespace mycojobs::test
