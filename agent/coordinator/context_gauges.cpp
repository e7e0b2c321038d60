#include "coordinator/context_gauges.h"

#include <algorithm>
#include <array>
#include <string>

#include "store/counts.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kEveryMs = 5000;
// Queues of these are told of also where no agent has taken anything yet.
const std::array<std::string, 6> kBuiltIn{"queue:python", "queue:v",      "queue:sal",
                                          "queue:osis",   "queue:native", "queue:command"};

constexpr std::array kOfContext = {Metric::queue_jobs,   Metric::queue_oldest, Metric::queue_paused,  Metric::jobs,
                                   Metric::dead_letters, Metric::flows_active, Metric::gates_waiting, Metric::mail};

double number(std::uint64_t count) { return static_cast<double>(count); }

}  // namespace

ContextGauges::ContextGauges(std::shared_ptr<Metrics> metrics, Id context)
    : metrics_(std::move(metrics)), context_(context), said_("metrics", context) {
  metrics_->set(Metric::leads, {context_}, 0);
}

void ContextGauges::leads(bool leads) {
  if (leads == leads_) return;
  leads_ = leads;
  metrics_->set(Metric::leads, {context_}, leads ? 1 : 0);
  next_boot_ms_ = 0;
  gates_.clear();
  if (!leads) forget();
}

void ContextGauges::forget() {
  for (const Metric metric : kOfContext) metrics_->forget(metric, context_);
  shown_.clear();
}

Result<void> ContextGauges::look(QueueStore& store, std::uint64_t now_boot_ms) {
  if (!metrics_->wanted() || now_boot_ms < next_boot_ms_) return {};
  next_boot_ms_ = now_boot_ms + kEveryMs;
  const auto survey = store.survey(context_, kBuiltIn);
  said_(survey ? nullptr : &survey.error());
  if (survey) show(*survey);
  if (!survey && survey.error().code == Code::unavailable) return tl::unexpected<Error>(survey.error());
  return {};
}

void ContextGauges::show(const Survey& survey) {
  struct Queue {
    std::uint64_t jobs = 0, oldest_ms = 0;
    bool paused = false;
  };
  std::map<std::string, Queue, std::less<>> queues;                 // those with one name together
  for (const std::string& name : shown_) queues.try_emplace(name);  // one that has gone is empty
  for (const Survey::Queue& each : survey.queues) {
    Queue& queue = queues[std::string(counted_queue(each.queue))];
    queue.jobs += each.length;
    queue.oldest_ms = std::max(queue.oldest_ms, each.waiting_ms);
    queue.paused = queue.paused || each.paused;
  }
  for (const auto& [name, queue] : queues) {
    shown_.insert(name);
    metrics_->set(Metric::queue_jobs, {context_, name}, number(queue.jobs));
    metrics_->set(Metric::queue_oldest, {context_, name}, number(queue.oldest_ms) / 1000);
    metrics_->set(Metric::queue_paused, {context_, name}, queue.paused ? 1 : 0);
  }
  metrics_->set(Metric::jobs, {context_, "live"}, number(survey.live));
  metrics_->set(Metric::jobs, {context_, "delayed"}, number(survey.delayed));
  metrics_->set(Metric::jobs, {context_, "prerequisites"}, number(survey.prerequisites));
  metrics_->set(Metric::jobs, {context_, "ended"}, number(survey.ended));
  metrics_->set(Metric::dead_letters, {context_}, number(survey.dead_letters));
  metrics_->set(Metric::flows_active, {context_}, number(survey.active_flows));
  metrics_->set(Metric::mail, {context_, "out"}, number(survey.outbox));
  metrics_->set(Metric::mail, {context_, "in"}, number(survey.inbox));
  std::size_t gates = 0;
  for (const auto& [flow, each] : gates_) gates += each.waiting;
  metrics_->set(Metric::gates_waiting, {context_}, number(gates));
}

void ContextGauges::moved(Id flow, std::size_t gates) {
  if (gates == 0) {
    if (!gates_.empty()) gates_.erase(flow);
    return;
  }
  gates_[flow] = {gates, sweep_};
}

void ContextGauges::sweep_begins() { ++sweep_; }

void ContextGauges::sweep_ends() {
  std::erase_if(gates_, [this](const auto& each) { return each.second.sweep != sweep_; });
}

}  // namespace mycojobs
