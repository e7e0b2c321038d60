// The queue of artifact writes of a run: order, bounds, and one batch at a time.
#include "artifacts/artifact_queue.h"

#include <gtest/gtest.h>

#include "support/fake_disk.h"

namespace mycojobs::test {
namespace {

class ArtifactQueueTest : public ::testing::Test {
 protected:
  DiskControl disk_;
  ArtifactQueue queue_{std::make_unique<FakeDisk>(disk_)};
};

TEST_F(ArtifactQueueTest, DiskReceivesWorkInOrderAndBounded) {
  EXPECT_TRUE(queue_.is_unused());
  EXPECT_FALSE(queue_.pop_write_task());
  EXPECT_TRUE(queue_.open("a", false));
  queue_.write("1");
  auto first = queue_.pop_write_task();
  ASSERT_TRUE(first);
  queue_.write("2");
  queue_.close();
  EXPECT_FALSE(queue_.pop_write_task()) << "one piece at a time";
  EXPECT_EQ(disk_.calls(), "");
  queue_.on_write_done((*first)());
  EXPECT_EQ(disk_.calls(), "open a write 1");
  auto second = queue_.pop_write_task();
  ASSERT_TRUE(second);
  queue_.open("b", true);
  auto last = queue_.make_store_task();
  queue_.on_write_done((*second)());
  EXPECT_EQ(last().artifacts, "{}");
  EXPECT_EQ(disk_.calls(), "open a write 1 write 2 close open executable b finish");
  EXPECT_FALSE(queue_.is_unused());
}

TEST_F(ArtifactQueueTest, QueueIsFullUntilTheBytesAreWritten) {
  const std::string half(ArtifactQueue::kMaxQueuedBytes / 2, 'x');
  queue_.write(half);
  EXPECT_FALSE(queue_.is_full());
  auto first = queue_.pop_write_task();
  queue_.write(half);
  EXPECT_TRUE(queue_.is_full());
  queue_.on_write_done((*first)());
  EXPECT_FALSE(queue_.is_full());
}

TEST_F(ArtifactQueueTest, ManySmallItemsFillTheQueue) {
  std::size_t steps = 0;
  for (; !queue_.is_full() && steps < 100000; ++steps) queue_.open("f", false);
  EXPECT_LT(steps, 10000U);
}

TEST_F(ArtifactQueueTest, DroppedFilesReachTheEnd) {
  queue_.report_dropped({"ln", DropReason::link, 0});
  EXPECT_FALSE(queue_.is_unused());
  EXPECT_EQ(queue_.make_store_task()().dropped, (std::vector<DroppedArtifact>{{"ln", DropReason::link, 0}}));
}

TEST_F(ArtifactQueueTest, NotesArriveWithTheirWork) {
  EXPECT_TRUE(queue_.open("bad", false)) << "the failure is not known yet";
  queue_.write("passed over by whoever refused it");
  const auto written = (*queue_.pop_write_task())();
  EXPECT_EQ(written.notes, std::vector<std::string>{"bad is not kept"});
  queue_.on_write_done(written);
  EXPECT_EQ(queue_.make_store_task()().notes, std::vector<std::string>{"finished"});
}

TEST_F(ArtifactQueueTest, AbandonedWorkIsFreedByItsLastOwner) {
  queue_.open("a", false);
  auto work = queue_.pop_write_task();
  std::shared_ptr<void> files = queue_.discard();
  (*work)();
  work.reset();
  EXPECT_EQ(disk_.calls(), "open a");
  files.reset();
  EXPECT_EQ(disk_.calls(), "open a gone");
}

}  // namespace
}  // namespace mycojobs::test
