// Checks the signed receipt of a job: the signature of the runner, and that record and log are unchanged since.
#pragma once

#include <string>
#include <vector>

#include "store/store.h"

namespace mycojobs {

struct ReceiptCheck {
  std::string part;  // signature, job, end, result, log
  bool passed = false;
  std::string detail;
};

// Checks the receipt of a job with the public key of its runner; if `pubkey` is empty, with the key in the record of
// the runner. Errors: `not_found` (no such job, or its receipt is not signed; the error gives the remedy), `invalid`
// (the receipt is not JSON).
Result<std::vector<ReceiptCheck>> check_receipt(Store&, Id context, const std::string& job_key, std::string pubkey);

}  // namespace mycojobs
