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

// Limit of steps of code per input; beyond it, the workflow counts as an endless loop.
constexpr std::uint64_t kMaxStepsPerInput = 10'000;

std::string pretty(const json& value) { return dump_json(value, 2); }

class ScenarioPlayer {
 public:
  ScenarioPlayer(const ScenarioFile& file, const Scenario& scenario, const ScenarioDeployment& given,
                 const StepEngine& engine)
      : scenario_(scenario), given_(given), engine_(engine), now_ms_(file.start_ms) {
    played_.deployment.id = "scenario/" + std::string(manifest().name);
  }

  ScenarioResult whole() {
    path_ = scenario_.path;
    if (take(ApplyManifest{given_.manifest})) {
      resolve_answers();
      for (const auto& step : scenario_.steps) {
        if (!played_.mismatches.empty()) break;
        run(step);
      }
      if (played_.mismatches.empty()) replay();
    }
    return std::move(played_);
  }

 private:
  struct RequestedEffect {
    InstanceId from;
    std::string intent, effect, params, ref;
  };
  struct EmittedEvent {
    InstanceId from;
    std::string schema, value;
  };

  const WorkflowManifest& manifest() const {
    const auto& hash = played_.deployment.manifest.empty() ? given_.manifest : played_.deployment.manifest;
    return *given_.catalog.find(hash);
  }
  void wrong(std::string place, std::string what, std::string expected = "", std::string got = "") {
    played_.mismatches.push_back(
        {place.empty() ? path_ : path_ + '.' + place, std::move(what), std::move(expected), std::move(got)});
  }
  template <class T>
  const T* or_wrong(const Result<T>& result, const std::string& place) {
    if (!result) wrong(place, result.error().message);
    return result ? &*result : nullptr;
  }

  // --- inputs
  Result<WorkflowDecision> decided(decltype(WorkflowInput::what) what) {
    Sample sample{now_ms_, derived_entropy(Sample{0, scenario_.name}, turn_++)};
    MJ_TRY(decision, decide(played_.deployment, given_.catalog, {std::move(sample), std::move(what)}, kRules));
    MJ_CHECK(commit(played_.deployment, decision));
    played_.history.insert(played_.history.end(), decision.facts.begin(), decision.facts.end());
    for (const auto& fact : decision.facts) note(fact);
    return std::move(decision);
  }
  bool take(decltype(WorkflowInput::what) what) {
    const auto decision = decided(std::move(what));
    if (!decision) wrong("", decision.error().message);
    return decision.has_value();
  }
  void note(const WorkflowFact& fact) {
    if (const auto* step = std::get_if<StepTaken>(&fact.what))
      for (const auto& intent : step->intents)
        asked_.push_back({step->cell, intent.hash, intent.effect, intent.params, intent.issuer_ref});
    if (const auto* event = std::get_if<EventAccepted>(&fact.what); event != nullptr && event->from)
      emitted_.push_back({*event->from, event->schema, event->value});
    if (const auto* failed = std::get_if<InstanceFailed>(&fact.what)) failed_[failed->cell] = failed->message;
    if (const auto* fault = std::get_if<ReceiptMismatched>(&fact.what)) faults_.push_back(fault->reason);
  }

  void run(const ScenarioStep& step) {
    path_ = step.path;
    asked_.clear(), emitted_.clear(), failed_.clear(), faults_.clear();
    refused_.clear();
    switch (step.input) {
      case ScenarioInput::none:
        break;
      case ScenarioInput::send:
        send(step);
        break;
      case ScenarioInput::receipt:
        receipt(step);
        break;
      case ScenarioInput::wait:
        wait(step);
        break;
      case ScenarioInput::apply:
        apply(step);
        break;
    }
    if (played_.mismatches.empty()) settle();
    if (played_.mismatches.empty()) judge(step);
  }
  void send(const ScenarioStep& step) {
    const auto name = find_event(manifest(), step.name);
    if (!name && !may_be_refused(step)) return wrong("send", name.error().message);
    if (!name) {
      refused_ = name.error().message;
      return;
    }
    const auto done = decided(EventArrived{*name, step.value, ValueForm::from_json, "scenario"});
    if (!done) refused_ = done.error().message;
  }
  static bool may_be_refused(const ScenarioStep& step) { return step.expect && !step.expect->refused.empty(); }
  void apply(const ScenarioStep& step) {
    const auto done = decided(ApplyManifest{given_.files.at(step.name)});
    if (!done) refused_ = done.error().message;
  }
  void receipt(const ScenarioStep& step) {
    const auto effect = find_effect(manifest(), step.name);
    if (!or_wrong(effect, "receipt")) return;
    std::vector<const PendingIntent*> found;
    for (const auto& [intent, cell] : played_.deployment.intents) {
      const auto& pending = played_.deployment.cells.at(cell).pending.at(intent);
      if (pending.intent.effect == (*effect)->name && (step.ref.empty() || pending.intent.issuer_ref == step.ref) &&
          (step.of.empty() || is_of(cell, step.of)))
        found.push_back(&pending);
    }
    if (!played_.mismatches.empty()) return;
    if (found.size() != 1)
      return wrong("receipt",
                   (found.empty() ? "no effect " : count_with_noun(found.size(), "effect") + " ") + (*effect)->name +
                       (found.empty() ? " waits for a receipt" : " wait for a receipt") +
                       (found.empty() ? "" : ": select one with of or ref"),
                   "", waiting_text());
    give(found.front()->intent.hash, step.receipt);
    if (faults_.empty() == step.misfit)
      wrong("receipt", step.misfit ? "the payload fits its schema, and is meant not to"
                                   : "the payload does not fit its schema (\"misfit\": true, if this is intended): " +
                                         (faults_.empty() ? "" : faults_.front()));
  }
  bool is_of(const InstanceId& cell, const std::string& given) {
    const auto wanted = find_instance_id(manifest(), given);
    if (!wanted && played_.mismatches.empty()) wrong("of", wanted.error().message);
    return wanted && *wanted == cell;
  }
  void give(const std::string& intent, const ScenarioReceipt& given) {
    ReceiptArrived arrived;
    arrived.intent = intent, arrived.status = given.status, arrived.payload = given.payload;
    take(std::move(arrived));
  }

  // --- time
  struct DueTimer {
    std::uint64_t at_ms = 0, sequence = 0, index = 0;
    std::string intent;
    bool approval = false;
    bool operator<(const DueTimer& other) const {
      return std::tie(at_ms, sequence, index) < std::tie(other.at_ms, other.sequence, other.index);
    }
  };
  std::optional<DueTimer> next_due(bool timers_only = false) const {
    std::optional<DueTimer> next;
    for (const auto& [hash, cell] : played_.deployment.intents) {
      const auto& pending = played_.deployment.cells.at(cell).pending.at(hash);
      const bool approval = pending.intent.effect == kApprovalEffect;
      if (!approval && pending.intent.effect != kTimerEffect) continue;
      const json params = decode_cbor(pending.intent.params).value_or(json::object());
      if (approval && (timers_only || !params.contains("timeout_ms"))) continue;
      const auto after = params.value(approval ? "timeout_ms" : "after_ms", std::uint64_t{0});
      const DueTimer due{std::max(pending.asked_ms + after, params.value("at_ms", std::uint64_t{0})), pending.sequence,
                         pending.intent.index, hash, approval};
      if (!next || due < *next) next = due;
    }
    return next;
  }
  bool fire() {
    const auto due = next_due();
    if (!due || due->at_ms > now_ms_) return false;
    if (due->approval)
      give(due->intent, {ReceiptStatus::timeout, R"({"detail":"timeout"})"});
    else
      give(due->intent, {ReceiptStatus::ok, dump_json({{"fired_ms", now_ms_}})});
    return true;
  }
  void wait(const ScenarioStep& step) {
    const auto timer = next_due(true);
    if (!step.wait_ms && !timer) return wrong("wait", "no timer waits", "", waiting_text());
    const std::uint64_t until = step.wait_ms ? now_ms_ + *step.wait_ms : timer->at_ms;
    for (auto due = next_due(); due && due->at_ms <= until && played_.mismatches.empty(); due = next_due()) {
      now_ms_ = std::max(now_ms_, due->at_ms);
      settle();
    }
    now_ms_ = until;
  }

  // --- repeats steps of code, answers of the scenario and expired timers until nothing is left to do
  void settle() {
    const std::uint64_t max = played_.steps + kMaxStepsPerInput;
    while (played_.mismatches.empty() && (step_code() || publish() || answer() || fire()))
      if (played_.steps >= max)
        return wrong("", "no rest after " + count_with_noun(kMaxStepsPerInput, "step") + " of code");
  }
  bool step_code() {
    const auto next = next_instances(played_.deployment, 1);
    if (next.empty()) return false;
    const InstanceId& id = next.front();
    const auto request = request_of(played_.deployment, given_.catalog, id);
    if (!or_wrong(request, "")) return true;
    const InstanceState& cell = *played_.deployment.cell(id);
    const auto* code = given_.catalog.find(cell.manifest);
    ++played_.steps;
    const MailId mail = cell.mail.front().id;
    take(StepCompleted{id, mail, engine_(*code->workflow(id.workflow), *code, *request)});
    return true;
  }
  bool publish() {
    const auto queued = next_effects_to_publish(played_.deployment);
    for (const auto& effect : queued) {
      take(EffectDispatched{effect.pending.intent.hash, "scenario"});
      if (effect.pending.intent.effect == kCancelEffect) cancel(effect);
    }
    return !queued.empty();
  }
  void cancel(const EffectToPublish& effect) {
    const InstanceState* cell = played_.deployment.cell(effect.cell);
    if (cell == nullptr || !cell->pending.contains(effect.pending.intent.hash)) return;
    std::size_t ended = 0;
    for (const auto& each : cancelled_by(*cell, effect.pending)) {
      take(cancelled_receipt(each.intent.hash));
      ended += each.intent.effect == kTimerEffect || each.intent.effect == kApprovalEffect ? 1 : 0;
    }
    take(cancel_receipt(effect.pending.intent.hash, ended));
  }
  void resolve_answers() {
    for (const auto& [name, receipt] : scenario_.answers) {
      const auto effect = find_effect(manifest(), name);
      if (!or_wrong(effect, "answers")) return;
      answers_[(*effect)->name] = &receipt;
    }
  }
  bool answer() {
    std::optional<DueTimer> oldest;
    const ScenarioReceipt* given = nullptr;
    for (const auto& [hash, cell] : played_.deployment.intents) {
      const auto& pending = played_.deployment.cells.at(cell).pending.at(hash);
      const auto found = answers_.find(pending.intent.effect);
      const DueTimer due{0, pending.sequence, pending.intent.index, hash};
      if (found != answers_.end() && (!oldest || due < *oldest)) oldest = due, given = found->second;
    }
    if (!oldest) return false;
    const std::size_t faults = faults_.size();
    give(oldest->intent, *given);
    if (faults_.size() > faults) wrong("", "an answer's payload does not fit its schema: " + faults_.back());
    return true;
  }

  // --- expected results
  void judge(const ScenarioStep& step) {
    const ScenarioExpectation expected = step.expect.value_or(ScenarioExpectation{});
    if (refused_.find(expected.refused) == refused_.npos || refused_.empty() != expected.refused.empty())
      wrong(step.expect ? "expect.refused" : "", refused_.empty() ? "it was not refused" : "it was refused",
            expected.refused, refused_);
    check_failures(expected);
    if (!step.expect) return;
    check_rows(expected.effects, true);
    check_rows(expected.events, false);
    for (const auto& [instance, state] : expected.state) check_state(instance, *parse_json(state));
    for (const auto& [instance, status] : expected.status) {
      const auto id = find_instance_id(manifest(), instance);
      if (!or_wrong(id, "expect.status." + instance)) continue;
      const InstanceState* cell = played_.deployment.cell(*id);
      const std::string is(to_string(cell == nullptr ? InstanceStatus::completed : cell->status()));
      if (is != status) wrong("expect.status." + instance, instance + " is " + is, status, is);
    }
    if (expected.pending) check_pending(*expected.pending);
  }
  void check_failures(const ScenarioExpectation& expected) {
    std::set<InstanceId> meant;
    for (const auto& [instance, text] : expected.failed) {
      const std::string place = "expect.failed." + instance;
      const auto id = find_instance_id(manifest(), instance);
      if (!or_wrong(id, place)) continue;
      meant.insert(*id);
      const InstanceState* cell = played_.deployment.cell(*id);
      if (cell == nullptr || !cell->failed)
        wrong(place, instance + " has not failed", text);
      else if (cell->message.find(text) == std::string::npos)
        wrong(place, instance + " has failed in another way", text, cell->message);
    }
    for (const auto& [id, message] : failed_)
      if (!meant.contains(id)) wrong("", short_name(id) + " has failed: " + message);
  }
  // Compares effects or events, in the order in which they occurred.
  void check_rows(const std::vector<ExpectedEffect>& expected, bool effects) {
    json wanted = json::array(), got = json::array();
    const std::string list = effects ? "expect.effects" : "expect.events";
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto name = name_of(expected[i].name, effects);
      if (!or_wrong(name, list + '[' + std::to_string(i) + ']')) return;
      json row{{*name, *parse_json(expected[i].value)}};
      if (expected[i].ref) row["ref"] = *expected[i].ref;
      if (expected[i].from) row["from"] = *expected[i].from;
      wanted.push_back(std::move(row));
    }
    const auto row = [&](const std::string& name, const std::string& value, const std::string& ref,
                         const InstanceId& from) {
      json made{{name, value_of(value)}};
      const ExpectedEffect* other = got.size() < expected.size() ? &expected[got.size()] : nullptr;
      if (other != nullptr && other->ref) made["ref"] = ref;
      if (other != nullptr && other->from) made["from"] = short_name(from);
      got.push_back(std::move(made));
    };
    if (effects)
      for (const auto& each : asked_) row(each.effect, each.params, each.ref, each.from);
    else
      for (const auto& each : emitted_) row(each.schema, each.value, "", each.from);
    if (const auto place = differs(wanted, got))
      wrong(list + (place->empty() || wanted.size() != got.size() ? "" : place->substr(0, place->find(']') + 1)),
            std::string(effects ? "the effects" : "the events") + " differ", pretty(fill_defaults(wanted, got)),
            pretty(got));
  }
  Result<std::string> name_of(const std::string& given, bool effect) {
    if (!effect) return find_name(given, manifest().schemas.names(), "event");
    MJ_TRY(found, find_effect(manifest(), given));
    return found->name;
  }
  static json value_of(const std::string& cbor) { return readable_cbor(cbor); }
  void check_state(const std::string& instance, const json& expected) {
    const auto id = find_instance_id(manifest(), instance);
    if (!or_wrong(id, "expect.state." + instance)) return;
    const InstanceState* cell = played_.deployment.cell(*id);
    const json got = cell == nullptr || !cell->state ? json(nullptr) : value_of(cell->state->bytes);
    if (const auto place = differs(expected, got))
      wrong("expect.state." + instance + (place->empty() || place->front() == '[' ? "" : ".") + *place,
            "the state of " + instance + " differs", pretty(fill_defaults(expected, got)), pretty(got));
  }
  void check_pending(const std::vector<std::string>& expected) {
    json wanted = json::array(), got = json::array();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto name = name_of(expected[i], true);
      if (!or_wrong(name, "expect.pending[" + std::to_string(i) + ']')) return;
      wanted.push_back(*name);
    }
    for (const auto& [intent, cell] : played_.deployment.intents)
      got.push_back(played_.deployment.cells.at(cell).pending.at(intent).intent.effect);
    std::sort(wanted.begin(), wanted.end());
    std::sort(got.begin(), got.end());
    if (wanted != got) wrong("expect.pending", "other effects wait for a receipt", pretty(wanted), pretty(got));
  }
  std::string waiting_text() const {
    std::string text;
    for (const auto& [intent, cell] : played_.deployment.intents) {
      const auto& pending = played_.deployment.cells.at(cell).pending.at(intent).intent;
      text += (text.empty() ? "waiting: " : "; ") + pending.effect + " of " + short_name(cell) +
              (pending.issuer_ref.empty() ? "" : " (ref " + excerpt(pending.issuer_ref, 80) + ')');
    }
    return text.empty() ? "nothing waits for a receipt" : text;
  }

  // Replays the journal and repeats the steps. The result must be byte for byte the same world.
  void replay() {
    path_ = scenario_.path;
    DeploymentState again;
    again.id = played_.deployment.id;
    const auto verdict = verify_replay(again, given_.catalog, played_.history, engine_);
    if (verdict.problem) wrong("", "the journal cannot be replayed: " + verdict.problem->text);
    if (verdict.differs)
      wrong("", short_name(verdict.differs->cell) + " is not deterministic: the step at height " +
                    std::to_string(verdict.differs->height) + " returned another output when it was repeated");
    if (!verdict.problem && !verdict.differs && again != played_.deployment)
      wrong("", "the replayed journal has another state");
  }

  static constexpr WorkflowRules kRules{.inline_state_bytes = 64U << 20};  // there is no blob store
  const Scenario& scenario_;
  const ScenarioDeployment& given_;
  const StepEngine& engine_;
  std::uint64_t now_ms_, turn_ = 0;
  std::string path_, refused_;
  std::map<std::string, const ScenarioReceipt*> answers_;
  std::vector<RequestedEffect> asked_;  // effects of the step that is played
  std::vector<EmittedEvent> emitted_;
  std::map<InstanceId, std::string> failed_;
  std::vector<std::string> faults_;
  ScenarioResult played_;
};

}  // namespace

ScenarioResult run_scenario(const ScenarioFile& file, const Scenario& scenario, const ScenarioDeployment& deployment,
                            const StepEngine& engine) {
  return ScenarioPlayer(file, scenario, deployment, engine).whole();
}

}  // namespace mycojobs
