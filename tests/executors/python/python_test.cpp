// The environment of a Python script.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "executors/python/python_executor.h"
#include "python_driver.h"
#include "support/build_paths.h"

namespace mycojobs::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Python, PrintsAndReturnsItsResult) {
  const RunResult result = run_python("print('hello')\nresult['answer'] = 'yes'\n");
  EXPECT_EQ(result.out, "hello\n");
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.end.status, JobStatus::finished);
  EXPECT_EQ(result.end.detail, "ok");
  EXPECT_EQ(result.end.error, "");
  EXPECT_EQ(result.end.error_info, "");
  EXPECT_EQ(result.end.result, (TextMap{{"answer", "yes"}}));
}

struct ResultRow {
  const char* name;
  const char* script;
  TextMap result;
  const char* error;  // empty for success
};
void PrintTo(const ResultRow& row, std::ostream* out) { *out << row.name; }

class PythonResult : public ::testing::TestWithParam<ResultRow> {};

TEST_P(PythonResult, IsReturnedOrRejectedByKey) {
  const RunResult result = run_python(GetParam().script);
  EXPECT_EQ(result.end.error, GetParam().error);
  EXPECT_EQ(result.end.result, GetParam().result);
  EXPECT_EQ(result.end.status, *GetParam().error == '\0' ? JobStatus::finished : JobStatus::error);
  if (result.end.status == JobStatus::error) {
    EXPECT_THAT(result.err, HasSubstr("result"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, PythonResult,
    ::testing::Values(
        ResultRow{"nothing", "pass", {}, ""},
        ResultRow{"numbers",
                  "result.update(a=1, b=1.5, c=True, d=None)",
                  {{"a", "1"}, {"b", "1.5"}, {"c", "true"}, {"d", "null"}},
                  ""},
        ResultRow{"nested", "result['x'] = [1, {'k': 'é\"'}]", {{"x", "[1,{\"k\":\"é\\\"\"}]"}}, ""},
        ResultRow{"unicode", "result['ключ'] = '\\u2713\\x01\\n'", {{"ключ", "\xE2\x9C\x93\x01\n"}}, ""},
        ResultRow{"empty texts", "result[''] = ''", {{"", ""}}, ""},
        ResultRow{"the module's",
                  "import mycojobs\nmycojobs.result['a'] = 'b'\nassert mycojobs.result is result",
                  {{"a", "b"}},
                  ""},
        ResultRow{"another dict", "result = {'new': 'dict'}", {{"new", "dict"}}, ""},
        ResultRow{"a dict of a class",
                  "import collections\nresult = collections.defaultdict(list)\nresult['a'].append(1)",
                  {{"a", "[1]"}},
                  ""},
        ResultRow{"a name of its own",
                  "result = [1]\nimport mycojobs\nmycojobs.result['a'] = 'b'",
                  {},
                  "ResultError: result is a list, not a dict: return a value with result['NAME'] = VALUE, and give a "
                  "variable of the script's own another name"},
        ResultRow{"deleted", "del result", {}, ""},
        ResultRow{"a set",
                  "result['x'] = {1}",
                  {},
                  "ResultError: result['x']: a set is not a result value: return sorted(VALUE)"},
        ResultRow{"bytes",
                  "result['x'] = b'1'",
                  {},
                  "ResultError: result['x']: a bytes is not a result value: return its .decode(), or leave a file in "
                  "mycojobs.artifacts"},
        ResultRow{
            "a date",
            "import datetime\nresult['x'] = {'when': [datetime.date(2026, 1, 1)]}",
            {},
            "ResultError: result['x']['when'][0]: a datetime.date is not a result value: return its .isoformat()"},
        ResultRow{"what numpy has",
                  "class generic: pass\nclass int64(generic): pass\nclass ndarray: pass\nresult['x'] = int64()",
                  {},
                  "ResultError: result['x']: an int64 is not a result value: return its .item()"},
        ResultRow{"an object",
                  "result['x'] = {'y': object()}",
                  {},
                  "ResultError: result['x']['y']: an object is not a result value: return its str(), or a dict of its "
                  "parts"},
        ResultRow{"a key within that is no text",
                  "result['d'] = {1: 2}",
                  {},
                  "ResultError: result['d']: its key 1 is not text: write str(1)"},
        ResultRow{"a number that is too large",
                  "result['x'] = -2 ** 1023",
                  {},
                  "ResultError: result['x']: a whole number of 1024 bits is too large: return its str()"},
        ResultRow{"large numbers", "result['x'] = 2 ** 70", {{"x", "1180591620717411303424"}}, ""},
        ResultRow{"not a number",
                  "result['x'] = float('nan')",
                  {},
                  "ResultError: result['x']: nan is not a result value: return None, or its str()"},
        ResultRow{"a circle",
                  "result['x'] = result",
                  {},
                  "ResultError: result['x']['x']['x']['x']['x']['x']['x']['x']['x']: is nested more than 48 deep, or "
                  "contains itself"},
        ResultRow{"a key that is no text",
                  "result[1] = 'x'",
                  {},
                  "ResultError: result: the key 1 is not text: write result[str(1)]"},
        ResultRow{"half a character",
                  "result['x'] = '\\ud800'",
                  {},
                  "ResultError: result['x']: contains bytes that are not text"},
        ResultRow{"too deep",
                  "v = []\nfor i in range(100000): v = [v]\nresult['x'] = v",
                  {},
                  "ResultError: result['x'][0][0][0][0][0][0][0][0]: is nested more than 48 deep, or contains "
                  "itself"}));

TEST(Python, OwnVariableNamedResultIsAWarning) {
  for (const char* script : {"result = 5", "result = [1]", "result = {'x': {1}}", "result = print"}) {
    const RunResult result = run_python(script);
    EXPECT_EQ(result.end.status, JobStatus::finished) << script << ": " << result.end.error;
    EXPECT_TRUE(result.end.result.empty()) << script;
    EXPECT_THAT(result.err, HasSubstr("mycojobs: warning: result")) << script;
    EXPECT_THAT(result.err, HasSubstr("the job finishes without a result")) << script;
  }
}

TEST(Python, RejectedResultIsNotRetried) {
  for (const char* script : {"result['x'] = {1}", "result['x'] = 1\nresult = 5"}) {
    const RunResult result = run_python(script);
    EXPECT_THAT(result.end.error, ::testing::StartsWith("ResultError: ")) << script;
    EXPECT_TRUE(result.end.retry_forbidden) << script;
  }
  const RunResult own = run_python("class ResultError(Exception): pass\nraise ResultError('of the script')");
  EXPECT_FALSE(own.end.retry_forbidden);
}

TEST(Python, ByteOrderMarkIsSkipped) {
  const RunResult result = run_python("\xEF\xBB\xBFprint('hello')\n1/0");
  EXPECT_EQ(result.out, "hello\n");
  EXPECT_EQ(result.end.error, "ZeroDivisionError: division by zero (line 2)");
  EXPECT_THAT(result.err, HasSubstr("    1/0\n"));
}

TEST(Python, ResultsKeepTheirTypes) {
  const RunResult result = run_python("result.update(n=1, t='1', l=['a'], o=None, d={'k': 1.5})");
  EXPECT_EQ(result.end.result,
            (TextMap{{"n", "1"}, {"t", "1"}, {"l", R"(["a"])"}, {"o", "null"}, {"d", R"({"k":1.5})"}}));
  EXPECT_EQ(result.end.result_json, (std::vector<std::string>{"d", "l", "n", "o"}));
}

TEST(Python, InputsAreAvailableByNameOrIdUnchanged) {
  JobFacts facts = make_facts(R"(
from mycojobs import inputs
import json, mycojobs
assert list(inputs) == ['2003', 'build'] and len(inputs) == 2, list(inputs)
assert sum(each['n'] for each in inputs.values()) == 3
assert inputs['build'] is inputs['2002'] is inputs[2002] and inputs['2003']['n'] == 2
assert 'build' in inputs and '2002' in inputs and 2002 in inputs and '2003' in inputs
assert '2001' not in inputs and None not in inputs and inputs.get(2001) is None
assert inputs['build'] == {'n': 1, 'text': '1', 'large': 2 ** 70, 'none': None, 'broken': '[1'}, inputs
assert dict(inputs.items()) == dict(inputs) and inputs.keys() == {'2003', 'build'}
assert not hasattr(mycojobs.job, 'input_names')
try: inputs['x'] = 1
except TypeError: result['fixed'] = True
)");
  const TextMap made{
      {"n", "1"}, {"text", "1"}, {"large", "1180591620717411303424"}, {"none", "null"}, {"broken", "[1"}};
  facts.inputs["build"] = {2002, made, {"n", "large", "none", "broken"}};
  facts.inputs["2003"] = {2003, {{"n", "2"}}, {"n"}};
  EXPECT_EQ(run_python(facts).end.result, (TextMap{{"fixed", "true"}})) << run_python(facts).end.error;
}

TEST(Python, FlowDataIsAvailable) {
  JobFacts facts = make_facts(R"(
import mycojobs
from mycojobs import each, flow
assert flow.inputs == {'region': 'eu', 'days': 7} and flow.signals['go']['who'] == 12, flow
assert each == {'a': 1} and (flow.index, flow.count) == (1, 2)
assert [part['n'] for part in mycojobs.inputs['parts']] == [2, 1] and list(mycojobs.inputs) == ['parts']
assert not hasattr(mycojobs.job, 'flow') and {'each', 'flow'} <= set(dir(mycojobs))
try: flow.inputs['region'] = 'us'
except TypeError: result['fixed'] = True
)");
  facts.job.dependends = {2101, 2102};
  facts.job.unknown = {{"flow_data", R"({"inputs": {"region": "eu", "days": 7}, "signals": {"go": {"who": 12}},
      "each": {"index": 1, "count": 2, "value": {"a": 1}}, "joins": {"parts": [2102, 2101]}})"}};
  facts.inputs["parts[1]"] = {2101, {{"n", "1"}}, {"n"}};
  facts.inputs["parts[0]"] = {2102, {{"n", "2"}}, {"n"}};
  EXPECT_EQ(run_python(facts).end.result, (TextMap{{"fixed", "true"}})) << run_python(facts).end.error;
  EXPECT_EQ(
      run_python("import mycojobs\nresult['none'] = mycojobs.each is None and not mycojobs.flow.inputs").end.result,
      (TextMap{{"none", "true"}}));
}

TEST(Python, TooLargeResultIsNeverASuccess) {
  for (const char* script : {"result['x'] = 'a' * (10 << 20)", "result['x'] = '\\x01' * (1 << 20)",
                             "result.update((str(i), 'v' * 100) for i in range(20000))"}) {
    const RunResult result = run_python(script);
    EXPECT_EQ(result.end.status, JobStatus::error);
    EXPECT_EQ(result.end.detail, "result_too_large");
    EXPECT_THAT(result.end.error, HasSubstr("limit of 1048576 bytes"));
    EXPECT_TRUE(result.end.result.empty());
  }
}

TEST(Python, ResultAtTheLimitIsReturned) {
  JobFacts facts = make_facts("result['key'] = '\\x01' * 997");
  facts.max_result_bytes = 1000;
  EXPECT_EQ(run_python(facts).end.detail, "ok");
  facts.job.script = "result['key'] = '\\x01' * 998";
  EXPECT_EQ(run_python(facts).end.detail, "result_too_large");
}

TEST(Python, ScriptSeesItsJob) {
  JobFacts facts = make_facts(R"(
import mycojobs, os, sys
j = mycojobs.job
print(j.id, j.caller_id, j.context_id, j.name, j.attempt, j.deliveries, j.epoch)
print(j.deadline, j.deadline_unix_ms, j.runner_id)
print(dict(mycojobs.inputs), sys.argv, __name__, mycojobs.cancelled())
)");
  facts.job.name = "nightly";
  facts.job.attempt = 2;
  facts.job.deliveries = 3;
  facts.job.epoch = 4;
  facts.job.runner_id = 20;
  facts.deadline_unix_ms = 1500;
  const RunResult result = run_python(facts);
  EXPECT_EQ(result.out, "2001 12 7 nightly 2 3 4\n1.5 1500 20\n{} ['nightly'] __main__ False\n");
}

TEST(Python, EnvironmentIsOnlyTheJobs) {
  JobFacts facts = make_facts(R"(
import os, ctypes
for name in sorted(os.environ): print(name + '=' + os.environ[name])
print(ctypes.CDLL(None).getenv(b'SHELL'), os.getenv('SHELL'))
)");
  facts.job.env_vars = {{"A", "1"}, {"ÜMLAUT", "ö"}, {"MYCOJOBS_JOB_ID", "9"}, {"EMPTY", ""}, {"LANG", "de"}};
  EXPECT_EQ(run_python(facts).out,
            "A=1\nEMPTY=\nHOME=/job\nLANG=de\nLOGNAME=job\nMYCOJOBS_ARTIFACTS=/job/"
            "artifacts\nMYCOJOBS_ATTEMPT=0\nMYCOJOBS_CALLER_ID=12\nMYCOJOBS_CONTEXT_ID=7\n"
            "MYCOJOBS_DEADLINE_UNIX_MS=0\nMYCOJOBS_DELIVERIES=0\nMYCOJOBS_EPOCH=0\nMYCOJOBS_INPUTS_DIR=/job/"
            "inputs\nMYCOJOBS_JOB_ID=2001\n"
            "MYCOJOBS_JOB_NAME=\nMYCOJOBS_RUNNER_ID=0\nMYCOJOBS_SECRETS=/job/secrets\nPATH=/usr/bin:/"
            "bin\nUSER=job\nÜMLAUT=ö\n0 None\n");
}

TEST(Python, TimeZoneOfTheEnvironmentIsUsed) {
  JobFacts facts = make_facts("import time\nprint(time.tzname[0], time.localtime(0).tm_hour)");
  facts.job.env_vars = {{"TZ", "XYZ-5"}};
  EXPECT_EQ(run_python(facts).out, "XYZ 5\n");
}

TEST(Python, HostSettingsAreIgnored) {
  const RunResult result = run_python(R"(
import sys
print(sys.flags.isolated, sys.flags.no_user_site, sys.flags.utf8_mode, sys.dont_write_bytecode, '' in sys.path)
print(sys.stdout.encoding, sys.stdout.errors, sys.getfilesystemencoding(), sys.executable)
print(sys.stdin.read() == '', sys.stdout.seekable(), sys.stdout.isatty(), sys.getrecursionlimit())
)");
  EXPECT_EQ(result.out, "1 1 1 True False\nutf-8 surrogateescape utf-8 /usr/bin/python3\nTrue False False 1000\n");
}

TEST(Python, TwoJobsOfOneZygoteHaveDifferentRandomNumbers) {
  const char* script =
      "import random, uuid, tempfile, os\n"
      "print(random.random(), random.Random().random(), uuid.uuid4(), os.urandom(8), tempfile.mktemp())";
  const RunResult first = run_python(script);
  const RunResult second = run_python(script);
  std::istringstream a(first.out), b(second.out);
  for (std::string x, y; a >> x && b >> y;) EXPECT_NE(x, y);
}

TEST(Python, JobsDoNotSeeEachOther) {
  run_python(
      "import builtins, sys, json\nbuiltins.leak = 1\nsys.modules['leak'] = 1\njson.leak = 1\nimport "
      "mycojobs\nmycojobs.leak = 1");
  const RunResult result = run_python(
      "import builtins, sys, json, mycojobs\nprint([hasattr(x, 'leak') for x in (builtins, json, mycojobs)], 'leak' in "
      "sys.modules)");
  EXPECT_EQ(result.out, "[False, False, False] False\n");
}

TEST(Python, HostIsOutOfReach) {
  const RunResult result = run_python(R"(
import gc, sys, inspect
print([m for m in sys.modules if 'mycojobs' in m], len(inspect.stack()), sorted(globals()))
try:
    sys._getframe(1)
except ValueError as e:
    print(e)
print([o for o in gc.get_objects() if isinstance(o, dict) and 'claim_id' in o])
)");
  EXPECT_EQ(result.out,
            "['mycojobs'] 1 ['__annotations__', '__builtins__', '__doc__', '__loader__', '__name__', '__package__', "
            "'__spec__', 'gc', 'inspect', 'result', 'sys']\ncall stack is not deep enough\n[]\n");
}

TEST(Python, NonUtf8OutputPassesThrough) {
  const RunResult result = run_python(
      "import sys\nsys.stdout.buffer.write(b'\\xff\\xfe\\n')\nprint('\\udcff', "
      "'é')\nsys.stderr.buffer.write(b'\\x80')");
  EXPECT_EQ(result.out, "\xFF\xFE\n\xFF \xC3\xA9\n");
  EXPECT_EQ(result.err, "\x80");
}

TEST(Python, HugeOutputOnBothStreamsIsComplete) {
  const RunResult result =
      run_python("import sys\nfor i in range(5 * 1024):\n    print('x' * 1023)\n    sys.stderr.write('y' * 1024)\n");
  EXPECT_EQ(result.out.size(), 5U << 20);
  EXPECT_EQ(result.err.size(), 5U << 20);
  EXPECT_EQ(result.end.detail, "ok");
}

TEST(Python, LinesArriveAsTheyArePrinted) {
  // The second line is printed only after the test has read the first and sent SIGTERM.
  const RunResult result = run_python(
      make_facts("import mycojobs, time\nmycojobs.cancelled()\nprint('first')\n"
                 "while not mycojobs.cancelled(): time.sleep(0.005)\nprint('second')\nresult['tidy'] = 'yes'"),
      "first");
  EXPECT_EQ(result.out, "first\nsecond\n");
  EXPECT_EQ(result.end.result, (TextMap{{"tidy", "yes"}}));
}

TEST(Python, ScriptWithoutAHandlerEndsOnTerm) {
  const RunResult result = run_python(make_facts("import time\nprint('up')\nwhile True: time.sleep(1)"), "up");
  EXPECT_EQ(result.end.detail, "signal");
  EXPECT_EQ(result.end.error, "ended by signal 15 (SIGTERM)");
}

TEST(Python, ScriptsOwnHandlerReceivesTerm) {
  const RunResult result =
      run_python(make_facts("import signal, time, sys\nsignal.signal(signal.SIGTERM, lambda *a: sys.exit(7))\n"
                            "print('up')\nwhile True: time.sleep(1)"),
                 "up");
  EXPECT_EQ(result.end.error, "exit code 7");
}

TEST(Python, ProgressBecomesLinesOfTheLog) {
  const RunResult result = run_python(
      "import mycojobs\nmycojobs.progress(0.4, 'half\\nway')\nmycojobs.progress(1)\nmycojobs.progress(text='only "
      "text')\n"
      "mycojobs.progress(0, 'x' * 5000)\nfor bad in (2, -1, float('nan'), 'x'):\n"
      "    try: mycojobs.progress(bad)\n    except ValueError as e: print(e)");
  EXPECT_THAT(result.notes, ElementsAre("progress 40 %: half way", "progress 100 %", "only text",
                                        "progress 0 %: " + std::string(1000, 'x')));
  EXPECT_EQ(result.out,
            "progress: 2 is not from 0 to 1\nprogress: -1 is not from 0 to 1\nprogress: nan is not from 0 to 1\n"
            "could not convert string to float: 'x'\n");
  EXPECT_EQ(result.end.detail, "ok");
}

TEST(Python, FloodOfProgressIsBounded) {
  const RunResult result =
      run_python("import mycojobs\nfor i in range(30000): mycojobs.progress(0.5)\nresult['a'] = 'b'");
  EXPECT_LE(result.notes.size(), 20010U);
  EXPECT_EQ(result.end.result, (TextMap{{"a", "b"}}));
}

TEST(Python, CommonLibrariesWork) {
  const RunResult result = run_python(R"(
import asyncio, concurrent.futures, dataclasses, decimal, hashlib, inspect, json, logging, pathlib, pickle, queue
import re, sqlite3, ssl, statistics, subprocess, tempfile, threading, typing, zlib
async def double(x):
    await asyncio.sleep(0.001)
    return 2 * x
async def all_of_them(): return await asyncio.gather(*(double(i) for i in range(3)))
print(asyncio.run(all_of_them()))
logging.basicConfig(level=logging.INFO, format='%(levelname)s %(message)s')
logging.info('logged')
with concurrent.futures.ThreadPoolExecutor(4) as pool: print(sum(pool.map(lambda x: x * x, range(10))))
@dataclasses.dataclass
class Point:
    x: int
print(pickle.loads(pickle.dumps(Point(3))), hashlib.sha256(b'').hexdigest()[:8])
print(inspect.getsource(double).splitlines()[0])
with tempfile.TemporaryDirectory() as folder: pathlib.Path(folder, 'f').write_text('é')
print(sqlite3.connect(':memory:').execute('select 1').fetchone(), ssl.create_default_context().check_hostname)
print(threading.current_thread().name, threading.get_native_id() == threading.main_thread().native_id)
lock = threading.RLock()
with lock: print(subprocess.run(['/bin/echo', 'child'], capture_output=True, text=True).stdout, end='')
)");
  EXPECT_EQ(result.err, "INFO logged\n");
  EXPECT_EQ(result.out,
            "[0, 2, 4]\n285\nPoint(x=3) e3b0c442\nasync def double(x):\n(1,) True\nMainThread True\nchild\n");
  EXPECT_EQ(result.end.detail, "ok");
}

TEST(Python, MissingModuleIsAnOrdinaryImportError) {
  const RunResult result = run_python("import numpy_that_is_absent");
  EXPECT_EQ(result.end.error, "ModuleNotFoundError: No module named 'numpy_that_is_absent' (line 1)");
}

TEST(Python, LargeScriptRuns) {
  const RunResult result = run_python("x = '''" + std::string(10 << 20, 'a') + "'''\nprint(len(x))");
  EXPECT_EQ(result.out, "10485760\n");
}

TEST(Python, ProbeOfTheRealHostNamesItsVersion) {
  const auto version = PythonExecutor(mj::test::program_path("mycojobs-pyhost")).probe();
  ASSERT_TRUE(version) << version.error().message;
  EXPECT_THAT(*version, ::testing::StartsWith("CPython 3."));
}

TEST(Python, ProbeReportsMissingFiles) {
  const auto absent = PythonExecutor("/nowhere/mycojobs-pyhost").probe();
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, Code::unsupported);
  EXPECT_THAT(absent.error().message, HasSubstr("/nowhere/mycojobs-pyhost"));
  EXPECT_THAT(absent.error().message, HasSubstr("apt install python3"));
  const auto failing = PythonExecutor("/bin/false").probe();
  ASSERT_FALSE(failing);
  EXPECT_THAT(failing.error().message, HasSubstr("/bin/false"));
}

}  // namespace
}  // namespace mycojobs::test
