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

constexpr const char* kDeaf =
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)";

std::size_t widest(const std::string& screen) {
  std::size_t max = 0;
  for (std::size_t from = 0; from < screen.size();) {
    const std::size_t end = std::min(screen.find('\n', from), screen.size());
    max = std::max(max, columns(std::string_view(screen).substr(from, end - from - (screen[end - 1] == '\r' ? 1 : 0))));
    from = end + 1;
  }
  return max;
}

class Terminal : public ::testing::Test {
 protected:
  std::vector<std::string> line(std::vector<std::string> words) const {
    words.insert(words.begin(), program_path());
    words.insert(words.end(), {"--state-dir", folder_ / "state"});
    return words;
  }
  nlohmann::json job(const std::string& id) const {
    const ProcessResult shown = run(folder_, line({"job", "show", id, "--json"}));
    const auto parsed = nlohmann::json::parse(shown.out, nullptr, false);
    return parsed.is_object() ? parsed : nlohmann::json{{"error", shown.err}};
  }
  // A program that loses its Redis would print one of these words.
  static void expect_no_complaint(const std::string& screen) {
    for (const char* word : {"trying again", "store:", "redis", "Redis", "unavailable", "EPIPE", "Connection"})
      EXPECT_EQ(screen.find(word), std::string::npos) << word << " in:\n" << screen;
  }
  // Disables colours.
  const std::vector<std::string> plain_{"NO_COLOR=1", "LC_ALL=C.UTF-8"};
  TempDir folder_;
};

TEST_F(Terminal, CtrlCCancelsTheJobWithoutErrors) {
  Pty run(line({"run", folder_.write("long.py", kSleeps)}), 80, plain_);
  ASSERT_TRUE(run.shows("up")) << run.screen();
  run.type(kCtrlC);
  EXPECT_TRUE(run.shows("cancelling job:1:1; press Ctrl-C again to exit while it runs")) << run.screen();
  EXPECT_EQ(run.wait(), 130) << run.screen();
  EXPECT_NE(run.screen().find("error cancelled"), std::string::npos) << run.screen();
  expect_no_complaint(run.screen());
  EXPECT_EQ(job("1").value("detail", ""), "cancelled") << job("1");
}

// After an end of file, the C library reads from the terminal again.
TEST_F(Terminal, CtrlDEndsTypedInput) {
  Pty run(line({"run", "-", "--type", "python"}), 80, plain_);
  run.type("print(6 * 7)\n\x04");
  EXPECT_TRUE(run.shows("42")) << run.screen();
  EXPECT_EQ(run.wait(), 0) << run.screen();
  Pty batch(line({"job", "submit", "--batch", "-"}), 80, plain_);
  batch.type("{\"script\": \"print(1)\", \"script_type\": \"python\"}\n\x04");
  EXPECT_EQ(batch.wait(), 0) << batch.screen();
}

TEST_F(Terminal, MissingScriptTypeIsRejectedBeforeInput) {
  Pty run(line({"run", "-"}), 80, plain_);
  EXPECT_EQ(run.wait(), 65) << run.screen();
  EXPECT_TRUE(run.shows("standard input has no name that tells the script type")) << run.screen();
  Pty shell(line({"run", folder_.write("a.sh", "echo")}), 80, plain_);
  EXPECT_TRUE(shell.shows("--type bash")) << shell.screen();
}

TEST_F(Terminal, CtrlCBeforeTheStartCancelsTheJob) {
  Pty run(line({"run", folder_.write("long.py", kSleeps), "--delay", "1h"}), 80, plain_);
  ASSERT_TRUE(run.shows("waits")) << run.screen();
  run.type(kCtrlC);
  EXPECT_EQ(run.wait(), 130) << run.screen();
  expect_no_complaint(run.screen());
  EXPECT_EQ(job("1").value("detail", ""), "cancelled");
}

// Regression test: the record said "running" until the lease expired, and each query reported a restart of Redis.
TEST_F(Terminal, JobOfAKilledRunIsNotRunAndIsExplained) {
  Pty killed(line({"run", folder_.write("long.py", kSleeps)}), 80, plain_);
  ASSERT_TRUE(killed.shows("up")) << killed.screen();
  ::kill(killed.pid(), SIGKILL);
  EXPECT_EQ(killed.wait(), 128 + SIGKILL);
  ProcessResult why;
  EXPECT_TRUE(eventually([&] {
    why = run(folder_, line({"job", "explain", "1"}));
    return why.out.find("it is not running") != std::string::npos;
  })) << why.out
      << why.err;
  EXPECT_EQ(why.err, "");
}

TEST_F(Terminal, SecondCtrlCLeavesTheEndToTheNextAgent) {
  Pty run(line({"run", folder_.write("deaf.py", kDeaf), "--grace", "10m"}), 80, plain_);
  ASSERT_TRUE(run.shows("up")) << run.screen();
  run.type(kCtrlC);
  ASSERT_TRUE(run.shows("cancelling job:1:1")) << run.screen();
  run.type(kCtrlC);
  EXPECT_EQ(run.wait(), 75) << run.screen();
  EXPECT_NE(run.screen().find("left job:1:1 behind, with the request to cancel it"), std::string::npos) << run.screen();
  expect_no_complaint(run.screen());
  Process dev(folder_, line({"dev", "--api-listen", ""}));
  // A command that starts first would use the state folder exclusively.
  ASSERT_TRUE(eventually([&] { return dev.err().find("serves") != std::string::npos; })) << dev.err();
  EXPECT_TRUE(eventually([&] { return job("1").value("detail", "") == "cancelled"; })) << job("1") << dev.err();
}

TEST_F(Terminal, DevDrainsThenReturnsJobsThenExits) {
  Pty dev(line({"dev", "--api-listen", "", "--grace", "10m"}), 80, plain_);
  ASSERT_TRUE(dev.shows("serves context")) << dev.screen();
  Process polite(folder_, line({"run", folder_.write("long.py", kSleeps)}));
  ASSERT_TRUE(eventually([&] { return polite.out() == "up\n"; })) << polite.err();
  Process deaf(folder_, line({"run", folder_.write("deaf.py", kDeaf)}));
  ASSERT_TRUE(eventually([&] { return deaf.out() == "up\n"; })) << deaf.err();
  dev.type(kCtrlC);
  ASSERT_TRUE(dev.shows("draining: 2 jobs")) << dev.screen();
  dev.type(kCtrlC);
  ASSERT_TRUE(dev.shows("stopping 2 jobs")) << dev.screen();
  EXPECT_TRUE(eventually([&] { return job("1").value("detail", "") == "queued"; })) << job("1") << polite.err();
  dev.type(kCtrlC);
  EXPECT_EQ(dev.wait(), 75) << dev.screen();
  expect_no_complaint(dev.screen().substr(dev.screen().find("draining")));
}

TEST_F(Terminal, FlowStartLeavesItsFlowRunning) {
  folder_.write("long.py", kSleeps);
  const std::string flow = folder_.write("flow.yaml", "name: long\njobs:\n  a: {file: long.py}\n");
  Pty start(line({"flow", "start", flow}), 80, plain_);
  ASSERT_TRUE(start.shows("running 1")) << start.screen();
  start.type(kCtrlC);
  ASSERT_TRUE(start.shows("exiting: flow 1 continues")) << start.screen();
  ASSERT_TRUE(start.shows("waiting for a job that runs on this host; Ctrl-C exits immediately")) << start.screen();
  start.type(kCtrlC);
  EXPECT_EQ(start.wait(), 130) << start.screen();
  expect_no_complaint(start.screen());
  const ProcessResult shown = run(folder_, line({"flow", "show", "1", "--json"}));
  EXPECT_EQ(nlohmann::json::parse(shown.out, nullptr, false).value("status", ""), "started") << shown.out << shown.err;
}

TEST_F(Terminal, ListFitsTheScreenAndAPipeGetsAll) {
  const std::string long_name(100, 'n');
  ASSERT_EQ(
      run(folder_, line({"run", folder_.write("bad.py", "raise ValueError('e' * 70)"), "--name", long_name})).code, 1);
  for (const auto& [columns, more] :
       std::vector<std::pair<unsigned short, std::vector<std::string>>>{{80, {}}, {120, {}}, {200, {"COLUMNS=80"}}}) {
    std::vector<std::string> environment = plain_;
    environment.insert(environment.end(), more.begin(), more.end());
    Pty list(line({"job", "list"}), columns, environment);
    ASSERT_EQ(list.wait(), 0) << list.screen();
    EXPECT_LE(widest(list.screen()), more.empty() ? columns : 80U) << list.screen();
    EXPECT_NE(list.screen().find("…"), std::string::npos) << list.screen();
    EXPECT_NE(list.screen().find("exception"), std::string::npos) << list.screen();
  }
  EXPECT_NE(run(folder_, line({"job", "list"})).out.find(long_name), std::string::npos) << "a pipe";
  Pty whole(line({"job", "list", "--json"}), 80, plain_);
  ASSERT_EQ(whole.wait(), 0);
  EXPECT_NE(whole.screen().find(long_name), std::string::npos) << "JSON";
}

TEST_F(Terminal, LastCellOfATableWrapsBelowItself) {
  Pty list(line({"executor", "list"}), 72, plain_);
  ASSERT_EQ(list.wait(), 0) << list.screen();
  EXPECT_LE(widest(list.screen()), 72U) << list.screen();
  const std::string whole = run(folder_, line({"executor", "list"})).out;
  // for example "CPython 3.11.2, linked in, the same build as the installed one"
  EXPECT_GT(widest(whole), 72U) << whole;
}

// timeout(1) creates a process group and sends its signal to the program and then to the whole group.
TEST_F(Terminal, TimeoutCancelsTheJob) {
  std::vector<std::string> words = line({"run", folder_.write("long.py", kSleeps)});
  words.insert(words.begin(), {"timeout", "600"});
  Process limited(folder_, words);
  ASSERT_TRUE(eventually([&] { return limited.out() == "up\n"; })) << limited.err();
  limited.signal(SIGTERM);  // timeout forwards the signal as it does at its time limit
  EXPECT_EQ(limited.wait().code, 130) << limited.err();
  expect_no_complaint(limited.err());
  EXPECT_EQ(job("1").value("detail", ""), "cancelled") << limited.err();
}

TEST_F(Terminal, RunUnderTimeoutLeavesNothingRunning) {
  std::vector<std::string> words = line({"run", folder_.write("long.py", kSleeps)});
  words.insert(words.begin(), {"timeout", "2"});
  const ProcessResult limited = run(folder_, words);
  EXPECT_EQ(limited.code, 124) << limited.err;
  expect_no_complaint(limited.err);
  const ProcessResult list = run(folder_, line({"job", "list", "--status", "started", "--json"}));
  EXPECT_EQ(nlohmann::json::parse(list.out, nullptr, false), nlohmann::json::array()) << limited.err << list.err;
}

// Clears the screen, sets the title, reverses the direction of text and restarts the line. Some sequences are split.
constexpr const char* kEvil =
    "import os, time\n"
    "os.write(1, b'A\\x1b[2J\\x1b]0;owned\\x07B\\xc2')\n"
    "time.sleep(0.3)\n"
    "os.write(1, b'\\x9b31mC\\xe2\\x80\\xaeD\\xff\\n100%\\r  3%\\n')\n"
    "result['k\\x1b[31m\\njob:1:9 finished'] = 'v\\x1b[32m\\njob:1:9 finished ok'\n"
    "os.write(1, b'no end')\n";

TEST_F(Terminal, OutputOfAJobCannotControlTheTerminal) {
  const std::string file = folder_.write("evil.py", kEvil);
  {
    Pty shown(line({"run", file}), 80, plain_);
    EXPECT_EQ(shown.wait(), 0) << shown.screen();
    const std::string& screen = shown.screen();
    for (const char* bad : {"\x1b", "\x07", "\xc2\x9b", "\xe2\x80\xae", "\xff", "\r\njob:1:9"})
      EXPECT_EQ(screen.find(bad), std::string::npos) << screen;
    EXPECT_NE(screen.find("A?[2J?]0;owned?B?31mC?D?\r\n100%\r\n  3%\r\n"), std::string::npos) << screen;
    EXPECT_NE(screen.find("no end\r\n"), std::string::npos) << "our line begins after its: " << screen;
  }
  Pty logs(line({"job", "logs", "1"}), 80, plain_);
  EXPECT_EQ(logs.wait(), 0);
  EXPECT_EQ(logs.screen().find('\x1b'), std::string::npos) << logs.screen();
  Pty shown(line({"job", "show", "1"}), 80, plain_);
  EXPECT_EQ(shown.wait(), 0);
  EXPECT_EQ(shown.screen().find('\x1b'), std::string::npos) << shown.screen();
  Pty sandboxed(line({"sandbox", "run", file}), 80, plain_);
  EXPECT_EQ(sandboxed.wait(), 0);
  EXPECT_EQ(sandboxed.screen().find('\x1b'), std::string::npos) << sandboxed.screen();
}

TEST_F(Terminal, PipeReceivesTheBytesUnchanged) {
  const ProcessResult result = run(folder_, line({"run", folder_.write("evil.py", kEvil)}));
  const std::string wanted =
      "A\x1b[2J\x1b]0;owned\x07"
      "B\xc2\x9b"
      "31mC\xe2\x80\xae"
      "D\xff\n100%\r  3%\nno end";
  EXPECT_EQ(result.out, wanted);
  EXPECT_EQ(result.err.find('\x1b'), std::string::npos) << "talk is for people: " << result.err;
}

}  // namespace
}  // namespace mycojobs::test
