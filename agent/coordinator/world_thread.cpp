#include "coordinator/world_thread.h"

#include <algorithm>

#include "coordinator/said_once.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kFollowsMs = 60000;  // between looks of one that does not lead: it is woken before
constexpr std::uint32_t kStoreAwayMs = 250;  // between tries to reach a store that is away

}  // namespace

Result<std::unique_ptr<WorldThread>> WorldThread::start(StoreFactory& stores, const Clock& clock, Id context,
                                                        StepTaker take_step, std::shared_ptr<Metrics> metrics) {
  std::unique_ptr<WorldThread> made(new WorldThread());
  made->context_ = context;
  made->clock_ = &clock;
  made->mine_ = std::to_string(context) + ' ';
  MJ_TRY(store, stores.open());
  made->store_ = std::move(store);
  MJ_TRY(flows, stores.open_flows());
  made->flows_ = std::move(flows);
  MJ_TRY(worlds, stores.open_workflows());
  made->worlds_ = std::move(worlds);
  MJ_TRY(waiter, stores.open_waiter({{context, ""}}, kWorldTopic));
  made->waiter_ = std::move(waiter);
  made->rounds_ = std::make_unique<WorldRounds>(
      WorldRounds::Parts{*made->store_, *made->flows_, *made->worlds_, std::move(take_step), clock, std::move(metrics)},
      context);
  made->thread_ = std::thread([self = made.get()] { self->loop(); });
  return made;
}

WorldThread::~WorldThread() {
  ask_to_stop();
  if (thread_.joinable()) thread_.join();
}

void WorldThread::set_leads(bool leads) {
  if (leads_.exchange(leads) != leads) waiter_->wake();
}

void WorldThread::ask_to_stop() {
  stop_ = true;
  if (waiter_) waiter_->wake();
}

void WorldThread::loop() {
  SaidOnce said("workflows", context_);
  // Listens before it looks, so that nothing comes in between.
  if (auto listening = waiter_->wait(0, false); !listening) said(&listening.error());
  while (!stop_) {
    if (!leads_) {
      recovers_ = true;
      wait(kFollowsMs);
      continue;
    }
    auto recovered = recovers_ ? rounds_->recover() : Result<void>();
    auto next = recovered ? rounds_->round() : tl::unexpected<Error>(recovered.error());
    recovers_ = !recovered;
    said(next ? nullptr : &next.error());
    if (!next) recovers_ = true;
    wait(next ? *next : kStoreAwayMs);
  }
}

// Until something has come for a workflow of this context, or so long.
void WorldThread::wait(std::uint64_t ms) {
  const std::uint64_t until = clock_->boot_ms() + ms;
  const bool led = leads_;
  for (std::uint64_t now = clock_->boot_ms(); now < until && !stop_ && led == leads_; now = clock_->boot_ms()) {
    const auto woken = waiter_->wait(static_cast<std::uint32_t>(until - now), false);
    if (!woken) return;  // the waiter paces its own reconnecting
    if (woken->reconnected) recovers_ = true;
    const auto& hints = woken->hints;
    if (woken->reconnected || (led && std::any_of(hints.begin(), hints.end(),
                                                  [&](const std::string& hint) { return hint.starts_with(mine_); })))
      return;
  }
}

}  // namespace mycojobs
