// Lost replies: what every caller of a store must survive, injected.
#include "base/clock.h"
#include "bench.h"
#include "store/memory_store.h"

namespace mycojobs {
namespace {

TEST(MemoryFault, ALostReplyMeansThatItHappened) {
  const SystemClock clock;
  MemoryServer server(clock);
  auto store = server.open().value();
  Job job;
  job.id = 1;
  job.caller_id = 12;
  job.context_id = 1;
  job.script = "x";
  job.script_type = "python";
  Fault next = Fault::before;
  server.set_faults(
      [&](std::string_view call) { return call == "submit" ? std::exchange(next, Fault::none) : Fault::none; });
  EXPECT_EQ(outcome(store->submit(job)), "unavailable");
  EXPECT_EQ(store->queue_length(1, "queue:python").value(), 0U);
  next = Fault::after;
  EXPECT_EQ(outcome(store->submit(job)), "unavailable");
  EXPECT_EQ(store->queue_length(1, "queue:python").value(), 1U);
  EXPECT_EQ(outcome(store->submit(job)), "ok");
  EXPECT_EQ(store->queue_length(1, "queue:python").value(), 1U);
}

}  // namespace
}  // namespace mycojobs
