#include "coordinator/context_gauges.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "store/redis/store_metrics.h"
#include "store/stored_usage.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kScanIntervalMs = 5000, kPageIntervalMs = 100;
constexpr std::uint64_t kIdleScanIntervalMs = 10'000;  // after a scan that found no work
constexpr std::array kContextMetrics = {
    Metric::queue_jobs,   Metric::queue_oldest,  Metric::queue_paused,     Metric::jobs_by_state, Metric::dead_letters,
    Metric::flows_active, Metric::gates_waiting, Metric::pending_messages, Metric::stored_bytes,  Metric::stored_quota};

double to_double(std::uint64_t count) { return static_cast<double>(count); }

}  // namespace

ContextGauges::ContextGauges(std::shared_ptr<Metrics> metrics, Id context)
    : metrics_(std::move(metrics)), context_(context), log_once_("metrics", context) {
  metrics_->set(Metric::leadership, {context_}, 0);
}

void ContextGauges::set_leader(bool is_leader) {
  if (is_leader == is_leader_) return;
  is_leader_ = is_leader;
  metrics_->set(Metric::leadership, {context_}, is_leader ? 1 : 0);
  next_page_boot_ms_ = 0;
  gates_by_flow_.clear();
  if (!is_leader) remove_metrics();
}

void ContextGauges::remove_metrics() {
  for (const Metric metric : kContextMetrics) metrics_->remove_series(metric, {context_});
  scanned_queues_.clear();
  queues_by_label_.clear();
  next_queue_ = 0;
}

Result<void> ContextGauges::refresh_gauges(Store& store, std::uint64_t now_boot_ms) {
  if (!metrics_->is_enabled() || now_boot_ms < next_page_boot_ms_) return {};
  const auto log_result = [this](const Error* error) -> Result<void> {
    log_once_(error);
    if (error != nullptr && error->code == Code::unavailable) return tl::unexpected<Error>(*error);
    return {};
  };
  if (next_queue_ >= scanned_queues_.size()) {
    next_page_boot_ms_ = now_boot_ms + kScanIntervalMs;
    const auto known_queues = store.known_queues(context_);
    if (!known_queues) return log_result(&known_queues.error());
    start_queue_scan(*known_queues);
    if (const auto published = publish_storage_usage(store); !published) return log_result(&published.error());
    next_scan_boot_ms_ = next_page_boot_ms_;
  }
  const auto remaining = std::span(scanned_queues_).subspan(next_queue_);
  const auto page = remaining.first(std::min(remaining.size(), QueueStore::kMaxSurveyedQueues));
  const auto survey = store.survey(context_, page);
  if (!survey) return log_result(&survey.error());
  next_queue_ += page.size();
  for (const Survey::Queue& entry : survey->queues)
    queues_by_label_[std::string(queue_label(entry.queue, runner_types_))].add(entry);
  const bool is_complete = next_queue_ >= scanned_queues_.size();
  if (is_complete && is_idle(*survey)) next_scan_boot_ms_ += kIdleScanIntervalMs - kScanIntervalMs;
  next_page_boot_ms_ =
      is_complete ? std::max(next_scan_boot_ms_, now_boot_ms + kPageIntervalMs) : now_boot_ms + kPageIntervalMs;
  publish_survey(*survey);
  if (is_complete) publish_queues();
  return log_result(nullptr);
}

// Queues of the script types of this build have metrics before an agent has claimed a job from them.
void ContextGauges::start_queue_scan(const KnownQueues& known_queues) {
  std::set<std::string> names(known_queues.journals.begin(), known_queues.journals.end());
  for (const TypeNames* types : {&built_in_types(), &known_queues.types}) {
    for (const std::string& type : *types) names.insert(queue_key(type));
  }
  scanned_queues_.assign(names.begin(), names.end());
  next_queue_ = 0;
  runner_types_ = known_queues.types;
  for (auto& [label, queue] : queues_by_label_) queue = {};  // A deleted queue counts as empty.
}

void ContextGauges::Queue::add(const Survey::Queue& entry) {
  if (entry.length > 0 && entry.waiting_ms) oldest_ms = std::max(oldest_ms.value_or(0), *entry.waiting_ms);
  if (entry.length > 0 && !entry.waiting_ms && jobs == 0) oldest_ms = std::nullopt;
  jobs += entry.length;
  paused = paused || entry.paused;
}

bool ContextGauges::is_idle(const Survey& survey) const {
  const bool has_jobs = std::any_of(queues_by_label_.begin(), queues_by_label_.end(),
                                    [](const auto& entry) { return entry.second.jobs > 0; });
  return !has_jobs &&
         survey.live + survey.delayed + survey.prerequisites + survey.active_flows + survey.outbox + survey.inbox == 0;
}

void ContextGauges::publish_queues() {
  for (const auto& [label, queue] : queues_by_label_) {
    metrics_->set(Metric::queue_jobs, {context_, label}, to_double(queue.jobs));
    if (queue.oldest_ms) metrics_->set(Metric::queue_oldest, {context_, label}, to_double(*queue.oldest_ms) / 1000);
    if (!queue.oldest_ms) metrics_->remove_series(Metric::queue_oldest, {context_, label});
    metrics_->set(Metric::queue_paused, {context_, label}, queue.paused ? 1 : 0);
  }
}

Result<void> ContextGauges::publish_storage_usage(RecordStore& store) {
  MJ_TRY(usage, stored_usage(store, context_));
  MJ_TRY(largest, largest_storage_user(store, context_));
  metrics_->set(Metric::stored_bytes, {context_, "all"}, to_double(usage.bytes));
  metrics_->set(Metric::stored_bytes, {context_, "largest"}, to_double(largest.second));
  metrics_->set(Metric::stored_quota, {context_, "all"}, to_double(usage.context_quota));
  metrics_->set(Metric::stored_quota, {context_, "largest"}, to_double(usage.caller_quota));
  return {};
}

void ContextGauges::publish_survey(const Survey& survey) {
  metrics_->set(Metric::jobs_by_state, {context_, "live"}, to_double(survey.live));
  metrics_->set(Metric::jobs_by_state, {context_, "delayed"}, to_double(survey.delayed));
  metrics_->set(Metric::jobs_by_state, {context_, "prerequisites"}, to_double(survey.prerequisites));
  metrics_->set(Metric::jobs_by_state, {context_, "ended"}, to_double(survey.ended));
  metrics_->set(Metric::dead_letters, {context_}, to_double(survey.dead_letters));
  metrics_->set(Metric::flows_active, {context_}, to_double(survey.active_flows));
  metrics_->set(Metric::pending_messages, {context_, "out"}, to_double(survey.outbox));
  metrics_->set(Metric::pending_messages, {context_, "in"}, to_double(survey.inbox));
  std::size_t gates = 0;
  for (const auto& [flow, entry] : gates_by_flow_) gates += entry.waiting;
  metrics_->set(Metric::gates_waiting, {context_}, to_double(gates));
}

void ContextGauges::update_flow(Id flow, std::size_t gates) {
  if (gates == 0) {
    if (!gates_by_flow_.empty()) gates_by_flow_.erase(flow);
    return;
  }
  gates_by_flow_[flow] = {gates, current_recovery_number_};
}

void ContextGauges::on_recovery_begin() { ++current_recovery_number_; }

// Removes the flows that the recovery did not report, because they have ended.
void ContextGauges::on_recovery_end() {
  std::erase_if(gates_by_flow_,
                [this](const auto& entry) { return entry.second.recovery_number != current_recovery_number_; });
}

}  // namespace mycojobs
