// A plugin that hangs, a locked disk, or an unresponsive Redis of another context must not affect other jobs of the
// agent: they start, write, are cancelled and end. The tests compare the order of events.
#include <fcntl.h>
#include <sys/file.h>

#include <csignal>
#include <filesystem>

#include "base/fd.h"
#include "e2e/client.h"
#include "support/hanging_folder.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;

class IsolationE2e : public Operator {
 protected:
  std::string plugin_folder(const std::string& fault) const {
    const std::string folder = folder_ / "plugins";
    const fs::path built = fs::path(program_path()).parent_path().parent_path() / "tests/plugin/broken" / fault;
    fs::create_directories(folder);
    fs::copy_file(built, folder + "/cat.so");
    fs::permissions(folder + "/cat.so", fs::perms(0644));
    return folder;
  }
  std::string submit_cat(int caller = 1) const {
    ProcessResult result =
        mycojobs_({"job", "submit", "-", "--type", "cat", "--caller", std::to_string(caller)}, "x\n");
    EXPECT_EQ(result.code, 0) << result.err;
    if (result.out.ends_with('\n')) result.out.pop_back();
    return result.out;
  }
  std::uint64_t ended_ms(const std::string& job) const {
    const std::string text = mycojobs_.field(job, "ended_ms");
    return text.empty() ? UINT64_MAX : std::stoull(text);
  }
  // Runs one job that writes and ends, and one that is cancelled. Returns the later of their end times.
  std::uint64_t others_go_on() const {
    const std::string long_one = mycojobs_.submit(kSleeps);
    EXPECT_TRUE(mycojobs_.wait_for_value(long_one, "status", "started"));
    const std::string short_one = mycojobs_.submit("print('hello')\nresult['a'] = 'b'");
    EXPECT_TRUE(mycojobs_.wait_for_value(short_one, "status", "finished"));
    EXPECT_EQ(mycojobs_({"job", "logs", short_one}).out, "hello\n");
    EXPECT_EQ(mycojobs_({"job", "cancel", long_one}).code, 0);
    EXPECT_TRUE(mycojobs_.wait_for_value(long_one, "detail", "cancelled"));
    return std::max(ended_ms(long_one), ended_ms(short_one));
  }
};

TEST_F(IsolationE2e, HangingPrepareDelaysNoOtherJob) {
  Process running = agent(1, {"--slots", "8", "--plugins-dir", plugin_folder("plugin_sleeps.so")});
  std::vector<std::string> hang;
  for (int i = 0; i < 4; ++i) hang.push_back(submit_cat(2 + i));
  const std::uint64_t over = others_go_on();
  std::size_t later = 0;
  for (const std::string& job : hang) later += ended_ms(job) > over ? 1 : 0;
  EXPECT_GT(later, 0U);
  // The plugin pauses between its faults: 40 s in total on an idle machine.
  EXPECT_TRUE(mycojobs_.wait_for_value(hang[0], "detail", "setup_error", Seconds(100)))
      << mycojobs_.field(hang[0], "detail");
  EXPECT_NE(mycojobs_.field(hang[0], "error").find("plugin cat"), std::string::npos);
  EXPECT_EQ(mycojobs_({"job", "cancel", hang[3]}).code, 0);
  EXPECT_TRUE(eventually([&] { return mycojobs_.field(hang[3], "status") == "error"; }));
}

TEST_F(IsolationE2e, HangingInterpretDelaysNoOtherJob) {
  Process running = agent(1, {"--slots", "8", "--plugins-dir", plugin_folder("plugin_interpret_sleeps.so")});
  std::vector<std::string> hang;
  for (int i = 0; i < 3; ++i) hang.push_back(submit_cat());
  const std::uint64_t over = others_go_on();
  std::uint64_t last = 0;
  for (const std::string& job : hang) {
    EXPECT_TRUE(mycojobs_.wait_for_value(job, "status", "finished")) << "the default result is used";
    last = std::max(last, ended_ms(job));
  }
  EXPECT_GT(last, 0U);
  RecordProperty("others_over_ms_before", static_cast<int>(last - over));
}

// The job holds a socket whose last close blocks as long as the job chooses, and tries to make another process close
// it: it sends the socket over all its descriptors, and closes it while the launcher processes its call to listen().
TEST_F(IsolationE2e, LingeringSocketDelaysNoOtherJob) {
  const std::string config =
      folder_.write("linger.toml", "[ceiling]\nnet = \"loopback\"\nsyscalls.add = [\"setsockopt\"]\n");
  const std::string policy = folder_.write("policy.toml", "net = \"loopback\"\nsyscalls.add = [\"setsockopt\"]\n");
  Process running = agent(1, {"--slots", "8", "--config", config});
  const std::string script = R"(import array, ctypes, json, os, socket, struct, threading, time
listener = socket.create_server(('127.0.0.1', 0))
others = [socket.create_server(('127.0.0.1', 0)) for _ in range(15)]
peers = []
def lingering():
  s = socket.create_connection(listener.getsockname())
  peers.append(listener.accept()[0])
  s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 100000))
  s.setblocking(False)
  try:
    while s.send(b'x' * 65536): pass
  except BlockingIOError: pass
  s.setblocking(True)
  return s
note = json.dumps({'text': 'y' * 980}).encode()
frame = struct.pack('<IB', len(note), 16) + note
for number in range(3, listener.fileno()):
  kept = lingering()
  try:
    if number == 3: os.write(number, frame * 24)
    way = socket.socket(fileno=number)
    way.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [kept.fileno()]))])
    print('sent', flush=True)
  except OSError: pass
  number = kept.detach()
  threading.Thread(target=os.close, args=(number,), daemon=True).start()
libc = ctypes.CDLL(None)
for i in range(40):
  number = lingering().detach()
  asks = threading.Thread(target=libc.listen, args=(number, 5))
  asks.start()
  print('asked', flush=True)
  time.sleep(i % 20 * 0.00005)
  threading.Thread(target=libc.close, args=(number,), daemon=True).start()
  asks.join()
time.sleep(600)
)";
  const std::string attack = mycojobs_.submit(script, {"--policy", policy, "--config", config});
  EXPECT_TRUE(mycojobs_.wait_for_value(attack, "status", "started"));
  others_go_on();
  // The attack can block in listen() on its own socket for minutes, so the test does not wait for its end.
  ASSERT_TRUE(eventually([&] {
    return mycojobs_({"job", "logs", attack}).out.find("asked") != std::string::npos;
  })) << mycojobs_({"job", "logs", attack}).out;
  for (int i = 0; i < 5; ++i) others_go_on();
  EXPECT_EQ(mycojobs_({"job", "logs", attack}).out.find("sent"), std::string::npos);
  EXPECT_EQ(mycojobs_.field(attack, "status"), "started") << "its lease goes on";
  EXPECT_EQ(mycojobs_({"job", "cancel", attack}).code, 0);
  EXPECT_TRUE(mycojobs_.wait_for_value(attack, "detail", "cancelled"));
}

TEST_F(IsolationE2e, LockedDiskDelaysNoOtherJob) {
  const std::string state = folder_ / "agent1";
  Process running = agent(1, {"--slots", "12"});
  const std::string first = mycojobs_.submit("import mycojobs\n(mycojobs.artifacts / 'f').write_text('x')");
  ASSERT_TRUE(mycojobs_.wait_for_value(first, "status", "finished"));
  const Fd lock(::open((state + "/contexts/1/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_TRUE(lock);
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  std::vector<std::string> leave;  // each waits 2 s for the lock, one after another
  for (int i = 0; i < 10; ++i)
    leave.push_back(mycojobs_.submit("import mycojobs\n(mycojobs.artifacts / 'f').write_text('x')"));
  const std::uint64_t over = others_go_on();
  EXPECT_GT(ended_ms(leave.back()), over);
  ASSERT_EQ(::flock(lock.get(), LOCK_UN), 0);
  for (const std::string& job : leave) EXPECT_TRUE(mycojobs_.wait_for_value(job, "status", "finished"));
  EXPECT_NE(mycojobs_.field(leave.back(), "artifacts"), "") << "the lock was free when its turn came";
}

TEST_F(IsolationE2e, HangingGrantedFolderDelaysNoOtherJob) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "this machine has no /dev/fuse";
  HangingFolder folder;
  const std::string config = folder_.write("open.toml", "[ceiling]\nfs.read = [\"" + folder.path() + "\"]\n");
  const std::string policy = folder_.write("p.toml", "fs.read = [\"" + folder.path() + "\"]\n");
  Process running = agent(1, {"--slots", "4", "--config", config});
  const std::string waits = mycojobs_.submit("pass", {"--config", config, "--policy", policy});
  ASSERT_TRUE(eventually([&] { return folder.waiting_count() > 0; })) << running.err();
  const std::uint64_t over = others_go_on();
  EXPECT_GT(ended_ms(waits), over);
  EXPECT_TRUE(eventually([&] { return running.err().find("has not answered for 10 s") != std::string::npos; }));
  EXPECT_NE(running.err().find(waits + ": back to its queue: the granted " + folder.path()), std::string::npos)
      << running.err();
  EXPECT_TRUE(eventually([&] { return mycojobs_.field(waits, "status") == "dispatched"; }));
  others_go_on();
  folder.disconnect();
  EXPECT_TRUE(mycojobs_.wait_for_value(waits, "detail", "setup_error")) << "the disk has gone for good";
}

// The kernel holds the lock of stdout while it waits for the file, and reading stdout waits for that lock.
TEST_F(IsolationE2e, WriteFromAHangingFileDelaysNoOtherJob) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "this machine has no /dev/fuse";
  HangingFolder folder;
  const std::string config = folder_.write("open.toml", "[ceiling]\nfs.read = [\"" + folder.root() + "\"]\n");
  const std::string policy = folder_.write("p.toml", "fs.read = [\"" + folder.root() + "\"]\n");
  Process running = agent(1, {"--slots", "4", "--config", config});
  const std::string script =
      "import mmap, os\n"
      "file = os.open('" +
      folder.root() + "/" + HangingFolder::kFile + R"(', os.O_RDONLY)
hangs = mmap.mmap(file, 4096, prot=mmap.PROT_READ)
full = b'x' * 4095 + b'\n'
os.write(1, b'begins\n')
os.writev(1, [full, hangs])
)";
  const std::string attack = mycojobs_.submit(script, {"--config", config, "--policy", policy});
  ASSERT_TRUE(eventually([&] { return folder.waiting_count() > 0; })) << running.err();
  others_go_on();
  others_go_on();
  EXPECT_EQ(mycojobs_.field(attack, "status"), "started") << "its lease goes on";
  EXPECT_EQ(mycojobs_({"job", "cancel", attack}).code, 0);
  folder.disconnect();  // The kernel keeps a process that reads from a file server, also from SIGKILL, until the server
                        // answers.
  EXPECT_TRUE(mycojobs_.wait_for_value(attack, "detail", "cancelled"));
  EXPECT_NE(mycojobs_({"job", "logs", attack}).out.find("begins"), std::string::npos);
}

TEST_F(IsolationE2e, SilentRedisOfAContextDelaysNoOther) {
  TempDir elsewhere;
  RedisServer other(elsewhere);
  const std::string config = folder_.write("two.toml", "[contexts.3]\nredis = \"" + other.url() + "\"\n");
  Process running = agent(1, {"--slots", "8", "--config", config, "--context", "1,3"});
  ASSERT_TRUE(wait_until_registered(other, 1, 3)) << running.err();
  PlainJob ends{.id = 1, .context = 3, .script = "import time\nprint('up', flush=True)\ntime.sleep(1)"};
  PlainJob waits{.id = 2, .context = 3};
  submit(other, ends);
  ASSERT_TRUE(eventually([&] { return field(other, ends, "status") == "started"; }));
  ::kill(other.pid(), SIGSTOP);
  others_go_on();
  others_go_on();
  ::kill(other.pid(), SIGCONT);
  submit(other, waits);
  EXPECT_EQ(wait_for_status(other, waits), "finished") << running.err();
  EXPECT_EQ(wait_for_status(other, ends), "finished") << running.err();
}

TEST_F(IsolationE2e, HangingRedisAtStartDelaysNoOtherContext) {
  TempDir elsewhere;
  RedisServer other(elsewhere);
  const PlainJob waits{.id = 1, .context = 3};
  submit(other, waits);
  ::kill(other.pid(), SIGSTOP);
  const std::string config = folder_.write("two.toml", "[contexts.3]\nredis = \"" + other.url() + "\"\n");
  Process running = agent(1, {"--slots", "8", "--config", config, "--context", "3,1"});
  others_go_on();
  ::kill(other.pid(), SIGCONT);
  EXPECT_EQ(wait_for_status(other, waits), "finished") << running.err();
  EXPECT_NE(running.err().find("context 3: runner 1 is registered"), std::string::npos) << running.err();
  others_go_on();
}

}  // namespace
}  // namespace mycojobs::test
