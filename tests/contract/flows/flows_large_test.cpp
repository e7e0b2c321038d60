// A flow of 10,000 jobs: no single call processes all of them.
#include <gmock/gmock.h>

#include <algorithm>

#include "contract/flow_contract.h"

namespace mycojobs {
namespace {

class FlowsLarge : public FlowContract {};

TEST_P(FlowsLarge, TenThousandJobsInCommitsOfBoundedSize) {
  constexpr std::uint32_t kJobs = 10000, kAtOnce = 500;
  const Id flow = new_flow(kJobs);
  std::uint64_t revision = 0;
  std::vector<std::string> keys;
  for (Id id = 1; id <= kJobs; ++id) keys.push_back("job:12:" + std::to_string(id));
  for (std::uint32_t from = 0; from < kJobs; from += kAtOnce) {
    FlowCommit next = commit(flow, revision, kAtOnce);
    for (std::uint32_t i = from; i < from + kAtOnce; ++i) next.dispatches.push_back({keys[i], {}});
    const auto done = flows_->commit(next);
    ASSERT_TRUE(done) << done.error().message;
    revision = *done;
  }
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), kJobs);
  std::uint32_t ended = 0;
  while (true) {
    std::vector<Report> reports;
    for (const ClaimedJob& each : claim(64)) reports.emplace_back(EndReport{each.ref, finished()});
    if (reports.empty()) break;
    const auto answers = store_->report(1, reports).value();
    for (const auto& answer : answers) ended += answer.has_value() ? 1 : 0;
    if (ended > 300) break;  // the flow ends the remaining jobs
  }
  std::uint32_t taken = 0;
  for (std::size_t now = 1; now > 0;) {
    const FlowReadResult run = read(flow, revision);
    now = run.events.size();
    EXPECT_LE(now, 1000U);
    EXPECT_EQ(run.jobs.size(), std::min<std::size_t>(now, 8)) << "some come with their events";
    for (const FlowJobView& job : run.jobs) EXPECT_EQ(job.state + ' ' + job.status, "ended finished") << job.job_key;
    FlowCommit next = commit(flow, revision);
    next.applied_events = static_cast<std::uint32_t>(now);
    taken += next.applied_events;
    revision = flows_->commit(next).value();
  }
  EXPECT_EQ(taken, ended);
  const auto views = flows_->job_views(1, keys).value();
  ASSERT_EQ(views.size(), keys.size());
  EXPECT_EQ(std::count_if(views.begin(), views.end(), [](const FlowJobView& each) { return each.state == "ended"; }),
            ended);
  EXPECT_EQ(read(flow, std::nullopt).facts.size(), 1000U);
}

MJ_BOTH_STORES(FlowsLarge);

}  // namespace
}  // namespace mycojobs
