// Jobs with external prerequisites, checked by the thread of a real agent over an in-memory store.
#include "worker/upkeep/prerequisite_loop.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <ostream>
#include <thread>

#include "jobs/prerequisite_checks.h"
#include "model/enums.h"
#include "support/agent_fixture.h"
#include "support/hanging_folder.h"

namespace mycojobs::test {
namespace {

// A loopback socket that sends the same bytes to every connection; an empty answer sends nothing.
class TcpPeer {
 public:
  explicit TcpPeer(std::string answer = "")
      : answer_(std::move(answer)), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    socklen_t size = sizeof at;
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&at), &size);
    port_ = ntohs(at.sin_port);
  }
  ~TcpPeer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }
  // Connections are refused before this call.
  void listen() {
    ASSERT_EQ(::listen(listener_.get(), 16), 0);
    thread_ = std::thread([this] {
      for (;;) {
        const Fd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!peer) return;
        char request[2048];
        if (!answer_.empty()) (void)!::recv(peer.get(), request, sizeof request, 0);
        (void)!::send(peer.get(), answer_.data(), answer_.size(), MSG_NOSIGNAL);
      }
    });
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  std::string answer_;
  Fd listener_;
  int port_ = 0;
  std::thread thread_;
};

class PrerequisiteTest : public AgentTest {
 protected:
  TempDir folder_;

  std::string submit_waiting(std::vector<std::string> prerequisites) {
    Job job = new_job();
    job.prerequisites = std::move(prerequisites);
    return submit(job);
  }
  bool is_parked(const std::string& key) {
    return eventually([&] { return read(key).status == JobStatus::waiting_for_prerequisites; });
  }
  // Returns whether the job runs to its end once its conditions are met.
  bool runs(const std::string& key) {
    return eventually([&] {
             control_.end_all(RunStatus::ok);
             return read(key).ended_ms != 0;
           }) &&
           read(key).status == JobStatus::finished;
  }
  Result<bool> answer(const std::string& key, const std::string& name, bool approved = true) {
    return client_->answer_prerequisite(1, key, {name, approved, 12, "read it"});
  }
  std::string wait_for_error(const std::string& key) {
    EXPECT_TRUE(wait_for_end(key));
    EXPECT_EQ(read(key).status, JobStatus::error);
    EXPECT_EQ(read(key).detail, "prerequisite");
    return read(key).error;
  }
};

TEST_F(PrerequisiteTest, TimeConditionsAreMet) {
  start();
  const std::string wait = submit_waiting({"wait:300ms"});
  const std::string at = submit_waiting({"at:2020-01-01T00:00:00Z", "wait:1ms"});
  const std::string never = submit_waiting({"at:2999-01-01T00:00:00Z"});
  EXPECT_TRUE(runs(wait));
  EXPECT_TRUE(runs(at));
  EXPECT_GE(read(wait).started_ms, read(wait).queued_ms + 300);
  EXPECT_EQ(read(never).status, JobStatus::waiting_for_prerequisites);
}

TEST_F(PrerequisiteTest, KeysOfAnyTypeAreSeen) {
  start();
  const std::string text = submit_waiting({"redis:ready"});
  const std::string hash = submit_waiting({"redis:state:12"});
  ASSERT_TRUE(is_parked(text) && is_parked(hash));
  server_.run_command(2, {"SET", "ready", "another context's"});
  eventually([] { return false; }, Seconds(1.5));
  EXPECT_EQ(read(text).status, JobStatus::waiting_for_prerequisites);
  server_.put_text(1, "ready", "1");
  server_.run_command(1, {"HSET", "state:12", "a", "b"});
  EXPECT_TRUE(runs(text));
  EXPECT_TRUE(runs(hash));
}

TEST_F(PrerequisiteTest, AllConditionsMustBeMetTogether) {
  settings_.allowed_prerequisites = {"file:" + folder_.path().string() + "/"};
  start();
  const std::string path = folder_ / "flag";
  const std::string key = submit_waiting({"file:" + path, "redis:ready"});
  ASSERT_TRUE(is_parked(key));
  server_.put_text(1, "ready", "1");
  eventually([] { return false; }, Seconds(1.5));
  EXPECT_EQ(read(key).status, JobStatus::waiting_for_prerequisites);
  folder_.write("flag", "");
  EXPECT_TRUE(runs(key));
}

TEST_F(PrerequisiteTest, HangingFileDelaysOnlyItsWaiters) {
  if (::geteuid() != 0 || ::access("/dev/fuse", R_OK | W_OK) != 0)
    GTEST_SKIP() << "only root can mount a file system of its own, where there is /dev/fuse";
  HangingFolder hangs;
  settings_.allowed_prerequisites = {"file:/"};
  start();
  const std::string hanging_job = submit_waiting({"file:" + hangs.path() + "/flag"});
  ASSERT_TRUE(eventually([&] { return hangs.waiting_count() > 0; }));
  folder_.write("flag", "");
  EXPECT_TRUE(runs(submit_waiting({"wait:1ms", "file:" + (folder_ / "flag")})));
  server_.put_text(1, "ready", "1");
  EXPECT_TRUE(runs(submit_waiting({"redis:ready"})));
  EXPECT_EQ(read(hanging_job).status, JobStatus::waiting_for_prerequisites);
  EXPECT_EQ(hangs.waiting_count(), 1) << "the check runs only once";
}

TEST_F(PrerequisiteTest, ImpossibleConditionEndsTheJobAtOnce) {
  settings_.allowed_prerequisites = {"file:/data/"};
  start();
  EXPECT_EQ(wait_for_error(submit_waiting({"wait:1ms", "moon:full"})),
            "prerequisite \"moon:full\": has an unknown kind: use wait:, at:, redis:, file:, tcp:, http://, https://, "
            "approval: or flow:");
  EXPECT_EQ(wait_for_error(submit_waiting({"file:/data/../etc/passwd"})),
            "prerequisite \"file:/data/../etc/passwd\": is not allowed on this host: the operator's setting "
            "prerequisites.allow has no matching prefix");
  EXPECT_NE(wait_for_error(submit_waiting({"redis:mj:leases"})).find("are not for jobs"), std::string::npos);
  EXPECT_EQ(wait_for_error(submit_waiting(std::vector<std::string>(101, "wait:1ms"))),
            "prerequisites: 101 are more than the 100 that are read");
  EXPECT_EQ(control_.launches, 0U);
}

TEST_F(PrerequisiteTest, WaitHasALimitExceptForAppointments) {
  settings_.prerequisites_timeout_ms = 1000;
  start();
  const std::string job = submit_waiting({"approval:legal"});
  const std::string later = submit_waiting({"at:2999-01-01T00:00:00Z"});
  EXPECT_EQ(wait_for_error(job), "prerequisite \"approval:legal\" was not met within 1 s (prerequisites.timeout)");
  EXPECT_EQ(read(later).status, JobStatus::waiting_for_prerequisites);
}

TEST_F(PrerequisiteTest, ApprovalIsGivenByName) {
  start();
  const std::string key = submit_waiting({"approval:legal", "approval:money"});
  ASSERT_TRUE(is_parked(key));
  EXPECT_EQ(answer(key, "other").error().code, Code::not_found);
  EXPECT_EQ(answer(key, "no name").error().code, Code::invalid);
  EXPECT_EQ(answer("job:1:999", "legal").error().code, Code::not_found);
  EXPECT_TRUE(answer(key, "legal").value());
  EXPECT_FALSE(answer(key, "legal").value()) << "again";
  eventually([] { return false; }, Seconds(1.5));
  EXPECT_EQ(read(key).status, JobStatus::waiting_for_prerequisites) << "the other prerequisite is not approved yet";
  EXPECT_TRUE(answer(key, "money").value());
  EXPECT_TRUE(runs(key));
  EXPECT_EQ(answer(key, "money").error().code, Code::conflict) << "the job has ended";
  const auto log = client_->logs(1, key, 0, 10, 0).value();
  ASSERT_FALSE(log.lines.empty());
  EXPECT_EQ(log.lines[0].text, "approval:legal was given by 12: read it\n");
}

TEST_F(PrerequisiteTest, RejectionEndsTheJob) {
  start();
  const std::string key = submit_waiting({"approval:legal"});
  ASSERT_TRUE(is_parked(key));
  EXPECT_TRUE(answer(key, "legal", false).value());
  EXPECT_EQ(wait_for_error(key), "approval:legal was rejected by 12: read it");
  EXPECT_EQ(control_.launches, 0U);
}

TEST_F(PrerequisiteTest, FailedFlowNeverMeetsACondition) {
  start();
  server_.run_command(1, {"HSET", "flow:12", "id", "12", "status", "started"});
  const std::string job = submit_waiting({"flow:12"});
  ASSERT_TRUE(is_parked(job));
  eventually([] { return false; }, Seconds(1.5));
  EXPECT_EQ(read(job).status, JobStatus::waiting_for_prerequisites);
  server_.run_command(1, {"HSET", "flow:12", "status", "finished"});
  EXPECT_TRUE(runs(job));
  server_.run_command(1, {"HSET", "flow:13", "id", "13", "status", "error", "detail", "failed", "error", "no disk"});
  EXPECT_EQ(wait_for_error(submit_waiting({"flow:13"})),
            "prerequisite \"flow:13\": flow 13 has ended as error (failed): no disk");
  EXPECT_EQ(wait_for_error(submit_waiting({"flow:14"})), "prerequisite \"flow:14\": flow 14 does not exist");
  EXPECT_NE(wait_for_error(submit_waiting({"flow:x"})).find("write the id of a flow"), std::string::npos);
  EXPECT_NE(wait_for_error(submit_waiting({"approval:a b"})).find("write a name"), std::string::npos);
}

// Callers 7 and 66 are submitters. For caller 7 the records of caller 66 are indistinguishable from absent records.
TEST_F(PrerequisiteTest, UnreadableRecordsLookMissing) {
  server_.run_command(1, {"HSET", "context:1", "id", "1", "admins", "[1]", "submitters", "[7,66]"});
  server_.run_command(1, {"HSET", "job:66:1", "id", "1", "caller_id", "66", "status", "finished"});
  server_.run_command(1, {"HSET", "message:66:1", "id", "1"});
  server_.put_text(1, "job:66:2", "no record");
  for (const char* flow : {"20", "21", "22"})
    server_.run_command(1, {"HSET", std::string("flow:") + flow, "id", flow, "caller_id", "66", "status", "started"});
  server_.run_command(1, {"HSET", "flow:20", "status", "finished"});
  server_.run_command(1, {"HSET", "flow:21", "status", "error", "error", "the card was refused"});
  start(4);
  for (const char* flow : {"20", "21", "22", "29"}) {
    const std::string name = std::string("flow:") + flow;
    EXPECT_EQ(wait_for_error(submit_waiting({name})),
              "prerequisite \"" + name + "\": flow " + flow + " does not exist");
  }
  std::vector<std::string> waiting;
  for (const char* key : {"job:66:1", "job:66:2", "job:66:3", "message:66:1", "flow:20", "flow:29", "context:1",
                          "queue:fake", "runner:1", "runner:2"})
    waiting.push_back(submit_waiting({std::string("redis:") + key}));
  server_.run_command(1, {"HSET", "job:7:900", "id", "900"});
  server_.run_command(1, {"HSET", "flow:30", "id", "30", "caller_id", "7", "status", "finished"});
  server_.put_text(1, "ready", "1");
  EXPECT_TRUE(runs(submit_waiting({"redis:job:7:900", "redis:flow:30", "flow:30", "redis:ready"})))
      << "the keys belong to the context of the job";
  eventually([] { return false; }, Seconds(1.5));
  for (const std::string& key : waiting) {
    EXPECT_EQ(read(key).status, JobStatus::waiting_for_prerequisites) << key;
    EXPECT_EQ(read(key).error, "") << key;
  }
  server_.run_command(1, {"HSET", "context:1", "readers", "[7]"});
  EXPECT_TRUE(runs(waiting[0])) << "a reader of the context can read all its keys";
  EXPECT_TRUE(runs(submit_waiting({"flow:20"})));
}

// Observable results of a check of one condition of caller 7: the calls to the store, and the state of the job.
struct ConditionCheck {
  std::vector<std::string> calls;
  std::string outcome;
  bool operator==(const ConditionCheck&) const = default;
};
std::ostream& operator<<(std::ostream& out, const ConditionCheck& shown) {
  for (const std::string& call : shown.calls) out << call << ' ';
  return out << shown.outcome;
}
ConditionCheck check_condition(const std::string& condition, const std::string& admins, std::string_view fails = "") {
  const SystemClock clock;
  MemoryServer server{clock};
  const auto store = server.open().value();
  server.run_command(1, {"HSET", "context:1", "id", "1", "admins", "[1]", "submitters", "[7,66]"});
  server.run_command(1, {"HSET", "job:66:1", "id", "1", "caller_id", "66", "status", "finished"});
  server.run_command(1, {"HSET", "flow:20", "id", "20", "caller_id", "66", "status", "finished"});
  server.put_text(1, "flow:21", "no flow");
  Job job;
  job.caller_id = 7;
  job.context_id = 1;
  job.script = "x";
  job.script_type = "fake";
  job.prerequisites = {condition};
  const std::string key = redis_key(store->submit(job).value());
  ClaimRequest request;
  request.context = 1;
  request.runner = 1;
  request.instance = "agent";
  request.queues = {"queue:fake"};
  request.max_jobs = 1;
  request.lease_ms = 60'000;
  EXPECT_TRUE(store->claim(request).value().jobs.empty()) << "the job waits";
  server.run_command(1, {"HSET", "context:1", "admins", admins});
  ConditionCheck shown;
  server.set_faults([&](const ServerCall& call) {
    shown.calls.emplace_back(call.name);
    const bool is_late = call.name == fails && std::count(shown.calls.begin(), shown.calls.end(), fails) > 1;
    return is_late ? Fault::before : Fault::none;
  });
  PrerequisiteEvaluator evaluator(*store, clock, {});
  const auto checked = evaluator.check_due_jobs(1);
  server.set_faults(nullptr);
  const Job after = decode<Job>(*store->load(1, key)).record;
  shown.outcome =
      checked ? std::string(to_string(after.status)) + ' ' + after.error : std::string(to_string(checked.error().code));
  const std::size_t id = condition.find_last_of(':') + 1;
  for (std::size_t at = 0; (at = shown.outcome.find(condition.substr(id), at)) != std::string::npos;)
    shown.outcome.replace(at, condition.size() - id, "N");
  return shown;
}

// Neither the number of calls nor an error of one of them says whether there is a record that caller 7 may not read.
TEST(PrerequisiteCalls, AreTheSameForMissingAndUnreadableRecords) {
  const std::pair<const char*, const char*> pairs[] = {{"flow:29", "flow:20"},
                                                       {"flow:29", "flow:21"},
                                                       {"redis:flow:29", "redis:flow:20"},
                                                       {"redis:flow:29", "redis:flow:21"},
                                                       {"redis:job:66:9", "redis:job:66:1"}};
  for (const auto& [absent, unreadable] : pairs) {
    const ConditionCheck expected = check_condition(absent, "[1]");
    EXPECT_EQ(check_condition(unreadable, "[1]"), expected) << unreadable;
    EXPECT_GE(expected.calls.size(), 3U);
    EXPECT_EQ(check_condition(unreadable, "no list"), check_condition(absent, "no list")) << unreadable;
    const std::string_view read = expected.calls[1];
    EXPECT_EQ(check_condition(unreadable, "[1]", read), check_condition(absent, "[1]", read)) << unreadable;
  }
}

TEST_F(PrerequisiteTest, PortsAreChecked) {
  TcpPeer peer;
  settings_.allowed_prerequisites = {"tcp:127.0.0.1:"};
  start();
  const std::string key = submit_waiting({"tcp:" + peer.address()});
  ASSERT_TRUE(is_parked(key));
  eventually([] { return false; }, Seconds(1.5));
  EXPECT_EQ(read(key).status, JobStatus::waiting_for_prerequisites) << "the connection was refused";
  peer.listen();
  EXPECT_TRUE(runs(key));
}

TEST_F(PrerequisiteTest, StatusBelow400IsMet) {
  const std::pair<const char*, bool> answers[] = {
      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", true},
      {"HTTP/1.1 204 No Content\r\n\r\n", true},
      {"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", true},
      {"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno!", false},
      {"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", false},
      {"not HTTP at all\r\n\r\n", false},
      {"", false},
  };
  settings_.allowed_prerequisites = {"http://127.0.0.1"};
  std::vector<std::unique_ptr<TcpPeer>> peers;
  std::vector<std::string> keys;
  settings_.allowed_prerequisites.clear();
  for (const auto& [answer, yes] : answers) {
    peers.push_back(std::make_unique<TcpPeer>(answer));
    peers.back()->listen();
    settings_.allowed_prerequisites.push_back("http://" + peers.back()->address() + "/");
  }
  start();
  for (const auto& peer : peers) keys.push_back(submit_waiting({"http://" + peer->address() + "/health?q=1"}));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (answers[i].second) {
      EXPECT_TRUE(runs(keys[i])) << answers[i].first;
    }
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!answers[i].second) {
      EXPECT_EQ(read(keys[i]).status, JobStatus::waiting_for_prerequisites) << answers[i].first;
    }
  }
}

TEST_F(PrerequisiteTest, SilentHostDelaysNoOther) {
  TcpPeer silent("");  // accepts connections but never answers
  silent.listen();
  TcpPeer good("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
  good.listen();
  // Fills the backlog of a socket that never accepts, so that the next connection blocks.
  const Fd deaf(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  ASSERT_EQ(::bind(deaf.get(), reinterpret_cast<sockaddr*>(&at), size), 0);
  ASSERT_EQ(::listen(deaf.get(), 0), 0);
  ::getsockname(deaf.get(), reinterpret_cast<sockaddr*>(&at), &size);
  std::vector<Fd> full;
  for (int i = 0; i < 3; ++i) {
    full.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    (void)::connect(full.back().get(), reinterpret_cast<sockaddr*>(&at), size);
  }
  settings_.allowed_prerequisites = {"tcp:", "http:"};
  start();
  const std::string hangs = submit_waiting({"tcp:127.0.0.1:" + std::to_string(ntohs(at.sin_port))});
  ASSERT_TRUE(is_parked(hangs));
  const std::string key = submit_waiting({"http://" + good.address() + "/"});
  const std::string soon = submit_waiting({"wait:1ms"});
  EXPECT_TRUE(runs(soon));
  EXPECT_TRUE(runs(key));
  EXPECT_EQ(read(hangs).status, JobStatus::waiting_for_prerequisites);
  agent_.reset();  // the destructor does not wait for blocked checks
}

TEST_F(PrerequisiteTest, ReturningStoreIsAskedAgain) {
  std::atomic<int> failures{3};
  const auto faulty = with_faults([&](std::string_view call) {
    return call.starts_with("prerequisites") && failures-- > 0 ? Fault::after : Fault::none;
  });
  start();
  EXPECT_TRUE(runs(submit_waiting({"wait:1ms"})));
}

TEST_F(PrerequisiteTest, ManyJobsAreAllCheckedInPages) {
  start(8);
  std::vector<std::string> keys;
  for (int i = 0; i < 150; ++i) keys.push_back(submit_waiting({"redis:ready"}));
  server_.put_text(1, "ready", "1");
  for (const std::string& key : keys) EXPECT_TRUE(runs(key));
}

}  // namespace
}  // namespace mycojobs::test
