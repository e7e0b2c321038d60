#include "worker/housekeeper.h"

#include <poll.h>

#include <algorithm>

namespace mycojobs {

Housekeeper::Housekeeper(std::unique_ptr<Store> store, const Clock& clock, StoreHealth& health, WorkerSettings settings)
    : store_(std::move(store)),
      health_(health),
      clock_(clock),
      settings_(std::move(settings)),
      housekeeping_(clock, settings_),
      pauses_(clock),
      thread_([this] { loop(); }) {}

void Housekeeper::stop() {
  stop_ = true;
  wake_.wake();
  if (thread_.joinable()) thread_.join();
}

void Housekeeper::hurry() {
  if (!hurry_.exchange(true)) wake_.wake();
}

void Housekeeper::loop() {
  while (!stop_) {
    const std::uint64_t pause = round();
    pollfd waiting{wake_.fd(), POLLIN, 0};
    ::poll(&waiting, 1, static_cast<int>(pause));
    wake_.take();
    if (hurry_.exchange(false)) housekeeping_.hurry();
  }
}

std::uint64_t Housekeeper::round() {
  std::uint64_t pause = 1000;
  for (Id context : settings_.contexts) {
    if (stop_) break;
    pulse_.beat();  // each may wait for a server of its own
    if (pauses_.may_try(context)) {
      const std::uint64_t began = clock_.boot_ms();
      auto next = housekeeping_.look_after(*store_, context);
      if (next) {
        pauses_.worked(context);
        pause = std::min(pause, *next);
        continue;
      }
      health_.failed(context, "looking after jobs", next.error());
      if (next.error().code == Code::unavailable) housekeeping_.blind(context);
      pauses_.failed(context, began);
    }
    pause = std::min(pause, pauses_.left_ms(context));
  }
  return pause;
}

}  // namespace mycojobs
