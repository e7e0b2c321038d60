// explain() by where a job is. For explain*.cpp only.
#pragma once

#include <string>
#include <string_view>

#include "inspect/explain.h"

namespace mycojobs::explaining {

// What any job has: its key, and what record and claim say.
Explanation begin(const Situation&, std::string_view state);

Explanation unknown(const Situation&);  // neither record nor claim
Explanation bare(const Situation&);     // a record that nobody has claimed
Explanation queued(const Situation&);
Explanation live(const Situation&);
Explanation delayed(const Situation&);
Explanation waiting(const Situation&);
Explanation prerequisites(const Situation&);
Explanation held(const Situation&);
Explanation planned(const Situation&);
Explanation ended(const Situation&);

std::string field(const Situation&, std::string_view name);  // of the record; empty: absent
std::uint64_t number(const Situation&, std::string_view name);
// "`mycojobs job retry 12:2001 --context 3`"
std::string command(const Situation&, std::string_view verb, std::string_view rest);
std::string command(const Situation&, std::string_view verb);  // about this job
// "`redis-cli -n 3 LPUSH queue:python job:12:2001`"
std::string redis_cli(const Situation&, std::string_view words);
std::string flow_of(const ClaimView&);  // "7"; empty: of none
bool anyone_alive(const Situation&);
void tell_runners(const Situation&, Explanation&);  // as evidence
// It is not where its claim says: another client's doing.
Explanation place_lost(const Situation&, std::string_view state, std::string_view where);

}  // namespace mycojobs::explaining
