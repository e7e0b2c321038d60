#include "store/redis/redis_claims.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/log.h"
#include "base/random.h"
#include "model/codec.h"
#include "store/job_fields.h"
#include "store/queue_store.h"
#include "store/redis/store_connection.h"
#include "store/redis/store_metrics.h"
#include "store/redis/store_spans.h"
#include "text/plural.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::uint32_t kMaxClaims = 64;
// Limits of one script call, since a running script blocks all other clients of the server.
constexpr std::size_t kMaxReports = 256;
constexpr std::size_t kMaxReportBytes = 8U << 20;
constexpr std::size_t kMaxBriefTextBytes = 256;

void add_report(Arguments& out, const LogAppend& append) {
  out.add("log").add(append.claim.job_key).add(append.claim.claim_id).add(append.claim.token);
  const bool drops_lines = append.dropped_last > 0;
  out.add(std::uint64_t{append.lines.size() * 4 + (drops_lines ? 2 : 0)});
  for (const Log& line : append.lines) {
    if (line.size == 0)
      out.add(line.seq);
    else
      out.add(std::to_string(line.seq) + ' ' + std::to_string(line.size));
    out.add(line.ts_ms).add(to_string(line.stream)).add(line.text);
  }
  if (drops_lines) out.add(append.dropped_first).add(append.dropped_last);
}
void add_report(Arguments& out, const Release& release) {
  out.add("release").add(release.claim.job_key).add(release.claim.claim_id).add(release.claim.token);
  out.add("2").add(release.reason).add(release.was_started ? "1" : "0");
}

void add_report(Arguments& out, const AwaitInputs& wait) {
  const std::size_t source_count = std::min(wait.sources.size(), AwaitInputs::kMaxSources);
  out.add("inputs").add(wait.claim.job_key).add(wait.claim.claim_id).add(wait.claim.token);
  out.add(std::uint64_t{4 + source_count}).add(to_string(wait.holder)).add(wait.timeout_ms).add(wait.reason);
  out.add(wait.is_stored ? "1" : "0");
  for (std::size_t i = 0; i < source_count; ++i) out.add(wait.sources[i]);
}

std::size_t count_bytes(const Fields& fields) {
  std::size_t bytes = 0;
  for (const auto& [name, value] : fields) bytes += name.size() + value.size();
  return bytes;
}

// Returns the end that is stored if the caller's quota is exceeded: without result and other long texts. A finished job
// becomes an error, because its result is lost.
JobEnd strip_long_texts(const JobEnd& end) {
  JobEnd out;
  out.status = JobStatus::error;
  out.detail = end.detail;
  out.error = truncate_utf8(end.error, kMaxBriefTextBytes);
  if (end.status == JobStatus::finished) {
    out.detail = "result_quota";
    out.error =
        "its result is not kept: the jobs of its caller keep more than quota.caller_bytes or quota.context_bytes "
        "allows";
  }
  if (end.usage.size() <= kMaxBriefTextBytes) out.usage = end.usage;
  if (end.layers.size() <= kMaxBriefTextBytes) out.layers = end.layers;
  out.ran_as = end.ran_as;
  return out;
}

std::size_t estimate_size(const Report& report) {
  const auto* append = std::get_if<LogAppend>(&report);
  std::size_t bytes = 1024;
  if (append != nullptr) {
    bytes += append->dropped_bytes;
    for (const Log& line : append->lines) bytes += line.text.size() + 64;
  }
  return bytes;
}

Result<void> parse_report_reply(const Reply& reply, const std::string& job_key) {
  const std::string_view code = reply.at(0).text();
  const std::string text(reply.at(1).text());
  if (code == "ok") return {};
  if (code == "stale") return fail(Code::stale_claim, job_key + ": this claim is not live any more");
  if (code == "conflict") return fail(Code::conflict, text);
  if (code == "invalid") return fail(Code::invalid, text);
  return fail(Code::internal, "redis: report answered " + std::string(code.substr(0, 40)));
}

void set_field(Fields& record, std::string_view name, std::string value) {
  const auto match = std::find_if(record.begin(), record.end(), [&](const auto& field) { return field.first == name; });
  if (match != record.end())
    match->second = std::move(value);
  else
    record.emplace_back(name, std::move(value));
}

// Adds the fields that the script `claim` has written into the record. Its reply has the record before that.
void apply_claim(const ClaimRequest& request, std::uint64_t claimed_ms, ClaimedJob& job) {
  set_field(job.record, "status", std::string(to_string(JobStatus::started)));
  set_field(job.record, "detail", "claimed");
  set_field(job.record, "attempt", std::to_string(job.attempt));
  set_field(job.record, "deliveries", std::to_string(job.deliveries));
  set_field(job.record, "epoch", std::to_string(job.epoch));
  set_field(job.record, "runner_id", std::to_string(request.runner));
  set_field(job.record, "claim_id", job.ref.claim_id);
  set_field(job.record, "lease_until_ms", std::to_string(claimed_ms + request.lease_ms));
  set_field(job.record, "started_ms", std::to_string(claimed_ms));
  set_field(job.record, "updated_at", std::to_string(claimed_ms / 1000));
}

// Parses one claim from the reply of the script `claim`. `random` begins with the id and the token of this claim.
ClaimedJob parse_claimed_job(const Reply& entry, std::string_view random) {
  ClaimedJob job;
  job.ref.job_key = entry.at(1).text();
  job.ref.claim_id = random.substr(0, kClaimIdDigits);
  job.ref.token = random.substr(kClaimIdDigits, kClaimTokenDigits);
  job.queue = entry.at(0).text();
  job.epoch = entry.at(3).number();
  job.attempt = static_cast<std::uint32_t>(entry.at(4).number());
  job.deliveries = static_cast<std::uint32_t>(entry.at(5).number());
  job.record = entry.at(6).fields();
  job.log_base = entry.at(7).number();
  job.ref.traceparent = field_of(job.record, "traceparent");  // also used for log lines
  return job;
}

}  // namespace

// A call of the script `report`. Its arguments are views of the reports and of the other members.
struct RedisClaims::ReportCall {
  std::deque<Fields> ends;
  std::deque<std::string> digests;
  Arguments arguments;
  std::size_t report_count = 0;
  std::uint64_t started_us = 0;

  void add_end(const EndReport&);
};

RedisClaims::RedisClaims(StoreConnection& connection) : connection_(connection) {}
RedisClaims::~RedisClaims() = default;

Result<ClaimReply> RedisClaims::claim(const ClaimRequest& request) {
  if (request.max_jobs == 0 || request.max_jobs > kMaxClaims) {
    return fail(Code::invalid, "claim: max_jobs is not from 1 to " + std::to_string(kMaxClaims));
  }
  MJ_CHECK(release_unanswered_claims(request.context));
  // An id and a token for each possible claim are passed as one argument, since each argument of a script costs time.
  const std::string random = random_hex(std::size_t{request.max_jobs} * (kClaimIdDigits + kClaimTokenDigits) / 2);
  Arguments arguments;
  arguments.add(std::uint64_t{request.runner}).add(request.instance);
  arguments.add(request.actor ? std::to_string(*request.actor) : "").add(std::uint64_t{request.context});
  arguments.add(std::uint64_t{request.max_jobs}).add(request.max_bytes);
  arguments.add(request.max_script_bytes).add(std::uint64_t{request.max_deliveries});
  arguments.add(std::uint64_t{request.lease_ms}).add(random).add(std::uint64_t{request.queues.size()});
  for (const std::string& queue : request.queues) arguments.add(queue);
  connection_.add_quota(arguments);
  const std::uint64_t started_us = unix_us();
  auto answer = connection_.run(request.context, scripts::claim, arguments);
  if (!answer) {
    if (answer.error().code == Code::denied) connection_.metrics().add(Metric::refusals, {request.context, "run"});
    for (std::size_t position = 0; position < random.size(); position += kClaimIdDigits + kClaimTokenDigits)
      lost_claim_ids_[request.context].push_back(random.substr(position, kClaimIdDigits));
    return tl::unexpected<Error>(std::move(answer).error());
  }
  const Reply& reply = *answer;
  const std::uint64_t finished_us = unix_us();
  ClaimReply out;
  out.skipped_entries = static_cast<std::uint32_t>(reply.at(0).number());
  const Reply claims = reply.at(1);
  out.jobs.reserve(claims.size());
  for (std::size_t i = 0; i < claims.size(); ++i) {
    const Reply entry = claims.at(i);
    const std::size_t index = entry.at(2).number() - 1;
    if (index >= request.max_jobs)
      return fail(Code::internal, "redis: the claim script returned a claim that was not requested");
    ClaimedJob& job = out.jobs.emplace_back(
        parse_claimed_job(entry, std::string_view(random).substr(index * (kClaimIdDigits + kClaimTokenDigits))));
    job.ref.context = request.context;
    apply_claim(request, reply.at(5).number(), job);
    if (connection_.metrics().is_enabled() || connection_.traces().is_enabled()) {
      const bool is_internal_queue = connection_.metrics().is_enabled() && job.queue.starts_with(kInternalKeyPrefix);
      job.ref.script_type =
          job_type_label(job.queue, job.record,
                         is_internal_queue ? QueueStore(connection_).served_types(request.context) : kNoTypeNames);
      job.ref.attempt = job.attempt;
      job.ref.claimed_us = finished_us;
    }
  }
  const Reply paused = reply.at(2);
  for (std::size_t i = 0; i < paused.size(); ++i) out.paused.emplace_back(paused.at(i).text());
  out.has_more = reply.at(3).number() == 1;
  out.has_found_entries = reply.at(6).number() > 0;
  connection_.record_heads(request.context, reply.at(4));
  count_claims(connection_.metrics(), request.context, out);
  trace_claims(connection_.traces(), out, {started_us, finished_us});
  return out;
}

// Releases claims whose reply was lost. The server may have executed the call; without the release, the jobs would wait
// until their leases expire. A call that was not executed yet will never be: its connection was killed
// (RedisConnection::close_after_error()).
Result<void> RedisClaims::release_unanswered_claims(Id context) {
  const auto match = lost_claim_ids_.find(context);
  if (match == lost_claim_ids_.end()) return {};
  std::uint64_t jobs = 0;
  std::string cursor;
  do {
    Arguments arguments{cursor};
    arguments.add(std::uint64_t{match->second.size()});
    for (const std::string& id : match->second) arguments.add(id);
    MJ_TRY(reply, connection_.run(context, scripts::unclaim, arguments));
    cursor = reply.at(0).text();
    jobs += reply.at(1).number();
  } while (!cursor.empty());
  lost_claim_ids_.erase(match);
  if (jobs > 0) {
    log(LogLevel::warn, "store", "context {}: {} of claims that were not answered back in their queues", context,
        count_with_noun(jobs, "job"));
  }
  return {};
}

Result<std::vector<Renewal>> RedisClaims::renew(Id context, std::span<const ClaimRef> claims, std::uint32_t lease_ms) {
  if (claims.empty()) return std::vector<Renewal>{};
  Arguments arguments;
  arguments.add(std::uint64_t{lease_ms}).add(std::uint64_t{claims.size()});
  for (const ClaimRef& claim : claims) arguments.add(claim.job_key).add(claim.claim_id).add(claim.token);
  MJ_TRY(reply, connection_.run(context, scripts::renew, arguments));
  std::vector<Renewal> out;
  for (std::size_t i = 0; i < claims.size(); ++i) {
    const std::uint64_t code = reply.at(i).number();
    out.push_back(code == 0 ? Renewal::stale : code == 1 ? Renewal::renewed : Renewal::cancel);
  }
  count_renewals(connection_.metrics(), context, out);
  return out;
}

// An end with long texts is sent in two versions: complete, and short for the case that the caller's quota is exceeded.
void RedisClaims::ReportCall::add_end(const EndReport& ended) {
  const Fields& fields = ends.emplace_back(end_fields(ended.end));
  const bool is_long = count_bytes(fields) >= kMinEndBytes;
  const Fields& short_fields = is_long ? ends.emplace_back(end_fields(strip_long_texts(ended.end))) : fields;
  arguments.add(is_long ? "long_end" : "end").add(ended.claim.job_key).add(ended.claim.claim_id).add(ended.claim.token);
  arguments.add(std::uint64_t{fields.size() * 2 + (is_long ? short_fields.size() * 2 + 4 : 2)});
  if (ended.retry_after_ms) {
    arguments.add(*ended.retry_after_ms);
  } else {
    arguments.add("-1");
  }
  arguments.add(digests.emplace_back(compute_end_digest(fields)));
  if (is_long) {
    arguments.add(digests.emplace_back(compute_end_digest(short_fields))).add(std::uint64_t{short_fields.size() * 2});
    for (const auto& [name, value] : short_fields) arguments.add(name).add(value);
  }
  for (const auto& [name, value] : fields) arguments.add(name).add(value);
}

// Writes as many reports, from the first, as the limits of one call permit.
void RedisClaims::encode_reports(std::span<const Report> reports, ReportCall& call) const {
  call.started_us = unix_us();
  for (std::size_t bytes = 0;
       call.report_count < reports.size() && call.report_count < kMaxReports && bytes < kMaxReportBytes;
       ++call.report_count) {
    bytes += estimate_size(reports[call.report_count]);
  }
  Arguments& out = call.arguments;
  out.add(std::uint64_t{call.report_count});
  connection_.add_quota(out);
  for (std::size_t i = 0; i < call.report_count; ++i) {
    if (const auto* ended = std::get_if<EndReport>(&reports[i])) {
      call.add_end(*ended);
    } else if (const auto* append = std::get_if<LogAppend>(&reports[i])) {
      add_report(out, *append);
    } else if (const auto* update = std::get_if<DetailUpdate>(&reports[i])) {
      out.add("mark").add(update->claim.job_key).add(update->claim.claim_id).add(update->claim.token);
      out.add("3").add(update->detail).add(update->reason).add(update->is_end_saved ? "1" : "0");
    } else if (const auto* wait = std::get_if<AwaitInputs>(&reports[i])) {
      add_report(out, *wait);
    } else {
      add_report(out, std::get<Release>(reports[i]));
    }
  }
}

void RedisClaims::decode_answers(Id context, const Reply& reply, std::span<const Report> reports,
                                 std::vector<Result<void>>& out) {
  for (std::size_t i = 0; i < reports.size(); ++i) {
    const auto& claim = std::visit([](const auto& r) -> const ClaimRef& { return r.claim; }, reports[i]);
    out.push_back(parse_report_reply(reply.at(i), claim.job_key));
  }
  connection_.record_heads(context, reply.at(reports.size()));
}

Result<std::vector<Result<void>>> RedisClaims::complete_report(Id context, std::span<const Report> reports,
                                                               std::vector<Result<void>> answers,
                                                               std::uint64_t started_us) {
  MJ_CHECK(connection_.await_replicas(context));
  count_reports(connection_.metrics(), context, reports, answers);
  trace_reports(connection_.traces(), reports, answers, {started_us, unix_us()});
  return answers;
}

Result<std::vector<Result<void>>> RedisClaims::report(Id context, std::span<const Report> reports) {
  std::vector<Result<void>> out;
  const std::uint64_t started_us = unix_us();
  while (out.size() < reports.size()) {
    ReportCall call;
    const std::span<const Report> remaining = reports.subspan(out.size());
    encode_reports(remaining, call);
    MJ_TRY(reply, connection_.run(context, scripts::report, call.arguments));
    decode_answers(context, reply, remaining.first(call.report_count), out);
    // A failover between two calls must not hide that the first one was lost.
    if (out.size() < reports.size()) MJ_CHECK(connection_.await_replicas(context));
  }
  return complete_report(context, reports, std::move(out), started_us);
}

std::optional<int> RedisClaims::begin_report(Id context, std::span<const Report> reports) {
  Link* link = context == 0 ? nullptr : connection_.find_link(context);
  if (link == nullptr) return std::nullopt;
  auto call = std::make_unique<ReportCall>();
  encode_reports(reports, *call);
  if (call->report_count < reports.size()) return std::nullopt;
  const std::optional<int> fd = link->begin(scripts::report, call->arguments);
  if (fd) pending_report_ = std::move(call);
  return fd;
}

Result<std::vector<Result<void>>> RedisClaims::finish_report(Id context, std::span<const Report> reports) {
  Link* link = connection_.find_link(context);
  if (pending_report_ == nullptr || link == nullptr) return report(context, reports);
  const std::unique_ptr<ReportCall> call = std::move(pending_report_);
  MJ_TRY(reply, link->finish(scripts::report, call->arguments));
  std::vector<Result<void>> out;
  decode_answers(context, reply, reports, out);
  return complete_report(context, reports, std::move(out), call->started_us);
}

}  // namespace mycojobs
