#include <gtest/gtest.h>

#include "flows/flow_progress.h"

namespace mycojobs {
namespace {

LoadedRun make_run(std::size_t nodes) {
  LoadedRun run;
  run.state.nodes.resize(nodes);
  return run;
}

TEST(RunCache, NumberOfNodesIsLimited) {
  RunCache cache(100);
  for (Id flow = 1; flow <= 5; ++flow) cache.cache_run(1, flow, make_run(30));
  int kept = 0;
  for (Id flow = 1; flow <= 5; ++flow) kept += cache.pop_cached_run(1, flow) ? 1 : 0;
  EXPECT_EQ(kept, 3);
}

TEST(RunCache, TakeRemovesTheRun) {
  RunCache cache(100);
  cache.cache_run(1, 7, make_run(3));
  EXPECT_FALSE(cache.pop_cached_run(2, 7)) << "the run belongs to another context";
  ASSERT_TRUE(cache.pop_cached_run(1, 7));
  EXPECT_FALSE(cache.pop_cached_run(1, 7));
}

TEST(RunCache, OversizedRunIsKeptAlone) {
  RunCache cache(100);
  cache.cache_run(1, 1, make_run(10));
  cache.cache_run(1, 2, make_run(1000));
  EXPECT_FALSE(cache.pop_cached_run(1, 1));
  EXPECT_TRUE(cache.pop_cached_run(1, 2));
}

}  // namespace
}  // namespace mycojobs
