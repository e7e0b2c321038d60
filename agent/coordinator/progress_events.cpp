#include <algorithm>
#include <set>

#include "base/counted.h"
#include "base/ids.h"
#include "base/log.h"
#include "coordinator/progress_parts.h"
#include "domain/codec.h"
#include "domain/transitions.h"

namespace mycojobs {
namespace {

constexpr std::size_t kEventsAtOnce = 100;  // jobs; each may have a result of a mebibyte
constexpr std::size_t kAgain = 200;         // of one commit

JobSeen seen(const LoadedRun& run, std::uint32_t node, const FlowJobView& view) {
  JobSeen seen;
  seen.node = node;
  if (view.state == "absent") {
    seen.ended = true;
    seen.status = word(JobStatus::error);
    seen.detail = "dead_letter";
    seen.error = view.job_key + " has no record any more: somebody deleted it";
    return seen;
  }
  // No state: another client wrote the record, or took its claim away.
  seen.ended =
      view.state == "ended" ||
      (view.state.empty() && (view.status == word(JobStatus::finished) || view.status == word(JobStatus::error)));
  if (!seen.ended) return seen;
  seen.status = view.status;
  seen.detail = view.detail;
  seen.error = view.error;
  read_result(run.plan->nodes[node], view.result, seen);
  return seen;
}

}  // namespace

Step::Step(LoadedRun& run, std::uint64_t now_ms) : run_(run), now_ms_(now_ms), was_(run.state.status) {}

Result<void> Step::take(decltype(FlowEvent::what) what) {
  // One commit is bounded, however much happened at one time.
  DecideLimits limits;
  constexpr std::uint32_t kLeast = 50;
  limits.max_facts = std::max(
      kLeast, limits.max_facts - static_cast<std::uint32_t>(std::min<std::size_t>(limits.max_facts, facts.size())));
  limits.max_bytes -= std::min(limits.max_bytes, planted_bytes_);
  auto decided = decide(*run_.plan, std::move(run_.state), {now_ms_, std::move(what)}, limits);
  if (!decided) return fail(decided.error(), "flow " + std::to_string(run_.record.id));
  run_.state = std::move(decided->state);
  for (const Effect& each : decided->effects) {
    const bool place = each.kind == Effect::Kind::dispatch && run_.plan->nodes[each.node].each;
    if (place) planted_bytes_ += place_bytes(*run_.plan, each.node);
  }
  std::move(decided->facts.begin(), decided->facts.end(), std::back_inserter(facts));
  std::move(decided->effects.begin(), decided->effects.end(), std::back_inserter(effects));
  return {};
}

bool Step::full() const { return facts.size() >= DecideLimits().max_facts; }
bool Step::ends_flow() const { return !is_terminal(was_) && is_terminal(run_.state.status); }
bool Step::begins_flow() const { return was_ != FlowStatus::started && run_.state.status == FlowStatus::started; }

Result<FlowSeen> look_at(FlowStore& store, Id context, Id flow) {
  FlowSeen seen;
  seen.flow = flow;
  MJ_TRY(read, store.read(context, flow, kRecordAlone));
  if (read.record.empty()) {
    seen.error = "flow " + std::to_string(flow) + " does not exist";
    return seen;
  }
  auto decoded = decode<Flow>(read.record);
  seen.status = decoded.record.status;
  seen.error = std::move(decoded.record.error);
  if (seen.status == FlowStatus::error && seen.error.empty()) {
    seen.error = "flow " + std::to_string(flow) + " ended as error (" + decoded.record.detail + ")";
  }
  seen.result = std::move(decoded.record.result);
  seen.result_json = std::move(decoded.record.result_json);
  return seen;
}

Result<void> take_events(FlowStore& store, const RunRead& read, Step& step) {
  const std::size_t count = std::min(read.events.size(), kEventsAtOnce);
  std::vector<std::string> keys;
  std::set<std::string> once;
  for (std::size_t i = 0; i < count; ++i) {
    const FlowEventText& event = read.events[i];
    if (event.kind == "job" && node_of_job(step.run(), event.key) && once.insert(event.key).second)
      keys.push_back(event.key);
  }
  std::map<std::string, FlowJobView> views;
  if (!keys.empty()) {
    MJ_TRY(found, store.jobs(step.run().record.context_id, keys));
    for (FlowJobView& view : found) views[view.job_key] = std::move(view);
  }
  std::size_t nonsense = 0;
  std::string first;
  for (std::size_t i = 0; i < count && !step.full(); ++i) {
    const FlowEventText& event = read.events[i];
    std::uint64_t flow = 0;
    if (const auto node = event.kind == "job" ? node_of_job(step.run(), event.key) : std::nullopt) {
      if (const auto view = views.find(event.key); view != views.end()) {
        MJ_CHECK(step.take(seen(step.run(), *node, view->second)));
      }
    } else if (event.kind == "flow" && event.key.starts_with("flow:") &&
               parse_u64(std::string_view(event.key).substr(5), flow) && flow > 0 && flow <= UINT32_MAX) {
      MJ_TRY(other, look_at(store, step.run().record.context_id, static_cast<Id>(flow)));
      if (is_terminal(other.status)) MJ_CHECK(step.take(std::move(other)));
    } else if (nonsense++ == 0) {
      first = event.kind.substr(0, 40) + ' ' + event.key.substr(0, 80);
    }
    ++step.events_taken;
  }
  // One line, however many another client has written.
  if (nonsense > 0) {
    log(LogLevel::warn, "coordinator", "flow {}: passed over, since they say nothing: {}, the first one: {}",
        step.run().record.id, counted(nonsense, "event"), first);
  }
  return {};
}

Result<bool> take_jobs(FlowStore& store, Step& step) {
  std::vector<std::uint32_t> nodes;
  for (const std::uint32_t i : step.state().in_flight) {
    if (step.run().plan->nodes.at(i).kind == NodeKind::job) nodes.push_back(i);
  }
  // Planned, but not scheduled, comes before ended, but not applied: what the latter lead to is then in order.
  std::vector<JobSeen> ended;
  for (std::size_t from = 0; from < nodes.size(); from += kEventsAtOnce) {
    const std::size_t to = std::min(from + kEventsAtOnce, nodes.size());
    std::vector<std::string> keys;
    for (std::size_t i = from; i < to; ++i) keys.push_back(node_job_key(step.run(), nodes[i]));
    MJ_TRY(views, store.jobs(step.run().record.context_id, keys));
    for (std::size_t i = from; i < to && i - from < views.size(); ++i) {
      const FlowJobView& view = views[i - from];
      if (view.state == "planned" && step.again.size() < kAgain) step.again.push_back(view.job_key);
      JobSeen now = seen(step.run(), nodes[i], view);
      if (now.ended) ended.push_back(std::move(now));
    }
  }
  for (JobSeen& each : ended) {
    if (step.full()) return false;
    MJ_CHECK(step.take(std::move(each)));
  }
  return step.again.size() < kAgain;
}

}  // namespace mycojobs
