// Completes the receipts of jobs with claim, result and hash of the log, which make them evidence, and signs them with
// the key of the runner. Called by the reporter, which passes the reports of a run in order. Not thread-safe.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "base/ed25519.h"
#include "security/signatures.h"
#include "worker/worker_types.h"

namespace mycojobs {

class ReceiptSigner {
 public:
  // key: null if receipts are not signed; they then stay unchanged.
  ReceiptSigner(Id runner, std::shared_ptr<const SigningKey> key) : runner_(runner), key_(std::move(key)) {}
  // Adds log lines to the hash of the run, or completes and signs the receipt of an end.
  void complete_receipt(RunReport&);

 private:
  // The log of a run. Lines of the tail (Log::size) wait for the end of the run, since they may be deleted before.
  struct RunLog {
    LogHash hash;
    std::deque<Log> tail;
  };
  void sign(EndReport&, RunLog&);
  void sign_again(EndReport&) const;  // after an upload, which can turn the end into a failure
  void store_receipt(EndReport&, nlohmann::json receipt) const;
  Id runner_;
  std::shared_ptr<const SigningKey> key_;
  std::map<RunNumber, RunLog> logs_;  // of runs that have not ended
};

}  // namespace mycojobs
