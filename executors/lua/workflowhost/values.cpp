#include "executors/lua/workflowhost/values.h"

#include <algorithm>

#include "executors/lua/workflowhost/budget.h"
#include "executors/lua/workflowhost/tables.h"
#include "text/cbor.h"
#include "text/cbor_items.h"
#include "text/utf8.h"

namespace mycojobs::workflow {
namespace {

constexpr const char* kArrayMetatable = "array";
constexpr const char* kBytesMetatable = "bytes";

bool has_metatable(lua_State* state, int index, const char* name) {
  if (lua_getmetatable(state, index) == 0) return false;
  luaL_getmetatable(state, name);
  const bool same = lua_rawequal(state, -1, -2) != 0;
  lua_pop(state, 2);
  return same;
}

std::string_view get_string(lua_State* state, int index) {
  std::size_t size = 0;
  const char* const text = lua_tolstring(state, index, &size);
  return {text, size};
}

[[noreturn]] void raise_error(lua_State* state, ErrorKind kind, const std::string& message) {
  error_kind() = kind;
  lua_pushlstring(state, message.data(), message.size());
  lua_error(state);
  __builtin_unreachable();
}

void push_bytes(lua_State* state, std::string_view bytes) {
  lua_newuserdatauv(state, 0, 1);
  lua_pushlstring(state, bytes.data(), bytes.size());
  lua_setiuservalue(state, -2, 1);
  luaL_setmetatable(state, kBytesMetatable);
}

int create_bytes(lua_State* state) {
  std::size_t size = 0;
  const char* const text = luaL_checklstring(state, 1, &size);
  push_bytes(state, {text, size});
  return 1;
}

int bytes_to_string(lua_State* state) {
  luaL_checkudata(state, 1, kBytesMetatable);
  lua_getiuservalue(state, 1, 1);
  return 1;
}

int bytes_length(lua_State* state) {
  luaL_checkudata(state, 1, kBytesMetatable);
  lua_getiuservalue(state, 1, 1);
  lua_pushinteger(state, static_cast<lua_Integer>(lua_rawlen(state, -1)));
  return 1;
}

int bytes_equal(lua_State* state) {
  const bool are_bytes =
      luaL_testudata(state, 1, kBytesMetatable) != nullptr && luaL_testudata(state, 2, kBytesMetatable) != nullptr;
  if (are_bytes) {
    lua_getiuservalue(state, 1, 1);
    lua_getiuservalue(state, 2, 1);
  }
  lua_pushboolean(state, static_cast<int>(are_bytes && lua_rawequal(state, -1, -2) != 0));
  return 1;
}

// Implements array{...}: marks the table as an array.
int create_array(lua_State* state) {
  if (lua_isnoneornil(state, 1)) {
    lua_settop(state, 0);
    lua_newtable(state);
  }
  luaL_checktype(state, 1, LUA_TTABLE);
  if (lua_getmetatable(state, 1) != 0 && !has_metatable(state, 1, kArrayMetatable))
    return luaL_error(state, "array: the table has a metatable");
  lua_settop(state, 1);
  luaL_setmetatable(state, kArrayMetatable);
  return 1;
}

int null_to_string(lua_State* state) {
  lua_pushliteral(state, "null");
  return 1;
}

void set_closures(lua_State* state, const luaL_Reg* rows) {
  lua_pushnil(state);  // with an upvalue, they are closures on the heap, with equal addresses everywhere
  luaL_setfuncs(state, rows, 1);
}

void hide_metatable(lua_State* state, const char* name) {
  lua_pushstring(state, name);
  lua_setfield(state, -2, "__metatable");
  lua_pop(state, 1);
}

class CborToLua {
 public:
  CborToLua(lua_State* state, std::string_view cbor, const char* name) : state_(state), items_(cbor), name_(name) {}
  void decode() {
    decode_value(0);
    require_success(items_.check_end());
  }

 private:
  void require_success(const Result<void>& result) {
    if (!result) raise_error(state_, ErrorKind::value, std::string(name_) + ": " + result.error().message);
  }
  template <class T>
  T require(Result<T> result) {
    if (!result) raise_error(state_, ErrorKind::value, std::string(name_) + ": " + result.error().message);
    return *result;
  }
  void decode_value(std::size_t depth) {  // NOLINT(misc-no-recursion): depth is bounded
    if (depth > kMaxCborDepth) raise_error(state_, ErrorKind::value, std::string(name_) + ": is too deep");
    charge(state_, 1);
    luaL_checkstack(state_, 4, name_);
    const CborItem item = require(items_.next());
    switch (item.kind) {
      case CborItem::Kind::natural:
        if (item.argument > LUA_MAXINTEGER)
          raise_error(state_, ErrorKind::value, std::string(name_) + ": an integer over 2^63 - 1, which Lua has not");
        return lua_pushinteger(state_, static_cast<lua_Integer>(item.argument));
      case CborItem::Kind::negative:
        return lua_pushinteger(state_, -1 - static_cast<lua_Integer>(item.argument));
      case CborItem::Kind::bytes:
        return push_bytes(state_, item.text);
      case CborItem::Kind::text:
        lua_pushlstring(state_, item.text.data(), item.text.size());
        return;
      case CborItem::Kind::array:
      case CborItem::Kind::map:
        return decode_container(item, depth);
      case CborItem::Kind::null:
        return lua_pushlightuserdata(state_, nullptr);
      case CborItem::Kind::boolean:
        return lua_pushboolean(state_, static_cast<int>(item.argument));
      case CborItem::Kind::number:
        return lua_pushnumber(state_, item.number);
    }
  }
  void decode_container(const CborItem& item, std::size_t depth) {  // NOLINT(misc-no-recursion): depth is bounded
    const bool is_map = item.kind == CborItem::Kind::map;
    const int size = static_cast<int>(item.argument);  // at most the number of remaining bytes
    lua_createtable(state_, is_map ? 0 : size, is_map ? size : 0);
    std::string_view previous_key;
    for (int i = 1; i <= size; ++i) {
      if (is_map) {
        const std::string_view key = require(items_.read_key(previous_key));
        lua_pushlstring(state_, key.data(), key.size());
      }
      decode_value(depth + 1);
      if (is_map) {
        lua_rawset(state_, -3);
      } else {
        lua_rawseti(state_, -2, i);
      }
    }
    if (!is_map) luaL_setmetatable(state_, kArrayMetatable);
  }

  lua_State* state_;
  CborItems items_;
  const char* name_;
};

class LuaToCbor {
 public:
  LuaToCbor(lua_State* state, std::string path, std::string& out, ValueLimit limit)
      : state_(state),
        path_(std::move(path)),
        out_(out),
        max_size_(out.size() + limit.max_bytes),
        size_message_(limit.message) {}

  void encode(int index, std::size_t depth) {  // NOLINT(misc-no-recursion): depth is bounded
    if (depth > kMaxCborDepth)
      raise_value_error("is deeper than " + std::to_string(kMaxCborDepth) + " levels, or holds itself");
    charge(state_, 1);
    charge_v2(state_, 2);
    luaL_checkstack(state_, 8, "values");
    switch (lua_type(state_, index)) {
      case LUA_TBOOLEAN:
        append_cbor_bool(out_, lua_toboolean(state_, index) != 0);
        break;
      case LUA_TNUMBER:
        if (lua_isinteger(state_, index) != 0) {
          append_cbor_integer(out_, lua_tointeger(state_, index));
        } else {
          append_cbor_float(out_, lua_tonumber(state_, index));
        }
        break;
      case LUA_TSTRING:
        encode_text(get_string(state_, index));
        break;
      case LUA_TLIGHTUSERDATA:
        append_cbor_null(out_);
        break;
      case LUA_TTABLE:
        encode_table(index, depth);
        break;
      case LUA_TUSERDATA:
        lua_getiuservalue(state_, index, 1);
        append_cbor_bytes(out_, get_string(state_, -1));
        lua_pop(state_, 1);
        break;
      default:
        raise_value_error("a " + std::string(luaL_typename(state_, index)) + " cannot be kept");
    }
    if (out_.size() > max_size_) raise_size_error();
  }

 private:
  [[noreturn]] void raise_size_error() { raise_error(state_, ErrorKind::output, size_message_); }
  [[noreturn]] void raise_value_error(const std::string& reason) {
    const std::string& path = path_.size() > 200 ? path_.substr(0, 200) + "..." : path_;
    raise_error(state_, ErrorKind::value, path + ": " + reason);
  }
  void encode_text(std::string_view bytes) {
    charge(state_, bytes.size() / 64);
    charge_v2(state_, bytes.size() / 16);
    if (bytes.size() > max_size_) raise_size_error();
    if (!is_utf8(bytes)) raise_value_error("a string that is not UTF-8: make it bytes(...)");
    append_cbor_text(out_, bytes);
  }
  void encode_table(int index, std::size_t depth) {  // NOLINT(misc-no-recursion): depth is bounded
    const bool is_marked_array = has_metatable(state_, index, kArrayMetatable);
    const TableKeys keys = push_sorted_keys(state_, index, path_.c_str());
    std::size_t integer_count = 0;
    while (integer_count < keys.count && keys.entries[integer_count].text == nullptr) ++integer_count;
    const bool is_sequence =
        integer_count == keys.count && (integer_count == 0 || (keys.entries[0].number == 1 && is_last(keys)));
    if (integer_count > 0 && integer_count < keys.count)
      raise_value_error("has integers and strings as keys: a map has strings alone");
    if ((integer_count > 0 && !is_sequence) || (is_marked_array && integer_count < keys.count))
      raise_value_error("is no array: its keys are not 1 to " + std::to_string(keys.count));
    const bool is_array = is_marked_array || integer_count > 0;
    // Deterministic CBOR orders shorter keys before longer keys.
    if (!is_array)
      std::stable_sort(keys.entries, keys.entries + keys.count,
                       [](const TableKey& a, const TableKey& b) { return a.size < b.size; });
    append_cbor_head(out_, is_array ? CborMajor::array : CborMajor::map, keys.count);
    const std::size_t path_size = path_.size();
    for (std::size_t i = 0; i < keys.count; ++i) {
      const TableKey& key = keys.entries[i];
      if (is_array) {
        path_ += '[' + std::to_string(i + 1) + ']';
      } else {
        encode_text({key.text, key.size});
        path_ += '.' + to_ascii({key.text, key.size}, 40);
      }
      push_key(state_, key);
      lua_rawget(state_, index);
      encode(lua_gettop(state_), depth + 1);
      lua_pop(state_, 1);
      path_.resize(path_size);
    }
    lua_pop(state_, 1);  // the keys
  }
  static bool is_last(const TableKeys& keys) {
    return keys.entries[keys.count - 1].number == static_cast<lua_Integer>(keys.count);
  }

  lua_State* state_;
  std::string path_;
  std::string& out_;
  std::size_t max_size_;
  const char* size_message_;
};

}  // namespace

ErrorKind& error_kind() {
  static ErrorKind kind = ErrorKind::none;
  return kind;
}

void register_value_types(lua_State* state) {
  const luaL_Reg constructors[] = {{"bytes", create_bytes}, {"array", create_array}, {nullptr, nullptr}};
  set_closures(state, constructors);
  lua_pushlightuserdata(state, nullptr);
  lua_setfield(state, -2, "null");

  lua_pushlightuserdata(state, nullptr);
  const luaL_Reg null_methods[] = {{"__tostring", null_to_string}, {nullptr, nullptr}};
  luaL_newmetatable(state, "null");
  set_closures(state, null_methods);
  lua_pushvalue(state, -1);
  lua_setmetatable(state, -3);
  hide_metatable(state, "null");
  lua_pop(state, 1);

  luaL_newmetatable(state, kArrayMetatable);
  hide_metatable(state, kArrayMetatable);
  const luaL_Reg bytes_methods[] = {
      {"string", bytes_to_string}, {"__len", bytes_length}, {"__eq", bytes_equal}, {nullptr, nullptr}};
  luaL_newmetatable(state, kBytesMetatable);
  set_closures(state, bytes_methods);
  lua_pushvalue(state, -1);
  lua_setfield(state, -2, "__index");
  hide_metatable(state, kBytesMetatable);
}

void push_cbor(lua_State* state, std::string_view cbor, const char* name) { CborToLua(state, cbor, name).decode(); }

void append_cbor(lua_State* state, int index, std::string path, std::string& out, ValueLimit limit) {
  LuaToCbor(state, std::move(path), out, limit).encode(lua_absindex(state, index), 0);
}

bool is_less(const TableKey& a, const TableKey& b) {
  if (a.text == nullptr || b.text == nullptr) {
    if (a.text != nullptr || b.text != nullptr) return a.text == nullptr;
    return a.number < b.number;
  }
  return std::string_view(a.text, a.size) < std::string_view(b.text, b.size);
}

TableKeys push_sorted_keys(lua_State* state, int table, const char* name) {
  table = lua_absindex(state, table);
  luaL_checkstack(state, 4, name);
  std::size_t count = 0;
  for (lua_pushnil(state); lua_next(state, table) != 0; lua_pop(state, 1)) ++count;
  charge(state, count * 2);
  charge_v2(state, count_table_slots(state, table) / 4);
  TableKeys keys{static_cast<TableKey*>(lua_newuserdatauv(state, (count + 1) * sizeof(TableKey), 0)), 0};
  for (lua_pushnil(state); lua_next(state, table) != 0; lua_pop(state, 1)) {
    TableKey& key = *new (keys.entries + keys.count++) TableKey;
    if (lua_type(state, -2) == LUA_TSTRING) {
      const std::string_view text = get_string(state, -2);
      key = {text.data(), text.size(), 0};
      charge(state, text.size() / 64);
    } else if (lua_isinteger(state, -2) != 0) {
      key.number = lua_tointeger(state, -2);
    } else {
      const char* const type = lua_type(state, -2) == LUA_TNUMBER ? "float" : luaL_typename(state, -2);
      raise_error(state, ErrorKind::value,
                  std::string(name) + ": a key is a " + type + "; integers and strings have an order");
    }
  }
  if (!std::is_sorted(keys.entries, keys.entries + keys.count, is_less)) {
    charge(state, count * 8);
    std::sort(keys.entries, keys.entries + keys.count, is_less);
  }
  return keys;
}

void push_key(lua_State* state, const TableKey& key) {
  if (key.text == nullptr) return lua_pushinteger(state, key.number);
  lua_pushlstring(state, key.text, key.size);
}

}  // namespace mycojobs::workflow
