// Actors that the lists of contexts can name. Actors belong to no context; their records are in database 0.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "service/service_caller.h"

namespace mycojobs::service {

// Checks the key of an actor or a runner: empty, or an Ed25519 public key. Error `invalid` names the field `pubkey`.
Result<void> check_pubkey(const std::string&);
// Checks an address: 64 hex characters (a Mycelium key) or an IP address in 400::/7, both with or without mycelium://,
// http://..., https://..., redis://..., unix:...
Result<void> check_address(const std::string&);

// Creates an actor. Only an operator can create an actor other than itself. Error `conflict`: another actor has the
// same key, as in update_actor().
Result<Actor> create_actor(const RequestContext&, Store&, const Actor&);
Result<Actor> read_actor(const RequestContext&, Store&, Id);
Result<std::vector<Actor>> list_actors(const RequestContext&, Store&);  // sorted by id
// Sets these fields (pubkey, address) to their values in `wanted`. An empty value removes the field; an actor without a
// key cannot sign. Allowed for the actor itself and for operators.
Result<Actor> update_actor(const RequestContext&, Store&, const Actor& wanted, std::span<const std::string> fields);
// Deletes an actor. Only for operators. Error `conflict` names the context whose record lists the actor, and the list.
// Contexts of the default server are compared again in the step that deletes the record.
Result<void> delete_actor(const RequestContext&, Store&, Id, std::span<const Id> contexts);

}  // namespace mycojobs::service
