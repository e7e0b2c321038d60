// Finds parts of a manifest by short names, as users write them: "order" for shop/order@1 and "order/Placed" for
// order/Placed@2. Also parses keys of instances from a command line. Pure and thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "workflows/manifest/workflow_manifest.h"
#include "workflows/workflow_state.h"

namespace mycojobs {

// Finds a full name by the full name itself, by the name without the version, or by the last part of the path alone.
// Errors not_found and invalid (ambiguous) list the names. `kind` is the kind of the name for the message, such as
// "workflow".
Result<std::string> find_name(std::string_view query, const std::vector<std::string>& full_names,
                              std::string_view kind);
Result<const WorkflowSpec*> find_workflow(const WorkflowManifest&, std::string_view query);
Result<const EffectSpec*> find_effect(const WorkflowManifest&, std::string_view query);
Result<std::string> find_event(const WorkflowManifest&, std::string_view query);  // finds an event of a subscription

// Converts a key to CBOR: JSON if it fits the workflow's key_schema, otherwise a text. Error invalid: it does not fit.
Result<std::string> encode_key(const WorkflowManifest&, const WorkflowSpec&, std::string_view text);
// Parses a workflow's name and a key, such as "order 7", or a name alone, such as "order". A keyed workflow requires a
// key; a workflow without keys must not have one. Does not check that the instance exists.
Result<InstanceId> parse_instance_id(const WorkflowManifest&, std::string_view query);
// Returns a short name for display, such as "order 7".
std::string short_name(const InstanceId&);

}  // namespace mycojobs
