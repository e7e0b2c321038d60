#include "domain/rights.h"

#include <algorithm>
#include <vector>

namespace mycojobs {
namespace {

bool has(const std::vector<Id>& ids, Id actor) { return std::find(ids.begin(), ids.end(), actor) != ids.end(); }

}  // namespace

Result<bool> check_flow_right(const std::optional<Context>& record, Id context, Id creator, Id actor) {
  if (!record) return false;
  const bool admin = has(record->admins, actor);
  if (admin || actor == creator || has(record->executors, actor)) return admin;
  const std::string number = std::to_string(context), who = std::to_string(actor);
  return fail(Code::denied, "actor " + who + " has not created this flow, and is neither admin nor executor of context " +
                                number + "; an operator may say: mycojobs context grant " + number + " --executor " + who);
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

}  // namespace mycojobs
