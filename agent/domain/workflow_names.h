// Names of a manifest as people write them: "order" and "order/Placed" for shop/order@1 and order/Placed@2, keys as
// they stand on a command line. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "domain/workflow_manifest.h"
#include "domain/workflow_state.h"
#include "mycojobs/result.h"

namespace mycojobs {

// The one of `names` that is meant: as it stands there, without its version, or its own name alone. Errors not_found,
// invalid (several are meant): name them; what: "workflow", for the message.
Result<std::string> find_name(std::string_view given, const std::vector<std::string>& names, std::string_view what);
Result<const WorkflowSpec*> find_workflow(const WorkflowManifest&, std::string_view given);
Result<const EffectSpec*> find_effect(const WorkflowManifest&, std::string_view given);
Result<std::string> find_event(const WorkflowManifest&, std::string_view given);  // one that a subscription routes

// A key in CBOR, from its text: JSON if the workflow's key_schema takes it as such, else a text. Error invalid.
Result<std::string> key_of_text(const WorkflowManifest&, const WorkflowSpec&, std::string_view text);
// "order 7", "order": an instance. A keyed workflow must have a key, another one has none.
Result<CellId> find_cell(const WorkflowManifest&, std::string_view given);
// The other way round, as short as it is clear: "order 7".
std::string short_name(const CellId&);

}  // namespace mycojobs
