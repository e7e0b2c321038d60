#include <nlohmann/json.hpp>

#include "domain/codec.h"
#include "domain/object_call.h"

namespace mycojobs {
namespace {

using nlohmann::json;

std::string_view word(Code code) {
  switch (code) {
    case Code::invalid:
      return "invalid";
    case Code::not_found:
      return "not_found";
    case Code::conflict:
      return "conflict";
    case Code::denied:
      return "denied";
    case Code::too_large:
      return "too_large";
    case Code::stale_claim:
    case Code::unavailable:
    case Code::unsupported:
    case Code::io:
    case Code::internal:
      break;
  }
  return "unavailable";
}

}  // namespace

std::string error_answer(const std::string& id, const Error& error) {
  const json detail = {{"code", word(error.code)}, {"message", error.message}};
  return "{\"id\":" + id + ",\"error\":" + dump_json(detail) + "}";
}

std::string answer(const std::string& id, std::string_view result_json) {
  return "{\"id\":" + id + ",\"result\":" + std::string(result_json) + "}";
}

std::string stamp_json(const ObjectStamp& stamp) {
  return dump_json(json{{"id", stamp.id},
                        {"version", stamp.version},
                        {"created_ms", stamp.created_ms},
                        {"updated_ms", stamp.updated_ms}});
}

std::string object_json(const StoredObject& object) {
  std::string stamp = stamp_json({object.id, object.version, object.created_ms, object.updated_ms});
  stamp.pop_back();
  return stamp + ",\"object\":" + object.json + "}";
}

std::string page_json(const std::vector<StoredObject>& objects, const std::string& after) {
  std::string out = "{\"objects\":[";
  for (const StoredObject& each : objects) out += (&each == objects.data() ? "" : ",") + object_json(each);
  out += "]";
  if (!after.empty()) out += ",\"after\":" + dump_json(json(after));
  return out + "}";
}

std::string kinds_json(const std::vector<KindInfo>& kinds) {
  json list = json::array();
  for (const KindInfo& each : kinds) {
    list.push_back({{"namespace", each.of.space},
                    {"kind", each.of.kind},
                    {"count", each.count},
                    {"index", each.index},
                    {"text", each.text}});
  }
  return dump_json(json{{"kinds", std::move(list)}});
}

}  // namespace mycojobs
