#include "executors/lua/workflowhost/values.h"

#include <algorithm>
#include <cstring>

#include "executors/lua/workflowhost/budget.h"
#include "executors/lua/workflowhost/tables.h"
#include "text/cbor.h"
#include "text/cbor_items.h"
#include "text/utf8.h"

namespace mycojobs::workflow {
namespace {

constexpr const char* kArrayMeta = "array";
constexpr const char* kBytesMeta = "bytes";

bool has_meta(lua_State* state, int index, const char* name) {
  if (lua_getmetatable(state, index) == 0) return false;
  luaL_getmetatable(state, name);
  const bool same = lua_rawequal(state, -1, -2) != 0;
  lua_pop(state, 2);
  return same;
}

std::string_view text_at(lua_State* state, int index) {
  std::size_t size = 0;
  const char* const text = lua_tolstring(state, index, &size);
  return {text, size};
}

[[noreturn]] void refuse(lua_State* state, ErrorKind why, const std::string& message) {
  refusal() = why;
  lua_pushlstring(state, message.data(), message.size());
  lua_error(state);
  __builtin_unreachable();
}

void push_bytes(lua_State* state, std::string_view bytes) {
  lua_newuserdatauv(state, 0, 1);
  lua_pushlstring(state, bytes.data(), bytes.size());
  lua_setiuservalue(state, -2, 1);
  luaL_setmetatable(state, kBytesMeta);
}

int make_bytes(lua_State* state) {
  std::size_t size = 0;
  const char* const text = luaL_checklstring(state, 1, &size);
  push_bytes(state, {text, size});
  return 1;
}

int string_of_bytes(lua_State* state) {
  luaL_checkudata(state, 1, kBytesMeta);
  lua_getiuservalue(state, 1, 1);
  return 1;
}

int length_of_bytes(lua_State* state) {
  luaL_checkudata(state, 1, kBytesMeta);
  lua_getiuservalue(state, 1, 1);
  lua_pushinteger(state, static_cast<lua_Integer>(lua_rawlen(state, -1)));
  return 1;
}

int same_bytes(lua_State* state) {
  const bool both = luaL_testudata(state, 1, kBytesMeta) != nullptr && luaL_testudata(state, 2, kBytesMeta) != nullptr;
  if (both) {
    lua_getiuservalue(state, 1, 1);
    lua_getiuservalue(state, 2, 1);
  }
  lua_pushboolean(state, static_cast<int>(both && lua_rawequal(state, -1, -2) != 0));
  return 1;
}

// Implements array{...}: marks the table as an array.
int make_array(lua_State* state) {
  if (lua_isnoneornil(state, 1)) {
    lua_settop(state, 0);
    lua_newtable(state);
  }
  luaL_checktype(state, 1, LUA_TTABLE);
  if (lua_getmetatable(state, 1) != 0 && !has_meta(state, 1, kArrayMeta))
    return luaL_error(state, "array: the table has a metatable");
  lua_settop(state, 1);
  luaL_setmetatable(state, kArrayMeta);
  return 1;
}

int text_of_null(lua_State* state) {
  lua_pushliteral(state, "null");
  return 1;
}

void set_closures(lua_State* state, const luaL_Reg* rows) {
  lua_pushnil(state);  // with an upvalue, they are closures on the heap, with equal addresses everywhere
  luaL_setfuncs(state, rows, 1);
}

void protect(lua_State* state, const char* name) {
  lua_pushstring(state, name);
  lua_setfield(state, -2, "__metatable");
  lua_pop(state, 1);
}

class CborToLua {
 public:
  CborToLua(lua_State* state, std::string_view cbor, const char* what) : state_(state), items_(cbor), what_(what) {}
  void whole() {
    next(0);
    check(items_.end());
  }

 private:
  void check(const Result<void>& done) {
    if (!done) refuse(state_, ErrorKind::value, std::string(what_) + ": " + done.error().message);
  }
  template <class T>
  T checked(Result<T> found) {
    if (!found) refuse(state_, ErrorKind::value, std::string(what_) + ": " + found.error().message);
    return *found;
  }
  void next(std::size_t depth) {  // NOLINT(misc-no-recursion): depth is bounded
    if (depth > kMaxCborDepth) refuse(state_, ErrorKind::value, std::string(what_) + ": is too deep");
    charge(state_, 1);
    luaL_checkstack(state_, 4, what_);
    const CborItem item = checked(items_.next());
    switch (item.kind) {
      case CborItem::Kind::natural:
        if (item.argument > LUA_MAXINTEGER)
          refuse(state_, ErrorKind::value, std::string(what_) + ": an integer over 2^63 - 1, which Lua has not");
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
        return table(item, depth);
      case CborItem::Kind::null:
        return lua_pushlightuserdata(state_, nullptr);
      case CborItem::Kind::boolean:
        return lua_pushboolean(state_, static_cast<int>(item.argument));
      case CborItem::Kind::number:
        return lua_pushnumber(state_, item.number);
    }
  }
  void table(const CborItem& item, std::size_t depth) {  // NOLINT(misc-no-recursion): depth is bounded
    const bool map = item.kind == CborItem::Kind::map;
    const int size = static_cast<int>(item.argument);  // at most the number of remaining bytes
    lua_createtable(state_, map ? 0 : size, map ? size : 0);
    std::string_view last;
    for (int i = 1; i <= size; ++i) {
      if (map) {
        const std::string_view key = checked(items_.key(last));
        lua_pushlstring(state_, key.data(), key.size());
      }
      next(depth + 1);
      if (map) {
        lua_rawset(state_, -3);
      } else {
        lua_rawseti(state_, -2, i);
      }
    }
    if (!map) luaL_setmetatable(state_, kArrayMeta);
  }

  lua_State* state_;
  CborItems items_;
  const char* what_;
};

class LuaToCbor {
 public:
  LuaToCbor(lua_State* state, std::string path, std::string& out, ValueLimits room)
      : state_(state), path_(std::move(path)), out_(out), most_(out.size() + room.bytes), over_(room.over) {}

  void value(int index, std::size_t depth) {  // NOLINT(misc-no-recursion): depth is bounded
    if (depth > kMaxCborDepth) wrong("is deeper than " + std::to_string(kMaxCborDepth) + " levels, or holds itself");
    charge(state_, 1);
    charge_more(state_, 2);
    luaL_checkstack(state_, 8, "values");
    switch (lua_type(state_, index)) {
      case LUA_TBOOLEAN:
        put_cbor_bool(out_, lua_toboolean(state_, index) != 0);
        break;
      case LUA_TNUMBER:
        if (lua_isinteger(state_, index) != 0) {
          put_cbor_integer(out_, lua_tointeger(state_, index));
        } else {
          put_cbor_float(out_, lua_tonumber(state_, index));
        }
        break;
      case LUA_TSTRING:
        text(text_at(state_, index));
        break;
      case LUA_TLIGHTUSERDATA:
        put_cbor_null(out_);
        break;
      case LUA_TTABLE:
        table(index, depth);
        break;
      case LUA_TUSERDATA:
        lua_getiuservalue(state_, index, 1);
        put_cbor_bytes(out_, text_at(state_, -1));
        lua_pop(state_, 1);
        break;
      default:
        wrong("a " + std::string(luaL_typename(state_, index)) + " cannot be kept");
    }
    if (out_.size() > most_) too_much();
  }

 private:
  [[noreturn]] void too_much() { refuse(state_, ErrorKind::output, over_); }
  [[noreturn]] void wrong(const std::string& why) {
    const std::string& shown = path_.size() > 200 ? path_.substr(0, 200) + "..." : path_;
    refuse(state_, ErrorKind::value, shown + ": " + why);
  }
  void text(std::string_view bytes) {
    charge(state_, bytes.size() / 64);
    charge_more(state_, bytes.size() / 16);
    if (bytes.size() > most_) too_much();
    if (!is_utf8(bytes)) wrong("a string that is not UTF-8: make it bytes(...)");
    put_cbor_text(out_, bytes);
  }
  void table(int index, std::size_t depth) {  // NOLINT(misc-no-recursion): depth is bounded
    const bool marked = has_meta(state_, index, kArrayMeta);
    const Keys keys = push_keys(state_, index, path_.c_str());
    std::size_t numbers = 0;
    while (numbers < keys.count && keys.rows[numbers].text == nullptr) ++numbers;
    const bool whole = numbers == keys.count && (numbers == 0 || (keys.rows[0].number == 1 && is_last(keys)));
    if (numbers > 0 && numbers < keys.count) wrong("has integers and strings as keys: a map has strings alone");
    if ((numbers > 0 && !whole) || (marked && numbers < keys.count))
      wrong("is no array: its keys are not 1 to " + std::to_string(keys.count));
    const bool array = marked || numbers > 0;
    // Deterministic CBOR orders shorter keys before longer keys.
    if (!array)
      std::stable_sort(keys.rows, keys.rows + keys.count, [](const Key& a, const Key& b) { return a.size < b.size; });
    put_cbor_head(out_, array ? CborMajor::array : CborMajor::map, keys.count);
    const std::size_t here = path_.size();
    for (std::size_t i = 0; i < keys.count; ++i) {
      const Key& key = keys.rows[i];
      if (array) {
        path_ += '[' + std::to_string(i + 1) + ']';
      } else {
        text({key.text, key.size});
        path_ += '.' + ascii({key.text, key.size}, 40);
      }
      push_key(state_, key);
      lua_rawget(state_, index);
      value(lua_gettop(state_), depth + 1);
      lua_pop(state_, 1);
      path_.resize(here);
    }
    lua_pop(state_, 1);  // the keys
  }
  static bool is_last(const Keys& keys) {
    return keys.rows[keys.count - 1].number == static_cast<lua_Integer>(keys.count);
  }

  lua_State* state_;
  std::string path_;
  std::string& out_;
  std::size_t most_;
  const char* over_;
};

}  // namespace

ErrorKind& refusal() {
  static ErrorKind the_refusal = ErrorKind::none;
  return the_refusal;
}

void add_values(lua_State* state) {
  const luaL_Reg makers[] = {{"bytes", make_bytes}, {"array", make_array}, {nullptr, nullptr}};
  set_closures(state, makers);
  lua_pushlightuserdata(state, nullptr);
  lua_setfield(state, -2, "null");

  lua_pushlightuserdata(state, nullptr);
  const luaL_Reg of_null[] = {{"__tostring", text_of_null}, {nullptr, nullptr}};
  luaL_newmetatable(state, "null");
  set_closures(state, of_null);
  lua_pushvalue(state, -1);
  lua_setmetatable(state, -3);
  protect(state, "null");
  lua_pop(state, 1);

  luaL_newmetatable(state, kArrayMeta);
  protect(state, kArrayMeta);
  const luaL_Reg of_bytes[] = {
      {"string", string_of_bytes}, {"__len", length_of_bytes}, {"__eq", same_bytes}, {nullptr, nullptr}};
  luaL_newmetatable(state, kBytesMeta);
  set_closures(state, of_bytes);
  lua_pushvalue(state, -1);
  lua_setfield(state, -2, "__index");
  protect(state, kBytesMeta);
}

void push_cbor(lua_State* state, std::string_view cbor, const char* what) { CborToLua(state, cbor, what).whole(); }

void append_cbor(lua_State* state, int index, std::string path, std::string& out, ValueLimits room) {
  LuaToCbor(state, std::move(path), out, room).value(lua_absindex(state, index), 0);
}

bool before(const Key& a, const Key& b) {
  if (a.text == nullptr || b.text == nullptr) {
    if (a.text != nullptr || b.text != nullptr) return a.text == nullptr;
    return a.number < b.number;
  }
  return std::string_view(a.text, a.size) < std::string_view(b.text, b.size);
}

Keys push_keys(lua_State* state, int table, const char* what) {
  table = lua_absindex(state, table);
  luaL_checkstack(state, 4, what);
  std::size_t count = 0;
  for (lua_pushnil(state); lua_next(state, table) != 0; lua_pop(state, 1)) ++count;
  charge(state, count * 2);
  charge_more(state, table_states(state, table) / 4);
  Keys keys{static_cast<Key*>(lua_newuserdatauv(state, (count + 1) * sizeof(Key), 0)), 0};
  for (lua_pushnil(state); lua_next(state, table) != 0; lua_pop(state, 1)) {
    Key& key = *new (keys.rows + keys.count++) Key;
    if (lua_type(state, -2) == LUA_TSTRING) {
      const std::string_view text = text_at(state, -2);
      key = {text.data(), text.size(), 0};
      charge(state, text.size() / 64);
    } else if (lua_isinteger(state, -2) != 0) {
      key.number = lua_tointeger(state, -2);
    } else {
      const char* const type = lua_type(state, -2) == LUA_TNUMBER ? "float" : luaL_typename(state, -2);
      refuse(state, ErrorKind::value,
             std::string(what) + ": a key is a " + type + "; integers and strings have an order");
    }
  }
  if (!std::is_sorted(keys.rows, keys.rows + keys.count, before)) {
    charge(state, count * 8);
    std::sort(keys.rows, keys.rows + keys.count, before);
  }
  return keys;
}

void push_key(lua_State* state, const Key& key) {
  if (key.text == nullptr) return lua_pushinteger(state, key.number);
  lua_pushlstring(state, key.text, key.size);
}

}  // namespace mycojobs::workflow
