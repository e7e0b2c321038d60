// Runners and messages: the arguments and answers of the scripts.
#include <algorithm>

#include "domain/codec.h"
#include "store/job_fields.h"
#include "store/keys.h"
#include "store/redis_store.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kMaxPending = 1000;  // entries of a topic that one call looks at: some ms of the server's time
constexpr std::uint64_t kMissingMs = 2000;   // how long a message may wait for its record

tl::unexpected<Error> no_message(const std::string& key, Id context) {
  return fail(Code::not_found, key + " does not exist in context " + std::to_string(context));
}

}  // namespace

Result<void> RedisStore::hold_runner(Id context, const Runner& runner, const RunnerHold& self, std::uint32_t ttl_ms,
                                     const std::string& replaces, RunnerHold& held_by) {
  const Fields fields = runner_fields(runner);
  Arguments arguments;
  arguments.add(std::uint64_t{runner.id}).add(self.instance).add(self.host).add(self.boot_id);
  arguments.add(static_cast<std::uint64_t>(self.pid)).add(replaces).add(std::uint64_t{ttl_ms}).add_list(fields);
  MJ_TRY(holder, run(context, scripts::hold_runner, arguments));
  if (holder.size() == 0) return {};
  held_by.instance = holder.at(0).text();
  held_by.host = holder.at(1).text();
  held_by.boot_id = holder.at(2).text();
  held_by.pid = static_cast<std::int64_t>(holder.at(3).number());
  return fail(Code::conflict, "runner " + std::to_string(runner.id) + " is held by process " +
                                  std::to_string(held_by.pid) + " on " + held_by.host +
                                  "; choose another runner id or end that agent");
}

Result<void> RedisStore::release_runner(Id context, Id runner, const RunnerHold& self) {
  MJ_CHECK(run(context, scripts::release_runner, Arguments{}.add(std::uint64_t{runner}).add(self.instance)));
  return {};
}

Result<std::vector<std::string>> RedisStore::topic_pending(Id context, const std::string& topic) {
  Arguments arguments{topic};
  auto reply = run(context, scripts::topic_pending, arguments.add(kMaxPending).add(kMissingMs));
  if (!reply) return fail(std::move(reply).error(), topic_key(topic));
  std::vector<std::string> out;
  for (std::size_t i = 0; i < reply->size(); ++i) out.emplace_back(reply->at(i).text());
  return out;
}

Result<void> RedisStore::topic_send(Id context, const std::string& topic, const std::string& message_key,
                                    const Fields& message) {
  Arguments arguments;
  MJ_TRY(reply, run(context, scripts::topic_send, arguments.add(topic).add(message_key).add_list(message)));
  if (reply.text() == "other") return fail(Code::conflict, message_key + " exists with other content; use another id");
  return {};
}

Result<MessageIntake> RedisStore::take_message(Id context, const std::string& topic, const std::string& message_key,
                                               std::span<const Job> jobs, const std::string& queue) {
  struct Entry {
    std::string key;
    Fields fields;
    bool accepted = false;  // the record is there, with the same content
  };
  std::vector<Entry> entries;
  for (const Job& job : jobs) {
    if (job.id == 0) return fail(Code::invalid, "job: id is missing; the jobs of a message carry theirs");
    MJ_TRY(fields, new_job_fields(job));
    fields.emplace_back("id", std::to_string(job.id));
    entries.push_back({redis_key(job), std::move(fields)});
  }
  for (std::size_t tries = 0; tries <= entries.size(); ++tries) {
    Arguments arguments;
    arguments.add(topic).add(message_key).add(queue).add(std::uint64_t{entries.size()});
    for (const Entry& entry : entries) arguments.add(entry.key).add(entry.accepted ? "1" : "0").add_list(entry.fields);
    MJ_TRY(reply, run(context, scripts::take_message, arguments));
    const std::string_view word = reply.at(0).text();
    if (word == "missing") return no_message(message_key, context);
    if (word != "exists") {
      MessageIntake out;
      out.repeated = word == "repeated";
      for (std::size_t i = 1; i < reply.size(); ++i) out.job_keys.emplace_back(reply.at(i).text());
      return out;
    }
    const std::size_t index = reply.at(1).number() - 1;
    if (index >= entries.size()) break;
    if (!same_content(decode<Job>(reply.at(2).fields()).record, jobs[index])) {
      return fail(Code::conflict, "job: " + entries[index].key + " exists with other content");
    }
    entries[index].accepted = true;
  }
  return fail(Code::internal, message_key + ": its jobs change while they are looked at");
}

Result<void> RedisStore::refuse_message(Id context, const std::string& topic, const std::string& message_key,
                                        const std::string& reason) {
  MJ_TRY(reply, run(context, scripts::refuse_message, Arguments{topic, message_key, reason}));
  if (reply.text() == "missing") return no_message(message_key, context);
  return {};
}

}  // namespace mycojobs
