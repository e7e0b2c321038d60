// References to results of earlier nodes in the texts of a flow definition (`env` and `args` of a node):
//
//   "--size=${build.size}"      the value `size` of the result of the node `build`
//   "${inputs.region}"          the input `region` of the flow
//   "$${HOME}"                  the text ${HOME}
//
// The definition is checked when it is read. The values are inserted when the job is prepared for its run, since the
// agent then has the results of the jobs that it depends on. Pure and thread-safe.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/flow_data.h"
#include "model/records.h"

namespace mycojobs {

struct ResultReference {
  std::string node;  // a node, or `inputs`
  std::string key;
};
std::string to_string(const ResultReference&);  // "${build.size}"

// Returns whether the text has a reference. A text with escapes alone has none.
bool has_references(std::string_view text);
// Returns the references of a text in their order. Error invalid: "${" without a reference behind it; the message has
// the remedy.
Result<std::vector<ResultReference>> parse_references(std::string_view text);
// Returns a text whose expansion is `text`.
std::string escape_references(std::string_view text);
// Returns the expansion of a text without references. A text with references is returned unchanged.
std::string unescape_references(std::string_view text);

// Returns the value of a reference as text. Error: why there is no value.
using ReferenceLookup = std::function<Result<std::string>(const ResultReference&)>;
// Replaces the references in the variables and arguments of a job that its flow data names. Error invalid: a reference
// has no value; the message names the field and the reference.
Result<void> expand_references(Job&, const FlowData&, const ReferenceLookup&);

}  // namespace mycojobs
