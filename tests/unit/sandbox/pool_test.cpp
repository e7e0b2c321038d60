// Tests the accounting of idle sandboxes (sandbox/launcher/sandbox_pool.h).
#include "sandbox/launcher/sandbox_pool.h"

#include <gtest/gtest.h>

namespace mycojobs::sandbox {
namespace {

RunSpec make_plain_spec() {
  RunSpec spec;
  spec.limits.wall_ms = 1000;
  return spec;
}

// Adds all missing sandboxes and marks them ready, as Zygotes does. Returns their number.
std::size_t fill_pool(SandboxPool& pool, std::uint64_t& next_id) {
  std::size_t forked_count = 0;
  while (pool.missing_count() > 0) {
    pool.add_starting(next_id);
    pool.mark_ready(next_id++);
    ++forked_count;
  }
  return forked_count;
}

TEST(Pool, KeepsOneSpareAfterTheFirstRun) {
  SandboxPool pool(8);
  EXPECT_EQ(pool.missing_count(), 0U);
  EXPECT_FALSE(pool.acquire(make_plain_spec()));
  EXPECT_EQ(pool.missing_count(), 1U);
}

TEST(Pool, WithoutCapacityKeepsNoSpares) {
  SandboxPool pool(0);
  pool.acquire(make_plain_spec());
  EXPECT_EQ(pool.missing_count(), 0U);
}

TEST(Pool, ReturnsEachSpareOnce) {
  SandboxPool pool(8);
  std::uint64_t next_id = 1;
  pool.acquire(make_plain_spec());
  fill_pool(pool, next_id);
  EXPECT_EQ(pool.acquire(make_plain_spec()), 1U);
  EXPECT_FALSE(pool.acquire(make_plain_spec()));
}

TEST(Pool, DoublesWhenEmptyUpToTheMaximum) {
  SandboxPool pool(8);
  std::uint64_t next_id = 1;
  pool.acquire(make_plain_spec());
  for (const std::size_t expected_count : {1U, 2U, 4U, 8U, 8U}) {
    fill_pool(pool, next_id);
    std::size_t acquired_count = 0;
    while (pool.acquire(make_plain_spec())) ++acquired_count;
    EXPECT_EQ(acquired_count, expected_count);
  }
}

TEST(Pool, ShrinksByUnusedSparesDownToOne) {
  SandboxPool pool(8);
  std::uint64_t next_id = 1;
  pool.acquire(make_plain_spec());
  for (int i = 0; i < 4; ++i) {
    fill_pool(pool, next_id);
    while (pool.acquire(make_plain_spec())) {
    }
  }
  fill_pool(pool, next_id);
  std::size_t remaining_count = 8;
  for (int i = 0; i < 10; ++i) remaining_count -= pool.shrink_to_need().size();
  EXPECT_EQ(remaining_count, 1U);
  EXPECT_EQ(pool.missing_count(), 0U);
}

TEST(Pool, ServesOnlyItsShape) {
  SandboxPool pool(8, true);
  std::uint64_t next_id = 1;
  pool.acquire(make_plain_spec());
  const auto can_serve = [&](const RunSpec& spec) {
    fill_pool(pool, next_id);
    return pool.acquire(spec).has_value();
  };
  RunSpec spec = make_plain_spec();
  spec.limits.wall_ms = 5;
  spec.limits.cpu_ms = 5;
  spec.limits.memory_bytes = 1U << 24;
  spec.fence_boot_ms = 77;
  EXPECT_TRUE(can_serve(spec)) << "the launcher's timers and the limit of the group are set when the run starts";
  for (const auto& change :
       std::vector<void (*)(RunSpec&)>{[](RunSpec& changed_spec) { changed_spec.limits.exec = true; },
                                       [](RunSpec& changed_spec) { changed_spec.limits.pids = 3; },
                                       [](RunSpec& changed_spec) { changed_spec.limits.open_files = 33; },
                                       [](RunSpec& changed_spec) { changed_spec.limits.file_bytes = 4096; },
                                       [](RunSpec& changed_spec) { changed_spec.limits.tmp_bytes = 4096; },
                                       [](RunSpec& changed_spec) { changed_spec.grants.fs_read = {"/srv/a"}; },
                                       [](RunSpec& changed_spec) { changed_spec.grants.network = Network::loopback; },
                                       [](RunSpec& changed_spec) { changed_spec.grants.syscalls = {"keyctl"}; },
                                       [](RunSpec& changed_spec) { changed_spec.learn = true; }}) {
    spec = make_plain_spec();
    change(spec);
    EXPECT_FALSE(can_serve(spec));
  }
  EXPECT_TRUE(can_serve(make_plain_spec()));
}

TEST(Pool, WithoutACgroupMemoryIsPartOfTheShape) {
  SandboxPool pool(8, false);
  std::uint64_t next_id = 1;
  pool.acquire(make_plain_spec());
  fill_pool(pool, next_id);
  RunSpec spec = make_plain_spec();
  spec.limits.memory_bytes = 1U << 24;
  EXPECT_FALSE(pool.acquire(spec));
}

TEST(Pool, ChangesItsShapeWithTheRuns) {
  SandboxPool pool(8);
  std::uint64_t next_id = 1;
  pool.acquire(make_plain_spec());
  fill_pool(pool, next_id);
  RunSpec other_spec = make_plain_spec();
  other_spec.limits.pids = 3;
  for (int i = 0; i < 8; ++i) EXPECT_FALSE(pool.acquire(other_spec));
  EXPECT_EQ(pool.shrink_to_need(), std::vector<std::uint64_t>{1}) << "the sandbox of the old shape is to be ended";
  fill_pool(pool, next_id);
  EXPECT_TRUE(pool.acquire(other_spec));
  EXPECT_FALSE(pool.acquire(make_plain_spec()));
}

TEST(Pool, ReplacesEndedSpares) {
  SandboxPool pool(8);
  std::uint64_t next_id = 1;
  pool.acquire(make_plain_spec());
  fill_pool(pool, next_id);
  pool.on_ended(1);
  EXPECT_EQ(pool.missing_count(), 1U);
  EXPECT_FALSE(pool.acquire(make_plain_spec()));
}

TEST(Pool, DropsAShapeAndServesAnother) {
  SandboxPool pool(8);
  std::uint64_t next_id = 1;
  pool.acquire(make_plain_spec());
  fill_pool(pool, next_id);
  pool.acquire(make_plain_spec());
  pool.add_starting(99);
  EXPECT_EQ(pool.reject_shape(), std::vector<std::uint64_t>{99});
  pool.mark_ready(99);
  pool.acquire(make_plain_spec());
  EXPECT_EQ(pool.missing_count(), 0U) << "sandboxes of the rejected shape are not forked again";
  RunSpec other_spec = make_plain_spec();
  other_spec.limits.pids = 3;
  pool.acquire(other_spec);
  fill_pool(pool, next_id);
  const auto sandbox_id = pool.acquire(other_spec);
  ASSERT_TRUE(sandbox_id);
  EXPECT_NE(*sandbox_id, 99U) << "the sandbox has the former shape";
}

TEST(Pool, RepeatedlyDyingSparesStopThePool) {
  SandboxPool pool(8);
  std::uint64_t next_id = 1;
  pool.acquire(make_plain_spec());
  for (int i = 0; i < 7; ++i) {
    fill_pool(pool, next_id);
    pool.on_ended(next_id - 1);
  }
  EXPECT_FALSE(pool.has_failed_permanently());
  fill_pool(pool, next_id);
  ASSERT_TRUE(pool.acquire(make_plain_spec()));
  pool.on_ended(next_id - 1);
  EXPECT_FALSE(pool.has_failed_permanently()) << "the sandbox served a run, and its end is not counted by the pool";
  for (int i = 0; i < 8; ++i) {
    pool.add_starting(next_id);
    pool.on_ended(next_id++);
  }
  EXPECT_TRUE(pool.has_failed_permanently());
  pool.reject_shape();
  EXPECT_FALSE(pool.has_failed_permanently());
}

TEST(Pool, ClearReturnsAllSparesAndStops) {
  SandboxPool pool(8);
  std::uint64_t next_id = 1;
  pool.acquire(make_plain_spec());
  fill_pool(pool, next_id);
  pool.acquire(make_plain_spec());
  pool.add_starting(99);
  EXPECT_EQ(pool.clear().size(), 1U);
  EXPECT_EQ(pool.missing_count(), 0U);
}

// The sandbox is being killed; a run in it would report a signal that was not meant for the run.
TEST(Pool, LateSpareIsNotAccepted) {
  SandboxPool pool(8);
  pool.acquire(make_plain_spec());
  pool.add_starting(7);
  EXPECT_EQ(pool.clear(), std::vector<std::uint64_t>{7});
  pool.mark_ready(7);
  EXPECT_FALSE(pool.acquire(make_plain_spec()));
}

TEST(Pool, LentSandboxReturnsAndIsNotReplaced) {
  SandboxPool pool(8);
  std::uint64_t next_id = 1;
  pool.acquire(make_plain_spec());
  EXPECT_EQ(fill_pool(pool, next_id), 1U);
  const auto id = pool.acquire(make_plain_spec());
  ASSERT_TRUE(id);
  pool.mark_in_use(*id, make_plain_spec());
  EXPECT_EQ(pool.missing_count(), 0U) << "the sandbox in use will return";
  EXPECT_TRUE(pool.return_sandbox(*id, make_plain_spec()));
  EXPECT_EQ(pool.acquire(make_plain_spec()), id);
}

TEST(Pool, LostSandboxIsReplaced) {
  SandboxPool pool(8);
  std::uint64_t next_id = 1;
  pool.acquire(make_plain_spec());
  fill_pool(pool, next_id);
  const auto id = pool.acquire(make_plain_spec());
  pool.mark_in_use(*id, make_plain_spec());
  pool.on_in_use_ended(*id);
  EXPECT_EQ(pool.missing_count(), 1U);
  EXPECT_FALSE(pool.return_sandbox(*id, make_plain_spec()));
}

// A sandbox that may fork is never given to a run that may not.
TEST(Pool, SandboxOfAnotherShapeIsNotAccepted) {
  SandboxPool pool(8);
  pool.acquire(make_plain_spec());
  RunSpec other_spec = make_plain_spec();
  other_spec.limits.exec = true;
  pool.mark_in_use(77, other_spec);
  EXPECT_FALSE(pool.return_sandbox(77, other_spec));
  pool.mark_in_use(78, make_plain_spec());
  EXPECT_FALSE(pool.return_sandbox(78, other_spec));
  RunSpec granted_spec = make_plain_spec();
  granted_spec.grants.fs_read = {"/srv/a"};
  pool.mark_in_use(79, granted_spec);
  EXPECT_FALSE(pool.return_sandbox(79, granted_spec));
}

TEST(Pool, SandboxOfAFormerShapeIsNotAccepted) {
  SandboxPool pool(8);
  pool.acquire(make_plain_spec());
  pool.mark_in_use(77, make_plain_spec());
  RunSpec other_spec = make_plain_spec();
  other_spec.limits.pids = 3;
  for (int i = 0; i < 8; ++i) pool.acquire(other_spec);
  EXPECT_FALSE(pool.return_sandbox(77, make_plain_spec()));
}

}  // namespace
}  // namespace mycojobs::sandbox
