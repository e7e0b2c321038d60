#include "inspect/receipt_check.h"

#include <deque>
#include <nlohmann/json.hpp>

#include "inspect/job_view.h"
#include "model/codec.h"
#include "security/signatures.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

std::uint64_t get_number(const json& receipt, const char* name) {
  const auto found = receipt.find(name);
  return found != receipt.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

// Returns the key in the runner's record. A key from the caller is safer, because a client with write access can
// replace the key in the record.
Result<std::string> load_runner_key(Store& store, Id context, Id id) {
  Runner runner;
  runner.id = id;
  auto fields = store.load(context, redis_key(runner));
  if (!fields) return fail(fields.error(), redis_key(runner));
  return decode<Runner>(*fields).record.pubkey;
}

// Returns the key of the signer of a job that ran in another context. A runner of this context must have the key in its
// record.
Result<std::string> find_signer_key(Store& store, Id context, const std::string& signer) {
  MJ_TRY(runners, store.runners(context));
  for (const RunnerInfo& info : runners) {
    if (!signer.empty() && info.runner.pubkey == signer) return signer;
  }
  return fail(Code::not_found, "no runner's record here has the key that signed it, " + excerpt(signer, 80) +
                                   ": if you trust it, give --key, or make one: mycojobs runner create --pubkey");
}

ReceiptCheck compare(const char* part, const std::string& expected, const std::string& found) {
  if (expected == found) return {part, true, expected};
  return {part, false, "the receipt says " + (expected.empty() ? "nothing" : expected) + ", and there is " + found};
}

// Checks the log lines of the last attempt. They are the last lines of the log; the receipt has their number.
Result<ReceiptCheck> check_log(Store& store, Id context, const std::string& key, const json& receipt,
                               bool ran_in_other_context) {
  constexpr std::size_t kMaxLogPage = 1000;
  const std::uint64_t line_count = get_number(receipt, "log_lines");
  std::deque<Log> lines;
  std::uint64_t last_seq = 0;
  while (true) {
    MJ_TRY(page, store.logs(context, key, last_seq, kMaxLogPage, 0));
    for (Log& line : page.lines) {
      last_seq = line.seq;
      if (line.stream == LogStream::system) continue;
      lines.push_back(std::move(line));
      if (lines.size() > line_count) lines.pop_front();
    }
    if (page.lines.empty() || page.ended) break;
  }
  if (lines.empty() && ran_in_other_context)
    return ReceiptCheck{"log", true, "not compared: its log lines were not returned"};
  if (lines.size() < line_count) {
    return ReceiptCheck{"log", false,
                        "the receipt is of " + std::to_string(line_count) + " lines, and " +
                            std::to_string(lines.size()) + " are left"};
  }
  LogHash hash;
  for (const Log& line : lines) hash.add(line);
  return compare("log", text_field(receipt, "log_sha256"), hash.hex());
}

}  // namespace

Result<std::vector<ReceiptCheck>> check_receipt(Store& store, Id context, const std::string& job_key,
                                                std::string pubkey) {
  MJ_TRY(view, load_job(store, context, job_key));
  const Job& job = view.job;
  if (job.receipt.empty()) return fail(Code::not_found, job_key + ": has no receipt: it has not run to its end");
  MJ_TRY(receipt, parse_json(job.receipt));
  if (!receipt.is_object()) return fail(Code::invalid, job_key + ": its receipt is not an object");
  if (!receipt.contains("signature")) {
    return fail(Code::not_found, job_key +
                                     ": its receipt is not signed: give its agent a key with the setting "
                                     "runner_key, made by `mycojobs key new NAME`");
  }
  std::vector<ReceiptCheck> checks;
  const std::string ran_as(field_of(job.unknown, "ran_as"));  // "9 job:5:1" if it ran in another context
  if (pubkey.empty()) {
    auto key = ran_as.empty() ? load_runner_key(store, context, static_cast<Id>(get_number(receipt, "runner")))
                              : find_signer_key(store, context, text_field(receipt, "signer"));
    if (!key) return tl::unexpected<Error>(std::move(key).error());
    pubkey = std::move(*key);
  }
  const auto verified = check_signature(receipt, "receipt", pubkey);
  checks.push_back({"signature", verified.has_value(), verified ? pubkey : verified.error().message});
  const std::string job_id = std::to_string(get_number(receipt, "context")) + ' ' + text_field(receipt, "job");
  checks.push_back(compare("job", job_id, ran_as.empty() ? std::to_string(context) + ' ' + job_key : ran_as));
  checks.push_back(compare("end", text_field(receipt, "status") + ' ' + text_field(receipt, "detail"),
                           std::string(to_string(job.status)) + ' ' + job.detail));
  checks.push_back(
      compare("result", text_field(receipt, "result_sha256"), compute_result_hash(job.result, job.result_json)));
  MJ_TRY(log, check_log(store, context, job_key, receipt, !ran_as.empty()));
  checks.push_back(std::move(log));
  return checks;
}

}  // namespace mycojobs
