#include "inspect/verify/job_keys.h"

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <string_view>

#include "model/codec.h"
#include "store/keys.h"

namespace mycojobs {
namespace {

constexpr std::array<std::string_view, 1> kIdempotencyField{"idem"};
constexpr std::size_t kMaxClaimsBatch = 200;

// Returns whether the index lacks the key and the claim still names it.
Result<bool> is_missing_from_index(Store& store, Id context, const JobKeyProblem& suspect) {
  const std::array<std::string_view, 1> index_fields{suspect.idempotency_key};
  auto index_entry = store.load_fields(context, suspect.index_key, index_fields);
  if (!index_entry && index_entry.error().code == Code::unavailable)
    return tl::unexpected<Error>(std::move(index_entry).error());
  if (index_entry && !index_entry->empty()) return false;
  // A retired job has removed its key.
  auto claim = store.load_fields(context, kClaimKey + suspect.job_key, kIdempotencyField);
  if (!claim && claim.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(claim).error());
  return claim && field_of(*claim, "idem") == suspect.idempotency_key;
}

}  // namespace

Result<std::vector<JobKeyProblem>> find_job_key_problems(Store& store, Id context) {
  constexpr std::string_view kClaims = kClaimKey;
  MJ_TRY(keys, store.keys(context, job_claims_prefix(), std::numeric_limits<std::size_t>::max()));
  std::vector<JobKeyProblem> problems;
  for (std::size_t begin = 0; begin < keys.size(); begin += kMaxClaimsBatch) {
    const auto batch = std::span(keys).subspan(begin, std::min(kMaxClaimsBatch, keys.size() - begin));
    MJ_TRY(claims, store.load_batch(context, batch, kIdempotencyField));
    for (std::size_t i = 0; i < claims.size(); ++i) {
      const std::string_view idempotency_key = field_of(claims[i], "idem");
      const std::string job = batch[i].substr(kClaims.size());
      if (idempotency_key.empty() || !is_job_key(job)) continue;
      const std::string index_key = kIdempotencyKey + std::to_string(parse_job_caller(job));
      JobKeyProblem suspect{
          make_finding("idempotency-key", job, job + " is not in " + index_key + ": its idempotency key leads nowhere"),
          index_key, std::string(idempotency_key), job};
      MJ_TRY(is_missing, is_missing_from_index(store, context, suspect));
      if (is_missing) problems.push_back(std::move(suspect));
    }
  }
  return problems;
}

Result<void> repair_job_key(Store& store, Id context, const JobKeyProblem& problem) {
  return store.save(context, problem.index_key, {{problem.idempotency_key, problem.job_key}});
}

}  // namespace mycojobs
