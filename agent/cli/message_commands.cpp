// mycojobs message list, show, sign, verify
#include <nlohmann/json.hpp>
#include <optional>

#include "base/ed25519.h"
#include "base/ids.h"
#include "cli/commands.h"
#include "cli/session.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "domain/screen_text.h"
#include "domain/signatures.h"
#include "domain/utf8.h"
#include "service/actors.h"
#include "service/records.h"

namespace mycojobs {
namespace {

struct MessageName {
  Id caller = kDefaultCaller, id = 0;
};

// "12:101", "message:12:101", or "101" of the default caller.
Result<MessageName> message_argument(const Invocation& call) {
  std::string text = call.arguments.at(0);
  if (text.starts_with("message:")) text.erase(0, 8);
  const auto colon = text.find(':');
  std::uint64_t caller = kDefaultCaller, id = 0;
  const bool read = (colon == std::string::npos || parse_u64(text.substr(0, colon), caller)) &&
                    parse_u64(text.substr(colon == std::string::npos ? 0 : colon + 1), id);
  if (!read || caller == 0 || id == 0 || caller > UINT32_MAX || id > UINT32_MAX)
    return fail(Code::invalid, "MESSAGE: " + shown(call.arguments.at(0)) + " is no message: CALLER:ID, as in 12:101");
  return MessageName{static_cast<Id>(caller), static_cast<Id>(id)};
}

Result<Message> load_message(const Invocation& call, Store& store) {
  MJ_TRY(name, message_argument(call));
  MJ_TRY(who, who_asks(call));
  return service::read_message(who, store, name.caller, name.id);
}

Result<int> list(Invocation& call) {
  std::uint64_t limit = 0;
  if (!parse_u64(call.get("limit", "50"), limit) || limit == 0) return fail(Code::invalid, "--limit: a whole number");
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(who, who_asks(call));
  MJ_TRY(messages, service::list_messages(who, *opened.store, limit));
  nlohmann::json array = nlohmann::json::array();
  std::vector<std::vector<std::string>> rows{{"MESSAGE", "TYPE", "STATUS", "TOPIC", "ERROR"}};
  for (const Message& message : messages) {
    array.push_back(to_json(message));
    rows.push_back({redis_key(message).substr(8), std::string(word(message.message_type)),
                    std::string(word(message.status)), printable(message.topic), printable(message.error)});
  }
  if (call.json) {
    print(dump_json(array, 2) + "\n");
  } else {
    print_table(rows);
  }
  return 0;
}

Result<int> show(Invocation& call) {
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(message, load_message(call, *opened.store));
  const nlohmann::json fields = to_json(message);
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

Result<int> sign_one(Invocation& call) {
  if (!call.has("key")) return fail(Code::invalid, "--key: name the sender's key, made by `mycojobs key new NAME`");
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(message, load_message(call, *opened.store));
  // Who reads another's message does not write into it.
  MJ_TRY(by, who_asks(call));
  MJ_CHECK(service::may(by, *opened.store, Action::steer,
                        {.name = "message " + redis_key(message).substr(8), .maker = message.caller_id}));
  MJ_TRY(file, key_file(call.settings, call.get("key")));
  MJ_TRY(key, SigningKey::load(file));
  if (call.has("to")) {
    MJ_TRY(target, id_flag(call, "to", 0));
    message.target_context = target;
  }
  MJ_TRY(now_ms, opened.store->now_ms());
  message.created_at = static_cast<std::uint32_t>(now_ms / 1000);
  MJ_CHECK(sign(message, key));
  const Fields fields{{"created_at", std::to_string(message.created_at)},
                      {"target_context", std::to_string(message.target_context)},
                      {"algorithm", message.algorithm},
                      {"signer", message.signer},
                      {"signature", message.signature}};
  MJ_CHECK(opened.store->save(context_of(call), redis_key(message), fields));
  if (call.json) {
    print(dump_json({{"message", redis_key(message)}, {"signer", message.signer}, {"signature", message.signature}}) +
          "\n");
  } else {
    say(redis_key(message) + " is signed; it counts for " + std::to_string(kSignatureWindowS / 60) + " minutes");
  }
  return 0;
}

// The key of the actor whom the message names as caller: what was given, or what the actor's record says.
Result<std::string> key_of_sender(const Invocation& call, Store& store, const Message& message) {
  if (call.has("key")) return call.get("key");
  MJ_TRY(who, who_asks(call));
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

}  // namespace

int message_list_command(Invocation& call) { return finish(list(call)); }
int message_show_command(Invocation& call) { return finish(show(call)); }
int message_sign_command(Invocation& call) { return finish(sign_one(call)); }
int message_verify_command(Invocation& call) { return finish(verify_one(call)); }

}  // namespace mycojobs
