#include "inspect/verify/actor_verify.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "base/parse.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxActors = 10000000;
constexpr std::size_t kMaxKeysBatch = 500;
constexpr std::size_t kMaxKey = 200;  // as in the index
constexpr int kActorChecks = 3;
constexpr std::chrono::milliseconds kActorPause{100}, kRecordScanPause{1100};  // the latter: the interval of the store

struct ActorKeyProblem {
  std::string pubkey, subject, text;
  bool can_repair = false;
  bool operator==(const ActorKeyProblem&) const = default;
};
using ActorsByKey = std::map<std::string, std::set<std::string>>;  // ids by public key

Result<ActorsByKey> keys_of_records(Store& store) {
  constexpr std::string_view kActors = "actor:";
  static constexpr std::array<std::string_view, 1> kAsked{"pubkey"};
  ActorsByKey out;
  MJ_TRY(keys, store.keys(0, kActors, kMaxActors));
  for (const std::string& key : keys) {
    std::uint64_t id = 0;
    if (!parse_u64(std::string_view(key).substr(kActors.size()), id) || id == 0 || id > UINT32_MAX) continue;
    const auto record = store.load_fields(0, key, kAsked);
    if (!record && record.error().code == Code::unavailable) return tl::unexpected<Error>(record.error());
    const std::string pubkey(record ? field_of(*record, "pubkey") : std::string_view());
    if (!pubkey.empty() && pubkey.size() <= kMaxKey) out[pubkey].insert(std::to_string(id));
  }
  return out;
}

void take_in(ActorsByKey& out, const Fields& index) {
  for (const auto& [pubkey, ids] : index) {
    std::istringstream words(ids);
    out[pubkey] = {std::istream_iterator<std::string>(words), {}};
  }
}

// Returns the whole index, or the entries of the keys in `records` if the index is too long to be read at once.
Result<ActorsByKey> keys_of_index(Store& store, const ActorsByKey& records) {
  constexpr const char* kIndex = "mj:actor-keys";
  ActorsByKey out;
  auto index = store.load(0, kIndex);
  if (index) take_in(out, *index);
  if (index || index.error().code == Code::not_found) return out;
  if (index.error().code != Code::too_large) return tl::unexpected<Error>(std::move(index).error());
  std::vector<std::string_view> some;
  const auto ask = [&]() -> Result<void> {
    MJ_TRY(fields, store.load_fields(0, kIndex, some));
    take_in(out, fields);
    some.clear();
    return {};
  };
  for (const auto& [pubkey, ids] : records) {
    some.push_back(pubkey);
    if (some.size() == kMaxKeysBatch) MJ_CHECK(ask());
  }
  if (!some.empty()) MJ_CHECK(ask());
  return out;
}

std::string actors_text(const std::set<std::string>& ids) {
  std::string text;
  for (const std::string& id : ids) text += (text.empty() ? "actor:" : " and actor:") + id;
  return text;
}

Result<std::vector<ActorKeyProblem>> check_keys(Store& store) {
  std::vector<ActorKeyProblem> all;
  MJ_TRY(records, keys_of_records(store));
  auto index = keys_of_index(store, records);
  if (!index && index.error().code != Code::invalid) return tl::unexpected<Error>(std::move(index).error());
  if (!index) {
    all.push_back({"", "mj:actor-keys", "mj:actor-keys is not a hash: " + index.error().message + "; delete that key"});
    return all;
  }
  for (const auto& [pubkey, ids] : records) {
    if (ids.size() > 1)
      all.push_back({pubkey, "actor:" + *ids.begin(),
                     actors_text(ids) + " have the same public key, which then identifies no actor: give one of them "
                                        "another key with `mycojobs actor update`"});
    const auto known = index->find(pubkey);
    const bool whole =
        known != index->end() && std::includes(known->second.begin(), known->second.end(), ids.begin(), ids.end());
    if (!whole && ids.size() == 1)
      all.push_back({pubkey, "actor:" + *ids.begin(),
                     actors_text(ids) + " has a public key that is missing in mj:actor-keys: its signatures are "
                                        "rejected until all records are scanned",
                     true});
  }
  for (const auto& [pubkey, ids] : *index)
    if (!records.contains(pubkey))
      all.push_back({pubkey, "mj:actor-keys",
                     "mj:actor-keys has a public key of " + actors_text(ids) + " that no actor has", true});
  return all;
}

Result<std::vector<ActorKeyProblem>> lasting_troubles(Store& store) {
  auto found = check_keys(store);
  if (!found && found.error().code == Code::denied) return std::vector<ActorKeyProblem>();
  for (int look = 1; found && look < kActorChecks && !found->empty(); ++look) {
    std::this_thread::sleep_for(kActorPause);
    MJ_TRY(again, check_keys(store));
    std::erase_if(*found, [&](const ActorKeyProblem& each) {
      return std::find(again.begin(), again.end(), each) == again.end();
    });
  }
  return found;
}

// A lookup of the owner makes the store drop an outdated key, or read all records; the store limits the rate of that.
Result<void> repair_key(Store& store, const std::string& pubkey) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    MJ_TRY(owner, store.owner_of_key(pubkey));
    if (owner.actors > 0 || owner.checked_now) return {};
    std::this_thread::sleep_for(kRecordScanPause);
  }
  return {};
}

}  // namespace

Result<std::vector<Finding>> verify_actors(Store& store) {
  MJ_TRY(troubles, lasting_troubles(store));
  std::vector<Finding> findings;
  for (const ActorKeyProblem& each : troubles) findings.push_back(finding("actor-key", each.subject, each.text));
  return findings;
}

Result<std::vector<std::string>> rebuild_actors(Store& store, bool dry_run) {
  MJ_TRY(troubles, lasting_troubles(store));
  std::vector<std::string> lines;
  for (const ActorKeyProblem& each : troubles) {
    lines.push_back(each.text + (each.can_repair ? "" : " (cannot be repaired)"));
    if (each.can_repair && !dry_run) MJ_CHECK(repair_key(store, each.pubkey));
  }
  return lines;
}

}  // namespace mycojobs
