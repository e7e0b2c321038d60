#include "workflows/workflow_state.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/sha256.h"
#include "text/cbor.h"
#include "text/utf8.h"
#include "workflows/manifest/system_schemas.h"
#include "workflows/manifest/workflow_manifest.h"
#include "workflows/workflow_fact_fields.h"

namespace mycojobs {

namespace workflows {

template <class IO>
void visit(IO& io, VisitedType<IO, Mail>& mail) {
  io.part("id", mail.id), io.text("schema", mail.schema), io.bytes("value", mail.value);
  io.part("sample", mail.sample), io.optional_text_field("intent", mail.intent), io.spare_number("depth", mail.depth);
}
template <class IO>
void visit(IO& io, VisitedType<IO, PendingIntent>& pending) {
  io.part("intent", pending.intent), io.number("sequence", pending.sequence), io.number("asked_ms", pending.asked_ms);
  io.flag("published", pending.published), io.optional_text_field("carrier", pending.effect_ref);
}
template <class IO>
void visit(IO& io, VisitedType<IO, InstanceState>& cell) {
  io.part("id", cell.id), io.text("manifest", cell.manifest), io.optional_field("state", cell.state);
  io.parts("mail", cell.mail), io.texts("settled", cell.settled), io.flag("failed", cell.failed);
  io.optional_text_field("failure", cell.failure), io.optional_text_field("message", cell.message),
      io.number("born", cell.born);
  io.number("last", cell.last), io.number("steps", cell.steps), io.number("refused", cell.refused);
  std::vector<PendingIntent> pending;
  if constexpr (IO::kWrites)
    for (const auto& [hash, each] : cell.pending) pending.push_back(each);
  io.parts("pending", pending);
  if constexpr (!IO::kWrites)
    for (auto& each : pending) {
      std::string hash = each.intent.hash;
      cell.pending.emplace(std::move(hash), std::move(each));
    }
}
struct TurnTicket {
  std::uint64_t number = 0;
  InstanceId cell;
};
template <class IO>
void visit(IO& io, VisitedType<IO, TurnTicket>& ticket) {
  io.number("ticket", ticket.number), io.part("cell", ticket.cell);
}

}  // namespace workflows

namespace {

using nlohmann::json;
using Verdict = std::optional<WorkflowProblem>;

constexpr std::array<std::string_view, 4> kInstanceWords{"running", "waiting", "completed", "failed"};

Verdict problem(std::string_view rule, const WorkflowFact& fact, const std::string& text) {
  return WorkflowProblem{rule,
                         "height " + std::to_string(fact.height) + ", " + std::string(kind_of(fact)) + ": " + text};
}

Result<std::string> wrapped(json value, const std::string& arm) { return encode_cbor(as_arm(arm, std::move(value))); }

// Returns the common fields of receipts and faults of an intent.
Result<json> continuation(const InstanceState& cell, const std::string& intent, ReceiptStatus status) {
  const PendingIntent& pending = cell.pending.at(intent);
  json map{
      {"workflow", cell.id.workflow},    {"workflow_hash", cell.workflow_hash()},    {"intent", intent},
      {"effect", pending.intent.effect}, {"status", std::string(to_string(status))}, {"sequence", pending.sequence},
      {"index", pending.intent.index}};
  if (!cell.id.key.empty()) {
    MJ_TRY(key, decode_cbor(cell.id.key));
    map["key"] = std::move(key);
  }
  if (!pending.intent.issuer_ref.empty()) map["issuer_ref"] = pending.intent.issuer_ref;
  return map;
}

// Checks whether a fact fits an instance, and applies it. fits() changes nothing; apply() requires that fits()
// succeeded.
class InstanceFold {
 public:
  InstanceFold(const InstanceId& id, const WorkflowFact& fact) : id_(id), fact_(fact) {}

  Verdict fits(const InstanceState* cell) const {
    return std::visit([&](const auto& what) { return fits(cell, what); }, fact_.what);
  }
  // index: the deployment of the instance; nullptr: only the instance is folded.
  void apply(std::optional<InstanceState>& cell, DeploymentState* index) const {
    std::visit([&](const auto& what) { apply(cell, what, index); }, fact_.what);
  }

 private:
  Verdict wrong(std::string_view rule, const std::string& text) const { return problem(rule, fact_, text); }
  Verdict live(const InstanceState* cell) const {
    if (cell == nullptr) return wrong(kWfCell, "unknown instance " + shown(id_));
    if (cell->failed) return wrong(kWfFailed, shown(id_) + " has failed");
    return {};
  }
  Verdict next(const InstanceState* cell, const MailId& mail) const {
    if (auto bad = live(cell)) return bad;
    if (cell->mail.empty() || cell->mail.front().id != mail)
      return wrong(kWfMail, "not the next mail of " + shown(id_));
    return {};
  }
  Verdict pending(const InstanceState* cell, const std::string& intent) const {
    if (auto bad = live(cell)) return bad;
    if (!cell->pending.contains(intent))
      return wrong(kWfIntent, "the intent " + excerpt(intent, 64) + " is not pending");
    return {};
  }
  template <class Value>
  Verdict readable(const Result<Value>& value) const {
    if (value) return {};
    return wrong(kWfValue, value.error().message);
  }

  Verdict fits(const InstanceState*, const ManifestApplied&) const { return {}; }
  Verdict fits(const InstanceState*, const SnapshotTaken&) const { return {}; }
  Verdict fits(const InstanceState* cell, const EventAccepted& event) const {
    for (const auto& target : event.targets) {
      if (target.cell != id_ || !target.skipped.empty()) continue;
      if (cell != nullptr && cell->failed) return wrong(kWfFailed, shown(id_) + " has failed");
      if (cell != nullptr && cell->manifest != target.manifest)
        return wrong(kWfManifest, shown(id_) + " runs the code of another manifest");
      if (auto bad = readable(mail_value(event, target))) return bad;
    }
    return {};
  }
  Verdict fits(const InstanceState* cell, const StepTaken& step) const {
    if (auto bad = next(cell, step.mail)) return bad;
    if (step.state && !step.state->spilled() &&
        (step.state->hash != sha256_hex(step.state->bytes) || step.state->size != step.state->bytes.size()))
      return wrong(kWfState, "the state has another hash or size");
    std::set<std::string> seen;
    for (const auto& intent : step.intents)
      if (cell->pending.contains(intent.hash) || cell->is_settled(intent.hash) || !seen.insert(intent.hash).second)
        return wrong(kWfIntent, "the intent " + excerpt(intent.hash, 64) + " was there before");
    return {};
  }
  Verdict fits(const InstanceState* cell, const StepFailed& step) const { return next(cell, step.mail); }
  Verdict fits(const InstanceState* cell, const EffectPublished& fact) const {
    if (auto bad = pending(cell, fact.intent)) return bad;
    if (cell->pending.at(fact.intent).published) return wrong(kWfIntent, "it is published already");
    return {};
  }
  Verdict fits(const InstanceState* cell, const ReceiptAdmitted& fact) const {
    if (auto bad = pending(cell, fact.intent)) return bad;
    return readable(mail_value(*cell, fact));
  }
  Verdict fits(const InstanceState* cell, const ReceiptRefused& fact) const {
    if (cell == nullptr) return wrong(kWfCell, "unknown instance " + shown(id_));
    if (!cell->pending.contains(fact.intent) && !cell->is_settled(fact.intent))
      return wrong(kWfIntent, "not requested: " + excerpt(fact.intent, 64));
    return {};
  }
  Verdict fits(const InstanceState* cell, const ReceiptMismatched& fact) const {
    if (auto bad = pending(cell, fact.intent)) return bad;
    return fact.arm ? readable(mail_value(*cell, fact)) : Verdict();
  }
  Verdict fits(const InstanceState* cell, const InstanceFailed& fact) const {
    if (auto bad = live(cell)) return bad;
    const bool same = std::equal(fact.dropped.begin(), fact.dropped.end(), cell->pending.begin(), cell->pending.end(),
                                 [](const auto& hash, const auto& row) { return hash == row.first; });
    return same ? Verdict() : wrong(kWfIntent, "it does not drop what is pending");
  }
  Verdict fits(const InstanceState* cell, const InstanceCompleted&) const {
    if (auto bad = live(cell)) return bad;
    if (!cell->ends_now() || !id_.key.empty()) return wrong(kWfState, shown(id_) + " is not at its end");
    return {};
  }
  Verdict fits(const InstanceState* cell, const InstanceDeleted& fact) const {
    if (cell == nullptr) return wrong(kWfCell, "unknown instance " + shown(id_));
    const bool may = cell->failed ? !fact.by.empty() : fact.by.empty() && cell->ends_now() && !id_.key.empty();
    return may ? Verdict() : wrong(kWfState, shown(id_) + " is not at its end");
  }

  void touch(InstanceState& cell) const { cell.last = fact_.height; }
  // `hash` must not refer to the erased key itself.
  void settle(InstanceState& cell, const std::string& hash, DeploymentState* index) const {
    cell.pending.erase(hash);
    cell.settled.push_back(hash);
    if (index != nullptr) index->intents.erase(hash), index->settled[hash] = id_;
    if (cell.settled.size() <= kRememberedIntents) return;
    if (index != nullptr) index->settled.erase(cell.settled.front());
    cell.settled.pop_front();
  }

  void apply(std::optional<InstanceState>&, const ManifestApplied&, DeploymentState*) const {}
  void apply(std::optional<InstanceState>&, const SnapshotTaken&, DeploymentState*) const {}
  void apply(std::optional<InstanceState>& cell, const EventAccepted& event, DeploymentState*) const {
    for (std::size_t slot = 0; slot < event.targets.size(); ++slot) {
      const auto& target = event.targets[slot];
      if (target.cell != id_ || !target.skipped.empty()) continue;
      if (!cell) {
        cell.emplace();
        cell->id = id_, cell->manifest = target.manifest, cell->born = fact_.height;
      }
      cell->mail.push_back(
          {{fact_.height, slot}, event.schema, *mail_value(event, target), event.sample, "", event.depth});
      touch(*cell);
    }
  }
  void apply(std::optional<InstanceState>& cell, const StepTaken& step, DeploymentState* index) const {
    cell->mail.pop_front();
    cell->state = step.state;
    ++cell->steps;
    for (const auto& intent : step.intents) {
      cell->pending[intent.hash] = {intent, fact_.height, fact_.at_ms, false, ""};
      if (index != nullptr) index->intents[intent.hash] = id_;
    }
    touch(*cell);
  }
  void apply(std::optional<InstanceState>& cell, const StepFailed&, DeploymentState*) const {
    cell->mail.pop_front();
    touch(*cell);
  }
  void apply(std::optional<InstanceState>& cell, const EffectPublished& fact, DeploymentState*) const {
    auto& pending = cell->pending.at(fact.intent);
    pending.published = true, pending.effect_ref = fact.effect_ref;
    touch(*cell);
  }
  void apply(std::optional<InstanceState>& cell, const ReceiptAdmitted& fact, DeploymentState* index) const {
    cell->mail.push_back(
        {{fact_.height, 0}, std::string(kReceiptSchema), *mail_value(*cell, fact), fact.sample, fact.intent});
    settle(*cell, fact.intent, index);
    touch(*cell);
  }
  void apply(std::optional<InstanceState>& cell, const ReceiptRefused&, DeploymentState* index) const {
    ++cell->refused;
    if (index != nullptr) ++index->refused;
    touch(*cell);
  }
  void apply(std::optional<InstanceState>& cell, const ReceiptMismatched& fact, DeploymentState* index) const {
    if (fact.arm)
      cell->mail.push_back(
          {{fact_.height, 0}, std::string(kRejectedSchema), *mail_value(*cell, fact), fact.sample, fact.intent});
    settle(*cell, fact.intent, index);
    touch(*cell);
  }
  void apply(std::optional<InstanceState>& cell, const InstanceFailed& fact, DeploymentState* index) const {
    cell->failed = true, cell->failure = fact.kind, cell->message = fact.message;
    cell->mail.clear();
    for (const auto& intent : fact.dropped) settle(*cell, intent, index);
    touch(*cell);
  }
  void apply(std::optional<InstanceState>& cell, const InstanceCompleted&, DeploymentState*) const { touch(*cell); }
  void apply(std::optional<InstanceState>& cell, const InstanceDeleted&, DeploymentState* index) const {
    if (index != nullptr)
      for (const auto& intent : cell->settled) index->settled.erase(intent);
    cell.reset();
  }

  const InstanceId& id_;
  const WorkflowFact& fact_;
};

void forget_ticket(DeploymentState& deployment, const InstanceId& id) {
  if (const auto found = deployment.tickets.find(id); found != deployment.tickets.end()) {
    deployment.ready.erase(found->second);
    deployment.tickets.erase(found);
  }
}
// Every instance with mail has a ticket. A step returns the ticket and takes a new one after all others.
void line_up(DeploymentState& deployment, const InstanceId& id, bool stepped) {
  const InstanceState* cell = deployment.cell(id);
  const bool has_mail = cell != nullptr && !cell->mail.empty();
  if (stepped || !has_mail) forget_ticket(deployment, id);
  if (!has_mail || deployment.tickets.contains(id)) return;
  deployment.tickets[id] = deployment.next_ticket;
  deployment.ready[deployment.next_ticket++] = id;
}

// Checks a snapshot: exactly the instances with mail have a ticket.
Result<void> lined_up(const DeploymentState& deployment) {
  const auto with_mail = std::count_if(deployment.cells.begin(), deployment.cells.end(),
                                       [](const auto& row) { return !row.second.mail.empty(); });
  if (deployment.ready.size() != static_cast<std::size_t>(with_mail) ||
      deployment.tickets.size() != deployment.ready.size())
    return fail(Code::invalid, "the instances with a ticket are not those with mail");
  for (const auto& [number, id] : deployment.ready)
    if (const InstanceState* cell = deployment.cell(id);
        cell == nullptr || cell->mail.empty() || number >= deployment.next_ticket)
      return fail(Code::invalid, shown(id) + " has a ticket, and no mail");
  return {};
}

// Checks that involve the whole world.
Verdict fits_deployment(const DeploymentState& deployment, const WorkflowFact& fact) {
  if (fact.height != deployment.height + 1)
    return problem(kWfHeight, fact, "the next height is " + std::to_string(deployment.height + 1));
  if (const auto* applied = std::get_if<ManifestApplied>(&fact.what);
      applied != nullptr && applied->replaced != deployment.manifest)
    return problem(kWfManifest, fact, "it replaces another manifest than the one in force");
  const auto* step = std::get_if<StepTaken>(&fact.what);
  const InstanceState* cell = step == nullptr ? nullptr : deployment.cell(step->cell);
  if (cell == nullptr) return {};
  for (const auto& intent : step->intents) {
    const IntentOrigin origin{deployment.id, step->cell, cell->workflow_hash(), fact.height};
    if (intent.hash != intent_hash(origin, intent))
      return problem(kWfIntent, fact, "the hash of intent " + std::to_string(intent.index) + " does not bind it");
  }
  return {};
}

}  // namespace

std::string_view to_string(InstanceStatus status) { return kInstanceWords[static_cast<std::size_t>(status)]; }

InstanceStatus InstanceState::status() const {
  if (failed) return InstanceStatus::failed;
  if (!mail.empty()) return InstanceStatus::running;
  return state || !pending.empty() ? InstanceStatus::waiting : InstanceStatus::completed;
}
std::string InstanceState::workflow_hash() const { return mycojobs::workflow_hash(manifest, id.workflow); }
bool InstanceState::is_settled(std::string_view intent) const {
  return std::find(settled.begin(), settled.end(), intent) != settled.end();
}
bool InstanceState::ends_now() const { return status() == InstanceStatus::completed; }

InstanceState InstanceState::with_limited_mail(std::size_t max) const {
  InstanceState copy;
  copy.id = id, copy.manifest = manifest, copy.state = state, copy.pending = pending, copy.settled = settled;
  copy.failed = failed, copy.failure = failure, copy.message = message;
  copy.born = born, copy.last = last, copy.steps = steps, copy.refused = refused;
  copy.mail.assign(mail.begin(), mail.begin() + static_cast<std::ptrdiff_t>(std::min(max, mail.size())));
  return copy;
}

const InstanceState* DeploymentState::cell(const InstanceId& wanted) const {
  const auto found = cells.find(wanted);
  return found == cells.end() ? nullptr : &found->second;
}

Result<std::string> mail_value(const EventAccepted& event, const EventTarget& target) {
  if (target.arm.empty()) return event.value;
  MJ_TRY(value, decode_cbor(event.value));
  return wrapped(std::move(value), target.arm);
}
Result<std::string> mail_value(const InstanceState& cell, const ReceiptAdmitted& receipt) {
  MJ_TRY(map, continuation(cell, receipt.intent, receipt.status));
  MJ_TRY(payload, decode_cbor(receipt.payload));
  map["payload"] = std::move(payload);
  if (!receipt.module.empty()) map["executor"] = {{"module", receipt.module}, {"entrypoint", receipt.entrypoint}};
  return wrapped(std::move(map), receipt.arm);
}
Result<std::string> mail_value(const InstanceState& cell, const ReceiptMismatched& receipt) {
  MJ_TRY(map, continuation(cell, receipt.intent, receipt.status));
  map["reason"] = receipt.reason;
  return wrapped(std::move(map), receipt.arm.value_or(""));
}

Verdict fold(std::optional<InstanceState>& cell, const InstanceId& id, const WorkflowFact& fact) {
  const InstanceFold folding(id, fact);
  if (auto bad = folding.fits(cell ? &*cell : nullptr)) return bad;
  folding.apply(cell, nullptr);
  return {};
}

Verdict fold(DeploymentState& deployment, const WorkflowFact& fact) {
  if (auto bad = fits_deployment(deployment, fact)) return bad;
  const std::vector<InstanceId> cells = instances_of(fact);
  for (const auto& id : cells)
    if (auto bad = InstanceFold(id, fact).fits(deployment.cell(id))) return bad;
  const bool stepped = std::holds_alternative<StepTaken>(fact.what);
  for (const auto& id : cells) {
    std::optional<InstanceState> cell;
    auto node = deployment.cells.extract(id);
    if (!node.empty()) cell = std::move(node.mapped());
    InstanceFold(id, fact).apply(cell, &deployment);
    if (cell) deployment.cells.emplace(id, std::move(*cell));
    line_up(deployment, id, stepped);
  }
  if (const auto* applied = std::get_if<ManifestApplied>(&fact.what)) deployment.manifest = applied->manifest;
  deployment.height = fact.height;
  return {};
}

Result<std::string> bytes_of(const StateRef& state) {
  if (state.spilled()) return fail(Code::unavailable, "the state " + state.hash + " is in a blob that was not loaded");
  return state.bytes;
}
Result<void> attach(StateRef& state, std::string blob) {
  if (sha256_hex(blob) != state.hash || blob.size() != state.size)
    return fail(Code::invalid, "the blob " + state.hash + " does not match the hash in its name");
  state.bytes = std::move(blob);
  return {};
}

Result<std::string> encode(const DeploymentState& deployment) {
  workflows::FactEncoder put;
  put.number("version", 1), put.text("id", deployment.id), put.text("manifest", deployment.manifest);
  put.number("height", deployment.height), put.number("next_ticket", deployment.next_ticket),
      put.number("refused", deployment.refused);
  std::vector<workflows::TurnTicket> ready;
  for (const auto& [number, cell] : deployment.ready) ready.push_back({number, cell});
  put.parts("ready", ready);
  std::vector<InstanceState> cells;
  for (const auto& [id, cell] : deployment.cells) cells.push_back(cell);
  put.parts("cells", cells);
  return encode_cbor(put.map);
}

Result<DeploymentState> decode_deployment(std::string_view bytes) {
  MJ_TRY(map, decode_cbor(bytes, {std::size_t{1} << 30, std::size_t{100'000'000}}));
  workflows::FactDecoder take(map, "");
  DeploymentState deployment;
  std::uint64_t version = 0;
  std::vector<workflows::TurnTicket> ready;
  std::vector<InstanceState> cells;
  take.number("version", version), take.text("id", deployment.id), take.text("manifest", deployment.manifest);
  take.number("height", deployment.height), take.number("next_ticket", deployment.next_ticket);
  take.number("refused", deployment.refused), take.parts("ready", ready), take.parts("cells", cells);
  MJ_CHECK(take.end());
  if (version != 1) return fail(Code::unsupported, "a snapshot of version " + std::to_string(version));
  for (auto& ticket : ready)
    deployment.tickets[ticket.cell] = ticket.number, deployment.ready[ticket.number] = ticket.cell;
  for (auto& cell : cells) {
    bool own = true;
    for (const auto& [hash, pending] : cell.pending) own = deployment.intents.emplace(hash, cell.id).second && own;
    for (const auto& hash : cell.settled) own = deployment.settled.emplace(hash, cell.id).second && own;
    if (!own) return fail(Code::invalid, shown(cell.id) + " has an intent of another instance");
    const InstanceId id = cell.id;
    deployment.cells.emplace(id, std::move(cell));
  }
  MJ_CHECK(lined_up(deployment));
  MJ_TRY(again, encode(deployment));
  if (again != bytes) return fail(Code::invalid, "it is not the canonical encoding of its world");
  return deployment;
}

std::string cell_index_root(const DeploymentState& deployment, std::string_view workflow) {
  std::map<std::string, json> rows;
  for (const auto& [id, cell] : deployment.cells) {
    if (id.workflow != workflow || !cell.state) continue;
    const std::string key = sha256_hex(id.key);
    rows[key] = json::array({key, workflows::binary(id.key), cell.state->hash, cell.state->size, cell.last});
  }
  Sha256 hash;
  for (const auto& [key, row] : rows) hash.update(*encode_cbor(row));
  return hash.hex();
}

std::set<std::string> blobs_of(const DeploymentState& deployment) {
  std::set<std::string> blobs;
  for (const auto& [id, cell] : deployment.cells)
    if (cell.state && cell.state->spilled()) blobs.insert(cell.state->hash);
  return blobs;
}

}  // namespace mycojobs
