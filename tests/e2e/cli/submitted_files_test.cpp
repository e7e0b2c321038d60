// Arguments, standard input and files of jobs and flow nodes, with a real Redis and an agent.
#include <csignal>

#include "e2e/client.h"

namespace mycojobs::test {
namespace {

class SubmittedFilesCommands : public Operator {
 protected:
  Process agent_ = start_registered_agent(20);

  nlohmann::json read_result(const std::string& job) { return mycojobs_.run_json({"job", "show", job})["result"]; }
};

constexpr const char* kReportScript =
    "import sys, os\n"
    "result['args'] = sys.argv[1:]\n"
    "result['input'] = sys.stdin.read()\n"
    "folder = os.environ.get('MYCOJOBS_FILES_DIR')\n"
    "result['files'] = {n: open(folder + '/' + n).read() for n in sorted(os.listdir(folder))} if folder else {}\n";

TEST_F(SubmittedFilesCommands, ScriptReceivesWhatTheCommandBringsAlong) {
  const std::string script = folder_.write("report.py", kReportScript);
  const std::string data = folder_.write("data.csv", "a,b\n");
  const auto job = mycojobs_.run_json({"run", script, "--file", data, "--file", "other=" + data, "--stdin", data});
  EXPECT_EQ(
      job["result"],
      (nlohmann::json::parse(R"({"args": [], "input": "a,b\n", "files": {"data.csv": "a,b\n", "other": "a,b\n"}})")))
      << job;
  EXPECT_EQ(job["files"]["data.csv"]["bytes"], 4);
  EXPECT_EQ(job["stdin"]["bytes"], 4);
  const ProcessResult piped =
      run(folder_, {"bash", "-c", "printf piped | \"$@\" -- -x 'two words' --json", "bash", program_path(), "run",
                    script, "--stdin", "-", "--redis", redis_.url(), "--state-dir", folder_ / "client", "--json"});
  ASSERT_EQ(piped.code, 0) << piped.err;
  const auto piped_job = nlohmann::json::parse(piped.out);
  EXPECT_EQ(piped_job["args"], (nlohmann::json{"-x", "two words", "--json"}));
  EXPECT_EQ(piped_job["result"]["args"], piped_job["args"]);
  EXPECT_EQ(piped_job["result"]["input"], "piped");
}

TEST_F(SubmittedFilesCommands, StandardInputIsNotReadImplicitly) {
  const std::string script = folder_.write("report.py", kReportScript);
  const ProcessResult result = mycojobs_({"run", script, "--json"}, "unused");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out)["result"]["input"], "");
}

TEST_F(SubmittedFilesCommands, FilesThatCannotTravelAreRefusedWithTheRemedy) {
  const std::string script = folder_.write("report.py", kReportScript);
  const std::string large = folder_.write("large.bin", std::string((1 << 20) + 1, 'x'));
  expect_result(mycojobs_({"job", "submit", script, "--file", large}), 65, "--file: ");
  expect_result(mycojobs_({"job", "submit", script, "--file", large}), 65, "has more than the 1048576 bytes");
  expect_result(mycojobs_({"job", "submit", script, "--file", large}), 65, "--input JOB/ARTIFACT");
  expect_result(mycojobs_({"job", "submit", script, "--file", folder_ / "gone"}), 66, "no such file");
  expect_result(mycojobs_({"job", "submit", script, "--file", "../x=" + script}), 65, "is not a valid name");
  expect_result(mycojobs_({"job", "submit", script, "--file", script, "--file", script}), 65, "is given twice");
  expect_result(mycojobs_({"job", "submit", "-", "--type", "python", "--stdin", "-"}, "pass"), 65, "--stdin: ");
  expect_result(mycojobs_({"run", "--", "-x.py"}), 64, "words after --");
  const std::string flow =
      folder_.write("flow.yaml", "name: x\njobs: {a: {type: python, script: pass, stdin: {file: \"-\"}}}\n");
  expect_result(mycojobs_({"flow", "start", flow}, "not read"), 65, "must name a file");
  expect_result(mycojobs_({"job", "show", "1"}), 66, "");
}

TEST_F(SubmittedFilesCommands, RestartBringsTheSameFilesAndRetryKeepsThem) {
  const std::string script = folder_.write(
      "report.py", std::string(kReportScript) + "if os.environ['MYCOJOBS_ATTEMPT'] == '1': sys.exit(3)\n");
  const std::string data = folder_.write("data.csv", "a,b\n");
  std::vector<std::string> words = mycojobs_.make_argv({"run", script, "--file", data, "--exit-code"});
  words.insert(words.end(), {"--", "x"});
  const ProcessResult first = run(folder_, std::move(words));
  EXPECT_EQ(first.code, 3) << first.err;
  expect_result(mycojobs_({"job", "retry", "1"}), 0, "");
  EXPECT_TRUE(mycojobs_.wait_for_value("job:1:1", "status", "finished"));
  EXPECT_EQ(read_result("1")["args"], (nlohmann::json{"x"}));
  expect_result(mycojobs_({"job", "restart", "1"}), 0, "");
  EXPECT_TRUE(mycojobs_.wait_for_value("job:1:2", "status", "error"));
  EXPECT_EQ(mycojobs_.run_json({"job", "show", "2"})["files"], mycojobs_.run_json({"job", "show", "1"})["files"]);
  expect_result(mycojobs_({"job", "delete", "1"}), 0, "");
  EXPECT_EQ(redis_.cli(1, {"KEYS", "mj:job-files:*"}), "mj:job-files:job:1:2");
}

TEST_F(SubmittedFilesCommands, ExitCodeIsThatOfTheScript) {
  const auto run_script = [&](const std::string& text, std::vector<std::string> flags) {
    std::vector<std::string> words{"run", folder_.write("end.py", text)};
    words.insert(words.end(), flags.begin(), flags.end());
    return mycojobs_(words).code;
  };
  EXPECT_EQ(run_script("import sys; sys.exit(42)", {"--exit-code"}), 42);
  EXPECT_EQ(run_script("import sys; sys.exit(42)", {}), 1);
  EXPECT_EQ(run_script("pass", {"--exit-code"}), 0);
  EXPECT_EQ(run_script("raise ValueError", {"--exit-code"}), 1);
  EXPECT_EQ(run_script("import os; os.abort()", {"--exit-code"}), 128 + SIGABRT);
  EXPECT_EQ(run_script("while True: pass", {"--exit-code", "--timeout", "1s"}), 124);
  expect_result(mycojobs_({"job", "submit", "-", "--type", "python", "--exit-code"}, "pass"), 65, "needs --follow");
}

TEST_F(SubmittedFilesCommands, BatchLinesHaveContents) {
  const std::string batch = folder_.write("jobs.jsonl", nlohmann::json{{"script", kReportScript},
                                                                       {"script_type", "python"},
                                                                       {"args", {"a"}},
                                                                       {"stdin", "in"},
                                                                       {"files", {{"n", {{"base64", "dGV4dA=="}}}}}}
                                                                .dump() +
                                                            "\n");
  expect_result(mycojobs_({"job", "submit", "--batch", batch}), 0, "job:1:1");
  EXPECT_TRUE(mycojobs_.wait_for_value("job:1:1", "status", "finished"));
  EXPECT_EQ(read_result("1"), nlohmann::json::parse(R"({"args": ["a"], "input": "in", "files": {"n": "text"}})"));
  expect_result(mycojobs_({"job", "submit", "--batch", folder_.write("bad.jsonl", R"({"script":"x","files":[]})")}), 65,
                "files: ");
}

class FlowInputs : public SubmittedFilesCommands {
 protected:
  Process coordinator_{folder_, std::vector<std::string>{program_path(), "coordinator", "--redis", redis_.url(),
                                                         "--context", "1", "--state-dir", folder_ / "coordinator"}};

  ProcessResult follow_flow(const std::string& yaml) {
    return mycojobs_({"flow", "start", folder_.write("flow.yaml", yaml), "--follow"});
  }
  std::string read_node_result(int job) { return redis_.cli(1, {"HGET", "job:1:" + std::to_string(job), "result"}); }
};

TEST_F(FlowInputs, NodesReceiveFilesAndResultsOfEarlierNodes) {
  folder_.write("data.csv", "a,b\n");
  const ProcessResult flow = follow_flow(R"yaml(
name: sizes
defaults: {type: python}
inputs: {region: {type: string, default: eu}}
jobs:
  build: {script: "result['size'] = 10; result['name'] = 'x y'"}
  report:
    needs: build
    args: ["--size=${build.size}", 1.10, "$${HOME}", "${inputs.region}"]
    env: {SIZE: "${build.size}", NAME: "<${build.name}>", PLAIN: "$${build.size}"}
    stdin: "typed"
    files: {data.csv: {file: data.csv}, note.txt: "hi"}
    script: |
      import os, sys
      result['args'] = ' '.join(sys.argv[1:])
      result['env'] = [os.environ[n] for n in ('SIZE', 'NAME', 'PLAIN')]
      result['input'] = sys.stdin.read()
      result['files'] = open('/job/files/data.csv').read() + open('/job/files/note.txt').read()
      result['flow'] = [os.environ['MYCOJOBS_' + n] for n in ('FLOW_ID', 'FLOW_NAME', 'NODE')]
  parts:
    needs: build
    each: [1, 2]
    args: ["${build.size}"]
    files: {n: "element"}
    script: |
      import os, sys
      assert sys.argv[1] == '10' and open('/job/files/n').read() == 'element'
      assert os.environ['MYCOJOBS_NODE'].startswith('parts[')
)yaml");
  EXPECT_EQ(flow.code, 0) << flow.out << flow.err;
  const auto flow_view = mycojobs_.run_json({"flow", "show", "1"});
  nlohmann::json report;
  for (const auto& node : flow_view["nodes"]) {
    if (node["name"] == "report") report = nlohmann::json::parse(read_node_result(node["id"].get<int>()));
  }
  EXPECT_EQ(report["args"], "--size=10 1.10 ${HOME} eu");
  EXPECT_EQ(report["env"], R"(["10","<x y>","${build.size}"])");
  EXPECT_EQ(report["input"], "typed");
  EXPECT_EQ(report["files"], "a,b\nhi");
  EXPECT_EQ(report["flow"], R"(["1","sizes","report"])");
}

TEST_F(FlowInputs, MissingValueFailsTheNodeByName) {
  const ProcessResult flow = follow_flow(R"yaml(
name: missing
defaults: {type: python}
jobs:
  build: {script: "result['size'] = 10"}
  report: {needs: build, script: "pass", env: {GONE: "${build.gone}"}}
)yaml");
  EXPECT_NE(flow.code, 0);
  EXPECT_NE((flow.out + flow.err).find("${build.gone}: the result of \"build\" has no value \"gone\""),
            std::string::npos)
      << flow.out << flow.err;
}

TEST_F(FlowInputs, ReferencesAreCheckedInTheDefinition) {
  const auto check = [&](const std::string& job) {
    const std::string file = folder_.write(
        "flow.yaml",
        "name: x\ndefaults: {type: python}\njobs:\n  a: {script: pass}\n  b: {script: pass, " + job + "}\n");
    return mycojobs_({"flow", "check", file});
  };
  expect_result(check("env: {A: '${a.x}'}"), 65, "jobs.b.env.A: ${a.x}: \"a\" is not a node that this node needs");
  expect_result(check("needs: a, args: ['${HOME}']"), 65, "jobs.b.args[0]: \"${HOME}\" is not ${NODE.KEY}");
  expect_result(check("needs: a, args: x"), 65, "jobs.b.args: is the text \"x\", not a list of texts");
  expect_result(check("files: {../x: y}"), 65, "jobs.b.files: \"../x\" is not a valid name");
  expect_result(check("stdin: {file: gone}"), 65, "jobs.b.stdin: ");
  expect_result(check("supervisor_url: 'http://h:1', stdin: x"), 65, "jobs.b.stdin: cannot be sent to the supervisor");
  expect_result(check("needs: a, args: ['${a.x}', '$${HOME}']"), 0, "");
}

}  // namespace
}  // namespace mycojobs::test
