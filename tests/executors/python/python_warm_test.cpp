// Warm scripts (docs/warm.md) with the real host and the real sandbox: which state a process keeps between runs, which
// it does not keep, and which runs are its last.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "model/submitted_files.h"
#include "python_sandbox.h"
#include "support/process.h"
#include "support/test_settings.h"

namespace mycojobs::test {
namespace {

using ::testing::HasSubstr;

// The script reports its process and the state of its runs. `how` is additional code of main.
constexpr const char* kScript = R"(
import ctypes, mycojobs, os, random, signal, sys, threading, time
token = os.urandom(8).hex()
calls = 0
kept = []
def main(job):
    global calls
    calls += 1
    result['token'] = token
    result['calls'] = str(calls)
    how = mycojobs.inputs['how']['how'] if 'how' in mycojobs.inputs else ''
    exec(how, globals())
)";

// Returns a field of /proc/PID/stat (proc(5)), counted after the name: 0 is the state, 1 the parent.
std::string read_stat_field(pid_t pid, int field) {
  const std::string line = read_file("/proc/" + std::to_string(pid) + "/stat");
  std::istringstream fields(line.substr(line.rfind(')') == std::string::npos ? line.size() : line.rfind(')') + 1));
  std::string field_text;
  for (int i = 0; i <= field; ++i) fields >> field_text;
  return field_text;
}

class WarmPython : public ::testing::Test {
 protected:
  std::unique_ptr<Sandbox> sandbox_ = start_test_sandbox({});
  PythonRunOptions default_options_{.sandbox = sandbox_.get(), .warm = {1000, 60000, "", ""}};

  void SetUp() override {
    run("");
    if (run("").outcome.reused.value_or(0) == 0) GTEST_SKIP() << "this host permits no groups for memory and processes";
  }
  static JobFacts make_warm_facts(const std::string& code, const std::string& script = kScript) {
    static Id next = 1;
    JobFacts facts = make_facts(script);
    facts.job.id = next++;
    facts.inputs["how"] = {7, {{"how", code}}};
    return facts;
  }
  RunResult run(const std::string& code) { return run_python_confined(make_warm_facts(code), default_options_); }
  RunResult run(const std::string& code, const PythonRunOptions& options) {
    return run_python_confined(make_warm_facts(code), options);
  }
  // Returns the number of earlier runs in the same process.
  static std::uint32_t count_earlier_runs(const RunResult& result) { return result.outcome.reused.value_or(9999); }
};

TEST_F(WarmPython, OneProcessServesManyRunsWithTheirOwnFacts) {
  const RunResult first = run("print('run of', job.id if False else mycojobs.job.id)");
  for (int i = 0; i < 5; ++i) {
    JobFacts expected = make_warm_facts(
        "print('this is', mycojobs.job.id, flush=False)\nresult['job'] = str(mycojobs.job.id)\n"
        "result['env'] = os.environ['MYCOJOBS_JOB_ID'] + os.environ.get('A', '-')\n"
        "result['here'] = os.getcwd()\nos.chdir('/tmp')");
    expected.job.env_vars["A"] = std::to_string(i);
    const RunResult result = run_python_confined(expected, default_options_);
    const std::string id = std::to_string(expected.job.id);
    EXPECT_EQ(result.end.error, "") << result.err;
    EXPECT_EQ(result.end.result.at("token"), first.end.result.at("token"));
    EXPECT_EQ(count_earlier_runs(result), count_earlier_runs(first) + 1 + static_cast<std::uint32_t>(i));
    EXPECT_EQ(result.out, "this is " + id + "\n");
    EXPECT_EQ(result.end.result.at("job"), id);
    EXPECT_EQ(result.end.result.at("env"), id + std::to_string(i));
    EXPECT_EQ(result.end.result.at("here"), "/job");
    EXPECT_THAT(result.end.receipt, HasSubstr("\"reused\":" + std::to_string(count_earlier_runs(result))));
    EXPECT_THAT(result.end.receipt, HasSubstr("\"warm\":"));
  }
}

TEST_F(WarmPython, EachRunHasItsOwnArgumentsInputAndFiles) {
  const std::string code =
      "result['args'] = sys.argv[1:]\nresult['line'] = sys.stdin.readline()\n"
      "result['files'] = {n: open('/job/files/' + n).read() for n in os.listdir('/job/files')}"
      " if os.path.isdir('/job/files') else None";
  const auto run_with = [&](std::vector<std::string> args, const SubmittedFiles& files) {
    JobFacts facts = make_warm_facts(code);
    facts.job.args = std::move(args);
    EXPECT_TRUE(set_submitted_files(facts.job, files));
    return run_python_confined(facts, default_options_);
  };
  const RunResult first = run_with({"a", "b"}, {"one\nleft over\n", {{"n", "1"}}});
  const RunResult second = run_with({"c"}, {"two\n", {{"n", "2"}, {"m", "3"}}});
  const RunResult third = run_with({}, {});
  EXPECT_EQ(first.end.error, "") << first.err;
  EXPECT_EQ(count_earlier_runs(third), count_earlier_runs(first) + 2);
  EXPECT_EQ(first.end.result.at("args"), "[\"a\",\"b\"]");
  EXPECT_EQ(first.end.result.at("line"), "one\n");
  EXPECT_EQ(first.end.result.at("files"), "{\"n\":\"1\"}");
  EXPECT_EQ(second.end.result.at("args"), "[\"c\"]");
  EXPECT_EQ(second.end.result.at("line"), "two\n");
  EXPECT_THAT(second.end.result.at("files"), HasSubstr("\"n\":\"2\""));
  EXPECT_EQ(third.end.result.at("args"), "[]");
  EXPECT_EQ(third.end.result.at("line"), "");
  EXPECT_EQ(third.end.result.at("files"), "null");
}

TEST_F(WarmPython, NextRunFindsNoResultsOrFiles) {
  run("result['left'] = 'x'\nopen('/tmp/left', 'w').write('x')\nopen('/dev/shm/left', 'w').write('x')\n"
      "open('/job/left', 'w').write('x')\n(mycojobs.artifacts / 'left').write_text('x')");
  const RunResult next =
      run("result['files'] = str(sum((os.listdir(f) for f in ('/tmp', '/dev/shm', mycojobs.artifacts)), [])"
          " + [n for n in os.listdir('/job') if n == 'left'])");
  EXPECT_GT(count_earlier_runs(next), 0U);
  EXPECT_EQ(next.end.result.count("left"), 0U);
  EXPECT_EQ(next.end.result.at("files"), "[]");
}

TEST_F(WarmPython, UncaughtExceptionIsAnOrdinaryEnd) {
  const RunResult first = run("raise LookupError('not here')");
  EXPECT_THAT(first.end.error, HasSubstr("LookupError: not here"));
  EXPECT_EQ(first.outcome.status, RunStatus::exit);
  const RunResult next = run("");
  EXPECT_EQ(count_earlier_runs(next), count_earlier_runs(first) + 1);
  EXPECT_EQ(next.end.error, "");
}

TEST_F(WarmPython, ChangesOfArgumentsDoNotRemain) {
  const auto run_with = [&](const std::string& change, std::vector<std::string> args) {
    JobFacts facts = make_warm_facts("result['argv'] = list(sys.argv)\n" + change);
    facts.job.args = std::move(args);
    return run_python_confined(facts, default_options_);
  };
  for (const char* const change : {"sys.argv.pop(0)", "sys.argv.clear()", "sys.argv = ['other', 'list']",
                                   "sys.argv += ['more']", "del sys.argv"}) {
    const RunResult first = run_with(change, {"a", "b"});
    EXPECT_EQ(first.end.result.at("argv"), R"(["<script>","a","b"])") << change << first.err;
    EXPECT_EQ(run_with("", {"c"}).end.result.at("argv"), R"(["<script>","c"])") << change;
    run_with(change, {"a", "b"});
    EXPECT_EQ(run_with("", {}).end.result.at("argv"), R"(["<script>"])") << change;
  }
}

TEST_F(WarmPython, ModuleThatKeepsStandardInputReadsNone) {
  const std::string script = R"(
import sys
kept = sys.stdin
loaded = sys.stdin.read()
def main(job):
    return {'loaded': loaded, 'kept': kept.readline(), 'line': sys.stdin.readline()}
)";
  PythonRunOptions options = default_options_;
  options.warm.key = options.warm.family = std::string(64, 'q');
  for (const char* const line : {"one\n", "two\n"}) {
    JobFacts facts = make_warm_facts("", script);
    ASSERT_TRUE(set_submitted_files(facts.job, {std::string(line) + "left over\n", {}}));
    const RunResult result = run_python_confined(facts, options);
    EXPECT_EQ(result.end.result, (TextMap{{"loaded", ""}, {"kept", ""}, {"line", line}})) << result.err;
  }
}

TEST_F(WarmPython, MainReturnsItsResultOrNothing) {
  const std::string script = R"(
import mycojobs
def main(job):
    result['of'] = 'the global'
    return {'dict': {'a': 1}, 'number': 7, 'nothing': None}[mycojobs.inputs['how']['how']]
)";
  PythonRunOptions options = default_options_;
  options.warm.key = options.warm.family = std::string(64, 'm');
  EXPECT_EQ(run_python_confined(make_warm_facts("nothing", script), options).end.result,
            (TextMap{{"of", "the global"}}));
  EXPECT_EQ(run_python_confined(make_warm_facts("dict", script), options).end.result, (TextMap{{"a", "1"}}));
  const RunResult invalid = run_python_confined(make_warm_facts("number", script), options);
  EXPECT_THAT(invalid.end.error, HasSubstr("main(job) has returned an int: return a dict"));
  EXPECT_EQ(count_earlier_runs(run_python_confined(make_warm_facts("nothing", script), options)), 3U);
}

TEST_F(WarmPython, ScriptWithoutMainGetsThatError) {
  PythonRunOptions options = default_options_;
  options.warm.key = options.warm.family = std::string(64, 'n');
  for (int i = 0; i < 2; ++i) {
    const RunResult result = run_python_confined(make_warm_facts("", "result['a'] = '1'"), options);
    EXPECT_THAT(result.end.error,
                HasSubstr("WarmError: the policy has warm, and the script has no function main(job)"));
    EXPECT_EQ(count_earlier_runs(result), 0U);
  }
}

TEST_F(WarmPython, FailedModuleServesNoRun) {
  PythonRunOptions options = default_options_;
  options.warm.key = options.warm.family = std::string(64, 'o');
  for (int i = 0; i < 2; ++i) {
    const RunResult result =
        run_python_confined(make_warm_facts("", "def main(job): pass\nraise ValueError('at once')"), options);
    EXPECT_THAT(result.end.error, HasSubstr("ValueError: at once (line 2)"));
    EXPECT_EQ(count_earlier_runs(result), 0U);
  }
  const RunResult first =
      run_python_confined(make_warm_facts("", "import mycojobs\nx = mycojobs.inputs\ndef main(job): pass"), options);
  EXPECT_THAT(first.end.error, HasSubstr("mycojobs.inputs belongs to one run: read it in main(job)"));
}

struct LastRow {
  const char* name;
  const char* options;
  RunStatus status;
};
void PrintTo(const LastRow& row, std::ostream* out) { *out << row.name; }

class WarmPythonLastRun : public WarmPython, public ::testing::WithParamInterface<LastRow> {};

// The run has the same end as without warm scripts, and the next run has a new process in a new sandbox.
TEST_P(WarmPythonLastRun, IsFollowedByANewProcess) {
  const std::string token = run("").end.result.at("token");
  PythonRunOptions options = default_options_;
  options.wall_ms = GetParam().status == RunStatus::timeout_wall ? 1500 : 30000;
  const RunResult last = run(GetParam().options, options);
  EXPECT_GT(count_earlier_runs(last), 0U) << "otherwise the test proves nothing";
  EXPECT_EQ(to_string(last.outcome.status), to_string(GetParam().status)) << last.outcome.reason << last.err;
  const RunResult next = run("result['kept'] = str(kept)");
  EXPECT_EQ(count_earlier_runs(next), 0U);
  EXPECT_EQ(next.end.error, "");
  EXPECT_NE(next.end.result.at("token"), token);
  EXPECT_EQ(next.end.result.at("calls"), "1");
  EXPECT_EQ(next.end.result.at("kept"), "[]");
  EXPECT_EQ(count_earlier_runs(run("")), 1U);
}

INSTANTIATE_TEST_SUITE_P(
    Ends, WarmPythonLastRun,
    ::testing::Values(
        LastRow{"sys.exit", "sys.exit(0)", RunStatus::ok}, LastRow{"sys.exit 3", "sys.exit(3)", RunStatus::exit},
        LastRow{"os._exit", "os._exit(0)", RunStatus::ok}, LastRow{"signal", "ctypes.string_at(0)", RunStatus::signal},
        LastRow{"kill", "os.kill(os.getpid(), 9)", RunStatus::signal},
        LastRow{"time", "while True: pass", RunStatus::timeout_wall},
        LastRow{"stops itself", "os.kill(os.getpid(), signal.SIGSTOP)", RunStatus::timeout_wall},
        LastRow{"memory", "bytearray(b'x') * (300 << 20)", RunStatus::oom},
        LastRow{"violation", "ctypes.CDLL(None).syscall(101, 0, 0, 0, 0)", RunStatus::violation},
        LastRow{"thread", "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", RunStatus::ok},
        LastRow{"grown", "kept.append(bytearray(b'x') * (150 << 20))", RunStatus::ok},
        LastRow{"many files", "for i in range(300): open(f'/tmp/{i}', 'w')", RunStatus::ok},
        LastRow{"its socket", "os.close(5)", RunStatus::ok},
        LastRow{"another socket", "os.dup2(3, 5)", RunStatus::ok}));

TEST_F(WarmPython, DescriptorsClosedByAScriptAreReopened) {
  // Descriptor 0 is closed last, since later runs of the process do not get it again.
  for (const std::string closed : {"[1]", "[2]", "[1, 2]", "[0, 1, 2]"}) {
    const RunResult first = run("for number in " + closed + ": os.close(number)");
    EXPECT_EQ(first.outcome.status, RunStatus::ok) << closed << ": " << first.end.error;
    const RunResult next = run("print('to stdout')\nprint('to stderr', file=sys.stderr)");
    EXPECT_EQ(count_earlier_runs(next), count_earlier_runs(first) + 1) << closed;
    EXPECT_EQ(next.out, "to stdout\n") << closed;
    EXPECT_EQ(next.err, "to stderr\n") << closed;
    EXPECT_EQ(next.end.error, "") << closed;
  }
}

TEST_F(WarmPython, LeftoverProcessesEndTheProcess) {
  PythonRunOptions options = default_options_;
  options.exec = true;
  options.warm.key = options.warm.family = std::string(64, 'x');
  EXPECT_EQ(count_earlier_runs(run("", options)), 0U);
  EXPECT_EQ(count_earlier_runs(run("import subprocess; subprocess.run(['/bin/true'])", options)), 1U);
  const RunResult with_child = run("subprocess.Popen(['/bin/sleep', '60'])", options);
  EXPECT_EQ(count_earlier_runs(with_child), 2U);
  EXPECT_THAT(with_child.outcome.notes, ::testing::Contains(HasSubstr("not retained: 2 threads and processes")));
  EXPECT_EQ(count_earlier_runs(run("", options)), 0U);
  const RunResult child = run("pid = os.fork()\nif pid: os.waitpid(pid, 0)\nelse: result['who'] = 'child'", options);
  EXPECT_EQ(child.end.result.count("who"), 0U) << "the child has returned a result";
  EXPECT_EQ(count_earlier_runs(run("", options)), 2U);
}

TEST_F(WarmPython, RunsAreCounted) {
  PythonRunOptions options = default_options_;
  options.warm = {3, 60000, std::string(64, 'c'), std::string(64, 'c')};
  std::vector<std::uint32_t> counts;
  for (int i = 0; i < 7; ++i) counts.push_back(count_earlier_runs(run("", options)));
  EXPECT_EQ(counts, (std::vector<std::uint32_t>{0, 1, 2, 0, 1, 2, 0}));
}

TEST_F(WarmPython, IdleProcessEndsAfterItsTime) {
  PythonRunOptions options = default_options_;
  options.warm = {1000, 100, std::string(64, 'i'), std::string(64, 'i')};
  EXPECT_EQ(count_earlier_runs(run("", options)), 0U);
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  EXPECT_EQ(count_earlier_runs(run("", options)), 0U);
  EXPECT_GT(count_earlier_runs(run("")), 1U) << "the process with another key is still idle";
}

TEST_F(WarmPython, AnotherKeyUsesAnotherProcess) {
  const std::string token =
      run("kept.append('mine')\nimport json\njson.mine = 1\nos.environ['MINE'] = '1'").end.result.at("token");
  const std::string query =
      "result['seen'] = str(kept) + str(hasattr(__import__('json'), 'mine')) + str('MINE' in "
      "os.environ) + str(sorted(map(int, os.listdir('/proc/self/fd')))[:5])";
  const auto expect_new_process = [&](const PythonRunOptions& options) {
    const RunResult other = run(query, options);
    EXPECT_EQ(count_earlier_runs(other), 0U);
    EXPECT_NE(other.end.result.at("token"), token);
    EXPECT_EQ(other.end.result.at("seen"), "[]FalseFalse[0, 1, 2, 3, 4]");
  };
  PythonRunOptions key = default_options_, context = default_options_;
  key.warm.key = key.warm.family = std::string(64, 'y');
  expect_new_process(key);
  const RunResult same = run(query);
  EXPECT_EQ(same.end.result.at("token"), token);
  EXPECT_THAT(same.end.result.at("seen"), HasSubstr("['mine']TrueFalse"))
      << "all runs of a key share their state except for the environment";
  // Keys of different contexts are never equal. Even with equal keys, nothing must be shared.
  context.context = 8;
  expect_new_process(context);
}

TEST_F(WarmPython, NewSecretsEndIdleProcessesWithOldOnes) {
  PythonRunOptions before_change = default_options_, after = default_options_;
  before_change.warm.family = after.warm.family = std::string(64, 's');
  before_change.warm.key = std::string(64, '1');
  after.warm.key = std::string(64, '2');
  EXPECT_EQ(count_earlier_runs(run("", before_change)), 0U);
  EXPECT_EQ(count_earlier_runs(run("", before_change)), 1U);
  EXPECT_EQ(count_earlier_runs(run("", after)), 0U);
  EXPECT_EQ(count_earlier_runs(run("", before_change)), 0U) << "the idle process with the old secrets has ended";
}

TEST_F(WarmPython, LongestIdleProcessEndsAboveTheLimit) {
  const auto two = start_test_sandbox({}, 2);
  PythonRunOptions options = default_options_;
  options.sandbox = two.get();
  const auto run_with_key = [&](char key) {
    options.warm.key = options.warm.family = std::string(64, key);
    return count_earlier_runs(run("", options));
  };
  EXPECT_EQ(run_with_key('a'), 0U);
  EXPECT_EQ(run_with_key('b'), 0U);
  EXPECT_EQ(run_with_key('a'), 1U);
  EXPECT_EQ(run_with_key('c'), 0U);  // b is evicted
  EXPECT_EQ(run_with_key('a'), 2U);
  EXPECT_EQ(run_with_key('b'), 0U);  // c is evicted
  EXPECT_EQ(run_with_key('c'), 0U);
  const auto none = start_test_sandbox({}, 0);
  options.sandbox = none.get();
  EXPECT_EQ(run_with_key('a'), 0U);
  EXPECT_EQ(run_with_key('a'), 0U);
}

TEST_F(WarmPython, ProcessThatDiesWithItsZygoteUsesNoPlace) {
  const auto one = start_test_sandbox({}, 1);
  PythonRunOptions options = default_options_;
  options.sandbox = one.get();
  std::atomic<bool> over{false};
  std::thread killer([&] {
    while (!over) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      for (const pid_t pid : descendants(::getpid())) {
        if (read_process_name(pid) == "mj-python") ::kill(pid, SIGKILL);
      }
    }
  });
  EXPECT_EQ(to_string(run("time.sleep(60)", options).outcome.status), to_string(RunStatus::lost));
  over = true;
  killer.join();
  EXPECT_EQ(count_earlier_runs(run("", options)), 0U);
  EXPECT_EQ(count_earlier_runs(run("", options)), 1U);
}

// A script can set a timer that continues its process between runs. The process is ended and does not run again.
TEST_F(WarmPython, ActivityWhileIdleIsEnded) {
  const RunResult last = run(R"(
libc = ctypes.CDLL(None)
class Event(ctypes.Structure):
    _fields_ = [('value', ctypes.c_void_p), ('signo', ctypes.c_int), ('notify', ctypes.c_int), ('pad', ctypes.c_char * 48)]
event, timer = Event(None, signal.SIGCONT, 0, b''), ctypes.c_void_p()
assert libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0
assert libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 0, 0, 150_000_000), None) == 0
)");
  EXPECT_EQ(last.end.error, "") << last.err;
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  EXPECT_EQ(count_earlier_runs(run("")), 0U);
}

// Init is notified of the end only after the next run was assigned. That run has not begun and must be reported as
// lost.
TEST_F(WarmPython, RunOnAProcessThatDiedWhileIdleIsLost) {
  for (int tries = 0; tries < 10; ++tries) {
    const auto all = descendants(::getpid());
    const auto idle_process =
        std::find_if(all.begin(), all.end(), [](pid_t pid) { return read_stat_field(pid, 0) == "T"; });
    ASSERT_NE(idle_process, all.end());
    const pid_t init = static_cast<pid_t>(std::stol(read_stat_field(*idle_process, 1)));
    ::kill(init, SIGSTOP);
    ::kill(*idle_process, SIGKILL);
    EXPECT_TRUE(eventually([&] { return read_stat_field(*idle_process, 0) == "Z"; }));
    std::thread resume([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      ::kill(init, SIGCONT);
    });
    const RunResult result = run("");
    resume.join();
    if (count_earlier_runs(result) == 0) {  // the launcher started the run after it had detected the end
      EXPECT_EQ(to_string(result.outcome.status), to_string(RunStatus::ok));
      continue;
    }
    EXPECT_EQ(to_string(result.outcome.status), to_string(RunStatus::lost)) << result.outcome.reason;
    EXPECT_THAT(result.outcome.reason, HasSubstr("had ended while idle"));
    EXPECT_EQ(count_earlier_runs(run("")), 0U);
    return;
  }
  FAIL() << "no run was assigned to an ended process";
}

TEST_F(WarmPython, CpuTimeAndItsLimitApplyToEachRun) {
  const auto burn = [&](const std::string& seconds) {
    PythonRunOptions options = default_options_;
    options.cpu_ms = 1000;
    return run("end = time.process_time() + " + seconds + "\nwhile time.process_time() < end: pass", options);
  };
  for (int i = 0; i < 5; ++i) {  // together more than the limit
    const RunResult result = burn("0.7");
    EXPECT_EQ(to_string(result.outcome.status), to_string(RunStatus::ok)) << result.outcome.reason;
    EXPECT_GE(result.outcome.usage.user_us + result.outcome.usage.system_us, 650000U);
    EXPECT_LT(result.outcome.usage.user_us + result.outcome.usage.system_us, 1000000U);
  }
  const RunResult quick = run("");
  EXPECT_GT(count_earlier_runs(quick), 5U);
  EXPECT_LT(quick.outcome.usage.user_us + quick.outcome.usage.system_us, 100000U);
  const RunResult over = burn("30");
  EXPECT_EQ(to_string(over.outcome.status), to_string(RunStatus::timeout_cpu)) << over.outcome.reason;
  EXPECT_EQ(count_earlier_runs(run("")), 0U);
}

TEST_F(WarmPython, LastRunHasItsOwnCpuTime) {
  const std::string burn = "end = time.process_time() + 0.3\nwhile time.process_time() < end: pass";
  for (int i = 0; i < 3; ++i) run(burn);
  const RunResult last = run(burn + "\nsys.exit(3)");
  EXPECT_GT(count_earlier_runs(last), 2U);
  EXPECT_LT(last.outcome.usage.user_us + last.outcome.usage.system_us, 600000U);
}

// Earlier CPU usage of the sandbox, also by other jobs, does not count against the next run.
TEST_F(WarmPython, CpuLimitAppliesToEachRunOfAReusedSandbox) {
  PythonRunOptions options{.sandbox = sandbox_.get()};
  options.cpu_ms = 1000;
  const std::string burn = R"(
import time
def burn():
    end = time.process_time() + 0.7
    while time.process_time() < end: pass
burn()
)";
  for (int i = 0; i < 4; ++i) {
    const RunResult result = run_python_confined(make_warm_facts("", burn), options);
    EXPECT_EQ(to_string(result.outcome.status), to_string(RunStatus::ok)) << i << ": " << result.outcome.reason;
    EXPECT_LT(result.outcome.usage.user_us + result.outcome.usage.system_us, 1000000U);
  }
}

// The process itself reports the end of its run. Its timer continues it while its folders are emptied (a large file
// takes long) or between runs. Then it creates a folder and stops again before init can detect that it ran.
//
// A signal that is pending before the stop cancels the stop, so the process stops again. If init sees only the last
// stop, nothing ran after the folders were emptied: the process is reused, and the next run reports its observation.
// The signal has a handler because Linux 6.13 and later stop a timer whose signal was once ignored, as SIGCONT is
// before the stop.
TEST_F(WarmPython, ProcessThatRanWhileIdleIsTheLast) {
  const std::string again = R"(
import resource
libc = ctypes.CDLL(None, use_errno=True)
class Event(ctypes.Structure):
    _fields_ = [('value', ctypes.c_void_p), ('signo', ctypes.c_int), ('notify', ctypes.c_int), ('pad', ctypes.c_char * 48)]
page = next(int(each.split('-')[0], 16) for each in open('/proc/self/maps') if ' rw-s ' in each and '/dev/zero' in each)
with open('/job/large', 'wb') as file: file.write(b'x' * LARGE)
signal.signal(signal.SIGCONT, lambda *_: None)
event, timer, pause = Event(None, signal.SIGCONT, 0, b''), ctypes.c_void_p(), NANOSECONDS
assert libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0
assert libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, pause, 0, pause), None) == 0
ctypes.c_uint64.from_address(page).value = calls << 8
me, switches = os.getpid(), lambda: resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
before = switches()
while switches() == before: os.kill(me, signal.SIGSTOP)
assert libc.timer_settime(timer, 0, (ctypes.c_long * 4)(), None) == 0
os.mkdir('/tmp/left')
os.kill(me, signal.SIGSTOP)
os._exit(7 if os.path.exists('/tmp/left') else 8)
)";
  for (const auto& [large, ns] : {std::pair("50_000_000", "1_000_000"), {"1", "150_000_000"}, {"1", "1_000_000"}}) {
    for (int i = 0; i < 3; ++i) {
      std::string options = again;
      options.replace(options.find("LARGE"), 5, large);
      options.replace(options.find("NANOSECONDS"), 11, ns);
      EXPECT_EQ(run(options).end.error, "the script ended without returning its result");
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
      const RunResult next = run("result['left'] = str(os.path.exists('/tmp/left'))");
      if (count_earlier_runs(next) == 0) {
        EXPECT_EQ(next.end.result.at("left"), "False");
      } else {
        EXPECT_EQ(next.outcome.reason, "exit code 8") << large << ' ' << ns;
      }
    }
  }
}

TEST_F(WarmPython, TenThousandRunsLeaveNothing) {
  const std::string query =
      "result['rss'] = open('/proc/self/statm').read().split()[1]\n"
      "result['fds'] = str(len(os.listdir('/proc/self/fd')))";
  PythonRunOptions options = default_options_;
  const auto runs = static_cast<std::uint32_t>(read_setting("MYCOJOBS_LEAK_RUNS", 10000));
  options.warm = {runs + 1000, 60000, std::string(64, 'l'), std::string(64, 'l')};
  RunResult first;
  for (int i = 0; i < 500; ++i) first = run(query, options);
  for (std::uint32_t i = 0; i < runs; ++i) {
    const RunResult result =
        run(i % 10 == 0 ? "raise ValueError(1)" : "print('x')\nopen('/tmp/a', 'w').write('b')", options);
    ASSERT_EQ(count_earlier_runs(result), 500U + i) << result.outcome.reason;
  }
  const RunResult last = run(query, options);
  EXPECT_EQ(count_earlier_runs(last), 500U + runs);
  EXPECT_EQ(last.end.result.at("fds"), first.end.result.at("fds"));
  EXPECT_LT(std::stol(last.end.result.at("rss")) - std::stol(first.end.result.at("rss")), 512) << "pages";
}

}  // namespace
}  // namespace mycojobs::test
