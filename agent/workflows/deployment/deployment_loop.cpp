#include "workflows/deployment/deployment_loop.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/parse.h"
#include "base/random.h"
#include "flows/flow_creation.h"
#include "flows/flow_progress.h"
#include "flows/plan_limits.h"
#include "model/codec.h"
#include "model/result_values.h"
#include "model/trace_context.h"
#include "security/signatures.h"
#include "store/acl_context.h"
#include "store/keys.h"
#include "text/cbor.h"
#include "text/json.h"
#include "text/json_writer.h"
#include "workflows/manifest/system_schemas.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::uint32_t kMaxDueDeployments = 10'000;  // maximum number of names read in each round
constexpr std::uint64_t kIdleIntervalMs = 1000;
constexpr std::uint64_t kBackoffDelayMs = 5000;
constexpr std::uint64_t kMaxBackoffDelayMs = 600'000;  // maximum pause of an instance after repeated failures
constexpr std::size_t kMaxQueuedStepsPerThread = 8;    // steps that are queued for each thread of a deployment
// The search for ended effects without a notification checks each deployment once per kCheckIntervalMs, several in one
// round trip.
constexpr std::uint64_t kCheckIntervalMs = 60000, kPollIntervalMs = 250;
constexpr std::size_t kMaxDeploymentsBatch = 64, kMaxEffectRefsBatch = 1000;
constexpr std::uint64_t kMaxNotificationDelayMs = 1000;  // a delay longer than this means that a notification was lost
// Limits for one commit, so that an instance with little work does not wait long for instances with much work.
constexpr std::uint64_t kMaxInboxMs = 4, kMaxStepsMs = 8, kMaxSnapshotPartMs = 8;
// Minimum time of steps before a commit while inboxes have more events.
constexpr std::uint64_t kMinStepsMs = 2;
constexpr std::size_t kMaxEffectsBatch = 64;  // unpublished effects after which a commit runs no further steps
// Time for publishing effects after a commit; the rest is published after the next commit.
constexpr std::uint64_t kMaxPublishMs = 16;
constexpr int kMaxPasses = 10;                // commits of one turn; only one while another deployment waits
constexpr std::uint32_t kMaxFlowsBatch = 50;  // flows of one name in one page of the search for a definition
constexpr int kMaxFlowPages = 20;
// Time after which a deployment stops waiting for the moment in which a snapshot can be taken, and the part of this
// time in which no entry is processed.
constexpr std::uint64_t kMaxDrainMs = 15'000, kMinFullDrainMs = 300, kMaxFullDrainMs = 3000;
constexpr const char* kCancelEffectRef = "cancel";
const std::string kIntentKeyPrefix = "intent ";
// Name of the queue of a deployment's reads in the pool, after its name. Reads do not wait for queued steps.
const std::string kReadQueueSuffix = " cells";

std::string get_text(const Fields& fields, std::string_view name) { return std::string(field_of(fields, name)); }

// Returns a receipt with a status other than ok.
ReceiptArrived make_failed_receipt(const std::string& intent, ReceiptStatus status, const std::string& detail,
                                   const std::string& message) {
  ReceiptArrived out;
  out.intent = intent;
  out.status = status;
  out.payload = dump_json({{"detail", detail}, {"message", message}});
  return out;
}

// The job or flow may have run, so the effect is not started again.
ReceiptArrived make_lost_receipt(const std::string& intent, const std::string& effect_ref, const std::string& reason) {
  return make_failed_receipt(intent, ReceiptStatus::error, "lost", effect_ref + " no longer exists: " + reason);
}

ReceiptStatus to_receipt_status(const std::string& detail) {
  if (detail == "timeout" || detail == "timeout_cpu") return ReceiptStatus::timeout;
  return detail == "cancelled" ? ReceiptStatus::cancelled : ReceiptStatus::error;
}

// Returns whether a job or flow performs the effect. Other effects, such as timers, have no record.
bool has_record(const std::string& effect_ref) {
  return effect_ref.starts_with("job:") || effect_ref.starts_with("flow:");
}

bool is_unavailable(const Error& error) { return error.code == Code::unavailable; }

std::string format_deployment_ref(Id context, const LoadedDeployment& deployment) {
  return std::to_string(context) + ' ' + deployment.name();
}

// Returns the actor that the effects of an instance run as.
Id get_owner(const LoadedDeployment& deployment, const InstanceState& instance) {
  return std::max<Id>(1, deployment.owner_of(instance.manifest));
}
Id get_owner(const LoadedDeployment& deployment, const std::string& intent) {
  return get_owner(deployment, *deployment.state().find_instance(deployment.state().intents.at(intent)));
}

}  // namespace

Sample DeploymentLoop::sample() const { return {now_ms_, random_bytes(32)}; }

Result<std::uint64_t> DeploymentLoop::run_round() {
  pubkeys_.clear();
  acl_context_.reset();
  waited_ms_.clear();
  MJ_CHECK(sweep());
  for (std::string name : pool_.pop_finished()) {
    if (name.ends_with(kReadQueueSuffix)) name.resize(name.size() - kReadQueueSuffix.size());
    if (deployments_.contains(name)) enqueue_turn(name);
  }
  MJ_TRY(due, dependencies_.deployments.due_deployments(
                  context_, kMaxDueDeployments + static_cast<std::uint32_t>(backoffs_.size())));
  for (const std::string& name : due.first) enqueue_turn(name);
  MJ_TRY(worked, run_turns());
  if (worked) return 0;
  return due.second == 0 ? idle_ms() : std::min(idle_ms(), due.second);
}

// Returns the pause without due work. Deployments that are backing off stay due, so they are tried in short intervals.
std::uint64_t DeploymentLoop::idle_ms() const {
  if (!backoffs_.empty()) return kIdleIntervalMs;
  std::uint64_t next_ms = next_list_ms_;
  for (const auto& [name, deployment] : deployments_) next_ms = std::min(next_ms, deployment.next_poll_ms);
  const std::uint64_t now = dependencies_.clock.boot_ms();
  return std::clamp(next_ms > now ? next_ms - now : 0, kPollIntervalMs, kCheckIntervalMs);
}

Id DeploymentLoop::find_owner(const std::string& name) const {
  const auto found = owners_.find(name);
  return found == owners_.end() ? 0 : found->second;
}

bool DeploymentLoop::is_backing_off(const std::string& name) const {
  const auto backoff = backoffs_.find(name);
  return backoff != backoffs_.end() && backoff->second.until_ms > dependencies_.clock.boot_ms();
}

void DeploymentLoop::enqueue_turn(const std::string& name) {
  if (!is_backing_off(name)) turns_.add(find_owner(name), name);
}

// A deployment with more work waits for the next round. Otherwise a deployment that always has more work would prolong
// this round without a limit.
Result<bool> DeploymentLoop::run_turns() {
  std::map<Id, std::uint64_t> used_ms;
  std::vector<std::string> unfinished;
  bool worked = false;
  for (bool has_turns = true; std::exchange(has_turns, false);) {
    for (const Id owner : turns_.owners()) {
      std::uint64_t& used_owner_ms = used_ms[owner];
      if (used_owner_ms >= limits_.owner_ms) continue;
      const std::string name = turns_.pop(owner).value();
      has_turns = true;
      if (is_backing_off(name)) continue;
      const std::uint64_t start_ms = dependencies_.clock.boot_ms();
      MJ_TRY(has_more_work, process_deployment(name, start_ms + limits_.owner_ms - used_owner_ms));
      used_owner_ms += dependencies_.clock.boot_ms() - start_ms;
      worked = true;
      if (has_more_work) unfinished.push_back(name);
    }
  }
  for (const std::string& name : unfinished) enqueue_turn(name);
  return worked;
}

void DeploymentLoop::unload(const std::string& name) {
  pool_.drop_queued(name);
  pool_.drop_queued(name + kReadQueueSuffix);
  const auto found = deployments_.find(name);
  if (found != deployments_.end() && !found->second.loaded.unreadable_snapshot().empty())
    unreadable_snapshots_[name] = found->second.loaded.unreadable_snapshot();
  deployments_.erase(name);
}

Result<void> DeploymentLoop::recover() {
  while (!deployments_.empty()) unload(deployments_.begin()->first);
  backoffs_.clear();
  owners_.clear();
  turns_.clear();
  acl_context_.reset();
  runs_.clear_runs();
  MJ_TRY(names, dependencies_.deployments.list_deployments(context_));
  MJ_TRY(now, dependencies_.deployments.now_ms());
  now_ms_ = now;
  for (const std::string& name : names) {
    auto deployment = load_deployment(name);
    if (!deployment && is_unavailable(deployment.error())) return tl::unexpected<Error>(std::move(deployment).error());
    if (!deployment) {
      back_off(name, deployment.error());
      continue;
    }
    do MJ_CHECK(poll_deployments({name}));
    while (!(*deployment)->poll_cursor.empty());
    enqueue_turn(name);
  }
  return {};
}

// Notifications can be lost, for example when a backup is restored or a client deletes keys. Therefore every deployment
// is checked periodically, whether it is due or not, and served if it has unprocessed work.
Result<void> DeploymentLoop::sweep() {
  const std::uint64_t now = dependencies_.clock.boot_ms();
  if (now < next_poll_ms_) return {};
  next_poll_ms_ = now + kPollIntervalMs;
  if (now >= next_list_ms_) {
    MJ_TRY(names, dependencies_.deployments.list_deployments(context_));
    next_list_ms_ = now + kCheckIntervalMs;
    for (const std::string& name : names) {
      if (backoffs_.contains(name)) continue;
      auto deployment = load_deployment(name);
      if (!deployment && is_unavailable(deployment.error()))
        return tl::unexpected<Error>(std::move(deployment).error());
      if (!deployment) back_off(name, deployment.error());
    }
  }
  std::vector<std::string> names;
  for (const auto& [name, deployment] : deployments_)
    if (deployment.next_poll_ms <= now && names.size() < kMaxDeploymentsBatch) names.push_back(name);
  if (names.empty()) return {};
  MJ_TRY(delayed_deployments, poll_deployments(names));
  for (const std::string& name : delayed_deployments) enqueue_turn(name);
  return {};
}

// Checks the deployments in one round trip. Returns those with work that has waited too long.
Result<std::vector<std::string>> DeploymentLoop::poll_deployments(const std::vector<std::string>& names) {
  std::vector<DeploymentPoll> polls;
  for (const std::string& name : names) {
    Deployment& deployment = deployments_.at(name);
    const auto& effect_refs = deployment.loaded.index().effect_refs();
    DeploymentPoll poll{name, {}};
    for (auto effect_ref = effect_refs.upper_bound(deployment.poll_cursor);
         effect_ref != effect_refs.end() && poll.effect_refs.size() < kMaxEffectRefsBatch; ++effect_ref)
      poll.effect_refs.push_back(effect_ref->first);
    polls.push_back(std::move(poll));
  }
  MJ_TRY(results, dependencies_.deployments.poll(context_, polls));
  std::vector<std::string> delayed_deployments;
  for (std::size_t i = 0; i < names.size(); ++i) {
    Deployment& deployment = deployments_.at(names[i]);
    const bool is_complete = polls[i].effect_refs.size() < kMaxEffectRefsBatch;
    deployment.poll_cursor = is_complete ? "" : polls[i].effect_refs.back();
    // Spreads the checks of deployments that were loaded at the same time.
    const std::uint64_t spread = std::hash<std::string>{}(names[i]) % (kCheckIntervalMs / 4);
    deployment.next_poll_ms =
        dependencies_.clock.boot_ms() + (is_complete ? kCheckIntervalMs - spread : kIdleIntervalMs);
    for (const std::string& effect_ref : results[i].ended_effects) deployment.missed_completions.insert(effect_ref);
    if (has_missed_event(deployment, results[i])) delayed_deployments.push_back(names[i]);
  }
  return delayed_deployments;
}

bool DeploymentLoop::has_missed_event(const Deployment& deployment, const DeploymentPollResult& result) {
  if (!deployment.missed_completions.empty()) return true;
  now_ms_ = result.now_ms;
  const std::uint64_t expected_ms = result.inbox_entries > 0 ? now_ms_ : compute_due_ms(deployment);
  return expected_ms != 0 &&
         (result.due_ms == 0 || result.due_ms > std::max(expected_ms, now_ms_) + kMaxNotificationDelayMs);
}

Result<DeploymentLoop::Deployment*> DeploymentLoop::load_deployment(const std::string& name) {
  const auto found = deployments_.find(name);
  if (found != deployments_.end()) return &found->second;
  LoadOptions options;
  options.cache = limits_.cell_cache;
  if (const auto hash = unreadable_snapshots_.find(name); hash != unreadable_snapshots_.end())
    options.unreadable_snapshot = hash->second;
  MJ_TRY(loaded, LoadedDeployment::load(dependencies_.deployments, context_, name, options));
  loaded.set_max_inbox_events(limits_.max_inbox_events);
  loaded.set_max_snapshot_bytes(limits_.max_snapshot_bytes);
  traces_[name].erase_after(loaded.state().height);
  owners_[name] = loaded.owner_of(loaded.state().manifest);
  return &deployments_.emplace(name, Deployment{std::move(loaded)}).first->second;
}

void DeploymentLoop::back_off(const std::string& name, const Error& error) {
  Backoff& backoff = backoffs_[name];
  backoff.until_ms = dependencies_.clock.boot_ms() + kBackoffDelayMs;
  if (backoff.reason == error.message) return;
  backoff.reason = error.message;
  log(LogLevel::error, "workflows", "context {}: {} waits: {}", context_, name, error.message);
}

Result<bool> DeploymentLoop::process_deployment(const std::string& name, std::uint64_t until_ms) {
  bool has_more = true;
  for (int i = 0; i < kMaxPasses; ++i) {
    auto deployment = load_deployment(name);
    auto result = deployment ? run_commit(**deployment) : tl::unexpected<Error>(deployment.error());
    if (result) {
      has_more = *result;
      if (!has_more || turns_.any_waits() || dependencies_.clock.boot_ms() >= until_ms) break;
      continue;
    }
    unload(name);
    if (is_unavailable(result.error())) return tl::unexpected<Error>(std::move(result).error());
    if (result.error().code == Code::conflict) continue;
    back_off(name, result.error());
    return false;
  }
  backoffs_.erase(name);
  return has_more;
}

// Prepares and stores one commit. Returns whether there is more work.
Result<bool> DeploymentLoop::run_commit(Deployment& deployment) {
  LoadedDeployment& loaded = deployment.loaded;
  MJ_TRY(now, dependencies_.deployments.now_ms());
  now_ms_ = now;
  if (loaded.is_building_snapshot()) return continue_snapshot(deployment).map([] { return true; });
  MJ_TRY(entries, process_inbox(deployment));
  MJ_TRY(timers, complete_timers(loaded));
  MJ_TRY(steps, run_steps(deployment));
  MJ_CHECK(process_completions(deployment));
  MJ_CHECK(loaded.commit(dependencies_.deployments, compute_due_ms(deployment)));
  if (loaded.needs_collection())
    MJ_CHECK(loaded.collect_garbage_blobs(dependencies_.deployments, limits_.min_collection_bytes));
  MJ_TRY(published, publish_effects(loaded));
  if (is_snapshot_due(loaded)) MJ_CHECK(check_snapshot(loaded, loaded.start_snapshot(sample())));
  return entries + timers + steps + published > 0 || loaded.pending_facts() > 0 || loaded.is_building_snapshot() ||
         loaded.has_replaced_blobs();
}

// Returns the time of the next evaluation if no event arrives before, or 0 if there is none. The time is stored with
// the commit, so that the next leader finds the remaining work.
std::uint64_t DeploymentLoop::compute_due_ms(const Deployment& deployment) {
  const DeploymentState& state = deployment.loaded.state();
  const DeploymentIndex& index = deployment.loaded.index();
  const std::size_t delayed = deployment.backoff_ends.size() + deployment.running_steps.size();
  if (!index.unpublished_intents().empty() || state.ready_instances.size() > delayed) return now_ms_;
  std::uint64_t due_ms = index.timers().empty() ? 0 : index.timers().begin()->first;
  if (delayed > 0) due_ms = due_ms == 0 ? now_ms_ + kBackoffDelayMs : std::min(due_ms, now_ms_ + kBackoffDelayMs);
  return due_ms;
}

// Returns whether inbox entries must be held back. A snapshot requires that all inboxes of instances are empty and all
// effects are published. If this state does not occur for a long time, instances with events in their inboxes get no
// further events for a while, and then no instance gets further events. If this does not help, for example because of a
// long step, the deployment tries it again after as many facts. While an instance waits after an error, no snapshot is
// possible.
bool DeploymentLoop::should_drain(Deployment& deployment) {
  const std::uint64_t height = deployment.loaded.state().height;
  const std::uint64_t interval = 4 * snapshot_interval(deployment.loaded);
  if (deployment.loaded.facts_since_snapshot() < interval || height < deployment.next_drain_height) return false;
  if (!deployment.backoff_ends.empty()) return deployment.drain_start_ms = 0, false;
  const std::uint64_t now = dependencies_.clock.boot_ms();
  if (deployment.drain_start_ms == 0) deployment.drain_start_ms = now;
  if (now - deployment.drain_start_ms < kMaxDrainMs) return true;
  deployment.drain_start_ms = 0;
  deployment.next_drain_height = height + interval;
  return false;
}

std::uint64_t DeploymentLoop::snapshot_interval(const LoadedDeployment& deployment) const {
  return limits_.snapshot_every * deployment.snapshot_interval_factor();
}

// A snapshot begins after all decisions were committed, so that its parts can be stored at the same height.
bool DeploymentLoop::is_snapshot_due(const LoadedDeployment& deployment) const {
  const bool is_due =
      deployment.facts_since_snapshot() >= snapshot_interval(deployment) || deployment.needs_first_index();
  return is_due && deployment.pending_facts() == 0 && deployment.state().ready_instances.empty() &&
         deployment.index().unpublished_intents().empty();
}

// A snapshot that is too large is tried again after more facts.
Result<void> DeploymentLoop::check_snapshot(LoadedDeployment& deployment, Result<void> result) {
  if (result || result.error().code != Code::too_large) return result;
  deployment.skip_snapshot();
  log(LogLevel::warn, "workflows", "context {}: {}: {}", context_, deployment.name(), result.error().message);
  return {};
}

Result<void> DeploymentLoop::continue_snapshot(Deployment& deployment) {
  LoadedDeployment& loaded = deployment.loaded;
  const std::uint64_t until = dependencies_.clock.boot_ms() + kMaxSnapshotPartMs;
  do {
    MJ_CHECK(check_snapshot(loaded, loaded.build_snapshot_part(limits_.snapshot_part_cells).map([](bool) {})));
  } while (loaded.is_building_snapshot() && loaded.unwritten_snapshot_bytes() < limits_.snapshot_part_bytes &&
           dependencies_.clock.boot_ms() < until);
  if (loaded.is_building_snapshot()) return loaded.write_snapshot_blobs(dependencies_.deployments);
  if (loaded.pending_facts() == 0) {  // the snapshot was refused
    deployment.drain_start_ms = 0;
    return {};
  }
  deployment.drain_start_ms = deployment.next_drain_height = 0;
  MJ_CHECK(loaded.commit(dependencies_.deployments, compute_due_ms(deployment)));
  if (!loaded.needs_collection() && !loaded.should_collect_after_snapshot()) return {};
  return loaded.collect_garbage_blobs(dependencies_.deployments, limits_.min_collection_bytes);
}

// ---- inbox entries ----

namespace {

// Returns the receivers of an entry, as far as they are known without parsing the payload
// (DeploymentInbox::TargetFinder).
std::optional<std::vector<std::string>> find_targets(const LoadedDeployment& deployment, const InboxEntry& entry) {
  if (entry.kind == "event") {
    const std::string_view to = field_of(entry.fields, "to");
    if (to.empty()) return std::nullopt;
    std::vector<std::string> targets;
    for (std::size_t begin = 0; begin <= to.size(); begin += targets.back().size() + 1)
      targets.emplace_back(to.substr(begin, to.find(',', begin) - begin));
    return targets;
  }
  if (entry.kind == "remove" || entry.kind == "cancel")
    return std::vector{get_text(entry.fields, "workflow") + ' ' + get_text(entry.fields, "key")};
  const std::string intent = entry.kind == "answer" ? get_text(entry.fields, "intent")
                                                    : deployment.index().find_intent(get_text(entry.fields, "key"));
  const auto instance = deployment.state().intents.find(intent);
  if (instance == deployment.state().intents.end()) return std::vector<std::string>();
  return std::vector{store_name(instance->second)};
}

// Returns whether an input was not refused but could not be decided, so that it must stay in the inbox.
bool must_retry(const LoadedDeployment& deployment, const Error& error) {
  return error.code == Code::internal || deployment.has_load_error();
}

}  // namespace

// A read of instances by a thread of the pool.
struct DeploymentLoop::CellRead {
  CellQuery query;
  Result<FoundCells> found;
  std::atomic<bool> has_ended{false};  // set by the pool after its last access to the other fields
};

// Reads the receivers of the next entries together. Entries wait while another thread reads their receivers, and
// entries with receivers in memory are processed meanwhile.
Result<void> DeploymentLoop::load_targets(Deployment& deployment) {
  MJ_CHECK(collect_read(deployment));
  std::set<InstanceId> targets;
  bool has_known_target = false;
  for (const std::string& name : deployment.inbox.next_targets(2 * limits_.max_inbox_entries)) {
    InstanceId id = parse_store_name(name);
    has_known_target = has_known_target || deployment.loaded.knows_cell(id);
    targets.insert(std::move(id));
  }
  CellQuery query = deployment.loaded.make_query(targets);
  if (query.cells.empty()) return {};
  if (dependencies_.cell_stores.empty()) return deployment.loaded.load_cells(targets);
  if (!deployment.cell_read) submit_read(deployment, std::move(query));
  if (has_known_target) return {};
  wait_for_pool(deployment, [&] { return deployment.cell_read->has_ended.load(); });
  return collect_read(deployment);
}

void DeploymentLoop::submit_read(Deployment& deployment, CellQuery query) {
  const std::string& name = deployment.loaded.name();
  if (!deployment.cell_reader) {
    deployment.cell_reader = std::make_shared<CellPageReader>();
    deployment.cell_reader->reader =
        CellReader([reader = deployment.cell_reader.get(), context = context_, name](const auto& hashes) {
          return reader->store->read_blobs(context, name, hashes);
        });
  }
  auto read = std::make_shared<CellRead>();
  read->query = std::move(query);
  deployment.cell_read = read;
  pool_.submit(find_owner(name), name + kReadQueueSuffix, [this, read, reader = deployment.cell_reader, name] {
    // An exception would end the coordinator, as in execute_step().
    try {
      read->found = read_in_background(name, *reader, read->query);
    } catch (const std::exception& error) {
      read->found = fail(Code::unavailable, name + ": reading instances ended with an exception: " + error.what());
    }
    read->has_ended = true;
    return true;
  });
}

// Waits until a store is free. Called by the threads of the pool.
Result<FoundCells> DeploymentLoop::read_in_background(const std::string& deployment, CellPageReader& reader,
                                                      const CellQuery& query) {
  {
    std::unique_lock lock(cell_stores_mutex_);
    cell_store_released_.wait(lock, [this] { return !free_cell_stores_.empty(); });
    reader.store = free_cell_stores_.back();
    free_cell_stores_.pop_back();
  }
  const auto release = [this](WorkflowStore* store) {
    {
      const std::lock_guard lock(cell_stores_mutex_);
      free_cell_stores_.push_back(store);
    }
    cell_store_released_.notify_one();
  };
  const std::unique_ptr<WorkflowStore, decltype(release)> store(reader.store, release);
  return read_cells(*store, context_, deployment, reader.reader, query);
}

Result<void> DeploymentLoop::collect_read(Deployment& deployment) {
  if (!deployment.cell_read || !deployment.cell_read->has_ended) return {};
  const auto read = std::exchange(deployment.cell_read, nullptr);
  if (read->found) return deployment.loaded.add_cells(read->query, std::move(*read->found)), Result<void>();
  if (is_unavailable(read->found.error())) return tl::unexpected<Error>(std::move(read->found).error());
  // A later snapshot may have replaced the page. Otherwise load_cells() reports the error.
  std::set<InstanceId> ids;
  for (const auto& [id, heights] : read->query.cells) ids.insert(id);
  return deployment.loaded.load_cells(ids);
}

Result<std::size_t> DeploymentLoop::process_inbox(Deployment& deployment) {
  LoadedDeployment& loaded = deployment.loaded;
  MJ_CHECK(deployment.inbox.read(dependencies_.deployments, context_, loaded.name(),
                                 [&](const InboxEntry& entry) { return find_targets(loaded, entry); }));
  std::function<bool(const std::string&)> is_blocked;
  const bool drains = should_drain(deployment);
  const std::uint64_t drained_ms = drains ? dependencies_.clock.boot_ms() - deployment.drain_start_ms : 0;
  if (drained_ms > kMinFullDrainMs && drained_ms <= kMaxFullDrainMs) return wait_for_a_step(deployment), std::size_t{0};
  MJ_CHECK(load_targets(deployment));
  if (drains || deployment.cell_read) {
    is_blocked = [&, is_reading = deployment.cell_read != nullptr](const std::string& instance_name) {
      const InstanceId id = parse_store_name(instance_name);
      const InstanceState* instance = loaded.state().find_instance(id);
      if (instance == nullptr) return is_reading && !instance_name.empty() && !loaded.knows_cell(id);
      return drains && !instance->inbox.empty();
    };
  }
  const std::uint64_t until = dependencies_.clock.boot_ms() + kMaxInboxMs;
  std::size_t count = 0;
  while (count < limits_.max_inbox_entries && loaded.pending_bytes() < limits_.max_commit_bytes &&
         dependencies_.clock.boot_ms() < until) {
    const auto entry = deployment.inbox.pop(is_blocked);
    if (!entry) break;
    MJ_CHECK(decide_entry(loaded, *entry));
    loaded.mark_processed(entry->id);
    ++count;
  }
  if (drains && count == 0) wait_for_a_step(deployment);
  return count;
}

Result<void> DeploymentLoop::decide_entry(LoadedDeployment& deployment, const InboxEntry& entry) {
  Result<void> result;
  std::string label = entry.kind;
  if (entry.kind == "event") {
    label += ' ' + get_text(entry.fields, "schema");
    result = decide_traced(deployment, get_text(entry.fields, "traceparent"),
                           {sample(), EventArrived{get_text(entry.fields, "schema"), get_text(entry.fields, "value"),
                                                   ValueForm::from_json, get_text(entry.fields, "source")}});
  } else if (entry.kind == "remove") {
    const RemoveInstance remove{{get_text(entry.fields, "workflow"), from_hex(get_text(entry.fields, "key"))},
                                get_text(entry.fields, "by")};
    result = deployment.decide({sample(), remove});
  } else if (entry.kind == "cancel") {
    result = cancel_instance(deployment, entry);
    if (!result && is_unavailable(result.error())) return result;
  } else if (entry.kind == "answer") {
    ReceiptArrived answer;
    answer.intent = get_text(entry.fields, "intent");
    answer.payload = get_text(entry.fields, "payload");
    return decide_receipt(deployment, std::move(answer));
  } else if (entry.kind == "job" || entry.kind == "flow") {
    auto receipt = build_receipt(deployment, get_text(entry.fields, "key"));
    if (!receipt && is_unavailable(receipt.error())) return tl::unexpected<Error>(std::move(receipt).error());
    if (receipt && *receipt) return decide_receipt(deployment, std::move(**receipt));
    if (!receipt) result = tl::unexpected<Error>(std::move(receipt).error());
  } else {
    result = fail(Code::invalid, "the inbox entry has an unknown kind");
  }
  if (!result && must_retry(deployment, result.error())) return result;
  if (!result)
    log(LogLevel::warn, "workflows", "context {}: {}: {} refused: {}", context_, deployment.name(),
        append_trace_id(label, get_text(entry.fields, "traceparent")), result.error().message);
  return {};
}

Result<void> DeploymentLoop::decide_traced(LoadedDeployment& deployment, const std::string& traceparent,
                                           const WorkflowInput& input) {
  const std::uint64_t before = deployment.state().height;
  MJ_CHECK(deployment.decide(input));
  traces_[deployment.name()].mark(before, deployment.state().height, traceparent);
  return {};
}

std::string DeploymentLoop::find_trace(const LoadedDeployment& deployment, const PendingIntent& pending) const {
  return find_trace(deployment, pending.sequence);
}

std::string DeploymentLoop::find_trace(const LoadedDeployment& deployment, std::uint64_t height) const {
  const auto found = traces_.find(deployment.name());
  return found == traces_.end() ? "" : found->second.find(height);
}

void DeploymentLoop::load_trace(const LoadedDeployment& deployment, const std::string& intent,
                                const std::string& traceparent) {
  const PendingIntent* pending = find_pending(deployment.state(), intent);
  if (pending != nullptr && pending->sequence > 0 && find_trace(deployment, *pending).empty())
    traces_[deployment.name()].mark(pending->sequence - 1, pending->sequence, traceparent);
}

Result<void> DeploymentLoop::decide_receipt(LoadedDeployment& deployment, ReceiptArrived receipt) {
  const std::string intent = receipt.intent;
  const PendingIntent* pending = find_pending(deployment.state(), intent);
  const std::string trace = pending == nullptr ? "" : find_trace(deployment, *pending);
  auto result = decide_traced(deployment, trace, {sample(), std::move(receipt)});
  if (result) dependencies_.metrics->add(Metric::workflow_effects, {context_, "receipt"});
  if (!result && must_retry(deployment, result.error())) return result;
  if (!result)
    log(LogLevel::warn, "workflows", "context {}: {}: receipt of {} refused: {}", context_, deployment.name(),
        append_trace_id(intent.substr(0, 16), trace), result.error().message);
  return {};
}

Result<std::string> DeploymentLoop::load_pubkey(Id runner_id) {
  const auto entry = pubkeys_.find(runner_id);
  if (entry != pubkeys_.end()) return entry->second;
  Runner runner;
  runner.id = runner_id;
  auto record = dependencies_.store.load(context_, redis_key(runner));
  if (!record && is_unavailable(record.error())) return tl::unexpected<Error>(std::move(record).error());
  return pubkeys_[runner_id] = record ? decode<Runner>(*record).record.pubkey : "";
}

// Returns the reason to reject the receipt of a job, or an empty text if the receipt is valid: the record is unchanged
// since the end and the runner has signed it, or the store has authenticated the end and the runner has no key.
Result<std::string> DeploymentLoop::check_receipt(const EndedJob& ended, const Job& job, const std::string& intent) {
  if (ended.record_state == EndedJob::RecordState::changed)
    return "another client has changed its record since it ended";
  const bool is_authentic = ended.record_state == EndedJob::RecordState::unchanged;
  // A job that never ran has no runner that could sign.
  if (is_authentic && ended.status == to_string(JobStatus::error) && job.receipt.empty()) return "";
  const auto receipt = parse_json(job.receipt.empty() ? "{}" : job.receipt);
  const bool is_signed = receipt && receipt->is_object() && receipt->contains("signature");
  // The claim of a router names no runner. The answer came from the remote supervisor of the effect's runner, in an
  // envelope with a checked signature (messaging/message_receiver.h). Only that host knows the runner that signed, so
  // the receipt is checked with the key that the receipt names.
  const bool is_routed = is_authentic && is_signed && ended.runner == 0;
  MJ_TRY(registered, load_pubkey(ended.runner));
  const json signer = is_routed ? receipt->value("signer", json()) : json();
  const std::string pubkey = signer.is_string() ? signer.get<std::string>() : registered;
  const std::string runner = "runner " + std::to_string(ended.runner);
  if (!is_signed && !pubkey.empty()) return runner + " has a public key but did not sign the receipt";
  if (!is_signed && is_authentic) return "";
  if (!is_signed) return "the end is recorded only in its record, and no runner has signed a receipt";
  if (pubkey.empty()) return "no record has the public key of " + runner;
  if (auto checked = check_signature(*receipt, "receipt", pubkey); !checked) return checked.error().message;
  if (!is_routed && receipt->value("job", json()) != json(redis_key(job))) return "the receipt is for another job";
  if (!is_routed && !ended.claim_id.empty() && receipt->value("claim", json()) != json(ended.claim_id))
    return "the receipt is for another claim";
  // The receipt of a job that ended before the start of its script names no intent.
  const json receipt_intent = receipt->value("intent", json());
  if (receipt_intent != json(intent) && (ended.status == to_string(JobStatus::finished) || !receipt_intent.is_null()))
    return "the receipt is for another intent";
  if (receipt->value("status", json()) != json(ended.status)) return "the receipt has another end than the record";
  const bool is_same_result =
      receipt->value("result_sha256", json()) == json(compute_result_hash(job.result, job.result_json));
  return is_same_result ? "" : "the result differs from the signed result";
}

// A job can end before the fact EffectPublished, which names the job, was committed. The idempotency key of the job
// then names the intent.
Result<std::optional<ReceiptArrived>> DeploymentLoop::build_job_receipt(LoadedDeployment& deployment,
                                                                        const std::string& job_key) {
  MJ_TRY(ended, dependencies_.store.ended_job(context_, job_key));
  if (!ended.ended) return std::optional<ReceiptArrived>();
  std::string intent = deployment.index().find_intent(job_key);
  if (intent.empty() && ended.idempotency_key.starts_with(kIntentKeyPrefix)) {
    const std::string pending_intent = ended.idempotency_key.substr(kIntentKeyPrefix.size());
    const PendingIntent* pending = find_pending(deployment.state(), pending_intent);
    // Any client can set this key on a job of its own, so the caller must be the owner.
    if (pending != nullptr && !pending->published && parse_job_caller(job_key) == get_owner(deployment, pending_intent))
      intent = pending_intent;
  }
  if (intent.empty()) return std::optional<ReceiptArrived>();
  const Job job = decode<Job>(ended.fields).record;
  load_trace(deployment, intent, job.traceparent);
  // If the record of a job was deleted, its end writes a new record, without the fields that identify the job.
  if (job.id == 0 && job.caller_id == 0)
    return std::optional(make_lost_receipt(intent, job_key, "its record was deleted"));
  ReceiptArrived receipt;
  if (ended.status == to_string(JobStatus::finished)) {
    receipt.intent = intent;
    receipt.payload = to_typed_json_text(job.result, job.result_json);
  } else {
    receipt = make_failed_receipt(intent, to_receipt_status(ended.detail), ended.detail, job.error);
  }
  receipt.module = job.script_type;
  MJ_TRY(reason, check_receipt(ended, job, intent));
  receipt.refusal_reason = std::move(reason);
  return std::optional(std::move(receipt));
}

Result<std::optional<ReceiptArrived>> DeploymentLoop::build_flow_receipt(LoadedDeployment& deployment,
                                                                         const std::string& flow_key) {
  const std::string intent = deployment.index().find_intent(flow_key);
  if (intent.empty()) return std::optional<ReceiptArrived>();
  MJ_TRY(record, dependencies_.store.load(context_, flow_key));
  const Flow flow = decode<Flow>(record).record;
  load_trace(deployment, intent, flow.traceparent);
  if (flow.status == FlowStatus::finished) {
    ReceiptArrived receipt;
    receipt.intent = intent;
    JsonObject payload(receipt.payload);
    payload.add("flow_id", flow.id);
    payload.append_member("result") += to_typed_json_text(flow.result, flow.result_json);
    payload.end();
    return std::optional(std::move(receipt));
  }
  if (flow.status != FlowStatus::error) return std::optional<ReceiptArrived>();
  return std::optional(make_failed_receipt(intent, to_receipt_status(flow.detail), flow.detail, flow.error));
}

// A job or flow without a record is reported as lost if its intent is pending.
Result<std::optional<ReceiptArrived>> DeploymentLoop::build_receipt(LoadedDeployment& deployment,
                                                                    const std::string& effect_ref) {
  auto receipt = effect_ref.starts_with("job:") ? build_job_receipt(deployment, effect_ref)
                                                : build_flow_receipt(deployment, effect_ref);
  const std::string intent = deployment.index().find_intent(effect_ref);
  if (receipt || receipt.error().code != Code::not_found || intent.empty()) return receipt;
  return std::optional(make_lost_receipt(intent, effect_ref, receipt.error().message));
}

// Processes the jobs and flows that a sweep has found to have ended without a notification. A sweep finds a job with a
// rejected receipt again, so that the receipt is accepted after the key in the record of the runner was repaired. Each
// reason of a rejection is journaled once.
Result<void> DeploymentLoop::process_completions(Deployment& deployment) {
  for (const std::string& effect_ref : std::exchange(deployment.missed_completions, {})) {
    auto receipt = build_receipt(deployment.loaded, effect_ref);
    if (!receipt && is_unavailable(receipt.error())) return tl::unexpected<Error>(std::move(receipt).error());
    const std::string reason = !receipt ? receipt.error().message : *receipt ? (*receipt)->refusal_reason : "";
    const auto entry = deployment.refusal_reasons.find(effect_ref);
    if (!reason.empty() && entry != deployment.refusal_reasons.end() && entry->second == reason) continue;
    if (reason.empty()) {
      deployment.refusal_reasons.erase(effect_ref);
    } else {
      deployment.refusal_reasons[effect_ref] = reason;
    }
    if (!receipt)
      log(LogLevel::warn, "workflows", "context {}: {}: {} cannot be read: {}", context_, deployment.loaded.name(),
          effect_ref, reason);
    else if (*receipt)
      MJ_CHECK(decide_receipt(deployment.loaded, std::move(**receipt)));
  }
  return {};
}

Result<std::size_t> DeploymentLoop::complete_timers(LoadedDeployment& deployment) {
  std::vector<std::string> due;
  for (const auto& [at, intent] : deployment.index().timers()) {
    if (at > now_ms_ || due.size() >= limits_.max_inbox_entries) break;
    due.push_back(intent);
  }
  for (const std::string& intent : due) {
    const PendingIntent* pending = find_pending(deployment.state(), intent);
    ReceiptArrived receipt;
    if (pending != nullptr && pending->effect_ref == kApprovalEffectRef) {
      receipt = make_failed_receipt(intent, ReceiptStatus::timeout, "timeout", "no answer was given in time");
    } else {
      receipt.intent = intent;
      receipt.payload = dump_json({{"fired_ms", now_ms_}});
    }
    MJ_CHECK(decide_receipt(deployment, std::move(receipt)));
  }
  return due.size();
}

// ---- steps ----

struct DeploymentLoop::PendingStep {
  InstanceId instance;
  InboxEventId event_id;
  ManifestRef manifest;
  const WorkflowSpec* spec = nullptr;
  StepRequest request;
  Result<StepAnswer> answer = tl::unexpected<Error>(Error{});
  std::uint64_t took_ms = 0;
  std::atomic<bool> has_ended{false};  // set by the pool after its last access to the other fields
};

// An exception, for example std::bad_alloc for a large state, would end the coordinator. It becomes an error of this
// step.
Result<StepAnswer> DeploymentLoop::execute_step(const StepRunner& run_step, const PendingStep& step) {
  try {
    return run_step(*step.spec, *step.manifest, step.request);
  } catch (const std::exception& error) {
    return fail(Code::unavailable, std::string("the step ended with an exception: ") + error.what());
  }
}

// Instances are served round-robin, one step each. Results are committed once each instance has had a turn and some
// inboxes are empty, so that finished instances do not wait for instances with more events.
Result<std::size_t> DeploymentLoop::run_steps(Deployment& deployment) {
  const std::uint64_t now = dependencies_.clock.boot_ms();
  std::erase_if(deployment.backoff_ends, [&](const auto& row) { return row.second <= now; });
  const std::size_t max_bytes = deployment.loaded.pending_bytes() + limits_.max_commit_bytes;
  const DeploymentState& state = deployment.loaded.state();
  const std::uint64_t next_turn = state.next_ticket;
  bool any_is_done = false;
  std::size_t count = 0;
  while (count < limits_.max_steps && deployment.loaded.pending_bytes() < max_bytes &&
         deployment.loaded.index().unpublished_intents().size() < kMaxEffectsBatch &&
         dependencies_.clock.boot_ms() < now + kMaxStepsMs) {
    const std::size_t ready = state.ready_instances.size();
    MJ_CHECK(start_steps(deployment, limits_.max_steps - count, max_bytes));
    wait_for_steps(deployment);
    MJ_TRY(answer_count, collect_answers(deployment, max_bytes));
    if (answer_count == 0) break;
    count += answer_count;
    const bool all_had_a_turn = state.ready_instances.empty() || state.ready_instances.begin()->first >= next_turn;
    any_is_done = any_is_done || state.ready_instances.size() < ready;
    if (all_had_a_turn && any_is_done && dependencies_.clock.boot_ms() >= now + kMinStepsMs) break;
  }
  return count;
}

Result<void> DeploymentLoop::start_steps(Deployment& deployment, std::size_t max, std::size_t max_bytes) {
  LoadedDeployment& loaded = deployment.loaded;
  std::set<InstanceId> excluded;
  for (const auto& [instance, until] : deployment.backoff_ends) excluded.insert(instance);
  std::size_t bytes = loaded.pending_bytes();
  for (const auto& step : deployment.running_steps) {
    excluded.insert(step->instance);
    bytes += step->request.state ? step->request.state->size() : 0;
  }
  max = std::min(max, limits_.shares.max_per_deployment * kMaxQueuedStepsPerThread);
  if (deployment.running_steps.size() >= max) return {};
  for (const InstanceId& id : next_instances(loaded.state(), max - deployment.running_steps.size(), excluded)) {
    const InstanceState& instance = *loaded.state().find_instance(id);
    if (!deployment.running_steps.empty() && bytes >= max_bytes) break;
    bytes += instance.state ? instance.state->size : 0;
    auto step = std::make_shared<PendingStep>();
    step->instance = id;
    step->event_id = instance.inbox.front().id;
    step->manifest = loaded.catalog().find_shared(instance.manifest);
    step->spec = step->manifest == nullptr ? nullptr : step->manifest->workflow(id.workflow);
    auto request = loaded.build_step_request(dependencies_.deployments, id);
    if (!request && is_unavailable(request.error())) return tl::unexpected<Error>(std::move(request).error());
    if (!request || step->spec == nullptr) {
      back_off_instance(deployment, id, step->event_id,
                        request ? "its code is missing in the store" : request.error().message);
      continue;
    }
    const Id owner = get_owner(loaded, instance);
    step->request = std::move(*request);
    step->request.owner = owner;
    deployment.running_steps.push_back(step);
    submit(loaded.name(), owner, std::move(step));
  }
  return {};
}

// The time of a step includes its time in the queue of the pool. Otherwise a commit would wait again and again for
// steps that cannot run because the owner's threads are busy.
void DeploymentLoop::submit(const std::string& deployment, Id owner, std::shared_ptr<PendingStep> step) {
  const std::uint64_t start_ms = dependencies_.clock.boot_ms();
  pool_.submit(owner, deployment, [this, start_ms, step = std::move(step)] {
    step->answer = execute_step(dependencies_.run_step, *step);
    step->took_ms = dependencies_.clock.boot_ms() - start_ms;
    const bool worked = step->answer.has_value();
    step->has_ended = true;
    return worked;
  });
}

// The pool wakes the round when a step ends, so a deployment with slow steps needs no wait. The deployments of an owner
// share the waiting time of a round, so that many deployments of one owner do not delay the other owners.
void DeploymentLoop::wait_for_steps(Deployment& deployment) {
  if (deployment.has_slow_steps || deployment.running_steps.empty()) return;
  const auto all_have_ended = [&] {
    return std::all_of(deployment.running_steps.begin(), deployment.running_steps.end(),
                       [](const auto& step) { return step->has_ended.load(); });
  };
  if (waited_ms_[find_owner(deployment.loaded.name())] >= 2 * limits_.step_wait_ms) return;
  deployment.has_slow_steps = !wait_for_pool(deployment, all_have_ended);
}

// Called while entries are held back. The deployment stays due, so the next round would begin at once.
void DeploymentLoop::wait_for_a_step(const Deployment& deployment) {
  if (deployment.running_steps.empty()) return;
  wait_for_pool(deployment, [&] {
    return std::any_of(deployment.running_steps.begin(), deployment.running_steps.end(),
                       [](const auto& step) { return step->has_ended.load(); });
  });
}

bool DeploymentLoop::wait_for_pool(const Deployment& deployment, const std::function<bool()>& is_done) {
  std::uint64_t& waited_ms = waited_ms_[find_owner(deployment.loaded.name())];
  if (waited_ms >= 2 * limits_.step_wait_ms) return is_done();
  ++step_waits_;
  const std::uint64_t start_ms = dependencies_.clock.boot_ms();
  const bool result = pool_.wait(limits_.step_wait_ms, is_done);
  waited_ms += dependencies_.clock.boot_ms() - start_ms;
  return result;
}

// Answers that do not fit into this commit are part of the next one. The answer for an instance that was ended or
// removed while its step ran is dropped.
Result<std::size_t> DeploymentLoop::collect_answers(Deployment& deployment, std::size_t max_bytes) {
  LoadedDeployment& loaded = deployment.loaded;
  std::vector<std::shared_ptr<PendingStep>> unfinished_steps;
  std::uint64_t longest_ms = 0;
  std::size_t count = 0;
  bool any_has_ended = false;
  for (auto& step : std::exchange(deployment.running_steps, {})) {
    if (!step->has_ended || (count > 0 && loaded.pending_bytes() >= max_bytes)) {
      unfinished_steps.push_back(std::move(step));
      continue;
    }
    longest_ms = std::max(longest_ms, step->took_ms);
    any_has_ended = true;
    const InstanceState* instance = loaded.state().find_instance(step->instance);
    if (instance == nullptr || instance->failed || instance->inbox.empty() ||
        instance->inbox.front().id != step->event_id)
      continue;
    dependencies_.metrics->add(Metric::workflow_steps, {context_, step->answer ? "ok" : "error"});
    if (!step->answer) {
      back_off_instance(deployment, step->instance, step->event_id, step->answer.error().message);
      continue;
    }
    deployment.backoff_delays_ms.erase(step->instance);
    MJ_CHECK(decide_traced(loaded, find_trace(loaded, step->event_id.height),
                           {sample(), StepCompleted{step->instance, step->event_id, std::move(*step->answer)}}));
    ++count;
  }
  deployment.running_steps = std::move(unfinished_steps);
  if (any_has_ended && deployment.running_steps.empty()) deployment.has_slow_steps = longest_ms > limits_.step_wait_ms;
  return count;
}

void DeploymentLoop::back_off_instance(Deployment& deployment, const InstanceId& instance, const InboxEventId& event_id,
                                       const std::string& reason) {
  std::uint64_t& pause = deployment.backoff_delays_ms[instance];
  pause = std::clamp(2 * pause, kBackoffDelayMs, kMaxBackoffDelayMs);
  deployment.backoff_ends[instance] = dependencies_.clock.boot_ms() + pause;
  log(LogLevel::error, "workflows", "context {}: {} waits: {}", context_,
      append_trace_id(display_name(instance), find_trace(deployment.loaded, event_id.height)), reason);
}

// ---- effects ----

// Publishes effects in the order in which the steps requested them. Effects that do not fit into the time of a commit
// stay queued, and the deployment stays due.
Result<std::size_t> DeploymentLoop::publish_effects(LoadedDeployment& deployment) {
  std::vector<std::string> intents;
  for (const auto& [at, intent] : deployment.index().unpublished_intents()) intents.push_back(intent);
  if (!intents.empty()) MJ_CHECK(acl_context());  // if the access lists cannot be read, the deployment waits
  const std::uint64_t until = dependencies_.clock.boot_ms() + kMaxPublishMs;
  std::size_t published = 0;
  for (const std::string& intent : intents) {
    if (published > 0 && dependencies_.clock.boot_ms() >= until) break;
    MJ_CHECK(publish_effect(deployment, intent));
    ++published;
  }
  return published;
}

// Additional results of dispatch_effect().
struct DeploymentLoop::DispatchDetails {
  std::optional<Job> job;           // job that performs the effect, as stored before or submitted now
  std::string_view refusal_detail;  // detail of the receipt if the effect exceeds a limit of the operator; else empty

  // Stores the detail of a failed limit check, and returns its result.
  Result<void> record_limit_check(const Result<void>& checked) {
    if (!checked) refusal_detail = checked.error().code == Code::too_large ? "too_large" : "policy_refused";
    return checked;
  }
};

// The receipt of an effect that cannot be performed, or that needs no job or flow, is decided at once.
Result<void> DeploymentLoop::publish_effect(LoadedDeployment& deployment, const std::string& intent) {
  const PendingIntent* found = find_pending(deployment.state(), intent);
  if (found == nullptr) return {};
  const PendingIntent pending = *found;
  const InstanceState& instance = *deployment.state().find_instance(deployment.state().intents.at(intent));
  DispatchDetails dispatch;
  auto effect_ref = dispatch_effect(deployment, pending, instance, dispatch);
  if (!effect_ref && is_unavailable(effect_ref.error())) return tl::unexpected<Error>(std::move(effect_ref).error());
  MJ_CHECK(deployment.decide({sample(), EffectDispatched{intent, effect_ref ? *effect_ref : "none"}}));
  dependencies_.metrics->add(Metric::workflow_effects, {context_, effect_ref ? "started" : "error"});
  if (!effect_ref) {
    const std::string_view detail = !dispatch.refusal_detail.empty()          ? dispatch.refusal_detail
                                    : effect_ref.error().code == Code::denied ? "denied"
                                                                              : "setup_error";
    return decide_receipt(
        deployment, make_failed_receipt(intent, ReceiptStatus::error, std::string(detail), effect_ref.error().message));
  }
  if (*effect_ref == kCancelEffectRef) return cancel_effects(deployment, intent);
  if (effect_ref->starts_with("signal")) {
    ReceiptArrived result;
    result.intent = intent;
    result.payload = dump_json({{"delivered", true}});
    return decide_receipt(deployment, std::move(result));
  }
  // An earlier leader may have submitted the job and crashed before the commit, and the job may have ended since.
  const auto& job = dispatch.job;
  const bool has_ended = job && (job->status == JobStatus::finished || job->status == JobStatus::error);
  auto receipt = has_ended                          ? build_job_receipt(deployment, *effect_ref)
                 : effect_ref->starts_with("flow:") ? build_flow_receipt(deployment, *effect_ref)
                                                    : Result<std::optional<ReceiptArrived>>();
  if (!receipt) return tl::unexpected<Error>(std::move(receipt).error());
  return *receipt ? decide_receipt(deployment, std::move(**receipt)) : Result<void>();
}

// Returns the effect reference: the key of a job or flow, or a word for a timer, approval, cancellation or signal.
Result<std::string> DeploymentLoop::dispatch_effect(LoadedDeployment& deployment, const PendingIntent& pending,
                                                    const InstanceState& instance, DispatchDetails& dispatch) {
  const WorkflowManifest* manifest = deployment.catalog().find(instance.manifest);
  const EffectSpec* spec = manifest == nullptr ? nullptr : manifest->effect(pending.intent.effect);
  if (spec == nullptr) return fail(Code::not_found, pending.intent.effect + ": its manifest is missing in the store");
  if (spec->name == kTimerEffect) return std::string(kTimerEffectRef);
  if (spec->name == kApprovalEffect) return std::string(kApprovalEffectRef);
  if (spec->name == kCancelEffect) return std::string(kCancelEffectRef);
  const Id owner = get_owner(deployment, instance);
  if (!spec->system) {
    MJ_TRY(submitted, submit_job(deployment, pending, instance, *spec, owner, dispatch));
    dispatch.job = std::move(submitted);
    return redis_key(*dispatch.job);
  }
  MJ_TRY(params, decode_cbor(pending.intent.params));
  if (spec->name == kFlowEffect) return start_flow(deployment, pending, owner, params, dispatch);
  if (spec->name == kSignalEffect) return send_signal(pending, owner, params);
  return fail(Code::unsupported, spec->name + ": effects of this kind are not implemented");
}

Result<const AclContext*> DeploymentLoop::acl_context() {
  if (!acl_context_) {
    MJ_TRY(read, read_acl_context(dependencies_.store, context_, EntryPoint::command));
    acl_context_ = std::move(read);
  }
  return &*acl_context_;
}

Result<void> DeploymentLoop::check_owner_permission(Id owner, Action action, const Resource& resource) {
  MJ_TRY(acl, acl_context());
  return check_permission(owner, action, *acl, resource);
}

Result<Job> DeploymentLoop::submit_job(LoadedDeployment& deployment, const PendingIntent& pending,
                                       const InstanceState& instance, const EffectSpec& spec, Id owner,
                                       DispatchDetails& dispatch) {
  MJ_CHECK(check_owner_permission(owner, Action::create, {.name = "jobs"}));
  MJ_TRY(params, decode_cbor(pending.intent.params));
  Job job;
  job.caller_id = owner;
  job.context_id = context_;
  job.name = spec.name;
  job.script_type = spec.script_type;
  const auto& code = deployment.catalog().find(instance.manifest)->code;
  const auto module = code.find(spec.module);
  if (spec.script.empty() && module == code.end())
    return fail(Code::not_found, spec.module + ": the module is missing in the store");
  job.script = spec.script.empty() ? module->second : spec.script;
  MJ_CHECK(dispatch.record_limit_check(check_script(job.script, dependencies_.limits.max_script_bytes)));
  if (spec.timeout_s > 0) job.timeout = spec.timeout_s;
  job.retries = static_cast<std::uint8_t>(std::min<std::uint32_t>(spec.retries, UINT8_MAX));
  job.policy = spec.policy;
  if (spec.runner.empty()) {
    MJ_CHECK(dispatch.record_limit_check(check_policy(job, dependencies_.limits)));
  } else {
    // The runner may be at a remote host. The ceiling of that host applies then.
    job.unknown.emplace_back("supervisor_url", spec.runner);
  }
  job.env_vars["MYCOJOBS_PARAMS"] = dump_json(params);
  job.env_vars["MYCOJOBS_INTENT"] = pending.intent.hash;
  job.idempotency_key = kIntentKeyPrefix + pending.intent.hash;
  job.traceparent = find_trace(deployment, pending);
  job.unknown.emplace_back("effect_of", format_deployment_ref(context_, deployment));
  return dependencies_.store.submit(job);
}

// A flow of another actor would run that actor's scripts in the owner's name, or reveal a definition that the owner may
// not read. Flows of admins are trusted.
Result<std::string> DeploymentLoop::find_definition(Id owner, const std::string& name) {
  MJ_TRY(acl, acl_context());
  Id before_id = 0;
  for (int page = 0; page < kMaxFlowPages; ++page) {
    MJ_TRY(rows, dependencies_.flows.list(context_, name, before_id, kMaxFlowsBatch));
    for (const FlowSummary& row : rows) {
      const Id creator = decode<Flow>(row.record).record.caller_id;
      const Resource flow{.name = "flow " + std::to_string(row.flow), .creator = creator};
      const bool trusted = creator == owner || !find_refusal(creator, Action::administer, *acl, flow);
      if (creator != 0 && trusted && !find_refusal(owner, Action::read, *acl, flow))
        return get_text(row.record, "definition_hash");
    }
    if (rows.size() < kMaxFlowsBatch) break;
    before_id = rows.back().flow;
  }
  return fail(Code::not_found, "flow: actor " + std::to_string(owner) + " has not created a flow in context " +
                                   std::to_string(context_) + " with the name " + name +
                                   ", and no admin has created one that the actor may read");
}

Result<std::string> DeploymentLoop::start_flow(LoadedDeployment& deployment, const PendingIntent& pending, Id owner,
                                               const json& params, DispatchDetails& dispatch) {
  MJ_CHECK(check_owner_permission(owner, Action::create, {.name = "flows"}));
  MJ_TRY(hash, find_definition(owner, params.value("flow", "")));
  MJ_TRY(text, dependencies_.flows.definition(context_, hash));
  MJ_TRY(definition, parse_json(text));
  definition.erase("given");
  if (params.contains("inputs")) MJ_CHECK(apply_inputs(definition, params["inputs"]));
  ParsedPlan parsed = read_plan(definition);
  if (!parsed.plan) return fail(Code::invalid, "flow: " + join(parsed.problems));
  if (auto fits = dispatch.record_limit_check(check_jobs(*parsed.plan, dependencies_.limits)); !fits)
    return fail(fits.error(), "flow");
  NewFlow new_flow;
  new_flow.context = context_;
  new_flow.caller = owner;
  new_flow.idempotency_key = kIntentKeyPrefix + pending.intent.hash;
  new_flow.traceparent = find_trace(deployment, pending);
  new_flow.effect_of = format_deployment_ref(context_, deployment);
  MJ_TRY(flow, create_flow(dependencies_.flows, *parsed.plan, new_flow));
  if (flow.detail == "new") {
    ProgressRequest start;
    start.context = context_;
    start.flow = flow.id;
    start.start = StartRun{"workflow", owner};
    MJ_CHECK(advance_run(dependencies_.flows, runs_, start));
  }
  return redis_key(flow);
}

Result<std::string> DeploymentLoop::send_signal(const PendingIntent& pending, Id owner, const json& params) {
  ProgressRequest request;
  request.context = context_;
  const auto flow = params.value("flow_id", std::uint64_t{0});
  if (flow > std::numeric_limits<Id>::max())
    return fail(Code::not_found, "flow_id: " + std::to_string(flow) + " is not a valid id");
  request.flow = static_cast<Id>(flow);
  MJ_TRY(read, dependencies_.flows.read(context_, request.flow, kMaxFlowRevision));
  const Id creator = decode<Flow>(read.record).record.caller_id;
  MJ_CHECK(check_owner_permission(owner, Action::steer,
                                  {.name = "flow " + std::to_string(request.flow), .creator = creator}));
  FlowControl control;
  control.verb = FlowControl::Verb::signal;
  control.target = params.value("name", "");
  control.key = kIntentKeyPrefix + pending.intent.hash;
  control.actor = owner;
  if (params.contains("payload")) control.payload = dump_json(params["payload"]);
  request.control = control;
  MJ_CHECK(advance_run(dependencies_.flows, runs_, request));
  return "signal " + control.target;
}

// Completes timers and approvals. Jobs and flows are only requested to end: a job or flow can complete before the
// request takes effect, so its end is the receipt.
Result<void> DeploymentLoop::cancel_effects(LoadedDeployment& deployment, const std::string& intent) {
  const InstanceState& instance = *deployment.state().find_instance(deployment.state().intents.at(intent));
  const PendingIntent cancel = instance.pending_intents.at(intent);
  const Id owner = get_owner(deployment, instance);
  std::size_t cancelled = 0;
  for (const PendingIntent& pending : find_cancelled_intents(instance, cancel)) {
    if (has_record(pending.effect_ref)) {
      MJ_CHECK(cancel_effect_ref(kIntentKeyPrefix + intent, pending.effect_ref, owner));
      continue;
    }
    MJ_CHECK(decide_receipt(deployment, make_cancelled_receipt(pending.intent.hash)));
    ++cancelled;
  }
  return decide_receipt(deployment, make_cancel_receipt(intent, cancelled));
}

// Cancels the jobs and flows of an instance before the instance itself, so that after a crash the request and the
// instance still exist. Unpublished effects are published first: a job or flow that an earlier leader started before a
// crash is found by its intent, and can be cancelled.
Result<void> DeploymentLoop::cancel_instance(LoadedDeployment& deployment, const InboxEntry& entry) {
  const InstanceId id{get_text(entry.fields, "workflow"), from_hex(get_text(entry.fields, "key"))};
  MJ_CHECK(deployment.load_cells({id}));
  const auto get_pending_intents = [&] {
    const InstanceState* instance = deployment.state().find_instance(id);
    return instance == nullptr ? std::map<std::string, PendingIntent>() : instance->pending_intents;
  };
  for (const auto& [intent, pending] : get_pending_intents()) {
    if (!pending.published) MJ_CHECK(publish_effect(deployment, intent));
  }
  const InstanceState* instance = deployment.state().find_instance(id);
  const Id owner = instance == nullptr ? 1 : get_owner(deployment, *instance);
  for (const auto& [intent, pending] : get_pending_intents()) {
    if (has_record(pending.effect_ref))
      MJ_CHECK(cancel_effect_ref(kIntentKeyPrefix + intent, pending.effect_ref, owner));
  }
  return deployment.decide(
      {sample(), CancelInstance{id, get_text(entry.fields, "by"), get_text(entry.fields, "reason")}});
}

Result<void> DeploymentLoop::cancel_effect_ref(const std::string& key, const std::string& effect_ref, Id owner) {
  Result<void> result;
  if (effect_ref.starts_with("job:")) {
    result = dependencies_.store.cancel(context_, effect_ref);
  } else {
    std::uint64_t flow = 0;
    ProgressRequest request;
    request.context = context_;
    if (parse_u64(std::string_view(effect_ref).substr(effect_ref.find(':') + 1), flow))
      request.flow = static_cast<Id>(flow);
    FlowControl control;
    control.verb = FlowControl::Verb::cancel;
    control.key = key;
    control.actor = owner;
    request.control = control;
    auto result_of_progress = advance_run(dependencies_.flows, runs_, request);
    if (!result_of_progress) result = tl::unexpected<Error>(std::move(result_of_progress).error());
  }
  if (result || is_unavailable(result.error())) return result;
  log(LogLevel::warn, "workflows", "context {}: {} is not cancelled: {}", context_, effect_ref, result.error().message);
  return {};
}

}  // namespace mycojobs
