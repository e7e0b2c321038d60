// The ClaimStore on Redis. Contracts: store/claim_store.h. Errors and thread-safety: store/store.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "store/claim_store.h"

namespace mycojobs {

class Reply;
class StoreConnection;

class RedisClaims : public ClaimStore {
 public:
  explicit RedisClaims(StoreConnection&);
  ~RedisClaims() override;

  Result<ClaimReply> claim(const ClaimRequest&) override;
  Result<std::vector<Renewal>> renew(Id context, std::span<const ClaimRef>, std::uint32_t lease_ms) override;
  Result<std::vector<Result<void>>> report(Id context, std::span<const Report>) override;
  std::optional<int> begin_report(Id context, std::span<const Report>) override;
  Result<std::vector<Result<void>>> finish_report(Id context, std::span<const Report>) override;

 private:
  struct ReportCall;

  Result<void> release_unanswered_claims(Id context);
  void encode_reports(std::span<const Report>, ReportCall&) const;
  void decode_answers(Id context, const Reply&, std::span<const Report>, std::vector<Result<void>>& out);
  Result<std::vector<Result<void>>> complete_report(Id context, std::span<const Report>,
                                                    std::vector<Result<void>> answers, std::uint64_t started_us);

  StoreConnection& connection_;
  std::unique_ptr<ReportCall> pending_report_;  // call of begin_report() until finish_report()
  // Ids of claims whose reply was lost, by context. The server may have granted these claims, so
  // release_unanswered_claims() releases them.
  std::map<Id, std::vector<std::string>> lost_claim_ids_;
};

}  // namespace mycojobs
