#include "worker/reports/receipt_signer.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "base/log.h"
#include "model/trace_context.h"
#include "text/json.h"

namespace mycojobs {

void ReceiptSigner::complete_receipt(RunReport& report) {
  if (!key_) return;
  if (const auto* append = std::get_if<LogAppend>(&report.report)) {
    RunLog& log = logs_[report.run];
    while (!log.tail.empty() && log.tail.front().seq <= append->dropped_last) log.tail.pop_front();
    for (const Log& line : append->lines) {
      if (line.size == 0)
        log.hash.add(line);
      else if (line.stream != LogStream::system)
        log.tail.push_back(line);
    }
  } else if (auto* end = std::get_if<EndReport>(&report.report)) {
    if (report.was_uploaded) return sign_again(*end);
    sign(*end, logs_[report.run]);
  }
  if (report.is_last) logs_.erase(report.run);
}

void ReceiptSigner::sign_again(EndReport& report) const {
  auto receipt = parse_json(report.end.receipt);
  if (receipt && receipt->is_object() && receipt->contains("log_sha256")) store_receipt(report, std::move(*receipt));
}

void ReceiptSigner::sign(EndReport& report, RunLog& log) {
  for (const Log& line : log.tail) log.hash.add(line);
  auto parsed = parse_json(report.end.receipt.empty() ? "{}" : report.end.receipt);
  nlohmann::json receipt = parsed && parsed->is_object() ? std::move(*parsed) : nlohmann::json::object();
  receipt["job"] = report.claim.job_key;
  receipt["context"] = report.claim.context;
  receipt["claim"] = report.claim.claim_id;
  receipt["runner"] = runner_;
  receipt["result_sha256"] = compute_result_hash(report.end.result, report.end.result_json);
  receipt["log_lines"] = log.hash.lines();
  receipt["log_sha256"] = log.hash.hex();
  store_receipt(report, std::move(receipt));
}

void ReceiptSigner::store_receipt(EndReport& report, nlohmann::json receipt) const {
  receipt["status"] = to_string(report.end.status);
  receipt["detail"] = report.end.detail;
  if (auto signing = mycojobs::sign(receipt, "receipt", *key_); !signing) {
    mycojobs::log(LogLevel::error, "worker", "{}: its receipt is not signed: {}",
                  append_trace_id(report.claim.job_key, report.claim.traceparent), signing.error().message);
    return;
  }
  report.end.receipt = dump_json(receipt);
}

}  // namespace mycojobs
