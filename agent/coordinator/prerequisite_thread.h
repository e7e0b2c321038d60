// A coordinator's thread that looks after the jobs of a context which wait for prerequisites (prerequisites/look.h).
// Any number of coordinators may look: each job is given to one.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "base/mailbox.h"
#include "coordinator/said_once.h"
#include "prerequisites/look.h"

namespace mycojobs {

class PrerequisiteThread {
 public:
  PrerequisiteThread(std::unique_ptr<Store> store, const Clock& clock, Id context, LookSettings settings)
      : context_(context),
        store_(std::move(store)),
        look_(*store_, clock, std::move(settings)),
        said_("prerequisites", context),
        thread_([this] { loop(); }) {}
  ~PrerequisiteThread() {
    stop_ = true;
    wake_.wake();
    thread_.join();
  }

 private:
  static constexpr std::uint32_t kAwayMs = 500;

  void loop() {
    while (!stop_) {
      const auto again_ms = look_.look(context_);
      said_(again_ms ? nullptr : &again_ms.error());
      look_.wait(wake_.fd(), again_ms.value_or(kAwayMs), [this](Id, const Error& error) { said_(&error); });
      wake_.take();
    }
  }

  Id context_;
  std::unique_ptr<Store> store_;
  PrerequisiteLook look_;
  SaidOnce said_;
  Mailbox<int> wake_;
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace mycojobs
