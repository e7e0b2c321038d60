// Calls of scripts on the object store: {"id": N, "method": "osis.put", "params": {...}}, parsed and checked, and the
// answers to them. docs/executors/osis.md describes the methods. The input is untrusted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/objects/object_store.h"

namespace mycojobs {

inline constexpr std::size_t kMaxObjectCallBytes = 4U << 20;  // size of the call's JSON

struct ObjectCall {
  enum class Method { declare, put, get, remove, list, find, search, count, kinds, transaction };
  Method method = Method::get;
  ObjectKind kind;
  bool all_namespaces = true;  // for `kinds`: whether no namespace was named
  std::string id, search_text, cursor;
  std::vector<std::string> index_fields, text_fields;  // for declare
  std::vector<ObjectOp> ops;                           // for put, delete and transaction; each has an id
  ObjectQuery query;
  std::size_t limit = 100;

  bool is_write() const { return method == Method::put || method == Method::remove || method == Method::transaction; }
};

struct ParsedObjectCall {
  std::string id = "null";  // id of the call and of its answer, as JSON
  Result<ObjectCall> call;
};
ParsedObjectCall parse_object_call(std::string_view text);

// Answers as JSON. id: as in ParsedObjectCall.
std::string build_error_answer(const std::string& id, const Error&);
std::string build_answer(const std::string& id, std::string_view result_json);
std::string object_json(const StoredObject&);
std::string page_json(const std::vector<StoredObject>&, const std::string& cursor);
std::string stamp_json(const ObjectStamp&);
std::string kinds_json(const std::vector<KindInfo>&);

}  // namespace mycojobs
