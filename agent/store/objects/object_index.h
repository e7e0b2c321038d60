// Index entries of the object store for one object. The store keeps the entries with the object, so that a write can
// remove the entries of the previous version. The functions have no side effects.
//
//   entry = field \2 value \3     for a declared field; the index of the field holds "value \1 id"
//         |       \2 word \3      for each word of the declared texts
//
// The bytes of an encoded value sort like the values: n and 16 hexadecimal digits for a number; b0 or b1; t and the
// text (DEL, % and characters below a blank as %XX); l and the beginning of a long text: see has_value().
#pragma once

#include <string>
#include <string_view>

#include "store/objects/object_store.h"

namespace mycojobs {

// Returns the index entries of an object. Error invalid: `json` is not a JSON object.
Result<std::string> index_entries(std::string_view json_text, const DeclaredFields&);
std::string index_value(const ObjectValue&);  // encoded value of an index entry
// Returns whether the object's field (a path such as "address.city") has exactly this value.
bool has_value(std::string_view json_text, std::string_view field, const ObjectValue&);

// Returns the object with its "id" set to id. Errors: invalid (not an object), too_large.
Result<std::string> object_with_id(std::string_view json_text, const std::string& id);
bool is_object_json(std::string_view json_text);

// Error invalid; the message begins with `subject`, for example "kind" or "operations[2].id".
Result<void> check_object_name(std::string_view subject, std::string_view name);
Result<void> check_object_id(std::string_view subject, std::string_view id);
Result<void> check_object_field(std::string_view subject, std::string_view field);

std::string make_object_id();  // a random UUID, version 4

}  // namespace mycojobs
