// Threads for work that can block on something outside of the process: a plugin or a disk. The run loop posts such
// work, continues, and receives the result as an event.
//
//   post(strand, work) --> thread of that name executes its functions in order --> event for the owner
//
// Each plugin and each disk has a thread of its own, so that a plugin or disk that hangs delays only its own work. The
// queues are short: a job (in a slot, claimed ahead, or ending) has at most two functions queued. If a job is released
// before its function runs, the function stays queued and does nothing.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace mycojobs {

// Returns the name of the strand for the artifacts of a context. Each context has a folder of its own, which can be a
// mount, so a context has its own thread.
inline std::string disk_strand_name(std::uint64_t context) { return "disk " + std::to_string(context); }

class StrandPool {
 public:
  using Work = std::function<void()>;

  StrandPool() = default;
  ~StrandPool() { stop(); }
  StrandPool(const StrandPool&) = delete;
  StrandPool& operator=(const StrandPool&) = delete;

  // Queues a function. The thread is created on first use and named after the strand (first 15 bytes). Everything that
  // the function uses must live until stop() returns. If no thread can be created, the function waits for
  // create_missing_threads(). post(), create_missing_threads() and stop() are called from the same thread.
  void post(const std::string& strand_name, Work);
  // Creates the threads that could not be created before. Returns false if threads are still missing; the caller then
  // tries again.
  bool create_missing_threads();
  // Waits for the functions that are running. Queued functions and functions that are posted later are dropped.
  void stop();

 private:
  struct Strand {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Work> queue;
    bool stop = false;
    std::thread thread;
    void run();
  };

  bool start_strand_thread(const std::string& name, Strand&);

  std::map<std::string, std::unique_ptr<Strand>> strands_;
  bool stopped_ = false;
  bool has_missing_threads_ = false;  // whether a thread could not be created
};

}  // namespace mycojobs
