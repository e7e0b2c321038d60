// The time and the thread of each report; no report is lost, sent twice or overtaken.
#include "worker/reports/reporter.h"

#include <gmock/gmock.h>

#include "support/hand_clock.h"

namespace mycojobs {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Records each report by the key of its job.
class Claims final : public ClaimStore {
 public:
  Result<ClaimReply> claim(const ClaimRequest&) override { return fail(Code::internal, "not asked"); }
  Result<std::vector<Renewal>> renew(Id, std::span<const ClaimRef>, std::uint32_t) override {
    return fail(Code::internal, "not asked");
  }
  Result<std::vector<Result<void>>> report(Id, std::span<const Report> reports) override {
    return record_call("report", reports);
  }
  std::optional<int> begin_report(Id, std::span<const Report> reports) override {
    if (!connected) return std::nullopt;
    calls.push_back("begin " + join_keys(reports));
    return -1;
  }
  Result<std::vector<Result<void>>> finish_report(Id, std::span<const Report> reports) override {
    return record_call("finish", reports);
  }

  bool connected = true, unavailable = false, stale = false;
  std::vector<std::string> calls;

 private:
  static std::string join_keys(std::span<const Report> reports) {
    std::string out;
    for (const Report& each : reports)
      out += (out.empty() ? "" : " ") + std::visit([](const auto& r) { return r.claim.job_key; }, each);
    return out;
  }
  Result<std::vector<Result<void>>> record_call(const char* name, std::span<const Report> reports) {
    calls.push_back(std::string(name) + ' ' + join_keys(reports) + (unavailable ? ": away" : ""));
    if (unavailable) return fail(Code::unavailable, "away");
    if (stale) return std::vector<Result<void>>(reports.size(), fail(Code::stale_claim, "of another claim"));
    return std::vector<Result<void>>(reports.size());
  }
};

class ReporterTest : public testing::Test {
 protected:
  void post(RunNumber run) {
    EndReport ended;
    ended.claim.context = 1, ended.claim.job_key = std::to_string(run);
    reporter_.post({run, std::move(ended), true});
  }

  Claims store_;
  test::ManualClock clock_;
  StoreHealth health_;
  std::uint32_t gather_us_ = 0;
  std::vector<RunNumber> settled_, stale_, uploads_;
  Reporter reporter_{store_,
                     clock_,
                     health_,
                     ReceiptSigner(7, nullptr),
                     {.on_settled = [this](auto runs) { settled_.insert(settled_.end(), runs.begin(), runs.end()); },
                      .batch_delay_us = [this] { return gather_us_; },
                      .upload = [this](const RunReport& report) { uploads_.push_back(report.run); },
                      .on_stale = [this](RunNumber run) { stale_.push_back(run); }}};
};

TEST_F(ReporterTest, SingleReportIsSentByItsCaller) {
  post(1);
  EXPECT_THAT(store_.calls, ElementsAre("begin 1"));
  EXPECT_THAT(settled_, IsEmpty());
  EXPECT_EQ(reporter_.run_once(), std::nullopt);
  EXPECT_THAT(store_.calls, ElementsAre("begin 1", "finish 1"));
  EXPECT_THAT(settled_, ElementsAre(1));
}

TEST_F(ReporterTest, EndThatAwaitsItsUploadIsNotStored) {
  EndReport ended;
  ended.claim.context = 1, ended.claim.job_key = "1";
  RunReport report{1, ended, true};
  report.awaits_upload = true;
  reporter_.post(report);
  EXPECT_THAT(uploads_, ElementsAre(1));
  post(2);
  report.run = 3;
  reporter_.post(report);  // waits for the thread of the reporter
  (void)reporter_.run_once();
  EXPECT_THAT(uploads_, ElementsAre(1, 3));
  EXPECT_THAT(store_.calls, ElementsAre("begin 2", "finish 2"));
  EXPECT_THAT(settled_, ElementsAre(2)) << "the leases of the others are renewed";
}

TEST_F(ReporterTest, LaterReportsFollowInOneCall) {
  post(1), post(2), post(3);
  (void)reporter_.run_once();
  EXPECT_THAT(store_.calls, ElementsAre("begin 1", "finish 1", "report 2 3"));
  EXPECT_THAT(settled_, ElementsAre(1, 2, 3));
  post(4);
  EXPECT_EQ(store_.calls.back(), "begin 4") << "no report is in progress";
}

TEST_F(ReporterTest, UnacknowledgedReportsAreRepeatedFirst) {
  post(1), post(2);
  store_.unavailable = true;
  const auto pause = reporter_.run_once();
  EXPECT_THAT(store_.calls, ElementsAre("begin 1", "finish 1: away"));
  EXPECT_THAT(settled_, IsEmpty());
  ASSERT_TRUE(pause.has_value());
  post(3);
  EXPECT_EQ(store_.calls.size(), 2U) << "earlier reports wait before it";
  store_.unavailable = false;
  clock_.advance(*pause);
  (void)reporter_.run_once();
  EXPECT_EQ(store_.calls.back(), "report 1 2 3");
  EXPECT_THAT(settled_, ElementsAre(1, 2, 3));
}

TEST_F(ReporterTest, RunWithStaleOutputIsNotified) {
  LogAppend output;
  output.claim.context = 1, output.claim.job_key = "7";
  reporter_.post({7, std::move(output), false});
  post(8);
  store_.stale = true;
  (void)reporter_.run_once();
  EXPECT_THAT(stale_, ElementsAre(7));
  EXPECT_THAT(settled_, ElementsAre(8)) << "an end completes its run also if it is stale";
}

TEST_F(ReporterTest, ThreadReportsWithoutAConnection) {
  store_.connected = false;
  post(1);
  EXPECT_THAT(store_.calls, IsEmpty());
  (void)reporter_.run_once();
  EXPECT_THAT(store_.calls, ElementsAre("report 1"));
}

TEST_F(ReporterTest, NothingIsSentWhileOthersAreAwaited) {
  gather_us_ = 1;
  post(1), post(2);
  EXPECT_THAT(store_.calls, IsEmpty());
  (void)reporter_.run_once();
  EXPECT_THAT(store_.calls, ElementsAre("report 1 2"));
}

}  // namespace
}  // namespace mycojobs
