#include "messaging/peer_keys.h"

#include <string_view>

#include "base/ed25519.h"
#include "model/codec.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxRunners = 10000;

}  // namespace

Result<Actor> ActorKeys::find(Store& store, const std::string& pubkey, std::uint64_t now_s) {
  constexpr std::size_t kMaxUnknownKeys = 1000;
  if (!is_public_key(pubkey))
    return fail(Code::denied, "signer: " + excerpt(pubkey, 80) + " is not an ed25519 public key");
  MJ_TRY(owner, make_retriable(store.owner_of_key(pubkey)));
  if (owner.actor_count == 1) {
    Actor actor = decode<Actor>(owner.record).record;
    actor.id = owner.id;
    return actor;
  }
  if (owner.actor_count > 1)
    return fail(
        Code::denied,
        "signer: more than one actor here has the key " + pubkey +
            ", so it identifies no actor; an operator can give one actor another key: mycojobs actor update --key");
  if (first_request_s_.size() >= kMaxUnknownKeys) first_request_s_.clear();
  const auto first_request = first_request_s_.try_emplace(pubkey, now_s).first;
  if (!owner.checked_now && owner.checked_ms / 1000 <= first_request->second)
    return fail(Code::unavailable, "signer: is not known yet; try again in a second");
  first_request_s_.erase(first_request);
  return fail(Code::denied, "signer: no actor here has the key " + pubkey +
                                "; an operator can create an actor with it: mycojobs actor create --key");
}

namespace {

// Returns the public key of the runner, or an empty text if it has another address, no key, or no record.
Result<std::string> read_runner_key(RecordStore& store, Id context, const std::string& runner,
                                    const std::string& address) {
  constexpr std::string_view kRunnerFields[] = {"address", "pubkey"};
  auto fields = store.load_fields(context, runner, kRunnerFields);
  // A value of another client that is not a record counts as missing.
  const bool is_missing = !fields && (fields.error().code == Code::not_found || fields.error().code == Code::invalid);
  if (!fields && !is_missing) return make_retriable<std::string>(tl::unexpected<Error>(std::move(fields).error()));
  const bool is_match = fields && field_of(*fields, "address") == address && is_public_key(field_of(*fields, "pubkey"));
  return std::string(is_match ? field_of(*fields, "pubkey") : "");
}

// Returns the record key and the public key of the runner with this address.
Result<std::pair<std::string, std::string>> search_runner(RecordStore& store, Id context, const std::string& address) {
  MJ_TRY(keys, make_retriable(store.keys(context, "runner:", kMaxRunners)));
  for (const std::string& runner : keys) {
    MJ_TRY(pubkey, read_runner_key(store, context, runner, address));
    if (!pubkey.empty()) return std::pair(runner, pubkey);
  }
  return fail(Code::denied,
              "address: no runner of context " + std::to_string(context) + " has the address " + excerpt(address, 120) +
                  " and a key: register one with mycojobs runner create --address " + excerpt(address, 120) +
                  " --pubkey KEY, with the key that the coordinator there reports");
}

}  // namespace

Result<std::string> find_supervisor_key(RecordStore& store, Id context, const std::string& address,
                                        const std::string& own_key) {
  if (address.empty()) return own_key;
  MJ_TRY(runner_key, search_runner(store, context, address));
  return std::move(runner_key.second);
}

Result<std::string> SupervisorKeys::find(RecordStore& store, Id context, const std::string& address) {
  constexpr std::size_t kMaxCachedRunners = 10000;
  const std::pair cache_key(context, address);
  if (const auto cached = runner_keys_.find(cache_key); cached != runner_keys_.end()) {
    MJ_TRY(pubkey, read_runner_key(store, context, cached->second, address));
    if (!pubkey.empty()) return pubkey;
    runner_keys_.erase(cached);
  }
  MJ_TRY(runner_key, search_runner(store, context, address));
  if (runner_keys_.size() >= kMaxCachedRunners) runner_keys_.clear();
  runner_keys_[cache_key] = runner_key.first;
  return std::move(runner_key.second);
}

}  // namespace mycojobs
