// The log of an instance consists of the lines that the jobs of its effects have written: each line once, in order;
// missing lines are reported.
#include <gmock/gmock.h>

#include "service/workflow_logs.h"
#include "text/cbor.h"
#include "worlds/world_stage.h"

namespace mycojobs {
namespace {

using nlohmann::json;
using service::InstanceLog;
using service::LogFrame;
using service::LogRequest;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class DeploymentLogs : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(stage_.apply());
    stage_.writes = [](const Job& job) { return std::vector<std::string>{job.name + " begins\n", "it ends\n"}; };
  }
  Result<InstanceLog> read(int id, const std::string& after = "", std::uint64_t limit = service::kLogFrames) {
    return service::read_instance_log(stage_.by, stage_.stores(), {"order", std::to_string(id)}, {after, limit});
  }
  // Returns all current frames, read in pages of `limit`.
  std::vector<LogFrame> all(int id, std::uint64_t limit = service::kLogFrames) {
    std::vector<LogFrame> frames;
    InstanceLog page;
    page.has_more = true;
    while (page.has_more) {
      auto next = read(id, page.after, limit);
      if (!next) ADD_FAILURE() << next.error().message;
      if (!next) break;
      page = std::move(*next);
      EXPECT_LE(page.frames.size(), limit);
      for (LogFrame& frame : page.frames) frames.push_back(std::move(frame));
    }
    after_ = page.after, ended_ = page.ended;
    return frames;
  }
  static std::vector<std::string> texts(const std::vector<LogFrame>& frames) {
    std::vector<std::string> out;
    for (const LogFrame& frame : frames)
      out.push_back(frame.effect_ref + ' ' + std::to_string(frame.line.seq) + ' ' + frame.line.text);
    return out;
  }
  void write(const std::string& job, int seq, const std::string& text) {
    stage_.server.run_command(
        1, {"XADD", "mj:log:" + job, std::to_string(seq) + "-0", "ts", "5", "stream", "stdout", "text", text + "\n"});
  }
  // The jobs of an order are never taken: each Placed event requests another job, and Closed ends the order.
  void let_jobs_wait() {
    stage_.code = [](const WorkflowSpec&, const StepRequest& request) -> Result<StepOutput> {
      StepOutput out;
      const json event = decode_cbor(request.event.value).value();
      if (event.at("$tag") != "Placed") return out;
      out.state = encode_cbor(json::object()).value();
      out.effects.push_back({"acme/never@1", encode_cbor(json::object()).value(), 0, "ref"});
      return out;
    };
  }
  void settle_down() {
    for (int i = 0; i < 5; ++i) stage_.step();
  }
  WorldStage stage_;
  std::string after_;
  bool ended_ = false;
};

TEST_F(DeploymentLogs, LinesOfAllEffectsAreInJournalOrder) {
  stage_.place_order(2, "job");
  stage_.place_order(1, "all");
  ASSERT_TRUE(stage_.play());
  const std::vector<LogFrame> frames = all(1);
  EXPECT_THAT(texts(frames), ElementsAre(HasSubstr(" 1 acme/pay@1 begins"), HasSubstr(" 2 it ends"),
                                         HasSubstr(" 1 acme/slow@1 begins"), HasSubstr(" 2 it ends"),
                                         HasSubstr("`mycojobs flow logs ")))
      << "a timer writes nothing, a flow is named, order 2 is another's";
  EXPECT_EQ(frames[0].effect, "acme/pay@1");
  EXPECT_EQ(stage_.text({"HGET", frames[0].effect_ref, "idempotency_key"}), "intent " + frames[0].intent);
  EXPECT_FALSE(ended_) << "it may get another event";
  const json result = service::to_json(frames[0]);
  EXPECT_EQ(result.at("job"), frames[0].effect_ref);
  EXPECT_EQ(result.at("sequence"), 1);
  EXPECT_EQ(result.at("stream"), "stdout");
  EXPECT_TRUE(service::to_json(frames[4]).contains("flow"));
}

TEST_F(DeploymentLogs, PagesOfAnySizeGiveEachLineOnce) {
  stage_.place_order(1, "all");
  ASSERT_TRUE(stage_.play());
  const std::vector<std::string> whole = texts(all(1));
  ASSERT_EQ(whole.size(), 5U);
  for (std::uint64_t limit = 1; limit <= 6; ++limit) EXPECT_EQ(texts(all(1, limit)), whole) << limit;
}

TEST_F(DeploymentLogs, FollowerReceivesNewLinesAndEffects) {
  let_jobs_wait();
  stage_.place_order(1, "x");
  settle_down();
  EXPECT_THAT(all(1), IsEmpty());
  write("job:1:3", 1, "one");
  EXPECT_THAT(texts(read(1, after_)->frames), ElementsAre("job:1:3 1 one\n"));
  write("job:1:3", 2, "two");
  stage_.place_order(1, "x");
  settle_down();
  write("job:1:4", 1, "other");
  after_ = read(1, after_)->after;
  write("job:1:3", 3, "three");
  const auto page = read(1, after_);
  EXPECT_THAT(texts(page->frames), ElementsAre("job:1:3 3 three\n"));
  EXPECT_FALSE(page->has_more);
  EXPECT_FALSE(page->ended);
  EXPECT_THAT(texts(all(1)),
              ElementsAre("job:1:3 1 one\n", "job:1:3 2 two\n", "job:1:3 3 three\n", "job:1:4 1 other\n"));
}

TEST_F(DeploymentLogs, FollowingEndsWithTheInstanceAndItsLogs) {
  let_jobs_wait();
  stage_.place_order(1, "x");
  settle_down();
  ASSERT_TRUE(stage_.send("acme/Closed@1", {{"id", 1}}));
  settle_down();
  all(1);
  EXPECT_FALSE(ended_) << "its job may still write";
  ASSERT_TRUE(stage_.store->cancel(1, "job:1:3"));
  settle_down();
  EXPECT_TRUE(read(1, after_)->ended) << stage_.status(1);
  stage_.place_order(1, "x");
  settle_down();
  EXPECT_FALSE(read(1, after_)->ended) << "another life of it";
}

TEST_F(DeploymentLogs, LostLinesAreReported) {
  let_jobs_wait();
  stage_.place_order(1, "x");
  settle_down();
  for (int seq = 1; seq <= 5; ++seq) write("job:1:3", seq, "line " + std::to_string(seq));
  stage_.server.run_command(1, {"XDEL", "mj:log:job:1:3", "2-0", "3-0"});
  for (const std::uint64_t limit : {std::uint64_t{1}, std::uint64_t{2}, service::kLogFrames}) {
    const std::vector<LogFrame> frames = all(1, limit);
    EXPECT_THAT(texts(frames), ElementsAre("job:1:3 1 line 1\n", "job:1:3 2 2 pieces of this log are lost\n",
                                           "job:1:3 4 line 4\n", "job:1:3 5 line 5\n"));
    ASSERT_EQ(frames.size(), 4U);
    EXPECT_EQ(frames[1].dropped, 2U);
    EXPECT_EQ(frames[1].line.stream, LogStream::system);
  }
}

TEST_F(DeploymentLogs, RepeatedJobHasLostNothing) {
  stage_.place_order(1, "slow");
  ASSERT_TRUE(stage_.play());
  const std::string job = all(1).at(0).effect_ref;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(stage_.store->requeue(1, job));
    stage_.writes = nullptr;  // the second run writes no lines, so two end entries are adjacent
    if (i == 2) stage_.writes = [](const Job&) { return std::vector<std::string>{"again\n"}; };
    stage_.run_jobs();
  }
  for (const std::uint64_t limit : {std::uint64_t{1}, service::kLogFrames}) {
    const std::vector<LogFrame> frames = all(1, limit);
    EXPECT_EQ(frames.size(), 6U) << testing::PrintToString(texts(frames));  // a line for each run after the first
    EXPECT_EQ(frames.back().line.text, "again\n");
    for (const LogFrame& frame : frames) EXPECT_EQ(frame.dropped, 0U);
  }
}

TEST_F(DeploymentLogs, MissingLogIsReported) {
  stage_.place_order(1, "job");
  ASSERT_TRUE(stage_.play());
  ASSERT_TRUE(stage_.store->delete_record(1, all(1).at(0).effect_ref));
  EXPECT_THAT(texts(all(1)), ElementsAre(HasSubstr("no longer exists with its record")));
}

TEST_F(DeploymentLogs, PositionOfAnotherInstanceIsRejected) {
  let_jobs_wait();
  stage_.place_order(1, "x");
  stage_.place_order(2, "x");
  settle_down();
  all(1);
  EXPECT_EQ(read(2, after_).error().code, Code::invalid) << after_;
  for (const char* nonsense : {"1", "1.2", "x", "1.1.1.1", "1.1.0.1.0.0", "9.1.0.1.0.0.0", "9.1.0.0.0.0.0",
                               "9.1.0.99.0.0.0", "-1.1.0", "1.1.0.", ".", "99999999999999999999.1.0", "100000.1.0"})
    EXPECT_EQ(read(1, nonsense).error().code, Code::invalid) << nonsense;
  EXPECT_EQ(read(3).error().code, Code::not_found);
  EXPECT_EQ(read(1, "", 0).error().code, Code::invalid);
  EXPECT_EQ(read(1, "", 1001).error().code, Code::invalid);
}

TEST_F(DeploymentLogs, JobsOfAnotherOwnerAreHidden) {
  stage_.place_order(1, "keep");
  stage_.place_order(2, "job");
  ASSERT_TRUE(stage_.play());
  ASSERT_TRUE(
      service::apply_workflow(stage_.by, stage_.stores(), shop_manifest(), {{{"shop.lua", "return {1}"}}, Id{12}}));
  const service::RequestContext owner{1, 12, EntryPoint::command, false};
  const auto page = service::read_instance_log(owner, stage_.stores(), {"order", "2"});
  ASSERT_TRUE(page) << page.error().message;
  EXPECT_THAT(texts(page->frames), ElementsAre(HasSubstr("the log is another's")));
  const service::RequestContext stranger{1, 13, EntryPoint::command, false};
  EXPECT_EQ(service::read_instance_log(stranger, stage_.stores(), {"order", "2"}).error().code, Code::denied);
}

}  // namespace
}  // namespace mycojobs
