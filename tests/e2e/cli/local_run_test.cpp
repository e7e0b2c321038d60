// `mycojobs sandbox run` and `policy learn`: one script in a sandbox, without Redis and without an agent.
#include <nlohmann/json.hpp>
#include <tuple>

#include "e2e/world.h"

namespace mycojobs::test {
namespace {

class LocalRun : public ::testing::Test {
 protected:
  ProcessResult call(std::vector<std::string> words) const {
    words.insert(words.begin(), program_path());
    words.insert(words.end(), {"--state-dir", folder_ / "state"});
    return run(folder_, std::move(words));
  }
  ProcessResult sandbox_run(const std::string& script, std::vector<std::string> more = {}) const {
    std::vector<std::string> words{"sandbox", "run", folder_.write("job.py", script)};
    words.insert(words.end(), more.begin(), more.end());
    return call(std::move(words));
  }
  TempDir folder_;
};

TEST_F(LocalRun, ShowsOutputOutcomeAndLayers) {
  const ProcessResult result =
      sandbox_run("import sys\nprint('to out')\nprint('to err', file=sys.stderr)\nresult['a'] = 1");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "to out\n");
  for (const char* part : {"to err", "a = 1", "status  ok", "wall", "seccomp", "landlock"}) {
    EXPECT_NE(result.err.find(part), std::string::npos) << part << "\n" << result.err;
  }
}

TEST_F(LocalRun, JsonIsTheWholeOutcome) {
  const ProcessResult result = sandbox_run("import ctypes\nctypes.CDLL(None).ptrace(0, 0, 0, 0)", {"--json"});
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

TEST_F(LocalRun, EndsAreDistinguished) {
  const std::string limits = folder_.write("policy.toml", "memory = \"64 MiB\"\ncpu = \"300 ms\"\nwall = \"5 s\"");
  const std::tuple<const char*, int, const char*> rows[] = {
      {"raise SystemExit(3)", 3, "exit"},
      {"import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 1, "signal"},
      {"x = bytearray(200 << 20)", 137, "oom"},
      {"while True: pass", 124, "timeout_cpu"},
      {"import time; time.sleep(60)", 124, "timeout_wall"},
  };
  for (const auto& [script, code, status] : rows) {
    const ProcessResult result = sandbox_run(script, {"--policy", limits, "--json"});
    const auto outcome = nlohmann::json::parse(result.out, nullptr, false);
    ASSERT_TRUE(outcome.is_object()) << result.out << result.err;
    EXPECT_EQ(outcome["status"], status) << script << outcome["reason"];
    EXPECT_NE(result.code, 0);
  }
}

TEST_F(LocalRun, ErrorsAreNamed) {
  EXPECT_NE(call({"sandbox", "run", folder_ / "none.py"}).err.find("no such file"), std::string::npos);
  const std::string script = folder_.write("job.py", "pass");
  EXPECT_NE(call({"sandbox", "run", script, "--type", "cobol"}).err.find("cobol"), std::string::npos);
  const std::string policy = folder_.write("bad.toml", "memroy = 1");
  const ProcessResult result = call({"sandbox", "run", script, "--policy", policy});
  EXPECT_NE(result.code, 0);
  EXPECT_NE(result.err.find("memroy"), std::string::npos) << result.err;
}

// A server on the host's loopback represents the Internet: only an address in the allow-list is reachable.
TEST_F(LocalRun, AllowListUsesOnlyTheProxy) {
  Process server(folder_, {"python3", "-u", "-c",
                           "import http.server\n"
                           "class H(http.server.BaseHTTPRequestHandler):\n"
                           "  def do_GET(self):\n"
                           "    self.send_response(200); self.end_headers(); self.wfile.write(b'from outside')\n"
                           "s = http.server.HTTPServer(('127.0.0.1', 0), H); print(s.server_port); s.serve_forever()"});
  ASSERT_TRUE(eventually([&] { return server.out().find('\n') != std::string::npos; })) << server.err();
  const std::string port = server.out().substr(0, server.out().find('\n'));
  const std::string policy = folder_.write("policy.toml", "net = [\"127.0.0.1:" + port + "\"]");
  const ProcessResult result = sandbox_run(R"(
import os, socket, urllib.request
port = )" + port + R"(
os.environ.pop('no_proxy'); os.environ.pop('NO_PROXY')
print(urllib.request.urlopen(f'http://127.0.0.1:{port}/').read().decode())
def refused(what):
    try: what(); print('opened')
    except OSError as error: print(type(error).__name__)
refused(lambda: urllib.request.urlopen(f'http://127.0.0.1:{port + 1}/'))
refused(lambda: urllib.request.urlopen('http://169.254.169.254/'))
refused(lambda: socket.create_connection(('127.0.0.1', port), 2))
refused(lambda: socket.create_connection(('1.1.1.1', 53), 2))
refused(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW))
)",
                                           {"--policy", policy});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out,
            "from outside\nHTTPError\nHTTPError\nConnectionRefusedError\nOSError\nOSError\nPermissionError\n")
      << result.err;
  EXPECT_NE(result.err.find("169.254.169.254"), std::string::npos) << "what was refused is told: " << result.err;
}

TEST_F(LocalRun, LearnPrintsAPolicyThatSuffices) {
  const std::string script = folder_.write("job.py", R"(
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print('watch', libc.inotify_init1(0) >= 0)
libc.syscall(317, 9, 0, 0)  # seccomp, which no policy grants
try: print('child', os.waitpid(os.fork() or os._exit(7), 0)[1] >> 8)
except OSError as error: print(error)
)");
  const ProcessResult learned = call({"policy", "learn", script});
  EXPECT_EQ(learned.code, 0) << learned.err;
  EXPECT_NE(learned.out.find("syscalls.add = [\"inotify_init1\"]"), std::string::npos) << learned.out;
  EXPECT_NE(learned.out.find("exec = true"), std::string::npos) << learned.out;
  EXPECT_NE((learned.out + learned.err).find("calls seccomp, which is never granted"), std::string::npos);
  const std::string policy = folder_.write("learned.toml", learned.out.substr(learned.out.find("# what")));
  const ProcessResult result = call({"sandbox", "run", script, "--policy", policy});
  EXPECT_EQ(result.out, "watch True\nchild 7\n") << result.err;
}

// Reads many files, as the import of a large library does.
TEST_F(LocalRun, LearnedAccessIsListedApartFromSystemFiles) {
  const std::string script = folder_.write("job.py", R"(
import glob, os
for path in glob.glob('/usr/lib/python3*/**/*.py', recursive=True)[:1000]:
    with open(path, 'rb') as file: file.read(1)
for n in range(2000):
    try: open(f'/srv/many/{n:040}')
    except OSError: pass
for attempt in (lambda: open('/srv/aaa/needed'), os.fork):
    try: attempt()
    except OSError: pass
)");
  const ProcessResult learned = call({"policy", "learn", script, "--json"});
  EXPECT_EQ(learned.code, 0) << learned.err;
  const auto output = nlohmann::json::parse(learned.out);
  EXPECT_NE(output.at("policy").dump().find("/srv/many/"), std::string::npos) << learned.out;
  EXPECT_EQ(output.at("policy").value("exec", false), true) << learned.out;
  EXPECT_NE(output.at("seen").dump().find("more than can be shown"), std::string::npos);
  const ProcessResult small = call({"policy", "learn", folder_.write("few.py", R"(
import glob
for path in glob.glob('/usr/lib/python3*/**/*.py', recursive=True)[:1000]:
    with open(path, 'rb') as file: file.read(1)
try: open('/srv/aaa/needed')
except OSError: pass
)")});
  EXPECT_NE(small.out.find("fs.read = [\"/srv/aaa/needed\"]"), std::string::npos) << small.out;
}

}  // namespace
}  // namespace mycojobs::test
