#include "security/rights.h"

#include <algorithm>
#include <array>
#include <vector>

namespace mycojobs {
namespace {

enum class Grant { nothing, created, running, named_by_gate, everything };

struct GrantRow {
  Action action;
  std::string_view name;
  Grant admins, submitters, executors, readers, creator;
  std::string_view refusal_list, creator_refusal_list;  // the lists that a refusal suggests; the latter to the creator
};
using enum Grant;
constexpr std::array kGrants{
#include "security/grant_table.inc"
};
constexpr const GrantRow& find_row(Action action) { return kGrants[static_cast<std::size_t>(action)]; }
static_assert(std::ranges::all_of(kGrants,
                                  [](const GrantRow& row) { return find_row(row.action).action == row.action; }));

bool is_open(EntryPoint entry_point) {
  return entry_point == EntryPoint::command || entry_point == EntryPoint::message || entry_point == EntryPoint::claim;
}

bool contains(const std::vector<Id>& ids, Id actor) { return std::find(ids.begin(), ids.end(), actor) != ids.end(); }

bool is_creator(Id actor, const Resource& resource) { return resource.creator != 0 && resource.creator == actor; }

bool is_granted(Grant grant, Id actor, const Resource& resource) {
  switch (grant) {
    case nothing:
      return false;
    case created:
      return is_creator(actor, resource);
    case running:
      return resource.runs_here;
    case named_by_gate:
      return resource.names_caller;
    case everything:
      return true;
  }
  return false;
}

// Returns the list that a refusal suggests: the list with the fewest rights that suffices. The choice reveals only
// facts that the actor is allowed to know.
std::string_view find_sufficient_list(Action action, Id actor, const Resource& resource) {
  const GrantRow& row = find_row(action);
  return is_creator(actor, resource) ? row.creator_refusal_list : row.refusal_list;
}

std::string format_allowed_lists(const Refusal& refusal) {
  const GrantRow& row = find_row(refusal.action);
  std::string out = "admins";
  const std::pair<std::string_view, Grant> lists[] = {
      {"submitters", row.submitters}, {"executors", row.executors}, {"readers", row.readers}};
  for (const auto& [name, grant] : lists) {
    if (grant == nothing || grant == named_by_gate) continue;
    out += ", " + std::string(name);
    if (grant == created) out += " (of what they made)";
    if (grant == running) out += " (jobs that they run)";
  }
  if (row.submitters == named_by_gate) out += ", whom the gate names";
  return out;
}

}  // namespace

std::string_view to_string(Action action) { return find_row(action).name; }

std::optional<Refusal> find_refusal(Id actor, Action action, const AclContext& acl, const Resource& resource) {
  const GrantRow& row = find_row(action);
  const Refusal refusal{
      actor, action, acl.context, resource.name, find_sufficient_list(action, actor, resource), acl.record.has_value()};
  if (!acl.record) {
    // The list of actors in a gate applies in every context.
    if (!is_open(acl.entry_point) || (action == Action::answer && resource.names_actors && !resource.names_caller))
      return refusal;
    return std::nullopt;
  }
  const Context& record = *acl.record;
  if (action == Action::work && record.executors.empty()) return std::nullopt;  // any agent of its operator
  if (action == Action::answer && !resource.names_actors && !resource.names_caller) {
    if (!find_refusal(actor, Action::steer, acl, resource)) return std::nullopt;
    return refusal;
  }
  const bool allowed = (contains(record.admins, actor) && is_granted(row.admins, actor, resource)) ||
                       (contains(record.submitters, actor) && is_granted(row.submitters, actor, resource)) ||
                       (contains(record.executors, actor) && is_granted(row.executors, actor, resource)) ||
                       (contains(record.readers, actor) && is_granted(row.readers, actor, resource)) ||
                       is_granted(row.creator, actor, resource);
  return allowed ? std::nullopt : std::optional(refusal);
}

Error make_refusal_error(const Refusal& refusal) {
  const std::string number = std::to_string(refusal.context), actor = std::to_string(refusal.actor);
  std::string text = "actor " + actor + " may not " + std::string(to_string(refusal.action)) +
                     (refusal.resource.empty() ? "" : ' ' + refusal.resource) + " in context " + number + ", ";
  text += refusal.has_context_record ? "which allows it to " + format_allowed_lists(refusal)
                                     : std::string("which has no record and is closed therefore");
  const std::string flag(refusal.list.substr(0, refusal.list.size() - 1));
  return {Code::denied, text + "; an operator may say: mycojobs context grant " + number + " --" + flag + ' ' + actor};
}

Result<void> check_permission(Id actor, Action action, const AclContext& acl, const Resource& resource) {
  const auto refusal = find_refusal(actor, action, acl, resource);
  if (!refusal) return {};
  return tl::unexpected<Error>(make_refusal_error(*refusal));
}

}  // namespace mycojobs
