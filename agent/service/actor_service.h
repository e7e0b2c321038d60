// Actors that the lists of contexts can name. Actors belong to no context; their records are in database 0.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "service/service_caller.h"

namespace mycojobs::service {

// Checks the key of an actor or a runner, which is empty or an Ed25519 public key. Error `invalid` names the field
// `pubkey`.
Result<void> check_pubkey(const std::string&);
// Checks an address of an actor. Allowed are 64 hex characters (a Mycelium key) or an IP address in 400::/7, both with
// or without mycelium://, and http://..., https://..., redis://..., rediss://... and unix:... Errors: invalid,
// too_large.
Result<void> check_address(const std::string&);

// Creates an actor. Only an operator can create an actor other than itself. Error `conflict`: another actor has the
// same key. update_actor() has the same error.
Result<Actor> create_actor(const RequestContext&, Store&, const Actor&);
Result<Actor> read_actor(const RequestContext&, Store&, Id);
Result<std::vector<Actor>> list_actors(const RequestContext&, Store&);  // sorted by id
// Copies the fields with these names (pubkey, address) from `new_values` to the record of the actor new_values.id. An
// empty value removes the field; an actor without a key cannot sign. Allowed for the actor itself and for operators.
Result<Actor> update_actor(const RequestContext&, Store&, const Actor& new_values,
                           std::span<const std::string> field_names);
// Deletes an actor. Only for operators. Error `conflict` names the context whose record lists the actor, and the list.
// `contexts_to_check` are the contexts whose role lists are searched for the actor. The lists of contexts on the
// default server are compared again in the atomic step that deletes the record, so that a role that was granted at the
// same time does not name a deleted actor.
Result<void> delete_actor(const RequestContext&, Store&, Id, std::span<const Id> contexts_to_check);

}  // namespace mycojobs::service
