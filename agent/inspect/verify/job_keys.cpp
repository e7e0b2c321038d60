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

constexpr std::array<std::string_view, 1> kKeyOfClaim{"idem"};
constexpr std::size_t kMaxClaimsBatch = 200;

// Returns false if the index has the key, or if the claim does not name the key any more.
Result<bool> leads_nowhere(Store& store, Id context, const JobKeyProblem& suspect) {
  const std::array<std::string_view, 1> name{suspect.idempotency_key};
  auto known = store.load_fields(context, suspect.index, name);
  if (!known && known.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(known).error());
  if (known && !known->empty()) return false;
  // A retired job has removed its key.
  auto claim = store.load_fields(context, "mj:claim:" + suspect.job_key, kKeyOfClaim);
  if (!claim && claim.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(claim).error());
  return claim && field_of(*claim, "idem") == suspect.idempotency_key;
}

}  // namespace

Result<std::vector<JobKeyProblem>> find_job_key_problems(Store& store, Id context) {
  constexpr std::string_view kClaims = "mj:claim:";
  MJ_TRY(keys, store.keys(context, "mj:claim:job:", std::numeric_limits<std::size_t>::max()));
  std::vector<JobKeyProblem> found;
  for (std::size_t from = 0; from < keys.size(); from += kMaxClaimsBatch) {
    const auto some = std::span(keys).subspan(from, std::min(kMaxClaimsBatch, keys.size() - from));
    MJ_TRY(claims, store.load_some(context, some, kKeyOfClaim));
    for (std::size_t i = 0; i < claims.size(); ++i) {
      const std::string_view idempotency_key = field_of(claims[i], "idem");
      const std::string job = some[i].substr(kClaims.size());
      if (idempotency_key.empty() || !is_job_key(job)) continue;
      const std::string index = "mj:idempotency:" + std::to_string(caller_of_job(job));
      JobKeyProblem suspect{
          finding("idempotency-key", job, job + " is not in " + index + ": its idempotency key leads nowhere"), index,
          std::string(idempotency_key), job};
      MJ_TRY(is_lost, leads_nowhere(store, context, suspect));
      if (is_lost) found.push_back(std::move(suspect));
    }
  }
  return found;
}

Result<void> repair_job_key(Store& store, Id context, const JobKeyProblem& trouble) {
  return store.save(context, trouble.index, {{trouble.idempotency_key, trouble.job_key}});
}

}  // namespace mycojobs
