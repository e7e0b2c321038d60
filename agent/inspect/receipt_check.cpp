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

std::string text_in(const json& receipt, const char* name) {
  const auto found = receipt.find(name);
  return found != receipt.end() && found->is_string() ? found->get<std::string>() : "";
}
std::uint64_t number_in(const json& receipt, const char* name) {
  const auto found = receipt.find(name);
  return found != receipt.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

// Returns the key in the runner's record. A client with write access can replace that key, so that a key given by the
// caller is safer.
Result<std::string> key_of_runner(Store& store, Id context, Id id) {
  Runner runner;
  runner.id = id;
  auto fields = store.load(context, redis_key(runner));
  if (!fields) return fail(fields.error(), redis_key(runner));
  return decode<Runner>(*fields).record.pubkey;
}

// Returns the key of a job that ran in another context: the record of a runner of this context must have it.
Result<std::string> key_of_signer(Store& store, Id context, const std::string& signer) {
  MJ_TRY(runners, store.runners(context));
  for (const RunnerInfo& info : runners) {
    if (!signer.empty() && info.runner.pubkey == signer) return signer;
  }
  return fail(Code::not_found, "no runner's record here has the key that signed it, " + excerpt(signer, 80) +
                                   ": if you trust it, give --key, or make one: mycojobs runner create --pubkey");
}

ReceiptCheck compare(const char* what, const std::string& stated, const std::string& found) {
  if (stated == found) return {what, true, stated};
  return {what, false, "the receipt says " + (stated.empty() ? "nothing" : stated) + ", and there is " + found};
}

// Checks the log. The lines of the last attempt are the last lines; the receipt has their number.
Result<ReceiptCheck> check_log(Store& store, Id context, const std::string& key, const json& receipt, bool elsewhere) {
  constexpr std::size_t kPage = 1000;
  const std::uint64_t wanted = number_in(receipt, "log_lines");
  std::deque<Log> last;
  std::uint64_t after = 0;
  while (true) {
    MJ_TRY(page, store.logs(context, key, after, kPage, 0));
    for (Log& line : page.lines) {
      after = line.seq;
      if (line.stream == LogStream::system) continue;
      last.push_back(std::move(line));
      if (last.size() > wanted) last.pop_front();
    }
    if (page.lines.size() < kPage) break;
  }
  if (last.empty() && elsewhere) return ReceiptCheck{"log", true, "not compared: its log lines were not returned"};
  if (last.size() < wanted) {
    return ReceiptCheck{
        "log", false,
        "the receipt is of " + std::to_string(wanted) + " lines, and " + std::to_string(last.size()) + " are left"};
  }
  LogHash hash;
  for (const Log& line : last) hash.add(line);
  return compare("log", text_in(receipt, "log_sha256"), hash.hex());
}

}  // namespace

Result<std::vector<ReceiptCheck>> check_receipt_of(Store& store, Id context, const std::string& job_key,
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
    auto named = ran_as.empty() ? key_of_runner(store, context, static_cast<Id>(number_in(receipt, "runner")))
                                : key_of_signer(store, context, text_in(receipt, "signer"));
    if (!named) return tl::unexpected<Error>(std::move(named).error());
    pubkey = std::move(*named);
  }
  const auto holds = check_signature(receipt, "receipt", pubkey);
  checks.push_back({"signature", holds.has_value(), holds ? pubkey : holds.error().message});
  const std::string place = std::to_string(number_in(receipt, "context")) + ' ' + text_in(receipt, "job");
  checks.push_back(compare("job", place, ran_as.empty() ? std::to_string(context) + ' ' + job_key : ran_as));
  checks.push_back(compare("end", text_in(receipt, "status") + ' ' + text_in(receipt, "detail"),
                           std::string(to_string(job.status)) + ' ' + job.detail));
  checks.push_back(compare("result", text_in(receipt, "result_sha256"), result_hash(job.result, job.result_json)));
  MJ_TRY(log, check_log(store, context, job_key, receipt, !ran_as.empty()));
  checks.push_back(std::move(log));
  return checks;
}

}  // namespace mycojobs
