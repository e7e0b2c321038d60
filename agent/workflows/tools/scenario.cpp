#include "workflows/tools/scenario.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "text/cbor.h"
#include "text/json.h"
#include "text/plural.h"
#include "text/utf8.h"
#include "workflows/manifest/system_schemas.h"
#include "workflows/tools/readable_values.h"
#include "workflows/tools/workflow_names.h"

namespace mycojobs {
namespace {

using nlohmann::json;

// Maximum number of steps per input. A workflow that exceeds it is reported as an endless loop.
constexpr std::uint64_t kMaxStepsPerInput = 10'000;

std::string format_json(const json& value) { return dump_json(value, 2); }

class ScenarioPlayer {
 public:
  ScenarioPlayer(const ScenarioFile& file, const Scenario& scenario, const ScenarioManifests& manifests,
                 const StepEngine& engine)
      : scenario_(scenario), manifests_(manifests), engine_(engine), now_ms_(file.start_ms) {
    result_.deployment.id = "scenario/" + std::string(manifest().name);
  }

  ScenarioResult run() {
    path_ = scenario_.path;
    if (accept(ApplyManifest{manifests_.manifest})) {
      resolve_answer_names();
      for (const auto& step : scenario_.steps) {
        if (!result_.mismatches.empty()) break;
        run_step(step);
      }
      if (result_.mismatches.empty()) check_replay();
    }
    return std::move(result_);
  }

 private:
  struct RequestedEffect {
    InstanceId emitter;
    std::string intent, effect, params, ref;
  };
  struct EmittedEvent {
    InstanceId emitter;
    std::string schema, value;
  };

  const WorkflowManifest& manifest() const {
    const auto& hash = result_.deployment.manifest.empty() ? manifests_.manifest : result_.deployment.manifest;
    return *manifests_.catalog.find(hash);
  }
  void add_mismatch(std::string path, std::string message, std::string expected = "", std::string actual = "") {
    result_.mismatches.push_back(
        {path.empty() ? path_ : path_ + '.' + path, std::move(message), std::move(expected), std::move(actual)});
  }
  template <class T>
  const T* require(const Result<T>& result, const std::string& path) {
    if (!result) add_mismatch(path, result.error().message);
    return result ? &*result : nullptr;
  }

  // --- inputs
  Result<WorkflowDecision> apply_input(decltype(WorkflowInput::content) input) {
    Sample sample{now_ms_, derive_entropy(Sample{0, scenario_.name}, input_count_++)};
    MJ_TRY(decision, decide(result_.deployment, manifests_.catalog, {std::move(sample), std::move(input)}, kRules));
    MJ_CHECK(commit(result_.deployment, decision));
    result_.facts.insert(result_.facts.end(), decision.facts.begin(), decision.facts.end());
    for (const auto& fact : decision.facts) record(fact);
    return std::move(decision);
  }
  bool accept(decltype(WorkflowInput::content) input) {
    const auto decision = apply_input(std::move(input));
    if (!decision) add_mismatch("", decision.error().message);
    return decision.has_value();
  }
  void record(const WorkflowFact& fact) {
    if (const auto* step = std::get_if<StepTaken>(&fact.content))
      for (const auto& intent : step->intents)
        requested_effects_.push_back({step->instance, intent.hash, intent.effect, intent.params, intent.issuer_ref});
    if (const auto* event = std::get_if<EventAccepted>(&fact.content); event != nullptr && event->emitter)
      emitted_events_.push_back({*event->emitter, event->schema, event->value});
    if (const auto* failed = std::get_if<InstanceFailed>(&fact.content)) failures_[failed->instance] = failed->message;
    if (const auto* fault = std::get_if<ReceiptMismatched>(&fact.content)) receipt_errors_.push_back(fault->reason);
  }

  void run_step(const ScenarioStep& step) {
    path_ = step.path;
    requested_effects_.clear(), emitted_events_.clear(), failures_.clear(), receipt_errors_.clear();
    refusal_.clear();
    switch (step.input) {
      case ScenarioInput::none:
        break;
      case ScenarioInput::send:
        send(step);
        break;
      case ScenarioInput::receipt:
        complete_effect(step);
        break;
      case ScenarioInput::wait:
        wait(step);
        break;
      case ScenarioInput::apply:
        apply(step);
        break;
    }
    if (result_.mismatches.empty()) run_until_idle();
    if (result_.mismatches.empty()) check_expectations(step);
  }
  void send(const ScenarioStep& step) {
    const auto name = find_event(manifest(), step.name);
    if (!name && !expects_refusal(step)) return add_mismatch("send", name.error().message);
    if (!name) {
      refusal_ = name.error().message;
      return;
    }
    const auto decision = apply_input(EventArrived{*name, step.value, ValueForm::from_json, "scenario"});
    if (!decision) refusal_ = decision.error().message;
  }
  static bool expects_refusal(const ScenarioStep& step) { return step.expect && !step.expect->refusal_text.empty(); }
  void apply(const ScenarioStep& step) {
    const auto decision = apply_input(ApplyManifest{manifests_.files.at(step.name)});
    if (!decision) refusal_ = decision.error().message;
  }
  // Delivers the receipt of a step to the effect that the step selects.
  void complete_effect(const ScenarioStep& step) {
    const auto effect = find_effect(manifest(), step.name);
    if (!require(effect, "receipt")) return;
    std::vector<const PendingIntent*> matches;
    for (const auto& [intent, instance] : result_.deployment.intents) {
      const auto& pending = result_.deployment.instances.at(instance).pending_intents.at(intent);
      if (pending.intent.effect == (*effect)->name && (step.ref.empty() || pending.intent.issuer_ref == step.ref) &&
          (step.emitter.empty() || is_emitter(instance, step.emitter)))
        matches.push_back(&pending);
    }
    if (!result_.mismatches.empty()) return;
    if (matches.size() != 1)
      return add_mismatch("receipt",
                          (matches.empty() ? "no effect " : count_with_noun(matches.size(), "effect") + " ") +
                              (*effect)->name + (matches.empty() ? " waits for a receipt" : " wait for a receipt") +
                              (matches.empty() ? "" : ": select one with of or ref"),
                          "", describe_pending_effects());
    deliver_receipt(matches.front()->intent.hash, step.receipt);
    if (receipt_errors_.empty() == step.has_invalid_payload)
      add_mismatch("receipt", step.has_invalid_payload
                                  ? "the payload fits its schema, and is meant not to"
                                  : "the payload does not fit its schema (\"misfit\": true, if this is intended): " +
                                        (receipt_errors_.empty() ? "" : receipt_errors_.front()));
  }
  bool is_emitter(const InstanceId& instance, const std::string& name) {
    const auto id = parse_instance_id(manifest(), name);
    if (!id && result_.mismatches.empty()) add_mismatch("of", id.error().message);
    return id && *id == instance;
  }
  void deliver_receipt(const std::string& intent, const ScenarioReceipt& receipt) {
    ReceiptArrived arrived;
    arrived.intent = intent, arrived.status = receipt.status, arrived.payload = receipt.payload;
    accept(std::move(arrived));
  }

  // --- time
  struct DueTimer {
    std::uint64_t at_ms = 0, sequence = 0, index = 0;
    std::string intent;
    bool is_approval = false;
    bool operator<(const DueTimer& other) const {
      return std::tie(at_ms, sequence, index) < std::tie(other.at_ms, other.sequence, other.index);
    }
  };
  std::optional<DueTimer> find_due_timer(bool timers_only = false) const {
    std::optional<DueTimer> earliest;
    for (const auto& [hash, instance] : result_.deployment.intents) {
      const auto& pending = result_.deployment.instances.at(instance).pending_intents.at(hash);
      const bool is_approval = pending.intent.effect == kApprovalEffect;
      if (!is_approval && pending.intent.effect != kTimerEffect) continue;
      const json params = decode_cbor(pending.intent.params).value_or(json::object());
      if (is_approval && (timers_only || !params.contains("timeout_ms"))) continue;
      const auto after = params.value(is_approval ? "timeout_ms" : "after_ms", std::uint64_t{0});
      const DueTimer due{std::max(pending.requested_ms + after, params.value("at_ms", std::uint64_t{0})),
                         pending.sequence, pending.intent.index, hash, is_approval};
      if (!earliest || due < *earliest) earliest = due;
    }
    return earliest;
  }
  bool fire_timer() {
    const auto due = find_due_timer();
    if (!due || due->at_ms > now_ms_) return false;
    if (due->is_approval)
      deliver_receipt(due->intent, {ReceiptStatus::timeout, R"({"detail":"timeout"})"});
    else
      deliver_receipt(due->intent, {ReceiptStatus::ok, dump_json({{"fired_ms", now_ms_}})});
    return true;
  }
  void wait(const ScenarioStep& step) {
    const auto timer = find_due_timer(true);
    if (!step.wait_ms && !timer) return add_mismatch("wait", "no timer waits", "", describe_pending_effects());
    const std::uint64_t end_ms = step.wait_ms ? now_ms_ + *step.wait_ms : timer->at_ms;
    for (auto due = find_due_timer(); due && due->at_ms <= end_ms && result_.mismatches.empty();
         due = find_due_timer()) {
      now_ms_ = std::max(now_ms_, due->at_ms);
      run_until_idle();
    }
    now_ms_ = end_ms;
  }

  // --- repeats steps, answers of the scenario and expired timers until the deployment is idle
  void run_until_idle() {
    const std::uint64_t max_steps = result_.steps + kMaxStepsPerInput;
    while (result_.mismatches.empty() && (run_one_step() || publish() || deliver_answer() || fire_timer()))
      if (result_.steps >= max_steps)
        return add_mismatch("", "no rest after " + count_with_noun(kMaxStepsPerInput, "step") + " of code");
  }
  bool run_one_step() {
    const auto ready_instances = next_instances(result_.deployment, 1);
    if (ready_instances.empty()) return false;
    const InstanceId& id = ready_instances.front();
    const auto request = build_step_request(result_.deployment, manifests_.catalog, id);
    if (!require(request, "")) return true;
    const InstanceState& instance = *result_.deployment.find_instance(id);
    const auto* code = manifests_.catalog.find(instance.manifest);
    ++result_.steps;
    const InboxEventId event_id = instance.inbox.front().id;
    accept(StepCompleted{id, event_id, engine_(*code->workflow(id.workflow), *code, *request)});
    return true;
  }
  bool publish() {
    const auto queued = next_effects_to_publish(result_.deployment);
    for (const auto& effect : queued) {
      accept(EffectDispatched{effect.pending_intent.intent.hash, "scenario"});
      if (effect.pending_intent.intent.effect == kCancelEffect) cancel(effect);
    }
    return !queued.empty();
  }
  void cancel(const EffectToPublish& effect) {
    const InstanceState* instance = result_.deployment.find_instance(effect.instance);
    if (instance == nullptr || !instance->pending_intents.contains(effect.pending_intent.intent.hash)) return;
    std::size_t cancelled = 0;
    for (const auto& target : find_cancelled_intents(*instance, effect.pending_intent)) {
      accept(make_cancelled_receipt(target.intent.hash));
      cancelled += target.intent.effect == kTimerEffect || target.intent.effect == kApprovalEffect ? 1 : 0;
    }
    accept(make_cancel_receipt(effect.pending_intent.intent.hash, cancelled));
  }
  void resolve_answer_names() {
    for (const auto& [name, receipt] : scenario_.answers) {
      const auto effect = find_effect(manifest(), name);
      if (!require(effect, "answers")) return;
      answers_[(*effect)->name] = &receipt;
    }
  }
  bool deliver_answer() {
    std::optional<DueTimer> oldest;
    const ScenarioReceipt* receipt = nullptr;
    for (const auto& [hash, instance] : result_.deployment.intents) {
      const auto& pending = result_.deployment.instances.at(instance).pending_intents.at(hash);
      const auto answer = answers_.find(pending.intent.effect);
      const DueTimer due{0, pending.sequence, pending.intent.index, hash};
      if (answer != answers_.end() && (!oldest || due < *oldest)) oldest = due, receipt = answer->second;
    }
    if (!oldest) return false;
    const std::size_t faults = receipt_errors_.size();
    deliver_receipt(oldest->intent, *receipt);
    if (receipt_errors_.size() > faults)
      add_mismatch("", "an answer's payload does not fit its schema: " + receipt_errors_.back());
    return true;
  }

  // --- expected results
  void check_expectations(const ScenarioStep& step) {
    const ScenarioExpectation expected = step.expect.value_or(ScenarioExpectation{});
    if (refusal_.find(expected.refusal_text) == refusal_.npos || refusal_.empty() != expected.refusal_text.empty())
      add_mismatch(step.expect ? "expect.refused" : "", refusal_.empty() ? "it was not refused" : "it was refused",
                   expected.refusal_text, refusal_);
    check_failures(expected);
    if (!step.expect) return;
    check_rows(expected.effects, true);
    check_rows(expected.events, false);
    for (const auto& [instance_name, state] : expected.states) check_state(instance_name, *parse_json(state));
    for (const auto& [instance_name, status] : expected.statuses) {
      const auto id = parse_instance_id(manifest(), instance_name);
      if (!require(id, "expect.status." + instance_name)) continue;
      const InstanceState* instance = result_.deployment.find_instance(*id);
      const std::string actual_status(to_string(instance == nullptr ? InstanceStatus::completed : instance->status()));
      if (actual_status != status)
        add_mismatch("expect.status." + instance_name, instance_name + " is " + actual_status, status, actual_status);
    }
    if (expected.pending_effects) check_pending(*expected.pending_effects);
  }
  void check_failures(const ScenarioExpectation& expected) {
    std::set<InstanceId> expected_ids;
    for (const auto& [instance_name, text] : expected.failures) {
      const std::string path = "expect.failed." + instance_name;
      const auto id = parse_instance_id(manifest(), instance_name);
      if (!require(id, path)) continue;
      expected_ids.insert(*id);
      const InstanceState* instance = result_.deployment.find_instance(*id);
      if (instance == nullptr || !instance->failed)
        add_mismatch(path, instance_name + " has not failed", text);
      else if (instance->message.find(text) == std::string::npos)
        add_mismatch(path, instance_name + " has failed in another way", text, instance->message);
    }
    for (const auto& [id, message] : failures_)
      if (!expected_ids.contains(id)) add_mismatch("", short_name(id) + " has failed: " + message);
  }
  // Compares effects or events, in the order in which they occurred.
  void check_rows(const std::vector<ExpectedEffect>& expected, bool is_effect) {
    json expected_rows = json::array(), actual = json::array();
    const std::string list = is_effect ? "expect.effects" : "expect.events";
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto name = resolve_name(expected[i].name, is_effect);
      if (!require(name, list + '[' + std::to_string(i) + ']')) return;
      json row{{*name, *parse_json(expected[i].value)}};
      if (expected[i].ref) row["ref"] = *expected[i].ref;
      if (expected[i].emitter) row["from"] = *expected[i].emitter;
      expected_rows.push_back(std::move(row));
    }
    const auto add_row = [&](const std::string& name, const std::string& value, const std::string& ref,
                             const InstanceId& emitter) {
      json fields{{name, cbor_to_readable_json(value)}};
      const ExpectedEffect* expected_row = actual.size() < expected.size() ? &expected[actual.size()] : nullptr;
      if (expected_row != nullptr && expected_row->ref) fields["ref"] = ref;
      if (expected_row != nullptr && expected_row->emitter) fields["from"] = short_name(emitter);
      actual.push_back(std::move(fields));
    };
    if (is_effect)
      for (const auto& effect : requested_effects_) add_row(effect.effect, effect.params, effect.ref, effect.emitter);
    else
      for (const auto& event : emitted_events_) add_row(event.schema, event.value, "", event.emitter);
    if (const auto path = find_difference(expected_rows, actual))
      add_mismatch(
          list + (path->empty() || expected_rows.size() != actual.size() ? "" : path->substr(0, path->find(']') + 1)),
          std::string(is_effect ? "the effects" : "the events") + " differ",
          format_json(fill_wildcards(expected_rows, actual)), format_json(actual));
  }
  Result<std::string> resolve_name(const std::string& name, bool is_effect) {
    if (!is_effect) return find_name(name, manifest().schemas.names(), "event");
    MJ_TRY(effect, find_effect(manifest(), name));
    return effect->name;
  }
  void check_state(const std::string& instance_name, const json& expected) {
    const auto id = parse_instance_id(manifest(), instance_name);
    if (!require(id, "expect.state." + instance_name)) return;
    const InstanceState* instance = result_.deployment.find_instance(*id);
    const json actual =
        instance == nullptr || !instance->state ? json(nullptr) : cbor_to_readable_json(instance->state->bytes);
    if (const auto path = find_difference(expected, actual))
      add_mismatch("expect.state." + instance_name + (path->empty() || path->front() == '[' ? "" : ".") + *path,
                   "the state of " + instance_name + " differs", format_json(fill_wildcards(expected, actual)),
                   format_json(actual));
  }
  void check_pending(const std::vector<std::string>& expected) {
    json expected_rows = json::array(), actual = json::array();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto name = resolve_name(expected[i], true);
      if (!require(name, "expect.pending[" + std::to_string(i) + ']')) return;
      expected_rows.push_back(*name);
    }
    for (const auto& [intent, instance] : result_.deployment.intents)
      actual.push_back(result_.deployment.instances.at(instance).pending_intents.at(intent).intent.effect);
    std::sort(expected_rows.begin(), expected_rows.end());
    std::sort(actual.begin(), actual.end());
    if (expected_rows != actual)
      add_mismatch("expect.pending", "other effects wait for a receipt", format_json(expected_rows),
                   format_json(actual));
  }
  std::string describe_pending_effects() const {
    std::string text;
    for (const auto& [intent, instance] : result_.deployment.intents) {
      const auto& pending = result_.deployment.instances.at(instance).pending_intents.at(intent).intent;
      text += (text.empty() ? "waiting: " : "; ") + pending.effect + " of " + short_name(instance) +
              (pending.issuer_ref.empty() ? "" : " (ref " + excerpt(pending.issuer_ref, 80) + ')');
    }
    return text.empty() ? "nothing waits for a receipt" : text;
  }

  // Replays the journal and repeats the steps. The result must be the same deployment state, byte for byte.
  void check_replay() {
    path_ = scenario_.path;
    DeploymentState replayed;
    replayed.id = result_.deployment.id;
    const auto replay = verify_replay(replayed, manifests_.catalog, result_.facts, engine_);
    if (replay.problem) add_mismatch("", "the journal cannot be replayed: " + replay.problem->text);
    if (replay.mismatch)
      add_mismatch("", short_name(replay.mismatch->instance) + " is not deterministic: the step at height " +
                           std::to_string(replay.mismatch->height) + " returned another output when it was repeated");
    if (!replay.problem && !replay.mismatch && replayed != result_.deployment)
      add_mismatch("", "the replayed journal has another state");
  }

  static constexpr WorkflowRules kRules{.inline_state_bytes = 64U << 20};  // there is no blob store
  const Scenario& scenario_;
  const ScenarioManifests& manifests_;
  const StepEngine& engine_;
  std::uint64_t now_ms_, input_count_ = 0;
  std::string path_, refusal_;
  std::map<std::string, const ScenarioReceipt*> answers_;
  std::vector<RequestedEffect> requested_effects_;  // effects of the step that is played
  std::vector<EmittedEvent> emitted_events_;
  std::map<InstanceId, std::string> failures_;
  std::vector<std::string> receipt_errors_;
  ScenarioResult result_;
};

}  // namespace

ScenarioResult run_scenario(const ScenarioFile& file, const Scenario& scenario, const ScenarioManifests& manifests,
                            const StepEngine& engine) {
  return ScenarioPlayer(file, scenario, manifests, engine).run();
}

}  // namespace mycojobs
