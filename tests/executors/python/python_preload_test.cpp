// The Python settings of a context: a virtual environment, and modules that are imported in advance.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "executors/python/python_executor.h"
#include "python_sandbox.h"
#include "support/build_paths.h"
#include "support/process.h"

namespace mycojobs::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kLibrary = "/lib/python" MYCOJOBS_PYTHON_VERSION;
constexpr const char* kPackages = "/lib/python" MYCOJOBS_PYTHON_VERSION "/site-packages";

// A virtual environment with the files of `python3 -m venv` that Python reads.
class Venv {
 public:
  explicit Venv(const std::string& settings =
                    "home = /usr/bin\ninclude-system-site-packages = false\nversion = " MYCOJOBS_PYTHON_VERSION
                    ".2\n") {
    for (const char* folder : {"", "/lib", kLibrary, kPackages}) {
      std::filesystem::create_directory(path() + folder);
      ::chmod((path() + folder).c_str(), 0755);
    }
    write("/venv/pyvenv.cfg", settings);
  }
  std::string path() const { return get_path("/venv"); }
  void write_module(const std::string& name, const std::string& text) {
    write(std::string("/venv") + kPackages + "/" + name, text);
  }

 private:
  std::string get_path(const std::string& relative_path) const { return folder_.path().string() + relative_path; }
  void write(const std::string& relative_path, const std::string& text) {
    ::chmod(folder_.write(relative_path.substr(1), text).c_str(), 0644);
  }
  TempDir folder_;
};

using Settings = std::map<Id, PythonSettings>;
std::unique_ptr<Sandbox> make_sandbox(const Settings& settings) {
  return start_test_sandbox(python_hosts(mj::test::programs_folder(), settings));
}

TEST(PythonVenv, IsAvailableToJobsOfItsContext) {
  Venv venv;
  venv.write_module("greetings.py", "WORD = 'from the environment'\n");
  venv.write_module("more.pth", "/venv/more\nimport greetings; greetings.WORD = 'from a .pth'\n");
  const auto sandbox = make_sandbox({{7, {.venv = venv.path()}}});
  const RunResult result = run_python_confined(R"(
import greetings, sys
print(greetings.WORD, greetings.__file__)
print(sys.prefix, sys.base_prefix, sys.executable)
print(sys.path[-1], any('dist-packages' in path for path in sys.path))
for path in ('/venv/new', greetings.__file__):
    try: open(path, 'w')
    except OSError as e: print(e.errno)
)",
                                               {.sandbox = sandbox.get()});
  EXPECT_EQ(result.out, std::string("from a .pth /venv") + kPackages +
                            "/greetings.py\n/venv /usr /venv/bin/python3\n/venv" + kPackages + " False\n30\n30\n")
      << result.err << result.end.error;
  const RunResult other =
      run_python_confined("import os, sys\nprint(os.path.exists('/venv'), sys.prefix)\nimport greetings",
                          {.context = 8, .sandbox = sandbox.get()});
  EXPECT_EQ(other.out, "False /usr\n") << other.end.error;
  EXPECT_THAT(other.end.error, HasSubstr("No module named 'greetings'"));
}

TEST(PythonVenv, IsAvailableToProgramsOfItsJobs) {
  Venv venv;
  std::filesystem::create_directory(venv.path() + "/bin");
  ::chmod((venv.path() + "/bin").c_str(), 0755);
  std::filesystem::create_symlink("/usr/bin/python3", venv.path() + "/bin/python3");
  venv.write_module("greetings.py", "WORD = 'from the environment'\n");
  const auto sandbox = make_sandbox({{7, {.venv = venv.path()}}});
  const RunResult result = run_python_confined(R"(
import subprocess, sys
for python in (sys.executable, '/venv/bin/python3', '/usr/bin/python3'):
    ran = subprocess.run([python, '-c', 'import greetings; print(greetings.WORD)'], capture_output=True, text=True)
    print(ran.returncode, ran.stdout.strip())
)",
                                               {.exec = true, .sandbox = sandbox.get()});
  EXPECT_EQ(result.out, "0 from the environment\n0 from the environment\n1 \n") << result.err << result.end.error;
}

// A link in the environment resolves in the job's own root. A setuid program in it gains no rights and needs the exec
// grant.
TEST(PythonVenv, OpensNothingOfTheHost) {
  Venv venv;
  std::filesystem::create_symlink("/etc/shadow", venv.path() + "/shadow");
  std::filesystem::create_symlink("../../../../../../etc/shadow", venv.path() + "/far");
  std::filesystem::copy("/bin/true", venv.path() + "/program");
  ::chmod((venv.path() + "/program").c_str(), 04755);
  const auto sandbox = make_sandbox({{7, {.venv = venv.path()}}});
  const char* script = R"(
import os, subprocess
for name in ('shadow', 'far'):
    try: print(open('/venv/' + name).read())
    except OSError as e: print(e.errno)
print(os.statvfs('/venv').f_flag & os.ST_NOSUID != 0, os.statvfs('/venv').f_flag & os.ST_RDONLY != 0)
try: print(subprocess.run(['/venv/program']).returncode)
except OSError as e: print(type(e).__name__)
)";
  EXPECT_EQ(run_python_confined(script, {.sandbox = sandbox.get()}).out, "2\n2\nTrue True\nPermissionError\n");
  EXPECT_EQ(run_python_confined(script, {.exec = true, .sandbox = sandbox.get()}).out, "2\n2\nTrue True\n0\n");
}

TEST(PythonVenv, HasSystemPackagesIfConfigured) {
  Venv with("home = /usr/bin\ninclude-system-site-packages = true\nversion = " MYCOJOBS_PYTHON_VERSION ".2\n");
  Venv without("home = /nowhere\ninclude-system-site-packages = false\nversion_info = " MYCOJOBS_PYTHON_VERSION
               ".9.final.0\n");  // as virtualenv writes it on another host
  const auto sandbox = make_sandbox({{7, {.venv = with.path()}}, {8, {.venv = without.path()}}});
  const char* script = "import sys\nprint(sys.prefix)\nimport numpy";
  EXPECT_EQ(run_python_confined(script, {.sandbox = sandbox.get()}).end.error, "");
  const RunResult result = run_python_confined(script, {.context = 8, .sandbox = sandbox.get()});
  EXPECT_EQ(result.out, "/venv\n");
  EXPECT_THAT(result.end.error, HasSubstr("No module named 'numpy'"));
}

TEST(PythonVenv, InvalidOneIsASetupErrorWithAReason) {
  Venv open_to_all;
  ::chmod(open_to_all.path().c_str(), 0777);
  Venv foreign;
  if (::chown(foreign.path().c_str(), 54321, 54321) != 0) ::chmod(foreign.path().c_str(), 0777);
  Venv newer("version = 3.99.1\n");
  Venv unmarked("");
  Venv none;
  std::filesystem::remove(none.path() + "/pyvenv.cfg");
  Venv linked;
  const std::string link = linked.path() + "/../link";
  std::filesystem::create_symlink(linked.path(), link);
  const std::pair<std::string, const char*> rows[] = {
      {"/srv/absent-venv", "/srv/absent-venv: ENOENT"},
      {open_to_all.path(), "can be written by other users: chmod go-w"},
      {foreign.path(), ::geteuid() == 0 ? "belongs to user 54321" : "chmod go-w"},
      {newer.path(), "is for Python 3.99.1, and jobs have " MYCOJOBS_PYTHON_VERSION ": create it again"},
      {unmarked.path(), "is for Python of unknown version"},
      {none.path(), "is not a virtual environment"},
      {std::filesystem::path(link).lexically_normal(), "is a symbolic link"},
  };
  Settings settings;
  Id context = 20;
  for (const auto& row : rows) settings[context++].venv = row.first;
  const auto sandbox = make_sandbox(settings);
  context = 20;
  for (const auto& [path, message] : rows) {
    const RunResult result = run_python_confined("pass", {.context = context++, .sandbox = sandbox.get()});
    EXPECT_EQ(to_string(result.outcome.status), "setup_error") << path;
    EXPECT_THAT(result.end.error, HasSubstr(message)) << path;
    EXPECT_THAT(result.end.error, HasSubstr(path)) << path;
  }
  EXPECT_EQ(run_python_confined("pass", {.context = 7, .sandbox = sandbox.get()}).end.error, "");
}

// Attack: a user with write access to a module folder could run code before any job. The folder must be checked first.
// The module would print to the host's stderr; the test checks that it did not run.
TEST(PythonVenv, FilesWritableByOthersAreNotImported) {
  Venv venv;
  venv.write_module("planted.py", "raise RuntimeError('it has run')\n");
  venv.write_module("planted.pth", "import planted\n");
  ::chmod((venv.path() + kPackages).c_str(), 0777);
  const auto sandbox = make_sandbox({{7, {.venv = venv.path(), .preload = {"planted"}}}});
  const RunResult result = run_python_confined("pass", {.sandbox = sandbox.get()});
  EXPECT_EQ(to_string(result.outcome.status), "setup_error");
  EXPECT_THAT(result.end.error, HasSubstr(venv.path() + kPackages + ": can be written by other users: chmod go-w"));
  EXPECT_THAT(result.end.error, Not(HasSubstr("it has run")));
}

TEST(PythonPreload, ModulesAreImportedWithoutPermissions) {
  Venv venv;
  venv.write_module(
      "curious.py",
      "import ctypes, socket\n"
      "try:\n    socket.sethostname('mine')\n    named = True\nexcept PermissionError:\n    named = False\n"
      "mounted = ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None)\n"
      "rights = [line for line in open('/proc/self/status') if line.startswith('CapEff')][0].split()[1]\n");
  const auto sandbox = make_sandbox({{7, {.venv = venv.path(), .preload = {"curious"}}}});
  const RunResult result = run_python_confined(
      "import curious\nprint(curious.named, curious.mounted, int(curious.rights, 16))", {.sandbox = sandbox.get()});
  EXPECT_EQ(result.out, "False -1 0\n") << result.end.error;
}

// The module is reloaded within seconds: jobs must not wait for the next regular replacement of the host.
TEST(PythonPreload, UpdatedModuleIsReloaded) {
  Venv venv;
  venv.write_module("versioned.py", "VERSION = 'one'\n");
  const auto sandbox = make_sandbox({{7, {.venv = venv.path(), .preload = {"versioned"}}}});
  const char* script = "import versioned\nprint(versioned.VERSION)";
  EXPECT_EQ(run_python_confined(script, {.sandbox = sandbox.get()}).out, "one\n");
  venv.write_module("versioned.py", "VERSION = 'two'\n");
  EXPECT_TRUE(
      eventually([&] { return run_python_confined(script, {.sandbox = sandbox.get()}).out == "two\n"; }, Seconds(50)));
}

struct BadModule {
  const char* name;
  const char* text;
  const char* message;
};
void PrintTo(const BadModule& row, std::ostream* out) { *out << row.name; }
class PythonPreloadFails : public ::testing::TestWithParam<BadModule> {};

// SI14: an error of a module is reported to the jobs of its context, and jobs of other contexts run.
TEST_P(PythonPreloadFails, IsASetupErrorThatNamesTheModule) {
  const BadModule& row = GetParam();
  Venv venv;
  venv.write_module(std::string(row.name) + ".py", row.text);
  auto hosts = python_hosts(mj::test::programs_folder(), {{7, {.venv = venv.path(), .preload = {"json", row.name}}}});
  if (std::string(row.name) == "hangs")
    hosts[0].arguments.insert(hosts[0].arguments.begin(), {"--import-seconds", "1"});
  const auto sandbox = start_test_sandbox(hosts);
  const RunResult result = run_python_confined("pass", {.sandbox = sandbox.get()});
  EXPECT_EQ(to_string(result.outcome.status), "setup_error") << result.outcome.reason;
  EXPECT_THAT(result.end.error, HasSubstr(row.name));
  EXPECT_THAT(result.end.error, HasSubstr(row.message));
  EXPECT_EQ(run_python_confined("pass", {.context = 8, .sandbox = sandbox.get()}).end.error, "");
}

INSTANTIATE_TEST_SUITE_P(
    Modules, PythonPreloadFails,
    ::testing::Values(BadModule{"imports_none", "import absent_package", "No module named 'absent_package'"},
                      BadModule{"throws", "raise ValueError('by hand')", "[\"throws\"]: ValueError: by hand"},
                      BadModule{"leaves", "import sys\nsys.exit('bye')", "SystemExit: bye"},
                      BadModule{"exits", "import os\nos._exit(0)", "--preload exits"},
                      BadModule{"crashes", "import ctypes\nctypes.string_at(0)", "--preload crashes"},
                      BadModule{"hangs", "import time\ntime.sleep(1000)", "has not ended within 1 s"},
                      BadModule{"opens", "keep = open('/etc/passwd')", "has left open: /etc/passwd"},
                      BadModule{"threads",
                                "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), "
                                "daemon=True).start()",
                                "has left 1 thread running"},
                      BadModule{"spawns", "import subprocess\nkeep = subprocess.Popen(['/bin/sleep', '1000'])",
                                "has left a process running"}));

// Otherwise each job of a context with a hanging module would block a slot of the agent for the whole time-out.
TEST(PythonPreload, FailedImportIsNotRetriedForEachJob) {
  Venv venv;
  venv.write_module("hangs.py", "import time\ntime.sleep(1000)\n");
  auto hosts = python_hosts(mj::test::programs_folder(), {{7, {.venv = venv.path(), .preload = {"hangs"}}}});
  hosts[0].arguments.insert(hosts[0].arguments.begin(), {"--import-seconds", "2"});
  const auto sandbox = start_test_sandbox(hosts);
  const RunResult first = run_python_confined("pass", {.sandbox = sandbox.get()});
  venv.write_module("hangs.py", "pass\n");
  const RunResult second = run_python_confined("pass", {.sandbox = sandbox.get()});
  EXPECT_EQ(to_string(second.outcome.status), "setup_error") << "the import was repeated immediately";
  EXPECT_EQ(second.end.error, first.end.error);
  // The next attempt starts automatically.
  EXPECT_TRUE(eventually(
      [&] { return run_python_confined("pass", {.sandbox = sandbox.get()}).outcome.status == RunStatus::ok; },
      Seconds(50)));
}

TEST(PythonPreload, ModulesAreLoadedBeforeTheJob) {
  Venv venv;
  venv.write_module("heavy.py", "import os\npid = os.getpid()\nprint('once, for nobody')\nos.environ['LEFT'] = '1'\n");
  const auto sandbox = make_sandbox({{7, {.venv = venv.path(), .preload = {"heavy", "xml.dom.minidom"}}}});
  const RunResult result = run_python_confined(
      "import sys, os\nprint('heavy' in sys.modules, 'xml.dom.minidom' in sys.modules, dict(os.environ).get('LEFT'))\n"
      "import heavy\nprint(heavy.pid)",
      {.sandbox = sandbox.get()});
  EXPECT_EQ(result.out, "True True None\n1\n") << result.end.error;
  const RunResult other =
      run_python_confined("import sys\nprint('heavy' in sys.modules)", {.context = 8, .sandbox = sandbox.get()});
  EXPECT_EQ(other.out, "False\n");
}

TEST(PythonPreload, ForkHooksOfModulesRunInEachJob) {
  Venv venv;
  venv.write_module("hooked.py",
                    "import os\ncalls = []\nos.register_at_fork(before=lambda: calls.append('before 1'), "
                    "after_in_child=lambda: calls.append('after 1'))\nos.register_at_fork(before=lambda: "
                    "calls.append('before 2'), after_in_child=lambda: calls.append('after 2'))\n");
  const auto sandbox = make_sandbox({{7, {.venv = venv.path(), .preload = {"hooked"}}}});
  const RunResult result = run_python_confined("import hooked\nprint(hooked.calls[-4:])", {.sandbox = sandbox.get()});
  EXPECT_EQ(result.out, "['before 2', 'before 1', 'after 1', 'after 2']\n") << result.end.error;
}

// SY11, and random numbers that two jobs of one zygote must not share.
TEST(PythonPreload, NumpyWorksWithAnyImportOrder) {
  const auto sandbox = make_sandbox({{7, {.preload = {"numpy"}}}});
  const char* script = R"(
import sys
print('numpy' in sys.modules)
import numpy
a = numpy.arange(250000.0).reshape(500, 500)
print((a @ numpy.eye(500) == a).all(), numpy.linalg.det(numpy.eye(3)))
result['drawn'] = numpy.random.rand()
)";
  const RunResult first = run_python_confined(script, {.sandbox = sandbox.get()});
  const RunResult second = run_python_confined(script, {.sandbox = sandbox.get()});
  const RunResult by_job = run_python_confined(script, {.context = 8, .sandbox = sandbox.get()});
  EXPECT_EQ(first.out, "True\nTrue 1.0\n") << first.end.error << first.err;
  EXPECT_EQ(by_job.out, "False\nTrue 1.0\n") << by_job.end.error << by_job.err;
  EXPECT_NE(first.end.result.at("drawn"), second.end.result.at("drawn"));
}

}  // namespace
}  // namespace mycojobs::test
