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

constexpr std::uint32_t kMaxDueDeployments = 10'000;  // names for each round; more than the worlds of many owners
constexpr std::uint64_t kDeploymentsIdleMs = 1000;
constexpr std::uint64_t kBackoffMs = 5000;
constexpr std::uint64_t kMaxStepPauseMs = 600'000;  // maximum pause of an instance after repeated failures
constexpr std::size_t kStepsAhead = 8;              // steps that are queued for each thread of a deployment
// The sweep for lost notifications checks each deployment once per kCheckEveryMs, several in one round trip.
constexpr std::uint64_t kCheckEveryMs = 60000, kPollEveryMs = 250;
constexpr std::size_t kDeploymentsPolled = 64, kEffectRefsPolled = 1000;
constexpr std::uint64_t kWaitedMs = 1000;  // a delay longer than this means that a notification was lost
// Limits for one commit, so that an instance with little work does not wait long for instances with much work.
constexpr std::uint64_t kMailMs = 4, kStepsMs = 8;
// Minimum time of steps before a commit, while instances with more mail wait.
constexpr std::uint64_t kMinStepsMs = 2;
constexpr std::size_t kMaxEffectsBatch = 64;  // unpublished effects after which a commit runs no further steps
// Time for publishing effects after a commit; the rest is published after the next commit.
constexpr std::uint64_t kPublishMs = 16;
constexpr int kMaxPasses = 10;                // commits of one turn; only one while another owner waits
constexpr std::uint32_t kMaxFlowsBatch = 50;  // flows of one name in one page of the search for a definition
constexpr int kMaxFlowPages = 20;
constexpr int kMaxDrained = 1000;
constexpr const char* kCancelEffectRef = "cancel";
const std::string kIntentKey = "intent ";

std::string text_in(const Fields& fields, std::string_view name) { return std::string(field_of(fields, name)); }

// Returns a receipt with a status other than ok.
ReceiptArrived failed_receipt(const std::string& intent, ReceiptStatus status, const std::string& detail,
                              const std::string& message) {
  ReceiptArrived out;
  out.intent = intent;
  out.status = status;
  out.payload = dump_json({{"detail", detail}, {"message", message}});
  return out;
}

// The carrier may have run, so its effect is not started again.
ReceiptArrived lost_receipt(const std::string& intent, const std::string& effect_ref, const std::string& why) {
  return failed_receipt(intent, ReceiptStatus::error, "lost", effect_ref + " no longer exists: " + why);
}

ReceiptStatus status_of_end(const std::string& detail) {
  if (detail == "timeout" || detail == "timeout_cpu") return ReceiptStatus::timeout;
  return detail == "cancelled" ? ReceiptStatus::cancelled : ReceiptStatus::error;
}

// Returns whether the carrier is a job or flow. Other carriers, such as timers, have no record.
bool is_record(const std::string& effect_ref) {
  return effect_ref.starts_with("job:") || effect_ref.starts_with("flow:");
}

bool is_unavailable(const Error& error) { return error.code == Code::unavailable; }

std::string marked(Id context, const LoadedDeployment& deployment) {
  return std::to_string(context) + ' ' + deployment.name();
}

// Returns the actor that the effects of an instance run as.
Id owner_of(const LoadedDeployment& deployment, const InstanceState& cell) {
  return std::max<Id>(1, deployment.owner_of(cell.manifest));
}
Id owner_of(const LoadedDeployment& deployment, const std::string& pending) {
  return owner_of(deployment, *deployment.state().cell(deployment.state().intents.at(pending)));
}

}  // namespace

Sample DeploymentLoop::sample() const { return {now_ms_, random_bytes(32)}; }

Result<std::uint64_t> DeploymentLoop::round() {
  pubkeys_.clear();
  place_.reset();
  waited_ms_.clear();
  MJ_CHECK(sweep());
  for (const std::string& name : pool_.pop_finished())
    if (deployments_.contains(name)) add_turn(name);
  MJ_TRY(due, parts_.deployments.due(context_, kMaxDueDeployments + static_cast<std::uint32_t>(backoffs_.size())));
  for (const std::string& name : due.first) add_turn(name);
  MJ_TRY(worked, take_turns());
  if (worked) return 0;
  return due.second == 0 ? kDeploymentsIdleMs : std::min(kDeploymentsIdleMs, due.second);
}

Id DeploymentLoop::owner_of_deployment(const std::string& name) const {
  const auto found = owners_.find(name);
  return found == owners_.end() ? 0 : found->second;
}

bool DeploymentLoop::is_backing_off(const std::string& name) const {
  const auto off = backoffs_.find(name);
  return off != backoffs_.end() && off->second.until_ms > parts_.clock.boot_ms();
}

void DeploymentLoop::add_turn(const std::string& name) {
  if (!is_backing_off(name)) turns_.add(owner_of_deployment(name), name);
}

// A deployment with more work waits for the next round. Otherwise a deployment that always has more work would prolong
// this round without a limit.
Result<bool> DeploymentLoop::take_turns() {
  std::map<Id, std::uint64_t> used_ms;
  std::vector<std::string> unfinished;
  bool worked = false;
  for (bool any = true; std::exchange(any, false);) {
    for (const Id owner : turns_.owners()) {
      std::uint64_t& used = used_ms[owner];
      if (used >= limits_.owner_ms) continue;
      const std::string name = turns_.pop(owner).value();
      any = true;
      if (is_backing_off(name)) continue;
      const std::uint64_t begin = parts_.clock.boot_ms();
      MJ_TRY(more, process_deployment(owner, name, begin + limits_.owner_ms - used));
      used += parts_.clock.boot_ms() - begin;
      worked = true;
      if (more) unfinished.push_back(name);
    }
  }
  for (const std::string& name : unfinished) add_turn(name);
  return worked;
}

void DeploymentLoop::forget(const std::string& name) {
  pool_.drop_queued(name);
  deployments_.erase(name);
}

Result<void> DeploymentLoop::recover() {
  while (!deployments_.empty()) forget(deployments_.begin()->first);
  backoffs_.clear();
  owners_.clear();
  turns_.clear();
  place_.reset();
  runs_.forget_runs();
  MJ_TRY(names, parts_.deployments.list_deployments(context_));
  MJ_TRY(now, parts_.deployments.now_ms());
  now_ms_ = now;
  for (const std::string& name : names) {
    auto deployment = find_deployment(name);
    if (!deployment && is_unavailable(deployment.error())) return tl::unexpected<Error>(std::move(deployment).error());
    if (!deployment) {
      backoffs(name, deployment.error());
      continue;
    }
    do MJ_CHECK(poll_deployments({name}));
    while (!(*deployment)->looked.empty());
    add_turn(name);
  }
  return {};
}

// Notifications can be lost, for example when a backup is restored or a client deletes keys. Therefore every deployment
// is checked periodically, whether it is due or not, and served if it has unprocessed work.
Result<void> DeploymentLoop::sweep() {
  const std::uint64_t now = parts_.clock.boot_ms();
  if (now < next_poll_ms_) return {};
  next_poll_ms_ = now + kPollEveryMs;
  if (now >= next_list_ms_) {
    MJ_TRY(names, parts_.deployments.list_deployments(context_));
    next_list_ms_ = now + kCheckEveryMs;
    for (const std::string& name : names) {
      if (backoffs_.contains(name)) continue;
      auto deployment = find_deployment(name);
      if (!deployment && is_unavailable(deployment.error()))
        return tl::unexpected<Error>(std::move(deployment).error());
      if (!deployment) backoffs(name, deployment.error());
    }
  }
  std::vector<std::string> names;
  for (const auto& [name, deployment] : deployments_)
    if (deployment.next_look_ms <= now && names.size() < kDeploymentsPolled) names.push_back(name);
  if (names.empty()) return {};
  MJ_TRY(waited, poll_deployments(names));
  for (const std::string& name : waited) add_turn(name);
  return {};
}

// Checks the deployments in one round trip. Returns those with work that has waited too long.
Result<std::vector<std::string>> DeploymentLoop::poll_deployments(const std::vector<std::string>& names) {
  std::vector<DeploymentPoll> wanted;
  for (const std::string& name : names) {
    Deployment& deployment = deployments_.at(name);
    const auto& effect_refs = deployment.loaded.index().effect_refs();
    DeploymentPoll at{name, {}};
    for (auto each = effect_refs.upper_bound(deployment.looked);
         each != effect_refs.end() && at.effect_refs.size() < kEffectRefsPolled; ++each)
      at.effect_refs.push_back(each->first);
    wanted.push_back(std::move(at));
  }
  MJ_TRY(seen, parts_.deployments.poll(context_, wanted));
  std::vector<std::string> waited;
  for (std::size_t i = 0; i < names.size(); ++i) {
    Deployment& deployment = deployments_.at(names[i]);
    const bool all = wanted[i].effect_refs.size() < kEffectRefsPolled;
    deployment.looked = all ? "" : wanted[i].effect_refs.back();
    // Spreads the checks of deployments that were loaded at the same time.
    const std::uint64_t spread = std::hash<std::string>{}(names[i]) % (kCheckEveryMs / 4);
    deployment.next_look_ms = parts_.clock.boot_ms() + (all ? kCheckEveryMs - spread : kDeploymentsIdleMs);
    for (const std::string& effect_ref : seen[i].ended) deployment.unheard.insert(effect_ref);
    if (has_missed_event(deployment, seen[i])) waited.push_back(names[i]);
  }
  return waited;
}

bool DeploymentLoop::has_missed_event(const Deployment& deployment, const DeploymentPollResult& seen) {
  if (!deployment.unheard.empty()) return true;
  now_ms_ = seen.now_ms;
  const std::uint64_t wanted = seen.mail > 0 ? now_ms_ : due_of(deployment);
  return wanted != 0 && (seen.due_ms == 0 || seen.due_ms > std::max(wanted, now_ms_) + kWaitedMs);
}

Result<DeploymentLoop::Deployment*> DeploymentLoop::find_deployment(const std::string& name) {
  const auto found = deployments_.find(name);
  if (found != deployments_.end()) return &found->second;
  MJ_TRY(loaded, LoadedDeployment::load(parts_.deployments, context_, name));
  loaded.limit_mail(limits_.cell_mail);
  loaded.limit_snapshot(limits_.snapshot_bytes);
  traces_[name].forget_before(loaded.state().height);
  owners_[name] = loaded.owner_of(loaded.state().manifest);
  return &deployments_.emplace(name, Deployment{std::move(loaded)}).first->second;
}

void DeploymentLoop::backoffs(const std::string& name, const Error& error) {
  Backoff& off = backoffs_[name];
  off.until_ms = parts_.clock.boot_ms() + kBackoffMs;
  if (off.why == error.message) return;
  off.why = error.message;
  log(LogLevel::error, "workflows", "context {}: {} waits: {}", context_, name, error.message);
}

Result<bool> DeploymentLoop::process_deployment(Id owner, const std::string& name, std::uint64_t until_ms) {
  bool has_more = true;
  for (int i = 0; i < kMaxPasses; ++i) {
    auto deployment = find_deployment(name);
    auto more = deployment ? run_commit(**deployment) : tl::unexpected<Error>(deployment.error());
    if (more) {
      has_more = *more;
      if (!has_more || turns_.others_wait(owner) || parts_.clock.boot_ms() >= until_ms) break;
      continue;
    }
    forget(name);
    if (is_unavailable(more.error())) return tl::unexpected<Error>(std::move(more).error());
    if (more.error().code == Code::conflict) continue;
    backoffs(name, more.error());
    return false;
  }
  backoffs_.erase(name);
  return has_more;
}

// Prepares and stores one commit. Returns whether there is more work.
Result<bool> DeploymentLoop::run_commit(Deployment& deployment) {
  LoadedDeployment& loaded = deployment.loaded;
  MJ_TRY(now, parts_.deployments.now_ms());
  now_ms_ = now;
  MJ_TRY(taken, decide_mail(deployment));
  MJ_TRY(settled, settle_timers(loaded));
  MJ_TRY(stepped, run_steps(deployment));
  MJ_CHECK(process_completions(deployment));
  MJ_TRY(rested, take_snapshot(loaded));
  if (rested) deployment.drained = 0;
  MJ_CHECK(loaded.commit(parts_.deployments, due_of(deployment)));
  if (rested || loaded.needs_collection())
    MJ_CHECK(loaded.collect_garbage_blobs(parts_.deployments, limits_.collected));
  MJ_TRY(published, publish_effects(loaded));
  return taken + settled + stepped + published > 0 || loaded.pending_facts() > 0;
}

// Returns the time of the next evaluation if no event arrives before, or 0 if there is none. The time is stored with
// the commit, so that the next leader finds the remaining work.
std::uint64_t DeploymentLoop::due_of(const Deployment& deployment) {
  const DeploymentState& state = deployment.loaded.state();
  const DeploymentIndex& index = deployment.loaded.index();
  const std::size_t delayed = deployment.backoffs.size() + deployment.running.size();
  if (!index.queued().empty() || state.ready.size() > delayed) return now_ms_;
  std::uint64_t at = index.timers().empty() ? 0 : index.timers().begin()->first;
  if (delayed > 0) at = at == 0 ? now_ms_ + kBackoffMs : std::min(at, now_ms_ + kBackoffMs);
  return at;
}

// Returns whether mail must be held back. A snapshot requires that no instance has mail and no effect is unpublished.
// If that state does not occur for a long time, instances that have mail get no further mail for a number of passes.
bool DeploymentLoop::should_drain(Deployment& deployment) {
  const std::uint64_t every = std::max<std::uint64_t>(limits_.snapshot_every, deployment.loaded.state().cells.size());
  if (deployment.loaded.since_snapshot() < 4 * every || deployment.drained >= kMaxDrained) return false;
  ++deployment.drained;
  return true;
}

Result<bool> DeploymentLoop::take_snapshot(LoadedDeployment& deployment) {
  const DeploymentState& state = deployment.state();
  if (deployment.since_snapshot() < std::max<std::uint64_t>(limits_.snapshot_every, state.cells.size())) return false;
  if (!state.ready.empty() || !deployment.index().queued().empty()) return false;
  auto taken = deployment.decide({sample(), TakeSnapshot{}});
  if (taken) return true;
  if (taken.error().code != Code::too_large) return tl::unexpected<Error>(std::move(taken).error());
  deployment.skip_snapshot();
  log(LogLevel::warn, "workflows", "context {}: {}: {}", context_, deployment.name(), taken.error().message);
  return false;
}

// ---- incoming mail ----

// Returns the receivers of an entry, as far as they are known without parsing the payload (DeploymentInbox::Targets).
std::optional<std::vector<std::string>> targets_of(const LoadedDeployment& deployment, const InboxEntry& mail) {
  if (mail.kind == "event") {
    const std::string_view to = field_of(mail.fields, "to");
    if (to.empty()) return std::nullopt;
    std::vector<std::string> all;
    for (std::size_t from = 0; from <= to.size(); from += all.back().size() + 1)
      all.emplace_back(to.substr(from, to.find(',', from) - from));
    return all;
  }
  if (mail.kind == "remove" || mail.kind == "cancel")
    return std::vector{text_in(mail.fields, "workflow") + ' ' + text_in(mail.fields, "key")};
  const std::string intent = mail.kind == "answer" ? text_in(mail.fields, "intent")
                                                   : deployment.index().intent_of(text_in(mail.fields, "key"));
  const auto cell = deployment.state().intents.find(intent);
  if (cell == deployment.state().intents.end()) return std::vector<std::string>();
  return std::vector{store_name(cell->second)};
}

Result<std::size_t> DeploymentLoop::decide_mail(Deployment& deployment) {
  LoadedDeployment& loaded = deployment.loaded;
  MJ_CHECK(deployment.inbox.read(parts_.deployments, context_, loaded.name(),
                                 [&](const InboxEntry& mail) { return targets_of(loaded, mail); }));
  std::function<bool(const std::string&)> waits;
  if (should_drain(deployment)) {
    waits = [&](const std::string& instance) {
      const InstanceState* cell = loaded.state().cell(parse_instance_id(instance));
      return cell != nullptr && !cell->mail.empty();
    };
  }
  const std::uint64_t until = parts_.clock.boot_ms() + kMailMs;
  std::size_t taken = 0;
  while (taken < limits_.mail && loaded.pending_bytes() < limits_.bytes && parts_.clock.boot_ms() < until) {
    const auto next = deployment.inbox.take(waits);
    if (!next) break;
    MJ_CHECK(decide_entry(loaded, *next));
    loaded.mark_processed(next->id);
    ++taken;
  }
  return taken;
}

Result<void> DeploymentLoop::decide_entry(LoadedDeployment& deployment, const InboxEntry& mail) {
  Result<void> done;
  std::string what = mail.kind;
  if (mail.kind == "event") {
    what += ' ' + text_in(mail.fields, "schema");
    done = decide_traced(deployment, text_in(mail.fields, "traceparent"),
                         {sample(), EventArrived{text_in(mail.fields, "schema"), text_in(mail.fields, "value"),
                                                 ValueForm::from_json, text_in(mail.fields, "source")}});
  } else if (mail.kind == "remove") {
    const RemoveInstance remove{{text_in(mail.fields, "workflow"), from_hex(text_in(mail.fields, "key"))},
                                text_in(mail.fields, "by")};
    done = deployment.decide({sample(), remove});
  } else if (mail.kind == "cancel") {
    done = cancel_instance(deployment, mail);
    if (!done && is_unavailable(done.error())) return done;
  } else if (mail.kind == "answer") {
    ReceiptArrived answer;
    answer.intent = text_in(mail.fields, "intent");
    answer.payload = text_in(mail.fields, "payload");
    return decide_receipt(deployment, std::move(answer));
  } else if (mail.kind == "job" || mail.kind == "flow") {
    auto receipt = receipt_of_effect_ref(deployment, text_in(mail.fields, "key"));
    if (!receipt && is_unavailable(receipt.error())) return tl::unexpected<Error>(std::move(receipt).error());
    if (receipt && *receipt) return decide_receipt(deployment, std::move(**receipt));
    if (!receipt) done = tl::unexpected<Error>(std::move(receipt).error());
  } else {
    done = fail(Code::invalid, "the inbox entry has an unknown kind");
  }
  if (!done && done.error().code == Code::internal) return done;
  if (!done)
    log(LogLevel::warn, "workflows", "context {}: {}: {} refused: {}", context_, deployment.name(),
        in_trace(what, text_in(mail.fields, "traceparent")), done.error().message);
  return {};
}

Result<void> DeploymentLoop::decide_traced(LoadedDeployment& deployment, const std::string& traceparent,
                                           const WorkflowInput& input) {
  const std::uint64_t before = deployment.state().height;
  MJ_CHECK(deployment.decide(input));
  traces_[deployment.name()].mark(before, deployment.state().height, traceparent);
  return {};
}

std::string DeploymentLoop::trace_of(const LoadedDeployment& deployment, const PendingIntent& pending) const {
  return trace_of(deployment, pending.sequence);
}

std::string DeploymentLoop::trace_of(const LoadedDeployment& deployment, std::uint64_t height) const {
  const auto found = traces_.find(deployment.name());
  return found == traces_.end() ? "" : found->second.of(height);
}

void DeploymentLoop::load_trace(const LoadedDeployment& deployment, const std::string& intent,
                                const std::string& traceparent) {
  const PendingIntent* pending = find_pending(deployment.state(), intent);
  if (pending != nullptr && pending->sequence > 0 && trace_of(deployment, *pending).empty())
    traces_[deployment.name()].mark(pending->sequence - 1, pending->sequence, traceparent);
}

Result<void> DeploymentLoop::decide_receipt(LoadedDeployment& deployment, ReceiptArrived receipt) {
  const std::string intent = receipt.intent;
  const PendingIntent* pending = find_pending(deployment.state(), intent);
  const std::string trace = pending == nullptr ? "" : trace_of(deployment, *pending);
  auto done = decide_traced(deployment, trace, {sample(), std::move(receipt)});
  if (done) parts_.metrics->add(Metric::workflow_intents, {context_, "receipt"});
  if (!done && done.error().code == Code::internal) return done;
  if (!done)
    log(LogLevel::warn, "workflows", "context {}: {}: receipt of {} refused: {}", context_, deployment.name(),
        in_trace(intent.substr(0, 16), trace), done.error().message);
  return {};
}

Result<std::string> DeploymentLoop::pubkey_of(Id id) {
  const auto known = pubkeys_.find(id);
  if (known != pubkeys_.end()) return known->second;
  Runner runner;
  runner.id = id;
  auto record = parts_.store.load(context_, redis_key(runner));
  if (!record && is_unavailable(record.error())) return tl::unexpected<Error>(std::move(record).error());
  return pubkeys_[id] = record ? decode<Runner>(*record).record.pubkey : "";
}

// Returns the reason to reject the receipt of a job, or an empty text if the receipt is valid: the record is unchanged
// since the end and the runner has signed it, or the store has authenticated the end and the runner has no key.
Result<std::string> DeploymentLoop::receipt_error(const EndedJob& ended, const Job& job, const std::string& intent) {
  if (ended.record == EndedJob::Record::changed) return "another client has changed its record since it ended";
  const bool holds = ended.record == EndedJob::Record::holds;
  // A job that never ran has no runner that could sign.
  if (holds && ended.status == to_string(JobStatus::error) && job.receipt.empty()) return "";
  const auto receipt = parse_json(job.receipt.empty() ? "{}" : job.receipt);
  const bool is_signed = receipt && receipt->is_object() && receipt->contains("signature");
  // The claim of a router names no runner. The answer came from the remote supervisor of the effect's runner, in an
  // envelope with a checked signature (messaging/message_receiver.h). Only that host knows the runner that signed, so
  // the receipt is checked with the key that the receipt names.
  const bool routed = holds && is_signed && ended.runner == 0;
  MJ_TRY(registered, pubkey_of(ended.runner));
  const json signer = routed ? receipt->value("signer", json()) : json();
  const std::string pubkey = signer.is_string() ? signer.get<std::string>() : registered;
  const std::string runner = "runner " + std::to_string(ended.runner);
  if (!is_signed && !pubkey.empty()) return runner + " has a public key but did not sign the receipt";
  if (!is_signed && holds) return "";
  if (!is_signed) return "the end is recorded only in its record, and no runner has signed a receipt";
  if (pubkey.empty()) return "no record has the public key of " + runner + " has";
  if (auto checked = check_signature(*receipt, "receipt", pubkey); !checked) return checked.error().message;
  if (!routed && receipt->value("job", json()) != json(redis_key(job))) return "the receipt is for another job";
  if (!routed && !ended.claim_id.empty() && receipt->value("claim", json()) != json(ended.claim_id))
    return "the receipt is for another claim";
  // The receipt of a job that ended before the start of its script names no intent.
  const json named = receipt->value("intent", json());
  if (named != json(intent) && (ended.status == to_string(JobStatus::finished) || !named.is_null()))
    return "the receipt is for another intent";
  if (receipt->value("status", json()) != json(ended.status)) return "the receipt has another end than the record";
  const bool same = receipt->value("result_sha256", json()) == json(result_hash(job.result, job.result_json));
  return same ? "" : "the result differs from the signed result";
}

// A job can end before the fact that the job carries the effect was committed. The idempotency key of the job then
// names the intent.
Result<std::optional<ReceiptArrived>> DeploymentLoop::receipt_of_job(LoadedDeployment& deployment,
                                                                     const std::string& job_key) {
  MJ_TRY(ended, parts_.store.ended_job(context_, job_key));
  if (!ended.ended) return std::optional<ReceiptArrived>();
  std::string intent = deployment.index().intent_of(job_key);
  if (intent.empty() && ended.idempotency_key.starts_with(kIntentKey)) {
    const std::string named = ended.idempotency_key.substr(kIntentKey.size());
    const PendingIntent* pending = find_pending(deployment.state(), named);
    // Any client can set this key on a job of its own, so the caller must be the owner.
    if (pending != nullptr && !pending->published && caller_of_job(job_key) == owner_of(deployment, named))
      intent = named;
  }
  if (intent.empty()) return std::optional<ReceiptArrived>();
  const Job job = decode<Job>(ended.fields).record;
  load_trace(deployment, intent, job.traceparent);
  // If the record of a job was deleted, its end writes a new record, without the fields that identify the job.
  if (job.id == 0 && job.caller_id == 0) return std::optional(lost_receipt(intent, job_key, "its record was deleted"));
  ReceiptArrived receipt;
  if (ended.status == to_string(JobStatus::finished)) {
    receipt.intent = intent;
    receipt.payload = typed_text(job.result, job.result_json);
  } else {
    receipt = failed_receipt(intent, status_of_end(ended.detail), ended.detail, job.error);
  }
  receipt.module = job.script_type;
  MJ_TRY(why, receipt_error(ended, job, intent));
  receipt.refused = std::move(why);
  return std::optional(std::move(receipt));
}

Result<std::optional<ReceiptArrived>> DeploymentLoop::receipt_of_flow(LoadedDeployment& deployment,
                                                                      const std::string& flow_key) {
  const std::string intent = deployment.index().intent_of(flow_key);
  if (intent.empty()) return std::optional<ReceiptArrived>();
  MJ_TRY(record, parts_.store.load(context_, flow_key));
  const Flow flow = decode<Flow>(record).record;
  load_trace(deployment, intent, flow.traceparent);
  if (flow.status == FlowStatus::finished) {
    ReceiptArrived receipt;
    receipt.intent = intent;
    JsonObject payload(receipt.payload);
    payload.add("flow_id", flow.id);
    payload.append_member("result") += typed_text(flow.result, flow.result_json);
    payload.end();
    return std::optional(std::move(receipt));
  }
  if (flow.status != FlowStatus::error) return std::optional<ReceiptArrived>();
  return std::optional(failed_receipt(intent, status_of_end(flow.detail), flow.detail, flow.error));
}

// A carrier without a record is reported as lost if an intent waits for it.
Result<std::optional<ReceiptArrived>> DeploymentLoop::receipt_of_effect_ref(LoadedDeployment& deployment,
                                                                            const std::string& effect_ref) {
  auto receipt =
      effect_ref.starts_with("job:") ? receipt_of_job(deployment, effect_ref) : receipt_of_flow(deployment, effect_ref);
  const std::string intent = deployment.index().intent_of(effect_ref);
  if (receipt || receipt.error().code != Code::not_found || intent.empty()) return receipt;
  return std::optional(lost_receipt(intent, effect_ref, receipt.error().message));
}

// Processes the ends that a sweep has found, for which no notification arrived. Each sweep finds a carrier with a
// rejected receipt again, so that the receipt is accepted once the key in the runner's record was repaired. Each reason
// is journaled once.
Result<void> DeploymentLoop::process_completions(Deployment& deployment) {
  for (const std::string& effect_ref : std::exchange(deployment.unheard, {})) {
    auto receipt = receipt_of_effect_ref(deployment.loaded, effect_ref);
    if (!receipt && is_unavailable(receipt.error())) return tl::unexpected<Error>(std::move(receipt).error());
    const std::string why = !receipt ? receipt.error().message : *receipt ? (*receipt)->refused : "";
    const auto known = deployment.refused.find(effect_ref);
    if (!why.empty() && known != deployment.refused.end() && known->second == why) continue;
    if (why.empty()) {
      deployment.refused.erase(effect_ref);
    } else {
      deployment.refused[effect_ref] = why;
    }
    if (!receipt)
      log(LogLevel::warn, "workflows", "context {}: {}: {} cannot be read: {}", context_, deployment.loaded.name(),
          effect_ref, why);
    else if (*receipt)
      MJ_CHECK(decide_receipt(deployment.loaded, std::move(**receipt)));
  }
  return {};
}

Result<std::size_t> DeploymentLoop::settle_timers(LoadedDeployment& deployment) {
  std::vector<std::string> due;
  for (const auto& [at, intent] : deployment.index().timers()) {
    if (at > now_ms_ || due.size() >= limits_.mail) break;
    due.push_back(intent);
  }
  for (const std::string& intent : due) {
    const PendingIntent* pending = find_pending(deployment.state(), intent);
    ReceiptArrived over;
    if (pending != nullptr && pending->effect_ref == kApprovalEffectRef) {
      over = failed_receipt(intent, ReceiptStatus::timeout, "timeout", "no answer was given in time");
    } else {
      over.intent = intent;
      over.payload = dump_json({{"fired_ms", now_ms_}});
    }
    MJ_CHECK(decide_receipt(deployment, std::move(over)));
  }
  return due.size();
}

// ---- steps ----

struct DeploymentLoop::PendingStep {
  InstanceId cell;
  MailId mail;
  ManifestRef manifest;
  const WorkflowSpec* spec = nullptr;
  StepRequest request;
  Result<StepAnswer> answer = tl::unexpected<Error>(Error{});
  std::uint64_t took_ms = 0;
  std::atomic<bool> has_ended{false};  // the fields above belong to the round again
};

// An exception, for example std::bad_alloc for a large state, would end the coordinator. It becomes an error of this
// step.
Result<StepAnswer> DeploymentLoop::answer_of(const StepRunner& take_step, const PendingStep& step) {
  try {
    return take_step(*step.spec, *step.manifest, step.request);
  } catch (const std::exception& error) {
    return fail(Code::unavailable, std::string("the step ended with an exception: ") + error.what());
  }
}

// Instances are served round-robin, one step each. Results are committed once each instance has had a turn and some
// instances have no mail left, so that finished instances do not wait for those with more mail.
Result<std::size_t> DeploymentLoop::run_steps(Deployment& deployment) {
  const std::uint64_t now = parts_.clock.boot_ms();
  std::erase_if(deployment.backoffs, [&](const auto& row) { return row.second <= now; });
  const std::size_t most_bytes = deployment.loaded.pending_bytes() + limits_.bytes;
  const DeploymentState& state = deployment.loaded.state();
  const std::uint64_t next_turn = state.next_ticket;
  bool some_are_through = false;
  std::size_t taken = 0;
  while (taken < limits_.steps && deployment.loaded.pending_bytes() < most_bytes &&
         deployment.loaded.index().queued().size() < kMaxEffectsBatch && parts_.clock.boot_ms() < now + kStepsMs) {
    const std::size_t ready = state.ready.size();
    MJ_CHECK(begin_steps(deployment, limits_.steps - taken, most_bytes));
    wait_for_steps(deployment);
    MJ_TRY(some, end_steps(deployment, most_bytes));
    if (some == 0) break;
    taken += some;
    const bool each_had_a_turn = state.ready.empty() || state.ready.begin()->first >= next_turn;
    some_are_through = some_are_through || state.ready.size() < ready;
    if (each_had_a_turn && some_are_through && parts_.clock.boot_ms() >= now + kMinStepsMs) break;
  }
  return taken;
}

Result<void> DeploymentLoop::begin_steps(Deployment& deployment, std::size_t max, std::size_t most_bytes) {
  LoadedDeployment& loaded = deployment.loaded;
  std::set<InstanceId> without;
  for (const auto& [cell, until] : deployment.backoffs) without.insert(cell);
  std::size_t bytes = loaded.pending_bytes();
  for (const auto& each : deployment.running) {
    without.insert(each->cell);
    bytes += each->request.state ? each->request.state->size() : 0;
  }
  max = std::min(max, limits_.shares.per_deployment * kStepsAhead);
  if (deployment.running.size() >= max) return {};
  for (const InstanceId& id : next_instances(loaded.state(), max - deployment.running.size(), without)) {
    const InstanceState& cell = *loaded.state().cell(id);
    if (!deployment.running.empty() && bytes >= most_bytes) break;
    bytes += cell.state ? cell.state->size : 0;
    auto step = std::make_shared<PendingStep>();
    step->cell = id;
    step->mail = cell.mail.front().id;
    step->manifest = loaded.catalog().share_code(cell.manifest);
    step->spec = step->manifest == nullptr ? nullptr : step->manifest->workflow(id.workflow);
    auto request = loaded.request_of(parts_.deployments, id);
    if (!request && is_unavailable(request.error())) return tl::unexpected<Error>(std::move(request).error());
    if (!request || step->spec == nullptr) {
      back_off_instance(deployment, id, step->mail,
                        request ? "its code is missing in the store" : request.error().message);
      continue;
    }
    const Id owner = owner_of(loaded, cell);
    step->request = std::move(*request);
    step->request.owner = owner;
    deployment.running.push_back(step);
    submit(loaded.name(), owner, std::move(step));
  }
  return {};
}

// The time of a step includes its time in the queue of the pool. Otherwise a commit would wait again and again for
// steps that cannot run because the owner's threads are busy.
void DeploymentLoop::submit(const std::string& deployment, Id owner, std::shared_ptr<PendingStep> step) {
  const std::uint64_t begin = parts_.clock.boot_ms();
  pool_.submit(owner, deployment, [this, begin, step = std::move(step)] {
    step->answer = answer_of(parts_.take_step, *step);
    step->took_ms = parts_.clock.boot_ms() - begin;
    const bool worked = step->answer.has_value();
    step->has_ended = true;
    return worked;
  });
}

// The pool wakes the round when a step ends, so a deployment with slow steps needs no wait. The deployments of an owner
// share the waiting time of a round, so that many deployments of one owner do not delay the other owners.
void DeploymentLoop::wait_for_steps(Deployment& deployment) {
  if (deployment.is_slow || deployment.running.empty()) return;
  std::uint64_t& waited_ms = waited_ms_[owner_of_deployment(deployment.loaded.name())];
  if (waited_ms >= 2 * limits_.step_wait_ms) return;
  const auto all_have_ended = [&] {
    return std::all_of(deployment.running.begin(), deployment.running.end(),
                       [](const auto& each) { return each->has_ended.load(); });
  };
  ++step_waits_;
  const std::uint64_t begin = parts_.clock.boot_ms();
  deployment.is_slow = !pool_.wait(limits_.step_wait_ms, all_have_ended);
  waited_ms += parts_.clock.boot_ms() - begin;
}

// Answers that do not fit into this commit are part of the next one. The answer for an instance that was ended or
// removed while its step ran is dropped.
Result<std::size_t> DeploymentLoop::end_steps(Deployment& deployment, std::size_t most_bytes) {
  LoadedDeployment& loaded = deployment.loaded;
  std::vector<std::shared_ptr<PendingStep>> left;
  std::uint64_t longest_ms = 0;
  std::size_t taken = 0;
  bool any_has_ended = false;
  for (auto& each : std::exchange(deployment.running, {})) {
    if (!each->has_ended || (taken > 0 && loaded.pending_bytes() >= most_bytes)) {
      left.push_back(std::move(each));
      continue;
    }
    longest_ms = std::max(longest_ms, each->took_ms);
    any_has_ended = true;
    const InstanceState* cell = loaded.state().cell(each->cell);
    if (cell == nullptr || cell->failed || cell->mail.empty() || cell->mail.front().id != each->mail) continue;
    parts_.metrics->add(Metric::workflow_steps, {context_, each->answer ? "ok" : "error"});
    if (!each->answer) {
      back_off_instance(deployment, each->cell, each->mail, each->answer.error().message);
      continue;
    }
    deployment.pauses.erase(each->cell);
    MJ_CHECK(decide_traced(loaded, trace_of(loaded, each->mail.height),
                           {sample(), StepCompleted{each->cell, each->mail, std::move(*each->answer)}}));
    ++taken;
  }
  deployment.running = std::move(left);
  if (any_has_ended && deployment.running.empty()) deployment.is_slow = longest_ms > limits_.step_wait_ms;
  return taken;
}

void DeploymentLoop::back_off_instance(Deployment& deployment, const InstanceId& cell, const MailId& mail,
                                       const std::string& why) {
  std::uint64_t& pause = deployment.pauses[cell];
  pause = std::clamp(2 * pause, kBackoffMs, kMaxStepPauseMs);
  deployment.backoffs[cell] = parts_.clock.boot_ms() + pause;
  log(LogLevel::error, "workflows", "context {}: {} waits: {}", context_,
      in_trace(shown(cell), trace_of(deployment.loaded, mail.height)), why);
}

// ---- effects ----

// Publishes effects in the order in which the steps requested them. Effects that do not fit into the time of a commit
// stay queued, and the deployment stays due.
Result<std::size_t> DeploymentLoop::publish_effects(LoadedDeployment& deployment) {
  std::vector<std::string> all;
  for (const auto& [at, intent] : deployment.index().queued()) all.push_back(intent);
  if (!all.empty()) MJ_CHECK(acl_context());  // if the access lists cannot be read, the deployment waits
  const std::uint64_t until = parts_.clock.boot_ms() + kPublishMs;
  std::size_t published = 0;
  for (const std::string& intent : all) {
    if (published > 0 && parts_.clock.boot_ms() >= until) break;
    MJ_CHECK(publish_effect(deployment, intent));
    ++published;
  }
  return published;
}

// Additional results of dispatch_effect().
struct DeploymentLoop::DispatchContext {
  std::optional<Job> job;    // the job that carries the effect, as stored before or submitted now
  std::string_view refused;  // detail of the receipt if the effect exceeds the operator's limits; otherwise empty

  Result<void> within_limits(const Result<void>& checked) {
    if (!checked) refused = checked.error().code == Code::too_large ? "too_large" : "policy_refused";
    return checked;
  }
};

// An effect that cannot be performed gets its receipt at once, as does an effect that needs no carrier.
Result<void> DeploymentLoop::publish_effect(LoadedDeployment& deployment, const std::string& intent) {
  const PendingIntent* found = find_pending(deployment.state(), intent);
  if (found == nullptr) return {};
  const PendingIntent pending = *found;
  const InstanceState& cell = *deployment.state().cell(deployment.state().intents.at(intent));
  DispatchContext carried;
  auto effect_ref = dispatch_effect(deployment, pending, cell, carried);
  if (!effect_ref && is_unavailable(effect_ref.error())) return tl::unexpected<Error>(std::move(effect_ref).error());
  MJ_CHECK(deployment.decide({sample(), EffectDispatched{intent, effect_ref ? *effect_ref : "none"}}));
  parts_.metrics->add(Metric::workflow_intents, {context_, effect_ref ? "carried" : "error"});
  if (!effect_ref) {
    const std::string_view detail = !carried.refused.empty()                  ? carried.refused
                                    : effect_ref.error().code == Code::denied ? "denied"
                                                                              : "setup_error";
    return decide_receipt(
        deployment, failed_receipt(intent, ReceiptStatus::error, std::string(detail), effect_ref.error().message));
  }
  if (*effect_ref == kCancelEffectRef) return cancel_effects(deployment, intent);
  if (effect_ref->starts_with("signal")) {
    ReceiptArrived done;
    done.intent = intent;
    done.payload = dump_json({{"delivered", true}});
    return decide_receipt(deployment, std::move(done));
  }
  // An earlier leader may have submitted the job and crashed before the commit, and the job may have ended since.
  const auto& job = carried.job;
  const bool over = job && (job->status == JobStatus::finished || job->status == JobStatus::error);
  auto ended = over                               ? receipt_of_job(deployment, *effect_ref)
               : effect_ref->starts_with("flow:") ? receipt_of_flow(deployment, *effect_ref)
                                                  : Result<std::optional<ReceiptArrived>>();
  if (!ended) return tl::unexpected<Error>(std::move(ended).error());
  return *ended ? decide_receipt(deployment, std::move(**ended)) : Result<void>();
}

// Returns the carrier of the effect: the key of a job or flow, or a text for a timer, approval, cancellation or signal.
Result<std::string> DeploymentLoop::dispatch_effect(LoadedDeployment& deployment, const PendingIntent& pending,
                                                    const InstanceState& cell, DispatchContext& carried) {
  const WorkflowManifest* manifest = deployment.catalog().find(cell.manifest);
  const EffectSpec* spec = manifest == nullptr ? nullptr : manifest->effect(pending.intent.effect);
  if (spec == nullptr) return fail(Code::not_found, pending.intent.effect + ": its manifest is missing in the store");
  if (spec->name == kTimerEffect) return std::string(kTimerEffectRef);
  if (spec->name == kApprovalEffect) return std::string(kApprovalEffectRef);
  if (spec->name == kCancelEffect) return std::string(kCancelEffectRef);
  const Id owner = owner_of(deployment, cell);
  if (!spec->system) {
    MJ_TRY(submitted, submit_job(deployment, pending, cell, *spec, owner, carried));
    carried.job = std::move(submitted);
    return redis_key(*carried.job);
  }
  MJ_TRY(params, decode_cbor(pending.intent.params));
  if (spec->name == kFlowEffect) return start_flow(deployment, pending, owner, params, carried);
  if (spec->name == kSignalEffect) return send_signal(pending, owner, params);
  return fail(Code::unsupported, spec->name + ": effects of this kind are not implemented");
}

Result<const AclContext*> DeploymentLoop::acl_context() {
  if (!place_) {
    MJ_TRY(read, read_acl_context(parts_.store, context_, EntryPoint::command));
    place_ = std::move(read);
  }
  return &*place_;
}

Result<void> DeploymentLoop::check_owner_permission(Id owner, Action action, const Resource& thing) {
  MJ_TRY(place, acl_context());
  return check_permission(owner, action, *place, thing);
}

Result<Job> DeploymentLoop::submit_job(LoadedDeployment& deployment, const PendingIntent& pending,
                                       const InstanceState& cell, const EffectSpec& spec, Id owner,
                                       DispatchContext& carried) {
  MJ_CHECK(check_owner_permission(owner, Action::create, {.name = "jobs"}));
  MJ_TRY(params, decode_cbor(pending.intent.params));
  Job job;
  job.caller_id = owner;
  job.context_id = context_;
  job.name = spec.name;
  job.script_type = spec.script_type;
  const auto& code = deployment.catalog().find(cell.manifest)->code;
  const auto module = code.find(spec.module);
  if (spec.script.empty() && module == code.end())
    return fail(Code::not_found, spec.module + ": the module is missing in the store");
  job.script = spec.script.empty() ? module->second : spec.script;
  MJ_CHECK(carried.within_limits(check_script(job.script, parts_.limits.max_script_bytes)));
  if (spec.timeout_s > 0) job.timeout = spec.timeout_s;
  job.retries = static_cast<std::uint8_t>(std::min<std::uint32_t>(spec.retries, UINT8_MAX));
  job.policy = spec.policy;
  if (spec.runner.empty()) {
    MJ_CHECK(carried.within_limits(check_policy(job, parts_.limits)));
  } else {
    // The runner may be at a remote host. The ceiling of that host applies then.
    job.unknown.emplace_back("supervisor_url", spec.runner);
  }
  job.env_vars["MYCOJOBS_PARAMS"] = dump_json(params);
  job.env_vars["MYCOJOBS_INTENT"] = pending.intent.hash;
  job.idempotency_key = kIntentKey + pending.intent.hash;
  job.traceparent = trace_of(deployment, pending);
  job.unknown.emplace_back("effect_of", marked(context_, deployment));
  return parts_.store.submit(job);
}

// A flow of another actor would run that actor's scripts in the owner's name, or reveal a definition that the owner may
// not read. Flows of admins are trusted.
Result<std::string> DeploymentLoop::definition_for(Id owner, const std::string& name) {
  MJ_TRY(where, acl_context());
  Id before = 0;
  for (int page = 0; page < kMaxFlowPages; ++page) {
    MJ_TRY(rows, parts_.flows.list(context_, name, before, kMaxFlowsBatch));
    for (const FlowSummary& row : rows) {
      const Id maker = decode<Flow>(row.record).record.caller_id;
      const Resource flow{.name = "flow " + std::to_string(row.flow), .maker = maker};
      const bool trusted = maker == owner || !find_refusal(maker, Action::administer, *where, flow);
      if (maker != 0 && trusted && !find_refusal(owner, Action::read, *where, flow))
        return text_in(row.record, "definition_hash");
    }
    if (rows.size() < kMaxFlowsBatch) break;
    before = rows.back().flow;
  }
  return fail(Code::not_found, "flow: actor " + std::to_string(owner) + " has not created a flow in context " +
                                   std::to_string(context_) + " with the name " + name +
                                   ", and no admin has created one that the actor may read");
}

Result<std::string> DeploymentLoop::start_flow(LoadedDeployment& deployment, const PendingIntent& pending, Id owner,
                                               const json& params, DispatchContext& carried) {
  MJ_CHECK(check_owner_permission(owner, Action::create, {.name = "flows"}));
  MJ_TRY(hash, definition_for(owner, params.value("flow", "")));
  MJ_TRY(text, parts_.flows.definition(context_, hash));
  MJ_TRY(definition, parse_json(text));
  definition.erase("given");
  if (params.contains("inputs")) MJ_CHECK(apply_inputs(definition, params["inputs"]));
  ParsedPlan read = read_plan(definition);
  if (!read.plan) return fail(Code::invalid, "flow: " + join(read.problems));
  if (auto fits = carried.within_limits(check_jobs(*read.plan, parts_.limits)); !fits)
    return fail(fits.error(), "flow");
  NewFlow wanted;
  wanted.context = context_;
  wanted.caller = owner;
  wanted.idempotency_key = kIntentKey + pending.intent.hash;
  wanted.traceparent = trace_of(deployment, pending);
  wanted.effect_of = marked(context_, deployment);
  MJ_TRY(flow, create_flow(parts_.flows, *read.plan, wanted));
  if (flow.detail == "new") {
    ProgressRequest start;
    start.context = context_;
    start.flow = flow.id;
    start.start = StartRun{"workflow", owner};
    MJ_CHECK(progress(parts_.flows, runs_, start));
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
  MJ_TRY(read, parts_.flows.read(context_, request.flow, kRecordAlone));
  const Id maker = decode<Flow>(read.record).record.caller_id;
  MJ_CHECK(
      check_owner_permission(owner, Action::steer, {.name = "flow " + std::to_string(request.flow), .maker = maker}));
  FlowControl control;
  control.verb = FlowControl::Verb::signal;
  control.target = params.value("name", "");
  control.key = kIntentKey + pending.intent.hash;
  control.actor = owner;
  if (params.contains("payload")) control.payload = dump_json(params["payload"]);
  request.control = control;
  MJ_CHECK(progress(parts_.flows, runs_, request));
  return "signal " + control.target;
}

// Settles timers and approvals. Jobs and flows are only requested to end: each can still complete before the request
// takes effect, so its own end is the receipt.
Result<void> DeploymentLoop::cancel_effects(LoadedDeployment& deployment, const std::string& intent) {
  const InstanceState& cell = *deployment.state().cell(deployment.state().intents.at(intent));
  const PendingIntent cancel = cell.pending.at(intent);
  const Id owner = owner_of(deployment, cell);
  std::size_t ended = 0;
  for (const PendingIntent& each : cancelled_by(cell, cancel)) {
    if (is_record(each.effect_ref)) {
      MJ_CHECK(cancel_effect_ref(kIntentKey + intent, each.effect_ref, owner));
      continue;
    }
    MJ_CHECK(decide_receipt(deployment, cancelled_receipt(each.intent.hash)));
    ++ended;
  }
  return decide_receipt(deployment, cancel_receipt(intent, ended));
}

// Cancels the jobs and flows of an instance before the instance itself, so that after a crash the request and the
// instance still exist. Unpublished effects are published first: a job or flow that an earlier leader started before a
// crash is found by its intent, and can be cancelled.
Result<void> DeploymentLoop::cancel_instance(LoadedDeployment& deployment, const InboxEntry& mail) {
  const InstanceId id{text_in(mail.fields, "workflow"), from_hex(text_in(mail.fields, "key"))};
  const auto waits = [&] {
    const InstanceState* cell = deployment.state().cell(id);
    return cell == nullptr ? std::map<std::string, PendingIntent>() : cell->pending;
  };
  for (const auto& [intent, pending] : waits()) {
    if (!pending.published) MJ_CHECK(publish_effect(deployment, intent));
  }
  const InstanceState* cell = deployment.state().cell(id);
  const Id owner = cell == nullptr ? 1 : owner_of(deployment, *cell);
  for (const auto& [intent, pending] : waits()) {
    if (is_record(pending.effect_ref)) MJ_CHECK(cancel_effect_ref(kIntentKey + intent, pending.effect_ref, owner));
  }
  return deployment.decide({sample(), CancelInstance{id, text_in(mail.fields, "by"), text_in(mail.fields, "reason")}});
}

Result<void> DeploymentLoop::cancel_effect_ref(const std::string& key, const std::string& effect_ref, Id owner) {
  Result<void> done;
  if (effect_ref.starts_with("job:")) {
    done = parts_.store.cancel(context_, effect_ref);
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
    auto moved = progress(parts_.flows, runs_, request);
    if (!moved) done = tl::unexpected<Error>(std::move(moved).error());
  }
  if (done || is_unavailable(done.error())) return done;
  log(LogLevel::warn, "workflows", "context {}: {} is not cancelled: {}", context_, effect_ref, done.error().message);
  return {};
}

}  // namespace mycojobs
