// RedisStore: queues, dead letters and runners.
#include <algorithm>
#include <set>

#include "base/parse.h"
#include "model/codec.h"
#include "store/job_fields.h"
#include "store/keys.h"
#include "store/redis/redis_store.h"
#include "store/redis/store_metrics.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxNames = 100000;
constexpr std::uint64_t kRecordScanIntervalMs =
    600000;  // interval between two scans of all keys for records of runners

Result<void> check_reply(const Reply& reply, const std::string& name) {
  if (reply.text() == "missing") return fail(Code::not_found, name + " does not exist");
  if (!reply.text().empty()) return fail(Code::conflict, std::string(reply.text()));
  return {};
}

}  // namespace

Result<void> RedisStore::requeue(Id context, const std::string& job_key) {
  MJ_TRY(reply, run(context, scripts::requeue, Arguments{job_key}));
  auto answer = check_reply(reply, job_key);
  if (!answer && answer.error().code == Code::conflict)
    return fail(Code::conflict, job_key + " " + answer.error().message);
  return answer;
}

Result<std::vector<QueueInfo>> RedisStore::queues(Id context) {
  MJ_TRY(lists, scan(context, {"MATCH", "*queue:*"}, kMaxNames));
  std::set<std::string> names;
  const std::string internal_queue = std::string(kInternalKeyPrefix) + "queue:";
  for (std::string& name : lists) {
    constexpr std::string_view kJournals = kQueueJournalKey;
    if (name.starts_with(kJournals)) names.insert(name.substr(kJournals.size()));
    if (name.starts_with("queue:") || name.starts_with(internal_queue)) names.insert(std::move(name));
  }
  std::set<std::string, std::less<>> paused;
  MJ_TRY(index_names, command(context, {"SMEMBERS", kQueuesKey}));
  for (std::size_t i = 0; i < index_names.size(); ++i) names.emplace(index_names.at(i).text());
  MJ_TRY(paused_names, command(context, {"SMEMBERS", kPausedKey}));
  for (std::size_t i = 0; i < paused_names.size(); ++i) names.insert(*paused.emplace(paused_names.at(i).text()).first);
  std::vector<QueueInfo> out;
  for (const std::string& name : names) {
    QueueInfo info;
    info.queue = name;
    info.paused = paused.contains(name);
    const std::string journal = kQueueJournalKey + name;
    const std::string prioritised = kPriorityKey + name;
    MJ_TRY(type, command(context, {"TYPE", name}));
    // A key such as queue:python:meta belongs to another system, because its name is not a valid script type.
    const bool is_foreign = name.starts_with("queue:") && !is_script_type(std::string_view(name).substr(6));
    if (is_foreign && type.text() != "list" && type.text() != "none") continue;
    if (type.text() == "list") {
      MJ_TRY(length, command(context, {"LLEN", name}));
      info.length = length.number();
    } else if (type.text() != "none") {
      info.wrong_type = type.text();
    }
    MJ_TRY(priority_count, command(context, {"ZCARD", prioritised}));
    info.prioritised = priority_count.number();
    MJ_TRY(facts, command(context, {"XLEN", journal}));
    info.facts = facts.number();
    MJ_TRY(journal_exists, command(context, {"EXISTS", journal}));
    if (journal_exists.number() == 1) {
      MJ_TRY(stream, command(context, {"XINFO", "STREAM", journal}));
      for (const auto& [field, value] : stream.fields()) {
        if (field == "last-generated-id") parse_u64(value.substr(0, value.find('-')), info.journal_head);
      }
    }
    MJ_TRY(horizon, command(context, {"HGET", kJournalHorizonKey, name}));
    info.horizon_ms = horizon.number();
    out.push_back(std::move(info));
  }
  return out;
}

Result<bool> RedisStore::set_queue_paused(Id context, const std::string& queue, bool paused) {
  MJ_TRY(changed, command(context, {paused ? "SADD" : "SREM", kPausedKey, queue}));
  MJ_CHECK(command(context, {"PUBLISH", kWakeChannel, queue}));
  return changed.number() == 1;
}

Result<std::uint32_t> RedisStore::purge_queue(Id context, const std::string& queue, std::uint32_t max) {
  MJ_TRY(reply, run(context, scripts::purge_queue, Arguments{queue}.add(std::uint64_t{std::max(max, 1U)})));
  return static_cast<std::uint32_t>(reply.number());
}

Result<std::vector<std::string>> RedisStore::queue_entries(Id context, const std::string& queue, std::uint64_t from,
                                                           std::uint32_t max) {
  const std::string first = "-" + std::to_string(from + max);
  const std::string last = "-" + std::to_string(from + 1);
  MJ_TRY(reply, command(context, {"LRANGE", queue, first, last}));
  std::vector<std::string> out;
  for (std::size_t i = reply.size(); i-- > 0;) out.emplace_back(reply.at(i).text());
  return out;
}

Result<KnownQueues> RedisStore::known_queues(Id context) {
  constexpr std::uint64_t kMaxQueues = 10000, kMaxRunners = 1000;
  MJ_TRY(reply, run(context, scripts::known_queues, Arguments{}.add(kMaxQueues).add(kMaxRunners)));
  KnownQueues out;
  for (std::size_t i = 0; i < reply.at(0).size(); ++i) out.journals.emplace_back(reply.at(0).at(i).text());
  for (std::size_t i = 0; i < reply.at(1).size(); ++i) {
    const Runner runner = decode<Runner>({{"executors", std::string(reply.at(1).at(i).text())}}).record;
    out.types.insert(runner.executors.begin(), runner.executors.end());
  }
  return out;
}

const TypeNames& RedisStore::served_types(Id context) {
  constexpr std::chrono::seconds kServedTypesLifetime{10};
  ServedTypes& served = served_types_[context];
  const auto now = std::chrono::steady_clock::now();
  if (now < served.expires_at) return served.types;
  served.expires_at = now + kServedTypesLifetime;
  // After an error, which the metrics of store calls count, the previous types stay valid.
  if (auto known = known_queues(context)) served.types = std::move(known->types);
  return served.types;
}

Result<Survey> RedisStore::survey(Id context, std::span<const std::string> queues) {
  queues = queues.first(std::min(queues.size(), kMaxSurveyedQueues));
  Arguments arguments;
  arguments.add(std::uint64_t{queues.size()});
  for (const std::string& queue : queues) arguments.add(queue);
  MJ_TRY(reply, run(context, scripts::survey, arguments));
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

Result<std::vector<DeadLetter>> RedisStore::dead_letters(Id context, std::size_t max) {
  MJ_TRY(reply, command(context, Arguments{"XREVRANGE", kDeadLettersKey, "+", "-", "COUNT"}.add(std::uint64_t{max})));
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

Result<std::vector<std::string>> RedisStore::anomalies(Id context, std::size_t max) {
  MJ_TRY(reply, command(context, Arguments{"XREVRANGE", kAnomaliesKey, "+", "-", "COUNT"}.add(std::uint64_t{max})));
  std::vector<std::string> out;
  for (std::size_t i = reply.size(); i-- > 0;) out.emplace_back(reply.at(i).at(1).at(1).text());
  return out;
}

Result<void> RedisStore::resolve_dead_letter(Id context, const std::string& id, bool requeue) {
  const auto dash = id.find('-');
  std::uint64_t number = 0;
  if (dash == std::string::npos || !parse_u64(id.substr(0, dash), number) || !parse_u64(id.substr(dash + 1), number)) {
    return fail(Code::invalid, "\"" + id + "\" is not the id of a dead letter: give an id such as 1700000000000-0");
  }
  MJ_TRY(reply, run(context, scripts::settle_dead_letter, Arguments{id, requeue ? "1" : "0"}));
  return check_reply(reply, "dead letter " + id);
}

// Returns runner ids from the index mj:runners. The index contains each runner that was ever held. Records of other
// clients are added by a scan of all keys, which the first caller makes after kRecordScanIntervalMs for all clients.
Result<std::set<Id>> RedisStore::runner_ids(Id context, std::uint64_t now_ms, bool scan_records) {
  std::set<Id> ids;
  const auto add = [&ids](std::string_view text) {
    std::uint64_t id = 0;
    if (!parse_u64(text, id) || id == 0 || id > UINT32_MAX || std::to_string(id) != text) return false;
    ids.insert(static_cast<Id>(id));
    return true;
  };
  MJ_TRY(index_ids, command(context, {"ZRANGE", kRunnersKey, "0", "-1"}));
  for (std::size_t i = 0; i < index_ids.size(); ++i) add(index_ids.at(i).text());
  if (!scan_records) return ids;
  MJ_TRY(last_scan, command(context, {"ZSCORE", kRunnersKey, "*"}));
  std::uint64_t checked_ms = 0;
  parse_u64(last_scan.text(), checked_ms);
  if (checked_ms <= now_ms && now_ms - checked_ms < kRecordScanIntervalMs) return ids;
  Arguments index{"ZADD", kRunnersKey};
  index.add(now_ms).add("*");
  MJ_TRY(names, scan(context, {"MATCH", "runner:*"}, kMaxNames));
  for (const std::string& name : names) {
    const std::string_view id = std::string_view(name).substr(7);
    if (add(id)) index.add("0").add(id);
  }
  MJ_CHECK(command(context, index));
  return ids;
}

Result<std::vector<RunnerInfo>> RedisStore::runners(Id context) { return list_runners(context, true); }

Result<std::vector<RunnerInfo>> RedisStore::held_runners(Id context) {
  MJ_TRY(infos, list_runners(context, false));
  std::erase_if(infos, [](const RunnerInfo& info) { return info.holder.instance.empty(); });
  return infos;
}

Result<std::vector<RunnerInfo>> RedisStore::list_runners(Id context, bool scan_records) {
  MJ_TRY(time, command(context, {"TIME"}));
  const std::uint64_t now = time.at(0).number() * 1000 + time.at(1).number() / 1000;
  MJ_TRY(ids, runner_ids(context, now, scan_records));
  MJ_TRY(live_leases, leases(context));
  std::map<std::string, std::uint32_t> claim_counts;  // by runner id
  for (const Lease& lease : live_leases) {
    MJ_TRY(runner, command(context, {"HGET", kClaimKey + lease.job_key, "runner"}));
    ++claim_counts[std::string(runner.text())];
  }
  std::vector<RunnerInfo> out;
  for (const Id id : ids) {
    auto record = load(context, "runner:" + std::to_string(id));
    if (!record && record.error().code == Code::unavailable) return tl::unexpected(record.error());
    if (!record) {  // the record was deleted, or the key is not a hash
      if (record.error().code == Code::not_found) {
        const std::string id_text = std::to_string(id);
        MJ_CHECK(command(context, {"ZREM", kRunnersKey, id_text}));
        // Another client may have written the record again before ZREM; then the index must keep it.
        const std::string key = "runner:" + id_text;
        MJ_TRY(record_exists, command(context, {"EXISTS", key}));
        if (record_exists.number() > 0) MJ_CHECK(command(context, {"ZADD", kRunnersKey, "NX", "0", id_text}));
      }
      continue;
    }
    RunnerInfo info;
    info.runner = decode<Runner>(*record).record;
    info.runner.id = id;
    info.live_claim_count = claim_counts[std::to_string(id)];
    MJ_TRY(hold, command(context, {"HGETALL", kRunnerOwnerKey + std::to_string(id)}));
    std::uint64_t until = 0;
    for (const auto& [field, value] : hold.fields()) {
      if (field == "instance") info.holder.instance = value;
      if (field == "host") info.holder.host = value;
      if (field == "boot_id") info.holder.boot_id = value;
      std::uint64_t pid = 0;
      if (field == "pid" && parse_u64(value, pid)) info.holder.pid = static_cast<std::int64_t>(pid);
      if (field == "until_ms") parse_u64(value, until);
    }
    info.hold_remaining_ms = until > now ? until - now : 0;
    out.push_back(std::move(info));
  }
  return out;
}

Result<void> RedisStore::hold_runner(Id context, const Runner& runner, const RunnerHolder& self, std::uint32_t ttl_ms,
                                     const std::string& replaces, RunnerHolder& held_by) {
  Fields fields = runner_fields(runner);
  std::erase_if(fields, [](const auto& field) { return field.first == "topic" || field.first == "local"; });
  const Fields initial_fields{{"topic", runner.topic}, {"local", runner.local ? "true" : "false"}};
  Arguments arguments;
  arguments.add(std::uint64_t{runner.id}).add(self.instance).add(self.host).add(self.boot_id);
  arguments.add(static_cast<std::uint64_t>(self.pid)).add(replaces).add(std::uint64_t{ttl_ms}).add(runner.pubkey);
  arguments.add_list(fields).add_list(initial_fields);
  MJ_TRY(answer, run(context, scripts::hold_runner, arguments));
  const std::string_view status = answer.at(0).text();
  if (status == "held") {
    initialize_series(metrics(), context, runner.executors);
    return {};
  }
  if (status == "key") {
    const std::string key = "runner:" + std::to_string(runner.id), registered(answer.at(1).text());
    held_by = {};
    return fail(
        Code::conflict,
        key + " of context " + std::to_string(context) + " has the public key " + registered +
            (runner.pubkey.empty() ? ", and this agent has no key" : ", and this agent has the key " + runner.pubkey) +
            ": name the registered key by runner_key, or replace it with `mycojobs runner update " +
            std::to_string(runner.id) + " --pubkey KEY`");
  }
  held_by.instance = answer.at(1).text();
  held_by.host = answer.at(2).text();
  held_by.boot_id = answer.at(3).text();
  held_by.pid = static_cast<std::int64_t>(answer.at(4).number());
  return fail(Code::conflict, "runner " + std::to_string(runner.id) + " is held by process " +
                                  std::to_string(held_by.pid) + " on " + held_by.host +
                                  "; choose another runner id or end that agent");
}

Result<void> RedisStore::release_runner(Id context, Id runner, const RunnerHolder& self) {
  MJ_CHECK(run(context, scripts::release_runner, Arguments{}.add(std::uint64_t{runner}).add(self.instance)));
  return {};
}

}  // namespace mycojobs
