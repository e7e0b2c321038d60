// mycojobs message send | follow | cancel | list | show | sign | verify
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/ed25519.h"
#include "base/parse.h"
#include "cli/command_output.h"
#include "cli/commands/commands.h"
#include "cli/commands/flow_commands.h"
#include "cli/commands/flow_start_commands.h"
#include "cli/job_submission.h"
#include "cli/key_files.h"
#include "cli/request_arguments.h"
#include "cli/run_service.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "inspect/runner_view.h"
#include "model/codec.h"
#include "security/signatures.h"
#include "service/actor_service.h"
#include "service/message_service.h"
#include "store/keys.h"
#include "text/json.h"
#include "text/terminal_text.h"
#include "text/units.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxErrorColumns = 60;               // limit in lists; `message show` prints the whole error
constexpr std::uint64_t kMaxMessageUnavailableMs = 30000;  // maximum time for which an unavailable store is retried
constexpr std::uint64_t kDeliveryStateDelayMs = 2000;      // delay before the delivery state of a message is displayed

bool has_ended(MessageStatus status) { return status == MessageStatus::processed || status == MessageStatus::error; }

struct MessageId {
  Id caller = kDefaultCaller, id = 0;
};

// Parses "12:101", "message:12:101", or "101" for the default caller.
Result<MessageId> parse_message_argument(const Invocation& call) {
  std::string text = call.arguments.at(0);
  if (text.starts_with("message:")) text.erase(0, 8);
  const auto colon = text.find(':');
  std::uint64_t caller = kDefaultCaller, id = 0;
  const bool is_valid = (colon == std::string::npos || parse_u64(text.substr(0, colon), caller)) &&
                        parse_u64(text.substr(colon == std::string::npos ? 0 : colon + 1), id);
  if (!is_valid || caller == 0 || id == 0 || caller > UINT32_MAX || id > UINT32_MAX)
    return fail(Code::invalid,
                "MESSAGE: " + excerpt(call.arguments.at(0)) + " is not a message: give CALLER:ID, for example 12:101");
  return MessageId{static_cast<Id>(caller), static_cast<Id>(id)};
}

Result<Message> load_message(const Invocation& call, Store& store) {
  MJ_TRY(message_id, parse_message_argument(call));
  MJ_TRY(caller, request_context(call));
  return service::read_message(caller, store, message_id.caller, message_id.id);
}

Result<SigningKey> load_sender_key(const Invocation& call) {
  if (!call.has("key")) return fail(Code::invalid, "--key: name the sender's key, made by `mycojobs key new NAME`");
  MJ_TRY(file, key_file_path(call.settings, call.get("key")));
  return SigningKey::load(file);
}

// Verification uses the public key of the message's caller, so the signing key must match.
Result<void> check_sender_key(Store& store, const Message& message, const SigningKey& key) {
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
Result<void> sign_record(const Invocation& call, Store& store, const Fields& stored, Message& message,
                         const SigningKey& key) {
  MJ_TRY(now_ms, store.now_ms());
  message.created_at = static_cast<std::uint32_t>(now_ms / 1000);
  MJ_CHECK(service::set_target_key(store, call.context(), message));
  MJ_CHECK(sign(message, key));
  const Fields fields{{"created_at", std::to_string(message.created_at)},
                      {"target_context", std::to_string(message.target_context)},
                      {"target_key", message.target_key},
                      {"algorithm", message.algorithm},
                      {"signer", message.signer},
                      {"signature", message.signature}};
  MJ_CHECK(store.change_record_if(call.context(), redis_key(message), fields, stored));
  return {};
}

// Default time limit of the delivery and of the signature.
constexpr std::uint32_t kDefaultDeliveryTimeoutS = 24 * 3600;

// Reads the content: a script, a flow, or a text for users.
Result<void> read_content(const Invocation& call, Message& message) {
  const int content_count = static_cast<int>(!call.arguments.empty()) + static_cast<int>(call.has("flow")) +
                            static_cast<int>(call.has("text"));
  if (content_count != 1)
    return fail(Code::invalid, "a message carries one of: a script (FILE), a flow (--flow FILE), a text (--text TEXT)");
  if (call.has("mail") && !call.has("text")) return fail(Code::invalid, "--mail: is for a text: --text TEXT");
  if (call.has("text") && call.get("text").empty()) return fail(Code::invalid, "--text: is empty");
  if (call.arguments.empty()) {
    for (const FlagRow& flag : script_flags()) {
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
    MJ_TRY(flow_file, read_flow_file(call, call.get("flow")));
    if (!flow_file.plan) return fail(Code::invalid, call.get("flow") + ": " + join(flow_file.problems));
    message.flow.emplace();
    message.flow->name = flow_file.plan->name;
    message.flow->definition = flow_file.plan->canonical;
    return {};
  }
  MJ_TRY(submission, read_submission(call));
  message.job.push_back(std::move(submission.job));
  return {};
}

Result<Message> read_message(const Invocation& call) {
  Message message;
  MJ_TRY(sender, parse_id_flag(call, "caller", kDefaultCaller));
  message.caller_id = sender;
  message.context_id = call.context();
  MJ_CHECK(read_content(call, message));
  MJ_TRY(params, read_request(call));
  MJ_TRY(target, parse_id_flag(call, "to", call.context()));
  message.target_context = target;
  message.target_address = call.get("address");
  if (call.has("address")) MJ_CHECK(service::check_address(message.target_address));
  message.topic = params.text("topic");
  message.stream_logs = params.flag("stream_logs") || call.has("follow");
  message.timeout = params.has_param("timeout") ? params.id("timeout") : kDefaultDeliveryTimeoutS;
  message.timeout_ack = params.id("timeout_ack");
  message.timeout_result = params.id("timeout_result");
  return message;
}

// Returns the delivery state of a message and the reason for a delay, as a text for the user.
std::string describe_delivery(const Invocation& call, StoreSession& session, const Message& message) {
  auto flows = session.services.stores->open_flows();
  const auto leader = flows ? (*flows)->leader(call.context()) : fail(Code::unavailable, "");
  if (leader && leader->first.empty()) {
    const std::string context = std::to_string(call.context());
    return "no coordinator leads context " + context + ", which would carry it: mycojobs coordinator --context " +
           context;
  }
  constexpr std::string_view kMarkFields[] = {"tries", "why"};
  const auto mark = session.store->load_fields(call.context(), message_state_key(redis_key(message)), kMarkFields);
  const std::string reason = mark ? to_printable(field_of(*mark, "why")) : "";
  if (message.status == MessageStatus::acknowledged) return "it is there, and its answer is awaited";
  if (reason.empty()) return "it is on its way";
  return "it could not be delivered, and is tried again: " + reason;
}

// Waits for the end of a message. Prints the log lines of its jobs, and the state of a delayed delivery.
class MessageFollower {
 public:
  MessageFollower(const Invocation& call, StoreSession& session, Message message)
      : call_(call), session_(session), message_(std::move(message)), quiet_since_ms_(now()) {}

  // Follows the message to its end and prints log lines of its jobs. The first Ctrl-C exits without an effect on the
  // message. Retries while the store is unavailable for a short time.
  Result<Message> follow() {
    for (std::uint64_t unavailable_since_ms = 0;;) {
      const auto result = refresh();
      if (result && *result) return message_;
      if (!result && result.error().code != Code::unavailable) return tl::unexpected(result.error());
      if (!result) {
        if (unavailable_since_ms == 0) unavailable_since_ms = now();
        if (now() - unavailable_since_ms > kMaxMessageUnavailableMs)
          return fail(Code::unavailable, result.error().message + "; " + continuation_hint());
        reopen_store(call_, session_, false);
      } else {
        unavailable_since_ms = 0;
        report_delivery();
      }
      if (next_follower_signal(200) != 0) return fail(Code::conflict, continuation_hint());
    }
  }

 private:
  std::uint64_t now() const { return call_.dependencies.clock.boot_ms(); }
  std::string continuation_hint() const {
    return redis_key(message_) + " continues: `mycojobs message follow " + redis_key(message_).substr(8) +
           format_context_flag(call_) + "` waits for it again";
  }
  // Reads the message and prints new log lines of its jobs. Returns true if the message has ended.
  Result<bool> refresh() {
    MJ_TRY(fields, session_.store->load(call_.context(), redis_key(message_)));
    const MessageStatus previous_status = std::exchange(message_, decode<Message>(fields).record).status;
    if (previous_status != message_.status) quiet_since_ms_ = now();
    for (const Job& job : message_.job) {
      const std::string key = job_key(message_.caller_id, job.id);
      auto page = session_.services.logs->read(*session_.store, call_.context(), key, last_seqs_[key], 500, 0);
      if (!page && page.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(page).error());
      if (!page) continue;
      for (const Log& line : page->lines) {
        last_seqs_[key] = line.seq;
        quiet_since_ms_ = now();
        if (!call_.json) print_log(line);
      }
    }
    return has_ended(message_.status);
  }
  // Prints the delivery state if neither the status nor the log has changed for a while. A state is printed once.
  void report_delivery() {
    if (now() - quiet_since_ms_ < kDeliveryStateDelayMs) return;
    quiet_since_ms_ = now();
    const std::string state = describe_delivery(call_, session_, message_);
    if (state != std::exchange(reported_state_, state)) print_message(redis_key(message_) + ": " + state);
  }

  const Invocation& call_;
  StoreSession& session_;
  Message message_;
  std::uint64_t quiet_since_ms_;
  std::string reported_state_;
  std::map<std::string, std::uint64_t> last_seqs_;
};

Result<int> print_message_result(const Invocation& call, Store& store, const Message& message) {
  nlohmann::json jobs = nlohmann::json::array();
  for (const Job& reference : message.job) {
    auto record = store.load(call.context(), job_key(message.caller_id, reference.id));
    if (!record) continue;
    const Job job = decode<Job>(*record).record;
    jobs.push_back(to_json(job));
    if (call.json) continue;
    print_message(redis_key(job) + ": " + std::string(to_string(job.status)) +
                  (job.error.empty() ? "" : ", " + job.error));
    for (const auto& [name, value] : job.result) print(to_printable(name) + " = " + to_printable(value) + "\n");
  }
  const bool is_processed = message.status == MessageStatus::processed;
  if (call.json) {
    nlohmann::json object = service::message_to_json(message);
    object["jobs"] = std::move(jobs);
    print_json(object);
  } else {
    print_message(redis_key(message) + " is " + std::string(to_string(message.status)) +
                  (message.error.empty() ? "" : ": " + message.error));
    const auto flow = is_processed ? service::get_flow_result(message) : std::nullopt;
    if (flow) {
      for (const auto& [name, value] : flow->result) print(to_printable(name) + " = " + to_printable(value) + "\n");
    }
  }
  return is_processed ? 0 : 1;
}

// Returns the public key of the message's caller: the given key, or the key of the actor's record.
Result<std::string> find_sender_pubkey(const Invocation& call, Store& store, const Message& message) {
  if (call.has("key")) return parse_public_key(call, call.get("key"));
  MJ_TRY(caller, request_context(call));
  auto actor = service::read_actor(caller, store, message.caller_id);
  if (!actor) return fail(actor.error(), "actor:" + std::to_string(message.caller_id));
  return actor->pubkey;
}

}  // namespace

Result<int> message_send_command(Invocation& call) {
  MJ_TRY(key, load_sender_key(call));
  MJ_TRY(message_to_send, read_message(call));
  MJ_TRY(session, open_store_for_query(call));
  const service::RequestContext caller = make_request_context(call, message_to_send.caller_id);
  MJ_CHECK(check_sender_key(*session.store, message_to_send, key));
  MJ_TRY(message, service::send_message(caller, *session.store, message_to_send.caller_id, message_to_send));
  MJ_CHECK(sign_record(call, *session.store, {}, message, key));
  MJ_TRY(posted_message, service::post_message(caller, *session.store, message.caller_id, message.id, {}));
  if (!call.has("follow")) {
    if (call.json) {
      print_json(to_json(posted_message));
    } else {
      print(redis_key(posted_message).substr(8) + "\n");
      print_message("mycojobs message follow " + redis_key(posted_message).substr(8) + format_context_flag(call) +
                    " waits for its end");
    }
    return 0;
  }
  block_stop_signals();
  MJ_TRY(ended_message, MessageFollower(call, session, std::move(posted_message)).follow());
  return print_message_result(call, *session.store, ended_message);
}

Result<int> message_follow_command(Invocation& call) {
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(message, load_message(call, *session.store));
  block_stop_signals();
  MJ_TRY(ended_message, MessageFollower(call, session, std::move(message)).follow());
  return print_message_result(call, *session.store, ended_message);
}

Result<int> message_cancel_command(Invocation& call) {
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(previous, load_message(call, *session.store));
  MJ_TRY(caller, request_context(call));
  MJ_TRY(message, service::cancel_message(caller, *session.store, previous.caller_id, previous.id));
  if (call.json) return print_json(to_json(message));
  const std::string status_text(to_string(message.status));
  if (has_ended(previous.status)) {
    print(redis_key(message) + " had ended before: it is " + status_text + "\n");
  } else if (has_ended(message.status)) {
    print(redis_key(message) + " has ended: " + to_printable(message.error) + "\n");
  } else {
    print(redis_key(message) + " is requested to end: mycojobs message follow " + redis_key(message).substr(8) +
          format_context_flag(call) + " waits for it\n");
  }
  return 0;
}

Result<int> message_list_command(Invocation& call) {
  MJ_TRY(request, read_request(call));
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(caller, request_context(call));
  MJ_TRY(messages, service::list_messages(caller, *session.store, request.number("limit")));
  nlohmann::json array = nlohmann::json::array();
  TableRows rows{{"MESSAGE", "TYPE", "STATUS", "TOPIC", "ERROR"}};
  for (const Message& message : messages) {
    array.push_back(to_json(message));
    array.back()["state"] = service::to_display_status(message);
    rows.push_back({redis_key(message).substr(8), std::string(to_string(message.message_type)),
                    std::string(service::to_display_status(message)), to_printable(message.topic),
                    shorten_message(to_printable(message.error), kMaxErrorColumns)});
  }
  return print_listing(call, array, rows, TableFit::screen);
}

Result<int> message_show_command(Invocation& call) {
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(message, load_message(call, *session.store));
  nlohmann::json fields = service::message_to_json(message);
  // Delivery state of a sent message, with the reason of a delay.
  constexpr std::string_view kMarkFields[] = {"state", "tries", "why", "answer"};
  auto mark = session.store->load_fields(call.context(), message_state_key(redis_key(message)), kMarkFields);
  if (!mark && mark.error().code != Code::not_found) return tl::unexpected<Error>(std::move(mark).error());
  if (mark) {
    for (const auto& [name, value] : *mark) fields["mark"][name] = value;
  }
  if (call.json) return print_json(fields);
  TableRows rows;
  for (const auto& [name, value] : fields.items())
    rows.push_back({name, to_printable(value.is_string() ? value.get<std::string>() : dump_json(value))});
  print_table(rows);
  return 0;
}

Result<int> message_sign_command(Invocation& call) {
  MJ_TRY(key, load_sender_key(call));
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(message, load_message(call, *session.store));
  // Read access to a message does not permit signing it.
  MJ_TRY(caller, request_context(call));
  MJ_CHECK(
      service::check_permission(caller, *session.store, Action::steer,
                                {.name = "message " + redis_key(message).substr(8), .creator = message.caller_id}));
  MJ_TRY(message_id, parse_message_argument(call));
  MJ_TRY(stored, session.store->load(call.context(), "message:" + call.arguments.at(0)));
  message = decode<Message>(stored).record;
  if (message.id != message_id.id || message.caller_id != message_id.caller)
    return fail(Code::invalid, "message:" + call.arguments.at(0) + ": id and caller_id: are not those of its key");
  if (has_ended(message.status))
    return fail(Code::conflict, redis_key(message) + " has ended: it is " + std::string(to_string(message.status)));
  if (call.has("to")) {
    MJ_TRY(target, parse_id_flag(call, "to", 0));
    message.target_context = target;
  }
  MJ_CHECK(check_sender_key(*session.store, message, key));
  MJ_CHECK(sign_record(call, *session.store, stored, message, key));
  if (call.json) {
    print_json_line({{"message", redis_key(message)}, {"signer", message.signer}, {"signature", message.signature}});
  } else {
    print_message(redis_key(message) + " is signed; it counts for " +
                  format_duration(std::uint64_t{std::max(kSignatureWindowS, message.timeout)} * 1000));
  }
  return 0;
}

Result<int> message_verify_command(Invocation& call) {
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(message, load_message(call, *session.store));
  MJ_TRY(pubkey, find_sender_pubkey(call, *session.store, message));
  MJ_TRY(now_ms, session.store->now_ms());
  const auto validity = check_signature(message, {pubkey, now_ms / 1000});
  const std::string reason = validity ? "" : validity.error().message;
  print_answer(call, {{"message", redis_key(message)}, {"holds", validity.has_value()}, {"why_not", to_utf8(reason)}},
               (validity ? "holds: signed by " + pubkey : "DOES NOT HOLD: " + to_printable(reason)));
  return validity ? 0 : 1;
}

}  // namespace mycojobs
