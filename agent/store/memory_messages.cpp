// hold_runner.lua, topic_send.lua, take_message.lua, refuse_message.lua.
#include <algorithm>
#include <set>

#include "domain/codec.h"
#include "store/job_fields.h"
#include "store/memory_database.h"

namespace mycojobs {

Result<void> MemoryDatabase::hold_runner(const Runner& runner, const RunnerHold& self, std::uint32_t ttl_ms,
                                         const std::string& replaces, RunnerHold& held_by) {
  const std::string record = redis_key(runner);
  MJ_CHECK(want(record, "hash"));
  const auto held = holds_.find(runner.id);
  if (held != holds_.end() && held->second.holder.instance != self.instance &&
      held->second.holder.instance != replaces && now_ms_ <= held->second.until_ms) {
    held_by = held->second.holder;
    return fail(Code::conflict, "runner " + std::to_string(runner.id) + " is held by process " +
                                    std::to_string(held_by.pid) + " on " + held_by.host +
                                    "; choose another runner id or end that agent");
  }
  holds_[runner.id] = {self, now_ms_ + ttl_ms};
  if (field(record, "created_at").empty()) set(record, {{"created_at", now_s()}});
  set(record, {{"updated_at", now_s()}, {"seen_ms", std::to_string(now_ms_)}});
  set(record, runner_fields(runner));
  return {};
}

Result<void> MemoryDatabase::release_runner(Id runner, const RunnerHold& self) {
  const auto held = holds_.find(runner);
  if (held != holds_.end() && held->second.holder.instance == self.instance) holds_.erase(held);
  return {};
}

Result<std::vector<std::string>> MemoryDatabase::topic_pending(const std::string& topic) const {
  const auto found = topics_.find(topic);
  if (found == topics_.end()) return std::vector<std::string>{};
  return std::vector<std::string>(found->second.rbegin(), found->second.rend());
}

Result<void> MemoryDatabase::topic_send(const std::string& topic, const std::string& message, const Fields& fields) {
  MJ_CHECK(want(message, "hash"));
  if (type_of(message) == "hash" && !fields.empty()) {
    const std::map<std::string, std::string> wanted(fields.begin(), fields.end());
    for (const char* name : {"message", "message_type", "job", "flow"}) {
      const auto value = wanted.find(name);
      if ((value == wanted.end() ? "" : value->second) != field(message, name)) {
        return fail(Code::conflict, message + " exists with other content; use another id");
      }
    }
  } else {
    set(message, fields);
  }
  List& list = topics_[topic];
  if (!messages_.contains(message) && std::find(list.begin(), list.end(), message) == list.end()) {
    list.push_front(message);
  }
  return {};
}

Result<MessageIntake> MemoryDatabase::take_message(const std::string& topic, const std::string& message,
                                                   std::span<const Job> jobs, const std::string& queue) {
  MJ_CHECK(want(message, "hash"));
  MJ_CHECK(want(queue, "list"));
  MessageIntake out;
  std::vector<Fields> fields;
  for (const Job& job : jobs) {
    if (job.id == 0) return fail(Code::invalid, "job: id is missing; the jobs of a message carry theirs");
    MJ_TRY(own, new_job_fields(job));
    own.emplace_back("id", std::to_string(job.id));
    fields.push_back(std::move(own));
    out.job_keys.push_back(redis_key(job));
  }
  if (std::set<std::string>(out.job_keys.begin(), out.job_keys.end()).size() != out.job_keys.size()) {
    return fail(Code::conflict, "a job stands twice in the message");
  }
  if (type_of(message) == "none") return missing(message);
  const std::string status = field(message, "status");
  out.repeated = messages_.contains(message) || status == "acknowledged" || status == "processed" || status == "error";
  if (out.repeated) {
    std::erase(topics_[topic], message);
    return out;
  }
  Taken taken;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const std::string& key = out.job_keys[i];
    MJ_CHECK(want(key, "hash"));
    if (type_of(key) == "hash") {
      MJ_TRY(record, load(key));
      if (!same_content(decode<Job>(record).record, jobs[i])) {
        return fail(Code::conflict, "job: " + key + " exists with other content");
      }
    }
    if (!claims_[key].message.empty()) {
      return fail(Code::conflict, key + " belongs to " + claims_[key].message + " already");
    }
  }
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const std::string& key = out.job_keys[i];
    Claim& claim = claims_[key];
    if (claim.state == State::ended || ended_by_others(key)) {
      if (field(key, "status") != "finished") ++taken.failed;
      continue;
    }
    ++taken.left;
    claim.message = message;
    if (type_of(key) == "none") queued(key), set(key, fields[i]);
    if (claim.state == State::fresh) push(queue, key);
  }
  messages_[message] = taken;
  const char* after = taken.left > 0 ? "acknowledged" : taken.failed > 0 ? "error" : "processed";
  set(message, {{"status", after}, {"updated_at", now_s()}});
  std::erase(topics_[topic], message);
  return out;
}

void MemoryDatabase::settle(const std::string& message, bool finished) {
  const auto mark = messages_.find(message);
  if (mark == messages_.end() || mark->second.left == 0) return;
  if (!finished) ++mark->second.failed;
  if (--mark->second.left > 0 || type_of(message) != "hash") return;
  set(message, {{"status", mark->second.failed == 0 ? "processed" : "error"}, {"updated_at", now_s()}});
  if (mark->second.failed > 0) {
    set(message, {{"error", std::to_string(mark->second.failed) + " of its jobs failed"}});
  }
}

Result<void> MemoryDatabase::refuse_message(const std::string& topic, const std::string& message,
                                            const std::string& reason) {
  MJ_CHECK(want(message, "hash"));
  std::erase(topics_[topic], message);
  if (messages_.contains(message)) return {};
  if (type_of(message) == "none") return missing(message);
  messages_[message] = {};
  set(message, {{"status", "error"}, {"error", reason}, {"updated_at", now_s()}});
  return {};
}

}  // namespace mycojobs
