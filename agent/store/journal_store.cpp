#include "store/journal_store.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/parse.h"
#include "store/job_fields.h"
#include "store/keys.h"
#include "store/redis/store_connection.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxJobStatesBatch = 64, kMaxMessageStatesBatch = 64, kMaxRevisionsBatch = 256;

std::uint32_t parse_small_number(const std::string& text) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(parse_whole_number(text), UINT32_MAX));
}

std::vector<std::uint64_t> parse_numbers(const std::string& text) {
  std::vector<std::uint64_t> out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    out.push_back(parse_whole_number(text.substr(at, end - at)));
    at = end + 1;
  }
  return out;
}

// A field of mj:claim:<job key> and its member of ClaimView.
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
    {"epoch", [](ClaimView& c, const std::string& t) { c.epoch = parse_whole_number(t); }},
    {"lease_ms", [](ClaimView& c, const std::string& t) { c.lease_ms = parse_whole_number(t); }},
    {"until_ms", [](ClaimView& c, const std::string& t) { c.lease_until_ms = parse_whole_number(t); }},
    {"ended_ms", [](ClaimView& c, const std::string& t) { c.ended_ms = parse_whole_number(t); }},
    {"waiting_since", [](ClaimView& c, const std::string& t) { c.waiting_since_ms = parse_whole_number(t); }},
    {"attempt", [](ClaimView& c, const std::string& t) { c.attempt = parse_small_number(t); }},
    {"deliveries", [](ClaimView& c, const std::string& t) { c.deliveries = parse_small_number(t); }},
    {"runner", [](ClaimView& c, const std::string& t) { c.runner = parse_small_number(t); }},
    {"cancel", [](ClaimView& c, const std::string&) { c.cancel_requested = true; }},
    {"leftover", [](ClaimView& c, const std::string&) { c.has_stale_entry = true; }},
    {"revs", [](ClaimView& c, const std::string& t) { c.revisions = parse_numbers(t); }},
};

// Names in store/scripts/repair.lua, in the order of the enums.
constexpr std::string_view kFixNames[] = {"delete_claim", "set_claim", "drop_claim", "set_record", "enter",
                                          "leave",        "lease",     "enqueue",    "finish",     "restore"};

constexpr std::string_view kIndexNames[] = {"",        "jobs",  "leases",   "delayed", "prerequisites", "ended",
                                            "overdue", "queue", "priority", "slots",   "held",          "waits"};

}  // namespace

ClaimView parse_claim(const Fields& fields) {
  ClaimView claim;
  claim.exists = !fields.empty();
  for (const auto& [name, value] : fields) {
    for (const ClaimField& field : kClaimFields) {
      if (field.name == name) field.read(claim, value);
    }
  }
  return claim;
}

namespace {

JobStoreState parse_job_state(const std::string& job_key, const Reply& reply) {
  JobStoreState job;
  job.job_key = job_key;
  job.record_type = reply.at(0).text();
  job.record = reply.at(1).fields();
  job.claim_type = reply.at(2).text();
  job.claim_fields = reply.at(3).fields();
  job.claim = parse_claim(job.claim_fields);
  for (const auto& [name, value] : reply.at(4).fields()) {
    if (name == "queue") job.claim.queue = value;
    if (name == "now_ms") job.now_ms = parse_whole_number(value);
    if (name == "lease_until_ms") job.lease_until_ms = parse_whole_number(value);
    if (name == "due_ms") job.due_ms = parse_whole_number(value);
    if (name == "check_ms") job.check_ms = parse_whole_number(value);
    if (name == "in_ended") job.in_ended_index = true;
    if (name == "in_jobs") job.in_job_index = true;
    if (name == "missing") job.awaits_record = true;
    if (name == "in_priority") job.in_priority_index = true;
    if (name == "takes_slot") job.occupies_slot = true;
    if (name == "held") job.is_held = true;
    if (name == "held_by") job.held_by_keys.push_back(value);
    if (name == "slot") job.slot_keys.push_back(value);
    if (name == "limited") job.has_limit = true;
    if (name == "slot_free") job.has_free_slot = true;
    if (name == "wait_until_ms") job.wait_until_ms = parse_whole_number(value);
    if (name == "updated_s") job.updated_s = parse_whole_number(value);
    if (name == "seen") job.digest = value;
    if (name == "in_queue") job.queue_entry_count = parse_small_number(value);
    if (name == "log_ended") job.log_ended = true;
  }
  const Reply waits = reply.at(5);
  for (std::size_t i = 0; i < waits.size(); ++i) job.awaited_jobs.emplace_back(waits.at(i).text());
  const Reply awaited = reply.at(6);
  for (std::size_t i = 0; i + 4 < awaited.size(); i += 5) {
    const auto is_set = [&](std::size_t offset) { return awaited.at(i + offset).text() == "1"; };
    job.dependencies.push_back({std::string(awaited.at(i).text()), is_set(1), is_set(2), is_set(3), is_set(4)});
  }
  return job;
}

// Parses an entry of a journal.
Fact parse_fact(const Reply& entry) {
  Fact fact;
  const std::string id(entry.at(0).text());
  fact.revision = parse_whole_number(id.substr(0, id.find('-')));
  for (auto& [name, value] : entry.at(1).fields()) {
    if (name == "f") {
      fact.kind = std::move(value);
    } else if (name == "j") {
      fact.job_key = std::move(value);
    } else if (name == "at") {
      fact.at_ms = parse_whole_number(value);
    } else {
      fact.fields.emplace_back(std::move(name), std::move(value));
    }
  }
  return fact;
}

}  // namespace

Result<std::vector<Fact>> JournalStore::journal(Id context, const std::string& queue, std::uint64_t after_revision,
                                                std::uint32_t max) {
  const std::string key = kQueueJournalKey + queue;
  const std::string first = std::to_string(after_revision + 1) + "-0";
  Arguments arguments{"XRANGE", key, first, "+", "COUNT"};
  auto reply = connection_.command(context, arguments.add(std::uint64_t{std::max(max, 1U)}));
  if (!reply) return fail(std::move(reply).error(), key);
  std::vector<Fact> facts;
  for (std::size_t i = 0; i < reply->size(); ++i) facts.push_back(parse_fact(reply->at(i)));
  return facts;
}

Result<std::vector<Fact>> JournalStore::journal_at(Id context, const std::string& queue,
                                                   std::span<const std::uint64_t> revisions) {
  std::vector<Fact> facts;
  for (std::size_t at = 0; at < revisions.size(); at += kMaxRevisionsBatch) {
    const auto batch = revisions.subspan(at, std::min(kMaxRevisionsBatch, revisions.size() - at));
    Arguments arguments{queue};
    arguments.add(std::uint64_t{batch.size()});
    for (const std::uint64_t revision : batch) arguments.add(revision);
    MJ_TRY(reply, connection_.run(context, scripts::journal_at, arguments));
    for (std::size_t i = 0; i < reply.size(); ++i) facts.push_back(parse_fact(reply.at(i)));
  }
  return facts;
}

Result<std::vector<JobStoreState>> JournalStore::job_states(Id context, std::span<const std::string> job_keys,
                                                            bool with_positions) {
  std::vector<JobStoreState> out;
  while (out.size() < job_keys.size()) {
    const auto batch = job_keys.subspan(out.size(), std::min(kMaxJobStatesBatch, job_keys.size() - out.size()));
    Arguments arguments{with_positions ? "1" : "0"};
    arguments.add(std::uint64_t{batch.size()});
    for (const std::string& key : batch) arguments.add(key);
    MJ_TRY(reply, connection_.run(context, scripts::places, arguments));
    for (std::size_t i = 0; i < batch.size(); ++i) out.push_back(parse_job_state(batch[i], reply.at(i)));
  }
  return out;
}

Result<bool> JournalStore::repair(Id context, const std::string& job_key, const Repair& repair) {
  Arguments arguments{job_key, repair.inspection_digest, repair.queue};
  arguments.add(repair.journal_head).add(std::uint64_t{repair.fixes.size()});
  for (const JobFix& fix : repair.fixes) {
    arguments.add(kFixNames[static_cast<std::size_t>(fix.kind)]).add(kIndexNames[static_cast<std::size_t>(fix.index)]);
    arguments.add(fix.argument).add(fix.score).add_list(fix.fields);
  }
  MJ_TRY(reply, connection_.run(context, scripts::repair, arguments));
  return reply.number() == 1;
}

Result<std::vector<MessageStoreState>> JournalStore::message_states(Id context,
                                                                    std::span<const std::string> message_keys) {
  std::vector<MessageStoreState> out;
  while (out.size() < message_keys.size()) {
    const auto batch =
        message_keys.subspan(out.size(), std::min(kMaxMessageStatesBatch, message_keys.size() - out.size()));
    Arguments arguments;
    arguments.add(std::uint64_t{batch.size()});
    for (const std::string& key : batch) arguments.add(key);
    MJ_TRY(reply, connection_.run(context, scripts::message_places, arguments));
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const Reply row = reply.at(i);
      MessageStoreState state{batch[i], std::string(row.at(0).text()), row.at(1).fields(), {}, false, ""};
      for (std::size_t k = 0; k < row.at(2).size(); ++k) {
        const std::string kind(row.at(2).at(k).text());
        if (kind == "inbox") {
          state.in_inbox = true;
        } else {
          state.outbox.push_back(kind);
        }
      }
      state.digest = row.at(3).text();
      out.push_back(std::move(state));
    }
  }
  return out;
}

Result<bool> JournalStore::repair_message(Id context, const std::string& message_key,
                                          const std::string& inspection_digest, const std::vector<std::string>& kinds) {
  Arguments arguments{message_key, inspection_digest};
  arguments.add(std::uint64_t{kinds.size()});
  for (const std::string& kind : kinds) arguments.add(kind);
  MJ_TRY(reply, connection_.run(context, scripts::repair_message, arguments));
  return reply.number() == 1;
}

namespace {

// Sets next_job to the job that waits longer: the next job of the list, or the next job with a priority. A time of 0 is
// unknown.
QueueTally parse_tally(const Reply& row) {
  QueueTally queue{std::string(row.at(0).text()), row.at(1).number(), row.at(2).number(), row.at(3).number() == 1,
                   std::string(row.at(4).text()), row.at(5).number()};
  const std::uint64_t priority_since_ms = row.at(7).number();
  const bool is_older =
      priority_since_ms != 0 && (queue.next_waiting_since_ms == 0 || priority_since_ms < queue.next_waiting_since_ms);
  if (!row.at(6).text().empty() && (queue.next_job.empty() || is_older)) {
    queue.next_job = row.at(6).text();
    queue.next_waiting_since_ms = priority_since_ms;
  }
  return queue;
}

}  // namespace

Result<Tally> JournalStore::tally(Id context, std::uint64_t slot_ms, std::uint32_t slots) {
  Arguments arguments;
  arguments.add(slot_ms).add(std::uint64_t{slots}).add(std::uint64_t{kBuiltInQueues.size()});
  for (const std::string_view queue : kBuiltInQueues) arguments.add(queue);
  MJ_TRY(reply, connection_.run(context, scripts::tally, arguments));
  Tally out;
  static constexpr std::pair<std::string_view, std::uint64_t Tally::*> kNumbers[] = {
      {"now_ms", &Tally::now_ms},
      {"changed_us", &Tally::changed_us},
      {"jobs", &Tally::jobs},
      {"running", &Tally::running},
      {"delayed", &Tally::delayed},
      {"prerequisites", &Tally::prerequisites},
      {"held", &Tally::held},
      {"missing", &Tally::missing},
      {"ended", &Tally::ended},
      {"dead", &Tally::dead_letters},
      {"anomalies", &Tally::anomalies},
      {"refusals", &Tally::refusals},
      {"notices", &Tally::notices},
      {"outbox", &Tally::outbox},
      {"inbox", &Tally::inbox},
      {"flows", &Tally::flows},
      {"flows_active", &Tally::active_flows}};
  const Reply numbers = reply.at(0), ends = reply.at(1), queues = reply.at(2);
  for (std::size_t i = 0; i + 1 < numbers.size(); i += 2) {
    for (const auto& [name, member] : kNumbers) {
      if (name == numbers.at(i).text()) out.*member = numbers.at(i + 1).number();
    }
  }
  for (std::size_t i = 0; i < ends.size(); ++i) out.ended_per_slot.push_back(ends.at(i).number());
  for (std::size_t i = 0; i < queues.size(); ++i) out.queues.push_back(parse_tally(queues.at(i)));
  return out;
}

Result<std::vector<std::string>> JournalStore::anomalies(Id context, std::size_t max) {
  MJ_TRY(reply, connection_.command(context,
                                    Arguments{"XREVRANGE", kAnomaliesKey, "+", "-", "COUNT"}.add(std::uint64_t{max})));
  std::vector<std::string> out;
  for (std::size_t i = reply.size(); i-- > 0;) out.emplace_back(reply.at(i).at(1).at(1).text());
  return out;
}

Result<void> JournalStore::record_refusal(Id context, const RefusalNote& note) {
  Arguments arguments;
  arguments.add(std::uint64_t{note.actor})
      .add(note.action)
      .add(truncate_utf8(note.resource, kMaxReasonBytes))
      .add(note.access_list);
  MJ_CHECK(connection_.run(context, scripts::note_refusal, arguments));
  connection_.metrics().add(Metric::refusals, {context, note.action});
  if (note.action == "deliver") connection_.metrics().add(Metric::messages, {context, "refused"});
  return {};
}

Result<std::vector<RefusalNote>> JournalStore::refusals(Id context, std::size_t max) {
  MJ_TRY(reply,
         connection_.command(context, Arguments{"XREVRANGE", kRefusalsKey, "+", "-", "COUNT"}.add(std::uint64_t{max})));
  std::vector<RefusalNote> notes;
  for (std::size_t i = 0; i < reply.size(); ++i) {
    RefusalNote note;
    const std::string id(reply.at(i).at(0).text());
    parse_u64(id.substr(0, id.find('-')), note.number);
    for (const auto& [name, value] : reply.at(i).at(1).fields()) {
      std::uint64_t number = 0;
      if (name == "at") parse_u64(value, note.at_ms);
      if (name == "actor" && parse_u64(value, number)) note.actor = static_cast<Id>(number);
      if (name == "action") note.action = value;
      if (name == "thing") note.resource = value;
      if (name == "list") note.access_list = value;
    }
    notes.push_back(std::move(note));
  }
  return notes;
}

}  // namespace mycojobs
