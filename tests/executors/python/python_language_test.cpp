// The Python language in jobs: scripts that work in python3 work in a job, and errors have the same text and position.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "python_sandbox.h"

namespace mycojobs::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(PythonLanguage, AsyncioGroupsAndTimeoutsWork) {
  const RunResult result = run_python(R"(
import asyncio
async def work(n):
    await asyncio.sleep(0.001)
    return n
async def numbers():
    for n in range(3):
        yield await work(n)
async def main():
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work(n)) for n in range(3)]
    print([task.result() for task in tasks], [n async for n in numbers()])
    try:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(1000)
    except TimeoutError:
        print('timed out')
    print(await asyncio.to_thread(lambda: 'from a thread'))
asyncio.run(main())
)");
  EXPECT_EQ(result.out, "[0, 1, 2] [0, 1, 2]\ntimed out\nfrom a thread\n") << result.err;
}

// Modules compare the hooks to detect whether the script has set its own. If it has, they do not use their own output.
TEST(PythonLanguage, HooksAreThoseOfPythonUntilSet) {
  EXPECT_EQ(run_python(R"(
import code, sys, threading
print(sys.excepthook is sys.__excepthook__, threading.excepthook is threading.__excepthook__)
code.InteractiveInterpreter().runsource("1/0")
sys.excepthook(1, "1", 1)
)")
                .err,
            "Traceback (most recent call last):\n  File \"<input>\", line 1, in <module>\n"
            "ZeroDivisionError: division by zero\n"
            "TypeError: print_exception(): Exception expected for value, str found\n");
}

TEST(PythonLanguage, FailedTaskGroupReportsItsErrors) {
  const RunResult result = run_python(R"(
import asyncio
async def fails():
    raise ValueError('in the task')
async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(fails())
asyncio.run(main())
)");
  EXPECT_EQ(result.end.error,
            "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception): ValueError: in the task (line 6)");
  EXPECT_THAT(result.err, HasSubstr("line 4, in fails\n    |     raise ValueError('in the task')"));
}

TEST(PythonLanguage, NestedGroupsReportTheirErrors) {
  const RunResult result = run_python(
      "try:\n    raise ExceptionGroup('several', [ExceptionGroup('deep', [TypeError('one')]), OSError('two')])\n"
      "except* OSError: pass");
  EXPECT_THAT(result.end.error, StartsWith("ExceptionGroup: several (1 sub-exception): TypeError: one"));
}

TEST(PythonLanguage, TracebacksPassGeneratorsAndCauses) {
  const RunResult result = run_python(R"(
def inner():
    yield 1
    raise KeyError('inside')
def outer():
    yield from inner()
try:
    list(outer())
except KeyError as error:
    raise RuntimeError('outside') from error
)");
  EXPECT_EQ(result.end.error, "RuntimeError: outside (line 10)");
  for (const char* part : {"line 4, in inner", "line 6, in outer", "direct cause", "line 10, in <module>"}) {
    EXPECT_THAT(result.err, HasSubstr(part));
  }
}

std::string make_long_script(const std::string& line_9876) {
  std::string script;
  for (int line = 1; line <= 10000; ++line) {
    const std::string n = std::to_string(line);
    script += line == 9876    ? line_9876
              : line % 3 == 0 ? "def f" + n + "(a, b=2): return a + b * " + n
                              : "x" + n + " = " + n;
    script += '\n';
  }
  return script;
}

TEST(PythonLanguage, TenThousandLinesAreCountedCorrectly) {
  const RunResult result = run_python(make_long_script("f9873(None)"));
  EXPECT_THAT(result.end.error, StartsWith("TypeError: ")) << result.err;
  EXPECT_THAT(result.err, HasSubstr("line 9876, in <module>\n    f9873(None)\n"));
  EXPECT_THAT(result.err, HasSubstr("line 9873, in f9873\n"));
  const RunResult invalid = run_python(make_long_script("f9873(1"));
  EXPECT_EQ(invalid.end.error, "SyntaxError: '(' was never closed (line 9876)");
}

TEST(PythonLanguage, EndlessThreadsAreStopped) {
  const char* daemon =
      "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\nresult['a'] = 1";
  const RunResult with_daemon = run_python_confined(daemon);
  EXPECT_EQ(with_daemon.end.detail, "ok") << with_daemon.end.error;
  EXPECT_EQ(with_daemon.end.result.at("a"), "1");
  // As in python3, the script waits for the thread at its end.
  const RunResult with_thread = run_python_confined(
      "import threading\nthreading.Thread(target=threading.Event().wait).start()\nprint('end')", {.wall_ms = 1500});
  EXPECT_EQ(with_thread.out, "end\n");
  EXPECT_EQ(with_thread.end.detail, "timeout");
}

TEST(PythonLanguage, ProgressOfManyThreadsArrivesIntact) {
  const RunResult result = run_python(R"(
import threading, mycojobs
def tell(number):
    for step in range(10): mycojobs.progress(step / 10, f'thread {number} ' + 'x' * 100)
threads = [threading.Thread(target=tell, args=(n,)) for n in range(8)]
for t in threads: t.start()
for t in threads: t.join()
)");
  EXPECT_EQ(result.notes.size(), 80U);
  for (const auto& note : result.notes) EXPECT_THAT(note, ::testing::EndsWith(std::string(100, 'x')));
}

TEST(PythonLanguage, ScriptThatBreaksItsRuntimeStillReturnsAResult) {
  const RunResult result = run_python(R"(
import sys, builtins, mycojobs, json, threading, traceback, linecache, errno, re
for module in (json, threading, traceback, linecache, errno, re, mycojobs):
    for name in list(vars(module)): setattr(module, name, None)
for name in list(vars(builtins)):
    if name not in ('list', 'vars', 'setattr'): setattr(builtins, name, None)
sys.modules['mycojobs'] = None
result['still'] = {'here': [1, None]}
)");
  EXPECT_EQ(result.end.result.at("still"), R"({"here":[1,null]})") << result.end.error << result.err;
}

TEST(PythonLanguage, ScriptsThatBreakTheirRuntimeStillReportErrors) {
  const RunResult result = run_python(
      "import traceback, linecache, errno\nlinecache.getline = errno.EROFS = traceback.TracebackException = "
      "None\nraise "
      "PermissionError(1, 'fork')");
  EXPECT_THAT(result.end.error, StartsWith("PermissionError: [Errno 1] fork"));
}

struct HintRow {
  const char* script;
  const char* hint;  // nullptr if the error has no hint
};
// Errors caused by a missing grant name the grant; other errors do not.
TEST(PythonLanguage, RefusalsNameTheMissingGrant) {
  const HintRow rows[] = {
      {"import os\nos.fork()", "exec = true"},
      {"import subprocess\nsubprocess.run(['/bin/true'])", "exec = true"},
      {"import multiprocessing\nmultiprocessing.Pool(2)", "exec = true"},
      {"import concurrent.futures as c\nwith c.ProcessPoolExecutor(2) as p: p.submit(print)", "exec = true"},
      {"import multiprocessing\nmultiprocessing.get_context('spawn').Lock()", "exec = true"},
      {"import asyncio\nasync def f(): await asyncio.create_subprocess_exec('/bin/true')\nasyncio.run(f())",
       "exec = true"},
      {"import socket\nsocket.create_connection(('192.0.2.1', 80))", "net = ["},
      {"import urllib.request\nurllib.request.urlopen('http://example.org/')", "net = ["},
      {"open('/srv/data')", "fs.read = [\"/srv/...\"]"},
      {"import os\nos.mkdir('/opt/x')", "fs.write = [\"/opt/...\"]"},
      {"import os\nos.kill(1, 9)\nos.setuid(0)", nullptr},
      {"open('/usr/x', 'w')", nullptr},
      {"open('absent')", nullptr},
  };
  for (const auto& [script, hint] : rows) {
    const RunResult result = run_python_confined(script);
    if (hint != nullptr) {
      EXPECT_THAT(result.end.error, HasSubstr(hint)) << script;
    } else {
      EXPECT_THAT(result.end.error, Not(HasSubstr("policy"))) << script;
    }
  }
}

// These modules are not loaded until a script imports them, although preloaded modules import them.
TEST(PythonLanguage, ModulesWithSharedLibrariesCanBeImported) {
  const RunResult result = run_python(R"(
import sys
print(sorted({'bz2', 'lzma', '_bz2', '_lzma'} & set(sys.modules)))
import shutil, tempfile
print([name for name, _ in shutil.get_archive_formats()])
with open('/tmp/text', 'w') as file:
    file.write('packed')
print(len(shutil.make_archive('/tmp/made', 'xztar', '/tmp', 'text')) > 0)
import bz2, lzma
print(bz2.decompress(bz2.compress(b'one')), lzma.decompress(lzma.compress(b'two')))
)");
  EXPECT_EQ(result.out, "[]\n['bztar', 'gztar', 'tar', 'xztar', 'zip']\nTrue\nb'one' b'two'\n") << result.err;
}

TEST(PythonLanguage, MainHasTheNamesOfPython) {
  const RunResult result =
      run_python("print(__name__, __doc__, __package__, __loader__, __spec__, __annotations__, list(globals()))");
  EXPECT_EQ(result.out,
            "__main__ None None None None {} ['__name__', '__doc__', '__package__', '__loader__', '__spec__', "
            "'__builtins__', '__annotations__', 'result']\n")
      << result.err;
}

TEST(PythonLanguage, MultiprocessingWorksWithTheGrant) {
  const RunResult result = run_python_confined(R"(
import multiprocessing, subprocess, sys
def square(n): return n * n
with multiprocessing.Pool(2) as pool: print(pool.map(square, range(5)))
queue = multiprocessing.Queue()
process = multiprocessing.Process(target=lambda: queue.put('from the child'))
process.start()
print(queue.get())
process.join()
print(process.exitcode)
print(subprocess.run([sys.executable, '-c', 'print(6 * 7)'], capture_output=True, text=True).stdout.strip())
)",
                                               {.exec = true});
  EXPECT_EQ(result.out, "[0, 1, 4, 9, 16]\nfrom the child\n0\n42\n") << result.err;
}

}  // namespace
}  // namespace mycojobs::test
