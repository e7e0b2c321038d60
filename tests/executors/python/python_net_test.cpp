// A job with a network allow-list, as seen by its scripts and by programs that they start.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/fd.h"
#include "python_sandbox.h"

namespace mycojobs::test {
namespace {

// A server on the host's loopback that answers every request with "here" and counts the requests.
class HttpServer {
 public:
  HttpServer() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const generic_address = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener_.get(), generic_address, size), 0);
    EXPECT_EQ(::listen(listener_.get(), 16), 0);
    EXPECT_EQ(::getsockname(listener_.get(), generic_address, &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~HttpServer() {
    stopping_ = true;
    thread_.join();
  }
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  std::string address_text() const { return "127.0.0.1:" + std::to_string(port_); }
  std::string port() const { return std::to_string(port_); }
  int request_count() const { return request_count_; }

 private:
  void serve() {
    while (!stopping_) {
      pollfd event{listener_.get(), POLLIN, 0};
      if (::poll(&event, 1, 50) <= 0) continue;
      const Fd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      ++request_count_;
      char request[4096];
      if (!connection || ::recv(connection.get(), request, sizeof request, 0) <= 0) continue;
      constexpr std::string_view kAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nhere";
      (void)::send(connection.get(), kAnswer.data(), kAnswer.size(), MSG_NOSIGNAL);
    }
  }

  Fd listener_;
  std::uint16_t port_ = 0;
  std::atomic<bool> stopping_ = false;
  std::atomic<int> request_count_ = 0;
  std::thread thread_;
};

// The proxy stays with the process, and reports to each run only its own denials.
TEST(PythonNet, WarmScriptKeepsItsProxyAndEachRunItsRefusals) {
  const HttpServer server;
  const std::string script =
      "import urllib.request\ncalls = 0\ndef main(job):\n  global calls\n  calls += 1\n"
      "  result['a'] = urllib.request.urlopen('http://" +
      server.address_text() +
      "/').read().decode()\n  try: urllib.request.urlopen(f'http://198.51.100.7:{calls}/')\n"
      "  except Exception as error: print(type(error).__name__)\n";
  const PythonRunOptions options{.net = {server.address_text()},
                                 .warm = {100, 60000, std::string(64, 'p'), std::string(64, 'p')}};
  for (int i = 1; i <= 3; ++i) {
    const RunResult result = run_python_confined(script, options);
    EXPECT_EQ(result.end.result, (TextMap{{"a", "here"}})) << result.end.error << result.err;
    ASSERT_TRUE(result.outcome.reused);
    if (*result.outcome.reused == 0 && i > 1) GTEST_SKIP() << "this host permits no groups for memory and processes";
    ASSERT_EQ(result.outcome.notes.size(), 1U) << result.out;
    EXPECT_THAT(result.outcome.notes[0], ::testing::HasSubstr("198.51.100.7:" + std::to_string(i)));
  }
  EXPECT_EQ(server.request_count(), 3);
}

TEST(PythonNet, GrantedLoopbackPortOfTheHostIsReached) {
  const HttpServer server;
  const RunResult result = run_python_confined("import urllib.request\nresult['a'] = urllib.request.urlopen('http://" +
                                                   server.address_text() + "/').read().decode()",
                                               {.net = {server.address_text()}});
  EXPECT_EQ(result.end.error, "") << result.err;
  EXPECT_EQ(result.end.result, (TextMap{{"a", "here"}}));
  EXPECT_EQ(server.request_count(), 1);
}

// A server that the job starts is in the job's own loopback, which needs no proxy.
TEST(PythonNet, OwnLoopbackIsPrivate) {
  const RunResult result = run_python_confined(R"(
import http.server, threading, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'own')
    def log_message(self, *args): pass
server = http.server.HTTPServer(('127.0.0.1', 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
result['a'] = urllib.request.urlopen(f'http://127.0.0.1:{server.server_port}/').read().decode()
)",
                                               {.net = {"example.org:443"}});
  EXPECT_EQ(result.end.result, (TextMap{{"a", "own"}})) << result.end.error << result.err;
}

constexpr const char* kAttempts = R"(
import os, socket, sys
listed, other = int(sys.argv[1]), int(sys.argv[2])

def through_proxy(port, host='127.0.0.1'):
    with socket.create_connection(('127.0.0.1', 3128), 10) as s:
        s.sendall(f'CONNECT {host}:{port} HTTP/1.1\r\n\r\n'.encode())
        return s.recv(100).split(b' ')[1].decode()
def direct(port, host='127.0.0.1'):
    socket.create_connection((host, port), 5).close()
    return 'reached'
def opens(*kind):
    socket.socket(*kind).close()
    return 'opened'
def datagram():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s: s.sendto(b'x', ('192.0.2.1', 53))
    return 'sent'
def names(path):
    os.close(os.open(path, os.O_RDONLY))
    return 'opened'
def abstract():
    with socket.socket(socket.AF_UNIX) as s: s.connect('\0/tmp/.X11-unix/X0')
    return 'reached'

tries = {
    'listed': lambda: through_proxy(listed),
    'other': lambda: through_proxy(other),
    'other by name': lambda: through_proxy(other, 'localhost'),
    'metadata': lambda: through_proxy(80, '169.254.169.254'),
    'listed past the proxy': lambda: direct(listed),
    'other past the proxy': lambda: direct(other),
    'a public address': lambda: direct(443, '192.0.2.1'),
    'a datagram': datagram,
    'raw': lambda: opens(socket.AF_INET, socket.SOCK_RAW, 1),
    'packets': lambda: opens(socket.AF_PACKET, socket.SOCK_RAW),
    'that of process 1': lambda: names('/proc/1/ns/net'),
    'an abstract name': abstract,
}
for name, attempt in tries.items():
    try: said = attempt()
    except OSError: said = 'refused'
    print(name, said, sep='=')
)";

TEST(PythonNet, ExecReachesOnlyTheAllowList) {
  const HttpServer listed, other;
  std::string script = "import subprocess, sys\nattempts = r'''" + std::string(kAttempts) + "'''\n";
  script +=
      "ran = subprocess.run(['/usr/bin/python3', '-c', attempts, '" + listed.port() + "', '" + other.port() +
      "'], capture_output=True, text=True)\nsys.stderr.write(ran.stderr)\n"
      "result.update(line.split('=') for line in ran.stdout.splitlines())\n"
      "result['curl'] = str(subprocess.run(['/usr/bin/env', '-u', 'NO_PROXY', '-u', 'no_proxy', '/usr/bin/python3', "
      "'-c', 'import urllib.request; urllib.request.urlopen(\"http://" +
      other.address_text() + "/\")'], capture_output=True).returncode)\n";
  const RunResult result = run_python_confined(script, {.exec = true, .net = {listed.address_text()}});
  EXPECT_EQ(result.end.error, "") << result.err;
  EXPECT_EQ(result.end.result, (TextMap{{"listed", "200"},
                                        {"other", "403"},
                                        {"other by name", "403"},
                                        {"metadata", "403"},
                                        {"listed past the proxy", "refused"},
                                        {"other past the proxy", "refused"},
                                        {"a public address", "refused"},
                                        {"a datagram", "refused"},
                                        {"raw", "refused"},
                                        {"packets", "refused"},
                                        {"that of process 1", "refused"},
                                        {"an abstract name", "refused"},
                                        {"curl", "1"}}))
      << result.err;
  EXPECT_EQ(listed.request_count(), 1) << "through the proxy";
  EXPECT_EQ(other.request_count(), 0);
  const RunResult unshared =
      run_python_confined("import subprocess\nsubprocess.run(['/usr/bin/unshare', '-rn', '/bin/true'])",
                          {.exec = true, .net = {listed.address_text()}});
  EXPECT_TRUE(unshared.end.error.starts_with("denied: unshare")) << "a network of its own: " << unshared.end.error;
}

TEST(PythonUser, UserHasANameAndAHome) {
  const RunResult result = run_python_confined(R"(
import os, pwd, grp, getpass
me = pwd.getpwuid(os.getuid())
result.update(name=me.pw_name, home=me.pw_dir, group=grp.getgrgid(os.getgid()).gr_name, who=getpass.getuser(),
              same=pwd.getpwnam('job').pw_uid == os.getuid(), tilde=os.path.expanduser('~job'))
for path in ('/etc/passwd', '/etc/group'):
    for change in (lambda: open(path, 'a'), lambda: os.unlink(path), lambda: os.chmod(path, 0o777)):
        try: change(); result['changed'] = path
        except OSError: pass
)");
  EXPECT_EQ(
      result.end.result,
      (TextMap{
          {"name", "job"}, {"home", "/job"}, {"group", "job"}, {"who", "job"}, {"same", "true"}, {"tilde", "/job"}}))
      << result.end.error << result.err;
}

}  // namespace
}  // namespace mycojobs::test
