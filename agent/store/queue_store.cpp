#include "store/queue_store.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/parse.h"
#include "model/codec.h"
#include "store/keys.h"
#include "store/redis/store_connection.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxQueueNames = 100000;

}  // namespace

Result<std::vector<QueueInfo>> QueueStore::queues(Id context) {
  MJ_TRY(lists, connection_.scan_keys(context, {"MATCH", "*queue:*"}, kMaxQueueNames));
  std::set<std::string> names;
  const std::string internal_queue = std::string(kInternalKeyPrefix) + "queue:";
  for (std::string& name : lists) {
    constexpr std::string_view kJournals = kQueueJournalKey;
    if (name.starts_with(kJournals)) names.insert(name.substr(kJournals.size()));
    if (name.starts_with("queue:") || name.starts_with(internal_queue)) names.insert(std::move(name));
  }
  std::set<std::string, std::less<>> paused;
  MJ_TRY(index_names, connection_.command(context, {"SMEMBERS", kQueuesKey}));
  for (std::size_t i = 0; i < index_names.size(); ++i) names.emplace(index_names.at(i).text());
  MJ_TRY(paused_names, connection_.command(context, {"SMEMBERS", kPausedKey}));
  for (std::size_t i = 0; i < paused_names.size(); ++i) names.insert(*paused.emplace(paused_names.at(i).text()).first);
  std::vector<QueueInfo> out;
  for (const std::string& name : names) {
    QueueInfo info;
    info.queue = name;
    info.paused = paused.contains(name);
    const std::string journal = kQueueJournalKey + name;
    const std::string prioritised = kPriorityKey + name;
    MJ_TRY(type, connection_.command(context, {"TYPE", name}));
    // A key such as queue:python:meta belongs to another system, because its name is not a valid script type.
    const bool is_foreign = name.starts_with("queue:") && !is_script_type(std::string_view(name).substr(6));
    if (is_foreign && type.text() != "list" && type.text() != "none") continue;
    if (type.text() == "list") {
      MJ_TRY(length, connection_.command(context, {"LLEN", name}));
      info.length = length.number();
    } else if (type.text() != "none") {
      info.wrong_type = type.text();
    }
    MJ_TRY(priority_count, connection_.command(context, {"ZCARD", prioritised}));
    info.prioritised = priority_count.number();
    MJ_TRY(facts, connection_.command(context, {"XLEN", journal}));
    info.facts = facts.number();
    MJ_TRY(journal_exists, connection_.command(context, {"EXISTS", journal}));
    if (journal_exists.number() == 1) {
      MJ_TRY(stream, connection_.command(context, {"XINFO", "STREAM", journal}));
      for (const auto& [field, value] : stream.fields()) {
        if (field == "last-generated-id") parse_u64(value.substr(0, value.find('-')), info.journal_head);
      }
    }
    MJ_TRY(horizon, connection_.command(context, {"HGET", kJournalHorizonKey, name}));
    info.horizon_ms = horizon.number();
    out.push_back(std::move(info));
  }
  return out;
}

Result<bool> QueueStore::set_queue_paused(Id context, const std::string& queue, bool paused) {
  MJ_TRY(changed, connection_.command(context, {paused ? "SADD" : "SREM", kPausedKey, queue}));
  MJ_CHECK(connection_.command(context, {"PUBLISH", kWakeChannel, queue}));
  return changed.number() == 1;
}

Result<std::uint32_t> QueueStore::purge_queue(Id context, const std::string& queue, std::uint32_t max) {
  MJ_TRY(reply, connection_.run(context, scripts::purge_queue, Arguments{queue}.add(std::uint64_t{std::max(max, 1U)})));
  return static_cast<std::uint32_t>(reply.number());
}

Result<std::vector<std::string>> QueueStore::queue_entries(Id context, const std::string& queue, std::uint64_t from,
                                                           std::uint32_t max) {
  const std::string first = "-" + std::to_string(from + max);
  const std::string last = "-" + std::to_string(from + 1);
  MJ_TRY(reply, connection_.command(context, {"LRANGE", queue, first, last}));
  std::vector<std::string> out;
  for (std::size_t i = reply.size(); i-- > 0;) out.emplace_back(reply.at(i).text());
  return out;
}

Result<std::uint64_t> QueueStore::queue_length(Id context, const std::string& queue) {
  MJ_TRY(reply, connection_.command(context, {"LLEN", queue}));
  return reply.number();
}

Result<KnownQueues> QueueStore::known_queues(Id context) {
  constexpr std::uint64_t kMaxQueues = 10000, kMaxRunners = 1000;
  MJ_TRY(reply, connection_.run(context, scripts::known_queues, Arguments{}.add(kMaxQueues).add(kMaxRunners)));
  KnownQueues out;
  for (std::size_t i = 0; i < reply.at(0).size(); ++i) out.journals.emplace_back(reply.at(0).at(i).text());
  for (std::size_t i = 0; i < reply.at(1).size(); ++i) {
    const Runner runner = decode<Runner>({{"executors", std::string(reply.at(1).at(i).text())}}).record;
    out.types.insert(runner.executors.begin(), runner.executors.end());
  }
  return out;
}

const std::set<std::string, std::less<>>& QueueStore::served_types(Id context) {
  constexpr std::chrono::seconds kServedTypesLifetime{10};
  StoreConnection::ServedTypes& served = connection_.served_types_cache(context);
  const auto now = std::chrono::steady_clock::now();
  if (now < served.expires_at) return served.types;
  served.expires_at = now + kServedTypesLifetime;
  // After an error, which the metrics of store calls count, the previous types stay valid.
  if (auto known = known_queues(context)) served.types = std::move(known->types);
  return served.types;
}

Result<Survey> QueueStore::survey(Id context, std::span<const std::string> queues) {
  queues = queues.first(std::min(queues.size(), kMaxSurveyedQueues));
  Arguments arguments;
  arguments.add(std::uint64_t{queues.size()});
  for (const std::string& queue : queues) arguments.add(queue);
  MJ_TRY(reply, connection_.run(context, scripts::survey, arguments));
  Survey out;
  const Reply rows = reply.at(0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Reply row = rows.at(i);
    std::optional<std::uint64_t> waiting;
    if (!row.at(4).text().empty()) waiting = row.at(4).number();
    out.queues.push_back(
        {std::string(row.at(0).text()), row.at(1).number() + row.at(2).number(), waiting, row.at(3).number() == 1});
  }
  std::size_t index = 1;
  for (std::uint64_t* count : {&out.live, &out.delayed, &out.prerequisites, &out.ended, &out.dead_letters,
                               &out.active_flows, &out.outbox, &out.inbox}) {
    *count = reply.at(index++).number();
  }
  return out;
}

Result<std::vector<DeadLetter>> QueueStore::dead_letters(Id context, std::size_t max) {
  MJ_TRY(reply, connection_.command(
                    context, Arguments{"XREVRANGE", kDeadLettersKey, "+", "-", "COUNT"}.add(std::uint64_t{max})));
  std::vector<DeadLetter> out;
  for (std::size_t i = reply.size(); i-- > 0;) {
    const std::string id(reply.at(i).at(0).text());
    DeadLetter letter;
    letter.id = id;
    parse_u64(id.substr(0, id.find('-')), letter.at_ms);
    for (const auto& [name, value] : reply.at(i).at(1).fields()) {
      if (name == "key") letter.job_key = value;
      if (name == "queue") letter.queue = value;
      if (name == "reason") letter.reason = value;
    }
    out.push_back(std::move(letter));
  }
  return out;
}

Result<void> QueueStore::resolve_dead_letter(Id context, const std::string& id, bool requeue) {
  const auto dash = id.find('-');
  std::uint64_t number = 0;
  if (dash == std::string::npos || !parse_u64(id.substr(0, dash), number) || !parse_u64(id.substr(dash + 1), number)) {
    return fail(Code::invalid, "\"" + id + "\" is not the id of a dead letter: give an id such as 1700000000000-0");
  }
  MJ_TRY(reply, connection_.run(context, scripts::settle_dead_letter, Arguments{id, requeue ? "1" : "0"}));
  if (reply.text() == "missing") return fail(Code::not_found, "dead letter " + id + " does not exist");
  if (!reply.text().empty()) return fail(Code::conflict, std::string(reply.text()));
  return {};
}

}  // namespace mycojobs
