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
#include "store/keys.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxActors = 10000000;
constexpr std::size_t kMaxKeysBatch = 500;
constexpr std::size_t kMaxPubkeyBytes = 200;  // longer keys are not in the index
constexpr int kActorChecks = 3;               // number of reads that must all have a problem
constexpr int kMaxRepairLookups = 3;
constexpr std::chrono::milliseconds kActorCheckInterval{100};
constexpr std::chrono::milliseconds kRecordScanDelay{1100};  // longer than the store's minimum interval between scans

struct ActorKeyProblem {
  std::string pubkey, subject, text;
  bool can_repair = false;
  bool operator==(const ActorKeyProblem&) const = default;
};
using ActorsByKey = std::map<std::string, std::set<std::string>>;  // ids of actors by public key

// Returns the public keys in the records of actors.
Result<ActorsByKey> read_record_keys(Store& store) {
  constexpr std::string_view kActorPrefix = "actor:";
  static constexpr std::array<std::string_view, 1> kPubkeyField{"pubkey"};
  ActorsByKey out;
  MJ_TRY(keys, store.keys(0, kActorPrefix, kMaxActors));
  for (const std::string& key : keys) {
    std::uint64_t id = 0;
    if (!parse_u64(std::string_view(key).substr(kActorPrefix.size()), id) || id == 0 || id > UINT32_MAX) continue;
    const auto record = store.load_fields(0, key, kPubkeyField);
    if (!record && record.error().code == Code::unavailable) return tl::unexpected<Error>(record.error());
    const std::string pubkey(record ? field_of(*record, "pubkey") : std::string_view());
    if (!pubkey.empty() && pubkey.size() <= kMaxPubkeyBytes) out[pubkey].insert(std::to_string(id));
  }
  return out;
}

void add_index_entries(ActorsByKey& out, const Fields& index) {
  for (const auto& [pubkey, ids] : index) {
    std::istringstream words(ids);
    out[pubkey] = {std::istream_iterator<std::string>(words), {}};
  }
}

// Returns the whole index, or the entries of the keys in `records` if the index is too long to be read at once.
Result<ActorsByKey> read_index_keys(Store& store, const ActorsByKey& records) {
  ActorsByKey out;
  auto index = store.load(0, kActorKeysKey);
  if (index) add_index_entries(out, *index);
  if (index || index.error().code == Code::not_found) return out;
  if (index.error().code != Code::too_large) return tl::unexpected<Error>(std::move(index).error());
  std::vector<std::string_view> batch;
  const auto load_batch = [&]() -> Result<void> {
    MJ_TRY(fields, store.load_fields(0, kActorKeysKey, batch));
    add_index_entries(out, fields);
    batch.clear();
    return {};
  };
  for (const auto& [pubkey, ids] : records) {
    batch.push_back(pubkey);
    if (batch.size() == kMaxKeysBatch) MJ_CHECK(load_batch());
  }
  if (!batch.empty()) MJ_CHECK(load_batch());
  return out;
}

std::string format_actor_names(const std::set<std::string>& ids) {
  std::string text;
  for (const std::string& id : ids) text += (text.empty() ? "actor:" : " and actor:") + id;
  return text;
}

Result<std::vector<ActorKeyProblem>> find_actor_key_problems(Store& store) {
  std::vector<ActorKeyProblem> problems;
  MJ_TRY(records, read_record_keys(store));
  auto index = read_index_keys(store, records);
  if (!index && index.error().code != Code::invalid) return tl::unexpected<Error>(std::move(index).error());
  if (!index) {
    problems.push_back({"", kActorKeysKey,
                        std::string(kActorKeysKey) + " is not a hash: " + index.error().message + "; delete that key"});
    return problems;
  }
  for (const auto& [pubkey, ids] : records) {
    if (ids.size() > 1)
      problems.push_back({pubkey, "actor:" + *ids.begin(),
                          format_actor_names(ids) +
                              " have the same public key, which then identifies no actor: give one of them "
                              "another key with `mycojobs actor update`"});
    const auto entry = index->find(pubkey);
    const bool is_complete =
        entry != index->end() && std::includes(entry->second.begin(), entry->second.end(), ids.begin(), ids.end());
    if (!is_complete && ids.size() == 1)
      problems.push_back({pubkey, "actor:" + *ids.begin(),
                          format_actor_names(ids) + " has a public key that is missing in " + kActorKeysKey +
                              ": its signatures are rejected until all records are scanned",
                          true});
  }
  for (const auto& [pubkey, ids] : *index)
    if (!records.contains(pubkey))
      problems.push_back(
          {pubkey, kActorKeysKey,
           std::string(kActorKeysKey) + " has a public key of " + format_actor_names(ids) + " that no actor has",
           true});
  return problems;
}

// Returns the problems that all checks have in common, since actors may change during a check. The list is
// empty if the Redis user must not read actors.
Result<std::vector<ActorKeyProblem>> find_persistent_key_problems(Store& store) {
  auto problems = find_actor_key_problems(store);
  if (!problems && problems.error().code == Code::denied) return std::vector<ActorKeyProblem>();
  for (int check = 1; problems && check < kActorChecks && !problems->empty(); ++check) {
    std::this_thread::sleep_for(kActorCheckInterval);
    MJ_TRY(current, find_actor_key_problems(store));
    std::erase_if(*problems, [&](const ActorKeyProblem& problem) {
      return std::find(current.begin(), current.end(), problem) == current.end();
    });
  }
  return problems;
}

// Looks up the owner of the key, which makes the store drop an outdated entry or scan all records. The store limits the
// rate of these scans, so the lookup is repeated.
Result<void> repair_key(Store& store, const std::string& pubkey) {
  for (int attempt = 0; attempt < kMaxRepairLookups; ++attempt) {
    MJ_TRY(owner, store.owner_of_key(pubkey));
    if (owner.actor_count > 0 || owner.checked_now) return {};
    std::this_thread::sleep_for(kRecordScanDelay);
  }
  return {};
}

}  // namespace

Result<std::vector<Finding>> verify_actors(Store& store) {
  MJ_TRY(problems, find_persistent_key_problems(store));
  std::vector<Finding> findings;
  for (const ActorKeyProblem& problem : problems)
    findings.push_back(make_finding("actor-key", problem.subject, problem.text));
  return findings;
}

Result<std::vector<std::string>> rebuild_actors(Store& store, bool dry_run) {
  MJ_TRY(problems, find_persistent_key_problems(store));
  std::vector<std::string> lines;
  for (const ActorKeyProblem& problem : problems) {
    lines.push_back(problem.text + (problem.can_repair ? "" : " (cannot be repaired)"));
    if (problem.can_repair && !dry_run) MJ_CHECK(repair_key(store, problem.pubkey));
  }
  return lines;
}

}  // namespace mycojobs
