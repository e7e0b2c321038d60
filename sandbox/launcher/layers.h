// The layers around a run: their names, tests for this host, and remedies for missing layers.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sandbox/outcome.h"

namespace mycojobs::sandbox {

class Cgroups;
struct IdRange;
struct Layer;

// Returns the operator's remedy for a failed step of the set-up, or for a missing layer.
std::string remedy_for_step(std::string_view step, int error);
std::string remedy_for_layer(std::string_view layer);  // empty for an unknown layer
bool can_layer_be_missing(std::string_view layer);     // allowed in sandbox.allow_missing

// Tests each layer separately, for the command `doctor`. canary_failure is the result of the canary job, a test job
// that attacks the sandbox: the step that failed, or no value if the sandbox withstood the attack.
std::vector<Layer> probe_layers_separately(const IdRange&, const Cgroups&,
                                           const std::optional<SetupError>& canary_failure);

}  // namespace mycojobs::sandbox
