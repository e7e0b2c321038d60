// mycojobs message send, follow, list, show, sign, verify, cancel
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/ed25519.h"
#include "base/parse.h"
#include "cli/commands/command_table.h"
#include "cli/commands/flow_commands.h"
#include "cli/commands/flow_start_commands.h"
#include "cli/job_submission.h"
#include "cli/run_service.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "inspect/runner_view.h"
#include "model/codec.h"
#include "security/signatures.h"
#include "service/actor_service.h"
#include "service/message_service.h"
#include "store/record_changes.h"
#include "text/json.h"
#include "text/terminal_text.h"
#include "text/units.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kErrorColumns = 60;        // limit in lists; `message show` prints the whole error
constexpr std::uint64_t kUnavailableMs = 30000;  // maximum time for which an unavailable store is retried
constexpr std::uint64_t kTimeoutMs = 2000;       // delay before the delivery state of a message is displayed

bool has_ended(MessageStatus status) { return status == MessageStatus::processed || status == MessageStatus::error; }

struct MessageName {
  Id caller = kDefaultCaller, id = 0;
};

// Parses "12:101", "message:12:101", or "101" for the default caller.
Result<MessageName> message_argument(const Invocation& call) {
  std::string text = call.arguments.at(0);
  if (text.starts_with("message:")) text.erase(0, 8);
  const auto colon = text.find(':');
  std::uint64_t caller = kDefaultCaller, id = 0;
  const bool read = (colon == std::string::npos || parse_u64(text.substr(0, colon), caller)) &&
                    parse_u64(text.substr(colon == std::string::npos ? 0 : colon + 1), id);
  if (!read || caller == 0 || id == 0 || caller > UINT32_MAX || id > UINT32_MAX)
    return fail(Code::invalid,
                "MESSAGE: " + excerpt(call.arguments.at(0)) + " is not a message: give CALLER:ID, for example 12:101");
  return MessageName{static_cast<Id>(caller), static_cast<Id>(id)};
}

Result<Message> load_message(const Invocation& call, Store& store) {
  MJ_TRY(name, message_argument(call));
  MJ_TRY(who, request_context(call));
  return service::read_message(who, store, name.caller, name.id);
}

Result<int> list(Invocation& call) {
  MJ_TRY(limit, count_flag(call, "limit", 50));
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(who, request_context(call));
  MJ_TRY(messages, service::list_messages(who, *opened.store, limit));
  nlohmann::json array = nlohmann::json::array();
  std::vector<std::vector<std::string>> rows{{"MESSAGE", "TYPE", "STATUS", "TOPIC", "ERROR"}};
  for (const Message& message : messages) {
    array.push_back(to_json(message));
    array.back()["state"] = service::message_word(message);
    rows.push_back({redis_key(message).substr(8), std::string(to_string(message.message_type)),
                    std::string(service::message_word(message)), printable(message.topic),
                    shorten_message(printable(message.error), kErrorColumns)});
  }
  if (call.json) {
    print(dump_json(array, 2) + "\n");
  } else {
    print_list(rows);
  }
  return 0;
}

Result<int> show(Invocation& call) {
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(message, load_message(call, *opened.store));
  nlohmann::json fields = service::message_json(message);
  // Delivery state of a sent message, with the reason of a delay.
  constexpr std::string_view kAsked[] = {"state", "tries", "why", "answer"};
  auto mark = opened.store->load_fields(context_of(call), "mj:message:" + redis_key(message), kAsked);
  if (!mark && mark.error().code != Code::not_found) return tl::unexpected<Error>(std::move(mark).error());
  if (mark) {
    for (const auto& [name, value] : *mark) fields["mark"][name] = value;
  }
  if (call.json) {
    print(dump_json(fields, 2) + "\n");
    return 0;
  }
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, value] : fields.items())
    rows.push_back({name, printable(value.is_string() ? value.get<std::string>() : dump_json(value))});
  print_table(rows);
  return 0;
}

Result<SigningKey> senders_key(const Invocation& call) {
  if (!call.has("key")) return fail(Code::invalid, "--key: name the sender's key, made by `mycojobs key new NAME`");
  MJ_TRY(file, key_file(call.settings, call.get("key")));
  return SigningKey::load(file);
}

// Verification uses the public key of the message's caller, so the signing key must match.
Result<void> check_senders_key(Store& store, const Message& message, const SigningKey& key) {
  const std::string actor = std::to_string(message.caller_id);
  auto fields = store.load(0, "actor:" + actor);
  if (!fields && fields.error().code != Code::not_found) return tl::unexpected<Error>(std::move(fields).error());
  const std::string pubkey = fields ? decode<Actor>(*fields).record.pubkey : "";
  if (pubkey == key.public_key()) return {};
  if (pubkey.empty())
    return fail(Code::invalid, "--caller: actor " + actor + " has no key here: mycojobs actor " +
                                   (fields ? "update " + actor : "create --id " + actor) + " --key " +
                                   key.public_key());
  return fail(Code::invalid, "--key: is not the key of actor " + actor + ", whose message it is: that is " + pubkey);
}

// Signs the message and stores the signature, if the record still has the fields `stored` that were read.
Result<void> sign_stored(const Invocation& call, Store& store, const Fields& stored, Message& message,
                         const SigningKey& key) {
  MJ_TRY(now_ms, store.now_ms());
  message.created_at = static_cast<std::uint32_t>(now_ms / 1000);
  MJ_CHECK(service::name_target(store, context_of(call), message));
  MJ_CHECK(sign(message, key));
  const Fields fields{{"created_at", std::to_string(message.created_at)},
                      {"target_context", std::to_string(message.target_context)},
                      {"target_key", message.target_key},
                      {"algorithm", message.algorithm},
                      {"signer", message.signer},
                      {"signature", message.signature}};
  MJ_CHECK(change_record_if(store, context_of(call), redis_key(message), fields, stored));
  return {};
}

Result<int> sign_one(Invocation& call) {
  MJ_TRY(key, senders_key(call));
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(message, load_message(call, *opened.store));
  // Read access to a message does not permit signing it.
  MJ_TRY(by, request_context(call));
  MJ_CHECK(service::check_permission(by, *opened.store, Action::steer,
                                     {.name = "message " + redis_key(message).substr(8), .maker = message.caller_id}));
  MJ_TRY(name, message_argument(call));
  MJ_TRY(stored, opened.store->load(context_of(call), "message:" + call.arguments.at(0)));
  message = decode<Message>(stored).record;
  if (message.id != name.id || message.caller_id != name.caller)
    return fail(Code::invalid, "message:" + call.arguments.at(0) + ": id and caller_id: are not those of its key");
  if (has_ended(message.status))
    return fail(Code::conflict, redis_key(message) + " has ended: it is " + std::string(to_string(message.status)));
  if (call.has("to")) {
    MJ_TRY(target, id_flag(call, "to", 0));
    message.target_context = target;
  }
  MJ_CHECK(check_senders_key(*opened.store, message, key));
  MJ_CHECK(sign_stored(call, *opened.store, stored, message, key));
  if (call.json) {
    print(dump_json({{"message", redis_key(message)}, {"signer", message.signer}, {"signature", message.signature}}) +
          "\n");
  } else {
    print_message(redis_key(message) + " is signed; it counts for " +
                  span_text(std::uint64_t{std::max(kSignatureWindowS, message.timeout)} * 1000));
  }
  return 0;
}

// ---- sending ----

Result<std::uint32_t> seconds_flag(const Invocation& call, const char* flag) {
  if (!call.has(flag)) return 0;
  auto seconds = parse_duration_s(call.get(flag));
  if (!seconds) return fail(seconds.error(), "--" + std::string(flag));
  return *seconds;
}

constexpr std::uint32_t kDeliverS = 24 * 3600;  // default time limit of the delivery and of the signature

// Reads the content: a script, a flow, or a text for users.
Result<void> read_load(const Invocation& call, Message& message) {
  const int loads = static_cast<int>(!call.arguments.empty()) + static_cast<int>(call.has("flow")) +
                    static_cast<int>(call.has("text"));
  if (loads != 1)
    return fail(Code::invalid, "a message carries one of: a script (FILE), a flow (--flow FILE), a text (--text TEXT)");
  if (call.has("mail") && !call.has("text")) return fail(Code::invalid, "--mail: is for a text: --text TEXT");
  if (call.has("text") && call.get("text").empty()) return fail(Code::invalid, "--text: is empty");
  if (call.arguments.empty()) {
    for (const FlagRow& flag : local_run_flags()) {
      if (call.has(flag.name))
        return fail(Code::invalid, "--" + std::string(flag.name) + ": is for a script (FILE) alone");
    }
  }
  if (call.has("text")) {
    message.message = call.get("text");
    message.message_type = call.has("mail") ? MessageType::mail : MessageType::chat;
    return {};
  }
  if (call.has("flow")) {
    MJ_TRY(read, read_flow_file(call, call.get("flow")));
    if (!read.plan) return fail(Code::invalid, call.get("flow") + ": " + join(read.problems));
    message.flow.emplace();
    message.flow->name = read.plan->name;
    message.flow->definition = read.plan->canonical;
    return {};
  }
  MJ_TRY(submission, read_submission(call));
  message.job.push_back(std::move(submission.job));
  return {};
}

Result<Message> read_message(const Invocation& call) {
  Message message;
  MJ_TRY(sender, id_flag(call, "caller", kDefaultCaller));
  message.caller_id = sender;
  message.context_id = context_of(call);
  MJ_CHECK(read_load(call, message));
  MJ_TRY(target, id_flag(call, "to", context_of(call)));
  message.target_context = target;
  message.target_address = call.get("address");
  if (call.has("address")) MJ_CHECK(service::check_address(message.target_address));
  message.topic = call.get("topic");
  message.stream_logs = call.has("stream") || call.has("follow");
  MJ_TRY(deliver, seconds_flag(call, "deliver-within"));
  MJ_TRY(ack, seconds_flag(call, "ack-within"));
  MJ_TRY(result, seconds_flag(call, "result-within"));
  message.timeout = deliver > 0 ? deliver : kDeliverS;
  message.timeout_ack = ack;
  message.timeout_result = result;
  return message;
}

// Describes the delivery state of a message, with the reason of a delay, for users who wait.
std::string where_it_is(const Invocation& call, OpenedStore& opened, const Message& message) {
  auto flows = opened.session.stores->open_flows();
  const auto leader = flows ? (*flows)->leader(context_of(call)) : fail(Code::unavailable, "");
  if (leader && leader->first.empty()) {
    const std::string context = std::to_string(context_of(call));
    return "no coordinator leads context " + context + ", which would carry it: mycojobs coordinator --context " +
           context;
  }
  constexpr std::string_view kAsked[] = {"tries", "why"};
  const auto mark = opened.store->load_fields(context_of(call), "mj:message:" + redis_key(message), kAsked);
  const std::string why = mark ? printable(field_of(*mark, "why")) : "";
  if (message.status == MessageStatus::acknowledged) return "it is there, and its answer is awaited";
  if (why.empty()) return "it is on its way";
  return "it could not be delivered, and is tried again: " + why;
}

// Waits for the end of a message.
class MessageFollower {
 public:
  MessageFollower(const Invocation& call, OpenedStore& opened, Message message)
      : call_(call), opened_(opened), message_(std::move(message)), quiet_since_ms_(now()) {}

  // Follows the message to its end and prints log lines of its jobs. The first Ctrl-C exits without an effect on the
  // message. Retries while the store is unavailable for a short time.
  Result<Message> follow() {
    for (std::uint64_t unavailable_since_ms = 0;;) {
      const auto over = look();
      if (over && *over) return message_;
      if (!over && over.error().code != Code::unavailable) return tl::unexpected(over.error());
      if (!over) {
        if (unavailable_since_ms == 0) unavailable_since_ms = now();
        if (now() - unavailable_since_ms > kUnavailableMs)
          return fail(Code::unavailable, over.error().message + "; " + goes_on());
        reopen(call_, opened_, false);
      } else {
        unavailable_since_ms = 0;
        print_location();
      }
      if (next_follower_signal(200) != 0) return fail(Code::conflict, goes_on());
    }
  }

 private:
  std::uint64_t now() const { return call_.parts.clock.boot_ms(); }
  std::string goes_on() const {
    return redis_key(message_) + " continues: `mycojobs message follow " + redis_key(message_).substr(8) +
           context_words(call_) + "` waits for it again";
  }
  // Returns true if the message has ended.
  Result<bool> look() {
    MJ_TRY(fields, opened_.store->load(context_of(call_), redis_key(message_)));
    const MessageStatus before = std::exchange(message_, decode<Message>(fields).record).status;
    if (before != message_.status) quiet_since_ms_ = now();
    for (const Job& job : message_.job) {
      const std::string key = job_key(message_.caller_id, job.id);
      auto page = opened_.store->logs(context_of(call_), key, seen_[key], 500, 0);
      if (!page && page.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(page).error());
      if (!page) continue;
      for (const Log& line : page->lines) {
        seen_[key] = line.seq;
        quiet_since_ms_ = now();
        if (!call_.json) print_log(line);
      }
    }
    return has_ended(message_.status);
  }
  void print_location() {
    if (now() - quiet_since_ms_ < kTimeoutMs) return;
    quiet_since_ms_ = now();
    const std::string where = where_it_is(call_, opened_, message_);
    if (where != std::exchange(shown_, where)) print_message(redis_key(message_) + ": " + where);
  }

  const Invocation& call_;
  OpenedStore& opened_;
  Message message_;
  std::uint64_t quiet_since_ms_;
  std::string shown_;
  std::map<std::string, std::uint64_t> seen_;
};

Result<int> print_message_end(const Invocation& call, Store& store, const Message& message) {
  nlohmann::json jobs = nlohmann::json::array();
  for (const Job& each : message.job) {
    auto record = store.load(context_of(call), job_key(message.caller_id, each.id));
    if (!record) continue;
    const Job job = decode<Job>(*record).record;
    jobs.push_back(to_json(job));
    if (call.json) continue;
    print_message(redis_key(job) + ": " + std::string(to_string(job.status)) +
                  (job.error.empty() ? "" : ", " + job.error));
    for (const auto& [name, value] : job.result) print(printable(name) + " = " + printable(value) + "\n");
  }
  const bool good = message.status == MessageStatus::processed;
  if (call.json) {
    nlohmann::json all = service::message_json(message);
    all["jobs"] = std::move(jobs);
    print(dump_json(all, 2) + "\n");
  } else {
    print_message(redis_key(message) + " is " + std::string(to_string(message.status)) +
                  (message.error.empty() ? "" : ": " + message.error));
    const auto flow = good ? service::flow_result(message) : std::nullopt;
    if (flow) {
      for (const auto& [name, value] : flow->result) print(printable(name) + " = " + printable(value) + "\n");
    }
  }
  return good ? 0 : 1;
}

Result<int> send_one(Invocation& call) {
  MJ_TRY(key, senders_key(call));
  MJ_TRY(wanted, read_message(call));
  MJ_TRY(opened, open_to_answer(call));
  const service::RequestContext who = requested_owner(call, wanted.caller_id);
  MJ_CHECK(check_senders_key(*opened.store, wanted, key));
  MJ_TRY(message, service::send_message(who, *opened.store, wanted.caller_id, wanted));
  MJ_CHECK(sign_stored(call, *opened.store, {}, message, key));
  MJ_TRY(posted, service::post_message(who, *opened.store, message.caller_id, message.id, {}));
  if (!call.has("follow")) {
    if (call.json) {
      print(dump_json(to_json(posted), 2) + "\n");
    } else {
      print(redis_key(posted).substr(8) + "\n");
      print_message("mycojobs message follow " + redis_key(posted).substr(8) + context_words(call) +
                    " waits for its end");
    }
    return 0;
  }
  block_stop_signals();
  MJ_TRY(ended, MessageFollower(call, opened, std::move(posted)).follow());
  return print_message_end(call, *opened.store, ended);
}

Result<int> follow_one(Invocation& call) {
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(message, load_message(call, *opened.store));
  block_stop_signals();
  MJ_TRY(ended, MessageFollower(call, opened, std::move(message)).follow());
  return print_message_end(call, *opened.store, ended);
}

// Returns the public key of the message's caller: the given key, or the key of the actor's record.
Result<std::string> key_of_sender(const Invocation& call, Store& store, const Message& message) {
  if (call.has("key")) return typed_public_key(call, call.get("key"));
  MJ_TRY(who, request_context(call));
  auto actor = service::read_actor(who, store, message.caller_id);
  if (!actor) return fail(actor.error(), "actor:" + std::to_string(message.caller_id));
  return actor->pubkey;
}

Result<int> verify_one(Invocation& call) {
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(message, load_message(call, *opened.store));
  MJ_TRY(pubkey, key_of_sender(call, *opened.store, message));
  MJ_TRY(now_ms, opened.store->now_ms());
  const auto holds = check_signature(message, {pubkey, now_ms / 1000});
  const std::string why = holds ? "" : holds.error().message;
  if (call.json) {
    print(dump_json({{"message", redis_key(message)}, {"holds", holds.has_value()}, {"why_not", to_utf8(why)}}) + "\n");
  } else {
    print((holds ? "holds: signed by " + pubkey : "DOES NOT HOLD: " + printable(why)) + "\n");
  }
  return holds ? 0 : 1;
}

Result<int> cancel_one(Invocation& call) {
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(before, load_message(call, *opened.store));
  MJ_TRY(by, request_context(call));
  MJ_TRY(after, service::cancel_message(by, *opened.store, before.caller_id, before.id));
  if (call.json) {
    print(dump_json(to_json(after), 2) + "\n");
    return 0;
  }
  const std::string word_after(to_string(after.status));
  if (has_ended(before.status)) {
    print(redis_key(after) + " had ended before: it is " + word_after + "\n");
  } else if (has_ended(after.status)) {
    print(redis_key(after) + " has ended: " + printable(after.error) + "\n");
  } else {
    print(redis_key(after) + " is requested to end: mycojobs message follow " + redis_key(after).substr(8) +
          context_words(call) + " waits for it\n");
  }
  return 0;
}

}  // namespace

int message_send_command(Invocation& call) { return finish(send_one(call)); }
int message_follow_command(Invocation& call) { return finish(follow_one(call)); }
int message_cancel_command(Invocation& call) { return finish(cancel_one(call)); }
int message_list_command(Invocation& call) { return finish(list(call)); }
int message_show_command(Invocation& call) { return finish(show(call)); }
int message_sign_command(Invocation& call) { return finish(sign_one(call)); }
int message_verify_command(Invocation& call) { return finish(verify_one(call)); }

}  // namespace mycojobs
