// Serves the requests of scripts to the agent: the calls of the osis executor on the object store of their context.
//
//   run loop --ask--> thread of the context --answer--> run loop
//            --forget->  (with connections of its own)
//
// A thread serves the calls of its runs round-robin, one step at a time, and the calls of one run in order. So a run
// that waits for the write lock, or lists many objects, does not delay other runs. While the store is unavailable,
// calls wait as long as their runs live.
//
// The thread's CPU time is counted by no limit of a job, so each run has a share of it: a run that has used more waits
// with its next step.
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

struct BrokerLimits {
  std::size_t calls_of_run = 16;       // pending calls of one run
  std::size_t calls = 4096;            // pending calls of all runs of a context
  std::size_t bytes = 64U << 20;       // total size of the pending calls of a context
  std::uint32_t busy_ms = 20;          // first pause of a writer before it tries again; doubles up to 8 times the value
  std::uint32_t unavailable_ms = 100;  // same while the store is unavailable; up to 32 times the value
  std::uint64_t cpu_ns = 250'000'000;  // CPU time of the agent for the calls of one run in a second; 0: unlimited
  std::uint64_t burst_ns = 500'000'000;  // CPU time after which cpu_ns holds
};

class Broker {
 public:
  // Receives the answer of a call. Called by the threads of the contexts, and within ask() for a call that is refused
  // at once. It must not call the broker.
  using Answer = std::function<void(RunNumber, std::string reply_json)>;
  Broker(StoreFactory&, Answer, BrokerLimits = {});
  ~Broker();  // Pending calls get no answer.
  Broker(const Broker&) = delete;
  Broker& operator=(const Broker&) = delete;

  // Queues a call. Never blocks on a store. Each call gets one answer, unless its run is forgotten. Thread-safe.
  void ask(BrokerCall);
  // Reports the end of a run: its pending calls are dropped and its write lock is released. An answer that is being
  // delivered may still arrive. Thread-safe.
  void forget(RunNumber);

 private:
  class ContextStrand;
  Result<ContextStrand*> strand_of(Id context);

  StoreFactory& stores_;
  const Answer answer_;
  const BrokerLimits limits_;
  std::mutex mutex_;
  std::map<Id, std::unique_ptr<ContextStrand>> strands_;
  std::map<RunNumber, Id> contexts_;  // contexts of the runs that made calls
};

}  // namespace mycojobs
