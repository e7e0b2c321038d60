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
  std::string install_plugin(const std::string& fault) const {
    const std::string folder = folder_ / "plugins";
    const fs::path plugin_path = fs::path(program_path()).parent_path().parent_path() / "tests/plugin/broken" / fault;
    fs::create_directories(folder);
    fs::copy_file(plugin_path, folder + "/cat.so");
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
  std::uint64_t read_ended_ms(const std::string& job) const {
    const std::string text = mycojobs_.read_field(job, "ended_ms");
    return text.empty() ? UINT64_MAX : std::stoull(text);
  }
  // Runs a job that writes output and finishes, and a job that is cancelled. Returns the later end time of the two.
  std::uint64_t run_other_jobs() const {
    const std::string cancelled_job = mycojobs_.submit(kSleepScript);
    EXPECT_TRUE(mycojobs_.wait_for_value(cancelled_job, "status", "started"));
    const std::string finished_job = mycojobs_.submit("print('hello')\nresult['a'] = 'b'");
    EXPECT_TRUE(mycojobs_.wait_for_value(finished_job, "status", "finished"));
    EXPECT_EQ(mycojobs_({"job", "logs", finished_job}).out, "hello\n");
    EXPECT_EQ(mycojobs_({"job", "cancel", cancelled_job}).code, 0);
    EXPECT_TRUE(mycojobs_.wait_for_value(cancelled_job, "detail", "cancelled"));
    return std::max(read_ended_ms(cancelled_job), read_ended_ms(finished_job));
  }
};

TEST_F(IsolationE2e, HangingPrepareDelaysNoOtherJob) {
  Process agent = start_registered_agent(1, {"--slots", "8", "--plugins-dir", install_plugin("plugin_sleeps.so")});
  std::vector<std::string> hanging_jobs;
  for (int i = 0; i < 4; ++i) hanging_jobs.push_back(submit_cat(2 + i));
  const std::uint64_t other_jobs_ended_ms = run_other_jobs();
  std::size_t later_end_count = 0;
  for (const std::string& job : hanging_jobs) later_end_count += read_ended_ms(job) > other_jobs_ended_ms ? 1 : 0;
  EXPECT_GT(later_end_count, 0U);
  // The plugin pauses between its faults: 40 s in total on an idle machine.
  EXPECT_TRUE(mycojobs_.wait_for_value(hanging_jobs[0], "detail", "setup_error", Seconds(100)))
      << mycojobs_.read_field(hanging_jobs[0], "detail");
  EXPECT_NE(mycojobs_.read_field(hanging_jobs[0], "error").find("plugin cat"), std::string::npos);
  EXPECT_EQ(mycojobs_({"job", "cancel", hanging_jobs[3]}).code, 0);
  EXPECT_TRUE(eventually([&] { return mycojobs_.read_field(hanging_jobs[3], "status") == "error"; }));
}

TEST_F(IsolationE2e, HangingInterpretDelaysNoOtherJob) {
  Process agent =
      start_registered_agent(1, {"--slots", "8", "--plugins-dir", install_plugin("plugin_interpret_sleeps.so")});
  std::vector<std::string> hanging_jobs;
  for (int i = 0; i < 3; ++i) hanging_jobs.push_back(submit_cat());
  const std::uint64_t other_jobs_ended_ms = run_other_jobs();
  std::uint64_t last_ended_ms = 0;
  for (const std::string& job : hanging_jobs) {
    EXPECT_TRUE(mycojobs_.wait_for_value(job, "status", "finished")) << "the default result is used";
    last_ended_ms = std::max(last_ended_ms, read_ended_ms(job));
  }
  EXPECT_GT(last_ended_ms, 0U);
  RecordProperty("others_over_ms_before", static_cast<int>(last_ended_ms - other_jobs_ended_ms));
}

// The last close of a socket with SO_LINGER can block for as long as its owner chooses. The job tries to make another
// process execute that close: the job sends such sockets over all its descriptors, and closes such a socket while the
// launcher processes a call to listen().
TEST_F(IsolationE2e, LingeringSocketDelaysNoOtherJob) {
  const std::string config =
      folder_.write("linger.toml", "[ceiling]\nnet = \"loopback\"\nsyscalls.add = [\"setsockopt\"]\n");
  const std::string policy = folder_.write("policy.toml", "net = \"loopback\"\nsyscalls.add = [\"setsockopt\"]\n");
  Process agent = start_registered_agent(1, {"--slots", "8", "--config", config});
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
  const std::string attacking_job = mycojobs_.submit(script, {"--policy", policy, "--config", config});
  EXPECT_TRUE(mycojobs_.wait_for_value(attacking_job, "status", "started"));
  run_other_jobs();
  // The attack can block in listen() on its own socket for minutes, so the test does not wait for its end.
  ASSERT_TRUE(eventually([&] {
    return mycojobs_({"job", "logs", attacking_job}).out.find("asked") != std::string::npos;
  })) << mycojobs_({"job", "logs", attacking_job}).out;
  for (int i = 0; i < 5; ++i) run_other_jobs();
  EXPECT_EQ(mycojobs_({"job", "logs", attacking_job}).out.find("sent"), std::string::npos);
  EXPECT_EQ(mycojobs_.read_field(attacking_job, "status"), "started") << "the lease is renewed";
  EXPECT_EQ(mycojobs_({"job", "cancel", attacking_job}).code, 0);
  EXPECT_TRUE(mycojobs_.wait_for_value(attacking_job, "detail", "cancelled"));
}

TEST_F(IsolationE2e, LockedDiskDelaysNoOtherJob) {
  const std::string state = folder_ / "agent1";
  Process agent = start_registered_agent(1, {"--slots", "12"});
  const std::string first = mycojobs_.submit("import mycojobs\n(mycojobs.artifacts / 'f').write_text('x')");
  ASSERT_TRUE(mycojobs_.wait_for_value(first, "status", "finished"));
  const Fd lock(::open((state + "/contexts/1/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_TRUE(lock);
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  std::vector<std::string> jobs_with_artifacts;  // each waits 2 s for the lock, one after another
  for (int i = 0; i < 10; ++i)
    jobs_with_artifacts.push_back(mycojobs_.submit("import mycojobs\n(mycojobs.artifacts / 'f').write_text('x')"));
  const std::uint64_t other_jobs_ended_ms = run_other_jobs();
  EXPECT_GT(read_ended_ms(jobs_with_artifacts.back()), other_jobs_ended_ms);
  ASSERT_EQ(::flock(lock.get(), LOCK_UN), 0);
  for (const std::string& job : jobs_with_artifacts) EXPECT_TRUE(mycojobs_.wait_for_value(job, "status", "finished"));
  EXPECT_NE(mycojobs_.read_field(jobs_with_artifacts.back(), "artifacts"), "")
      << "the last job must get the lock within its time-out";
}

TEST_F(IsolationE2e, HangingGrantedFolderDelaysNoOtherJob) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "this machine has no /dev/fuse";
  HangingFolder folder;
  const std::string config = folder_.write("open.toml", "[ceiling]\nfs.read = [\"" + folder.path() + "\"]\n");
  const std::string policy = folder_.write("p.toml", "fs.read = [\"" + folder.path() + "\"]\n");
  Process agent = start_registered_agent(1, {"--slots", "4", "--config", config});
  const std::string waiting_job = mycojobs_.submit("pass", {"--config", config, "--policy", policy});
  ASSERT_TRUE(eventually([&] { return folder.waiting_count() > 0; })) << agent.err();
  const std::uint64_t other_jobs_ended_ms = run_other_jobs();
  EXPECT_GT(read_ended_ms(waiting_job), other_jobs_ended_ms);
  EXPECT_TRUE(eventually([&] { return agent.err().find("has not answered for 10 s") != std::string::npos; }));
  EXPECT_NE(agent.err().find(waiting_job + ": back to its queue: the granted " + folder.path()), std::string::npos)
      << agent.err();
  EXPECT_TRUE(eventually([&] { return mycojobs_.read_field(waiting_job, "status") == "dispatched"; }));
  run_other_jobs();
  folder.disconnect();
  EXPECT_TRUE(mycojobs_.wait_for_value(waiting_job, "detail", "setup_error"))
      << "the disk was disconnected permanently";
}

// The kernel holds the lock of stdout while it waits for the file, and reading stdout waits for that lock.
TEST_F(IsolationE2e, WriteFromAHangingFileDelaysNoOtherJob) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "this machine has no /dev/fuse";
  HangingFolder folder;
  const std::string config = folder_.write("open.toml", "[ceiling]\nfs.read = [\"" + folder.root() + "\"]\n");
  const std::string policy = folder_.write("p.toml", "fs.read = [\"" + folder.root() + "\"]\n");
  Process agent = start_registered_agent(1, {"--slots", "4", "--config", config});
  const std::string script =
      "import mmap, os, time\n"
      "file = os.open('" +
      folder.root() + "/" + HangingFolder::kFile + R"(', os.O_RDONLY)
hangs = mmap.mmap(file, 4096, prot=mmap.PROT_READ)
full = b'x' * 4095 + b'\n'
os.write(1, b'begins\n')
os.writev(1, [full, hangs])
time.sleep(600)  # the write returns at the end of the test, perhaps before the cancellation arrives
)";
  const std::string attacking_job = mycojobs_.submit(script, {"--config", config, "--policy", policy});
  ASSERT_TRUE(eventually([&] { return folder.waiting_count() > 0; })) << agent.err();
  run_other_jobs();
  run_other_jobs();
  EXPECT_EQ(mycojobs_.read_field(attacking_job, "status"), "started") << "the lease is renewed";
  EXPECT_EQ(mycojobs_({"job", "cancel", attacking_job}).code, 0);
  folder.disconnect();  // a process that reads from a FUSE server cannot be killed until the server answers
  EXPECT_TRUE(mycojobs_.wait_for_value(attacking_job, "detail", "cancelled"));
  EXPECT_NE(mycojobs_({"job", "logs", attacking_job}).out.find("begins"), std::string::npos);
}

TEST_F(IsolationE2e, SilentRedisOfAContextDelaysNoOther) {
  TempDir other_folder;
  RedisServer other_redis(other_folder);
  const std::string config = folder_.write("two.toml", "[contexts.3]\nredis = \"" + other_redis.url() + "\"\n");
  Process agent = start_registered_agent(1, {"--slots", "8", "--config", config, "--context", "1,3"});
  ASSERT_TRUE(wait_until_registered(other_redis, 1, 3)) << agent.err();
  PlainJob ending_job{.id = 1, .context = 3, .script = "import time\nprint('up', flush=True)\ntime.sleep(1)"};
  PlainJob waiting_job{.id = 2, .context = 3};
  submit(other_redis, ending_job);
  ASSERT_TRUE(eventually([&] { return read_field(other_redis, ending_job, "status") == "started"; }));
  ::kill(other_redis.pid(), SIGSTOP);
  run_other_jobs();
  run_other_jobs();
  ::kill(other_redis.pid(), SIGCONT);
  submit(other_redis, waiting_job);
  EXPECT_EQ(wait_for_status(other_redis, waiting_job), "finished") << agent.err();
  EXPECT_EQ(wait_for_status(other_redis, ending_job), "finished") << agent.err();
}

TEST_F(IsolationE2e, HangingRedisAtStartDelaysNoOtherContext) {
  TempDir other_folder;
  RedisServer other_redis(other_folder);
  const PlainJob waiting_job{.id = 1, .context = 3};
  submit(other_redis, waiting_job);
  ::kill(other_redis.pid(), SIGSTOP);
  const std::string config = folder_.write("two.toml", "[contexts.3]\nredis = \"" + other_redis.url() + "\"\n");
  Process agent = start_registered_agent(1, {"--slots", "8", "--config", config, "--context", "3,1"});
  run_other_jobs();
  ::kill(other_redis.pid(), SIGCONT);
  EXPECT_EQ(wait_for_status(other_redis, waiting_job), "finished") << agent.err();
  EXPECT_NE(agent.err().find("context 3: runner 1 is registered"), std::string::npos) << agent.err();
  run_other_jobs();
}

}  // namespace
}  // namespace mycojobs::test
