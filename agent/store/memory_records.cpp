// submit.lua, cancel.lua, and what the Redis store does with single commands.
#include <algorithm>
#include <array>

#include "domain/codec.h"
#include "store/job_fields.h"
#include "store/memory_database.h"

namespace mycojobs {

std::string_view MemoryDatabase::type_of(const std::string& key) const {
  if (hashes_.contains(key)) return "hash";
  if (lists_.contains(key)) return "list";
  return texts_.contains(key) ? "string" : "none";
}

Result<void> MemoryDatabase::want(const std::string& key, std::string_view type) const {
  const auto is = type_of(key);
  if (is == "none" || is == type) return {};
  return fail(Code::invalid, key + " is a " + std::string(is) + " where a " + std::string(type) +
                                 " belongs (another client wrote it: delete or rename it)");
}

std::string MemoryDatabase::field(const std::string& key, const std::string& name) const {
  const auto hash = hashes_.find(key);
  if (hash == hashes_.end()) return {};
  const auto found = hash->second.find(name);
  return found == hash->second.end() ? std::string() : found->second;
}

void MemoryDatabase::set(const std::string& key, const Fields& fields) {
  for (const auto& [name, value] : fields) hashes_[key][name] = value;
}

void MemoryDatabase::queued(const std::string& job) {
  set(job, {{"status", "dispatched"},
            {"detail", "queued"},
            {"created_at", now_s()},
            {"updated_at", now_s()},
            {"queued_ms", std::to_string(now_ms_)}});
}

bool MemoryDatabase::ended_by_others(const std::string& job) const {
  const auto claim = claims_.find(job);
  if (claim != claims_.end() && claim->second.state != State::fresh) return false;
  const std::string status = field(job, "status");
  return status == "finished" || status == "error";
}

void MemoryDatabase::anomaly(std::string text) {
  if (anomalies_.empty() || anomalies_.back() != text) anomalies_.push_back(std::move(text));
}

void MemoryDatabase::dead_letter(const std::string& entry, const std::string& queue, std::string reason) {
  dead_.push_back({entry.substr(0, 1024), queue, std::move(reason), now_ms_});
}

tl::unexpected<Error> MemoryDatabase::missing(const std::string& key) const {
  return fail(Code::not_found, key + " does not exist in context " + std::to_string(context_));
}

Result<Job> MemoryDatabase::submit(const Job& job) {
  MJ_TRY(fields, new_job_fields(job));
  const std::string queue = queue_key(job.script_type);
  MJ_CHECK(want(queue, "list"));
  Id id = job.id;
  if (id == 0) {
    do id = ++last_id_[job.caller_id];
    while (type_of(job_key(job.caller_id, id)) != "none" || claims_.contains(job_key(job.caller_id, id)));
  }
  const std::string key = job_key(job.caller_id, id);
  MJ_CHECK(want(key, "hash"));
  if (type_of(key) == "hash") {
    MJ_TRY(record, load(key));
    Job stored = decode<Job>(record).record;
    if (!same_content(stored, job)) return fail(Code::conflict, key + " exists with other content; use another id");
    return stored;
  }
  if (claims_.contains(key)) {
    return fail(Code::conflict, key + " has ended before and its record was deleted; use another id");
  }
  queued(key);
  set(key, {{"id", std::to_string(id)}});
  set(key, fields);
  push(queue, key);
  MJ_TRY(record, load(key));
  return decode<Job>(record).record;
}

Result<void> MemoryDatabase::cancel(const std::string& job) {
  MJ_CHECK(want(job, "hash"));
  const auto claim = claims_.find(job);
  if (claim != claims_.end() && claim->second.state == State::ended) return {};
  if (type_of(job) == "none") return missing(job);
  if (claim != claims_.end() && claim->second.state == State::live) {
    claim->second.cancel = true;
    return {};
  }
  if (ended_by_others(job)) return {};
  JobEnd end;
  end.detail = "cancelled";
  end.error = "cancelled before it ran";
  finish(job, end, false);
  claims_[job].leftover = true;
  return {};
}

std::string MemoryDatabase::owner_topic(const std::string& job) const {
  const auto claim = claims_.find(job);
  if (claim == claims_.end() || claim->second.state != State::live) return {};
  const std::string runner = field(job, "runner_id");
  const std::string topic = field("runner:" + runner, "topic");
  return topic.empty() ? "runner" + runner : topic;
}

Result<Fields> MemoryDatabase::load(const std::string& key) const {
  MJ_CHECK(want(key, "hash"));
  const auto found = hashes_.find(key);
  if (found == hashes_.end()) return missing(key);
  return Fields(found->second.begin(), found->second.end());
}

Result<void> MemoryDatabase::save(const std::string& key, const Fields& fields) {
  MJ_CHECK(want(key, "hash"));
  set(key, fields);
  return {};
}

Result<std::vector<std::string>> MemoryDatabase::keys(std::string_view prefix, std::size_t max) const {
  std::vector<std::string> out;
  const auto add = [&](const auto& map) {
    for (const auto& entry : map) {
      if (out.size() < max && entry.first.starts_with(prefix)) out.push_back(entry.first);
    }
  };
  add(hashes_), add(lists_), add(texts_);
  return out;
}

Result<std::uint64_t> MemoryDatabase::queue_length(const std::string& queue) const {
  MJ_CHECK(want(queue, "list"));
  const auto found = lists_.find(queue);
  return found == lists_.end() ? 0 : found->second.size();
}

Result<std::vector<DeadLetter>> MemoryDatabase::dead_letters(std::size_t max) const {
  return std::vector<DeadLetter>(dead_.end() - static_cast<std::ptrdiff_t>(std::min(max, dead_.size())), dead_.end());
}

Result<std::vector<std::string>> MemoryDatabase::anomalies(std::size_t max) const {
  return std::vector<std::string>(anomalies_.end() - static_cast<std::ptrdiff_t>(std::min(max, anomalies_.size())),
                                  anomalies_.end());
}

Result<LogPage> MemoryDatabase::logs(const std::string& job, std::uint64_t after_seq, std::size_t max) const {
  LogPage page;
  const auto found = logs_.find(job);
  if (found != logs_.end()) {
    for (const Log& line : found->second.lines) {
      if (line.seq <= after_seq) continue;
      if (page.lines.size() == std::max<std::size_t>(max, 1)) return page;
      page.lines.push_back(line);
    }
    page.ended = found->second.ended;
  }
  if (page.lines.empty() && !page.ended) {
    if (type_of(job) != "hash") return missing(job);
    page.ended = ended_by_others(job);
  }
  return page;
}

}  // namespace mycojobs
