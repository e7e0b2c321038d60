// Finds the public keys of actors and supervisors in the records of the store. The records are authoritative; the
// caches only avoid scans.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "base/result.h"
#include "model/records.h"
#include "store/store.h"

namespace mycojobs {

// Converts errors of the local store, except not_found, to `unavailable`, so that the peer tries again. The peer would
// treat any other error as permanent.
template <class T>
Result<T> make_retriable(Result<T> result) {
  if (result || result.error().code == Code::not_found || result.error().code == Code::unavailable) return result;
  return fail(Code::unavailable, "the store there: " + result.error().message);
}

// Finds the actor with a public key. The records in the store are authoritative.
class ActorKeys {
 public:
  // Returns the actor with this key. Errors: denied (no actor or several actors have the key); unavailable (the store
  // did not answer, or the key is unknown and the records have not been scanned since the first request for it, since
  // another client may have written an actor's record in between).
  Result<Actor> find(Store&, const std::string& pubkey, std::uint64_t now_s);

 private:
  std::map<std::string, std::uint64_t> first_request_s_;  // unknown keys, with the time of the first request in s
};

// Returns the public key of the supervisor with this address, from the record of a runner of the context. Returns
// own_key for an empty address. Error denied: no runner has this address and a key; the message names the command that
// creates one.
Result<std::string> find_supervisor_key(RecordStore&, Id context, const std::string& address,
                                        const std::string& own_key);

// Same as find_supervisor_key(), with a cache of the runner's record key, so that not all records are scanned for each
// message. The record is read again for each call. Not thread-safe.
class SupervisorKeys {
 public:
  Result<std::string> find(RecordStore&, Id context, const std::string& address);

 private:
  std::map<std::pair<Id, std::string>, std::string> runner_keys_;  // keys of runner records, by context and address
};

// Caches that outlive a receiver.
struct PublicKeyCache {
  ActorKeys actors;
  SupervisorKeys supervisors;
};

}  // namespace mycojobs
