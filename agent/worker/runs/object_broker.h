// Answers the calls of scripts on the object store of their context, such as osis.put (docs/executors/osis.md).
//
//   run loop --submit()---> thread of the context --Answer--> run loop
//            --end_run()-->   (with connections of its own)
//
// A thread serves the calls of its runs round-robin, one step at a time, and the calls of one run in order. So a run
// that waits for the write lock, or lists many objects, does not delay other runs. While the store is unavailable,
// calls wait as long as their runs live. A few threads without runs are kept, so that the next call needs no
// connection.
//
// No limit of a job counts the CPU time of the thread, so each run has a share of this time. A run that has used more
// waits before its next step.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "store/store.h"
#include "worker/worker_types.h"

namespace mycojobs {

struct ObjectBrokerLimits {
  std::size_t max_calls_per_run = 16;        // pending calls of one run
  std::size_t max_calls = 4096;              // pending calls of all runs of a context
  std::size_t max_bytes = 64U << 20;         // total size of the pending calls of a context
  std::uint32_t lock_retry_ms = 20;          // first wait for the write lock; doubles up to 8 times the value
  std::uint32_t store_retry_ms = 100;        // first wait for an unavailable store; doubles up to 32 times the value
  std::uint64_t cpu_ns_per_s = 250'000'000;  // CPU time of the agent for the calls of one run; 0 means unlimited
  std::uint64_t cpu_burst_ns = 500'000'000;  // CPU time of a run before cpu_ns_per_s applies
};

class ObjectBroker {
 public:
  // Receives the answer of a call. Called by the threads of the contexts, and within submit() for a call that is
  // refused at once. The function must not call the broker.
  using Answer = std::function<void(RunNumber, std::string reply_json)>;
  ObjectBroker(StoreFactory&, Answer, ObjectBrokerLimits = {});
  ~ObjectBroker();  // Pending calls get no answer.
  ObjectBroker(const ObjectBroker&) = delete;
  ObjectBroker& operator=(const ObjectBroker&) = delete;

  // Queues a call. Never blocks on a store. Each call gets one answer, unless end_run() is called for its run.
  // Thread-safe.
  void submit(BrokerCall);
  // Reports the end of a run: its pending calls are dropped and its write lock is released. An answer that is being
  // delivered may still arrive. Thread-safe.
  void end_run(RunNumber);

 private:
  class ContextStrand;
  Result<ContextStrand*> find_or_create_strand(Id context);

  StoreFactory& stores_;
  const Answer answer_;
  const ObjectBrokerLimits limits_;
  std::mutex mutex_;
  std::map<Id, std::unique_ptr<ContextStrand>> strands_;
  std::map<RunNumber, Id> contexts_;  // contexts of the runs that made calls
};

}  // namespace mycojobs
