// Accounting of the idle sandboxes (sandbox/launcher/sandbox_pool.h).
#include "sandbox/launcher/sandbox_pool.h"

#include <gtest/gtest.h>

namespace mycojobs::sandbox {
namespace {

RunSpec plain() {
  RunSpec spec;
  spec.limits.wall_ms = 1000;
  return spec;
}

// Forks all wanted sandboxes and marks them ready, as Zygotes does.
std::size_t fill(SandboxPool& pool, std::uint64_t& next) {
  std::size_t forked = 0;
  while (pool.missing_count() > 0) {
    pool.add_forming(next);
    pool.mark_ready(next++);
    ++forked;
  }
  return forked;
}

TEST(Pool, KeepsOneSpareAfterTheFirstRun) {
  SandboxPool pool(8);
  EXPECT_EQ(pool.missing_count(), 0U);
  EXPECT_FALSE(pool.acquire(plain()));
  EXPECT_EQ(pool.missing_count(), 1U);
}

TEST(Pool, WithoutCapacityKeepsNoSpares) {
  SandboxPool pool(0);
  pool.acquire(plain());
  EXPECT_EQ(pool.missing_count(), 0U);
}

TEST(Pool, ReturnsEachSpareOnce) {
  SandboxPool pool(8);
  std::uint64_t next = 1;
  pool.acquire(plain());
  fill(pool, next);
  EXPECT_EQ(pool.acquire(plain()), 1U);
  EXPECT_FALSE(pool.acquire(plain()));
}

TEST(Pool, DoublesWhenEmptyUpToTheMaximum) {
  SandboxPool pool(8);
  std::uint64_t next = 1;
  pool.acquire(plain());
  for (const std::size_t max : {1U, 2U, 4U, 8U, 8U}) {
    fill(pool, next);
    std::size_t taken = 0;
    while (pool.acquire(plain())) ++taken;
    EXPECT_EQ(taken, max);
  }
}

TEST(Pool, ShrinksByUnusedSparesDownToOne) {
  SandboxPool pool(8);
  std::uint64_t next = 1;
  pool.acquire(plain());
  for (int i = 0; i < 4; ++i) {
    fill(pool, next);
    while (pool.acquire(plain())) {
    }
  }
  fill(pool, next);
  std::size_t left = 8;
  for (int i = 0; i < 10; ++i) left -= pool.shrink_to_need().size();
  EXPECT_EQ(left, 1U);
  EXPECT_EQ(pool.missing_count(), 0U);
}

TEST(Pool, ServesOnlyItsShape) {
  SandboxPool pool(8, true);
  std::uint64_t next = 1;
  pool.acquire(plain());
  const auto serves = [&](const RunSpec& spec) {
    fill(pool, next);
    return pool.acquire(spec).has_value();
  };
  RunSpec spec = plain();
  spec.limits.wall_ms = 5;
  spec.limits.cpu_ms = 5;
  spec.limits.memory_bytes = 1U << 24;
  spec.fence_boot_ms = 77;
  EXPECT_TRUE(serves(spec)) << "the launcher's clocks and the group's limit come with the run";
  for (const auto& change : std::vector<void (*)(RunSpec&)>{
           [](RunSpec& s) { s.limits.exec = true; }, [](RunSpec& s) { s.limits.pids = 3; },
           [](RunSpec& s) { s.limits.open_files = 33; }, [](RunSpec& s) { s.limits.file_bytes = 4096; },
           [](RunSpec& s) { s.limits.tmp_bytes = 4096; }, [](RunSpec& s) { s.grants.fs_read = {"/srv/a"}; },
           [](RunSpec& s) { s.grants.network = Network::loopback; }, [](RunSpec& s) { s.grants.syscalls = {"keyctl"}; },
           [](RunSpec& s) { s.learn = true; }}) {
    spec = plain();
    change(spec);
    EXPECT_FALSE(serves(spec));
  }
  EXPECT_TRUE(serves(plain()));
}

TEST(Pool, WithoutACgroupMemoryIsPartOfTheShape) {
  SandboxPool pool(8, false);
  std::uint64_t next = 1;
  pool.acquire(plain());
  fill(pool, next);
  RunSpec spec = plain();
  spec.limits.memory_bytes = 1U << 24;
  EXPECT_FALSE(pool.acquire(spec));
}

TEST(Pool, ChangesItsShapeWithTheRuns) {
  SandboxPool pool(8);
  std::uint64_t next = 1;
  pool.acquire(plain());
  fill(pool, next);
  RunSpec other = plain();
  other.limits.pids = 3;
  for (int i = 0; i < 8; ++i) EXPECT_FALSE(pool.acquire(other));
  EXPECT_EQ(pool.shrink_to_need(), std::vector<std::uint64_t>{1}) << "the old one is given back";
  fill(pool, next);
  EXPECT_TRUE(pool.acquire(other));
  EXPECT_FALSE(pool.acquire(plain()));
}

TEST(Pool, ReplacesEndedSpares) {
  SandboxPool pool(8);
  std::uint64_t next = 1;
  pool.acquire(plain());
  fill(pool, next);
  pool.on_ended(1);
  EXPECT_EQ(pool.missing_count(), 1U);
  EXPECT_FALSE(pool.acquire(plain()));
}

TEST(Pool, DropsAShapeAndServesAnother) {
  SandboxPool pool(8);
  std::uint64_t next = 1;
  pool.acquire(plain());
  fill(pool, next);
  pool.acquire(plain());
  pool.add_forming(99);
  EXPECT_EQ(pool.reject_shape(), std::vector<std::uint64_t>{99});
  pool.mark_ready(99);
  pool.acquire(plain());
  EXPECT_EQ(pool.missing_count(), 0U) << "not once more";
  RunSpec other = plain();
  other.limits.pids = 3;
  pool.acquire(other);
  fill(pool, next);
  const auto idle = pool.acquire(other);
  ASSERT_TRUE(idle);
  EXPECT_NE(*idle, 99U) << "that one is of the former shape";
}

TEST(Pool, RepeatedlyDyingSparesStopThePool) {
  SandboxPool pool(8);
  std::uint64_t next = 1;
  pool.acquire(plain());
  for (int i = 0; i < 7; ++i) {
    fill(pool, next);
    pool.on_ended(next - 1);
  }
  EXPECT_FALSE(pool.has_failed_permanently());
  fill(pool, next);
  ASSERT_TRUE(pool.acquire(plain()));
  pool.on_ended(next - 1);
  EXPECT_FALSE(pool.has_failed_permanently()) << "one served, and its end is no matter of the pool";
  for (int i = 0; i < 8; ++i) {
    pool.add_forming(next);
    pool.on_ended(next++);
  }
  EXPECT_TRUE(pool.has_failed_permanently());
  pool.reject_shape();
  EXPECT_FALSE(pool.has_failed_permanently());
}

TEST(Pool, ClearReturnsAllSparesAndStops) {
  SandboxPool pool(8);
  std::uint64_t next = 1;
  pool.acquire(plain());
  fill(pool, next);
  pool.acquire(plain());
  pool.add_forming(99);
  EXPECT_EQ(pool.clear().size(), 1U);
  EXPECT_EQ(pool.missing_count(), 0U);
}

// The sandbox is being killed; a run in it would report a signal that was not meant for the run.
TEST(Pool, LateSpareIsNotAccepted) {
  SandboxPool pool(8);
  pool.acquire(plain());
  pool.add_forming(7);
  EXPECT_EQ(pool.clear(), std::vector<std::uint64_t>{7});
  pool.mark_ready(7);
  EXPECT_FALSE(pool.acquire(plain()));
}

TEST(Pool, LentSandboxReturnsAndIsNotReplaced) {
  SandboxPool pool(8);
  std::uint64_t next = 1;
  pool.acquire(plain());
  EXPECT_EQ(fill(pool, next), 1U);
  const auto id = pool.acquire(plain());
  ASSERT_TRUE(id);
  pool.mark_in_use(*id, plain());
  EXPECT_EQ(pool.missing_count(), 0U) << "it will come back";
  EXPECT_TRUE(pool.return_sandbox(*id, plain()));
  EXPECT_EQ(pool.acquire(plain()), id);
}

TEST(Pool, LostSandboxIsReplaced) {
  SandboxPool pool(8);
  std::uint64_t next = 1;
  pool.acquire(plain());
  fill(pool, next);
  const auto id = pool.acquire(plain());
  pool.mark_in_use(*id, plain());
  pool.on_in_use_ended(*id);
  EXPECT_EQ(pool.missing_count(), 1U);
  EXPECT_FALSE(pool.return_sandbox(*id, plain()));
}

// A sandbox that may fork is never given to a run that may not.
TEST(Pool, SandboxOfAnotherShapeIsNotAccepted) {
  SandboxPool pool(8);
  pool.acquire(plain());
  RunSpec other = plain();
  other.limits.exec = true;
  pool.mark_in_use(77, other);
  EXPECT_FALSE(pool.return_sandbox(77, other));
  pool.mark_in_use(78, plain());
  EXPECT_FALSE(pool.return_sandbox(78, other));
  RunSpec granted = plain();
  granted.grants.fs_read = {"/srv/a"};
  pool.mark_in_use(79, granted);
  EXPECT_FALSE(pool.return_sandbox(79, granted));
}

TEST(Pool, SandboxOfAFormerShapeIsNotAccepted) {
  SandboxPool pool(8);
  pool.acquire(plain());
  pool.mark_in_use(77, plain());
  RunSpec other = plain();
  other.limits.pids = 3;
  for (int i = 0; i < 8; ++i) pool.acquire(other);
  EXPECT_FALSE(pool.return_sandbox(77, plain()));
}

}  // namespace
}  // namespace mycojobs::sandbox
