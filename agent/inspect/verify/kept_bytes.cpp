#include "inspect/verify/kept_bytes.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string_view>

#include "base/parse.h"
#include "model/codec.h"
#include "store/keys.h"
#include "store/record_changes.h"

namespace mycojobs {
namespace {

constexpr const char* kStoredBytesKey = "mj:kept";
constexpr const char* kCreated = "mj:kept-created";
constexpr const char* kAll = "all";
constexpr std::array<std::string_view, 3> kCharges{"kept", "kept_end", "log_bytes"};
constexpr std::size_t kStoredBatch = 200;
constexpr std::uint64_t kLogStep = 2048;  // same as in scripts/lib/kept.lua
constexpr int kRepairTries = 100;

using Bytes = std::map<std::string, std::uint64_t>;  // by caller, and kAll

// Returns no fields if the key is missing or belongs to another client.
Result<Fields> load_or_none(Store& store, Id context, const char* key) {
  auto fields = store.load(context, key);
  if (fields) return std::move(*fields);
  if (fields.error().code == Code::not_found || fields.error().code == Code::invalid) return Fields{};
  return tl::unexpected<Error>(std::move(fields).error());
}

// key: of a job or a message, such as "job:12:2001".
void add(Bytes& bytes, std::string_view key, std::uint64_t more) {
  key.remove_prefix(std::min(key.find(':') + 1, key.size()));
  std::uint64_t caller = 0;
  if (more == 0 || !parse_u64(key.substr(0, key.find(':')), caller)) return;
  bytes[std::to_string(caller)] += more;
  bytes[kAll] += more;
}

// Definitions and schedules record the charged bytes and the charged caller.
Result<void> add_charged(Store& store, Id context, std::string_view prefix,
                         const std::array<std::string_view, 2>& fields, Bytes& bytes) {
  MJ_TRY(keys, store.keys(context, prefix, std::numeric_limits<std::size_t>::max()));
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  for (std::size_t from = 0; from < keys.size();) {
    MJ_TRY(some,
           store.load_some(context, std::span(keys).subspan(from, std::min(kStoredBatch, keys.size() - from)), fields));
    for (const Fields& each : some)
      add(bytes, "of:" + std::string(field_of(each, fields[1])), number_of(each, fields[0]));
    from += std::max<std::size_t>(1, some.size());
  }
  return {};
}

Result<Bytes> bytes_of_claims(Store& store, Id context) {
  constexpr std::string_view kClaims = "mj:claim:";
  Bytes bytes;
  MJ_TRY(keys, store.keys(context, "mj:claim:job:", std::numeric_limits<std::size_t>::max()));
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  for (std::size_t from = 0; from < keys.size();) {
    const auto some = std::span(keys).subspan(from, std::min(kStoredBatch, keys.size() - from));
    MJ_TRY(claims, store.load_some(context, some, kCharges));
    for (std::size_t i = 0; i < claims.size(); ++i) {
      const std::uint64_t log_bytes = number_of(claims[i], "log_bytes");
      add(bytes, some[i].substr(kClaims.size()),
          number_of(claims[i], "kept") + number_of(claims[i], "kept_end") + log_bytes - log_bytes % kLogStep);
    }
    from += std::max<std::size_t>(1, claims.size());
  }
  MJ_CHECK(add_charged(store, context, "mj:definition:", {"kept", "caller"}, bytes));
  MJ_CHECK(add_charged(store, context, "mj:schedule:", {"kept", "kept_of"}, bytes));
  MJ_TRY(created, load_or_none(store, context, kCreated));
  for (const auto& [key, value] : created) add(bytes, key, number_of(created, key));
  return bytes;
}

// Returns the counters minus the claims by field, modulo 2^64, without fields that agree. Returns an empty map while
// jobs change the counters.
Result<Bytes> differences(Store& store, Id context) {
  MJ_TRY(before, load_or_none(store, context, kStoredBytesKey));
  MJ_TRY(should, bytes_of_claims(store, context));
  MJ_TRY(counters, load_or_none(store, context, kStoredBytesKey));
  Bytes found;
  if (field_of(before, "changes") != field_of(counters, "changes")) return found;
  for (const auto& [name, value] : counters) {
    std::uint64_t caller = 0;
    if (name == kAll || parse_u64(name, caller)) found[name] = number_of(counters, name);
  }
  for (const auto& [name, bytes] : should) found[name] -= bytes;
  std::erase_if(found, [](const auto& each) { return each.second == 0; });
  return found;
}

StoredBytesProblem trouble_of(const std::string& field, std::uint64_t difference) {
  const bool is_over = difference <= std::numeric_limits<std::uint64_t>::max() / 2;
  const std::uint64_t bytes = is_over ? difference : ~difference + 1;
  const std::string of = field == kAll ? "all callers" : "caller " + field;
  return {finding("kept-bytes", std::string(kStoredBytesKey) + ' ' + field,
                  std::string(kStoredBytesKey) + " counts " + std::to_string(bytes) + " bytes too " +
                      (is_over ? "many" : "few") + " for the jobs of " + of),
          field, is_over, bytes};
}

}  // namespace

Result<std::vector<StoredBytesProblem>> find_stored_bytes_problems(Store& store, Id context,
                                                                   const std::function<void()>& pause) {
  std::vector<StoredBytesProblem> troubles;
  MJ_TRY(first, differences(store, context));
  if (first.empty()) return troubles;
  pause();
  MJ_TRY(second, differences(store, context));
  for (const auto& [field, difference] : second) {
    const auto before = first.find(field);
    if (before != first.end() && before->second == difference) troubles.push_back(trouble_of(field, difference));
  }
  return troubles;
}

Result<void> repair_stored_bytes(Store& store, Id context, const StoredBytesProblem& trouble) {
  for (int tries = 0; tries < kRepairTries; ++tries) {
    MJ_TRY(counters, load_or_none(store, context, kStoredBytesKey));
    const std::string before(field_of(counters, trouble.field));
    std::uint64_t now = number_of(counters, trouble.field);
    now = trouble.is_over ? now - std::min(now, trouble.difference) : now + trouble.difference;
    if (counters.empty()) return store.save(context, kStoredBytesKey, {{trouble.field, std::to_string(now)}});
    const std::string text = now == 0 ? "" : std::to_string(now);
    auto changed =
        change_record_if(store, context, kStoredBytesKey, {{trouble.field, text}}, {{trouble.field, before}});
    if (changed) return {};
    const bool again = changed.error().code == Code::conflict || changed.error().code == Code::not_found;
    if (!again) return tl::unexpected<Error>(std::move(changed).error());
  }
  return {};  // The counter changes faster than it is read; the next rebuild finds the same difference.
}

}  // namespace mycojobs
