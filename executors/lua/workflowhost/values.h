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
// These functions raise Lua errors. Before an error caused by a value of the script, they set Refusal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "executors/lua/lua_names.h"

namespace mycojobs::workflow {

// Cause of the next raised error, unless the script raises the error itself.
enum class ErrorKind : unsigned char { none, value, output, load };
ErrorKind& refusal();

// Adds null, array and bytes to the table on top of the stack, and their metatables to the registry.
void add_values(lua_State*);
// Decodes deterministic CBOR and pushes the value. `what` names the value in messages ("state").
void push_cbor(lua_State*, std::string_view cbor, const char* what);
// Size limit of an encoded value.
struct ValueLimits {
  std::size_t bytes = 0;
  const char* over = "";  // error message if the limit is exceeded
};
// Appends the value at the stack index as deterministic CBOR, without metamethods. path: path of the value for messages
// ("state").
void append_cbor(lua_State*, int index, std::string path, std::string& out, ValueLimits room);

// Key of a table, for functions of the library. Order of keys: integers first, then strings by bytes.
struct Key {
  const char* text = nullptr;  // nullptr: the key is an integer
  std::size_t size = 0;
  lua_Integer number = 0;
};
bool before(const Key&, const Key&);
struct Keys {
  Key* rows = nullptr;
  std::size_t count = 0;
};
// Returns the ordered keys of the table, stored in a block on top of the stack. Raises an error for a key that is
// neither an integer nor a string. what: name of the caller, for the message.
Keys push_keys(lua_State*, int table, const char* what);
void push_key(lua_State*, const Key&);

}  // namespace mycojobs::workflow
