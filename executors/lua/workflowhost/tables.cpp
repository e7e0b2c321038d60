// Charges the work of table accesses that the instruction count does not include. Keys with colliding hashes form a
// chain that each access walks, and a program can choose such keys. A table that grows or shrinks visits all its slots.
// The linker redirects the calls of the Lua library to this file, as for libc_overrides.cpp. Small tables have short
// chains and are not charged.
//
// The layout of tables is that of Lua 5.4 (lobject.h). tests/workflow checks the layout: only the charges of this file
// end the attacks of hostile_test.cpp.
#include "executors/lua/workflowhost/tables.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>
#include <cstdint>
#include <vector>

#include "executors/lua/workflowhost/budget.h"

struct TValue {
  union {
    void* object;
    lua_Integer integer;
    lua_Number number;
  };
  unsigned char tag;
};

struct TString {
  void* next;
  unsigned char tag, gc_mark, extra, short_size;
  unsigned hash;
};

struct Node {
  void* object;
  unsigned char tag, key_tag;
  int next;  // distance to the next node of the chain; 0 at the end of the chain
  union {
    void* key_object;
    lua_Integer key_integer;
  };
};

struct Table {
  void* next;
  unsigned char tag, gc_mark, flags, log2_node_count;
  unsigned limit;
  TValue* array;
  Node* nodes;
};
static_assert(sizeof(TValue) == 16 && sizeof(Node) == 24);

namespace mycojobs::workflow {
namespace {

// Type tags of values, including the bit for collectable objects.
constexpr unsigned char kFalse = 1, kInteger = 3, kTrue = 17, kFloat = 19, kShortText = 68, kLongText = 84;
constexpr unsigned char kLongTextObject = 20;
constexpr unsigned char kMinLargeLog = 6;  // Table::log2_node_count of a table with 64 nodes
constexpr unsigned kMaxFreeSteps = 4;
constexpr unsigned kStepsPerInstruction = 4;  // nodes of a chain visited per instruction
constexpr unsigned kSlotsPerInstruction = 8;  // slots visited per instruction

bool is_large(const Table* table) { return budget().counting_version > 1 && table->log2_node_count >= kMinLargeLog; }
bool is_empty(const TValue* value) { return (value->tag & 0x0F) == 0; }

std::size_t get_array_size(const Table* table) {
  constexpr unsigned char kLimitIsNotSize = 0x80;
  return (table->flags & kLimitIsNotSize) != 0 ? std::bit_ceil(table->limit) : table->limit;
}
std::size_t get_node_count(const Table* table) { return std::size_t{1} << table->log2_node_count; }

Node* get_node_by_mask(const Table* table, unsigned hash) {
  return table->nodes + (hash & (get_node_count(table) - 1));
}
template <class T>
Node* get_node_by_remainder(const Table* table, T hash) {
  return table->nodes + hash % static_cast<T>((get_node_count(table) - 1) | 1);
}

// Returns the first node of the chain of a key.
Node* find_integer_chain(const Table* table, lua_Integer key) {
  const auto hash = static_cast<lua_Unsigned>(key);
  return hash <= INT_MAX ? get_node_by_remainder(table, static_cast<int>(hash)) : get_node_by_remainder(table, hash);
}
Node* find_float_chain(const Table* table, double key) {
  int exponent = 0;
  const double scaled = std::frexp(key, &exponent) * -static_cast<double>(INT_MIN);
  if (!(scaled >= -0x1p63 && scaled < 0x1p63)) return table->nodes;
  const auto integer_part = static_cast<lua_Integer>(std::floor(scaled));
  const unsigned hash = static_cast<unsigned>(exponent) + static_cast<unsigned>(integer_part);
  return get_node_by_remainder(table, static_cast<int>(hash <= INT_MAX ? hash : ~hash));
}

}  // namespace

std::size_t count_table_slots(lua_State* state, int index) {
  const auto* const table = static_cast<const Table*>(lua_topointer(state, index));
  return get_array_size(table) + get_node_count(table);
}

}  // namespace mycojobs::workflow

extern "C" unsigned __attribute__((visibility("hidden")))
hash_long_string(TString*) __asm__("_Z16luaS_hashlongstrP7TString");

namespace mycojobs::workflow {
namespace {

Node* find_string_chain(const Table* table, TString* key) {
  return get_node_by_mask(table, key->tag == kLongTextObject ? hash_long_string(key) : key->hash);
}

Node* find_chain(const Table* table, const TValue* key) {
  switch (key->tag) {
    case kInteger:
      return find_integer_chain(table, key->integer);
    case kFloat:
      if (std::floor(key->number) == key->number && std::fabs(key->number) < 0x1p63)  // the same key as the integer
        return find_integer_chain(table, static_cast<lua_Integer>(key->number));
      return find_float_chain(table, key->number);
    case kShortText:
    case kLongText:
      return find_string_chain(table, static_cast<TString*>(key->object));
    case kFalse:
      return get_node_by_mask(table, 0);
    case kTrue:
      return get_node_by_mask(table, 1);
    default:
      return get_node_by_remainder(table, static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(key->object)));
  }
}

// Charges the steps from the start of a chain to the found node, or to the end of the chain.
void charge_chain(const Node* node, const TValue* value) {
  unsigned steps = 0;
  for (; static_cast<const void*>(node) != value && node->next != 0; node += node->next) ++steps;
  if (steps > kMaxFreeSteps) charge_without_error(steps / kStepsPerInstruction);
}

bool is_in_array(const Table* table, const TValue* value) {
  return value >= table->array && value < table->array + get_array_size(table);
}

// Charges a rehash, which visits all slots of the table and walks the chains of all its keys.
void charge_rehash(lua_State* state, const Table* table) {
  std::uint64_t work = get_array_size(table) / kSlotsPerInstruction;
  if (table->log2_node_count >= kMinLargeLog) {
    static std::vector<bool> has_predecessor;  // the node is not the first of a chain
    const auto count = static_cast<std::ptrdiff_t>(get_node_count(table));
    has_predecessor.assign(static_cast<std::size_t>(count), false);
    for (std::ptrdiff_t i = 0; i < count; ++i)
      if (table->nodes[i].next != 0) has_predecessor[static_cast<std::size_t>(i + table->nodes[i].next)] = true;
    for (std::ptrdiff_t i = 0; i < count; ++i) {
      if (has_predecessor[static_cast<std::size_t>(i)]) continue;
      std::uint64_t steps = 0;
      for (const Node* node = table->nodes + i; node->next != 0; node += node->next) ++steps;
      if (steps > kMaxFreeSteps) work += steps * steps / (2 * kStepsPerInstruction);
    }
    work += static_cast<std::uint64_t>(count) / kSlotsPerInstruction;
  }
  charge_without_error(state, work);
}

}  // namespace
}  // namespace mycojobs::workflow

using namespace mycojobs::workflow;

extern "C" {

const TValue* __real__Z16luaH_getshortstrP5TableP7TString(Table*, TString*);
const TValue* __wrap__Z16luaH_getshortstrP5TableP7TString(Table* table, TString* key) {
  const TValue* const value = __real__Z16luaH_getshortstrP5TableP7TString(table, key);
  if (is_large(table)) charge_chain(get_node_by_mask(table, key->hash), value);
  return value;
}

const TValue* __real__Z11luaH_getstrP5TableP7TString(Table*, TString*);
const TValue* __wrap__Z11luaH_getstrP5TableP7TString(Table* table, TString* key) {
  const TValue* const value = __real__Z11luaH_getstrP5TableP7TString(table, key);
  if (is_large(table)) charge_chain(find_string_chain(table, key), value);
  return value;
}

const TValue* __real__Z11luaH_getintP5Tablex(Table*, lua_Integer);
const TValue* __wrap__Z11luaH_getintP5Tablex(Table* table, lua_Integer key) {
  const TValue* const value = __real__Z11luaH_getintP5Tablex(table, key);
  if (is_large(table) && !is_in_array(table, value)) charge_chain(find_integer_chain(table, key), value);
  return value;
}

const TValue* __real__Z8luaH_getP5TablePK6TValue(Table*, const TValue*);
const TValue* __wrap__Z8luaH_getP5TablePK6TValue(Table* table, const TValue* key) {
  const TValue* const value = __real__Z8luaH_getP5TablePK6TValue(table, key);
  if (is_large(table) && !is_in_array(table, value)) charge_chain(find_chain(table, key), value);
  return value;
}

// Table length: Lua finds the last key after the array part by binary search.
lua_Unsigned __real__Z9luaH_getnP5Table(Table*);
lua_Unsigned __wrap__Z9luaH_getnP5Table(Table* table) {
  const lua_Unsigned length = __real__Z9luaH_getnP5Table(table);
  const std::size_t size = get_array_size(table);
  if (!is_large(table) || size != table->limit || (size > 0 && is_empty(table->array + size - 1))) return length;
  const auto has_key = [&](lua_Unsigned key) {
    return !is_empty(__wrap__Z11luaH_getintP5Tablex(table, static_cast<lua_Integer>(key)));
  };
  lua_Unsigned low = std::max<lua_Unsigned>(size, 1), high = low;
  if (!has_key(size + 1)) return length;
  do {
    low = high;
    if (high > LUA_MAXINTEGER / 2) return length;
    high *= 2;
  } while (has_key(high));
  while (high - low > 1) {
    const lua_Unsigned middle = (low + high) / 2;
    (has_key(middle) ? low : high) = middle;
  }
  return length;
}

void __real__Z14luaH_finishsetP9lua_StateP5TablePK6TValueS5_PS3_(lua_State*, Table*, const TValue*, const TValue*,
                                                                 TValue*);
void __wrap__Z14luaH_finishsetP9lua_StateP5TablePK6TValueS5_PS3_(lua_State* state, Table* table, const TValue* key,
                                                                 const TValue* slot, TValue* value) {
  const std::uint64_t before = budget().allocated_bytes;
  __real__Z14luaH_finishsetP9lua_StateP5TablePK6TValueS5_PS3_(state, table, key, slot, value);
  if (budget().allocated_bytes != before && budget().counting_version > 1) charge_rehash(state, table);
}

void __real__Z8luaH_setP9lua_StateP5TablePK6TValuePS3_(lua_State*, Table*, const TValue*, TValue*);
void __wrap__Z8luaH_setP9lua_StateP5TablePK6TValuePS3_(lua_State* state, Table* table, const TValue* key,
                                                       TValue* value) {
  if (is_large(table)) __wrap__Z8luaH_getP5TablePK6TValue(table, key);
  const std::uint64_t before = budget().allocated_bytes;
  __real__Z8luaH_setP9lua_StateP5TablePK6TValuePS3_(state, table, key, value);
  if (budget().allocated_bytes != before && budget().counting_version > 1) charge_rehash(state, table);
}

void __real__Z11luaH_setintP9lua_StateP5TablexP6TValue(lua_State*, Table*, lua_Integer, TValue*);
void __wrap__Z11luaH_setintP9lua_StateP5TablexP6TValue(lua_State* state, Table* table, lua_Integer key, TValue* value) {
  if (is_large(table)) __wrap__Z11luaH_getintP5Tablex(table, key);
  const std::uint64_t before = budget().allocated_bytes;
  __real__Z11luaH_setintP9lua_StateP5TablexP6TValue(state, table, key, value);
  if (budget().allocated_bytes != before && budget().counting_version > 1) charge_rehash(state, table);
}
}
