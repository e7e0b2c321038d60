// Ids in a submitted record: missing ids are filled in, foreign ids are rejected.
#include "security/sender_check.h"

#include <gtest/gtest.h>

namespace mycojobs {
namespace {

constexpr Sender kSender{13, 7};

TEST(Sender, MissingIdsAreTheSenders) {
  Message message;
  message.job.resize(2);
  message.flow = Flow();
  ASSERT_TRUE(fill_and_check_sender(message, kSender));
  EXPECT_EQ(message.caller_id, 13U);
  EXPECT_EQ(message.context_id, 7U);
  for (const Job& job : message.job) EXPECT_EQ(redis_key(job).substr(0, 7), "job:13:");
  EXPECT_EQ(message.flow->caller_id, 13U);
}

TEST(Sender, ForeignFieldsAreRejectedByName) {
  struct Row {
    const char* field;
    void (*forge)(Job&);
  };
  const Row rows[] = {{"caller_id", [](Job& job) { job.caller_id = 12; }},
                      {"context_id", [](Job& job) { job.context_id = 8; }},
                      {"flow_id", [](Job& job) { job.flow_id = 1; }},
                      {"runner_id", [](Job& job) { job.runner_id = 1; }},
                      {"status", [](Job& job) { job.status = JobStatus::finished; }},
                      {"result",
                       [](Job& job) {
                         job.result = {{"a", "b"}};
                       }},
                      {"claim_id", [](Job& job) { job.epoch = 5; }},
                      {"receipt", [](Job& job) { job.receipt = "{}"; }}};
  for (const Row& row : rows) {
    Job job;
    row.forge(job);
    const auto alone = fill_and_check_sender(job, kSender);
    ASSERT_FALSE(alone) << row.field;
    EXPECT_EQ(alone.error().message.find(row.field), 0U) << alone.error().message;
    Message message;
    message.job.resize(1);
    row.forge(message.job.emplace_back());
    const auto inside = fill_and_check_sender(message, kSender);
    ASSERT_FALSE(inside) << row.field;
    EXPECT_NE(inside.error().message.find("job[1]"), std::string::npos) << inside.error().message;
  }
  Message message;
  message.flow = Flow();
  message.flow->caller_id = 12;
  EXPECT_FALSE(fill_and_check_sender(message, kSender));
  message.flow->caller_id = 0;
  message.flow->parent = "4 a";
  EXPECT_FALSE(fill_and_check_sender(message, kSender));
}

}  // namespace
}  // namespace mycojobs
