#include <gtest/gtest.h>

#include "flows/flow_progress.h"

namespace mycojobs {
namespace {

LoadedRun run_of(std::size_t nodes) {
  LoadedRun run;
  run.state.nodes.resize(nodes);
  return run;
}

TEST(RunCache, NumberOfNodesIsLimited) {
  RunCache cache(100);
  for (Id flow = 1; flow <= 5; ++flow) cache.cache_run(1, flow, run_of(30));
  int kept = 0;
  for (Id flow = 1; flow <= 5; ++flow) kept += cache.take_cached_run(1, flow) ? 1 : 0;
  EXPECT_EQ(kept, 3);
}

TEST(RunCache, TakeRemovesTheRun) {
  RunCache cache(100);
  cache.cache_run(1, 7, run_of(3));
  EXPECT_FALSE(cache.take_cached_run(2, 7)) << "of another context";
  ASSERT_TRUE(cache.take_cached_run(1, 7));
  EXPECT_FALSE(cache.take_cached_run(1, 7));
}

TEST(RunCache, OversizedRunIsKeptAlone) {
  RunCache cache(100);
  cache.cache_run(1, 1, run_of(10));
  cache.cache_run(1, 2, run_of(1000));
  EXPECT_FALSE(cache.take_cached_run(1, 1));
  EXPECT_TRUE(cache.take_cached_run(1, 2));
}

}  // namespace
}  // namespace mycojobs
