#include "domain/workflow_state.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/sha256.h"
#include "domain/cbor.h"
#include "domain/utf8.h"
#include "domain/workflow_manifest.h"
#include "domain/workflow_system.h"
#include "domain/workflow_visit.h"

namespace mycojobs {

namespace workflows {

template <class IO>
void visit(IO& io, Of<IO, Mail>& mail) {
  io.part("id", mail.id), io.text("schema", mail.schema), io.bytes("value", mail.value);
  io.part("sample", mail.sample), io.spare_text("intent", mail.intent), io.spare_number("depth", mail.depth);
}
template <class IO>
void visit(IO& io, Of<IO, PendingIntent>& pending) {
  io.part("intent", pending.intent), io.number("sequence", pending.sequence), io.number("asked_ms", pending.asked_ms);
  io.flag("published", pending.published), io.spare_text("carrier", pending.carrier);
}
template <class IO>
void visit(IO& io, Of<IO, CellState>& cell) {
  io.part("id", cell.id), io.text("manifest", cell.manifest), io.maybe("state", cell.state);
  io.parts("mail", cell.mail), io.texts("settled", cell.settled), io.flag("failed", cell.failed);
  io.spare_text("failure", cell.failure), io.spare_text("message", cell.message), io.number("born", cell.born);
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
struct Ticket {
  std::uint64_t number = 0;
  CellId cell;
};
template <class IO>
void visit(IO& io, Of<IO, Ticket>& ticket) {
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
Result<json> continuation(const CellState& cell, const std::string& intent, ReceiptStatus status) {
  const PendingIntent& pending = cell.pending.at(intent);
  json map{{"workflow", cell.id.workflow},    {"workflow_hash", cell.workflow_hash()}, {"intent", intent},
           {"effect", pending.intent.effect}, {"status", std::string(word(status))},   {"sequence", pending.sequence},
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
class CellFold {
 public:
  CellFold(const CellId& id, const WorkflowFact& fact) : id_(id), fact_(fact) {}

  Verdict fits(const CellState* cell) const {
    return std::visit([&](const auto& what) { return fits(cell, what); }, fact_.what);
  }
  // index: the instance's world; nullptr: the instance is folded alone.
  void apply(std::optional<CellState>& cell, WorldState* index) const {
    std::visit([&](const auto& what) { apply(cell, what, index); }, fact_.what);
  }

 private:
  Verdict wrong(std::string_view rule, const std::string& text) const { return problem(rule, fact_, text); }
  Verdict live(const CellState* cell) const {
    if (cell == nullptr) return wrong(kWfCell, "there is no instance " + shown(id_));
    if (cell->failed) return wrong(kWfFailed, shown(id_) + " has failed");
    return {};
  }
  Verdict next(const CellState* cell, const MailId& mail) const {
    if (auto bad = live(cell)) return bad;
    if (cell->mail.empty() || cell->mail.front().id != mail)
      return wrong(kWfMail, "not the next mail of " + shown(id_));
    return {};
  }
  Verdict pending(const CellState* cell, const std::string& intent) const {
    if (auto bad = live(cell)) return bad;
    if (!cell->pending.contains(intent)) return wrong(kWfIntent, "the intent " + shown(intent, 64) + " is not pending");
    return {};
  }
  template <class Value>
  Verdict readable(const Result<Value>& value) const {
    if (value) return {};
    return wrong(kWfValue, value.error().message);
  }

  Verdict fits(const CellState*, const Applied&) const { return {}; }
  Verdict fits(const CellState*, const SnapshotTaken&) const { return {}; }
  Verdict fits(const CellState* cell, const EventIn& event) const {
    for (const auto& target : event.targets) {
      if (target.cell != id_ || !target.skipped.empty()) continue;
      if (cell != nullptr && cell->failed) return wrong(kWfFailed, shown(id_) + " has failed");
      if (cell != nullptr && cell->manifest != target.manifest)
        return wrong(kWfManifest, shown(id_) + " runs the code of another manifest");
      if (auto bad = readable(mail_value(event, target))) return bad;
    }
    return {};
  }
  Verdict fits(const CellState* cell, const StepTaken& step) const {
    if (auto bad = next(cell, step.mail)) return bad;
    if (step.state && !step.state->spilled() &&
        (step.state->hash != sha256_hex(step.state->bytes) || step.state->size != step.state->bytes.size()))
      return wrong(kWfState, "the state has another hash or size");
    std::set<std::string> seen;
    for (const auto& intent : step.intents)
      if (cell->pending.contains(intent.hash) || cell->knows_settled(intent.hash) || !seen.insert(intent.hash).second)
        return wrong(kWfIntent, "the intent " + shown(intent.hash, 64) + " was there before");
    return {};
  }
  Verdict fits(const CellState* cell, const StepFailed& step) const { return next(cell, step.mail); }
  Verdict fits(const CellState* cell, const EffectPublished& fact) const {
    if (auto bad = pending(cell, fact.intent)) return bad;
    if (cell->pending.at(fact.intent).published) return wrong(kWfIntent, "it is published already");
    return {};
  }
  Verdict fits(const CellState* cell, const ReceiptAdmitted& fact) const {
    if (auto bad = pending(cell, fact.intent)) return bad;
    return readable(mail_value(*cell, fact));
  }
  Verdict fits(const CellState* cell, const ReceiptRefused& fact) const {
    if (cell == nullptr) return wrong(kWfCell, "there is no instance " + shown(id_));
    if (!cell->pending.contains(fact.intent) && !cell->knows_settled(fact.intent))
      return wrong(kWfIntent, "nobody asked for " + shown(fact.intent, 64));
    return {};
  }
  Verdict fits(const CellState* cell, const ReceiptFaulted& fact) const {
    if (auto bad = pending(cell, fact.intent)) return bad;
    return fact.arm ? readable(mail_value(*cell, fact)) : Verdict();
  }
  Verdict fits(const CellState* cell, const Failed& fact) const {
    if (auto bad = live(cell)) return bad;
    const bool same = std::equal(fact.dropped.begin(), fact.dropped.end(), cell->pending.begin(), cell->pending.end(),
                                 [](const auto& hash, const auto& row) { return hash == row.first; });
    return same ? Verdict() : wrong(kWfIntent, "it does not drop what is pending");
  }
  Verdict fits(const CellState* cell, const Completed&) const {
    if (auto bad = live(cell)) return bad;
    if (!cell->spent() || !id_.key.empty()) return wrong(kWfState, shown(id_) + " is not at its end");
    return {};
  }
  Verdict fits(const CellState* cell, const Deleted& fact) const {
    if (cell == nullptr) return wrong(kWfCell, "there is no instance " + shown(id_));
    const bool may = cell->failed ? !fact.by.empty() : fact.by.empty() && cell->spent() && !id_.key.empty();
    return may ? Verdict() : wrong(kWfState, shown(id_) + " is not at its end");
  }

  void touch(CellState& cell) const { cell.last = fact_.height; }
  // `hash` must not refer to the erased key itself.
  void settle(CellState& cell, const std::string& hash, WorldState* index) const {
    cell.pending.erase(hash);
    cell.settled.push_back(hash);
    if (index != nullptr) index->intents.erase(hash), index->settled[hash] = id_;
    if (cell.settled.size() <= kRememberedIntents) return;
    if (index != nullptr) index->settled.erase(cell.settled.front());
    cell.settled.pop_front();
  }

  void apply(std::optional<CellState>&, const Applied&, WorldState*) const {}
  void apply(std::optional<CellState>&, const SnapshotTaken&, WorldState*) const {}
  void apply(std::optional<CellState>& cell, const EventIn& event, WorldState*) const {
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
  void apply(std::optional<CellState>& cell, const StepTaken& step, WorldState* index) const {
    cell->mail.pop_front();
    cell->state = step.state;
    ++cell->steps;
    for (const auto& intent : step.intents) {
      cell->pending[intent.hash] = {intent, fact_.height, fact_.at_ms, false, ""};
      if (index != nullptr) index->intents[intent.hash] = id_;
    }
    touch(*cell);
  }
  void apply(std::optional<CellState>& cell, const StepFailed&, WorldState*) const {
    cell->mail.pop_front();
    touch(*cell);
  }
  void apply(std::optional<CellState>& cell, const EffectPublished& fact, WorldState*) const {
    auto& pending = cell->pending.at(fact.intent);
    pending.published = true, pending.carrier = fact.carrier;
    touch(*cell);
  }
  void apply(std::optional<CellState>& cell, const ReceiptAdmitted& fact, WorldState* index) const {
    cell->mail.push_back(
        {{fact_.height, 0}, std::string(kReceiptSchema), *mail_value(*cell, fact), fact.sample, fact.intent});
    settle(*cell, fact.intent, index);
    touch(*cell);
  }
  void apply(std::optional<CellState>& cell, const ReceiptRefused&, WorldState* index) const {
    ++cell->refused;
    if (index != nullptr) ++index->refused;
    touch(*cell);
  }
  void apply(std::optional<CellState>& cell, const ReceiptFaulted& fact, WorldState* index) const {
    if (fact.arm)
      cell->mail.push_back(
          {{fact_.height, 0}, std::string(kRejectedSchema), *mail_value(*cell, fact), fact.sample, fact.intent});
    settle(*cell, fact.intent, index);
    touch(*cell);
  }
  void apply(std::optional<CellState>& cell, const Failed& fact, WorldState* index) const {
    cell->failed = true, cell->failure = fact.kind, cell->message = fact.message;
    cell->mail.clear();
    for (const auto& intent : fact.dropped) settle(*cell, intent, index);
    touch(*cell);
  }
  void apply(std::optional<CellState>& cell, const Completed&, WorldState*) const { touch(*cell); }
  void apply(std::optional<CellState>& cell, const Deleted&, WorldState* index) const {
    if (index != nullptr)
      for (const auto& intent : cell->settled) index->settled.erase(intent);
    cell.reset();
  }

  const CellId& id_;
  const WorkflowFact& fact_;
};

void forget_ticket(WorldState& world, const CellId& id) {
  if (const auto found = world.tickets.find(id); found != world.tickets.end()) {
    world.ready.erase(found->second);
    world.tickets.erase(found);
  }
}
// Every instance with mail has a ticket. A step returns the ticket and takes a new one after all others.
void line_up(WorldState& world, const CellId& id, bool stepped) {
  const CellState* cell = world.cell(id);
  const bool has_mail = cell != nullptr && !cell->mail.empty();
  if (stepped || !has_mail) forget_ticket(world, id);
  if (!has_mail || world.tickets.contains(id)) return;
  world.tickets[id] = world.next_ticket;
  world.ready[world.next_ticket++] = id;
}

// Checks a snapshot: exactly the instances with mail have a ticket.
Result<void> lined_up(const WorldState& world) {
  const auto with_mail =
      std::count_if(world.cells.begin(), world.cells.end(), [](const auto& row) { return !row.second.mail.empty(); });
  if (world.ready.size() != static_cast<std::size_t>(with_mail) || world.tickets.size() != world.ready.size())
    return fail(Code::invalid, "others have a ticket than those that have mail");
  for (const auto& [number, id] : world.ready)
    if (const CellState* cell = world.cell(id); cell == nullptr || cell->mail.empty() || number >= world.next_ticket)
      return fail(Code::invalid, shown(id) + " has a ticket, and no mail");
  return {};
}

// Checks that involve the whole world.
Verdict fits_world(const WorldState& world, const WorkflowFact& fact) {
  if (fact.height != world.height + 1)
    return problem(kWfHeight, fact, "the next height is " + std::to_string(world.height + 1));
  if (const auto* applied = std::get_if<Applied>(&fact.what); applied != nullptr && applied->replaced != world.manifest)
    return problem(kWfManifest, fact, "it replaces another manifest than the one in force");
  const auto* step = std::get_if<StepTaken>(&fact.what);
  const CellState* cell = step == nullptr ? nullptr : world.cell(step->cell);
  if (cell == nullptr) return {};
  for (const auto& intent : step->intents) {
    const IntentOrigin origin{world.id, step->cell, cell->workflow_hash(), fact.height};
    if (intent.hash != intent_hash(origin, intent))
      return problem(kWfIntent, fact, "the hash of intent " + std::to_string(intent.index) + " does not bind it");
  }
  return {};
}

}  // namespace

std::string_view word(InstanceStatus status) { return kInstanceWords[static_cast<std::size_t>(status)]; }

InstanceStatus CellState::status() const {
  if (failed) return InstanceStatus::failed;
  if (!mail.empty()) return InstanceStatus::running;
  return state || !pending.empty() ? InstanceStatus::waiting : InstanceStatus::completed;
}
std::string CellState::workflow_hash() const { return mycojobs::workflow_hash(manifest, id.workflow); }
bool CellState::knows_settled(std::string_view intent) const {
  return std::find(settled.begin(), settled.end(), intent) != settled.end();
}
bool CellState::spent() const { return status() == InstanceStatus::completed; }

CellState CellState::with_mail(std::size_t most) const {
  CellState copy;
  copy.id = id, copy.manifest = manifest, copy.state = state, copy.pending = pending, copy.settled = settled;
  copy.failed = failed, copy.failure = failure, copy.message = message;
  copy.born = born, copy.last = last, copy.steps = steps, copy.refused = refused;
  copy.mail.assign(mail.begin(), mail.begin() + static_cast<std::ptrdiff_t>(std::min(most, mail.size())));
  return copy;
}

const CellState* WorldState::cell(const CellId& wanted) const {
  const auto found = cells.find(wanted);
  return found == cells.end() ? nullptr : &found->second;
}

Result<std::string> mail_value(const EventIn& event, const EventTarget& target) {
  if (target.arm.empty()) return event.value;
  MJ_TRY(value, decode_cbor(event.value));
  return wrapped(std::move(value), target.arm);
}
Result<std::string> mail_value(const CellState& cell, const ReceiptAdmitted& receipt) {
  MJ_TRY(map, continuation(cell, receipt.intent, receipt.status));
  MJ_TRY(payload, decode_cbor(receipt.payload));
  map["payload"] = std::move(payload);
  if (!receipt.module.empty()) map["executor"] = {{"module", receipt.module}, {"entrypoint", receipt.entrypoint}};
  return wrapped(std::move(map), receipt.arm);
}
Result<std::string> mail_value(const CellState& cell, const ReceiptFaulted& receipt) {
  MJ_TRY(map, continuation(cell, receipt.intent, receipt.status));
  map["reason"] = receipt.reason;
  return wrapped(std::move(map), receipt.arm.value_or(""));
}

Verdict fold(std::optional<CellState>& cell, const CellId& id, const WorkflowFact& fact) {
  const CellFold folding(id, fact);
  if (auto bad = folding.fits(cell ? &*cell : nullptr)) return bad;
  folding.apply(cell, nullptr);
  return {};
}

Verdict fold(WorldState& world, const WorkflowFact& fact) {
  if (auto bad = fits_world(world, fact)) return bad;
  const std::vector<CellId> cells = cells_of(fact);
  for (const auto& id : cells)
    if (auto bad = CellFold(id, fact).fits(world.cell(id))) return bad;
  const bool stepped = std::holds_alternative<StepTaken>(fact.what);
  for (const auto& id : cells) {
    std::optional<CellState> cell;
    auto node = world.cells.extract(id);
    if (!node.empty()) cell = std::move(node.mapped());
    CellFold(id, fact).apply(cell, &world);
    if (cell) world.cells.emplace(id, std::move(*cell));
    line_up(world, id, stepped);
  }
  if (const auto* applied = std::get_if<Applied>(&fact.what)) world.manifest = applied->manifest;
  world.height = fact.height;
  return {};
}

Result<std::string> bytes_of(const StateRef& state) {
  if (state.spilled())
    return fail(Code::unavailable, "the state " + state.hash + " lies in a blob that was not brought");
  return state.bytes;
}
Result<void> attach(StateRef& state, std::string blob) {
  if (sha256_hex(blob) != state.hash || blob.size() != state.size)
    return fail(Code::invalid, "the blob " + state.hash + " does not hold what its name says");
  state.bytes = std::move(blob);
  return {};
}

Result<std::string> encode(const WorldState& world) {
  workflows::Put put;
  put.number("version", 1), put.text("id", world.id), put.text("manifest", world.manifest);
  put.number("height", world.height), put.number("next_ticket", world.next_ticket),
      put.number("refused", world.refused);
  std::vector<workflows::Ticket> ready;
  for (const auto& [number, cell] : world.ready) ready.push_back({number, cell});
  put.parts("ready", ready);
  std::vector<CellState> cells;
  for (const auto& [id, cell] : world.cells) cells.push_back(cell);
  put.parts("cells", cells);
  return encode_cbor(put.map);
}

Result<WorldState> decode_world(std::string_view bytes) {
  MJ_TRY(map, decode_cbor(bytes, {std::size_t{1} << 30, std::size_t{100'000'000}}));
  workflows::Take take(map, "");
  WorldState world;
  std::uint64_t version = 0;
  std::vector<workflows::Ticket> ready;
  std::vector<CellState> cells;
  take.number("version", version), take.text("id", world.id), take.text("manifest", world.manifest);
  take.number("height", world.height), take.number("next_ticket", world.next_ticket);
  take.number("refused", world.refused), take.parts("ready", ready), take.parts("cells", cells);
  MJ_CHECK(take.end());
  if (version != 1) return fail(Code::unsupported, "a snapshot of version " + std::to_string(version));
  for (auto& ticket : ready) world.tickets[ticket.cell] = ticket.number, world.ready[ticket.number] = ticket.cell;
  for (auto& cell : cells) {
    bool own = true;
    for (const auto& [hash, pending] : cell.pending) own = world.intents.emplace(hash, cell.id).second && own;
    for (const auto& hash : cell.settled) own = world.settled.emplace(hash, cell.id).second && own;
    if (!own) return fail(Code::invalid, shown(cell.id) + " has an intent that stands elsewhere, too");
    const CellId id = cell.id;
    world.cells.emplace(id, std::move(cell));
  }
  MJ_CHECK(lined_up(world));
  MJ_TRY(again, encode(world));
  if (again != bytes) return fail(Code::invalid, "it is not the one encoding of its world");
  return world;
}

std::string cell_index_root(const WorldState& world, std::string_view workflow) {
  std::map<std::string, json> rows;
  for (const auto& [id, cell] : world.cells) {
    if (id.workflow != workflow || !cell.state) continue;
    const std::string key = sha256_hex(id.key);
    rows[key] = json::array({key, workflows::binary(id.key), cell.state->hash, cell.state->size, cell.last});
  }
  Sha256 hash;
  for (const auto& [key, row] : rows) hash.update(*encode_cbor(row));
  return hash.hex();
}

std::set<std::string> blobs_of(const WorldState& world) {
  std::set<std::string> blobs;
  for (const auto& [id, cell] : world.cells)
    if (cell.state && cell.state->spilled()) blobs.insert(cell.state->hash);
  return blobs;
}

}  // namespace mycojobs
