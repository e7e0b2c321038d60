#include "domain/rights.h"

#include <algorithm>
#include <vector>

namespace mycojobs {
namespace {

bool holds(const std::vector<Id>& ids, Id id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

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

Result<void> check_right(const std::optional<Context>& record, Id context, Id caller, Right right) {
  const auto has = [caller](const std::vector<Id>& ids) {
    return std::find(ids.begin(), ids.end(), caller) != ids.end();
  };
  if (record && (has(record->admins) || (right == Right::read && has(record->readers)))) return {};
  const std::string number = std::to_string(context), who = std::to_string(caller);
  const std::string role = right == Right::write ? "admin" : "reader or admin";
  std::string why = "caller " + who + " is no " + role + " of context " + number;
  if (!record) why += ", which has no record";
  return fail(Code::denied, why + "; an operator may say: mycojobs context grant " + number +
                                (right == Right::write ? " --admin " : " --reader ") + who);
}

bool is_admin(const std::optional<Context>& record, Id actor) { return !record || holds(record->admins, actor); }

Result<void> check_deed(const std::optional<Context>& record, Id context, Id actor, Deed deed, Id owner) {
  const DeedRow& row = kDeeds[static_cast<std::size_t>(deed)];
  if (is_admin(record, actor) || (row.owner && owner != 0 && owner == actor)) return {};
  const bool listed = holds(record->readers, actor) || holds(record->executors, actor);
  if (row.listed && listed) return {};
  const std::string number = std::to_string(context), who = std::to_string(actor);
  return fail(Code::denied, "actor " + who + " may not " + row.does + " in context " + number + ": it is no " +
                                row.role + " there; an operator may say: mycojobs context grant " + number + " " +
                                row.flag + " " + who);
}

}  // namespace mycojobs
