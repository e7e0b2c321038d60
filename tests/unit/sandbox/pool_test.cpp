// Accounting of the idle sandboxes (sandbox/launcher/sandbox_pool.h).
#include "sandbox/launcher/sandbox_pool.h"

#include <gtest/gtest.h>

namespace mycojobs::sandbox {
namespace {

RunSpec make_plain_spec() {
  RunSpec spec;
  spec.limits.wall_ms = 1000;
  return spec;
}

// Forks all wanted sandboxes and marks them ready, as Zygotes does.
std::size_t fill(SandboxPool& pool, std::uint64_t& next) {
  std::size_t forked = 0;
  while (pool.missing_count() > 0) {
    pool.add_starting(next);
    pool.mark_ready(next++);
    ++forked;
  }
  return forked;
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
  std::uint64_t next = 1;
  pool.acquire(make_plain_spec());
  fill(pool, next);
  EXPECT_EQ(pool.acquire(make_plain_spec()), 1U);
  EXPECT_FALSE(pool.acquire(make_plain_spec()));
}

TEST(Pool, DoublesWhenEmptyUpToTheMaximum) {
  SandboxPool pool(8);
  std::uint64_t next = 1;
  pool.acquire(make_plain_spec());
  for (const std::size_t max : {1U, 2U, 4U, 8U, 8U}) {
    fill(pool, next);
    std::size_t acquired_count = 0;
    while (pool.acquire(make_plain_spec())) ++acquired_count;
    EXPECT_EQ(acquired_count, max);
  }
}

TEST(Pool, ShrinksByUnusedSparesDownToOne) {
  SandboxPool pool(8);
  std::uint64_t next = 1;
  pool.acquire(make_plain_spec());
  for (int i = 0; i < 4; ++i) {
    fill(pool, next);
    while (pool.acquire(make_plain_spec())) {
    }
  }
  fill(pool, next);
  std::size_t remaining_count = 8;
  for (int i = 0; i < 10; ++i) remaining_count -= pool.shrink_to_need().size();
  EXPECT_EQ(remaining_count, 1U);
  EXPECT_EQ(pool.missing_count(), 0U);
}

TEST(Pool, ServesOnlyItsShape) {
  SandboxPool pool(8, true);
  std::uint64_t next = 1;
  pool.acquire(make_plain_spec());
  const auto can_serve = [&](const RunSpec& spec) {
    fill(pool, next);
    return pool.acquire(spec).has_value();
  };
  RunSpec spec = make_plain_spec();
  spec.limits.wall_ms = 5;
  spec.limits.cpu_ms = 5;
  spec.limits.memory_bytes = 1U << 24;
  spec.fence_boot_ms = 77;
  EXPECT_TRUE(can_serve(spec)) << "the launcher's timers and the limit of the group are set when the run starts";
  for (const auto& change : std::vector<void (*)(RunSpec&)>{
           [](RunSpec& s) { s.limits.exec = true; }, [](RunSpec& s) { s.limits.pids = 3; },
           [](RunSpec& s) { s.limits.open_files = 33; }, [](RunSpec& s) { s.limits.file_bytes = 4096; },
           [](RunSpec& s) { s.limits.tmp_bytes = 4096; }, [](RunSpec& s) { s.grants.fs_read = {"/srv/a"}; },
           [](RunSpec& s) { s.grants.network = Network::loopback; }, [](RunSpec& s) { s.grants.syscalls = {"keyctl"}; },
           [](RunSpec& s) { s.learn = true; }}) {
    spec = make_plain_spec();
    change(spec);
    EXPECT_FALSE(can_serve(spec));
  }
  EXPECT_TRUE(can_serve(make_plain_spec()));
}

TEST(Pool, WithoutACgroupMemoryIsPartOfTheShape) {
  SandboxPool pool(8, false);
  std::uint64_t next = 1;
  pool.acquire(make_plain_spec());
  fill(pool, next);
  RunSpec spec = make_plain_spec();
  spec.limits.memory_bytes = 1U << 24;
  EXPECT_FALSE(pool.acquire(spec));
}

TEST(Pool, ChangesItsShapeWithTheRuns) {
  SandboxPool pool(8);
  std::uint64_t next = 1;
  pool.acquire(make_plain_spec());
  fill(pool, next);
  RunSpec other = make_plain_spec();
  other.limits.pids = 3;
  for (int i = 0; i < 8; ++i) EXPECT_FALSE(pool.acquire(other));
  EXPECT_EQ(pool.shrink_to_need(), std::vector<std::uint64_t>{1}) << "the sandbox of the old shape is to be ended";
  fill(pool, next);
  EXPECT_TRUE(pool.acquire(other));
  EXPECT_FALSE(pool.acquire(make_plain_spec()));
}

TEST(Pool, ReplacesEndedSpares) {
  SandboxPool pool(8);
  std::uint64_t next = 1;
  pool.acquire(make_plain_spec());
  fill(pool, next);
  pool.on_ended(1);
  EXPECT_EQ(pool.missing_count(), 1U);
  EXPECT_FALSE(pool.acquire(make_plain_spec()));
}

TEST(Pool, DropsAShapeAndServesAnother) {
  SandboxPool pool(8);
  std::uint64_t next = 1;
  pool.acquire(make_plain_spec());
  fill(pool, next);
  pool.acquire(make_plain_spec());
  pool.add_starting(99);
  EXPECT_EQ(pool.reject_shape(), std::vector<std::uint64_t>{99});
  pool.mark_ready(99);
  pool.acquire(make_plain_spec());
  EXPECT_EQ(pool.missing_count(), 0U) << "sandboxes of the rejected shape are not forked again";
  RunSpec other = make_plain_spec();
  other.limits.pids = 3;
  pool.acquire(other);
  fill(pool, next);
  const auto idle = pool.acquire(other);
  ASSERT_TRUE(idle);
  EXPECT_NE(*idle, 99U) << "the sandbox has the former shape";
}

TEST(Pool, RepeatedlyDyingSparesStopThePool) {
  SandboxPool pool(8);
  std::uint64_t next = 1;
  pool.acquire(make_plain_spec());
  for (int i = 0; i < 7; ++i) {
    fill(pool, next);
    pool.on_ended(next - 1);
  }
  EXPECT_FALSE(pool.has_failed_permanently());
  fill(pool, next);
  ASSERT_TRUE(pool.acquire(make_plain_spec()));
  pool.on_ended(next - 1);
  EXPECT_FALSE(pool.has_failed_permanently()) << "the sandbox served a run, and its end is not counted by the pool";
  for (int i = 0; i < 8; ++i) {
    pool.add_starting(next);
    pool.on_ended(next++);
  }
  EXPECT_TRUE(pool.has_failed_permanently());
  pool.reject_shape();
  EXPECT_FALSE(pool.has_failed_permanently());
}

TEST(Pool, ClearReturnsAllSparesAndStops) {
  SandboxPool pool(8);
  std::uint64_t next = 1;
  pool.acquire(make_plain_spec());
  fill(pool, next);
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
  std::uint64_t next = 1;
  pool.acquire(make_plain_spec());
  EXPECT_EQ(fill(pool, next), 1U);
  const auto id = pool.acquire(make_plain_spec());
  ASSERT_TRUE(id);
  pool.mark_in_use(*id, make_plain_spec());
  EXPECT_EQ(pool.missing_count(), 0U) << "the sandbox in use will return";
  EXPECT_TRUE(pool.return_sandbox(*id, make_plain_spec()));
  EXPECT_EQ(pool.acquire(make_plain_spec()), id);
}

TEST(Pool, LostSandboxIsReplaced) {
  SandboxPool pool(8);
  std::uint64_t next = 1;
  pool.acquire(make_plain_spec());
  fill(pool, next);
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
  RunSpec other = make_plain_spec();
  other.limits.exec = true;
  pool.mark_in_use(77, other);
  EXPECT_FALSE(pool.return_sandbox(77, other));
  pool.mark_in_use(78, make_plain_spec());
  EXPECT_FALSE(pool.return_sandbox(78, other));
  RunSpec granted = make_plain_spec();
  granted.grants.fs_read = {"/srv/a"};
  pool.mark_in_use(79, granted);
  EXPECT_FALSE(pool.return_sandbox(79, granted));
}

TEST(Pool, SandboxOfAFormerShapeIsNotAccepted) {
  SandboxPool pool(8);
  pool.acquire(make_plain_spec());
  pool.mark_in_use(77, make_plain_spec());
  RunSpec other = make_plain_spec();
  other.limits.pids = 3;
  for (int i = 0; i < 8; ++i) pool.acquire(other);
  EXPECT_FALSE(pool.return_sandbox(77, make_plain_spec()));
}

}  // namespace
}  // namespace mycojobs::sandbox
