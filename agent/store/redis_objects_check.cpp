// The objects against their indexes: each object is where its fields put it, and nothing else is anywhere.
#include <algorithm>
#include <set>
#include <unordered_set>

#include "domain/utf8.h"
#include "store/redis_objects.h"

namespace mycojobs {
namespace {

constexpr std::string_view kBatch = "1000";

// What stands behind "mj:osis:<word>:" and belongs to one kind. Nothing: not such a key.
struct Named {
  std::string word;
  ObjectKind of;
  std::string rest;  // an id, or a field
};
std::optional<Named> parse_key(std::string_view key) {
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
  return Named{parts[2],
               {parts[3], std::string(has_rest ? key.substr(0, colon) : key)},
               has_rest ? std::string(key.substr(colon + 1)) : ""};
}

struct KindKeys {
  std::set<std::string> ids;      // of its objects
  std::set<std::string> indexes;  // fields that have one; "": words
};

}  // namespace

Result<std::vector<std::string>> RedisObjects::all_keys(Id context) {
  std::set<std::string> found;
  std::string cursor = "0";
  do {
    MJ_TRY(page, command(context, {"SCAN", cursor, "COUNT", kBatch, "MATCH", "mj:osis:*"}));
    cursor = page.at(0).text();
    for (std::size_t i = 0; i < page.at(1).size(); ++i) found.emplace(page.at(1).at(i).text());
  } while (cursor != "0");
  return std::vector<std::string>(found.begin(), found.end());
}

Result<std::vector<std::string>> RedisObjects::members(Id context, const std::string& key) {
  std::vector<std::string> all;
  std::string low = "-";
  for (;;) {
    MJ_TRY(page, command(context, {"ZRANGEBYLEX", key, low, "+", "LIMIT", "0", kBatch}));
    if (page.size() == 0) return all;
    for (std::size_t i = 0; i < page.size(); ++i) all.emplace_back(page.at(i).text());
    low = "(" + all.back();
  }
}

Result<ObjectsVerdict> RedisObjects::verify(Id context, std::size_t max_problems) {  // NOLINT(*-function-size)
  ObjectsVerdict verdict;
  ObjectKind at_kind;
  const auto wrong = [&](std::string text) {
    if (verdict.problems.size() < max_problems) verdict.problems.push_back({at_kind, std::move(text)});
  };
  MJ_TRY(keys, all_keys(context));
  std::map<ObjectKind, KindKeys> kinds;
  for (const std::string& key : keys) {
    const auto named = parse_key(key);
    if (!named) continue;
    KindKeys& kind = kinds[named->of];
    if (named->word == "object") kind.ids.insert(named->rest);
    if (named->word == "index" || named->word == "words") kind.indexes.insert(named->rest);
  }
  MJ_TRY(listed, members(context, "mj:osis:kinds"));
  for (const auto& [of, kind] : kinds) {
    const std::string name = joined(of);
    at_kind = of;
    if (!kind.ids.empty() && !std::binary_search(listed.begin(), listed.end(), name)) {
      wrong("is not in the list of kinds");
    }
    MJ_TRY(ids, members(context, object_ids_key(of)));
    for (const std::string& id : ids) {
      if (!kind.ids.contains(id)) wrong("the list of objects has " + shown(id) + ", which is not there");
    }
    for (const std::string& id : kind.ids) {
      if (!std::binary_search(ids.begin(), ids.end(), id)) wrong(shown(id) + " is in no list of objects");
    }
    MJ_TRY(known, load_schema(context, of));
    std::map<std::string, std::unordered_set<std::string>> expected;  // by field; "": words
    for (const std::string& id : kind.ids) {
      ++verdict.objects;
      MJ_TRY(reply, command(context, {"HMGET", object_key(of, id), "json", "version", "entries"}));
      const std::string entries(reply.at(2).text());
      auto should = index_entries(reply.at(0).text(), known.fields);
      if (!should || reply.at(1).number() == 0) {
        wrong(shown(id) + " is no object");
        continue;
      }
      if (!known.indexing && entries != *should) wrong(shown(id) + " has entries of other fields or values");
      for (std::size_t at = 0; at < entries.size();) {
        const auto middle = entries.find('\2', at), end = entries.find('\3', at);
        if (middle == std::string::npos || end == std::string::npos || middle > end) break;
        expected[entries.substr(at, middle - at)].insert(entries.substr(middle + 1, end - middle - 1) + '\1' + id);
        at = end + 1;
      }
    }
    std::set<std::string> fields = kind.indexes;
    for (const auto& each : expected) fields.insert(each.first);
    for (const std::string& field : fields) {
      MJ_TRY(there, members(context, object_index_key(of, field)));
      const auto& wanted = expected[field];
      verdict.entries += there.size();
      for (const std::string& member : there) {
        if (!wanted.contains(member)) wrong("index " + shown(field) + " has " + shown(member) + " of no object");
      }
      if (known.indexing) continue;
      const std::unordered_set<std::string> has(there.begin(), there.end());
      for (const std::string& member : wanted) {
        if (!has.contains(member)) wrong("index " + shown(field) + " lacks " + shown(member));
      }
    }
  }
  return verdict;
}

Result<void> RedisObjects::reindex(Id context, const ObjectKind& of) {
  MJ_CHECK(check_kind(context, of));
  MJ_TRY(keys, all_keys(context));
  MJ_TRY(ids, members(context, object_ids_key(of)));
  std::set<std::string> all(ids.begin(), ids.end());
  std::vector<std::string> fields;  // that have an index
  for (const std::string& key : keys) {
    const auto named = parse_key(key);
    if (!named || named->of != of) continue;
    if (named->word == "object") all.insert(named->rest);
    if (named->word == "index" || named->word == "words") fields.push_back(named->rest);
  }
  const std::string name = joined(of);
  for (auto at = all.begin(); at != all.end();) {
    std::vector<std::string_view> some;
    for (; at != all.end() && some.size() < 1000; ++at) some.push_back(*at);
    Arguments arguments{name};
    arguments.add(std::uint64_t{some.size()});
    for (std::string_view id : some) arguments.add(id);
    MJ_CHECK(run(context, scripts::object_ids, arguments));
  }
  Arguments emptied{name};
  emptied.add(std::uint64_t{fields.size()});
  for (const std::string& field : fields) emptied.add(field);
  MJ_CHECK(run(context, scripts::object_reindex, emptied));
  schemas_.erase({context, of});
  return {};
}

}  // namespace mycojobs
