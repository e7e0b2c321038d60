// Writes, and what they know of kinds.
#include "store/redis_objects.h"

#include <algorithm>
#include <set>

#include "base/ids.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace {

// Of one script call: it stops every other client for as long as it runs.
constexpr std::size_t kMaxWriteBytes = 8U << 20;
constexpr std::size_t kMaxWriteEntries = 100000;
constexpr std::uint64_t kIndexBatch = 100;
constexpr std::uint64_t kIndexBytes = 512U << 10;
constexpr int kSchemaTries = 5;
constexpr std::size_t kMaxSchemas = 1000;

std::string_view word(ObjectOp::Deed deed) {
  if (deed == ObjectOp::Deed::put) return "put";
  return deed == ObjectOp::Deed::remove ? "remove" : "check";
}

std::string shown_object(const ObjectOp& op) { return op.of.kind + " " + shown(op.id, 80); }

// "operations[2]: " where there are several.
std::string place(std::span<const ObjectOp> ops, std::size_t index) {
  return ops.size() == 1 ? "" : "operations[" + std::to_string(index) + "]: ";
}

Result<void> check_ops(std::span<const ObjectOp> ops) {
  if (ops.empty() || ops.size() > kMaxObjectOps) {
    return fail(Code::invalid,
                "operations: " + std::to_string(ops.size()) + " are not 1 to " + std::to_string(kMaxObjectOps));
  }
  std::map<std::pair<ObjectKind, std::string>, std::size_t> seen;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const ObjectOp& op = ops[i];
    MJ_CHECK(check_object_name(place(ops, i) + "namespace", op.of.space));
    MJ_CHECK(check_object_name(place(ops, i) + "kind", op.of.kind));
    MJ_CHECK(check_object_id(place(ops, i) + "id", op.id));
    if (op.deed == ObjectOp::Deed::check && !op.version) {
      return fail(Code::invalid, place(ops, i) + "version: is missing, and a check is of nothing else");
    }
    if (op.version && *op.version > (1ULL << 53)) return fail(Code::invalid, place(ops, i) + "version: is too large");
    const auto [other, fresh] = seen.try_emplace({op.of, op.id}, i);
    if (!fresh) {
      return fail(Code::invalid, place(ops, i) + shown_object(op) + " is that of operations[" +
                                     std::to_string(other->second) + "]: one operation for each object");
    }
  }
  return {};
}

// What has to be sent for one put.
struct Body {
  std::string json, entries;
};

std::vector<ObjectStamp> read_stamps(std::string_view text, std::span<const ObjectOp> ops) {
  std::vector<ObjectStamp> stamps;
  for (const ObjectOp& op : ops) {
    const auto take = [&](char end) {
      const auto at = std::min(text.find(end), text.size());
      std::uint64_t number = 0;
      parse_u64(text.substr(0, at), number);
      text.remove_prefix(std::min(at + 1, text.size()));
      return number;
    };
    ObjectStamp stamp;
    stamp.id = op.id;
    stamp.version = take(',');
    stamp.created_ms = take(',');
    stamp.updated_ms = take(';');
    stamps.push_back(std::move(stamp));
  }
  return stamps;
}

tl::unexpected<Error> refusal(const Reply& reply, std::span<const ObjectOp> ops, const ClaimRef& claim) {
  const std::string_view why = reply.at(0).text();
  if (why == "stale") {
    return fail(Code::stale_claim, claim.job_key + " has been overtaken: its claim is not live any more");
  }
  if (why == "full") {
    return fail(Code::too_large, "kind: the context has " + std::to_string(kMaxObjectKinds) +
                                     " kinds already: use fewer, and tell objects apart by a field");
  }
  const std::size_t index = reply.at(1).number() - 1;
  if (index >= ops.size()) return fail(Code::internal, "redis: a write was answered " + shown(why));
  const ObjectOp& op = ops[index];
  const std::string what = place(ops, index) + shown_object(op);
  if (why == "missing") return fail(Code::not_found, what + " does not exist");
  if (why != "conflict") return fail(Code::internal, "redis: a write was answered " + shown(why));
  const std::uint64_t version = reply.at(2).number();
  if (version == 0) {
    return fail(Code::conflict, what + " does not exist, and version " + std::to_string(*op.version) + " was expected");
  }
  if (*op.version == 0) return fail(Code::conflict, what + " exists, in version " + std::to_string(version));
  return fail(Code::conflict, what + " is in version " + std::to_string(version) + ", and " +
                                  std::to_string(*op.version) + " was expected: get it again");
}

}  // namespace

std::string joined(const ObjectKind& of) { return of.space + ":" + of.kind; }
std::string object_key(const ObjectKind& of, std::string_view id) {
  return "mj:osis:object:" + joined(of) + ":" + std::string(id);
}
std::string object_ids_key(const ObjectKind& of) { return "mj:osis:ids:" + joined(of); }
std::string object_kind_key(const ObjectKind& of) { return "mj:osis:kind:" + joined(of); }
std::string object_index_key(const ObjectKind& of, std::string_view field) {
  return field.empty() ? "mj:osis:words:" + joined(of) : "mj:osis:index:" + joined(of) + ":" + std::string(field);
}

Result<void> check_kind(Id context, const ObjectKind& of) {
  if (context == 0) return fail(Code::invalid, "context 0 is where actors live; contexts begin with 1");
  MJ_CHECK(check_object_name("namespace", of.space));
  return check_object_name("kind", of.kind);
}

Result<RedisObjects::Schema> RedisObjects::load_schema(Id context, const ObjectKind& of) {
  MJ_TRY(reply, command(context, {"HGETALL", object_kind_key(of)}));
  Schema loaded;
  for (const auto& [name, value] : reply.fields()) {
    if (name == "rev") loaded.rev = value;
    if (name == "backfill") loaded.indexing = true, loaded.indexed = value;
    if (name.starts_with("i ")) loaded.fields.index.push_back(name.substr(2));
    if (name.starts_with("t ")) loaded.fields.text.push_back(name.substr(2));
  }
  std::sort(loaded.fields.index.begin(), loaded.fields.index.end());
  std::sort(loaded.fields.text.begin(), loaded.fields.text.end());
  if (schemas_.size() >= kMaxSchemas) schemas_.clear();
  schemas_.insert_or_assign({context, of}, loaded);
  return loaded;
}

Result<RedisObjects::Schema> RedisObjects::schema(Id context, const ObjectKind& of) {
  const auto found = schemas_.find({context, of});
  if (found != schemas_.end()) return found->second;
  return load_schema(context, of);
}

Result<Reply> RedisObjects::write_once(const ClaimRef& claim, const std::string& call, std::span<const ObjectOp> ops) {
  std::vector<Body> bodies(ops.size());
  std::vector<std::string> names(ops.size()), revs(ops.size()), versions(ops.size());
  std::size_t bytes = 0, entries = 0;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const ObjectOp& op = ops[i];
    names[i] = joined(op.of);
    if (op.version) versions[i] = std::to_string(*op.version);
    if (op.deed != ObjectOp::Deed::put) continue;
    auto json = object_with_id(op.json, op.id);
    if (!json) return fail(std::move(json).error(), place(ops, i) + "object");
    MJ_TRY(known, schema(claim.context, op.of));
    revs[i] = known.rev;
    MJ_TRY(indexed, index_entries(*json, known.fields));
    bytes += json->size() + indexed.size();
    entries += static_cast<std::size_t>(std::count(indexed.begin(), indexed.end(), '\3'));
    bodies[i] = {std::move(*json), std::move(indexed)};
  }
  if (bytes > kMaxWriteBytes || entries > kMaxWriteEntries) {
    return fail(Code::too_large, "operations: " + std::to_string(bytes) + " bytes with " + std::to_string(entries) +
                                     " index entries are over the limits of one write, " +
                                     std::to_string(kMaxWriteBytes) + " and " + std::to_string(kMaxWriteEntries) +
                                     ": write them in several calls");
  }
  Arguments arguments{claim.job_key, claim.claim_id, claim.token, call};
  arguments.add(std::uint64_t{ops.size()});
  for (std::size_t i = 0; i < ops.size(); ++i) {
    arguments.add(word(ops[i].deed)).add(names[i]).add(ops[i].id).add(versions[i]).add(revs[i]);
    arguments.add(bodies[i].json).add(bodies[i].entries);
  }
  return run(claim.context, scripts::object_write, arguments);
}

Result<WriteReply> RedisObjects::write(const ClaimRef& claim, const std::string& call, std::span<const ObjectOp> ops) {
  MJ_CHECK(check_ops(ops));
  for (int tries = 0; tries < kSchemaTries; ++tries) {
    MJ_TRY(reply, write_once(claim, call, ops));
    const std::string_view answer = reply.at(0).text();
    if (answer == "ok") return WriteReply{"", read_stamps(reply.at(1).text(), ops)};
    if (answer == "busy") return WriteReply{std::string(reply.at(1).text()), {}};
    if (answer != "schema") return refusal(reply, ops, claim);
    for (const ObjectOp& op : ops) schemas_.erase({claim.context, op.of});
  }
  return fail(Code::unavailable, "kind: its declared fields change all the time");
}

Result<DeclareReply> RedisObjects::declare(const ClaimRef& claim, const ObjectKind& of,
                                           const std::vector<std::string>& index,
                                           const std::vector<std::string>& text) {
  MJ_TRY(known, is_declared(claim.context, of, index, text));
  if (known) return DeclareReply{"", schemas_.at({claim.context, of}).indexing};
  std::set<std::string> names;
  for (const std::string& field : index) names.insert("i " + field);
  for (const std::string& field : text) names.insert("t " + field);
  Arguments arguments{claim.job_key, claim.claim_id, claim.token};
  const std::string name = joined(of);
  arguments.add(name).add(std::uint64_t{kMaxDeclaredFields}).add(std::uint64_t{names.size()});
  for (const std::string& each : names) arguments.add(each);
  MJ_TRY(reply, run(claim.context, scripts::object_declare, arguments));
  const std::string_view answer = reply.at(0).text();
  schemas_.erase({claim.context, of});
  if (answer == "ok") return DeclareReply{"", reply.at(1).number() == 1};
  if (answer == "busy") return DeclareReply{std::string(reply.at(1).text()), false};
  if (answer == "fields") {
    return fail(Code::too_large, "index, text: " + of.kind + " declares " + std::to_string(reply.at(1).number()) +
                                     " fields already, and may declare " + std::to_string(kMaxDeclaredFields) +
                                     " in all: put the others into another kind");
  }
  return refusal(reply, {}, claim);
}

Result<bool> RedisObjects::is_declared(Id context, const ObjectKind& of, const std::vector<std::string>& index,
                                       const std::vector<std::string>& text) {
  MJ_CHECK(check_kind(context, of));
  for (const std::string& field : index) MJ_CHECK(check_object_field("index", field));
  for (const std::string& field : text) MJ_CHECK(check_object_field("text", field));
  MJ_TRY(known, load_schema(context, of));
  const auto all_in = [](const std::vector<std::string>& asked, const std::vector<std::string>& there) {
    return std::all_of(asked.begin(), asked.end(),
                       [&](const std::string& each) { return std::binary_search(there.begin(), there.end(), each); });
  };
  return all_in(index, known.fields.index) && all_in(text, known.fields.text);
}

Result<bool> RedisObjects::index_more(Id context, const ObjectKind& of) {
  MJ_CHECK(check_kind(context, of));
  MJ_TRY(now, load_schema(context, of));
  if (!now.indexing) return false;
  const std::string name = joined(of);
  const std::string low = now.indexed.empty() ? "-" : "(" + now.indexed;
  const std::string ids = object_ids_key(of);
  Arguments query{name, ""};
  query.add(ids).add(low).add("+").add(kIndexBatch).add(kIndexBytes);
  MJ_TRY(reply, run(context, scripts::object_page, query));
  const Reply page = reply.at(1);
  const std::string after(page.at(0).text());
  std::vector<std::string> items;
  for (std::size_t i = 0; i < page.at(1).size(); ++i) {
    const Reply each = page.at(1).at(i);
    auto entries = index_entries(each.at(1).text(), now.fields);
    items.emplace_back(each.at(0).text());
    items.emplace_back(each.at(2).text());
    items.push_back(std::move(entries).value_or(""));  // of what another client has written there: none
  }
  Arguments done{name, now.rev, after};
  done.add(std::uint64_t{items.size()});
  for (const std::string& each : items) done.add(each);
  MJ_TRY(changed, run(context, scripts::object_index, done));
  return changed.number() == 0 || !after.empty();
}

Result<void> RedisObjects::release(const ClaimRef& claim) {
  MJ_CHECK(run(claim.context, scripts::object_release, {claim.job_key, claim.claim_id}));
  return {};
}

}  // namespace mycojobs
