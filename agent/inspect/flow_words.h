// The words that people read of a flow: one word for where it is, from one table (docs/flows.md repeats it). Records
// and JSON have the words of FlowStatus beside it, in a field of their own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/records.h"

namespace mycojobs {

struct FlowWord {
  std::string_view word;
  FlowStatus status;  // what the record says then
  std::string_view meaning;
};
std::vector<FlowWord> flow_words();

// Of a record's status and detail. started, waiting and idle are seen only by those who look at the jobs too
// (look_at_flow): here such a flow is running.
std::string flow_word(FlowStatus, std::string_view detail);

// "approved" of "approve": what somebody asked for, as what he did.
std::string done_word(std::string_view verb);

}  // namespace mycojobs
