// RedisStore: changes and deletion of records, public keys of actors, and denied requests.
#include "base/parse.h"
#include "model/codec.h"
#include "store/keys.h"
#include "store/record_changes.h"
#include "store/redis/redis_store.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

// Database 0 contains only actors, which do not belong to a context.
Result<void> check_context(Id context, const std::string& key) {
  if (context != 0 || key.starts_with("actor:")) return {};
  return fail(Code::invalid, key + ": only actors live in context 0");
}

}  // namespace

tl::unexpected<Error> key_conflict_error() {
  return fail(Code::conflict,
              "pubkey: another actor has this key, and a key is of one: make a new one with "
              "`mycojobs key new`");
}

Result<void> RedisStore::index_actors(const std::string& scan_start) {
  constexpr int kMaxPages = 10000;
  MJ_TRY(redis, link(0));
  std::string cursor = "0";
  for (int page = 0; page < kMaxPages; ++page) {
    MJ_TRY(next_cursor, redis->run(scripts::index_actors, Arguments{cursor, scan_start}));
    cursor = next_cursor.text();
    if (cursor == "0") return {};
  }
  return fail(Code::unavailable, "database 0 has too many keys to scan for actors");
}

Result<KeyOwner> RedisStore::owner_of_key(const std::string& pubkey) {
  MJ_TRY(redis, link(0));
  KeyOwner owner;
  for (;;) {
    MJ_TRY(reply, redis->run(scripts::actor_of_key, Arguments{pubkey}));
    owner.actor_count = static_cast<std::uint32_t>(reply.at(0).number());
    owner.id = static_cast<Id>(reply.at(1).number());
    owner.checked_ms = reply.at(2).number();
    owner.record = reply.at(4).fields();
    const std::string scan_start(reply.at(3).text());
    if (scan_start.empty() || owner.checked_now) return owner;
    MJ_CHECK(index_actors(scan_start));
    owner.checked_now = true;
  }
}

Result<Fields> RedisStore::change_record(Id context, const std::string& key, const Fields& fields) {
  return change_record_if(context, key, fields, {});
}

Result<Fields> RedisStore::change_record_if(Id context, const std::string& key, const Fields& fields,
                                            const Fields& expected) {
  MJ_CHECK(check_context(context, key));
  if (context == 0 && !field_of(fields, "pubkey").empty()) MJ_CHECK(index_actors(""));
  MJ_TRY(redis, link(context));
  auto reply = redis->run(scripts::change_record, Arguments{key}.add_list(fields).add_list(expected));
  if (!reply) return fail(std::move(reply).error(), key);
  if (reply->at(0).number() == 1) return tl::unexpected<Error>(record_not_found(context, key));
  if (reply->at(0).number() == 2) return key_conflict_error();
  if (reply->at(0).number() == 3)
    return fail(Code::conflict,
                key + ": " + std::string(reply->at(1).text()) +
                    " was changed by another client in the meantime: read it again and repeat the call");
  return reply->at(1).fields();
}

Result<std::string> RedisStore::context_revision(Id context) {
  MJ_TRY(reply, run(context, scripts::context_revision, Arguments{}.add(std::uint64_t{context})));
  return std::string(reply.text());
}

Result<bool> RedisStore::delete_context_if(Id context, const std::string& revision) {
  MJ_TRY(reply, run(context, scripts::delete_context, Arguments{}.add(std::uint64_t{context}).add(revision)));
  return reply.number() == 1;
}

Result<bool> RedisStore::delete_actor_if(Id actor, std::span<const ExpectedContext> expected) {
  std::uint64_t argument_count = 0;
  for (const ExpectedContext& entry : expected)
    argument_count += contexts_with_own_server_.contains(entry.context) ? 0 : 3 * entry.fields.size();
  Arguments arguments;
  arguments.add(std::uint64_t{actor}).add(argument_count);
  for (const ExpectedContext& entry : expected) {
    if (contexts_with_own_server_.contains(entry.context)) continue;
    for (const auto& [name, value] : entry.fields) arguments.add(std::uint64_t{entry.context}).add(name).add(value);
  }
  const std::string key = "actor:" + std::to_string(actor);
  MJ_TRY(redis, link(0));
  auto reply = redis->run(scripts::delete_actor, arguments);
  if (!reply) return fail(std::move(reply).error(), key);
  if (reply->text() == "missing") return tl::unexpected<Error>(record_not_found(0, key));
  return reply->text() == "gone";
}

Result<void> RedisStore::post_message(Id context, const std::string& message_key, const Fields& signature) {
  MJ_TRY(reply, run(context, scripts::post_message, Arguments{message_key}.add_list(signature)));
  if (reply.text() == "missing") return tl::unexpected<Error>(record_not_found(context, message_key));
  if (reply.text() == "posted") return {};
  return fail(Code::conflict, message_key + " was sent before: it is " + std::string(reply.text()));
}

namespace {

Result<RedisStore*> to_redis_store(RecordStore& store) {
  if (auto* redis = dynamic_cast<RedisStore*>(&store)) return redis;
  return fail(Code::unsupported, "this store changes no records under a condition");
}

}  // namespace

Result<Fields> change_record_if(RecordStore& store, Id context, const std::string& key, const Fields& fields,
                                const Fields& expected) {
  MJ_TRY(redis, to_redis_store(store));
  return redis->change_record_if(context, key, fields, expected);
}
Result<std::string> context_revision(RecordStore& store, Id context) {
  MJ_TRY(redis, to_redis_store(store));
  return redis->context_revision(context);
}
Result<bool> delete_context_if(RecordStore& store, Id context, const std::string& revision) {
  MJ_TRY(redis, to_redis_store(store));
  return redis->delete_context_if(context, revision);
}
Result<bool> delete_actor_if(RecordStore& store, Id actor, std::span<const ExpectedContext> expected) {
  MJ_TRY(redis, to_redis_store(store));
  return redis->delete_actor_if(actor, expected);
}
Result<void> post_message_record(RecordStore& store, Id context, const std::string& message_key,
                                 const Fields& signature) {
  MJ_TRY(redis, to_redis_store(store));
  return redis->post_message(context, message_key, signature);
}

Result<void> RedisStore::delete_record(Id context, const std::string& key) {
  MJ_CHECK(check_context(context, key));
  MJ_TRY(redis, link(context));
  auto reply = redis->run(is_job_key(key) ? scripts::delete_job : scripts::delete_record, Arguments{key});
  if (!reply) return fail(std::move(reply).error(), key);
  const std::string_view answer = reply->text();
  if (answer == "gone") return {};
  if (answer == "missing") return tl::unexpected<Error>(record_not_found(context, key));
  return fail(Code::conflict, key + " is not deleted: " + std::string(answer));
}

Result<void> RedisStore::record_refusal(Id context, const RefusalNote& note) {
  Arguments arguments;
  arguments.add(std::uint64_t{note.actor})
      .add(note.action)
      .add(truncate_utf8(note.resource, kMaxReasonBytes))
      .add(note.access_list);
  MJ_CHECK(run(context, scripts::note_refusal, arguments));
  metrics().add(Metric::refusals, {context, note.action});
  if (note.action == "deliver") metrics().add(Metric::messages, {context, "refused"});
  return {};
}

Result<std::vector<RefusalNote>> RedisStore::refusals(Id context, std::size_t max) {
  MJ_TRY(reply, command(context, Arguments{"XREVRANGE", kRefusalsKey, "+", "-", "COUNT"}.add(std::uint64_t{max})));
  std::vector<RefusalNote> notes;
  for (std::size_t i = 0; i < reply.size(); ++i) {
    RefusalNote note;
    const std::string id(reply.at(i).at(0).text());
    parse_u64(id.substr(0, id.find('-')), note.number);
    for (const auto& [name, value] : reply.at(i).at(1).fields()) {
      std::uint64_t number = 0;
      if (name == "at") parse_u64(value, note.at_ms);
      if (name == "actor" && parse_u64(value, number)) note.actor = static_cast<Id>(number);
      if (name == "action") note.action = value;
      if (name == "thing") note.resource = value;
      if (name == "list") note.access_list = value;
    }
    notes.push_back(std::move(note));
  }
  return notes;
}

}  // namespace mycojobs
