#include "store/message_store.h"

#include <algorithm>
#include <array>
#include <functional>

#include "base/parse.h"
#include "model/codec.h"
#include "store/job_fields.h"
#include "store/keys.h"
#include "store/redis/store_connection.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

// Maximum number of list entries per call. A call with this number takes some ms of the server's time.
constexpr std::uint64_t kMaxPending = 1000;
constexpr std::uint64_t kMissingRecordMs = 2000;     // maximum wait of a message for its record
constexpr std::uint64_t kMaxInboxMessages = 100000;  // maximum number of messages in mj:inbox
// A large message counts as several messages (arrive_message).
constexpr std::uint64_t kMaxInboxMessagesPerSender = 10000;
constexpr const char *kOutgoingList = "msg_out", *kRoutingList = "msg_out_coordinator";

tl::unexpected<Error> message_not_found(const std::string& key, Id context) {
  return fail(Code::not_found, key + " does not exist in context " + std::to_string(context));
}

std::string join_keys(const std::vector<std::string>& keys) {
  std::string result;
  for (const std::string& key : keys) result += (result.empty() ? "" : " ") + key;
  return result;
}

Result<std::vector<std::string>> pending_messages(StoreConnection& connection, Id context, const Arguments& lists) {
  MJ_TRY(reply, connection.run(context, scripts::pending_messages, lists));
  std::vector<std::string> out;
  for (std::size_t i = 0; i < reply.size(); ++i) out.emplace_back(reply.at(i).text());
  return out;
}

}  // namespace

Result<std::vector<std::string>> MessageStore::topic_pending(Id context, const std::string& topic) {
  Arguments lists;
  lists.add("").add(topic_key(topic)).add(kTopicMissingRecordsKey + topic).add(kMaxPending).add(kMissingRecordMs);
  return pending_messages(connection_, context, lists);
}

Result<std::vector<std::string>> MessageStore::msg_out_keys(Id context) {
  Arguments lists;
  lists.add(kOutgoingList)
      .add(kRoutingList)
      .add(std::string(kTopicMissingRecordsKey) + kOutgoingList)
      .add(kMaxPending)
      .add(kMissingRecordMs);
  return pending_messages(connection_, context, lists);
}

Result<void> MessageStore::push_to_msg_out(Id context, const std::string& message_key) {
  MJ_CHECK(connection_.command(context, {"LPUSH", kOutgoingList, message_key}));
  return {};
}

Result<void> MessageStore::post_message(Id context, const std::string& message_key, const Fields& signature) {
  MJ_TRY(reply, connection_.run(context, scripts::post_message, Arguments{message_key}.add_list(signature)));
  if (reply.text() == "missing") return tl::unexpected<Error>(record_not_found(context, message_key));
  if (reply.text() == "posted") return {};
  return fail(Code::conflict, message_key + " was sent before: it is " + std::string(reply.text()));
}

Result<void> MessageStore::send_to_topic(Id context, const std::string& topic, const std::string& message_key,
                                         const Fields& message) {
  Arguments arguments;
  MJ_TRY(reply, connection_.run(context, scripts::topic_send, arguments.add(topic).add(message_key).add_list(message)));
  if (reply.text() == "other") return fail(Code::conflict, message_key + " exists with other content; use another id");
  return {};
}

namespace {

// Runs a script that creates the jobs of a message. `head` adds the arguments of the script that precede the jobs. A
// job whose record exists is accepted if it has the same content.
Result<AcceptedMessage> create_message_jobs(StoreConnection& connection, Id context, const Script& script,
                                            const std::function<void(Arguments&)>& head, const std::string& message_key,
                                            const std::vector<MessageJob>& jobs) {
  struct Entry {
    std::string key;
    Fields fields;
    bool accepted = false;
  };
  std::vector<Entry> entries;
  for (const MessageJob& job : jobs) {
    if (job.job.id == 0) return fail(Code::invalid, "job: id is missing; the jobs of a message carry theirs");
    MJ_TRY(fields, new_job_fields(job.job));
    fields.emplace_back("id", std::to_string(job.job.id));
    entries.push_back({redis_key(job.job), std::move(fields)});
  }
  for (std::size_t attempt = 0; attempt <= entries.size(); ++attempt) {
    Arguments arguments;
    head(arguments);
    arguments.add(std::uint64_t{entries.size()});
    for (std::size_t i = 0; i < entries.size(); ++i) {
      arguments.add(entries[i].key).add(entries[i].accepted ? "1" : "0").add(jobs[i].queue);
      arguments.add_list(entries[i].fields);
    }
    MJ_TRY(reply, connection.run(context, script, arguments));
    const std::string_view status = reply.at(0).text();
    if (status == "missing") return message_not_found(message_key, context);
    if (status != "exists") {
      AcceptedMessage out;
      out.repeated = status == "repeated";
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

}  // namespace

Result<AcceptedMessage> MessageStore::accept_message(Id context, const AcceptMessage& request) {
  const std::string flow = request.flow == 0 ? "" : std::to_string(request.flow);
  const std::string origins = join_keys(request.origins);
  const auto head = [&](Arguments& arguments) {
    arguments.add(request.list).add(request.message_key).add(flow).add(origins).add(request.files_holder);
  };
  return create_message_jobs(connection_, context, scripts::take_message, head, request.message_key, request.jobs);
}

Result<void> MessageStore::close_message(Id context, const std::string& list, const std::string& message_key,
                                         const std::string& reason) {
  MJ_TRY(reply, connection_.run(context, scripts::close_message,
                                Arguments{list, message_key, truncate_utf8(reason, kMaxReasonBytes)}));
  if (reply.text() == "missing") return message_not_found(message_key, context);
  if (!reason.empty()) connection_.metrics().add(Metric::messages, {context, "refused"});
  return {};
}

Result<AcceptedMessage> MessageStore::route_message(Id context, const RouteMessage& request) {
  const auto head = [&](Arguments& arguments) {
    arguments.add(request.message_key)
        .add(request.mark.content_hash)
        .add(request.delivery_timeout_ms)
        .add(request.result_timeout_ms);
    arguments.add_list(request.mark.extra_fields);
  };
  MJ_TRY(routed,
         create_message_jobs(connection_, context, scripts::route_message, head, request.message_key, request.jobs));
  if (!routed.repeated) connection_.metrics().add(Metric::messages, {context, "sent"});
  return routed;
}

Result<Arrival> MessageStore::receive_message(Id context, const std::string& message_key, const MessageState& mark,
                                              const Fields& fields) {
  Arguments arguments;
  arguments.add(message_key).add(mark.content_hash).add(fields.empty() ? "1" : "0");
  arguments.add(kMaxInboxMessages).add(kMaxInboxMessagesPerSender);
  MJ_TRY(reply,
         connection_.run(context, scripts::arrive_message, arguments.add_list(fields).add_list(mark.extra_fields)));
  if (reply.text() == "stored") {
    connection_.metrics().add(Metric::messages, {context, "received"});
    return Arrival::stored;
  }
  if (reply.text() == "known") return Arrival::duplicate;
  if (reply.text() == "taken") return Arrival::key_in_use;
  if (reply.text() == "sender_full") return Arrival::sender_limit_reached;
  return reply.text() == "full" ? Arrival::inbox_full : Arrival::content_conflict;
}

Result<DueMessages> MessageStore::due_messages(Id context, std::uint32_t max, std::uint32_t redelivery_delay_ms,
                                               bool clock_went_back) {
  Arguments arguments;
  arguments.add(std::uint64_t{max}).add(std::uint64_t{redelivery_delay_ms}).add(clock_went_back ? "1" : "0");
  MJ_TRY(reply, connection_.run(context, scripts::mail_due, arguments));
  DueMessages due;
  for (std::size_t i = 0; i < reply.at(0).size(); ++i) {
    const Reply row = reply.at(0).at(i);
    OutboxEntry entry{std::string(row.at(0).text()), {}, {}, row.at(1).fields()};
    const std::size_t blank = entry.entry.find(' ');
    entry.kind = entry.entry.substr(0, blank);
    entry.message_key = entry.entry.substr(blank + 1);
    due.outbox.push_back(std::move(entry));
  }
  for (std::size_t i = 0; i < reply.at(1).size(); ++i) due.inbox.emplace_back(reply.at(1).at(i).text());
  due.next_ms = reply.at(2).number();
  due.now_ms = reply.at(3).number();
  return due;
}

Result<void> MessageStore::complete_delivery(Id context, const OutboxEntry& entry, const MailResult& result) {
  static constexpr std::array kResultNames = std::to_array<const char*>({"delivered", "later", "failed", "over"});
  Arguments arguments;
  arguments.add(entry.entry).add(kResultNames.at(static_cast<std::size_t>(result.kind))).add(result.retry_delay_ms);
  MJ_CHECK(connection_.run(
      context, scripts::settle_mail,
      arguments.add(result.detail).add(truncate_utf8(result.reason, kMaxReasonBytes)).add_list(result.extra_fields)));
  if (result.kind == MailResult::Kind::failed) connection_.metrics().add(Metric::messages, {context, "failed"});
  return {};
}

Result<bool> MessageStore::answer_message(Id context, const AnswerMessage& answer) {
  std::vector<Fields> ends;
  ends.reserve(answer.jobs.size());
  Arguments arguments;
  arguments.add(answer.message_key).add(answer.content_hash).add(truncate_utf8(answer.reason, kMaxReasonBytes));
  arguments.add_list(answer.fields).add(answer.router_answer);
  arguments.add(answer.is_last ? "1" : "0").add(answer.files_holder).add(std::uint64_t{answer.jobs.size()});
  connection_.add_quota(arguments);
  for (const RemoteJobEnd& job : answer.jobs) {
    ends.push_back(end_fields(job.end));
    arguments.add(job.job_key).add_list(job.extra_fields).add_list(ends.back());
  }
  MJ_TRY(reply, connection_.run(context, scripts::answer_message, arguments));
  if (reply.text() == "other") return false;
  if (answer.is_last) connection_.metrics().add(Metric::messages, {context, "answered"});
  return true;
}

Result<void> MessageStore::cancel_message(Id context, const std::string& message_key) {
  MJ_TRY(reply, connection_.run(context, scripts::cancel_message, Arguments{message_key}));
  if (reply.text() == "missing") return message_not_found(message_key, context);
  return {};
}

Result<std::uint64_t> MessageStore::append_remote_log(Id context, const std::string& message_key,
                                                      const std::string& content_hash, const std::string& job_key,
                                                      const std::vector<Log>& lines) {
  Arguments arguments{message_key, content_hash, job_key};
  arguments.add(std::uint64_t{6 * lines.size()});
  for (const Log& line : lines) {
    arguments.add(line.seq).add(to_string(line.stream)).add(line.text).add(line.ts_ms).add(line.size);
    arguments.add(line.begins_run ? "1" : "");
  }
  connection_.add_quota(arguments);
  MJ_TRY(reply, connection_.run(context, scripts::follow_log, arguments));
  return reply.number();
}

Result<Id> MessageStore::reserve_jobs(Id context, Id caller, std::uint32_t count) {
  Arguments arguments;
  MJ_TRY(reply, connection_.run(context, scripts::reserve_jobs,
                                arguments.add(std::uint64_t{caller}).add(std::uint64_t{count})));
  return static_cast<Id>(reply.number());
}

Result<std::uint32_t> MessageStore::retire_messages(Id context, std::uint64_t retention_ms, std::uint32_t max) {
  MJ_TRY(reply,
         connection_.run(context, scripts::retire_messages, Arguments{}.add(retention_ms).add(std::uint64_t{max})));
  return static_cast<std::uint32_t>(reply.number());
}

}  // namespace mycojobs
