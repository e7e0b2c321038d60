// `mycojobs sandbox run` and `policy learn`: one script in a sandbox, without Redis and without an agent.
#include <nlohmann/json.hpp>
#include <tuple>

#include "e2e/world.h"

namespace mycojobs::test {
namespace {

class LocalRun : public ::testing::Test {
 protected:
  ProcessResult run_mycojobs(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), program_path());
    arguments.insert(arguments.end(), {"--state-dir", folder_ / "state"});
    return run(folder_, std::move(arguments));
  }
  ProcessResult run_in_sandbox(const std::string& script, std::vector<std::string> more_options = {}) const {
    std::vector<std::string> arguments{"sandbox", "run", folder_.write("job.py", script)};
    arguments.insert(arguments.end(), more_options.begin(), more_options.end());
    return run_mycojobs(std::move(arguments));
  }
  TempDir folder_;
};

TEST_F(LocalRun, ShowsOutputOutcomeAndLayers) {
  const ProcessResult result =
      run_in_sandbox("import sys\nprint('to out')\nprint('to err', file=sys.stderr)\nresult['a'] = 1");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "to out\n");
  for (const char* expected_text : {"to err", "a = 1", "status  ok", "wall", "seccomp", "landlock"}) {
    EXPECT_NE(result.err.find(expected_text), std::string::npos) << expected_text << "\n" << result.err;
  }
}

TEST_F(LocalRun, JsonOutputContainsTheWholeOutcome) {
  const ProcessResult result = run_in_sandbox("import ctypes\nctypes.CDLL(None).ptrace(0, 0, 0, 0)", {"--json"});
  EXPECT_EQ(result.code, 126) << result.err;
  const auto outcome = nlohmann::json::parse(result.out, nullptr, false);
  ASSERT_TRUE(outcome.is_object()) << result.out;
  EXPECT_EQ(outcome["status"], "violation");
  EXPECT_EQ(outcome["violation"]["syscall"], "ptrace");
  EXPECT_EQ(outcome["violation"]["pid"], 2);
  EXPECT_EQ(outcome["profile"], "python");
  EXPECT_GT(outcome["usage"]["wall_us"], 0);
  EXPECT_GT(outcome["setup"].size(), 10U);
  EXPECT_NE(outcome["error"].get<std::string>().find("to allow: syscalls.add = [\"ptrace\"]"), std::string::npos);
}

TEST_F(LocalRun, StatusNamesHowTheScriptEnded) {
  const std::string policy = folder_.write("policy.toml", "memory = \"64 MiB\"\ncpu = \"300 ms\"\nwall = \"5 s\"");
  const std::tuple<const char*, int, const char*> rows[] = {
      {"raise SystemExit(3)", 1, "exit"},
      {"import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 1, "signal"},
      {"x = bytearray(200 << 20)", 137, "oom"},
      {"while True: pass", 124, "timeout_cpu"},
      {"import time; time.sleep(60)", 124, "timeout_wall"},
  };
  for (const auto& [script, code, status] : rows) {
    const ProcessResult result = run_in_sandbox(script, {"--policy", policy, "--json"});
    const auto outcome = nlohmann::json::parse(result.out, nullptr, false);
    ASSERT_TRUE(outcome.is_object()) << result.out << result.err;
    EXPECT_EQ(outcome["status"], status) << script << outcome["reason"];
    EXPECT_EQ(result.code, code) << script;
  }
}

TEST_F(LocalRun, ErrorsNameTheInvalidArgument) {
  EXPECT_NE(run_mycojobs({"sandbox", "run", folder_ / "none.py"}).err.find("no such file"), std::string::npos);
  const std::string script = folder_.write("job.py", "pass");
  EXPECT_NE(run_mycojobs({"sandbox", "run", script, "--type", "cobol"}).err.find("cobol"), std::string::npos);
  const std::string policy = folder_.write("bad.toml", "memroy = 1");
  const ProcessResult result = run_mycojobs({"sandbox", "run", script, "--policy", policy});
  EXPECT_NE(result.code, 0);
  EXPECT_NE(result.err.find("memroy"), std::string::npos) << result.err;
}

// A server on the host's loopback represents the Internet: only an address in the allow-list is reachable.
TEST_F(LocalRun, AllowListIsReachableOnlyThroughTheProxy) {
  Process server(folder_, {"python3", "-u", "-c",
                           "import http.server\n"
                           "class H(http.server.BaseHTTPRequestHandler):\n"
                           "  def do_GET(self):\n"
                           "    self.send_response(200); self.end_headers(); self.wfile.write(b'from outside')\n"
                           "s = http.server.HTTPServer(('127.0.0.1', 0), H); print(s.server_port); s.serve_forever()"});
  ASSERT_TRUE(eventually([&] { return server.out().find('\n') != std::string::npos; })) << server.err();
  const std::string port = server.out().substr(0, server.out().find('\n'));
  const std::string policy = folder_.write("policy.toml", "net = [\"127.0.0.1:" + port + "\"]");
  const ProcessResult result = run_in_sandbox(R"(
import os, socket, urllib.request
port = )" + port + R"(
os.environ.pop('no_proxy'); os.environ.pop('NO_PROXY')
print(urllib.request.urlopen(f'http://127.0.0.1:{port}/').read().decode())
def print_error_type(connect):
    try: connect(); print('opened')
    except OSError as error: print(type(error).__name__)
print_error_type(lambda: urllib.request.urlopen(f'http://127.0.0.1:{port + 1}/'))
print_error_type(lambda: urllib.request.urlopen('http://169.254.169.254/'))
print_error_type(lambda: socket.create_connection(('127.0.0.1', port), 2))
print_error_type(lambda: socket.create_connection(('1.1.1.1', 53), 2))
print_error_type(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
print_error_type(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW))
)",
                                              {"--policy", policy});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out,
            "from outside\nHTTPError\nHTTPError\nConnectionRefusedError\nOSError\nOSError\nPermissionError\n")
      << result.err;
  EXPECT_NE(result.err.find("169.254.169.254"), std::string::npos)
      << "the denied destination must be reported: " << result.err;
}

TEST_F(LocalRun, LearnPrintsAPolicyThatAllowsTheScript) {
  const std::string script = folder_.write("job.py", R"(
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print('watch', libc.inotify_init1(0) >= 0)
libc.syscall(317, 9, 0, 0)  # seccomp, which no policy grants
try: print('child', os.waitpid(os.fork() or os._exit(7), 0)[1] >> 8)
except OSError as error: print(error)
)");
  const ProcessResult learned = run_mycojobs({"policy", "learn", script});
  EXPECT_EQ(learned.code, 0) << learned.err;
  EXPECT_NE(learned.out.find("syscalls.add = [\"inotify_init1\"]"), std::string::npos) << learned.out;
  EXPECT_NE(learned.out.find("exec = true"), std::string::npos) << learned.out;
  EXPECT_NE((learned.out + learned.err).find("calls seccomp, which is never granted"), std::string::npos);
  const std::string policy = folder_.write("learned.toml", learned.out.substr(learned.out.find("# what")));
  const ProcessResult result = run_mycojobs({"sandbox", "run", script, "--policy", policy});
  EXPECT_EQ(result.out, "watch True\nchild 7\n") << result.err;
}

// The script opens more paths than the report can list: system files, as the import of a large library does, and
// paths that are denied. The policy must still contain the denied paths.
TEST_F(LocalRun, LearnListsDeniedPathsApartFromSystemFiles) {
  const std::string script = folder_.write("job.py", R"(
import glob, os
for path in glob.glob('/usr/lib/python3*/**/*.py', recursive=True)[:1000]:
    with open(path, 'rb') as file: file.read(1)
for n in range(2000):
    try: open(f'/srv/many/{n:040}')
    except OSError: pass
for denied_call in (lambda: open('/srv/aaa/needed'), os.fork):
    try: denied_call()
    except OSError: pass
)");
  const ProcessResult learned = run_mycojobs({"policy", "learn", script, "--json"});
  EXPECT_EQ(learned.code, 0) << learned.err;
  const auto output = nlohmann::json::parse(learned.out);
  EXPECT_NE(output.at("policy").dump().find("/srv/many/"), std::string::npos) << learned.out;
  EXPECT_EQ(output.at("policy").value("exec", false), true) << learned.out;
  EXPECT_NE(output.at("seen").dump().find("more than can be shown"), std::string::npos);
  const ProcessResult few_paths_result = run_mycojobs({"policy", "learn", folder_.write("few.py", R"(
import glob
for path in glob.glob('/usr/lib/python3*/**/*.py', recursive=True)[:1000]:
    with open(path, 'rb') as file: file.read(1)
try: open('/srv/aaa/needed')
except OSError: pass
)")});
  EXPECT_NE(few_paths_result.out.find("fs.read = [\"/srv/aaa/needed\"]"), std::string::npos) << few_paths_result.out;
}

}  // namespace
}  // namespace mycojobs::test
