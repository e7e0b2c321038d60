#include "coordinator/context_gauges.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "store/kept_usage.h"
#include "store/redis/store_metrics.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kEveryMs = 5000, kPageMs = 100;
constexpr std::array kOfContext = {Metric::queue_jobs,   Metric::queue_oldest, Metric::queue_paused,  Metric::jobs,
                                   Metric::dead_letters, Metric::flows_active, Metric::gates_waiting, Metric::mail,
                                   Metric::kept_bytes,   Metric::kept_quota};

double number(std::uint64_t count) { return static_cast<double>(count); }

}  // namespace

ContextGauges::ContextGauges(std::shared_ptr<Metrics> metrics, Id context)
    : metrics_(std::move(metrics)), context_(context), log_once_("metrics", context) {
  metrics_->set(Metric::leads, {context_}, 0);
}

void ContextGauges::set_leader(bool leads) {
  if (leads == leads_) return;
  leads_ = leads;
  metrics_->set(Metric::leads, {context_}, leads ? 1 : 0);
  next_boot_ms_ = 0;
  gates_.clear();
  if (!leads) forget();
}

void ContextGauges::forget() {
  for (const Metric metric : kOfContext) metrics_->forget(metric, {context_});
  to_check_.clear();
  found_.clear();
  scanned_ = 0;
}

Result<void> ContextGauges::refresh_gauges(Store& store, std::uint64_t now_boot_ms) {
  if (!metrics_->is_enabled() || now_boot_ms < next_boot_ms_) return {};
  const auto logged = [this](const Error* error) -> Result<void> {
    log_once_(error);
    if (error != nullptr && error->code == Code::unavailable) return tl::unexpected<Error>(*error);
    return {};
  };
  if (scanned_ >= to_check_.size()) {
    next_boot_ms_ = now_boot_ms + kEveryMs;
    const auto known = store.known_queues(context_);
    if (!known) return logged(&known.error());
    begin_sweep(*known);
    if (const auto shown = show_kept(store); !shown) return logged(&shown.error());
    swept_boot_ms_ = next_boot_ms_;
  }
  const auto left = std::span(to_check_).subspan(scanned_);
  const auto page = left.first(std::min(left.size(), QueueStore::kMaxSurveyed));
  const auto survey = store.survey(context_, page);
  if (!survey) return logged(&survey.error());
  scanned_ += page.size();
  for (const Survey::Queue& each : survey->queues) found_[std::string(counted_queue(each.queue, types_))].add(each);
  const bool all = scanned_ >= to_check_.size();
  next_boot_ms_ = all ? std::max(swept_boot_ms_, now_boot_ms + kPageMs) : now_boot_ms + kPageMs;
  show(*survey);
  if (all) show_queues();
  return logged(nullptr);
}

// Queues of the script types of this build have metrics before an agent has claimed a job from them.
void ContextGauges::begin_sweep(const KnownQueues& known) {
  std::set<std::string> names(known.journals.begin(), known.journals.end());
  for (const TypeNames* types : {&types_of_this_build(), &known.types}) {
    for (const std::string& type : *types) names.insert(queue_key(type));
  }
  to_check_.assign(names.begin(), names.end());
  scanned_ = 0;
  types_ = known.types;
  for (auto& [label, queue] : found_) queue = {};  // A deleted queue counts as empty.
}

void ContextGauges::Queue::add(const Survey::Queue& each) {
  if (each.length > 0 && each.waiting_ms) oldest_ms = std::max(oldest_ms.value_or(0), *each.waiting_ms);
  if (each.length > 0 && !each.waiting_ms && jobs == 0) oldest_ms = std::nullopt;
  jobs += each.length;
  paused = paused || each.paused;
}

void ContextGauges::show_queues() {
  for (const auto& [label, queue] : found_) {
    metrics_->set(Metric::queue_jobs, {context_, label}, number(queue.jobs));
    if (queue.oldest_ms) metrics_->set(Metric::queue_oldest, {context_, label}, number(*queue.oldest_ms) / 1000);
    if (!queue.oldest_ms) metrics_->forget(Metric::queue_oldest, {context_, label});
    metrics_->set(Metric::queue_paused, {context_, label}, queue.paused ? 1 : 0);
  }
}

Result<void> ContextGauges::show_kept(RecordStore& store) {
  MJ_TRY(usage, stored_usage(store, context_));
  MJ_TRY(largest, largest_keeper(store, context_));
  metrics_->set(Metric::kept_bytes, {context_, "all"}, number(usage.bytes));
  metrics_->set(Metric::kept_bytes, {context_, "largest"}, number(largest.second));
  metrics_->set(Metric::kept_quota, {context_, "all"}, number(usage.context_quota));
  metrics_->set(Metric::kept_quota, {context_, "largest"}, number(usage.caller_quota));
  return {};
}

void ContextGauges::show(const Survey& survey) {
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

void ContextGauges::update_flow(Id flow, std::size_t gates) {
  if (gates == 0) {
    if (!gates_.empty()) gates_.erase(flow);
    return;
  }
  gates_[flow] = {gates, sweep_};
}

void ContextGauges::on_sweep_begin() { ++sweep_; }

void ContextGauges::on_sweep_end() {
  std::erase_if(gates_, [this](const auto& each) { return each.second.sweep != sweep_; });
}

}  // namespace mycojobs
