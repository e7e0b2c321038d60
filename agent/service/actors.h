// Actors: who may be named in the lists of contexts. They belong to no context: their records are in database 0.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "service/caller.h"

namespace mycojobs::service {

// An actor's key, or a runner's: empty, or a public key of ed25519. Error invalid names the field `pubkey`.
Result<void> check_pubkey(const std::string&);
// One of: 64 hex characters (a key of Mycelium) or an IP address in 400::/7, both with or without mycelium://,
// http://..., https://..., redis://..., unix:...
Result<void> check_address(const std::string&);

// Of another than itself: operators alone. Error conflict: another actor has its key, as in update_actor().
Result<Actor> create_actor(const Caller&, Store&, const Actor&);
Result<Actor> read_actor(const Caller&, Store&, Id);
Result<std::vector<Actor>> list_actors(const Caller&, Store&);  // by id
// Gives it these fields of `wanted` (pubkey, address); what is empty there is taken away, and an actor without a key
// signs nothing any more. By itself, or an operator.
Result<Actor> update_actor(const Caller&, Store&, const Actor& wanted, std::span<const std::string> fields);
// For operators. Error conflict: the record of one of these contexts names it, and in which list.
Result<void> delete_actor(const Caller&, Store&, Id, std::span<const Id> contexts);

}  // namespace mycojobs::service
