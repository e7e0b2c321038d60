// RedisStore: messages (store/scripts/messages.lua).
#include <algorithm>
#include <array>

#include "base/parse.h"
#include "model/codec.h"
#include "store/job_fields.h"
#include "store/keys.h"
#include "store/redis/redis_store.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kMaxPending =
    1000;  // maximum number of list entries per call, which takes some ms of the server's time
constexpr std::uint64_t kMissingRecordMs = 2000;   // maximum wait of a message for its record
constexpr std::uint64_t kMaxArrived = 100000;      // maximum number of messages in mj:inbox
constexpr std::uint64_t kMaxArrivedOfOne = 10000;  // per sender; a large message counts as several (arrive_message)
constexpr std::size_t kMaxMessageStatesBatch = 64;
constexpr const char *kOut = "msg_out", *kRouting = "msg_out_coordinator";

tl::unexpected<Error> no_message(const std::string& key, Id context) {
  return fail(Code::not_found, key + " does not exist in context " + std::to_string(context));
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& each : texts) all += (all.empty() ? "" : " ") + each;
  return all;
}

}  // namespace

Result<std::vector<std::string>> RedisStore::pending_messages(Id context, const Arguments& lists) {
  MJ_TRY(reply, run(context, scripts::pending_messages, lists));
  std::vector<std::string> out;
  for (std::size_t i = 0; i < reply.size(); ++i) out.emplace_back(reply.at(i).text());
  return out;
}

Result<std::vector<std::string>> RedisStore::topic_pending(Id context, const std::string& topic) {
  Arguments lists;
  lists.add("").add(topic_key(topic)).add("mj:topic-missing:" + topic).add(kMaxPending).add(kMissingRecordMs);
  return pending_messages(context, lists);
}

Result<std::vector<std::string>> RedisStore::outgoing(Id context) {
  Arguments lists;
  lists.add(kOut).add(kRouting).add("mj:topic-missing:msg_out").add(kMaxPending).add(kMissingRecordMs);
  return pending_messages(context, lists);
}

Result<void> RedisStore::enqueue_outbox(Id context, const std::string& message_key) {
  MJ_CHECK(command(context, {"LPUSH", kOut, message_key}));
  return {};
}

Result<void> RedisStore::topic_send(Id context, const std::string& topic, const std::string& message_key,
                                    const Fields& message) {
  Arguments arguments;
  MJ_TRY(reply, run(context, scripts::topic_send, arguments.add(topic).add(message_key).add_list(message)));
  if (reply.text() == "other") return fail(Code::conflict, message_key + " exists with other content; use another id");
  return {};
}

// Runs a script that creates the jobs of a message. head: adds the arguments of the script that precede the jobs. A job
// whose record exists is accepted if it has the same content.
Result<AcceptedMessage> RedisStore::hand_over(Id context, const Script& script,
                                              const std::function<void(Arguments&)>& head,
                                              const std::string& message_key, const std::vector<MessageJob>& jobs) {
  struct Entry {
    std::string key;
    Fields fields;
    bool accepted = false;
  };
  std::vector<Entry> entries;
  for (const MessageJob& each : jobs) {
    if (each.job.id == 0) return fail(Code::invalid, "job: id is missing; the jobs of a message carry theirs");
    MJ_TRY(fields, new_job_fields(each.job));
    fields.emplace_back("id", std::to_string(each.job.id));
    entries.push_back({redis_key(each.job), std::move(fields)});
  }
  for (std::size_t tries = 0; tries <= entries.size(); ++tries) {
    Arguments arguments;
    head(arguments);
    arguments.add(std::uint64_t{entries.size()});
    for (std::size_t i = 0; i < entries.size(); ++i) {
      arguments.add(entries[i].key).add(entries[i].accepted ? "1" : "0").add(jobs[i].queue);
      arguments.add_list(entries[i].fields);
    }
    MJ_TRY(reply, run(context, script, arguments));
    const std::string_view word = reply.at(0).text();
    if (word == "missing") return no_message(message_key, context);
    if (word != "exists") {
      AcceptedMessage out;
      out.repeated = word == "repeated";
      for (std::size_t i = 1; i < reply.size(); ++i) out.job_keys.emplace_back(reply.at(i).text());
      return out;
    }
    const std::size_t index = reply.at(1).number() - 1;
    if (index >= entries.size()) break;
    if (!same_content(decode<Job>(reply.at(2).fields()).record, jobs[index].job))
      return fail(Code::conflict, "job: " + entries[index].key + " exists with other content");
    entries[index].accepted = true;
  }
  return fail(Code::internal, message_key + ": its jobs change while they are read");
}

Result<AcceptedMessage> RedisStore::accept_message(Id context, const AcceptMessage& wanted) {
  const std::string flow = wanted.flow == 0 ? "" : std::to_string(wanted.flow);
  const std::string origins = joined(wanted.origins);
  const auto head = [&](Arguments& arguments) {
    arguments.add(wanted.list).add(wanted.message_key).add(flow).add(origins);
  };
  return hand_over(context, scripts::take_message, head, wanted.message_key, wanted.jobs);
}

Result<void> RedisStore::close_message(Id context, const std::string& list, const std::string& message_key,
                                       const std::string& reason) {
  MJ_TRY(reply, run(context, scripts::close_message, Arguments{list, message_key, cut(reason, kMaxReasonBytes)}));
  if (reply.text() == "missing") return no_message(message_key, context);
  if (!reason.empty()) metrics().add(Metric::messages, {context, "refused"});
  return {};
}

Result<AcceptedMessage> RedisStore::route_message(Id context, const RouteMessage& wanted) {
  const auto head = [&](Arguments& arguments) {
    arguments.add(wanted.message_key).add(wanted.mark.content).add(wanted.deliver_ms).add(wanted.result_ms);
    arguments.add_list(wanted.mark.more);
  };
  MJ_TRY(routed, hand_over(context, scripts::route_message, head, wanted.message_key, wanted.jobs));
  if (!routed.repeated) metrics().add(Metric::messages, {context, "sent"});
  return routed;
}

Result<Arrival> RedisStore::receive_message(Id context, const std::string& message_key, const MessageState& mark,
                                            const Fields& fields) {
  Arguments arguments;
  arguments.add(message_key).add(mark.content).add(fields.empty() ? "1" : "0");
  arguments.add(kMaxArrived).add(kMaxArrivedOfOne);
  MJ_TRY(reply, run(context, scripts::arrive_message, arguments.add_list(fields).add_list(mark.more)));
  if (reply.text() == "stored") {
    metrics().add(Metric::messages, {context, "received"});
    return Arrival::stored;
  }
  if (reply.text() == "known") return Arrival::known;
  if (reply.text() == "taken") return Arrival::taken;
  if (reply.text() == "sender_full") return Arrival::sender_full;
  return reply.text() == "full" ? Arrival::full : Arrival::other;
}

Result<DueMail> RedisStore::due_mail(Id context, std::uint32_t max, std::uint32_t hold_ms, bool clock_went_back) {
  Arguments arguments;
  arguments.add(std::uint64_t{max}).add(std::uint64_t{hold_ms}).add(clock_went_back ? "1" : "0");
  MJ_TRY(reply, run(context, scripts::mail_due, arguments));
  DueMail due;
  for (std::size_t i = 0; i < reply.at(0).size(); ++i) {
    const Reply each = reply.at(0).at(i);
    OutboxEntry entry{std::string(each.at(0).text()), {}, {}, each.at(1).fields()};
    const std::size_t blank = entry.entry.find(' ');
    entry.kind = entry.entry.substr(0, blank);
    entry.message_key = entry.entry.substr(blank + 1);
    due.out.push_back(std::move(entry));
  }
  for (std::size_t i = 0; i < reply.at(1).size(); ++i) due.arrived.emplace_back(reply.at(1).at(i).text());
  due.next_ms = reply.at(2).number();
  due.now_ms = reply.at(3).number();
  return due;
}

Result<void> RedisStore::complete_delivery(Id context, const OutboxEntry& entry, const MailResult& after) {
  static constexpr std::array kWords = std::to_array<const char*>({"delivered", "later", "failed", "over"});
  Arguments arguments;
  arguments.add(entry.entry).add(kWords.at(static_cast<std::size_t>(after.what))).add(after.pause_ms);
  MJ_CHECK(run(context, scripts::settle_mail,
               arguments.add(after.detail).add(cut(after.why, kMaxReasonBytes)).add_list(after.more)));
  if (after.what == MailResult::Kind::failed) metrics().add(Metric::messages, {context, "failed"});
  return {};
}

Result<bool> RedisStore::answer_message(Id context, const AnswerMessage& answer) {
  std::vector<Fields> ends;
  ends.reserve(answer.jobs.size());
  Arguments arguments;
  arguments.add(answer.message_key).add(answer.content).add(cut(answer.reason, kMaxReasonBytes));
  arguments.add_list(answer.fields).add(answer.carried);
  arguments.add(answer.is_last ? "1" : "0").add(std::uint64_t{answer.jobs.size()});
  add_quota(arguments);
  for (const RemoteJobEnd& each : answer.jobs) {
    ends.push_back(end_fields(each.end));
    arguments.add(each.job_key).add_list(each.more).add_list(ends.back());
  }
  MJ_TRY(reply, run(context, scripts::answer_message, arguments));
  if (reply.text() == "other") return false;
  if (answer.is_last) metrics().add(Metric::messages, {context, "answered"});
  return true;
}

Result<void> RedisStore::cancel_message(Id context, const std::string& message_key) {
  MJ_TRY(reply, run(context, scripts::cancel_message, Arguments{message_key}));
  if (reply.text() == "missing") return no_message(message_key, context);
  return {};
}

Result<std::uint64_t> RedisStore::append_remote_log(Id context, const std::string& message_key,
                                                    const std::string& content, const std::string& job_key,
                                                    const std::vector<Log>& lines) {
  Arguments arguments{message_key, content, job_key};
  arguments.add(std::uint64_t{4 * lines.size()});
  for (const Log& line : lines) arguments.add(line.seq).add(to_string(line.stream)).add(line.text).add(line.ts_ms);
  add_quota(arguments);
  MJ_TRY(reply, run(context, scripts::follow_log, arguments));
  return reply.number();
}

Result<Id> RedisStore::reserve_jobs(Id context, Id caller, std::uint32_t count) {
  Arguments arguments;
  MJ_TRY(reply, run(context, scripts::reserve_jobs, arguments.add(std::uint64_t{caller}).add(std::uint64_t{count})));
  return static_cast<Id>(reply.number());
}

Result<std::vector<MessageStoreState>> RedisStore::message_states(Id context,
                                                                  std::span<const std::string> message_keys) {
  std::vector<MessageStoreState> out;
  while (out.size() < message_keys.size()) {
    const auto some =
        message_keys.subspan(out.size(), std::min(kMaxMessageStatesBatch, message_keys.size() - out.size()));
    Arguments arguments;
    arguments.add(std::uint64_t{some.size()});
    for (const std::string& key : some) arguments.add(key);
    MJ_TRY(reply, run(context, scripts::message_places, arguments));
    for (std::size_t i = 0; i < some.size(); ++i) {
      const Reply each = reply.at(i);
      MessageStoreState places{some[i], std::string(each.at(0).text()), each.at(1).fields(), {}, false, ""};
      for (std::size_t k = 0; k < each.at(2).size(); ++k) {
        const std::string kind(each.at(2).at(k).text());
        if (kind == "inbox") {
          places.in_inbox = true;
        } else {
          places.outbox.push_back(kind);
        }
      }
      places.seen = each.at(3).text();
      out.push_back(std::move(places));
    }
  }
  return out;
}

Result<bool> RedisStore::repair_message(Id context, const std::string& message_key, const std::string& seen,
                                        const std::vector<std::string>& kinds) {
  Arguments arguments{message_key, seen};
  arguments.add(std::uint64_t{kinds.size()});
  for (const std::string& kind : kinds) arguments.add(kind);
  MJ_TRY(reply, run(context, scripts::repair_message, arguments));
  return reply.number() == 1;
}

Result<std::uint32_t> RedisStore::retire_messages(Id context, std::uint64_t keep_ms, std::uint32_t max) {
  MJ_TRY(reply, run(context, scripts::retire_messages, Arguments{}.add(keep_ms).add(std::uint64_t{max})));
  return static_cast<std::uint32_t>(reply.number());
}

}  // namespace mycojobs
