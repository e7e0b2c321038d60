// The program on a terminal: Ctrl-C, which the kernel sends to the whole foreground process group, and the displayed
// output.
#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>

#include "e2e/client.h"
#include "e2e/pty.h"
#include "text/terminal_text.h"

namespace mycojobs::test {
namespace {

constexpr const char* kIgnoreTerm =
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)";

std::size_t measure_width(const std::string& screen) {
  std::size_t max_columns = 0;
  for (std::size_t line_begin = 0; line_begin < screen.size();) {
    const std::size_t end = std::min(screen.find('\n', line_begin), screen.size());
    max_columns = std::max(max_columns, count_columns(std::string_view(screen).substr(
                                            line_begin, end - line_begin - (screen[end - 1] == '\r' ? 1 : 0))));
    line_begin = end + 1;
  }
  return max_columns;
}

class Terminal : public ::testing::Test {
 protected:
  std::vector<std::string> make_argv(std::vector<std::string> words) const {
    words.insert(words.begin(), program_path());
    words.insert(words.end(), {"--state-dir", folder_ / "state"});
    return words;
  }
  nlohmann::json show_job(const std::string& id) const {
    const ProcessResult shown = run(folder_, make_argv({"job", "show", id, "--json"}));
    const auto parsed = nlohmann::json::parse(shown.out, nullptr, false);
    return parsed.is_object() ? parsed : nlohmann::json{{"error", shown.err}};
  }
  // A program that loses its Redis would print one of these words.
  static void expect_no_connection_errors(const std::string& screen) {
    for (const char* word : {"trying again", "store:", "redis", "Redis", "unavailable", "EPIPE", "Connection"})
      EXPECT_EQ(screen.find(word), std::string::npos) << word << " in:\n" << screen;
  }
  // Disables colours.
  const std::vector<std::string> plain_{"NO_COLOR=1", "LC_ALL=C.UTF-8"};
  TempDir folder_;
};

TEST_F(Terminal, CtrlCCancelsTheJobWithoutErrors) {
  Pty run(make_argv({"run", folder_.write("long.py", kSleepScript)}), 80, plain_);
  ASSERT_TRUE(run.wait_for_text("up")) << run.read_screen();
  run.send_keys(kCtrlC);
  EXPECT_TRUE(run.wait_for_text("cancelling job:1:1; press Ctrl-C again to exit while it runs")) << run.read_screen();
  EXPECT_EQ(run.wait(), 130) << run.read_screen();
  EXPECT_NE(run.read_screen().find("error cancelled"), std::string::npos) << run.read_screen();
  expect_no_connection_errors(run.read_screen());
  EXPECT_EQ(show_job("1").value("detail", ""), "cancelled") << show_job("1");
}

// After an end of file, the C library reads from the terminal again.
TEST_F(Terminal, CtrlDEndsTypedInput) {
  Pty run(make_argv({"run", "-", "--type", "python"}), 80, plain_);
  run.send_keys("print(6 * 7)\n\x04");
  EXPECT_TRUE(run.wait_for_text("42")) << run.read_screen();
  EXPECT_EQ(run.wait(), 0) << run.read_screen();
  Pty batch(make_argv({"job", "submit", "--batch", "-"}), 80, plain_);
  batch.send_keys("{\"script\": \"print(1)\", \"script_type\": \"python\"}\n\x04");
  EXPECT_EQ(batch.wait(), 0) << batch.read_screen();
}

TEST_F(Terminal, MissingScriptTypeIsRejectedBeforeInput) {
  Pty run(make_argv({"run", "-"}), 80, plain_);
  EXPECT_EQ(run.wait(), 65) << run.read_screen();
  EXPECT_TRUE(run.wait_for_text("standard input has no name that tells the script type")) << run.read_screen();
  Pty shell(make_argv({"run", folder_.write("a.sh", "echo")}), 80, plain_);
  EXPECT_TRUE(shell.wait_for_text("--type bash")) << shell.read_screen();
}

TEST_F(Terminal, CtrlCBeforeTheStartCancelsTheJob) {
  Pty run(make_argv({"run", folder_.write("long.py", kSleepScript), "--delay", "1h"}), 80, plain_);
  ASSERT_TRUE(run.wait_for_text("waits")) << run.read_screen();
  run.send_keys(kCtrlC);
  EXPECT_EQ(run.wait(), 130) << run.read_screen();
  expect_no_connection_errors(run.read_screen());
  EXPECT_EQ(show_job("1").value("detail", ""), "cancelled");
}

// Regression test: the record said "running" until the lease expired, and each query reported a restart of Redis.
TEST_F(Terminal, JobOfAKilledRunIsNotRunAndIsExplained) {
  Pty killed(make_argv({"run", folder_.write("long.py", kSleepScript)}), 80, plain_);
  ASSERT_TRUE(killed.wait_for_text("up")) << killed.read_screen();
  ::kill(killed.pid(), SIGKILL);
  EXPECT_EQ(killed.wait(), 128 + SIGKILL);
  ProcessResult explain_result;
  EXPECT_TRUE(eventually([&] {
    explain_result = run(folder_, make_argv({"job", "explain", "1"}));
    return explain_result.out.find("it is not running") != std::string::npos;
  })) << explain_result.out
      << explain_result.err;
  EXPECT_EQ(explain_result.err, "");
}

TEST_F(Terminal, SecondCtrlCLeavesTheEndToTheNextAgent) {
  Pty run(make_argv({"run", folder_.write("deaf.py", kIgnoreTerm), "--grace", "10m"}), 80, plain_);
  ASSERT_TRUE(run.wait_for_text("up")) << run.read_screen();
  run.send_keys(kCtrlC);
  ASSERT_TRUE(run.wait_for_text("cancelling job:1:1")) << run.read_screen();
  run.send_keys(kCtrlC);
  EXPECT_EQ(run.wait(), 75) << run.read_screen();
  EXPECT_NE(run.read_screen().find("left job:1:1 behind, with the request to cancel it"), std::string::npos)
      << run.read_screen();
  expect_no_connection_errors(run.read_screen());
  Process dev(folder_, make_argv({"dev", "--api-listen", ""}));
  // A command that starts first would use the state folder exclusively.
  ASSERT_TRUE(eventually([&] { return dev.err().find("serves") != std::string::npos; })) << dev.err();
  EXPECT_TRUE(eventually([&] { return show_job("1").value("detail", "") == "cancelled"; }))
      << show_job("1") << dev.err();
}

TEST_F(Terminal, DevDrainsThenReturnsJobsThenExits) {
  Pty dev(make_argv({"dev", "--api-listen", "", "--grace", "10m"}), 80, plain_);
  ASSERT_TRUE(dev.wait_for_text("serves context")) << dev.read_screen();
  Process cancellable_run(folder_, make_argv({"run", folder_.write("long.py", kSleepScript)}));
  ASSERT_TRUE(eventually([&] { return cancellable_run.out() == "up\n"; })) << cancellable_run.err();
  Process stubborn_run(folder_, make_argv({"run", folder_.write("deaf.py", kIgnoreTerm)}));
  ASSERT_TRUE(eventually([&] { return stubborn_run.out() == "up\n"; })) << stubborn_run.err();
  dev.send_keys(kCtrlC);
  ASSERT_TRUE(dev.wait_for_text("draining: 2 jobs")) << dev.read_screen();
  dev.send_keys(kCtrlC);
  ASSERT_TRUE(dev.wait_for_text("stopping 2 jobs")) << dev.read_screen();
  EXPECT_TRUE(eventually([&] { return show_job("1").value("detail", "") == "queued"; }))
      << show_job("1") << cancellable_run.err();
  dev.send_keys(kCtrlC);
  EXPECT_EQ(dev.wait(), 75) << dev.read_screen();
  expect_no_connection_errors(dev.read_screen().substr(dev.read_screen().find("draining")));
}

TEST_F(Terminal, FlowStartLeavesItsFlowRunning) {
  folder_.write("long.py", kSleepScript);
  const std::string flow = folder_.write("flow.yaml", "name: long\njobs:\n  a: {file: long.py}\n");
  Pty start(make_argv({"flow", "start", flow}), 80, plain_);
  ASSERT_TRUE(start.wait_for_text("running 1")) << start.read_screen();
  start.send_keys(kCtrlC);
  ASSERT_TRUE(start.wait_for_text("exiting: flow 1 continues")) << start.read_screen();
  ASSERT_TRUE(start.wait_for_text("waiting for a job that runs on this host; Ctrl-C exits immediately"))
      << start.read_screen();
  start.send_keys(kCtrlC);
  EXPECT_EQ(start.wait(), 130) << start.read_screen();
  expect_no_connection_errors(start.read_screen());
  const ProcessResult shown = run(folder_, make_argv({"flow", "show", "1", "--json"}));
  EXPECT_EQ(nlohmann::json::parse(shown.out, nullptr, false).value("status", ""), "started") << shown.out << shown.err;
}

TEST_F(Terminal, ListFitsTheScreenAndAPipeGetsAll) {
  const std::string long_name(100, 'n');
  ASSERT_EQ(
      run(folder_, make_argv({"run", folder_.write("bad.py", "raise ValueError('e' * 70)"), "--name", long_name})).code,
      1);
  for (const auto& [columns, more_environment] :
       std::vector<std::pair<unsigned short, std::vector<std::string>>>{{80, {}}, {120, {}}, {200, {"COLUMNS=80"}}}) {
    std::vector<std::string> environment = plain_;
    environment.insert(environment.end(), more_environment.begin(), more_environment.end());
    Pty list(make_argv({"job", "list"}), columns, environment);
    ASSERT_EQ(list.wait(), 0) << list.read_screen();
    EXPECT_LE(measure_width(list.read_screen()), more_environment.empty() ? columns : 80U) << list.read_screen();
    EXPECT_NE(list.read_screen().find("…"), std::string::npos) << list.read_screen();
    EXPECT_NE(list.read_screen().find("exception"), std::string::npos) << list.read_screen();
  }
  EXPECT_NE(run(folder_, make_argv({"job", "list"})).out.find(long_name), std::string::npos) << "a pipe";
  Pty full_output(make_argv({"job", "list", "--json"}), 80, plain_);
  ASSERT_EQ(full_output.wait(), 0);
  EXPECT_NE(full_output.read_screen().find(long_name), std::string::npos) << "JSON";
}

TEST_F(Terminal, LastCellOfATableWrapsBelowItself) {
  Pty list(make_argv({"executor", "list"}), 72, plain_);
  ASSERT_EQ(list.wait(), 0) << list.read_screen();
  EXPECT_LE(measure_width(list.read_screen()), 72U) << list.read_screen();
  const std::string full_output = run(folder_, make_argv({"executor", "list"})).out;
  // for example "CPython 3.11.2, linked in, the same build as the installed one"
  EXPECT_GT(measure_width(full_output), 72U) << full_output;
}

// timeout(1) creates a process group and sends its signal to the program and then to the whole group.
TEST_F(Terminal, TimeoutCancelsTheJob) {
  std::vector<std::string> words = make_argv({"run", folder_.write("long.py", kSleepScript)});
  words.insert(words.begin(), {"timeout", "600"});
  Process timeout_process(folder_, words);
  ASSERT_TRUE(eventually([&] { return timeout_process.out() == "up\n"; })) << timeout_process.err();
  timeout_process.signal(SIGTERM);  // timeout forwards the signal as it does at its time limit
  EXPECT_EQ(timeout_process.wait().code, 130) << timeout_process.err();
  expect_no_connection_errors(timeout_process.err());
  EXPECT_EQ(show_job("1").value("detail", ""), "cancelled") << timeout_process.err();
}

TEST_F(Terminal, RunUnderTimeoutLeavesNothingRunning) {
  std::vector<std::string> words = make_argv({"run", folder_.write("long.py", kSleepScript)});
  words.insert(words.begin(), {"timeout", "2"});
  const ProcessResult timeout_process = run(folder_, words);
  EXPECT_EQ(timeout_process.code, 124) << timeout_process.err;
  expect_no_connection_errors(timeout_process.err);
  const ProcessResult list = run(folder_, make_argv({"job", "list", "--status", "started", "--json"}));
  EXPECT_EQ(nlohmann::json::parse(list.out, nullptr, false), nlohmann::json::array())
      << timeout_process.err << list.err;
}

// Output with control sequences: they clear the screen, set the title, reverse the direction of text and restart the
// line. Some sequences are split between two writes.
constexpr const char* kControlSequences =
    "import os, time\n"
    "os.write(1, b'A\\x1b[2J\\x1b]0;owned\\x07B\\xc2')\n"
    "time.sleep(0.3)\n"
    "os.write(1, b'\\x9b31mC\\xe2\\x80\\xaeD\\xff\\n100%\\r  3%\\n')\n"
    "result['k\\x1b[31m\\njob:1:9 finished'] = 'v\\x1b[32m\\njob:1:9 finished ok'\n"
    "os.write(1, b'no end')\n";

TEST_F(Terminal, OutputOfAJobCannotControlTheTerminal) {
  const std::string file = folder_.write("evil.py", kControlSequences);
  {
    Pty run_output(make_argv({"run", file}), 80, plain_);
    EXPECT_EQ(run_output.wait(), 0) << run_output.read_screen();
    const std::string& screen = run_output.read_screen();
    for (const char* sequence : {"\x1b", "\x07", "\xc2\x9b", "\xe2\x80\xae", "\xff", "\r\njob:1:9"})
      EXPECT_EQ(screen.find(sequence), std::string::npos) << screen;
    EXPECT_NE(screen.find("A?[2J?]0;owned?B?31mC?D?\r\n100%\r\n  3%\r\n"), std::string::npos) << screen;
    EXPECT_NE(screen.find("no end\r\n"), std::string::npos) << "the status line must begin on a new line: " << screen;
  }
  Pty logs(make_argv({"job", "logs", "1"}), 80, plain_);
  EXPECT_EQ(logs.wait(), 0);
  EXPECT_EQ(logs.read_screen().find('\x1b'), std::string::npos) << logs.read_screen();
  Pty shown(make_argv({"job", "show", "1"}), 80, plain_);
  EXPECT_EQ(shown.wait(), 0);
  EXPECT_EQ(shown.read_screen().find('\x1b'), std::string::npos) << shown.read_screen();
  Pty sandboxed(make_argv({"sandbox", "run", file}), 80, plain_);
  EXPECT_EQ(sandboxed.wait(), 0);
  EXPECT_EQ(sandboxed.read_screen().find('\x1b'), std::string::npos) << sandboxed.read_screen();
}

TEST_F(Terminal, PipeReceivesTheBytesUnchanged) {
  const ProcessResult result = run(folder_, make_argv({"run", folder_.write("evil.py", kControlSequences)}));
  const std::string expected_output =
      "A\x1b[2J\x1b]0;owned\x07"
      "B\xc2\x9b"
      "31mC\xe2\x80\xae"
      "D\xff\n100%\r  3%\nno end";
  EXPECT_EQ(result.out, expected_output);
  EXPECT_EQ(result.err.find('\x1b'), std::string::npos) << "stderr must not contain escape sequences: " << result.err;
}

}  // namespace
}  // namespace mycojobs::test
