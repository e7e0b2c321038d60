// Index entries of the object store for one object. Pure: the store keeps the entries with the object, so that a write
// can remove the old ones.
//
//   entry = field \2 value \3     of a declared field; its index holds "value \1 id"
//         =       \2 word \3      of the words of all declared texts
//
// The bytes of an encoded value sort like the values: n and 16 hexadecimal digits for a number; b0 or b1; t and the
// text (DEL, % and characters below a blank as %XX); l and the beginning of a long text: see has_value().
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "store/object_store.h"

namespace mycojobs {

struct DeclaredFields {
  std::vector<std::string> index, text;
};

// json: an object. Error invalid: it is not an object.
Result<std::string> index_entries(std::string_view json, const DeclaredFields&);
std::string index_value(const ObjectValue&);
// Returns whether the object's field (a path such as "address.city") has exactly this value.
bool has_value(std::string_view json, std::string_view field, const ObjectValue&);

// Returns the object with its "id" set to id. Errors: invalid (not an object), too_large.
Result<std::string> object_with_id(std::string_view json, const std::string& id);
bool is_object_json(std::string_view json);

// Error invalid: names the problem, after `what` ("kind", "operations[2].id").
Result<void> check_object_name(std::string_view what, std::string_view name);
Result<void> check_object_id(std::string_view what, std::string_view id);
Result<void> check_object_field(std::string_view what, std::string_view field);

std::string make_object_id();  // a random UUID, version 4

}  // namespace mycojobs
