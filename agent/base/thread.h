// All threads of the program are created here. A host can be out of threads; the standard library would then throw,
// which would end the process.
//
//   MJ_TRY(thread, start_thread([this] { loop(); }, "name"));
//   auto result = run_in_parallel([] { return work(); });
#pragma once

#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "base/result.h"

namespace mycojobs {

// Starts a thread that runs `body`. The kernel truncates `name` to 15 bytes. Without a name the thread has the name of
// the calling thread. Error `unavailable` lists the limits that may be the reason.
Result<std::thread> start_thread(std::function<void()> body, const std::string& name = {});

// Renames the calling thread. The kernel truncates `name` to 15 bytes. An empty name changes nothing.
void name_this_thread(const std::string& name);

// Runs `work` on a thread of its own. If no thread can be created, the thread that waits for the result does the work.
template <class Work>
auto run_in_parallel(Work&& work) {
  return std::async(std::launch::async | std::launch::deferred, std::forward<Work>(work));
}

// For tests: while an object of this class exists, start_thread() fails as on a host that is out of threads.
class SimulatedThreadShortage {
 public:
  SimulatedThreadShortage();
  ~SimulatedThreadShortage();
  SimulatedThreadShortage(const SimulatedThreadShortage&) = delete;
  SimulatedThreadShortage& operator=(const SimulatedThreadShortage&) = delete;
};

}  // namespace mycojobs
