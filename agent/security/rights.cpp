#include "security/rights.h"

#include <algorithm>
#include <array>
#include <vector>

namespace mycojobs {
namespace {

enum class Grant { none, own, run, named, all };

struct Row {
  Action action;
  std::string_view word;
  Grant admins, submitters, executors, readers, maker;
};
using enum Grant;
constexpr std::array kRows{
    Row{Action::create, "create", all, all, none, none, none},
    Row{Action::read, "read", all, own, run, all, own},
    Row{Action::steer, "steer", all, own, none, none, none},
    Row{Action::answer, "answer", all, named, named, named, named},
    Row{Action::work, "run", all, none, all, none, none},
    Row{Action::administer, "administer", all, none, none, none, none},
};
constexpr const Row& row_of(Action action) { return kRows[static_cast<std::size_t>(action)]; }

bool is_open(EntryPoint way) {
  return way == EntryPoint::command || way == EntryPoint::message || way == EntryPoint::claim;
}

bool has(const std::vector<Id>& ids, Id actor) { return std::find(ids.begin(), ids.end(), actor) != ids.end(); }

bool is_maker(Id actor, const Resource& thing) { return thing.maker != 0 && thing.maker == actor; }

bool gives(Grant grant, Id actor, const Resource& thing) {
  switch (grant) {
    case none:
      return false;
    case own:
      return is_maker(actor, thing);
    case run:
      return thing.runs_here;
    case named:
      return thing.names_it;
    case all:
      return true;
  }
  return false;
}

// Returns the list that the refusal suggests: the lowest one that suffices, based only on facts that the actor may
// know.
std::string_view list_for(Action action, Id actor, const Resource& thing) {
  switch (action) {
    case Action::create:
      return "submitters";
    case Action::read:
      return "readers";
    case Action::steer:
      return is_maker(actor, thing) ? "submitters" : "admins";
    case Action::work:
      return "executors";
    case Action::answer:
    case Action::administer:
      break;
  }
  return "admins";
}

std::string lists_that_allow(const Refusal& refusal) {
  const Row& row = row_of(refusal.action);
  std::string out = "admins";
  const std::pair<std::string_view, Grant> lists[] = {
      {"submitters", row.submitters}, {"executors", row.executors}, {"readers", row.readers}};
  for (const auto& [name, grant] : lists) {
    if (grant == none || grant == named) continue;
    out += ", " + std::string(name);
    if (grant == own) out += " (of what they made)";
    if (grant == run) out += " (jobs that they run)";
  }
  if (row.submitters == named) out += ", whom the gate names";
  return out;
}

}  // namespace

std::string_view to_string(Action action) { return row_of(action).word; }

std::optional<Refusal> find_refusal(Id actor, Action action, const AclContext& place, const Resource& thing) {
  const Row& row = row_of(action);
  const Refusal refusal{
      actor, action, place.context, thing.name, list_for(action, actor, thing), place.record.has_value()};
  if (!place.record) {
    // The list of actors in a gate applies in every context.
    if (!is_open(place.way) || (action == Action::answer && thing.names_others && !thing.names_it)) return refusal;
    return std::nullopt;
  }
  const Context& record = *place.record;
  if (action == Action::work && record.executors.empty()) return std::nullopt;  // any agent of the context's operator
  if (action == Action::answer && !thing.names_others && !thing.names_it) {
    if (!find_refusal(actor, Action::steer, place, thing)) return std::nullopt;
    return refusal;
  }
  const bool allowed = (has(record.admins, actor) && gives(row.admins, actor, thing)) ||
                       (has(record.submitters, actor) && gives(row.submitters, actor, thing)) ||
                       (has(record.executors, actor) && gives(row.executors, actor, thing)) ||
                       (has(record.readers, actor) && gives(row.readers, actor, thing)) ||
                       gives(row.maker, actor, thing);
  return allowed ? std::nullopt : std::optional(refusal);
}

Error refusal_error(const Refusal& refusal) {
  const std::string number = std::to_string(refusal.context), who = std::to_string(refusal.actor);
  std::string text = "actor " + who + " may not " + std::string(to_string(refusal.action)) +
                     (refusal.thing.empty() ? "" : ' ' + refusal.thing) + " in context " + number + ", ";
  text += refusal.recorded ? "which allows it to " + lists_that_allow(refusal)
                           : std::string("which has no record and is closed therefore");
  const std::string flag(refusal.list.substr(0, refusal.list.size() - 1));
  return {Code::denied, text + "; an operator may say: mycojobs context grant " + number + " --" + flag + ' ' + who};
}

Result<void> check_permission(Id actor, Action action, const AclContext& place, const Resource& thing) {
  const auto no = find_refusal(actor, action, place, thing);
  if (!no) return {};
  return tl::unexpected<Error>(refusal_error(*no));
}

}  // namespace mycojobs
