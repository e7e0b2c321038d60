// Bugs that a model check must find; each replaces decide() or its driver.
#include <algorithm>

#include "workflow/model.h"

namespace mycojobs::workflow_tests {
namespace {

// Changes the decided facts. `change` returns false to omit a fact; heights stay consecutive.
template <class Change>
Mutant changed(const char* name, Change change) {
  Mutant mutant = no_mutant();
  mutant.name = name;
  mutant.decide = [change](const auto& deployment, const auto& catalog, const auto& input) {
    auto decision = decide(deployment, catalog, input);
    if (!decision) return decision;
    std::vector<WorkflowFact> facts;
    for (auto& fact : decision->facts) {
      if (!change(fact)) continue;
      fact.height = decision->base + facts.size() + 1;
      facts.push_back(std::move(fact));
    }
    decision->facts = std::move(facts);
    return decision;
  };
  return mutant;
}
// Changes the input before it is decided.
template <class Change>
Mutant misheard(const char* name, Change change) {
  Mutant mutant = no_mutant();
  mutant.name = name;
  mutant.decide = [change](const auto& deployment, const auto& catalog, WorkflowInput input) {
    change(deployment, input);
    return decide(deployment, catalog, input);
  };
  return mutant;
}

Mutant settles_twice() {
  Mutant mutant = no_mutant();
  mutant.name = "a repeated receipt is admitted again";
  mutant.decide = [](const auto& deployment, const auto& catalog, const auto& input) {
    auto decision = decide(deployment, catalog, input);
    const auto* receipt = std::get_if<ReceiptArrived>(&input.content);
    if (!decision || receipt == nullptr || !decision->facts.empty()) return decision;
    const InstanceId id = deployment.completed_intents.at(receipt->intent);
    decision->facts.push_back(
        {deployment.height + 1, input.sample.now_ms,
         ReceiptAdmitted{id, receipt->intent, ReceiptStatus::ok, cbor({{"r", 1}}), "", "", "Receipt", input.sample}});
    return decision;
  };
  return mutant;
}
Mutant applies_always() {
  Mutant mutant = no_mutant();
  mutant.name = "a manifest is applied while work is under way";
  mutant.decide = [](const auto& deployment, const auto& catalog, const auto& input) {
    auto decision = decide(deployment, catalog, input);
    const auto* apply = std::get_if<ApplyManifest>(&input.content);
    if (decision || apply == nullptr) return decision;
    WorkflowDecision forced;
    forced.base = deployment.height;
    forced.facts.push_back(
        {deployment.height + 1, input.sample.now_ms, ManifestApplied{apply->hash, "m/world@1", deployment.manifest}});
    return Result<WorkflowDecision>(forced);
  };
  return mutant;
}
template <class What>
bool is(const WorkflowFact& fact) {
  return std::holds_alternative<What>(fact.content);
}

}  // namespace

std::vector<Mutant> mutants() {
  std::vector<Mutant> all{settles_twice(), applies_always()};
  all.push_back(misheard("a bad signature is not looked at", [](const auto&, auto& input) {
    if (auto* receipt = std::get_if<ReceiptArrived>(&input.content)) receipt->refusal_reason.clear();
  }));
  all.push_back(misheard("an undeclared effect is dropped in silence", [](const auto&, auto& input) {
    auto* step = std::get_if<StepCompleted>(&input.content);
    auto* output = step == nullptr ? nullptr : std::get_if<StepOutput>(&step->answer);
    if (output != nullptr)
      std::erase_if(output->effects, [](const auto& effect) { return effect.kind == "m/never@1"; });
  }));
  all.push_back(misheard("a step of older mail is taken", [](const auto& deployment, auto& input) {
    auto* step = std::get_if<StepCompleted>(&input.content);
    const InstanceState* cell = step == nullptr ? nullptr : deployment.find_instance(step->instance);
    if (cell != nullptr && !cell->inbox.empty()) step->event_id = cell->inbox.front().id;
  }));
  all.push_back(changed("an instance does not fail of a faulty receipt", [](WorkflowFact& fact) {
    const auto* failed = std::get_if<InstanceFailed>(&fact.content);
    return failed == nullptr || failed->kind != "receipt";
  }));
  all.push_back(changed("an event goes to another cell", [](WorkflowFact& fact) {
    if (auto* event = std::get_if<EventAccepted>(&fact.content))
      for (auto& target : event->targets)
        if (target.instance.key == cbor(1)) target.instance.key = cbor(2);
    return true;
  }));
  all.push_back(changed("a derived event is lost", [](WorkflowFact& fact) {
    const auto* event = std::get_if<EventAccepted>(&fact.content);
    return event == nullptr || !event->emitter;
  }));
  all.push_back(changed("the second target of an event is lost", [](WorkflowFact& fact) {
    if (auto* event = std::get_if<EventAccepted>(&fact.content); event != nullptr && event->targets.size() > 1)
      event->targets.pop_back();
    return true;
  }));
  all.push_back(changed("an intent is lost", [](WorkflowFact& fact) {
    if (auto* step = std::get_if<StepTaken>(&fact.content); step != nullptr && step->intents.size() > 1)
      step->intents.pop_back();
    return true;
  }));
  all.push_back(changed("null deletes nothing", [](WorkflowFact& fact) { return !is<InstanceDeleted>(fact); }));
  all.push_back(changed("time is sampled again for derived events", [](WorkflowFact& fact) {
    if (auto* event = std::get_if<EventAccepted>(&fact.content); event != nullptr && event->emitter)
      ++event->sample.now_ms;
    return true;
  }));
  all.push_back(
      changed("a refused receipt is not journaled", [](WorkflowFact& fact) { return !is<ReceiptRefused>(fact); }));
  all.push_back(
      changed("what was published is not written down", [](WorkflowFact& fact) { return !is<EffectPublished>(fact); }));
  all.push_back(changed("two instances share an intent", [](WorkflowFact& fact) {
    if (auto* step = std::get_if<StepTaken>(&fact.content))
      for (auto& intent : step->intents) intent.hash = intent_hash({"", {}, "", 1}, intent);
    return true;
  }));
  Mutant starving = no_mutant();
  starving.name = "the first by name is always next";
  starving.next = [](const DeploymentState& deployment, std::size_t,
                     const std::set<InstanceId>& running) -> std::vector<InstanceId> {
    for (const auto& [id, cell] : deployment.instances)
      if (!cell.inbox.empty() && !running.contains(id)) return {id};
    return {};
  };
  all.push_back(starving);
  Mutant early = no_mutant();
  early.name = "work is published before its step is durable";
  early.publishes_early = true;
  all.push_back(early);
  return all;
}

}  // namespace mycojobs::workflow_tests
