// The process of the engine: its privileges, its death, its invalid answers, and concurrent use.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "sandbox/landlock.h"
#include "sandbox/privilege_drop.h"
#include "support/build_paths.h"
#include "support/process.h"
#include "workflow/engine_fixture.h"

namespace mycojobs::workflow {
namespace {

namespace fs = std::filesystem;

std::map<std::string, std::string> read_status(pid_t pid) {
  std::map<std::string, std::string> out;
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    const auto colon = line.find(":\t");
    if (colon != line.npos) out[line.substr(0, colon)] = line.substr(colon + 2);
  }
  return out;
}

TEST(WorkflowProcess, HasNoCapabilities) {
  const auto process = EngineProcess::start(options().program, 50'000'000, 64U << 20, 10000).value();
  auto status = read_status(process->pid());
  EXPECT_EQ(status["Seccomp"], "2");
  EXPECT_EQ(status["NoNewPrivs"], "1");
  for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"})
    EXPECT_EQ(status[set], "0000000000000000") << set;
  EXPECT_EQ(status["Threads"], "1");
}

TEST(WorkflowProcess, IsUserNobodyWithOneSocket) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can inspect the process";
  const auto process = EngineProcess::start(options().program, 50'000'000, 64U << 20, 10000).value();
  auto status = read_status(process->pid());
  EXPECT_EQ(status["Uid"], "65534\t65534\t65534\t65534");
  EXPECT_EQ(status["Gid"], "65534\t65534\t65534\t65534");
  const std::string folder = "/proc/" + std::to_string(process->pid());
  EXPECT_EQ(test::read_file(folder + "/environ"), "");
  std::size_t descriptors = 0;
  for (const auto& each : fs::directory_iterator(folder + "/fd")) {
    const std::string target = fs::read_symlink(each.path()).string();
    EXPECT_TRUE(target == "/dev/null" || target.starts_with("socket:")) << target;
    ++descriptors;
  }
  EXPECT_EQ(descriptors, 4U);
  EXPECT_NE(fs::read_symlink(folder + "/ns/net"), fs::read_symlink("/proc/self/ns/net"));
}

// Returns the wait status of a child that may make only these calls and then runs `deed`.
int run_in_child(void (*deed)()) {
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr const char* kCalls[] = {"exit_group", "mmap", "munmap", "write"};
    if (!sandbox::forbid_ptrace_and_new_privileges() || !sandbox::allow_only_calls(kCalls)) ::_exit(99);
    deed();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void* map(int how) { return ::mmap(nullptr, 4096, how, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }

TEST(WorkflowFilter, KillsUnlistedCalls) {
  EXPECT_EQ(run_in_child([] {}), 0);
  EXPECT_EQ(run_in_child([] { (void)map(PROT_READ); }), 0);
  EXPECT_EQ(run_in_child([] { (void)map(PROT_READ | PROT_EXEC); }), 128 + SIGSYS);
  EXPECT_EQ(run_in_child([] { (void)::socket(AF_INET, SOCK_STREAM, 0); }), 128 + SIGSYS);
  EXPECT_EQ(run_in_child([] { (void)!::open("/etc/passwd", O_RDONLY); }), 128 + SIGSYS);
  EXPECT_EQ(run_in_child([] { (void)::kill(1, 0); }), 128 + SIGSYS);
}

TEST(WorkflowFilter, LandlockPreventsOpeningFiles) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (!sandbox::forbid_ptrace_and_new_privileges() || !sandbox::forbid_file_access()) ::_exit(99);
    ::_exit(::open("/etc/passwd", O_RDONLY) < 0 ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), sandbox::landlock_abi() > 0 ? 1 : 0);
}

// In the coordinator's systemd unit, root has no capabilities.
TEST(WorkflowProcess, StartsUnprivilegedWithoutNamespaces) {
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr const char* kRefused[] = {"unshare", "setns"};
    if (!sandbox::empty_bounding_set() || !sandbox::drop_capabilities() ||
        !sandbox::forbid_ptrace_and_new_privileges() || !sandbox::refuse_calls(kRefused))
      ::_exit(99);
    const auto process = EngineProcess::start(options().program, 50'000'000, 64U << 20, 10000);
    if (!process) std::fputs((process.error().message + "\n").c_str(), stderr);
    ::_exit(process ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// The unit's system call filter kills, and the filter group of Debian 12 lacks these calls.
TEST(WorkflowProcess, UnitAllowsDroppingCapabilities) {
  const std::string unit = test::read_file(mj::test::source_path("systemd/system/mycojobs-coordinator.service.in"));
  const auto at = unit.find("\nSystemCallFilter=");
  ASSERT_NE(at, unit.npos);
  const std::string line = unit.substr(at + 1, unit.find('\n', at + 1) - at - 1) + ' ';
  for (const char* call : {"seccomp", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"})
    EXPECT_NE(line.find(" " + std::string(call) + ' '), line.npos) << call << " is not in " << line;
}

TEST(WorkflowProcess, IsIdentifiedByTheInputsOfItsAnswers) {
  WorkflowEngine engine(options());
  EXPECT_TRUE(engine.name().value().starts_with("lua-5.4."));
}

TEST(WorkflowProcess, TenMebibyteStateRoundTrips) {
  EngineOptions one = options();
  one.processes = 1;
  WorkflowEngine engine(one);
  const WorkflowProgram program = workflow::program(
      "function step(s) if not s then return {n = 0, bulk = bytes(('x'):rep(10 * 2^20 - 14))} end "
      "return {n = s.n + 1, bulk = s.bulk}, nil, nil, ('y'):rep(2^20 - 100) end");
  StepRequest asked = request();
  for (int n = 0; n < 3; ++n) {
    const auto answer = engine.step(program, asked);
    ASSERT_TRUE(answer) << answer.error().message;
    asked.state = get_state(answer);
    ASSERT_TRUE(asked.state) << text(*answer);
    EXPECT_GT(asked.state->size(), kMaxStateBytes - 10);
    EXPECT_LE(asked.state->size(), kMaxStateBytes);
    EXPECT_EQ(value(*asked.state)["n"], n);
  }
  EXPECT_EQ(engine.started(), 1U);
}

TEST(WorkflowProcess, KilledDuringAStepIsReplaced) {
  EngineOptions one = options();
  one.processes = 1;
  one.instructions = 20'000'000;
  WorkflowEngine engine(one);
  const WorkflowProgram slow = program("function step() for i = 1, 3000000 do end return {1} end");
  std::atomic<bool> done = false;
  // Repeatedly kills every child that is an engine process.
  std::thread killer([&] {
    for (int i = 0; i < 20 && !done; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(15));
      std::ifstream children("/proc/self/task/" + std::to_string(::getpid()) + "/children");
      for (pid_t pid = 0; children >> pid;) {
        if (read_status(pid)["Name"].starts_with("mycojobs-workfl")) ::kill(pid, SIGKILL);
      }
    }
  });
  int worked = 0;
  for (int i = 0; i < 40; ++i) {
    const auto answer = engine.step(slow, request());
    if (answer) {
      EXPECT_EQ(text(*answer), "[1]");
      ++worked;
    } else {
      EXPECT_EQ(answer.error().code, Code::unavailable) << answer.error().message;
    }
  }
  done = true;
  killer.join();
  EXPECT_GT(engine.started(), 1U);
  EXPECT_GT(worked, 0);
  EXPECT_EQ(text(engine.step(slow, request()).value()), "[1]");
}

TEST(WorkflowProcess, ProcessDiesBetweenTwoSteps) {
  auto process = EngineProcess::start(options().program, 50'000'000, 64U << 20, 10000).value();
  ::kill(process->pid(), SIGKILL);
  const auto answer = process->step(program("function step() end"), encode(request()).value(), StepTimeLimits());
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().message, "it died: signal SIGKILL");
}

// The host reads requests with a reader of its own (executors/lua/workflowhost/run_step.cpp).
TEST(WorkflowProcess, MalformedRequestEndsTheProcess) {
  const nlohmann::json bytes = nlohmann::json::binary({1});
  const nlohmann::json good{
      {"version", 1}, {"state", nullptr}, {"ctx", nullptr}, {"event", {{"schema", "a/E@1"}, {"value", bytes}}}};
  const auto send_changed = [&](const char* pointer, const nlohmann::json& changed_value) {
    nlohmann::json changed = good;
    changed[nlohmann::json::json_pointer(pointer)] = changed_value;
    auto process = EngineProcess::start(options().program, 50'000'000, 64U << 20, 10000).value();
    const auto answer = process->step(program("function step() end"), cbor(changed), StepTimeLimits());
    return answer ? text(*answer) : answer.error().message;
  };
  EXPECT_EQ(send_changed("/version", 1), "gone");
  for (const auto& [pointer, changed_value] : std::map<std::string, nlohmann::json>{
           {"/version", 2}, {"/state", "text"}, {"/event/value", 1}, {"/event/more", 1}, {"/extra", 1}, {"", 1}})
    EXPECT_EQ(send_changed(pointer.c_str(), changed_value), "it ended with exit code 71") << pointer;
}

struct Lie {
  const char* how;
  Code code;
  const char* says;
};
TEST(WorkflowProcess, FalseAnswersAreErrors) {
  const Lie rows[] = {
      {"exits", Code::unavailable, "it ended with exit code 3"},
      {"refuses", Code::unsupported, "it cannot be confined here: cannot drop rights: seccomp_load: EINVAL; remedy: "},
      {"nonsense", Code::unavailable, "it spoke nonsense"},
      {"wordy", Code::unavailable, "it did not greet"},
      {"silent", Code::unavailable, "it did not answer within"},
      {"early", Code::unavailable, "it sent data before a request"},
      {"dies", Code::unavailable, "it ended with exit code 9"},
      {"closes", Code::unavailable, "it closed its socket"},
      {"other_call", Code::unavailable, "it spoke nonsense"},
      {"other_kind", Code::unavailable, "it spoke nonsense"},
      {"never_knows", Code::unavailable, "it spoke nonsense"},
      {"no_cbor", Code::unavailable, "CBOR, byte"},
      {"no_map", Code::unavailable, "answer: it is not a map"},
      {"long_form", Code::unavailable, "a number in more bytes than it needs"},
      {"bad_state", Code::unavailable, "answer: state: CBOR, byte"},
      {"long_state", Code::unavailable, "answer: the step gave 10485761 bytes of state; at most 10485760"},
      {"long_rest", Code::unavailable, " bytes beside its state; at most 1048576"},
      {"more_fields", Code::unavailable, "answer: z is an unknown field"},
      {"bad_kind", Code::unavailable, "answer: error.kind is not a known kind of failure"},
      {"half", Code::unavailable, "it ended with exit code 0"},
      {"huge", Code::unavailable, "it spoke nonsense"},
  };
  const test::TempDir folder;
  EngineOptions bad;
  bad.start_ms = 1000;
  for (const Lie& row : rows) {
    bad.program = folder / ("bad-" + std::string(row.how));
    fs::create_symlink(mj::test::program_path("bad_workflowhost"), bad.program);
    WorkflowEngine engine(bad);
    const auto answer = engine.step(program("function step() end"), request());
    ASSERT_FALSE(answer) << row.how;
    EXPECT_EQ(answer.error().code, row.code) << row.how << ": " << answer.error().message;
    EXPECT_NE(answer.error().message.find(row.says), std::string::npos) << row.how << ": " << answer.error().message;
  }
  bad.program = folder / "bad-fine";  // control case: the same program without a fault
  fs::create_symlink(mj::test::program_path("bad_workflowhost"), bad.program);
  EXPECT_EQ(ran("", request(), bad), "gone");
  bad.program = folder / "bad-hangs";
  fs::create_symlink(mj::test::program_path("bad_workflowhost"), bad.program);
  bad.time.wall_ms = 50;
  EXPECT_EQ(WorkflowEngine(bad).step(program(""), request()).error().message,
            "workflow engine: it did not answer within 50 ms, and was restarted");
  bad.program = folder / "none";
  EXPECT_NE(ran("", request(), bad).find("remedy: install mycojobs"), std::string::npos);
}

TEST(WorkflowProcess, ThreadsShareAProcess) {
  EngineOptions two = options();
  two.processes = 2;
  WorkflowEngine engine(two);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      // Two contexts, whose programs never share a process.
      const WorkflowProgram own =
          WorkflowProgram::make(static_cast<std::uint64_t>(t % 2 + 1), "a.lua", "step",
                                "function step(s) return {n = s.n + " + std::to_string(t) + "} end")
              .value();
      for (int i = 0; i < 300; ++i) {
        StepRequest asked = request();
        asked.state = cbor({{"n", i}});
        const auto state = get_state(engine.step(own, asked));
        if (!state || value(*state)["n"] != i + t) ++wrong;
      }
    });
  }
  for (auto& each : threads) each.join();
  EXPECT_EQ(wrong, 0);
}

TEST(WorkflowProcess, ContextsDoNotShareAProcess) {
  EngineOptions two = options();
  two.processes = 2;
  WorkflowEngine engine(two);
  for (const std::uint64_t context : {1U, 2U, 1U, 2U}) {
    const WorkflowProgram own =
        WorkflowProgram::make(context, "a.lua", "step", "function step() return {} end").value();
    EXPECT_TRUE(engine.step(own, request()));
  }
  EXPECT_EQ(engine.started(), 2U);
  EXPECT_TRUE(
      engine.step(WorkflowProgram::make(3, "a.lua", "step", "function step() return {} end").value(), request()));
  EXPECT_EQ(engine.started(), 3U) << "the third process replaced the least recently used process";
}

TEST(WorkflowProcess, OwnersAndLimitsDoNotShareAProcess) {
  EngineOptions four = options();
  four.processes = 4;
  WorkflowEngine engine(four);
  const WorkflowProgram own = program("function step() return {} end");
  const auto ran_as = [&](std::uint64_t owner, std::uint64_t instructions) {
    EXPECT_TRUE(engine.step(own, request(), {1, owner, instructions, 64U << 20, kStepCounting}));
    return engine.started();
  };
  EXPECT_EQ(ran_as(1, 1'000'000), 1U);
  EXPECT_EQ(ran_as(2, 1'000'000), 2U);
  EXPECT_EQ(ran_as(1, 1'000'000), 2U);
  // An owner with many kinds of processes replaces its own processes.
  for (std::uint64_t i = 1; i <= 8; ++i) ran_as(1, 1'000'000 + i);
  EXPECT_EQ(ran_as(2, 1'000'000), 10U);
}

}  // namespace
}  // namespace mycojobs::workflow
