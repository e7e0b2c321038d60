#include "domain/rights.h"

#include <algorithm>
#include <vector>

namespace mycojobs {

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

}  // namespace mycojobs
