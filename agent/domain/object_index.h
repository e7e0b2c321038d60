// What the indexes of the object store hold of one object. Pure: the store keeps these entries beside the object, so
// that a write can take the old ones away.
//
//   entry = field \2 value \3     of a declared field; its index holds "value \1 id"
//         =       \2 word \3      of the words of all declared texts
//
// Values are written so that their bytes sort as they do: n and 16 hexadecimal digits for a number, b0 or b1, t and the
// text (what is below a blank, DEL and % as %XX), l and the beginning of a long text: see has_value().
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/objects.h"

namespace mycojobs {

// Words of a text, as the full-text index has them: runs of letters, digits and marks in any script, compatibility
// forms unified and case folded (NFKC with case folding, as Unicode 15 has it). A character of Chinese or Japanese
// writing, which has no blanks, is a word by itself.

inline constexpr std::size_t kMaxWordBytes = 64;  // a longer one counts by its beginning

// Adds the words of text. Bytes that are not UTF-8 separate words.
void add_words(std::string_view text, std::set<std::string>& words);

struct DeclaredFields {
  std::vector<std::string> index, text;
};

// json: an object. Error invalid: it is none.
Result<std::string> index_entries(std::string_view json, const DeclaredFields&);
std::string index_value(const ObjectValue&);
// Whether the object's field (a path like "address.city") has this very value.
bool has_value(std::string_view json, std::string_view field, const ObjectValue&);

// The object with its "id" set to id. Errors: invalid (no object), too_large.
Result<std::string> object_with_id(std::string_view json, const std::string& id);
bool is_object_json(std::string_view json);

// Error invalid: names what is wrong. `what` stands in front: "kind", "operations[2].id".
Result<void> check_object_name(std::string_view what, std::string_view name);
Result<void> check_object_id(std::string_view what, std::string_view id);
Result<void> check_object_field(std::string_view what, std::string_view field);

std::string make_object_id();  // a random UUID, version 4

}  // namespace mycojobs
