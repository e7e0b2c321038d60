// Hostile Python scripts that take the whole path of a job: the interpreter permits nothing that C code cannot do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/submitted_files.h"
#include "python_sandbox.h"

namespace mycojobs::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// SY1
TEST(PythonConfined, ReceivesArgumentsInputAndFiles) {
  JobFacts facts = make_facts(
      "import sys, os\nresult['args'] = sys.argv[1:]\nresult['first'] = sys.stdin.readline()\n"
      "result['rest'] = sys.stdin.read()\nresult['file'] = open('/job/files/a/b').read()\n"
      "result['hidden'] = os.path.exists('/job/.stdin')");
  facts.job.args = {"-x", "ä b"};
  ASSERT_TRUE(set_submitted_files(facts.job, {"one\ntwo\n", {{"a/b", "text"}}}));
  const RunResult result = run_python_confined(facts);
  EXPECT_EQ(result.end.error, "") << result.err;
  EXPECT_EQ(
      result.end.result,
      (TextMap{
          {"args", "[\"-x\",\"ä b\"]"}, {"first", "one\n"}, {"rest", "two\n"}, {"file", "text"}, {"hidden", "false"}}));
  EXPECT_EQ(run_python_confined("import sys\nresult['all'] = [sys.argv[1:], sys.stdin.read()]").end.result.at("all"),
            "[[],\"\"]");
}

TEST(PythonConfined, ForbiddenCallsThroughCtypesAreViolations) {
  const std::pair<const char*, int> calls[] = {
#ifdef __x86_64__
      {"ptrace", 101}, {"keyctl", 250},  {"bpf", 321},    {"unshare", 272},     {"setns", 308},
      {"mount", 165},  {"add_key", 248}, {"kcmp", 312},   {"reboot", 169},      {"open_by_handle_at", 304},
      {"iopl", 172},   {"swapon", 167},  {"fsopen", 430}, {"userfaultfd", 323}, {"perf_event_open", 298},
#else
      {"ptrace", 117}, {"keyctl", 219}, {"bpf", 280}, {"unshare", 97}, {"setns", 268}, {"mount", 40},
#endif
  };
  for (const auto& [name, number] : calls) {
    const RunResult result = run_python_confined("import ctypes\nctypes.CDLL(None).syscall(" + std::to_string(number) +
                                                 ", 0, 0, 0, 0, 0, 0)\nresult['a'] = 'came back'");
    EXPECT_EQ(result.outcome.status, RunStatus::violation) << name << ": " << result.outcome.reason;
    ASSERT_TRUE(result.outcome.violation) << name;
    EXPECT_EQ(result.outcome.violation->syscall, name);
    EXPECT_THAT(result.end.error, HasSubstr(name));
    EXPECT_TRUE(result.end.result.empty());
  }
}

struct EndRow {
  const char* name;  // number of the row and its variant
  const char* script;
  RunStatus status;
  int code;  // exit code or signal
};
void PrintTo(const EndRow& row, std::ostream* out) { *out << row.name; }

class PythonConfinedEnd : public ::testing::TestWithParam<EndRow> {};

// SY2, SY4, SY7, SY9: the ends have distinct statuses.
TEST_P(PythonConfinedEnd, HasItsOwnStatus) {
  const EndRow& row = GetParam();
  // Only the row that tests the limit may reach it, even on a busy machine.
  const RunResult result =
      run_python_confined(row.script, {.wall_ms = row.status == RunStatus::timeout_wall ? 3000U : 120000U});
  EXPECT_EQ(to_string(result.outcome.status), to_string(row.status)) << result.outcome.reason << "\n" << result.err;
  EXPECT_EQ(row.status == RunStatus::signal ? result.outcome.signal : result.outcome.exit_code, row.code);
}

INSTANTIATE_TEST_SUITE_P(
    Ends, PythonConfinedEnd,
    ::testing::Values(
        EndRow{"SY2 null", "import ctypes\nctypes.string_at(0)", RunStatus::signal, 11},
        EndRow{"SY2 one", "import ctypes, resource\nctypes.string_at(1)", RunStatus::signal, 11},
        EndRow{"SY4 deaf",
               "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, "
               "ValueError): pass\nwhile True:\n    try:\n        while True: pass\n    except BaseException: pass",
               RunStatus::timeout_wall, 0},
        EndRow{"SY7 _exit", "import os\nos._exit(0)", RunStatus::ok, 0},
        EndRow{"SY7 exit text", "import sys\nsys.exit('x')", RunStatus::exit, 1},
        EndRow{"SY7 exit 137", "raise SystemExit(137)", RunStatus::exit, 137},
        EndRow{"SY7 kill", "import os\nos.kill(os.getpid(), 9)", RunStatus::signal, 9},
        EndRow{"SY7 term", "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)", RunStatus::signal, 15},
        EndRow{"SY9 stack",  // Python limits its own stack depth, C code does not
               "import ctypes\nctypes.CDLL(None).regcomp(ctypes.create_string_buffer(1000), b'(' * 10**6, 1)",
               RunStatus::signal, 11},
        EndRow{"SY9 faulthandler", "import faulthandler, ctypes\nfaulthandler.enable()\nctypes.string_at(0)",
               RunStatus::signal, 11}));

// SY2: no core dump is written, and the zygote serves the next job.
TEST(PythonConfined, CrashLeavesNothingForTheNext) {
  const RunResult first = run_python_confined(
      "import resource, ctypes\nbefore = resource.getrlimit(resource.RLIMIT_CORE)\n"
      "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
      "print('kept', resource.getrlimit(resource.RLIMIT_CORE) == before, flush=True)\nctypes.string_at(0)");
  EXPECT_EQ(first.outcome.signal, 11);
  EXPECT_THAT(first.out, HasSubstr("kept True"));
  EXPECT_EQ(run_python_confined("import os\nprint(os.listdir('.'))").out, "['artifacts']\n");
}

// Jobs of a zygote do not share random state of libc, Python or the kernel.
TEST(PythonConfined, JobsDrawDifferentRandomNumbers) {
  const char* script = R"(
import os, random, secrets, uuid
drawn = [os.urandom(16).hex(), secrets.token_hex(16), str(uuid.uuid4()), str(random.getrandbits(128)), str(random.SystemRandom().getrandbits(128))]
result.update((str(i), each) for i, each in enumerate(drawn))
)";
  const RunResult first = run_python_confined(script), second = run_python_confined(script);
  ASSERT_EQ(first.end.result.size(), 5U) << first.end.error;
  ASSERT_EQ(second.end.result.size(), 5U) << second.end.error;
  for (const auto& [which, drawn] : first.end.result) EXPECT_NE(drawn, second.end.result.at(which)) << which;
}

// SY6: code that runs at exit, or while errors are printed, gets the same denials.
TEST(PythonConfined, LateCodeMeetsTheSameDenials) {
  const RunResult result = run_python_confined(R"(
import atexit, sys, threading, socket, os
def attempt(where):
    for what in (lambda: socket.socket(), lambda: open('/etc/shadow'), lambda: open('/usr/x', 'w'), os.fork):
        try:
            what()
            print(where, 'got through', flush=True)
        except OSError as e:
            print(where, e.errno, flush=True)
class Late:
    def __del__(self): attempt('del')
keep = Late()
atexit.register(attempt, 'atexit')
threading.excepthook = lambda args: attempt('thread')
sys.excepthook = lambda *args: attempt('hook')
t = threading.Thread(target=lambda: 1 / 0)
t.start()
t.join()
sys.unraisablehook = lambda *args: attempt('unraisable')
1 / 0
)");
  EXPECT_THAT(result.out, Not(HasSubstr("got through"))) << result.err;
  for (const char* where : {"thread ", "hook ", "atexit "}) EXPECT_THAT(result.out, HasSubstr(where));
}

// SY10
TEST(PythonConfined, ProgramsNeedTheGrantAndAreConfined) {
  const char* script = R"(
import subprocess, os, multiprocessing
def attempt(name, what):
    try: print(name, what(), flush=True)
    except OSError as e: print(name, type(e).__name__, flush=True)
attempt('run', lambda: subprocess.run(['/bin/echo', 'x'], capture_output=True).stdout)
attempt('spawn', lambda: os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)[1])
attempt('system', lambda: os.system('exit 3'))
attempt('popen', lambda: os.popen('echo y').read())
attempt('shadow', lambda: subprocess.run(['/bin/cat', '/etc/shadow'], capture_output=True).returncode)
attempt('write', lambda: subprocess.run(['/bin/sh', '-c', 'echo x > /usr/x'], capture_output=True).returncode)
def child(): os._exit(5)
def start():
    p = multiprocessing.get_context('fork').Process(target=child)
    p.start(); p.join(); return p.exitcode
attempt('multiprocessing', start)
)";
  const RunResult denied = run_python_confined(script);
  for (const char* name : {"run", "spawn", "popen", "multiprocessing"}) {
    EXPECT_THAT(denied.out, HasSubstr(std::string(name) + " PermissionError")) << denied.err;
  }
  EXPECT_THAT(denied.out, Not(HasSubstr("system 768")));
  const RunResult granted = run_python_confined(script, {.exec = true});
  EXPECT_EQ(granted.out, "run b'x\\n'\nspawn 0\nsystem 768\npopen y\n\nshadow 1\nwrite 2\nmultiprocessing 5\n")
      << granted.err;
}

// SY11
TEST(PythonConfined, CommonLibrariesWork) {
  const RunResult result = run_python_confined(R"(
import asyncio, sqlite3, ssl, tempfile, threading, concurrent.futures, shutil, pathlib, mmap, ctypes, selectors
async def one(i):
    await asyncio.sleep(0.001)
    return i
async def main():
    loop = asyncio.get_running_loop()
    return await asyncio.gather(one(1), one(2), loop.run_in_executor(None, lambda: 3))
print(asyncio.run(main()))
db = sqlite3.connect('/job/x.db')
db.execute('create table t(a)'); db.execute('insert into t values (1)'); db.commit()
print(db.execute('select a from t').fetchall())
print(ssl.create_default_context().verify_mode.name)
with tempfile.NamedTemporaryFile() as f, tempfile.TemporaryDirectory() as d:
    f.write(b'x' * 100000); f.flush()
    shutil.copyfile(f.name, d + '/copy'); shutil.copytree(d, d + '2')
    print(pathlib.Path(d, 'copy').stat().st_size, len(list(pathlib.Path(d + '2').iterdir())))
with concurrent.futures.ThreadPoolExecutor(8) as pool: print(sum(pool.map(lambda i: i * i, range(100))))
m = mmap.mmap(-1, 4096); m[:3] = b'abc'; print(bytes(m[:3]))
a, b = __import__('socket').socketpair(); a.send(b'hi'); print(b.recv(2))
)");
  EXPECT_EQ(result.out, "[1, 2, 3]\n[(1,)]\nCERT_REQUIRED\n100000 1\n328350\nb'abc'\nb'hi'\n") << result.err;
  EXPECT_EQ(result.end.detail, "ok");
}

// SY12: the job's memory contains neither objects nor data of the launcher or the agent.
TEST(PythonConfined, MemoryContainsNothingOfTheAgent) {
  ::setenv("MYCOJOBS_TEST_TOKEN", "token-that-nobody-may-see", 1);
  const RunResult result = run_python_confined(R"(
import gc, sys, os, ctypes
needle = b'token-that-nobody' + b'-may-see'
print(dict(os.environ).get('MYCOJOBS_TEST_TOKEN'), any(needle in o for o in gc.get_objects() if isinstance(o, bytes)))
try: print(needle in open('/proc/self/environ', 'rb').read())
except OSError as e: print(e.errno)
print([m for m in sys.modules if 'mycojobs' in m])
try: print(open('/proc/self/maps').read().count('launcher'))
except OSError as e: print(e.errno)
print(sorted(os.listdir('/proc/self/fd'))[:4])
)");
  EXPECT_THAT(result.out, ::testing::StartsWith("None False\n")) << result.err;
  EXPECT_THAT(result.out, Not(HasSubstr("True")));
  EXPECT_THAT(result.out, HasSubstr("['mycojobs']"));
}

// SY15
TEST(PythonConfined, HashSecretDiffersBetweenZygotes) {
  const char* script = "print(hash('x'))";
  const std::string first = run_python_confined(script).out;
  EXPECT_EQ(run_python_confined(script).out, first) << "forks of one zygote share the value";
  EXPECT_NE(run_python_confined(script, {.context = 8}).out, first);
}

// SX2: changes to the interpreter, the locale and the environment do not reach the next job.
TEST(PythonConfined, InterpreterIsCleanForTheNext) {
  run_python_confined(R"(
import sys, builtins, os, locale, json, time
sys.modules['leak'] = builtins.leak = json.leak = 1
os.environ['LEAK'] = '1'; os.environ['TZ'] = 'XYZ-5'; time.tzset()
os.umask(0); os.chdir('/tmp'); open('/tmp/leak', 'w').close(); open('/dev/shm/leak', 'w').close()
sys.setrecursionlimit(100); sys.path.insert(0, '/tmp')
)");
  const RunResult result = run_python_confined(R"(
import sys, builtins, os, json, time
print('leak' in sys.modules, hasattr(builtins, 'leak'), hasattr(json, 'leak'), 'LEAK' in os.environ, time.tzname[0] == 'XYZ')
print(os.listdir('/tmp'), os.listdir('/dev/shm'), os.getcwd(), sys.getrecursionlimit(), '/tmp' in sys.path)
)");
  EXPECT_EQ(result.out, "False False False False False\n[] [] /job 1000 False\n") << result.err;
}

// SQ2
TEST(PythonConfined, ThreadBombIsARuntimeError) {
  const RunResult result = run_python_confined(
      "import threading, time\ntry:\n    for i in range(1000): threading.Thread(target=time.sleep, args=(5,), "
      "daemon=True).start()\nexcept RuntimeError as e: print(e, i < 70)\n");
  EXPECT_THAT(result.out, HasSubstr("can't start new thread True")) << result.err;
}

}  // namespace
}  // namespace mycojobs::test
