// Reads.
#include <algorithm>
#include <cmath>
#include <set>

#include "base/ids.h"
#include "domain/utf8.h"
#include "domain/words.h"
#include "store/redis_objects.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kPageBytes = 4U << 20;
constexpr std::uint64_t kMaxCandidates = 2000;  // of one step of a search
constexpr std::size_t kNumberDigits = 16;

Result<void> check_limit(std::size_t limit) {
  if (limit >= 1 && limit <= kMaxObjectPage) return {};
  return fail(Code::invalid, "limit: " + std::to_string(limit) + " is not from 1 to " + std::to_string(kMaxObjectPage));
}

Result<void> check_after(std::string_view after) {
  if (after.empty()) return {};
  return check_object_id("after", after);
}

std::string id_of(std::string_view member) {
  const auto end = member.find('\1');
  return std::string(end == std::string_view::npos ? member : member.substr(end + 1));
}

Result<StoredObject> read_object(const ObjectKind& of, std::string id, const Reply& fields, std::size_t first) {
  StoredObject object;
  object.id = std::move(id);
  object.json = fields.at(first).text();
  object.version = fields.at(first + 1).number();
  object.created_ms = fields.at(first + 2).number();
  object.updated_ms = fields.at(first + 3).number();
  if (is_object_json(object.json)) return object;
  return fail(Code::invalid, of.kind + " " + shown(object.id, 80) +
                                 " holds no JSON object: another client wrote it; put it anew or delete it");
}

Result<ObjectPage> undeclared(const ObjectKind& of, const std::string& what) {
  return fail(Code::invalid,
              what + " of " + of.space + "/" + of.kind + " is declared: osis.declare names what can be found");
}

struct Range {
  std::string low, high;
};

// A cursor within a range of numbers: the value's 16 digits, a blank, the id.
Result<Range> range_of(const ObjectQuery& query, const std::string& after) {
  const auto finite = [](const std::optional<double>& number) { return !number || std::isfinite(*number); };
  if (!finite(query.min) || !finite(query.max)) return fail(Code::invalid, "min, max: are to be finite numbers");
  Range range;
  range.low = query.min ? "[" + index_value(*query.min) + "\1" : "[n";
  range.high = query.max ? "(" + index_value(*query.max) + "\2" : "(o";
  if (after.empty()) return range;
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (after.size() < kNumberDigits + 2 || after[kNumberDigits] != ' ' ||
      !std::all_of(after.begin(), after.begin() + kNumberDigits, is_digit)) {
    return fail(Code::invalid, "after: is not what a page of this range named");
  }
  const std::string id = after.substr(kNumberDigits + 1);
  MJ_CHECK(check_object_id("after", id));
  range.low = "(n" + after.substr(0, kNumberDigits) + "\1" + id;
  return range;
}

}  // namespace

Result<StoredObject> RedisObjects::get(Id context, const ObjectKind& of, const std::string& id) {
  MJ_CHECK(check_kind(context, of));
  MJ_CHECK(check_object_id("id", id));
  MJ_TRY(reply, command(context, {"HMGET", object_key(of, id), "json", "version", "created_ms", "updated_ms"}));
  if (reply.at(0).nil()) {
    return fail(Code::not_found, of.kind + " " + shown(id, 80) + " of namespace " + of.space + " does not exist");
  }
  return read_object(of, id, reply, 0);
}

Result<ObjectPage> RedisObjects::page(Id context, const ObjectKind& of, const PageOf& asked, std::size_t limit,
                                      std::string& last) {
  const std::string name = joined(of);
  Arguments arguments{name, asked.field, asked.key, asked.low, asked.high};
  MJ_TRY(reply, run(context, scripts::object_page, arguments.add(std::uint64_t{limit}).add(kPageBytes)));
  ObjectPage out;
  if (reply.at(0).text() == "undeclared") return undeclared(of, "field: no " + shown(asked.field.substr(2), 80));
  out.indexing = reply.at(0).text() == "indexing";
  const Reply found = reply.at(1);
  last = found.at(0).text();
  for (std::size_t i = 0; i < found.at(1).size(); ++i) {
    const Reply each = found.at(1).at(i);
    MJ_TRY(object, read_object(of, std::string(each.at(0).text()), each, 1));
    out.objects.push_back(std::move(object));
  }
  return out;
}

Result<ObjectPage> RedisObjects::list(Id context, const ObjectKind& of, const std::string& after, std::size_t limit) {
  MJ_CHECK(check_kind(context, of));
  MJ_CHECK(check_limit(limit));
  MJ_CHECK(check_after(after));
  std::string last;
  MJ_TRY(out, page(context, of, {"", object_ids_key(of), after.empty() ? "-" : "(" + after, "+"}, limit, last));
  out.after = last;
  return std::move(out);
}

Result<ObjectPage> RedisObjects::find(Id context, const ObjectKind& of, const ObjectQuery& query,
                                      const std::string& after, std::size_t limit) {
  MJ_CHECK(check_kind(context, of));
  MJ_CHECK(check_limit(limit));
  MJ_CHECK(check_object_field("field", query.field));
  const std::string field = "i " + query.field, key = object_index_key(of, query.field);
  std::string last;
  if (!query.equal) {
    MJ_TRY(range, range_of(query, after));
    MJ_TRY(out, page(context, of, {field, key, range.low, range.high}, limit, last));
    if (!last.empty()) out.after = last.substr(1, kNumberDigits) + " " + id_of(last);
    return std::move(out);
  }
  MJ_CHECK(check_after(after));
  const std::string value = index_value(*query.equal);
  const std::string low = after.empty() ? "[" + value + "\1" : "(" + value + "\1" + after;
  MJ_TRY(out, page(context, of, {field, key, low, "(" + value + "\2"}, limit, last));
  // Long texts share an entry if they begin alike.
  std::erase_if(out.objects,
                [&](const StoredObject& each) { return !has_value(each.json, query.field, *query.equal); });
  out.after = last.empty() ? "" : id_of(last);
  return std::move(out);
}

Result<ObjectPage> RedisObjects::search(Id context, const ObjectKind& of, const std::string& text,
                                        const std::string& after, std::size_t limit) {
  MJ_CHECK(check_kind(context, of));
  MJ_CHECK(check_limit(limit));
  MJ_CHECK(check_after(after));
  std::set<std::string> words;
  add_words(text, words);
  if (words.empty() || words.size() > kMaxSearchWords) {
    return fail(Code::invalid, "text: has " + std::to_string(words.size()) + " words to look for, and takes 1 to " +
                                   std::to_string(kMaxSearchWords));
  }
  const std::string name = joined(of);
  Arguments arguments{name, after};
  arguments.add(std::uint64_t{limit}).add(kPageBytes).add(kMaxCandidates).add(std::uint64_t{words.size()});
  for (const std::string& word : words) arguments.add(word);
  MJ_TRY(reply, run(context, scripts::object_search, arguments));
  if (reply.at(0).text() == "undeclared") return undeclared(of, "text: no field for words");
  ObjectPage out;
  out.indexing = reply.at(0).text() == "indexing";
  const Reply found = reply.at(1);
  out.after = found.at(0).text();
  for (std::size_t i = 0; i < found.at(1).size(); ++i) {
    const Reply each = found.at(1).at(i);
    MJ_TRY(object, read_object(of, std::string(each.at(0).text()), each, 1));
    out.objects.push_back(std::move(object));
  }
  return out;
}

Result<std::uint64_t> RedisObjects::count(Id context, const ObjectKind& of) {
  MJ_CHECK(check_kind(context, of));
  MJ_TRY(reply, command(context, {"ZCARD", object_ids_key(of)}));
  return reply.number();
}

Result<std::vector<KindInfo>> RedisObjects::kinds(Id context) {
  MJ_TRY(reply, run(context, scripts::object_kinds, {}));
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

}  // namespace mycojobs
