#include "domain/rights.h"

#include <algorithm>
#include <vector>

namespace mycojobs {
namespace {

bool has(const std::vector<Id>& ids, Id actor) { return std::find(ids.begin(), ids.end(), actor) != ids.end(); }

struct DeedRow {
  Deed deed;
  const char *does, *role, *flag;
  bool listed, owner;  // who may beside admins
};
constexpr DeedRow kDeeds[] = {
    {Deed::create, "create", "admin, reader or executor", "--executor", true, false},
    {Deed::read, "read", "admin, reader or executor", "--reader", true, true},
    {Deed::control, "control", "admin, and did not create it", "--admin", false, true},
    {Deed::administer, "administer", "admin", "--admin", false, false},
};

}  // namespace

Result<bool> check_flow_right(const std::optional<Context>& record, Id context, Id creator, Id actor) {
  if (!record) return false;
  const bool admin = has(record->admins, actor);
  if (admin || actor == creator || has(record->executors, actor)) return admin;
  const std::string number = std::to_string(context), who = std::to_string(actor);
  return fail(Code::denied, "actor " + who +
                                " has not created this flow, and is neither admin nor executor of context " + number +
                                "; an operator may say: mycojobs context grant " + number + " --executor " + who);
}

Result<void> check_right(const std::optional<Context>& record, Id context, Id caller, Right right) {
  if (record && (has(record->admins, caller) || (right == Right::read && has(record->readers, caller)))) return {};
  const std::string number = std::to_string(context), who = std::to_string(caller);
  const std::string role = right == Right::write ? "admin" : "reader or admin";
  std::string why = "caller " + who + " is no " + role + " of context " + number;
  if (!record) why += ", which has no record";
  return fail(Code::denied, why + "; an operator may say: mycojobs context grant " + number +
                                (right == Right::write ? " --admin " : " --reader ") + who);
}

bool is_admin(const std::optional<Context>& record, Id actor) { return !record || has(record->admins, actor); }

Result<void> check_deed(const std::optional<Context>& record, Id context, Id actor, Deed deed, Id owner) {
  const DeedRow& row = kDeeds[static_cast<std::size_t>(deed)];
  if (is_admin(record, actor) || (row.owner && owner != 0 && owner == actor)) return {};
  const bool listed = has(record->readers, actor) || has(record->executors, actor);
  if (row.listed && listed) return {};
  const std::string number = std::to_string(context), who = std::to_string(actor);
  return fail(Code::denied, "actor " + who + " may not " + row.does + " in context " + number + ": it is no " +
                                row.role + " there; an operator may say: mycojobs context grant " + number + " " +
                                row.flag + " " + who);
}

}  // namespace mycojobs
