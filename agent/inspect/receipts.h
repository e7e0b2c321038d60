// Whether a job's signed receipt holds: the runner's signature, and that record and log are what it was given for.
#pragma once

#include <string>
#include <vector>

#include "mycojobs/store.h"

namespace mycojobs {

struct ReceiptCheck {
  std::string what;  // signature, job, end, result, log
  bool holds = false;
  std::string detail;
};

// pubkey: of the runner; empty: the one that the runner's record names. Errors: not_found (no such job, or its receipt
// is not signed; says the remedy), invalid (the receipt is no JSON).
Result<std::vector<ReceiptCheck>> check_receipt_of(Store&, Id context, const std::string& job_key, std::string pubkey);

}  // namespace mycojobs
