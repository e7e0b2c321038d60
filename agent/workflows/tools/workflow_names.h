// Names of a manifest as people write them: "order" and "order/Placed" for shop/order@1 and order/Placed@2, and keys as
// on a command line. Pure and thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "workflows/manifest/workflow_manifest.h"
#include "workflows/workflow_state.h"

namespace mycojobs {

// Finds a name by its full form, without its version, or by its last part alone. Errors not_found and invalid
// (ambiguous) list the names. what: kind of name for the message, such as "workflow".
Result<std::string> find_name(std::string_view given, const std::vector<std::string>& names, std::string_view what);
Result<const WorkflowSpec*> find_workflow(const WorkflowManifest&, std::string_view given);
Result<const EffectSpec*> find_effect(const WorkflowManifest&, std::string_view given);
Result<std::string> find_event(const WorkflowManifest&, std::string_view given);  // an event that a subscription routes

// Converts a key to CBOR: JSON if it fits the workflow's key_schema, otherwise a text. Error invalid: it does not fit.
Result<std::string> encode_key(const WorkflowManifest&, const WorkflowSpec&, std::string_view text);
// Finds an instance: "order 7", "order". A keyed workflow requires a key; another workflow must not have a key.
Result<InstanceId> find_instance_id(const WorkflowManifest&, std::string_view given);
// The inverse of find_instance_id(): the shortest clear form, "order 7".
std::string short_name(const InstanceId&);

}  // namespace mycojobs
