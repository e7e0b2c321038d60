// The ends of a Python script and the resulting ends of its job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "python_driver.h"

namespace mycojobs::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// later versions changed some messages
constexpr bool kIsOfDebian12 = std::string_view(MYCOJOBS_PYTHON_VERSION) == "3.11";

struct EndRow {
  const char* name;
  const char* script;
  const char* detail;
  const char* error;
};
void PrintTo(const EndRow& row, std::ostream* out) { *out << row.name; }

class PythonEnd : public ::testing::TestWithParam<EndRow> {};

TEST_P(PythonEnd, IsReported) {
  const RunResult result = run_python(GetParam().script);
  EXPECT_EQ(result.end.detail, GetParam().detail);
  EXPECT_EQ(result.end.error, GetParam().error);
  EXPECT_EQ(result.end.status, std::string_view(GetParam().detail) == "ok" ? JobStatus::finished : JobStatus::error);
  EXPECT_EQ(result.end.error_info.empty(), result.end.status == JobStatus::finished);
}

// The same error as for inputs that do not fit into the job's folder. Regression test: the error was "exit code 125".
TEST(PythonEnds, UnpreparableJobReportsWhy) {
  JobFacts facts = make_facts("print('never')");
  facts.secrets = {{"../x", "value"}};
  const RunResult result = run_python(facts);
  EXPECT_EQ(result.end.error, "SetupError: channel: a file outside of the job's folder: secrets/../x");
  EXPECT_EQ(result.out, "");
}

constexpr const char* kNoResult = "the script ended without returning its result";

INSTANTIATE_TEST_SUITE_P(
    Exits, PythonEnd,
    ::testing::Values(
        EndRow{"exit 0", "import sys\nsys.exit(0)", "ok", ""}, EndRow{"exit", "import sys\nsys.exit()", "ok", ""},
        EndRow{"exit False", "raise SystemExit(False)", "ok", ""},
        EndRow{"exit 3", "import sys\nsys.exit(3)", "exit", "exit code 3"},
        EndRow{"exit 137", "raise SystemExit(137)", "exit", "exit code 137"},
        EndRow{"exit -1", "raise SystemExit(-1)", "exit", "exit code 255"},
        EndRow{"exit text", "import sys\nsys.exit('no disk')", "exit", "exit code 1: no disk"},
        EndRow{"exit from a function", "def f():\n    raise SystemExit(2)\nf()", "exit", "exit code 2"},
        EndRow{"exit from a thread",
               "import threading, sys\nt = threading.Thread(target=sys.exit, args=(3,))\nt.start()", "ok", ""},
        EndRow{"_exit 0", "import os\nresult['a'] = 'b'\nos._exit(0)", "exit", kNoResult},
        EndRow{"_exit 3", "import os\nos._exit(3)", "exit", "exit code 3"},
        EndRow{"_exit in atexit", "import atexit, os\natexit.register(os._exit, 0)", "exit", kNoResult},
        EndRow{"kill", "import os\nos.kill(os.getpid(), 9)", "signal", "ended by signal 9 (SIGKILL)"},
        EndRow{"segfault", "import ctypes\nctypes.string_at(0)", "signal", "ended by signal 11 (SIGSEGV)"},
        EndRow{"abort", "import os\nos.abort()", "signal", "ended by signal 6 (SIGABRT)"}));

INSTANTIATE_TEST_SUITE_P(
    Exceptions, PythonEnd,
    ::testing::Values(
        EndRow{"division", "\n\n1 / 0", "exception", "ZeroDivisionError: division by zero (line 3)"},
        EndRow{"in a function", "def f():\n    return {}['k']\n\nf()", "exception", "KeyError: 'k' (line 2)"},
        EndRow{
            "inside a library", "import json\n\njson.loads('{')", "exception",
            "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1) "
            "(line 3)"},
        EndRow{"own class", "class Bad(Exception): pass\nraise Bad('a\\n  b')", "exception", "Bad: a b (line 2)"},
        EndRow{"no text", "raise ValueError", "exception", "ValueError (line 1)"},
        EndRow{"text that fails", "class E(Exception):\n    def __str__(self): 1/0\nraise E", "exception",
               "E: <its text is not available> (line 3)"},
        EndRow{"syntax", "x = 1\ny = = 2", "exception", "SyntaxError: invalid syntax (line 2)"},
        EndRow{"indentation", "if 1:\nx", "exception",
               "IndentationError: expected an indented block after 'if' statement on line 1 (line 2)"},
        EndRow{"NUL", "x = 1 # \\0 is fine\nexec('a\\0')", "exception",
               kIsOfDebian12 ? "ValueError: source code string cannot contain null bytes (line 2)"
                             : "SyntaxError: source code string cannot contain null bytes (line 2)"},
        EndRow{"recursion", "def f(): f()\nf()", "exception",
               "RecursionError: maximum recursion depth exceeded (line 1)"},
        EndRow{"memory", "x = bytearray(1 << 60)", "exception", "MemoryError (line 1)"},
        EndRow{"interrupt", "raise KeyboardInterrupt", "exception", "KeyboardInterrupt (line 1)"},
        EndRow{"interrupt by signal",
               "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nfor i in range(10**9): pass", "exception",
               "KeyboardInterrupt (line 2)"},
        EndRow{"group", "raise ExceptionGroup('two', [ValueError(1), TypeError(2)])", "exception",
               "ExceptionGroup: two (2 sub-exceptions): ValueError: 1 (line 1)"}));

// The end of a script is reported even if the script breaks its interpreter: the real end, or the missing result. It
// must never be a false success.
INSTANTIATE_TEST_SUITE_P(
    Sabotage, PythonEnd,
    ::testing::Values(
        EndRow{"modules", "import sys\nsys.modules.clear()", "ok", ""},
        EndRow{"builtins", "import builtins\nd = delattr\nfor n in list(vars(builtins)): d(builtins, n)", "ok", ""},
        EndRow{"builtins and exception",
               "import builtins\nd = delattr\nfor n in list(vars(builtins)): d(builtins, n)\n1/0", "exception",
               "ZeroDivisionError: division by zero (line 4)"},
        EndRow{"json", "import json, json.encoder\njson.dumps = json.encoder.c_make_encoder = None\nresult['x'] = [1]",
               "ok", ""},
        EndRow{"stdout", "import sys, io\nsys.stdout = io.StringIO()\nsys.stderr = None", "ok", ""},
        EndRow{"stdout without flush", "import sys\nsys.stdout = sys.stderr = object()\n1/0", "exception",
               "ZeroDivisionError: division by zero (line 3)"},
        EndRow{"closed stdio", "import os\nfor fd in (0, 1, 2): os.close(fd)", "ok", ""},
        EndRow{"closed stdout, lost text", "import sys, os\nsys.stdout.write('no newline')\nos.close(1)", "exit",
               "exit code 120: stdout could not be written to the end"},
        EndRow{"closed channel", "import os\nos.close(3)\nresult['a'] = 'b'", "exit", kNoResult},
        EndRow{"closed everything", "import os\nos.closerange(0, 256)", "exit", kNoResult},
        EndRow{"channel is a file", "import os\nos.close(3)\nopen('/dev/null', 'wb', 0).fileno()", "exit", kNoResult},
        EndRow{"garbage on the channel", "import os\nos.write(3, b'hello, agent')", "exit",
               "the script's host sent an invalid message: a frame of unknown kind 111"},
        EndRow{"half a frame", "import os\nos.write(3, b'\\xff')", "exit",
               "the script's host sent an invalid message: a frame of unknown kind 0"},
        EndRow{"hook", "import sys\nsys.excepthook = lambda *a: print('mine', a[0].__name__)\n1/0", "exception",
               "ZeroDivisionError: division by zero (line 3)"},
        EndRow{"hook that fails", "import sys\nsys.excepthook = None\n1/0", "exception",
               "ZeroDivisionError: division by zero (line 3)"},
        EndRow{"depth", "import sys\nsys.setrecursionlimit(6)\nresult['a'] = [[[['b']]]]", "ok", ""},
        EndRow{"trace", "import sys\ndef t(*a): raise SystemExit(9)\nsys.settrace(t)", "ok", ""},
        EndRow{"os", "import os\nos.getpid = lambda: 1\nos.environ = None\nresult['a'] = 'b'", "ok", ""},
        EndRow{"atexit that fails", "import atexit\natexit.register(lambda: 1/0)", "ok", ""}));

TEST(PythonEnds, TracebackHasOnlyTheScriptsLines) {
  const RunResult result = run_python("def f(x):\n    return 1 / x\n\nf(0)\n");
  EXPECT_EQ(
      result.err,
      std::string("Traceback (most recent call last):\n  File \"<job 12:2001>\", line 4, in <module>\n    f(0)\n") +
          (kIsOfDebian12 ? "" : "    ~^^^\n") +
          "  File \"<job 12:2001>\", line 2, in f\n    return 1 / x\n           ~~^~~\n"
          "ZeroDivisionError: division by zero\n");
  const auto info = nlohmann::json::parse(result.end.error_info);
  EXPECT_EQ(info["type"], "ZeroDivisionError");
  EXPECT_EQ(info["message"], "division by zero");
  EXPECT_EQ(info["traceback"], result.err);
  EXPECT_EQ(info["line"], 2);
  EXPECT_EQ(info["exit"], 1);
}

TEST(PythonEnds, SyntaxErrorShowsItsLine) {
  JobFacts facts = make_facts("x = 1\nprint('a'\n");
  facts.job.name = "report.py";
  const RunResult result = run_python(facts);
  EXPECT_EQ(result.err, "  File \"report.py\", line 2\n    print('a'\n         ^\nSyntaxError: '(' was never closed\n");
  EXPECT_EQ(result.end.error, "SyntaxError: '(' was never closed (line 2)");
}

TEST(PythonEnds, ChainedExceptionsAndThreadsShowTheirLines) {
  const RunResult result = run_python(
      "import threading\ndef f(): raise ValueError('in thread')\nt = threading.Thread(target=f)\nt.start(); t.join()\n"
      "try:\n    {}['k']\nexcept KeyError as e:\n    raise RuntimeError('outer') from e\n");
  EXPECT_THAT(result.err, HasSubstr("Exception in thread Thread-1 (f):\nTraceback"));
  EXPECT_THAT(result.err, HasSubstr("def f(): raise ValueError('in thread')"));
  EXPECT_THAT(result.err, HasSubstr("The above exception was the direct cause"));
  EXPECT_THAT(result.err, HasSubstr("    raise RuntimeError('outer') from e\nRuntimeError: outer\n"));
}

TEST(PythonEnds, EndsInPythonsOrder) {
  const RunResult result = run_python(R"(
import atexit, threading, time
class Last:
    def __del__(self): print('del', sorted(result))
last = Last()
file = open(1, 'w', closefd=False)
def work():
    time.sleep(0.05)
    result['thread'] = 'done'
    print('thread')
threading.Thread(target=work).start()
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
def at_exit():
    result['atexit'] = 'done'
    print('atexit')
atexit.register(at_exit)
print('main')
file.write('file\n')
)");
  EXPECT_EQ(result.out.substr(0, 19), "main\nthread\natexit\n");
  EXPECT_THAT(result.out, HasSubstr("del ['atexit', 'thread']\n"));
  EXPECT_THAT(result.out, HasSubstr("file\n"));
  EXPECT_EQ(result.end.result, (TextMap{{"atexit", "done"}, {"thread", "done"}}));
}

// Python's threading ends pools before the functions registered for the exit run, even if no thread must be joined.
TEST(PythonEnds, PoolsEndBeforeRegisteredFunctions) {
  const RunResult result = run_python(R"(
import atexit
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1)
atexit.register(pool.submit, int)
)");
  EXPECT_THAT(result.err, HasSubstr("RuntimeError: cannot schedule new futures after interpreter shutdown"));
}

// Unchanged streams are not flushed. Data in a stream or in its buffer counts as a change.
TEST(PythonEnds, BufferedStreamsAreFlushed) {
  for (const char* script :
       {"sys.stdout.write('x')", "sys.stdout.buffer.write(b'x')", "sys.__stdout__.write('x')",
        "sys.stdout.flush(); sys.stdout.write('x')", "out = sys.stdout; sys.stdout = None; out.write('x')",
        "sys.stdout = open(1, 'w', closefd=False); sys.stdout.write('x')"})
    EXPECT_EQ(run_python(std::string("import sys\n") + script).out, "x") << script;
  for (const char* script : {"sys.stderr.write('x')", "sys.stderr.buffer.write(b'x')"})
    EXPECT_EQ(run_python(std::string("import sys\n") + script).err, "x") << script;
  EXPECT_EQ(run_python("import sys\nsys.stdout.close()").end.detail, "ok");
}

// The main module is created before the fork and must not differ from that of python3.
TEST(PythonEnds, MainModuleIsLikeThatOfPython) {
  const RunResult result = run_python(R"(
import sys
main = sys.modules['__main__']
print(vars(main) is globals(), list(sys.modules).count('__main__'), sorted(n for n in vars(main) if n[:2] == '__'))
x: int = 1
print(__annotations__, __name__, result is __import__('mycojobs').result)
class Last:
    def __init__(self): self.itself = self
    def __del__(self): print('gone')
last = Last()
f = lambda: last
)");
  EXPECT_EQ(
      result.out,
      "True 1 ['__annotations__', '__builtins__', '__doc__', '__loader__', '__name__', '__package__', '__spec__']\n"
      "{'x': <class 'int'>} __main__ True\ngone\n")
      << result.err;
}

TEST(PythonEnds, ScriptWithANullCharacterIsRejected) {
  EXPECT_THAT(run_python(std::string("x = 1\n\0y = 2\n", 14)).end.error, HasSubstr("null bytes"));
}

TEST(PythonEnds, ForkedChildReturnsNoResult) {
  const RunResult result = run_python(
      "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nresult['who'] = 'parent' if pid else 'child'\n"
      "print(result['who'])");
  EXPECT_EQ(result.out, "child\nparent\n");
  EXPECT_EQ(result.end.result, (TextMap{{"who", "parent"}}));
}

TEST(PythonEnds, HugeMessageAndTracebackAreCut) {
  const RunResult result = run_python("raise ValueError('é' * 5000000)");
  EXPECT_EQ(result.end.detail, "exception");
  EXPECT_LT(result.end.error.size(), 1100U);
  EXPECT_THAT(result.end.error, StartsWith("ValueError: éé"));
  EXPECT_LT(result.end.error_info.size(), 200000U);
  EXPECT_GT(result.err.size(), 9000000U);
}

TEST(PythonEnds, NonTextMessageIsStillReported) {
  const RunResult result = run_python("raise ValueError('\\ud800 \\udcff')");
  EXPECT_EQ(result.end.error, "ValueError: ? ? (line 1)");
}

TEST(PythonEnds, ErrorOfAFailedScriptHasNoResult) {
  const RunResult result = run_python("result['a'] = 'b'\n1/0");
  EXPECT_TRUE(result.end.result.empty());
}

struct RetryRow {
  const char* script;
  bool forbidden;
  std::optional<std::uint64_t> after_ms;
};
void PrintTo(const RetryRow& row, std::ostream* out) { *out << row.script; }

class PythonFailure : public ::testing::TestWithParam<RetryRow> {};

TEST_P(PythonFailure, ControlsTheNextAttempt) {
  const RunResult result = run_python(std::string("import mycojobs\n") + GetParam().script);
  EXPECT_EQ(result.end.detail, "exception") << result.err;
  EXPECT_EQ(result.end.retry_forbidden, GetParam().forbidden);
  EXPECT_EQ(result.end.retry_after_ms, GetParam().after_ms);
}

INSTANTIATE_TEST_SUITE_P(
    Rows, PythonFailure,
    ::testing::Values(
        RetryRow{"raise mycojobs.Failure('x')", false, {}}, RetryRow{"raise mycojobs.Failure", false, {}},
        RetryRow{"raise mycojobs.Failure('x', retry=True)", false, {}},
        RetryRow{"raise mycojobs.Failure('x', retry=False)", true, {}},
        RetryRow{"raise mycojobs.Failure('x', retry=30)", false, 30000},
        RetryRow{"raise mycojobs.Failure('x', retry=0.5)", false, 500},
        RetryRow{"raise mycojobs.Failure('x', retry=10**400)", false, 2592000000},
        RetryRow{"class Mine(mycojobs.Failure): pass\nraise Mine('x', retry=False)", true, {}},
        RetryRow{"try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise mycojobs.Failure('x', retry=False) from e",
                 true,
                 {}},
        RetryRow{"try:\n    raise mycojobs.Failure('x', retry=False)\nfinally:\n    1 / 0", false, {}},
        RetryRow{"mycojobs.Failure = ValueError\nraise mycojobs.Failure('x')", false, {}},
        RetryRow{"e = mycojobs.Failure('x')\ne.retry = 'soon'\nraise e", false, {}},
        RetryRow{"e = mycojobs.Failure('x')\ndel e.retry\nraise e", false, {}},
        RetryRow{
            "class E(mycojobs.Failure):\n    retry = property(lambda self: 1 / 0, lambda self, v: None)\nraise E('x')",
            false,
            {}}));

TEST(PythonEnds, FailureIsAnOrdinaryException) {
  const RunResult result = run_python("from mycojobs import Failure\nraise Failure('no stock', retry=30)");
  EXPECT_EQ(result.end.error, "mycojobs.Failure: no stock (line 2)");
  EXPECT_THAT(result.err, HasSubstr("mycojobs.Failure: no stock"));
  EXPECT_THAT(result.err, Not(HasSubstr("<mycojobs>")));
  for (const char* retry : {"-1", "'soon'", "None", "float('nan')", "float('inf')"}) {
    const RunResult invalid =
        run_python(std::string("import mycojobs\nraise mycojobs.Failure('x', retry=") + retry + ")");
    EXPECT_THAT(invalid.end.error, StartsWith("ValueError: Failure: retry=")) << retry;
    EXPECT_THAT(invalid.end.error, HasSubstr("(line 2)")) << retry;
  }
}

}  // namespace
}  // namespace mycojobs::test
