#include "inspect/verify/kept_bytes.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <span>
#include <string_view>

#include "base/parse.h"
#include "model/codec.h"
#include "store/keys.h"

namespace mycojobs {
namespace {

constexpr const char* kTotalField = "all";
constexpr std::array<std::string_view, 3> kChargeFields{"kept", "kept_end", "log_bytes"};
constexpr std::size_t kMaxStoredBatch = 200;
constexpr int kMaxRepairAttempts = 100;

using ByteCounts = std::map<std::string, std::uint64_t>;  // by caller; kTotalField has the sum

// Returns no fields if the key is missing or belongs to another client.
Result<Fields> load_or_empty(Store& store, Id context, const char* key) {
  auto fields = store.load(context, key);
  if (fields) return std::move(*fields);
  if (fields.error().code == Code::not_found || fields.error().code == Code::invalid) return Fields{};
  return tl::unexpected<Error>(std::move(fields).error());
}

// Adds an amount to the total and to the caller in the key of a job or a message, such as "job:12:2001".
void add_bytes(ByteCounts& bytes, std::string_view key, std::uint64_t amount) {
  key.remove_prefix(std::min(key.find(':') + 1, key.size()));
  std::uint64_t caller = 0;
  if (amount == 0 || !parse_u64(key.substr(0, key.find(':')), caller)) return;
  bytes[std::to_string(caller)] += amount;
  bytes[kTotalField] += amount;
}

// Returns each key once, because the store may list a key twice.
Result<std::vector<std::string>> list_unique_keys(Store& store, Id context, std::string_view prefix) {
  MJ_TRY(keys, store.keys(context, prefix, std::numeric_limits<std::size_t>::max()));
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return std::move(keys);
}

// Adds the bytes that definitions or schedules charge to their callers. fields: the name of the field with the number
// of bytes, and the name of the field with the caller.
Result<void> add_charged_bytes(Store& store, Id context, std::string_view prefix,
                               const std::array<std::string_view, 2>& fields, ByteCounts& bytes) {
  MJ_TRY(keys, list_unique_keys(store, context, prefix));
  for (std::size_t begin = 0; begin < keys.size();) {
    MJ_TRY(batch, store.load_batch(
                      context, std::span(keys).subspan(begin, std::min(kMaxStoredBatch, keys.size() - begin)), fields));
    for (const Fields& entry : batch)
      add_bytes(bytes, "of:" + std::string(field_of(entry, fields[1])), number_of(entry, fields[0]));
    begin += std::max<std::size_t>(1, batch.size());
  }
  return {};
}

Result<ByteCounts> read_charged_bytes(Store& store, Id context) {
  constexpr std::string_view kClaims = kClaimKey;
  ByteCounts bytes;
  MJ_TRY(keys, list_unique_keys(store, context, job_claims_prefix()));
  for (std::size_t begin = 0; begin < keys.size();) {
    const auto batch = std::span(keys).subspan(begin, std::min(kMaxStoredBatch, keys.size() - begin));
    MJ_TRY(claims, store.load_batch(context, batch, kChargeFields));
    for (std::size_t i = 0; i < claims.size(); ++i) {
      const std::uint64_t log_bytes = number_of(claims[i], "log_bytes");
      add_bytes(bytes, batch[i].substr(kClaims.size()),
                number_of(claims[i], "kept") + number_of(claims[i], "kept_end") + log_bytes -
                    log_bytes % kLogChargeStepBytes);
    }
    begin += std::max<std::size_t>(1, claims.size());
  }
  MJ_CHECK(add_charged_bytes(store, context, kDefinitionKey, {"kept", "caller"}, bytes));
  MJ_CHECK(add_charged_bytes(store, context, kScheduleKey, {"kept", "kept_of"}, bytes));
  MJ_TRY(unqueued, load_or_empty(store, context, kStoredBytesUnqueuedKey));
  for (const auto& [key, value] : unqueued) add_bytes(bytes, key, number_of(unqueued, key));
  return bytes;
}

// Returns the difference between the counter and the sum of the claims for each field in which they differ, modulo
// 2^64. Returns an empty map if the counters changed during the read.
Result<ByteCounts> find_byte_differences(Store& store, Id context) {
  MJ_TRY(old_counters, load_or_empty(store, context, kStoredBytesKey));
  MJ_TRY(charged, read_charged_bytes(store, context));
  MJ_TRY(counters, load_or_empty(store, context, kStoredBytesKey));
  ByteCounts differences;
  if (field_of(old_counters, "changes") != field_of(counters, "changes")) return differences;
  for (const auto& [name, value] : counters) {
    std::uint64_t caller = 0;
    if (name == kTotalField || parse_u64(name, caller)) differences[name] = number_of(counters, name);
  }
  for (const auto& [name, bytes] : charged) differences[name] -= bytes;
  std::erase_if(differences, [](const auto& entry) { return entry.second == 0; });
  return differences;
}

StoredBytesProblem make_bytes_problem(const std::string& field, std::uint64_t difference) {
  const bool is_counter_too_large = difference <= std::numeric_limits<std::uint64_t>::max() / 2;
  const std::uint64_t bytes = is_counter_too_large ? difference : ~difference + 1;
  const std::string owner = field == kTotalField ? "all callers" : "caller " + field;
  return {make_finding("kept-bytes", std::string(kStoredBytesKey) + ' ' + field,
                       std::string(kStoredBytesKey) + " counts " + std::to_string(bytes) + " bytes too " +
                           (is_counter_too_large ? "many" : "few") + " for the jobs of " + owner),
          field, is_counter_too_large, bytes};
}

}  // namespace

Result<std::vector<StoredBytesProblem>> find_stored_bytes_problems(Store& store, Id context,
                                                                   const std::function<void()>& pause) {
  std::vector<StoredBytesProblem> problems;
  MJ_TRY(first_differences, find_byte_differences(store, context));
  if (first_differences.empty()) return problems;
  pause();
  MJ_TRY(second_differences, find_byte_differences(store, context));
  for (const auto& [field, difference] : second_differences) {
    const auto earlier = first_differences.find(field);
    if (earlier != first_differences.end() && earlier->second == difference)
      problems.push_back(make_bytes_problem(field, difference));
  }
  return problems;
}

Result<void> repair_stored_bytes(Store& store, Id context, const StoredBytesProblem& problem) {
  for (int attempt = 0; attempt < kMaxRepairAttempts; ++attempt) {
    MJ_TRY(counters, load_or_empty(store, context, kStoredBytesKey));
    const std::string old_value(field_of(counters, problem.field));
    std::uint64_t new_value = number_of(counters, problem.field);
    new_value = problem.is_counter_too_large ? new_value - std::min(new_value, problem.difference)
                                             : new_value + problem.difference;
    if (counters.empty()) return store.save(context, kStoredBytesKey, {{problem.field, std::to_string(new_value)}});
    const std::string text = new_value == 0 ? "" : std::to_string(new_value);
    auto result =
        store.change_record_if(context, kStoredBytesKey, {{problem.field, text}}, {{problem.field, old_value}});
    if (result) return {};
    const bool is_retryable = result.error().code == Code::conflict || result.error().code == Code::not_found;
    if (!is_retryable) return tl::unexpected<Error>(std::move(result).error());
  }
  return {};  // The counter changes faster than it is read; the next rebuild finds the same difference.
}

}  // namespace mycojobs
