#include "executors/job_end_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "model/policy_json.h"

namespace mycojobs {
namespace {

using nlohmann::json;

const EndContext kContext{"job:12:2001", "python", 5, 1000};

ScriptAnswer make_complete_answer() {
  ScriptAnswer answer;
  answer.is_complete = true;
  answer.result = {{"a", "b"}};
  return answer;
}

TEST(OutcomeToEnd, EveryStatusHasItsText) {
  struct Row {
    RunStatus status;
    const char* detail;
    const char* error;
  };
  const Row rows[] = {{RunStatus::ok, "ok", ""},
                      {RunStatus::exit, "exit", "exit code 3"},
                      {RunStatus::signal, "signal", "ended by signal 11 (SIGSEGV)"},
                      {RunStatus::timeout_wall, "timeout", "over its time limit of 5 s: killed"},
                      {RunStatus::timeout_cpu, "timeout_cpu", "over its limit of CPU time: killed"},
                      {RunStatus::oom, "oom", "over its memory limit: killed"},
                      {RunStatus::output_limit, "output_limit", "over its output limit: killed"},
                      {RunStatus::file_limit, "file_limit", "over its file size limit: killed"},
                      {RunStatus::pids_limit, "pids_limit", "over its limit of processes and threads: killed"},
                      {RunStatus::violation, "violation", "denied: a system call that is never allowed: job killed"},
                      {RunStatus::cancelled, "cancelled", "cancelled"},
                      {RunStatus::lost, "lost", "the sandbox ended before the job"},
                      {RunStatus::unkillable, "unkillable", "the job does not end on SIGKILL"},
                      {RunStatus::setup_error, "setup_error", "the sandbox could not be built"}};
  for (const Row& row : rows) {
    Outcome outcome;
    outcome.status = row.status;
    outcome.exit_code = row.status == RunStatus::exit ? 3 : 0;
    outcome.signal = 11;
    const JobEnd end = build_job_end(kContext, outcome, make_complete_answer());
    EXPECT_EQ(end.detail, row.detail);
    EXPECT_EQ(end.error, row.error);
    EXPECT_EQ(end.status, row.status == RunStatus::ok ? JobStatus::finished : JobStatus::error);
    EXPECT_EQ(end.result.empty(), row.status != RunStatus::ok);
    EXPECT_EQ(end.error_info.empty(), row.status == RunStatus::ok);
    EXPECT_EQ(json::parse(end.receipt)["status"], row.detail);
  }
}

TEST(OutcomeToEnd, ReceiptContainsTheGrants) {
  EndContext context = kContext;
  Policy policy;
  policy.network = Network::allow_list;
  policy.net_allow = {"a.example:443"};
  context.grant_json = std::make_shared<const std::string>(format_grant_members(policy, {"memory"}));
  const json receipt = json::parse(build_job_end(context, Outcome{}, make_complete_answer()).receipt);
  EXPECT_EQ(receipt.at("granted").at("memory"), 256U << 20U);
  EXPECT_EQ(receipt.at("granted").at("net"), json({"a.example:443"}));
  EXPECT_EQ(receipt.at("lowered"), json({"memory"}));
  for (const char* absent : {"exec", "fs.read", "cpu", "wall", "secrets", "warm.runs", "warm.idle"})
    EXPECT_FALSE(receipt.at("granted").contains(absent)) << absent;
  EXPECT_TRUE(receipt.contains("layers"));
  EXPECT_FALSE(json::parse(build_job_end(kContext, Outcome{}, make_complete_answer()).receipt).contains("granted"));
}

TEST(OutcomeToEnd, SandboxReasonIsUsedIfPresent) {
  Outcome outcome;
  outcome.status = RunStatus::oom;
  outcome.reason = "killed by the kernel:\n256 MiB";
  EXPECT_EQ(build_job_end(kContext, outcome, {}).error, "killed by the kernel: 256 MiB");
}

TEST(OutcomeToEnd, ViolationNamesCallAndRemedy) {
  Outcome outcome;
  outcome.status = RunStatus::violation;
  outcome.violation = Violation{"keyctl", {0x11, 2, 3, 4, 5, 6}, 7, "pyth\non3"};
  const JobEnd end = build_job_end(kContext, outcome, {});
  EXPECT_EQ(
      end.error,
      "denied: keyctl(0x11, …) by pid 7 (pyth on3): job killed; profile python; to allow: syscalls.add = [\"keyctl\"]");
  EXPECT_EQ(json::parse(end.error_info)["violation"]["args"], json({0x11, 2, 3, 4, 5, 6}));
  EXPECT_EQ(json::parse(end.receipt)["violation"]["syscall"], "keyctl");
  // Regression test: the suggested grant was itself refused.
  outcome.violation->syscall = "bpf";
  EXPECT_EQ(build_job_end(kContext, outcome, {}).error,
            "denied: bpf(0x11, …) by pid 7 (pyth on3): job killed; profile python; never granted: it allows an escape "
            "from any sandbox");
}

TEST(OutcomeToEnd, SetupErrorNamesStepCauseAndRemedy) {
  Outcome outcome;
  outcome.status = RunStatus::setup_error;
  outcome.setup_error = SetupError{"uid_map", 1, "set kernel.apparmor_restrict_unprivileged_userns = 0"};
  const JobEnd end = build_job_end(kContext, outcome, {});
  EXPECT_EQ(end.error,
            "the sandbox could not be built: uid_map: EPERM (Operation not permitted); set "
            "kernel.apparmor_restrict_unprivileged_userns = 0");
  EXPECT_EQ(json::parse(end.error_info)["setup"]["step"], "uid_map");
}

TEST(OutcomeToEnd, SuccessNeedsTheHostsResult) {
  Outcome outcome;
  outcome.status = RunStatus::ok;
  ScriptAnswer incomplete = make_complete_answer();
  incomplete.is_complete = false;
  EXPECT_EQ(build_job_end(kContext, outcome, incomplete).error, "the script ended without returning its result");
  ScriptAnswer large = make_complete_answer();
  large.result_problem = "the result has 2000 bytes";
  EXPECT_EQ(build_job_end(kContext, outcome, large).detail, "result_too_large");
  EXPECT_EQ(build_job_end(kContext, outcome, large).error,
            "the result has 2000 bytes: over the limit of 1000 bytes for keys and values together");
  ScriptAnswer invalid = make_complete_answer();
  invalid.problem = "a second result";
  EXPECT_EQ(build_job_end(kContext, outcome, invalid).status, JobStatus::error);
  ScriptAnswer failed = make_complete_answer();
  failed.error = ScriptError{"ValueError", "no", "", 4, {}};
  EXPECT_EQ(build_job_end(kContext, outcome, failed).error, "ValueError: no (line 4)");
}

TEST(OutcomeToEnd, RetryHintOfAFailureIsForwarded) {
  Outcome outcome;
  outcome.status = RunStatus::exit;
  ScriptAnswer answer = make_complete_answer();
  answer.error = ScriptError{"E", "", "", 0, {}, true, {}};
  EXPECT_TRUE(build_job_end(kContext, outcome, answer).retry_forbidden);
  answer.error = ScriptError{"E", "", "", 0, {}, false, 5000};
  EXPECT_EQ(build_job_end(kContext, outcome, answer).retry_after_ms, 5000U);
  EXPECT_FALSE(build_job_end(kContext, outcome, answer).retry_forbidden);
  EXPECT_FALSE(build_job_end(kContext, outcome, make_complete_answer()).retry_after_ms);
  // The script had failed before its time limit.
  outcome.status = RunStatus::timeout_wall;
  EXPECT_EQ(build_job_end(kContext, outcome, answer).retry_after_ms, 5000U);
}

TEST(OutcomeToEnd, UsageLayersAndReceiptAreComplete) {
  Outcome outcome;
  outcome.status = RunStatus::ok;
  outcome.usage = {10, 20, 30, 40, 5, 60, 70};
  outcome.layers = {"userns", "landlock:7"};
  outcome.stragglers = 2;
  outcome.setup = {{"fork", 12}, {"confine", 34}};
  const JobEnd end = build_job_end(kContext, outcome, make_complete_answer());
  EXPECT_EQ(json::parse(end.usage), json::parse(R"({"wall_us":10,"user_us":20,"system_us":30,"memory_peak_bytes":40,
            "pids_peak":5,"stdout_bytes":60,"stderr_bytes":70})"));
  EXPECT_EQ(end.layers, "userns landlock:7");
  EXPECT_EQ(json::parse(end.receipt), json::parse(R"({"job":"job:12:2001","status":"ok","wall_us":10,"cpu_us":50,
            "memory_peak_bytes":40,"layers":["userns","landlock:7"],"stragglers":2,
            "setup_us":{"fork":12,"confine":34}})"));
  outcome.reused = 7;
  EXPECT_EQ(json::parse(build_job_end(kContext, outcome, make_complete_answer()).receipt)["reused"], 7);
}

// The writer does not build a JSON tree, but its output must equal that of a JSON tree.
TEST(OutcomeToEnd, HostileTextsAreWrittenLikeTheJsonLibrary) {
  const std::string texts[] = {"",   "\"",   "\\",       "a\nb",      "\x01\x7f",
                               "é😀", "\xff", "\xe2\x82", "{\"a\":1}", std::string(1, '\0')};
  std::mt19937 random(22);
  const auto text = [&] { return texts[random() % std::size(texts)]; };
  for (int round = 0; round < 1000; ++round) {
    EndContext context = kContext;
    context.job = "job:12:" + text(), context.intent = text();
    Outcome outcome;
    outcome.status = static_cast<RunStatus>(round % 14);
    outcome.exit_code = round % 3 - 1, outcome.signal = round % 40;
    if (round % 2 == 0) outcome.violation = Violation{text(), {0, UINT64_MAX, 2, 3, 4, 5}, -1, text()};
    if (round % 3 == 0) outcome.setup_error = SetupError{text(), round, text()};
    if (round % 5 == 0) outcome.reused = round;
    outcome.layers = {text(), "userns", text()};
    outcome.setup = {{"z" + text(), 1}, {"a" + text(), 2}, {text(), 3}, {"a", 4}, {"a", 5}};
    ScriptAnswer answer = make_complete_answer();
    answer.problem = text();
    if (round % 7 != 0)
      answer.error = ScriptError{text(), text(), text(), static_cast<std::uint32_t>(round % 4), {}, false, {}, text()};
    const JobEnd end = build_job_end(context, outcome, answer);
    for (const std::string& written : {end.usage, end.receipt, end.error_info}) {
      if (!written.empty()) {
        ASSERT_EQ(written, json::parse(written).dump());
      }
    }
    EXPECT_EQ(json::parse(end.receipt).at("setup_us").at("a"), 5);
  }
}

// Exact bytes, because receipts are signed and compared as text.
TEST(OutcomeToEnd, ReceiptHasTheseBytes) {
  EndContext context = kContext;
  context.intent = "i", context.grant_json = std::make_shared<const std::string>(R"("granted":{"memory":1})");
  Outcome outcome;
  outcome.status = RunStatus::violation, outcome.usage = {10, 20, 30, 40, 5, 60, 70},
  outcome.layers = {"userns", "landlock:7"};
  outcome.violation = Violation{"keyctl", {0x11, 2, 3, 4, 5, 6}, 7, "py"}, outcome.reused = 0;
  outcome.setup = {{"fork", 12}, {"confine", 34}};
  const JobEnd end = build_job_end(context, outcome, {});
  EXPECT_EQ(
      end.usage,
      R"({"memory_peak_bytes":40,"pids_peak":5,"stderr_bytes":70,"stdout_bytes":60,"system_us":30,"user_us":20,"wall_us":10})");
  EXPECT_EQ(
      end.receipt,
      R"({"cpu_us":50,"intent":"i","job":"job:12:2001","layers":["userns","landlock:7"],"memory_peak_bytes":40,)"
      R"("reused":0,"setup_us":{"confine":34,"fork":12},"status":"violation","stragglers":0,)"
      R"("violation":{"args":[17,2,3,4,5,6],"comm":"py","pid":7,"syscall":"keyctl"},"wall_us":10,"granted":{"memory":1}})");
  EXPECT_EQ(end.error_info, R"({"violation":{"args":[17,2,3,4,5,6],"comm":"py","pid":7,"syscall":"keyctl"}})");
}

TEST(OutcomeToEnd, ErrorIsOneLineOfText) {
  Outcome outcome;
  outcome.status = RunStatus::exit;
  outcome.exit_code = 1;
  ScriptAnswer answer;
  answer.error = ScriptError{"E", std::string("a\n\tb\x1b") + "\xff" + std::string(5000, 'x'), "", 0, {}};
  const std::string line = build_job_end(kContext, outcome, answer).error;
  EXPECT_EQ(line.substr(0, 11), "E: a b \xEF\xBF\xBDx");
  EXPECT_LT(line.size(), 1010U);
  EXPECT_TRUE(line.ends_with("…"));
  answer.error = ScriptError{"E", std::string(3000, ' ') + "end", "", 4, {}};
  EXPECT_EQ(build_job_end(kContext, outcome, answer).error, "E: end (line 4)")
      << "blanks do not count towards the limit";
}

}  // namespace
}  // namespace mycojobs
