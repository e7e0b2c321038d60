// What time brings, and what the journals and indexes say of jobs: arguments and answers of the scripts.
#include <algorithm>

#include "base/ids.h"
#include "domain/codec.h"
#include "store/job_fields.h"
#include "store/redis_store.h"

namespace mycojobs {
namespace {

constexpr std::size_t kPlacesAtOnce = 64;

std::uint32_t small_number_of(const std::string& text) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(number_of(text), UINT32_MAX));
}
std::vector<std::uint64_t> numbers_of(const std::string& text) {
  std::vector<std::uint64_t> out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    out.push_back(number_of(text.substr(at, end - at)));
    at = end + 1;
  }
  return out;
}

// What the flow of a job looks after.
bool is_gate(std::string_view condition) {
  return condition.starts_with("approval:") || condition.starts_with("signal:") || condition.starts_with("flow:");
}

// One row a field of mj:claim:<job key>: its name there and where it goes.
struct ClaimField {
  std::string_view name;
  void (*read)(ClaimView&, const std::string&);
};
constexpr ClaimField kClaimFields[] = {
    {"state", [](ClaimView& c, const std::string& t) { c.state = t; }},
    {"claim_id", [](ClaimView& c, const std::string& t) { c.claim_id = t; }},
    {"token", [](ClaimView& c, const std::string& t) { c.token_hash = t; }},
    {"queue", [](ClaimView& c, const std::string& t) { c.queue = t; }},
    {"instance", [](ClaimView& c, const std::string& t) { c.instance = t; }},
    {"reason", [](ClaimView& c, const std::string& t) { c.reason = t; }},
    {"status", [](ClaimView& c, const std::string& t) { c.status = t; }},
    {"detail", [](ClaimView& c, const std::string& t) { c.detail = t; }},
    {"end", [](ClaimView& c, const std::string& t) { c.end_digest = t; }},
    {"message", [](ClaimView& c, const std::string& t) { c.message = t; }},
    {"flow", [](ClaimView& c, const std::string& t) { c.flow = t; }},
    {"ckey", [](ClaimView& c, const std::string& t) { c.concurrency_key = t; }},
    {"idem", [](ClaimView& c, const std::string& t) { c.idempotency_key = t; }},
    {"epoch", [](ClaimView& c, const std::string& t) { c.epoch = number_of(t); }},
    {"lease_ms", [](ClaimView& c, const std::string& t) { c.lease_ms = number_of(t); }},
    {"until_ms", [](ClaimView& c, const std::string& t) { c.until_ms = number_of(t); }},
    {"ended_ms", [](ClaimView& c, const std::string& t) { c.ended_ms = number_of(t); }},
    {"waiting_since", [](ClaimView& c, const std::string& t) { c.waiting_since_ms = number_of(t); }},
    {"attempt", [](ClaimView& c, const std::string& t) { c.attempt = small_number_of(t); }},
    {"deliveries", [](ClaimView& c, const std::string& t) { c.deliveries = small_number_of(t); }},
    {"runner", [](ClaimView& c, const std::string& t) { c.runner = small_number_of(t); }},
    {"cancel", [](ClaimView& c, const std::string&) { c.cancel = true; }},
    {"leftover", [](ClaimView& c, const std::string&) { c.leftover = true; }},
    {"revs", [](ClaimView& c, const std::string& t) { c.revisions = numbers_of(t); }},
};

ClaimView claim_view(const Fields& fields) {
  ClaimView claim;
  claim.present = !fields.empty();
  for (const auto& [name, value] : fields) {
    for (const ClaimField& field : kClaimFields) {
      if (field.name == name) field.read(claim, value);
    }
  }
  return claim;
}

// The words of scripts/repair.lua, in the order of the enums.
constexpr std::string_view kFixWords[] = {"delete_claim", "set_claim", "drop_claim", "set_record", "enter",
                                          "leave",        "lease",     "enqueue",    "finish",     "restore"};
constexpr std::string_view kPlaceWords[] = {"",        "jobs",  "leases",   "delayed", "prerequisites", "ended",
                                            "overdue", "queue", "priority", "slots",   "held",          "waits"};

JobPlaces job_places(const std::string& job_key, const Reply& reply) {
  JobPlaces job;
  job.job_key = job_key;
  job.record_type = reply.at(0).text();
  job.record = reply.at(1).fields();
  job.claim_type = reply.at(2).text();
  job.claim_fields = reply.at(3).fields();
  job.claim = claim_view(job.claim_fields);
  for (const auto& [name, value] : reply.at(4).fields()) {
    if (name == "queue") job.claim.queue = value;
    if (name == "now_ms") job.now_ms = number_of(value);
    if (name == "lease_until_ms") job.lease_until_ms = number_of(value);
    if (name == "due_ms") job.due_ms = number_of(value);
    if (name == "check_ms") job.check_ms = number_of(value);
    if (name == "in_ended") job.in_ended = true;
    if (name == "in_jobs") job.in_jobs = true;
    if (name == "missing") job.missing = true;
    if (name == "in_priority") job.in_priority = true;
    if (name == "takes_slot") job.takes_slot = true;
    if (name == "held") job.held = true;
    if (name == "held_by") job.held_by.push_back(value);
    if (name == "slot") job.slots.push_back(value);
    if (name == "limited") job.limited = true;
    if (name == "slot_free") job.slot_free = true;
    if (name == "wait_until_ms") job.wait_until_ms = number_of(value);
    if (name == "updated_s") job.updated_s = number_of(value);
    if (name == "seen") job.seen = value;
    if (name == "in_queue") job.in_queue = small_number_of(value);
    if (name == "log_ended") job.log_ended = true;
  }
  const Reply waits = reply.at(5);
  for (std::size_t i = 0; i < waits.size(); ++i) job.waits_for.emplace_back(waits.at(i).text());
  const Reply awaited = reply.at(6);
  for (std::size_t i = 0; i + 4 < awaited.size(); i += 5) {
    const auto is = [&](std::size_t n) { return awaited.at(i + n).text() == "1"; };
    job.dependencies.push_back({std::string(awaited.at(i).text()), is(1), is(2), is(3), is(4)});
  }
  return job;
}

}  // namespace

Result<std::vector<std::string>> RedisStore::expire_instance(Id context, Id runner, const std::string& instance) {
  MJ_TRY(reply, run(context, scripts::expire_instance, Arguments{}.add(std::uint64_t{runner}).add(instance)));
  std::vector<std::string> jobs;
  for (std::size_t i = 0; i < reply.size(); ++i) jobs.emplace_back(reply.at(i).text());
  return jobs;
}

Result<TickReply> RedisStore::tick(Id context, const TickRequest& request) {
  Arguments arguments;
  arguments.add(std::uint64_t{request.missing_wait_ms}).add(request.retention_ms).add(request.retention_count);
  MJ_TRY(reply, run(context, scripts::tick, arguments.add(std::uint64_t{std::max(request.max, 1U)})));
  TickReply out;
  out.due = static_cast<std::uint32_t>(reply.at(0).number());
  out.settled = static_cast<std::uint32_t>(reply.at(1).number());
  out.missing = static_cast<std::uint32_t>(reply.at(2).number());
  out.overdue = static_cast<std::uint32_t>(reply.at(3).number());
  out.retired = static_cast<std::uint32_t>(reply.at(4).number());
  out.more = reply.at(5).number() == 1;
  out.next_due_ms = reply.at(6).number();
  return out;
}

Result<std::vector<AwaitedPrerequisites>> RedisStore::prerequisites_due(Id context, std::uint32_t max,
                                                                        std::uint32_t again_ms, Looker looker) {
  Arguments arguments;
  arguments.add(std::uint64_t{max}).add(std::uint64_t{again_ms});
  MJ_TRY(reply, run(context, scripts::prerequisites_due,
                    arguments.add(looker == Looker::coordinator ? "coordinator" : "agent")));
  std::vector<AwaitedPrerequisites> out;
  for (std::size_t i = 0; i < reply.size(); ++i) {
    const Reply entry = reply.at(i);
    // A list that cannot be read is one condition, which is then refused by whoever looks at it.
    const std::string text(entry.at(1).text());
    const Job job = decode<Job>({{"prerequisites", text}}).record;
    const bool readable = !job.prerequisites.empty();
    AwaitedPrerequisites awaited{std::string(entry.at(0).text()),
                                 readable ? job.prerequisites : std::vector<std::string>{text}, entry.at(2).number()};
    const bool of_flow = entry.at(3).text() == "1";
    const Reply given = entry.at(4);
    std::erase_if(awaited.conditions, [&](const std::string& condition) {
      if (of_flow && is_gate(condition)) return true;  // its flow has looked after it
      for (std::size_t n = 0; n < given.size(); ++n) {
        if (condition == "approval:" + std::string(given.at(n).text())) return true;
      }
      return false;
    });
    awaited.left = looker == Looker::agent && entry.at(5).text() == "1";
    out.push_back(std::move(awaited));
  }
  return out;
}

Result<void> RedisStore::prerequisites_settled(Id context, const std::string& job_key, const std::string& impossible) {
  MJ_CHECK(run(context, scripts::prerequisites_settled, Arguments{job_key, impossible}));
  return {};
}

Result<std::vector<Fact>> RedisStore::journal(Id context, const std::string& queue, std::uint64_t after_revision,
                                              std::uint32_t max) {
  const std::string key = "mj:journal:" + queue;
  const std::string first = std::to_string(after_revision + 1) + "-0";
  Arguments arguments{"XRANGE", key, first, "+", "COUNT"};
  auto reply = command(context, arguments.add(std::uint64_t{std::max(max, 1U)}));
  if (!reply) return fail(std::move(reply).error(), key);
  std::vector<Fact> facts;
  for (std::size_t i = 0; i < reply->size(); ++i) {
    Fact fact;
    const std::string id(reply->at(i).at(0).text());
    fact.revision = number_of(id.substr(0, id.find('-')));
    for (auto& [name, value] : reply->at(i).at(1).fields()) {
      if (name == "f") {
        fact.kind = std::move(value);
      } else if (name == "j") {
        fact.job_key = std::move(value);
      } else if (name == "at") {
        fact.at_ms = number_of(value);
      } else {
        fact.more.emplace_back(std::move(name), std::move(value));
      }
    }
    facts.push_back(std::move(fact));
  }
  return facts;
}

Result<std::vector<JobPlaces>> RedisStore::places(Id context, std::span<const std::string> job_keys, bool positions) {
  std::vector<JobPlaces> out;
  while (out.size() < job_keys.size()) {
    const auto some = job_keys.subspan(out.size(), std::min(kPlacesAtOnce, job_keys.size() - out.size()));
    Arguments arguments{positions ? "1" : "0"};
    arguments.add(std::uint64_t{some.size()});
    for (const std::string& key : some) arguments.add(key);
    MJ_TRY(reply, run(context, scripts::places, arguments));
    for (std::size_t i = 0; i < some.size(); ++i) out.push_back(job_places(some[i], reply.at(i)));
  }
  return out;
}

Result<bool> RedisStore::repair(Id context, const std::string& job_key, const Repair& repair) {
  Arguments arguments{job_key, repair.seen, repair.queue};
  arguments.add(repair.journal_head).add(std::uint64_t{repair.fixes.size()});
  for (const JobFix& fix : repair.fixes) {
    arguments.add(kFixWords[static_cast<std::size_t>(fix.kind)]).add(kPlaceWords[static_cast<std::size_t>(fix.place)]);
    arguments.add(fix.of).add(fix.score).add_list(fix.words);
  }
  MJ_TRY(reply, run(context, scripts::repair, arguments));
  return reply.number() == 1;
}

}  // namespace mycojobs
