// Values between CBOR and Lua, without loss in both directions:
//
//   null              the constant null (nil is nothing: a field that is not there)
//   integer, float    integer, float: 1 and 1.0 stay what they are; a NaN becomes the one NaN of CBOR
//   text              string, which is UTF-8
//   byte string       bytes(string): a value of its own; #b, b:string(), ==
//   map               table with strings as keys; an empty table is an empty map
//   array             table with the keys 1 to n; array{} is an empty one. What arrives as an array stays one, also
//   when
//                     it becomes empty: its metatable says so
//
// Functions here raise errors of Lua; those that a script's values cause are marked first (Refusal).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "executors/lua/lua_names.h"

namespace mycojobs::workflow {

// What an error that is raised next is about, if it is not a script's own.
enum class Refusal : unsigned char { none, value, output, load };
Refusal& refusal();

// Adds null, array and bytes to the table on top of the stack, and their metatables to the registry.
void add_values(lua_State*);
// Pushes what deterministic CBOR says. what: for messages ("state").
void push_cbor(lua_State*, std::string_view cbor, const char* what);
// What a value may have.
struct Room {
  std::size_t bytes = 0;
  const char* over = "";  // the error for more
};
// Appends the value at this place, in deterministic CBOR, without metamethods. path: where it stands ("state").
void append_cbor(lua_State*, int index, std::string path, std::string& out, Room room);

// For what the library does itself. A key of a table, as the order of keys has them: integers, then strings by bytes.
struct Key {
  const char* text = nullptr;  // nullptr: an integer
  std::size_t size = 0;
  lua_Integer number = 0;
};
bool before(const Key&, const Key&);
struct Keys {
  Key* rows = nullptr;
  std::size_t count = 0;
};
// In order, in a block on top of the stack. Error: a key that is neither; what: who asks.
Keys push_keys(lua_State*, int table, const char* what);
void push_key(lua_State*, const Key&);

}  // namespace mycojobs::workflow
