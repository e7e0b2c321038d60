// Serves what scripts ask of the agent: the calls of the osis executor on the object store of their context.
//
//   run loop --ask--> lane of the context --answer--> run loop
//            --forget->  (a thread, with connections of its own)
//
// A lane takes the calls of its runs in turn, one step each, and those of one run in their order: a run that waits to
// be the writer, or goes through many objects, holds up nobody else. While the store is away, calls wait for it as long
// as their runs live.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "mycojobs/store.h"
#include "worker/types.h"

namespace mycojobs {

struct BrokerLimits {
  std::size_t calls_of_run = 16;  // that wait for their answers
  std::size_t calls = 4096;       // of all runs of a context
  std::size_t bytes = 64U << 20;  // of these
  std::uint32_t busy_ms = 20;     // first pause before a writer asks again; doubled up to 8 times as much
  std::uint32_t away_ms = 100;    // the same while the store is away; up to 32 times as much
};

class Broker {
 public:
  // Called by the threads of lanes, and within ask() for a call that is refused at once: hands the answer on, and must
  // not call back.
  using Answer = std::function<void(RunNumber, std::string reply_json)>;
  Broker(StoreFactory&, Answer, BrokerLimits = {});
  ~Broker();  // calls that still wait get no answer
  Broker(const Broker&) = delete;
  Broker& operator=(const Broker&) = delete;

  // Any thread; never waits for a store. Each call has one answer, unless its run is forgotten.
  void ask(BrokerCall);
  // The run has ended: what it still waits for is dropped, another job may write. An answer that is under way may still
  // come. Any thread.
  void forget(RunNumber);

 private:
  class Lane;
  Result<Lane*> lane_of(Id context);

  StoreFactory& stores_;
  const Answer answer_;
  const BrokerLimits limits_;
  std::mutex mutex_;
  std::map<Id, std::unique_ptr<Lane>> lanes_;
  std::map<RunNumber, Id> contexts_;  // of runs that have asked
};

}  // namespace mycojobs
