// claim.lua, renew.lua, report.lua, expire.lua, sweep_missing.lua.
#include <algorithm>

#include "base/ids.h"
#include "store/job_fields.h"
#include "store/keys.h"
#include "store/memory_database.h"

namespace mycojobs {
namespace {

JobEnd failure(std::string detail, std::string error) {
  JobEnd end;
  end.detail = std::move(detail);
  end.error = std::move(error);
  return end;
}

}  // namespace

Result<ClaimReply> MemoryDatabase::claim(const ClaimRequest& request) {
  if (request.max_jobs == 0 || request.max_jobs > 64) return fail(Code::invalid, "claim: max_jobs is not from 1 to 64");
  ClaimReply reply;
  std::uint64_t bytes = 0;
  for (const std::string& queue : request.queues) {
    if (!want(queue, "list")) {
      anomaly(queue + " is a " + std::string(type_of(queue)) + " where a list belongs: delete it");
      continue;
    }
    auto list = lists_.find(queue);
    while (list != lists_.end() && reply.jobs.size() < request.max_jobs) {
      const std::string entry = list->second.back();
      const Take took = take(request, queue, entry, reply, bytes);
      if (took == Take::full) return reply;
      if (took == Take::set_aside) ++reply.set_aside;
      list->second.pop_back();
      if (list->second.empty()) list = lists_.erase(list), list = lists_.end();
    }
  }
  return reply;
}

MemoryDatabase::Take MemoryDatabase::take(const ClaimRequest& request, const std::string& queue,
                                          const std::string& entry, ClaimReply& reply, std::uint64_t& bytes) {
  const auto dead = [&](std::string reason) { return dead_letter(entry, queue, std::move(reason)), Take::set_aside; };
  const auto odd = [&](const std::string& why) {
    return anomaly(queue + ": " + entry + " " + why + "; the entry was dropped"), Take::set_aside;
  };
  if (!is_job_key(entry)) return dead("bad_key");
  Claim& claim = claims_[entry];
  if (claim.state == State::ended) {
    if (!claim.leftover) return odd("has ended already");
    claim.leftover = false;
    return Take::silent;
  }
  if (claim.state == State::live) return odd("is claimed already");
  if (type_of(entry) == "none") {
    missing_.try_emplace({entry, queue}, now_ms_);
    return Take::set_aside;
  }
  if (type_of(entry) != "hash") return dead("wrong_type");
  if (ended_by_others(entry)) return odd("has a record that says " + field(entry, "status"));
  if (claim.cancel) return finish(entry, failure("cancelled", "cancelled"), false), Take::silent;
  const std::uint64_t script = field(entry, "script").size();
  if (script > request.max_script_bytes) {
    finish(entry,
           failure("dead_letter", "script: " + std::to_string(script) + " bytes are more than the " +
                                      std::to_string(request.max_script_bytes) + " that job.max_script_bytes allows"),
           false);
    return dead("too_large");
  }
  if (claim.deliveries >= request.max_deliveries) {
    finish(
        entry,
        failure("dead_letter", "crash_loop: " + std::to_string(claim.deliveries) +
                                   " runs ended without a report (runner killed or lost each time); job.max_deliveries "
                                   "allows no more"),
        false);
    return dead("crash_loop");
  }
  std::uint64_t size = 0;
  for (const auto& [name, value] : hashes_[entry]) size += name.size() + value.size();
  if (!reply.jobs.empty() && bytes + size > request.max_bytes) return Take::full;
  bytes += size;
  start(request, queue, entry, reply);
  return Take::taken;
}

void MemoryDatabase::start(const ClaimRequest& request, const std::string& queue, const std::string& job,
                           ClaimReply& reply) {
  Claim& claim = claims_[job];
  claim.state = State::live;
  claim.claim_id = random_hex(8);
  claim.token = random_hex(32);
  claim.queue = queue;
  claim.epoch = std::max(claim.epoch + 1, now_ms_ * 1000);
  claim.lease_ms = request.lease_ms;
  claim.until_ms = now_ms_ + request.lease_ms;
  const auto& lines = logs_[job].lines;
  claim.log_base = lines.empty() ? 0 : lines.back().seq;
  ++claim.deliveries;
  set(job, {{"status", "started"},
            {"detail", "claimed"},
            {"attempt", std::to_string(claim.attempt)},
            {"deliveries", std::to_string(claim.deliveries)},
            {"epoch", std::to_string(claim.epoch)},
            {"runner_id", std::to_string(request.runner)},
            {"claim_id", claim.claim_id},
            {"lease_until_ms", std::to_string(claim.until_ms)},
            {"started_ms", std::to_string(now_ms_)},
            {"updated_at", now_s()}});
  Claimed out;
  out.ref = {context_, job, claim.claim_id, claim.token};
  out.queue = queue;
  out.epoch = claim.epoch;
  out.attempt = claim.attempt;
  out.deliveries = claim.deliveries;
  out.record.assign(hashes_[job].begin(), hashes_[job].end());
  reply.jobs.push_back(std::move(out));
}

MemoryDatabase::Claim* MemoryDatabase::live(const ClaimRef& ref) {
  const auto found = claims_.find(ref.job_key);
  if (found == claims_.end()) return nullptr;
  Claim& claim = found->second;
  const bool is_live = claim.state == State::live && claim.claim_id == ref.claim_id && claim.token == ref.token;
  return is_live && now_ms_ <= claim.until_ms ? &claim : nullptr;
}

Result<std::vector<Renewal>> MemoryDatabase::renew(std::span<const ClaimRef> refs, std::uint32_t lease_ms) {
  std::vector<Renewal> out;
  for (const ClaimRef& ref : refs) {
    Claim* claim = live(ref);
    if (claim == nullptr) {
      (void)stale(ref, "a renewal");
      out.push_back(Renewal::stale);
      continue;
    }
    claim->until_ms = std::max(claim->until_ms, now_ms_ + lease_ms);
    claim->lease_ms = lease_ms;
    if (type_of(ref.job_key) == "hash") set(ref.job_key, {{"lease_until_ms", std::to_string(claim->until_ms)}});
    out.push_back(claim->cancel ? Renewal::cancel : Renewal::renewed);
  }
  return out;
}

Result<std::vector<Result<void>>> MemoryDatabase::report(std::span<const Report> reports) {
  std::vector<Result<void>> out;
  for (const Report& report : reports) {
    if (const auto* lines = std::get_if<LogAppend>(&report)) out.push_back(append(*lines));
    if (const auto* ended = std::get_if<EndReport>(&report)) out.push_back(end(*ended));
    if (const auto* released = std::get_if<Release>(&report)) out.push_back(release(*released));
  }
  return out;
}

tl::unexpected<Error> MemoryDatabase::stale(const ClaimRef& ref, std::string_view what) {
  anomaly(ref.job_key + ": " + std::string(what) + " by claim " + ref.claim_id + " came too late");
  return fail(Code::stale_claim, ref.job_key + ": this claim is not live any more");
}

Result<void> MemoryDatabase::append(const LogAppend& report) {
  const Claim* claim = live(report.claim);
  if (claim == nullptr) return stale(report.claim, "output");
  auto& lines = logs_[report.claim.job_key].lines;
  for (Log line : report.lines) {
    line.seq += claim->log_base;
    if (lines.empty() || line.seq > lines.back().seq) lines.push_back(std::move(line));
  }
  return {};
}

Result<void> MemoryDatabase::end(const EndReport& report) {
  const ClaimRef& ref = report.claim;
  const auto found = claims_.find(ref.job_key);
  if (found != claims_.end() && found->second.state == State::ended && found->second.claim_id == ref.claim_id &&
      found->second.token == ref.token) {
    if (found->second.end == report.end) return {};
    return fail(Code::conflict, ref.job_key + " has ended already, in another way");
  }
  if (live(ref) == nullptr) return stale(ref, "an end");
  if (report.end.detail == "dead_letter") dead_letter(ref.job_key, found->second.queue, "bad_record");
  finish(ref.job_key, report.end, true);
  return {};
}

Result<void> MemoryDatabase::release(const Release& report) {
  const ClaimRef& ref = report.claim;
  const auto found = claims_.find(ref.job_key);
  if (found != claims_.end() && found->second.state == State::released && found->second.claim_id == ref.claim_id &&
      found->second.token == ref.token) {
    return {};
  }
  if (live(ref) == nullptr) return stale(ref, "a release");
  if (!report.ran) --found->second.deliveries;
  return give_back(ref.job_key, State::released);
}

Result<void> MemoryDatabase::give_back(const std::string& job, State state) {
  Claim& claim = claims_[job];
  if (claim.cancel) return finish(job, failure("cancelled", "cancelled"), false), Result<void>{};
  MJ_CHECK(want(claim.queue, "list"));
  lists_[claim.queue].push_back(job);
  claim.state = state;
  if (type_of(job) != "hash") return {};
  for (const char* name : {"claim_id", "runner_id", "lease_until_ms"}) hashes_[job].erase(name);
  set(job, {{"status", "dispatched"}, {"detail", "queued"}, {"updated_at", now_s()}});
  return {};
}

void MemoryDatabase::finish(const std::string& job, const JobEnd& end, bool by_owner) {
  Claim& claim = claims_[job];
  claim.state = State::ended;
  claim.end = end;
  claim.cancel = false;
  if (!by_owner) claim.claim_id.clear(), claim.token.clear();
  if (!claim.message.empty()) settle(std::exchange(claim.message, {}), end.status == JobStatus::finished);
  if (type_of(job) == "hash" || type_of(job) == "none") {
    for (const char* name : {"error", "error_info", "result", "usage", "layers", "receipt", "lease_until_ms"}) {
      hashes_[job].erase(name);
    }
    set(job, {{"ended_ms", std::to_string(now_ms_)}, {"updated_at", now_s()}});
    set(job, end_fields(end));
  } else {
    dead_letter(job, "", "wrong_type");
  }
  logs_[job].ended = true;
}

Result<std::vector<Lease>> MemoryDatabase::leases() const {
  std::vector<Lease> out;
  for (const auto& [job, claim] : claims_) {
    if (claim.state == State::live) out.push_back({job, claim.until_ms});
  }
  return out;
}

Result<bool> MemoryDatabase::expire(const Lease& lease) {
  const auto found = claims_.find(lease.job_key);
  if (found == claims_.end() || found->second.state != State::live) return false;
  if (found->second.until_ms != lease.until_ms || now_ms_ <= lease.until_ms) return false;
  MJ_CHECK(give_back(lease.job_key, State::expired));
  return true;
}

Result<std::uint32_t> MemoryDatabase::sweep_missing(std::uint32_t wait_ms) {
  std::uint32_t settled = 0;
  std::erase_if(missing_, [&](const auto& entry) {
    const auto& [job, queue] = entry.first;
    const auto type = type_of(job);
    if (type == "none" && now_ms_ <= entry.second + wait_ms) return false;
    if (type == "hash" && want(queue, "list")) {
      lists_[queue].push_back(job);
    } else {
      dead_letter(job, queue, type == "none" ? "no_record" : "wrong_type");
    }
    ++settled;
    return true;
  });
  return settled;
}

}  // namespace mycojobs
