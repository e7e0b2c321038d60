#include <algorithm>
#include <utility>

#include "workflow/model.h"
#include "workflows/workflow_snapshot.h"

namespace mycojobs::workflow_tests {
namespace {

// Returns an engine that evaluates the tables of the machines.
StepEngine tables(const Model& model) {
  return [&model](const WorkflowSpec& spec, const WorkflowManifest& manifest, const StepRequest& request) {
    const auto value = [](const auto& bytes) { return bytes ? uncbor(*bytes) : json(nullptr); };
    const json key = value(request.event.key);
    return parse_step_answer(model.codes.at(manifest.hash)
                                 .at(spec.name)
                                 .output(value(request.state), uncbor(request.event.value), value(request.ctx),
                                         key.is_null() ? 0 : key.get<int>()));
  };
}
// The texts of errors are not compared, since each engine has its own.
bool same(const StepAnswer& is, const StepAnswer& should) {
  const auto *one = std::get_if<StepError>(&is), *other = std::get_if<StepError>(&should);
  return one != nullptr && other != nullptr ? one->kind == other->kind : is == should;
}

}  // namespace

Mutant no_mutant() {
  return {"none", [](const auto& deployment, const auto& catalog, const auto& input) {
            return decide(deployment, catalog, input);
          }};
}

ModelRound::ModelRound(std::uint64_t seed, Mutant mutant, StepEngine engine)
    : random_(seed), mutant_(std::move(mutant)) {
  stage_.engine = engine ? std::move(engine) : tables(model_);
  stage_.deployment.id = "1/m/world";
  for (const int keyed = 1 + pick(3); codes_.size() < 2;) {
    Machines machines = random_machines(random_, keyed);
    codes_.push_back(stage_.add(machines.manifest(), machines.lua()));
    model_.codes[codes_.back()] = std::move(machines);
  }
  stage_.apply(model_.code = codes_[0]);
}

void ModelRound::check(bool right, const std::string& what) {
  if (!right && wrong_.empty()) wrong_ = what;
}

std::optional<WorkflowDecision> ModelRound::take(decltype(WorkflowInput::content) what) {
  ++stage_.now_ms;
  was_lost_ = false;
  why_.clear();
  const WorkflowInput input{{stage_.now_ms, std::string(32, static_cast<char>(random_() % 256))}, std::move(what)};
  auto decision = mutant_.decide(stage_.deployment, stage_.catalog, input);
  if (!decision) return why_ = decision.error().message, code_ = decision.error().code, std::nullopt;
  if (pick(8) == 0) {  // the deciding coordinator crashed before the commit
    was_lost_ = true;
    ++seen["lost"];
    for (const auto& effect : decision->effects_to_publish) lost_.push_back(effect.pending_intent.intent.hash);
    return std::nullopt;
  }
  const auto done = commit(stage_.deployment, *decision);
  check(done.has_value(), done ? "" : "a decision does not fit: " + done.error().message);
  if (!done) return std::nullopt;
  stage_.journal.insert(stage_.journal.end(), decision->facts.begin(), decision->facts.end());
  for (const auto& effect : decision->effects_to_publish)
    check(committed_.insert(effect.pending_intent.intent.hash).second, "an intent stands twice");
  return std::move(*decision);
}

void ModelRound::send() {
  const char* const schemas[] = {"m/Go@1", "m/Poke@1", "m/Note@1"};
  const std::string schema = schemas[pick(3)];
  json value{{"n", pick(4)}};
  if (schema != "m/Note@1") value["k"] = pick(10) == 0 ? 9 : pick(5);
  if (pick(15) == 0) value["more"] = 1;
  const auto taken = take(make_event(schema, value));
  if (was_lost_) return;
  check(taken.has_value() == (Model::fits(schema, value) && model_.codes.at(model_.code).takes(schema)),
        "an event is taken or refused wrongly: " + value.dump() + why_);
  const std::size_t unfit = model_.unfit;
  if (taken) model_.event(schema, value, stage_.now_ms);
  if (model_.unfit > unfit) ++seen["unfit"];
  ++seen[taken ? "sent" : "event refused"];
}

void ModelRound::ask() {
  std::set<InstanceId> running;
  for (const auto& asked : asked_) running.insert(asked.cell);
  const auto next = mutant_.next(stage_.deployment, 1, running);
  const auto should =
      std::find_if(model_.ring.begin(), model_.ring.end(), [&](const auto& id) { return !running.contains(id); });
  check(next.empty() == (should == model_.ring.end()) && (next.empty() || next[0] == *should),
        "another instance is next");
  if (next.empty() || !wrong_.empty()) return;
  const InstanceId& id = next[0];
  const auto request = build_step_request(stage_.deployment, stage_.catalog, id);
  check(request.has_value(), "there is no request");
  if (!request) return;
  const auto& cell = stage_.cell(id);
  const auto* manifest = stage_.catalog.find(cell.manifest);
  // The model does not know the text of a fault's reason, so its mail takes the kernel's value.
  model_.cells.at(id).mail.front().value = uncbor(request->event.value);
  asked_.push_back({id, cell.inbox.front().id, model_.output(id),
                    stage_.engine(*manifest->workflow(id.workflow), *manifest, *request)});
  check(same(asked_.back().answer, parse_step_answer(asked_.back().output)), "the code gives something else");
}

void ModelRound::answer() {
  if (asked_.empty()) return;
  const auto at = static_cast<std::size_t>(pick(static_cast<int>(asked_.size())));
  const PendingRequest asked = asked_[at];
  const bool again = pick(10) == 0;  // another coordinator was faster; the answer is repeated later
  if (!again) asked_.erase(asked_.begin() + static_cast<std::ptrdiff_t>(at));
  const InstanceState* cell = stage_.deployment.find_instance(asked.cell);
  const bool current = cell != nullptr && !cell->inbox.empty() && cell->inbox.front().id == asked.mail;
  const auto taken = take(StepCompleted{asked.cell, asked.mail, asked.answer});
  if (was_lost_) return;
  check(taken.has_value() == current, "a step is taken or refused wrongly: " + why_);
  check(taken || code_ == Code::conflict, "a step of older mail is refused for another reason: " + why_);
  if (!taken || !current) return void(++seen["stale step"]);
  const bool breaks = Model::breaks(asked.cell, asked.output);
  check(taken->effects_to_publish.size() == (breaks ? 0 : asked.output.value("effects", json::array()).size()),
        "other effects are published");
  model_.step(asked.cell, asked.output, taken->effects_to_publish, stage_.now_ms);
  ++seen[breaks ? "step failed" : "step"];
}

void ModelRound::launch() {
  if (mutant_.publishes_early)
    for (const auto& intent : lost_) launched_.push_back(intent);
  lost_.clear();
  for (const auto& effect : next_effects_to_publish(stage_.deployment)) {
    const std::string intent = effect.pending_intent.intent.hash;
    launched_.push_back(intent);
    const auto taken = take(EffectDispatched{intent, "job"});
    if (was_lost_) continue;  // will be published again under the same name
    check(taken && taken->facts.size() == 1, "it is not a fact that an effect was published");
    for (auto& [id, cell] : model_.cells)
      if (cell.pending.contains(intent)) cell.pending.at(intent).published = true;
    ++seen["published"];
  }
  for (const auto& intent : launched_)
    check(committed_.contains(intent), "work was published of a step that is not durable");
}

void ModelRound::receipt() {
  if (launched_.empty()) return;
  deliver_receipt(pick(20) == 0 ? std::string(64, 'f')
                                : launched_[static_cast<std::size_t>(pick(static_cast<int>(launched_.size())))]);
}

void ModelRound::deliver_receipt(const std::string& intent) {
  ReceiptArrived receipt;
  receipt.intent = intent;
  const int kind = pick(10);
  const bool forged = kind == 0, fault = kind == 1 || kind == 2, error = kind == 3;
  const json payload = fault ? json{{"r", "x"}} : error ? json{{"detail", "exit_code"}} : json{{"r", pick(3)}};
  receipt.payload = payload.dump();
  if (error) receipt.status = ReceiptStatus::error;
  if (forged) receipt.refusal_reason = "another key";
  const auto waiting = model_.waiting();
  const bool pending = std::find(waiting.begin(), waiting.end(), intent) != waiting.end();
  const bool settled = model_.settled.contains(receipt.intent);
  const auto taken = take(receipt);
  if (was_lost_) return;
  check(taken.has_value() == (pending || settled), "a receipt is taken or refused wrongly: " + why_);
  if (!taken) return void(++seen["unknown receipt"]);
  check(taken->facts.empty() == (settled && !forged), "a receipt is journaled wrongly");
  if (forged)
    ++model_.refused;
  else if (pending)
    model_.receipt(receipt.intent, std::string(to_string(receipt.status)), payload, fault, stage_.now_ms);
  ++seen[forged ? "forged receipt" : settled ? "repeated receipt" : fault ? "faulty receipt" : "receipt"];
}

void ModelRound::apply() {
  const std::string& code = codes_[static_cast<std::size_t>(pick(2))];
  const bool rest = model_.at_rest() || code == model_.code;
  const auto taken = take(ApplyManifest{code});
  if (was_lost_) return;
  check(taken.has_value() == rest, "a manifest is applied or refused wrongly: " + why_);
  if (taken) model_.code = code;
  ++seen[taken ? "applied" : "apply refused"];
}

// Cancels an instance, or removes a failed instance.
void ModelRound::end() {
  if (model_.cells.empty()) return;
  const auto found = std::next(model_.cells.begin(), pick(static_cast<int>(model_.cells.size())));
  const InstanceId id = found->first;
  const ModelCell& cell = found->second;
  const bool removes = cell.failed ? pick(10) > 0 : pick(10) == 0;
  const bool spent = cell.state.is_null() && cell.mail.empty() && cell.pending.empty();
  const auto taken = removes ? take(RemoveInstance{id, "actor:7"}) : take(CancelInstance{id, "actor:7", ""});
  if (was_lost_) return;
  check(taken.has_value() == (removes ? cell.failed : !cell.failed && !spent), "an instance is ended wrongly: " + why_);
  if (!taken) return;
  removes ? model_.remove(id) : model_.cancel(id);
  ++seen[removes ? "removed" : "cancelled"];
}

void ModelRound::snapshot() {
  const auto taken = take(TakeSnapshot{});
  if (!taken) return;
  check(!taken->blobs.empty() && model_.ring.empty(), "a snapshot without rest");
  snapshot_ = std::get<SnapshotTaken>(taken->facts.at(0).content).hash;
  blobs_.clear();
  for (const WorkflowBlob& each : taken->blobs) blobs_[each.hash] = each.bytes;
  ++seen["snapshot"];
}

// Usually runs until no instance has mail or pending intents; otherwise tests that need rest would rarely find it.
void ModelRound::rest() {
  if (pick(4) == 0) return;
  for (int i = 0; i < 100 && wrong_.empty() && !model_.at_rest(); ++i) {
    if (model_.ring.empty())
      launch(), deliver_receipt(model_.waiting().front());
    else
      ask(), answer();
  }
}

// The world folded from its journal, and from the last snapshot, must have the same bytes.
void ModelRound::restart() {
  DeploymentState again;
  again.id = stage_.deployment.id;
  for (const auto& fact : stage_.journal)
    check(!fold(again, decode_workflow_fact(encode(fact).value()).value()), "a fact does not fit on replay");
  check(again == stage_.deployment, "replay gives another world");
  if (!snapshot_.empty()) {
    const auto read = [this](const std::string& hash) { return Result<std::string>(blobs_.at(hash)); };
    DeploymentState later = read_snapshot(snapshot_, read).value().deployment;
    for (const auto& fact : stage_.journal)
      if (fact.height > later.height) check(!fold(later, fact), "a fact does not fit behind the snapshot");
    check(later == stage_.deployment, "the snapshot gives another world");
  }
  stage_.deployment = std::move(again);
  asked_.clear();
  ++seen["restart"];
}

void ModelRound::act() {
  const int what = pick(100);
  if (what < 20) return send();
  if (what < 22) return end();
  if (what < 48) return ask();
  if (what < 72) return answer();
  if (what < 79) return launch();
  if (what < 92) return receipt();
  if (what < 95) return rest(), apply();
  if (what < 98) return rest(), launch(), snapshot();
  restart();
}

std::string ModelRound::run(int actions) {
  for (int i = 0; i < actions && wrong_.empty(); ++i) {
    act();
    if (wrong_.empty()) wrong_ = model_.compare(stage_.deployment);
    if (!wrong_.empty()) wrong_ = "action " + std::to_string(i) + ": " + wrong_;
  }
  if (!wrong_.empty()) return wrong_;
  restart();
  DeploymentState from;
  from.id = stage_.deployment.id;
  const auto verdict = verify_replay(from, stage_.catalog, stage_.journal, stage_.engine);
  check(!verdict.mismatch && !verdict.problem && from == stage_.deployment, "verify-replay finds a difference");
  return wrong_;
}

}  // namespace mycojobs::workflow_tests
