// Lossless conversion of values between CBOR and Lua:
//
//   null              the constant null (nil is a missing field)
//   integer, float    integer, float: 1 and 1.0 keep their types; every NaN becomes the canonical NaN of CBOR
//   text              string, which is UTF-8
//   byte string       bytes(string): a separate type; supports #b, b:string(), ==
//   map               table with strings as keys; an empty table is an empty map
//   array             table with the keys 1 to n; array{} is empty. A decoded array has a metatable that marks it as an
//                     array, so it remains an array when it becomes empty
//
// These functions raise Lua errors. Before an error that a value of the script causes, they set error_kind().
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "executors/lua/lua_names.h"

namespace mycojobs::workflow {

// Cause of the latest raised error. `none`: the script has raised the error.
enum class ErrorKind : unsigned char { none, value, output, load };
ErrorKind& error_kind();

// Adds `null`, `array` and `bytes` to the table on top of the stack, and their metatables to the registry.
void register_value_types(lua_State*);
// Decodes deterministic CBOR and pushes the value. `name` is the name of the value in messages ("state").
void push_cbor(lua_State*, std::string_view cbor, const char* name);
// Size limit of an encoded value.
struct ValueLimit {
  std::size_t max_bytes = 0;
  const char* message = "";  // error message if the limit is exceeded
};
// Appends the value at the stack index as deterministic CBOR, without calling metamethods. `path` is the path of the
// value in messages ("state").
void append_cbor(lua_State*, int index, std::string path, std::string& out, ValueLimit);

// A key of a table. Keys are ordered: integers first, then strings by their bytes.
struct TableKey {
  const char* text = nullptr;  // nullptr if the key is an integer
  std::size_t size = 0;
  lua_Integer number = 0;
};
bool is_less(const TableKey&, const TableKey&);
struct TableKeys {
  TableKey* entries = nullptr;
  std::size_t count = 0;
};
// Returns the sorted keys of the table. The array is valid while its userdata, which is pushed on the stack, lives.
// Raises an error for a key that is neither an integer nor a string; `name` is the name of the table or function in the
// message.
TableKeys push_sorted_keys(lua_State*, int table, const char* name);
void push_key(lua_State*, const TableKey&);

}  // namespace mycojobs::workflow
