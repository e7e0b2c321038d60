// Passes values to a thread that waits on a descriptor. post() is thread-safe; consume_all() belongs to the owner.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <utility>

#include "base/fd.h"

namespace mycojobs {

template <class T>
class Mailbox {
 public:
  Mailbox() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!event_) std::abort();  // out of descriptors at start; the program cannot run
  }
  void post(T value) {
    bool was_empty = false;
    {
      std::lock_guard lock(mutex_);
      was_empty = values_.empty();
      values_.push_back(std::move(value));
    }
    if (was_empty) wake();
  }
  // Returns all values posted so far, oldest first. Does not wait.
  std::deque<T> consume_all() {
    std::uint64_t count = 0;
    (void)!::read(event_.get(), &count, sizeof count);
    std::lock_guard lock(mutex_);
    return std::exchange(values_, {});
  }
  bool empty() {  // thread-safe
    std::lock_guard lock(mutex_);
    return values_.empty();
  }
  void wake() {
    const std::uint64_t increment = 1;
    (void)!::write(event_.get(), &increment, sizeof increment);
  }
  int fd() const { return event_.get(); }  // readable after post() or wake()

 private:
  Fd event_;
  std::mutex mutex_;
  std::deque<T> values_;
};

}  // namespace mycojobs
