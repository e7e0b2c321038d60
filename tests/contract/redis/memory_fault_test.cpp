// Fault injection for callers of a store: calls that fail before or after their work, and a stop at each write.
#include <gmock/gmock.h>

#include <atomic>

#include "contract/store_contract.h"
#include "support/hand_clock.h"
#include "support/redis/memory_server.h"

namespace mycojobs {
namespace {

using test::ManualClock;

using testing::ElementsAre;

class MemoryFault : public testing::Test {
 protected:
  static Job job() {
    Job out;
    out.id = 1;
    out.caller_id = 12;
    out.context_id = 1;
    out.script = "x";
    out.script_type = "python";
    return out;
  }
  std::uint64_t queued() { return server_.run_command(1, {"LLEN", "queue:python"}).number(); }

  ManualClock clock_;
  MemoryServer server_{clock_};
  std::unique_ptr<Store> store_ = server_.open().value();
};

TEST_F(MemoryFault, LostReplyMeansThatTheCallHappened) {
  Fault next = Fault::before;
  server_.set_faults(
      [&](std::string_view call) { return call == "submit" ? std::exchange(next, Fault::none) : Fault::none; });
  EXPECT_EQ(outcome(store_->submit(job())), "unavailable");
  EXPECT_EQ(queued(), 0U);
  next = Fault::after;
  EXPECT_EQ(outcome(store_->submit(job())), "unavailable");
  EXPECT_EQ(queued(), 1U);
  EXPECT_EQ(outcome(store_->submit(job())), "ok");
  EXPECT_EQ(queued(), 1U);
}

// Otherwise the jobs would stay claimed until their leases expire, because the agent does not know about them.
TEST_F(MemoryFault, ClaimWithALostReplyIsReturnedByTheNextClaim) {
  ASSERT_TRUE(store_->submit(job()));
  ClaimRequest request;
  request.context = 1;
  request.runner = 20;
  request.queues = {"queue:python"};
  Fault next = Fault::after;
  server_.set_faults(
      [&](std::string_view call) { return call == "claim" ? std::exchange(next, Fault::none) : Fault::none; });
  EXPECT_EQ(outcome(store_->claim(request)), "unavailable");
  EXPECT_EQ(queued(), 0U);
  const auto again = store_->claim(request).value().jobs;
  ASSERT_EQ(again.size(), 1U);
  EXPECT_EQ(again[0].deliveries, 1U) << "no agent ran it";
  EXPECT_TRUE(store_->claim(request).value().jobs.empty());
}

TEST_F(MemoryFault, WritingCallsAreNumberedAndReadingCallsNamed) {
  std::vector<std::string> calls;
  server_.set_faults([&](const ServerCall& call) {
    calls.push_back(std::string(call.name) + " " + std::to_string(call.write));
    return call.name == "LLEN" ? Fault::after : Fault::none;
  });
  ASSERT_TRUE(store_->submit(job()));
  EXPECT_EQ(outcome(store_->queue_length(1, "queue:python")), "unavailable");
  ASSERT_TRUE(store_->load(1, "job:12:1"));
  ASSERT_TRUE(store_->save(1, "job:12:1", {{"name", "n"}}));
  server_.push(1, "queue:python", "job:12:1");  // commands of plain clients do not fail
  EXPECT_THAT(calls, ElementsAre("submit 1", "LLEN 0", "load 0", "HSET 2"));
  EXPECT_EQ(server_.writes(), 2U);
}

TEST_F(MemoryFault, SnapshotContainsTheWholeServer) {
  ASSERT_TRUE(store_->submit(job()));
  const auto before = server_.snapshot();
  server_.run_command(2, {"SET", "text", "other database"});
  ASSERT_TRUE(store_->cancel(1, "job:12:1"));
  EXPECT_NE(server_.snapshot().databases, before.databases);
  server_.restore(before);
  EXPECT_EQ(server_.snapshot().databases, before.databases);
  EXPECT_EQ(server_.writes(), 1U);
  EXPECT_EQ(store_->load(1, "job:12:1").value().empty(), false);
  EXPECT_EQ(queued(), 1U);
  EXPECT_TRUE(server_.run_command(2, {"GET", "text"}).is_nil());
  EXPECT_EQ(server_.snapshot().databases, before.databases) << "reading changes nothing";
}

// Shows how a scenario is stopped at each of its writes and then repeated.
TEST_F(MemoryFault, ScenarioStoppedAtAnyWriteRecoversWhenRepeated) {
  const auto scenario = [&]() -> Result<void> {
    MJ_CHECK(store_->submit(job()));
    MJ_CHECK(store_->set_queue_paused(1, "queue:python", true));
    return store_->cancel(1, "job:12:1");
  };
  const auto empty = server_.snapshot();
  ASSERT_TRUE(scenario());
  const auto undisturbed = server_.run_command(1, {"HGETALL", "job:12:1"}).fields();
  const std::uint64_t writes = server_.writes();
  ASSERT_GE(writes, 3U);
  for (std::uint64_t stop = 1; stop <= writes; ++stop) {
    for (const Fault how : {Fault::before, Fault::after}) {
      server_.restore(empty);
      bool stopped = false;
      server_.set_faults([&](const ServerCall& call) {
        if (stopped) return Fault::before;
        stopped = call.write == stop;
        return stopped ? how : Fault::none;
      });
      EXPECT_EQ(outcome(scenario()), "unavailable") << stop;
      server_.set_faults({});
      EXPECT_EQ(outcome(scenario()), "ok") << stop;
      EXPECT_EQ(server_.run_command(1, {"HGETALL", "job:12:1"}).fields(), undisturbed) << stop;
    }
  }
}

TEST_F(MemoryFault, ManyThreadsShareOneServer) {
  std::vector<std::thread> threads;
  std::atomic<int> added{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const auto store = server_.open().value();
      for (int n = 0; n < 100; ++n) {
        Job one = job();
        one.id = 0;
        added += store->submit(one) ? 1 : 0;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(added, 400);
  EXPECT_EQ(queued(), 400U);
}

TEST_F(MemoryFault, LogReaderWakesAtItsFirstLine) {
  ASSERT_TRUE(store_->submit(job()));
  std::thread other([&] {
    server_.run_command(1, {"XADD", "mj:log:job:12:1", "1-0", "ts", "1", "stream", "stdout", "text", "x"});
  });
  const auto page = store_->logs(1, "job:12:1", 0, 10, 60000);
  other.join();
  ASSERT_TRUE(page) << page.error().message;
  EXPECT_EQ(page->lines.size(), 1U);
}

}  // namespace
}  // namespace mycojobs
