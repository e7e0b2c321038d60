#include "store/objects/object_store.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_set>

#include "base/parse.h"
#include "store/claim_store.h"
#include "store/keys.h"
#include "store/objects/object_index.h"
#include "store/redis/redis_link.h"
#include "text/search_words.h"
#include "text/utf8.h"

namespace mycojobs {

namespace {

// Limits of one script call, since a running script blocks all other clients of the server.
constexpr std::size_t kMaxWriteBytes = 8U << 20;
constexpr std::size_t kMaxWriteEntries = 100000;
constexpr std::uint64_t kIndexBatch = 100;
constexpr std::uint64_t kMaxIndexBatchBytes = 512U << 10;
constexpr int kMaxSchemaAttempts = 5;
constexpr std::size_t kMaxSchemas = 1000;

std::string_view to_string(ObjectOp::Verb verb) {
  if (verb == ObjectOp::Verb::put) return "put";
  return verb == ObjectOp::Verb::remove ? "remove" : "check";
}

std::string describe_object(const ObjectOp& op) { return op.kind.kind + " " + excerpt(op.id, 80); }

// Returns the prefix of an error message: "operations[2]: " if there are several operations.
std::string operation_prefix(std::span<const ObjectOp> ops, std::size_t index) {
  return ops.size() == 1 ? "" : "operations[" + std::to_string(index) + "]: ";
}

Result<void> check_ops(std::span<const ObjectOp> ops) {
  if (ops.empty() || ops.size() > kMaxObjectOps) {
    return fail(Code::invalid,
                "operations: " + std::to_string(ops.size()) + " are not 1 to " + std::to_string(kMaxObjectOps));
  }
  std::map<std::pair<ObjectKind, std::string>, std::size_t> positions;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const ObjectOp& op = ops[i];
    MJ_CHECK(check_object_name(operation_prefix(ops, i) + "namespace", op.kind.name_space));
    MJ_CHECK(check_object_name(operation_prefix(ops, i) + "kind", op.kind.kind));
    MJ_CHECK(check_object_id(operation_prefix(ops, i) + "id", op.id));
    if (op.verb == ObjectOp::Verb::check && !op.version) {
      return fail(Code::invalid, operation_prefix(ops, i) + "version: is missing; a check needs it");
    }
    if (op.version && *op.version > (1ULL << 53))
      return fail(Code::invalid, operation_prefix(ops, i) + "version: is too large");
    const auto [entry, is_new] = positions.try_emplace({op.kind, op.id}, i);
    if (!is_new) {
      return fail(Code::invalid, operation_prefix(ops, i) + describe_object(op) + " is that of operations[" +
                                     std::to_string(entry->second) + "]: one operation for each object");
    }
  }
  return {};
}

// Arguments of one put.
struct PutArguments {
  std::string json, entries;
};

std::vector<ObjectStamp> read_stamps(std::string_view text, std::span<const ObjectOp> ops) {
  std::vector<ObjectStamp> stamps;
  for (const ObjectOp& op : ops) {
    const auto parse_number = [&](char end) {
      const auto at = std::min(text.find(end), text.size());
      std::uint64_t number = 0;
      parse_u64(text.substr(0, at), number);
      text.remove_prefix(std::min(at + 1, text.size()));
      return number;
    };
    ObjectStamp stamp;
    stamp.id = op.id;
    stamp.version = parse_number(',');
    stamp.created_ms = parse_number(',');
    stamp.updated_ms = parse_number(';');
    stamps.push_back(std::move(stamp));
  }
  return stamps;
}

tl::unexpected<Error> write_error(const Reply& reply, std::span<const ObjectOp> ops, const ClaimRef& claim) {
  const std::string_view status = reply.at(0).text();
  if (status == "stale") {
    return fail(Code::stale_claim, claim.job_key + " has been overtaken: its claim is not live any more");
  }
  if (status == "full") {
    return fail(Code::too_large, "kind: the context has " + std::to_string(kMaxObjectKinds) +
                                     " kinds already: use fewer kinds and distinguish objects by a field");
  }
  const std::size_t index = reply.at(1).number() - 1;
  if (index >= ops.size()) return fail(Code::internal, "redis: a write was answered " + excerpt(status));
  const ObjectOp& op = ops[index];
  const std::string object_text = operation_prefix(ops, index) + describe_object(op);
  if (status == "missing") return fail(Code::not_found, object_text + " does not exist");
  if (status != "conflict") return fail(Code::internal, "redis: a write was answered " + excerpt(status));
  const std::uint64_t version = reply.at(2).number();
  if (version == 0) {
    return fail(Code::conflict,
                object_text + " does not exist, and version " + std::to_string(*op.version) + " was expected");
  }
  if (*op.version == 0) return fail(Code::conflict, object_text + " exists, in version " + std::to_string(version));
  return fail(Code::conflict, object_text + " is in version " + std::to_string(version) + ", and " +
                                  std::to_string(*op.version) + " was expected: get it again");
}

std::string kind_name(const ObjectKind& kind) { return kind.name_space + ":" + kind.kind; }
std::string object_key(const ObjectKind& kind, std::string_view id) {
  return kObjectKey + kind_name(kind) + ":" + std::string(id);
}
std::string object_ids_key(const ObjectKind& kind) { return kObjectIdsKey + kind_name(kind); }
std::string object_kind_key(const ObjectKind& kind) { return kObjectKindKey + kind_name(kind); }
std::string object_index_key(const ObjectKind& kind, std::string_view field) {
  return field.empty() ? kObjectWordsKey + kind_name(kind)
                       : kObjectIndexKey + kind_name(kind) + ":" + std::string(field);
}

Result<void> check_kind(Id context, const ObjectKind& kind) {
  if (context == 0) return fail(Code::invalid, "context 0 is where actors live; contexts begin with 1");
  MJ_CHECK(check_object_name("namespace", kind.name_space));
  return check_object_name("kind", kind.kind);
}

}  // namespace

ObjectStore::ObjectStore(std::unique_ptr<ContextLinks> links) : links_(std::move(links)) {}
ObjectStore::~ObjectStore() = default;

Result<ObjectStore::Schema> ObjectStore::load_schema(Id context, const ObjectKind& kind) {
  MJ_TRY(reply, links_->command(context, {"HGETALL", object_kind_key(kind)}));
  Schema loaded;
  for (const auto& [name, value] : reply.fields()) {
    if (name == "rev") loaded.revision = value;
    if (name == "backfill") loaded.is_indexing = true, loaded.last_indexed_id = value;
    if (name.starts_with("i ")) loaded.fields.index.push_back(name.substr(2));
    if (name.starts_with("t ")) loaded.fields.text.push_back(name.substr(2));
  }
  std::sort(loaded.fields.index.begin(), loaded.fields.index.end());
  std::sort(loaded.fields.text.begin(), loaded.fields.text.end());
  if (schemas_.size() >= kMaxSchemas) schemas_.clear();
  schemas_.insert_or_assign({context, kind}, loaded);
  return loaded;
}

Result<ObjectStore::Schema> ObjectStore::get_cached_schema(Id context, const ObjectKind& kind) {
  const auto cached = schemas_.find({context, kind});
  if (cached != schemas_.end()) return cached->second;
  return load_schema(context, kind);
}

Result<Reply> ObjectStore::write_once(const ClaimRef& claim, const std::string& call, std::span<const ObjectOp> ops) {
  std::vector<PutArguments> bodies(ops.size());
  std::vector<std::string> names(ops.size()), revisions(ops.size()), versions(ops.size());
  std::size_t bytes = 0, entries = 0;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const ObjectOp& op = ops[i];
    names[i] = kind_name(op.kind);
    if (op.version) versions[i] = std::to_string(*op.version);
    if (op.verb != ObjectOp::Verb::put) continue;
    auto json = object_with_id(op.json, op.id);
    if (!json) return fail(std::move(json).error(), operation_prefix(ops, i) + "object");
    MJ_TRY(current_schema, get_cached_schema(claim.context, op.kind));
    revisions[i] = current_schema.revision;
    MJ_TRY(indexed, index_entries(*json, current_schema.fields));
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
    arguments.add(to_string(ops[i].verb)).add(names[i]).add(ops[i].id).add(versions[i]).add(revisions[i]);
    arguments.add(bodies[i].json).add(bodies[i].entries);
  }
  return links_->run(claim.context, scripts::object_write, arguments);
}

Result<WriteReply> ObjectStore::write(const ClaimRef& claim, const std::string& call, std::span<const ObjectOp> ops) {
  MJ_CHECK(check_ops(ops));
  for (int attempt = 0; attempt < kMaxSchemaAttempts; ++attempt) {
    MJ_TRY(reply, write_once(claim, call, ops));
    const std::string_view answer = reply.at(0).text();
    if (answer == "ok") return WriteReply{"", read_stamps(reply.at(1).text(), ops)};
    if (answer == "busy") return WriteReply{std::string(reply.at(1).text()), {}};
    if (answer != "schema") return write_error(reply, ops, claim);
    for (const ObjectOp& op : ops) schemas_.erase({claim.context, op.kind});
  }
  return fail(Code::unavailable, "kind: its declared fields change all the time");
}

Result<DeclareReply> ObjectStore::declare(const ClaimRef& claim, const ObjectKind& kind,
                                          const std::vector<std::string>& index, const std::vector<std::string>& text) {
  MJ_TRY(has_all_fields, is_declared(claim.context, kind, index, text));
  if (has_all_fields) return DeclareReply{"", schemas_.at({claim.context, kind}).is_indexing};
  std::set<std::string> names;
  for (const std::string& field : index) names.insert("i " + field);
  for (const std::string& field : text) names.insert("t " + field);
  Arguments arguments{claim.job_key, claim.claim_id, claim.token};
  const std::string name = kind_name(kind);
  arguments.add(name).add(std::uint64_t{kMaxDeclaredFields}).add(std::uint64_t{names.size()});
  for (const std::string& field : names) arguments.add(field);
  MJ_TRY(reply, links_->run(claim.context, scripts::object_declare, arguments));
  const std::string_view answer = reply.at(0).text();
  schemas_.erase({claim.context, kind});
  if (answer == "ok") return DeclareReply{"", reply.at(1).number() == 1};
  if (answer == "busy") return DeclareReply{std::string(reply.at(1).text()), false};
  if (answer == "fields") {
    return fail(Code::too_large, "index, text: " + kind.kind + " declares " + std::to_string(reply.at(1).number()) +
                                     " fields already, and may declare " + std::to_string(kMaxDeclaredFields) +
                                     " in total: use another kind for the others");
  }
  return write_error(reply, {}, claim);
}

Result<bool> ObjectStore::is_declared(Id context, const ObjectKind& kind, const std::vector<std::string>& index,
                                      const std::vector<std::string>& text) {
  MJ_CHECK(check_kind(context, kind));
  for (const std::string& field : index) MJ_CHECK(check_object_field("index", field));
  for (const std::string& field : text) MJ_CHECK(check_object_field("text", field));
  MJ_TRY(current_schema, load_schema(context, kind));
  const auto contains_all = [](const std::vector<std::string>& requested, const std::vector<std::string>& declared) {
    return std::all_of(requested.begin(), requested.end(), [&](const std::string& field) {
      return std::binary_search(declared.begin(), declared.end(), field);
    });
  };
  return contains_all(index, current_schema.fields.index) && contains_all(text, current_schema.fields.text);
}

Result<bool> ObjectStore::index_more(Id context, const ObjectKind& kind) {
  MJ_CHECK(check_kind(context, kind));
  MJ_TRY(current, load_schema(context, kind));
  if (!current.is_indexing) return false;
  const std::string name = kind_name(kind);
  const std::string low = current.last_indexed_id.empty() ? "-" : "(" + current.last_indexed_id;
  const std::string ids = object_ids_key(kind);
  Arguments query{name, ""};
  query.add(ids).add(low).add("+").add(kIndexBatch).add(kMaxIndexBatchBytes);
  MJ_TRY(reply, links_->run(context, scripts::object_page, query));
  const Reply page = reply.at(1);
  const std::string after(page.at(0).text());
  std::vector<std::string> items;
  for (std::size_t i = 0; i < page.at(1).size(); ++i) {
    const Reply row = page.at(1).at(i);
    auto entries = index_entries(row.at(1).text(), current.fields);
    items.emplace_back(row.at(0).text());
    items.emplace_back(row.at(2).text());
    items.push_back(std::move(entries).value_or(""));  // an invalid object of another client gets no entries
  }
  Arguments update{name, current.revision, after};
  update.add(std::uint64_t{items.size()});
  for (const std::string& item : items) update.add(item);
  MJ_TRY(changed, links_->run(context, scripts::object_index, update));
  return changed.number() == 0 || !after.empty();
}

Result<void> ObjectStore::release(const ClaimRef& claim) {
  MJ_CHECK(links_->run(claim.context, scripts::object_release, {claim.job_key, claim.claim_id}));
  return {};
}

// Reading objects.

namespace {

constexpr std::uint64_t kMaxPageBytes = 4U << 20;
constexpr std::uint64_t kMaxCandidates = 2000;  // scanned objects in one step of a search
constexpr std::size_t kNumberDigits = 16;

Result<void> check_limit(std::size_t limit) {
  if (limit >= 1 && limit <= kMaxObjectPage) return {};
  return fail(Code::invalid, "limit: " + std::to_string(limit) + " is not from 1 to " + std::to_string(kMaxObjectPage));
}

Result<void> check_after(std::string_view after) {
  if (after.empty()) return {};
  return check_object_id("after", after);
}

std::string parse_member_id(std::string_view member) {
  const auto end = member.find('\1');
  return std::string(end == std::string_view::npos ? member : member.substr(end + 1));
}

Result<StoredObject> read_object(const ObjectKind& kind, std::string id, const Reply& fields, std::size_t first) {
  StoredObject object;
  object.id = std::move(id);
  object.json = fields.at(first).text();
  object.version = fields.at(first + 1).number();
  object.created_ms = fields.at(first + 2).number();
  object.updated_ms = fields.at(first + 3).number();
  if (is_object_json(object.json)) return object;
  return fail(Code::invalid, kind.kind + " " + excerpt(object.id, 80) +
                                 " is not a JSON object: another client wrote it; put it again or delete it");
}

Result<ObjectPage> undeclared_error(const ObjectKind& kind, const std::string& object_text) {
  return fail(Code::invalid, object_text + " of " + kind.name_space + "/" + kind.kind +
                                 " is declared: declare searchable fields with osis.declare");
}

struct Range {
  std::string low, high;
};

// Returns the bounds of a query for a range of numbers. `after` is a cursor (16 hex digits of the value, a blank, the
// id), or empty.
Result<Range> make_range(const ObjectQuery& query, const std::string& after) {
  const auto is_finite = [](const std::optional<double>& number) { return !number || std::isfinite(*number); };
  if (!is_finite(query.min) || !is_finite(query.max)) return fail(Code::invalid, "min, max: are to be finite numbers");
  Range range;
  range.low = query.min ? "[" + index_value(*query.min) + "\1" : "[n";
  range.high = query.max ? "(" + index_value(*query.max) + "\2" : "(o";
  if (after.empty()) return range;
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (after.size() < kNumberDigits + 2 || after[kNumberDigits] != ' ' ||
      !std::all_of(after.begin(), after.begin() + kNumberDigits, is_digit)) {
    return fail(Code::invalid, "after: is not a value that a page of this range returned");
  }
  const std::string id = after.substr(kNumberDigits + 1);
  MJ_CHECK(check_object_id("after", id));
  range.low = "(n" + after.substr(0, kNumberDigits) + "\1" + id;
  return range;
}

}  // namespace

Result<StoredObject> ObjectStore::get(Id context, const ObjectKind& kind, const std::string& id) {
  MJ_CHECK(check_kind(context, kind));
  MJ_CHECK(check_object_id("id", id));
  MJ_TRY(reply,
         links_->command(context, {"HMGET", object_key(kind, id), "json", "version", "created_ms", "updated_ms"}));
  if (reply.at(0).is_nil()) {
    return fail(Code::not_found,
                kind.kind + " " + excerpt(id, 80) + " of namespace " + kind.name_space + " does not exist");
  }
  return read_object(kind, id, reply, 0);
}

Result<ObjectPage> ObjectStore::read_page(Id context, const ObjectKind& kind, const PageRequest& requested,
                                          std::size_t limit, std::string& last_member) {
  const std::string name = kind_name(kind);
  Arguments arguments{name, requested.field, requested.key, requested.low, requested.high};
  MJ_TRY(reply, links_->run(context, scripts::object_page, arguments.add(std::uint64_t{limit}).add(kMaxPageBytes)));
  ObjectPage out;
  if (reply.at(0).text() == "undeclared")
    return undeclared_error(kind, "field: no " + excerpt(requested.field.substr(2), 80));
  out.indexing = reply.at(0).text() == "indexing";
  const Reply page_reply = reply.at(1);
  last_member = page_reply.at(0).text();
  for (std::size_t i = 0; i < page_reply.at(1).size(); ++i) {
    const Reply row = page_reply.at(1).at(i);
    MJ_TRY(object, read_object(kind, std::string(row.at(0).text()), row, 1));
    out.objects.push_back(std::move(object));
  }
  return out;
}

Result<ObjectPage> ObjectStore::list(Id context, const ObjectKind& kind, const std::string& after, std::size_t limit) {
  MJ_CHECK(check_kind(context, kind));
  MJ_CHECK(check_limit(limit));
  MJ_CHECK(check_after(after));
  std::string last_member;
  MJ_TRY(out, read_page(context, kind, {"", object_ids_key(kind), after.empty() ? "-" : "(" + after, "+"}, limit,
                        last_member));
  out.next_cursor = last_member;
  return std::move(out);
}

Result<ObjectPage> ObjectStore::find(Id context, const ObjectKind& kind, const ObjectQuery& query,
                                     const std::string& after, std::size_t limit) {
  MJ_CHECK(check_kind(context, kind));
  MJ_CHECK(check_limit(limit));
  MJ_CHECK(check_object_field("field", query.field));
  const std::string field = "i " + query.field, key = object_index_key(kind, query.field);
  std::string last_member;
  if (!query.equal) {
    MJ_TRY(range, make_range(query, after));
    MJ_TRY(out, read_page(context, kind, {field, key, range.low, range.high}, limit, last_member));
    if (!last_member.empty())
      out.next_cursor = last_member.substr(1, kNumberDigits) + " " + parse_member_id(last_member);
    return std::move(out);
  }
  MJ_CHECK(check_after(after));
  const std::string value = index_value(*query.equal);
  const std::string low = after.empty() ? "[" + value + "\1" : "(" + value + "\1" + after;
  MJ_TRY(out, read_page(context, kind, {field, key, low, "(" + value + "\2"}, limit, last_member));
  // Long texts with the same beginning have the same index entry, so the values are compared.
  std::erase_if(out.objects,
                [&](const StoredObject& object) { return !has_value(object.json, query.field, *query.equal); });
  out.next_cursor = last_member.empty() ? "" : parse_member_id(last_member);
  return std::move(out);
}

Result<ObjectPage> ObjectStore::search(Id context, const ObjectKind& kind, const std::string& text,
                                       const std::string& after, std::size_t limit) {
  MJ_CHECK(check_kind(context, kind));
  MJ_CHECK(check_limit(limit));
  MJ_CHECK(check_after(after));
  std::set<std::string> words;
  add_search_words(text, words);
  if (words.empty() || words.size() > kMaxSearchWords) {
    return fail(Code::invalid, "text: has " + std::to_string(words.size()) +
                                   " words to search for; the limit is 1 to " + std::to_string(kMaxSearchWords));
  }
  const std::string name = kind_name(kind);
  Arguments arguments{name, after};
  arguments.add(std::uint64_t{limit}).add(kMaxPageBytes).add(kMaxCandidates).add(std::uint64_t{words.size()});
  for (const std::string& word : words) arguments.add(word);
  MJ_TRY(reply, links_->run(context, scripts::object_search, arguments));
  if (reply.at(0).text() == "undeclared") return undeclared_error(kind, "text: no field for words");
  ObjectPage out;
  out.indexing = reply.at(0).text() == "indexing";
  const Reply page_reply = reply.at(1);
  out.next_cursor = page_reply.at(0).text();
  for (std::size_t i = 0; i < page_reply.at(1).size(); ++i) {
    const Reply row = page_reply.at(1).at(i);
    MJ_TRY(object, read_object(kind, std::string(row.at(0).text()), row, 1));
    out.objects.push_back(std::move(object));
  }
  return out;
}

Result<std::uint64_t> ObjectStore::count(Id context, const ObjectKind& kind) {
  MJ_CHECK(check_kind(context, kind));
  MJ_TRY(reply, links_->command(context, {"ZCARD", object_ids_key(kind)}));
  return reply.number();
}

Result<std::vector<KindInfo>> ObjectStore::kinds(Id context) {
  MJ_TRY(reply, links_->run(context, scripts::object_kinds, {}));
  std::vector<KindInfo> all;
  for (std::size_t i = 0; i < reply.size(); ++i) {
    const std::string name(reply.at(i).at(0).text());
    const auto colon = name.find(':');
    if (colon == std::string::npos) continue;
    KindInfo info{{name.substr(0, colon), name.substr(colon + 1)}, reply.at(i).at(1).number(), {}, {}};
    const Reply fields = reply.at(i).at(2);
    for (std::size_t f = 0; f < fields.size(); ++f) {
      const std::string field(fields.at(f).text());
      if (field.starts_with("i ")) info.index.push_back(field.substr(2));
      if (field.starts_with("t ")) info.text.push_back(field.substr(2));
    }
    std::sort(info.index.begin(), info.index.end());
    std::sort(info.text.begin(), info.text.end());
    all.push_back(std::move(info));
  }
  return all;
}

// Verification: each object has exactly the index entries of its fields, and an index has no other entries.

namespace {

constexpr std::string_view kBatch = "1000";

// The parts of a key "mj:osis:<category>:...".
struct ParsedObjectKey {
  std::string category;
  ObjectKind kind;
  std::string rest;  // id of an object, or field of an index
};
// Returns nullopt if the key does not belong to a kind.
std::optional<ParsedObjectKey> parse_key(std::string_view key) {
  std::vector<std::string> parts;
  for (int i = 0; i < 4; ++i) {
    const auto colon = key.find(':');
    if (colon == std::string_view::npos) break;
    parts.emplace_back(key.substr(0, colon));
    key.remove_prefix(colon + 1);
  }
  if (parts.size() < 4) return std::nullopt;
  const auto colon = key.find(':');
  const bool has_rest = parts[2] == "object" || parts[2] == "index";
  if (has_rest && colon == std::string_view::npos) return std::nullopt;
  return ParsedObjectKey{parts[2],
                         {parts[3], std::string(has_rest ? key.substr(0, colon) : key)},
                         has_rest ? std::string(key.substr(colon + 1)) : ""};
}

struct KindKeys {
  std::set<std::string> ids;      // ids of its objects
  std::set<std::string> indexes;  // fields with an index; an empty text names the index of words
};

using EntriesByField =
    std::map<std::string, std::unordered_set<std::string>>;  // an empty field names the index of words

// Adds the index entries of an object, as stored with the object, to the entries of each field.
void add_entries_by_field(const std::string& entries, const std::string& id, EntriesByField& by_field) {
  for (std::size_t begin = 0; begin < entries.size();) {
    const auto middle = entries.find('\2', begin), end = entries.find('\3', begin);
    if (middle == std::string::npos || end == std::string::npos || middle > end) return;
    by_field[entries.substr(begin, middle - begin)].insert(entries.substr(middle + 1, end - middle - 1) + '\1' + id);
    begin = end + 1;
  }
}

}  // namespace

Result<std::vector<std::string>> ObjectStore::scan_keys(Id context) {
  std::set<std::string> keys;  // SCAN may return a key more than once
  std::string cursor = "0";
  do {
    MJ_TRY(page, links_->command(
                     context, {"SCAN", cursor, "COUNT", kBatch, "MATCH", std::string(kInternalKeyPrefix) + "osis:*"}));
    cursor = page.at(0).text();
    for (std::size_t i = 0; i < page.at(1).size(); ++i) keys.emplace(page.at(1).at(i).text());
  } while (cursor != "0");
  return std::vector<std::string>(keys.begin(), keys.end());
}

Result<std::vector<std::string>> ObjectStore::read_members(Id context, const std::string& key) {
  std::vector<std::string> all;
  std::string low = "-";
  for (;;) {
    MJ_TRY(page, links_->command(context, {"ZRANGEBYLEX", key, low, "+", "LIMIT", "0", kBatch}));
    if (page.size() == 0) return all;
    for (std::size_t i = 0; i < page.size(); ++i) all.emplace_back(page.at(i).text());
    low = "(" + all.back();
  }
}

Result<ObjectsVerdict> ObjectStore::verify(Id context, std::size_t max_problems) {  // NOLINT(*-function-size)
  ObjectsVerdict verdict;
  ObjectKind current_kind;
  const auto add_problem = [&](std::string text) {
    if (verdict.problems.size() < max_problems) verdict.problems.push_back({current_kind, std::move(text)});
  };
  MJ_TRY(keys, scan_keys(context));
  std::map<ObjectKind, KindKeys> kinds;
  for (const std::string& key : keys) {
    const auto parsed = parse_key(key);
    if (!parsed) continue;
    KindKeys& kind_keys = kinds[parsed->kind];
    if (parsed->category == "object") kind_keys.ids.insert(parsed->rest);
    if (parsed->category == "index" || parsed->category == "words") kind_keys.indexes.insert(parsed->rest);
  }
  MJ_TRY(kind_names, read_members(context, kObjectKindsKey));
  for (const auto& [kind, kind_keys] : kinds) {
    const std::string name = kind_name(kind);
    current_kind = kind;
    if (!kind_keys.ids.empty() && !std::binary_search(kind_names.begin(), kind_names.end(), name)) {
      add_problem("is not in the list of kinds");
    }
    MJ_TRY(ids, read_members(context, object_ids_key(kind)));
    for (const std::string& id : ids) {
      if (!kind_keys.ids.contains(id)) add_problem("the list of objects has " + excerpt(id) + ", which does not exist");
    }
    for (const std::string& id : kind_keys.ids) {
      if (!std::binary_search(ids.begin(), ids.end(), id)) add_problem(excerpt(id) + " is in no list of objects");
    }
    MJ_TRY(current_schema, load_schema(context, kind));
    EntriesByField expected;
    for (const std::string& id : kind_keys.ids) {
      ++verdict.objects;
      MJ_TRY(reply, links_->command(context, {"HMGET", object_key(kind, id), "json", "version", "entries"}));
      const std::string entries(reply.at(2).text());
      auto expected_entries = index_entries(reply.at(0).text(), current_schema.fields);
      if (!expected_entries || reply.at(1).number() == 0) {
        add_problem(excerpt(id) + " is not an object");
        continue;
      }
      if (!current_schema.is_indexing && entries != *expected_entries)
        add_problem(excerpt(id) + " has entries of other fields or values");
      add_entries_by_field(entries, id, expected);
    }
    std::set<std::string> fields = kind_keys.indexes;
    for (const auto& [field, entries] : expected) fields.insert(field);
    for (const std::string& field : fields) {
      MJ_TRY(stored_members, read_members(context, object_index_key(kind, field)));
      const auto& expected_members = expected[field];
      verdict.entries += stored_members.size();
      for (const std::string& member : stored_members) {
        if (!expected_members.contains(member))
          add_problem("index " + excerpt(field) + " has " + excerpt(member) + " of no object");
      }
      if (current_schema.is_indexing) continue;
      const std::unordered_set<std::string> stored_set(stored_members.begin(), stored_members.end());
      for (const std::string& member : expected_members) {
        if (!stored_set.contains(member)) add_problem("index " + excerpt(field) + " lacks " + excerpt(member));
      }
    }
  }
  return verdict;
}

Result<void> ObjectStore::reindex(Id context, const ObjectKind& kind) {
  MJ_CHECK(check_kind(context, kind));
  MJ_TRY(keys, scan_keys(context));
  MJ_TRY(ids, read_members(context, object_ids_key(kind)));
  std::set<std::string> all_ids(ids.begin(), ids.end());
  std::vector<std::string> fields;  // fields with an index
  for (const std::string& key : keys) {
    const auto parsed = parse_key(key);
    if (!parsed || parsed->kind != kind) continue;
    if (parsed->category == "object") all_ids.insert(parsed->rest);
    if (parsed->category == "index" || parsed->category == "words") fields.push_back(parsed->rest);
  }
  const std::string name = kind_name(kind);
  for (auto id = all_ids.begin(); id != all_ids.end();) {
    std::vector<std::string_view> batch;
    for (; id != all_ids.end() && batch.size() < 1000; ++id) batch.push_back(*id);
    Arguments arguments{name};
    arguments.add(std::uint64_t{batch.size()});
    for (std::string_view batch_id : batch) arguments.add(batch_id);
    MJ_CHECK(links_->run(context, scripts::object_ids, arguments));
  }
  Arguments reset{name};
  reset.add(std::uint64_t{fields.size()});
  for (const std::string& field : fields) reset.add(field);
  MJ_CHECK(links_->run(context, scripts::object_reindex, reset));
  schemas_.erase({context, kind});
  return {};
}

}  // namespace mycojobs
