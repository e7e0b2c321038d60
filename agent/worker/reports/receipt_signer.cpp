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
    sign(*end, logs_[report.run]);
  }
  if (report.is_last) logs_.erase(report.run);
}

void ReceiptSigner::sign(EndReport& report, RunLog& log) {
  for (const Log& line : log.tail) log.hash.add(line);
  const JobEnd& end = report.end;
  auto parsed = parse_json(end.receipt.empty() ? "{}" : end.receipt);
  nlohmann::json receipt = parsed && parsed->is_object() ? std::move(*parsed) : nlohmann::json::object();
  receipt["job"] = report.claim.job_key;
  receipt["context"] = report.claim.context;
  receipt["claim"] = report.claim.claim_id;
  receipt["runner"] = runner_;
  receipt["status"] = to_string(end.status);
  receipt["detail"] = end.detail;
  receipt["result_sha256"] = compute_result_hash(end.result, end.result_json);
  receipt["log_lines"] = log.hash.lines();
  receipt["log_sha256"] = log.hash.hex();
  if (auto signing = mycojobs::sign(receipt, "receipt", *key_); !signing) {
    mycojobs::log(LogLevel::error, "worker", "{}: its receipt is not signed: {}",
                  append_trace_id(report.claim.job_key, report.claim.traceparent), signing.error().message);
    return;
  }
  report.end.receipt = dump_json(receipt);
}

}  // namespace mycojobs
