// Completes the receipts of jobs with what makes them evidence, and signs them with the runner's key: which claim, with
// what result, after which log. One thread, the reporter's: reports come in their order.
#pragma once

#include <map>
#include <memory>

#include "base/ed25519.h"
#include "domain/signatures.h"
#include "worker/types.h"

namespace mycojobs {

class Receipts {
 public:
  // key: null: nothing is signed, and receipts stay as they are.
  Receipts(Id runner, std::shared_ptr<const SigningKey> key) : runner_(runner), key_(std::move(key)) {}
  void complete(Outgoing&);

 private:
  void sign(EndReport&, LogHash&);
  Id runner_;
  std::shared_ptr<const SigningKey> key_;
  std::map<RunNumber, LogHash> logs_;  // of runs that have not ended
};

}  // namespace mycojobs
