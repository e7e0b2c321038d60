// Checks the signed receipt of a job: the signature of the runner, and that record and log are unchanged since.
#pragma once

#include <string>
#include <vector>

#include "store/store.h"

namespace mycojobs {

struct ReceiptCheck {
  std::string what;  // signature, job, end, result, log
  bool holds = false;
  std::string detail;
};

// pubkey: of the runner; empty: the key in the runner's record. Errors: `not_found` (no such job, or its receipt is not
// signed; the error gives the remedy), `invalid` (the receipt is not JSON).
Result<std::vector<ReceiptCheck>> check_receipt_of(Store&, Id context, const std::string& job_key, std::string pubkey);

}  // namespace mycojobs
