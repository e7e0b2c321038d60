#include "executors/lua/workflowhost/step.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "executors/lua/workflowhost/library.h"
#include "executors/lua/workflowhost/step_protocol.h"
#include "executors/lua/workflowhost/values.h"
#include "text/cbor_items.h"
#include "text/plural.h"
#include "text/utf8.h"

namespace mycojobs::workflow {
namespace {

constexpr std::size_t kMaxPrograms = 64, kMaxImage = 4U << 20, kMaxImages = 64U << 20;

struct Request {
  std::optional<std::string_view> state, ctx, key;
  std::string_view schema, value;
};

// Parses a byte string or null.
Result<std::optional<std::string_view>> optional_bytes(CborItems& items) {
  MJ_TRY(item, items.next());
  if (item.kind == CborItem::Kind::null) return std::nullopt;
  if (item.kind != CborItem::Kind::bytes) return items.set_error("bytes or null are expected");
  return std::optional(item.text);
}

Result<std::string_view> text_of(CborItems& items, CborItem::Kind kind) {
  MJ_TRY(item, items.next());
  if (item.kind != kind) return items.set_error("another kind of value is expected");
  return item.text;
}

Result<std::uint64_t> map_of(CborItems& items) {
  MJ_TRY(item, items.next());
  if (item.kind != CborItem::Kind::map) return items.set_error("a map is expected");
  return item.argument;
}

Result<void> read_event(CborItems& items, Request& out) {
  MJ_TRY(fields, map_of(items));
  std::string_view last;
  for (std::uint64_t i = 0; i < fields; ++i) {
    MJ_TRY(name, items.key(last));
    if (name != "value" && name != "schema" && name != "key") return items.set_error("an unknown field of an event");
    MJ_TRY(text, text_of(items, name == "schema" ? CborItem::Kind::text : CborItem::Kind::bytes));
    if (name == "key") {
      out.key = text;
    } else {
      (name == "value" ? out.value : out.schema) = text;
    }
  }
  if (out.schema.empty() || out.value.empty()) return items.set_error("an event has a schema and a value");
  return {};
}

Result<Request> read_request(std::string_view bytes) {
  CborItems items(bytes);
  Request out;
  bool version = false;
  MJ_TRY(fields, map_of(items));
  std::string_view last;
  for (std::uint64_t i = 0; i < fields; ++i) {
    MJ_TRY(name, items.key(last));
    if (name == "event") {
      MJ_CHECK(read_event(items, out));
    } else if (name == "state" || name == "ctx") {
      MJ_TRY(found, optional_bytes(items));
      (name == "state" ? out.state : out.ctx) = found;
    } else if (name == "version") {
      MJ_TRY(number, items.next());
      version = number.kind == CborItem::Kind::natural && number.argument == 1;
    } else {
      return items.set_error("an unknown field of a request");
    }
  }
  if (!version || out.schema.empty()) return items.set_error("a request has version 1 and an event");
  MJ_CHECK(items.end());
  return out;
}

std::string failure(std::string_view kind, std::string_view message, int line) {
  std::string out;
  put_cbor_head(out, CborMajor::map, 1);
  put_cbor_text(out, "error");
  put_cbor_head(out, CborMajor::map, line > 0 ? 3 : 2);
  put_cbor_text(out, "kind");
  put_cbor_text(out, kind);
  if (line > 0) {
    put_cbor_text(out, "line");
    put_cbor_integer(out, line);
  }
  std::string text = to_utf8(message.substr(0, kMaxMessageBytes));
  text.resize(std::min(text.size(), kMaxMessageBytes));
  while (!is_utf8(text)) text.pop_back();
  put_cbor_text(out, "message");
  put_cbor_text(out, text);
  return out;
}

// Current request and its results, for the functions that Lua calls in protected mode.
struct StepExecution {
  const Request* request = nullptr;
  const std::string* entrypoint = nullptr;
  std::string_view source;
  std::string name;  // name of the chunk
  std::string answer;
  int line = 0;                 // line of the error
  std::size_t state_bytes = 0;  // bytes of the state in the answer
};
StepExecution* doing = nullptr;  // a process runs one step at a time

// Converts the error to a text and records the line of the innermost function of the program.
int describe_error(lua_State* state) {
  lua_Debug frame;
  for (int level = 0; doing->line == 0 && lua_getstack(state, level, &frame) != 0; ++level) {
    lua_getinfo(state, "Sl", &frame);
    if (frame.currentline > 0) doing->line = frame.currentline;
  }
  if (budget().ended != EndReason::no || lua_type(state, 1) == LUA_TSTRING) return 1;
  if (lua_istable(state, 1)) {
    lua_pushliteral(state, "message");
    if (lua_rawget(state, 1) == LUA_TSTRING) return 1;
  }
  lua_pushfstring(state, "the error is a %s", luaL_typename(state, 1));
  return 1;
}

// Pushes the field of the table. The value is only used for the answer.
void push_field(lua_State* state, int table, const char* name) {
  lua_pushstring(state, name);
  lua_rawget(state, table);
}

[[noreturn]] void refuse_shape(lua_State* state, const std::string& message) {
  refusal() = ErrorKind::value;
  lua_pushlstring(state, message.data(), message.size());
  lua_error(state);
  __builtin_unreachable();
}

constexpr const char* kStateOver = "the state is over 10 MiB: keep less, or keep it elsewhere and a name of it here";
constexpr const char* kOutputOver =
    "the step's output is over 1 MiB beside its state: keep less, or keep it elsewhere and a name of it here";

// Returns the size of the answer without the state.
std::size_t output_of(const std::string& out) { return out.size() - doing->state_bytes; }

void append_bytes(lua_State* state, int index, std::string path, std::string& out, ValueLimits room) {
  std::string value;
  append_cbor(state, index, std::move(path), value, room);
  put_cbor_bytes(out, value);
}
void append_bytes(lua_State* state, int index, std::string path, std::string& out) {
  const std::size_t left = kMaxOutputBytes - std::min(kMaxOutputBytes, output_of(out));
  append_bytes(state, index, std::move(path), out, {left, kOutputOver});
}

struct RowShape {
  const char* list;   // name in messages
  const char* kind;   // field that contains the name
  const char* value;  // field that is encoded
  std::size_t max;
  const char* note;  // optional text field; rows of this shape also get their index. nullptr: none
};
constexpr RowShape kEvents{"events", "schema", "value", kMaxEvents, nullptr};
constexpr RowShape kEffects{"effects", "kind", "params", kMaxEffects, "ref"};

bool has_field(const RowShape& shape, std::string_view name) {
  return name == shape.kind || name == shape.value || (shape.note != nullptr && name == shape.note);
}

void check_fields(lua_State* state, int row, const RowShape& shape, const std::string& path) {
  if (!lua_istable(state, row)) refuse_shape(state, path + ": is no table with " + shape.kind + " and " + shape.value);
  const Keys keys = push_keys(state, row, path.c_str());
  for (std::size_t i = 0; i < keys.count; ++i) {
    const std::string_view name =
        keys.rows[i].text == nullptr ? "" : std::string_view(keys.rows[i].text, keys.rows[i].size);
    if (!has_field(shape, name))
      refuse_shape(state, path + ": has " + shape.kind + " and " + shape.value + ", no " +
                              (name.empty() ? "integer key" : excerpt(name)));
  }
  lua_pop(state, 1);
  push_field(state, row, shape.kind);
  std::size_t size = 0;
  const char* const kind = lua_type(state, -1) == LUA_TSTRING ? lua_tolstring(state, -1, &size) : nullptr;
  if (kind == nullptr || size == 0 || !is_utf8({kind, size}))
    refuse_shape(state, path + "." + shape.kind + ": is no name");
  push_field(state, row, shape.value);
  if (lua_isnil(state, -1)) refuse_shape(state, path + "." + shape.value + ": is missing");
  push_field(state, row, shape.note == nullptr ? shape.kind : shape.note);
  const bool text = lua_type(state, -1) == LUA_TSTRING;
  const char* const note = text ? lua_tolstring(state, -1, &size) : nullptr;
  if ((!text && !lua_isnil(state, -1)) || (text && !is_utf8({note, size})))
    refuse_shape(state, path + "." + shape.note + ": is no text");
}

// Appends a list that the step returned (nil or an array of rows). Fields have the order of deterministic CBOR.
void append_rows(lua_State* state, int index, const RowShape& shape, std::string& out) {
  const bool none = lua_isnoneornil(state, index);
  if (!none && !lua_istable(state, index)) refuse_shape(state, std::string(shape.list) + ": is no array");
  std::size_t count = 0;
  if (!none) {
    const Keys keys = push_keys(state, index, shape.list);
    count = keys.count;
    for (std::size_t i = 0; i < count; ++i) {
      if (keys.rows[i].text != nullptr || keys.rows[i].number != static_cast<lua_Integer>(i) + 1)
        refuse_shape(state, std::string(shape.list) + ": is no array: its keys are not 1 to " + std::to_string(count));
    }
    lua_pop(state, 1);
  }
  if (count > shape.max) {
    refusal() = ErrorKind::output;
    luaL_error(state, "%s: the step returned %d; at most %d", shape.list, static_cast<int>(count),
               static_cast<int>(shape.max));
  }
  put_cbor_head(out, CborMajor::array, count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string path = std::string(shape.list) + '[' + std::to_string(i + 1) + ']';
    lua_rawgeti(state, index, static_cast<lua_Integer>(i) + 1);
    const int row = lua_gettop(state);
    check_fields(state, row, shape, path);  // the name at row + 1, the value at row + 2, the note at row + 3
    std::size_t size = 0;
    const char* const kind = lua_tolstring(state, row + 1, &size);
    const bool indexed = shape.note != nullptr, noted = indexed && !lua_isnil(state, row + 3);
    put_cbor_head(out, CborMajor::map, indexed ? (noted ? 4 : 3) : 2);
    if (!indexed) {
      put_cbor_text(out, shape.value);
      append_bytes(state, row + 2, path + '.' + shape.value, out);
    }
    put_cbor_text(out, shape.kind);
    put_cbor_text(out, {kind, size});
    if (indexed) {
      put_cbor_text(out, "index");
      put_cbor_integer(out, static_cast<std::int64_t>(i));
      put_cbor_text(out, shape.value);
      append_bytes(state, row + 2, path + '.' + shape.value, out);
    }
    if (noted) {
      const char* const note = lua_tolstring(state, row + 3, &size);
      put_cbor_text(out, "issuer_ref");
      put_cbor_text(out, {note, size});
    }
    lua_settop(state, row - 1);
  }
}

// Appends the answer. Stack indexes 1 to 4 are the state, the events, the effects and the annotations.
void append_answer(lua_State* state, std::string& out) {
  const bool annotated = !lua_isnil(state, 4);
  put_cbor_head(out, CborMajor::map, annotated ? 4 : 3);
  if (annotated) {
    put_cbor_text(out, "ann");
    append_bytes(state, 4, "ann", out);
  }
  put_cbor_text(out, "state");
  if (lua_isnil(state, 1) || lua_islightuserdata(state, 1)) {
    put_cbor_null(out);
  } else {
    const std::size_t before = out.size();
    append_bytes(state, 1, "state", out, {kMaxStateBytes, kStateOver});
    doing->state_bytes = out.size() - before;
  }
  put_cbor_text(out, "effects");
  append_rows(state, 3, kEffects, out);
  put_cbor_text(out, "domain_events");
  append_rows(state, 2, kEvents, out);
  if (output_of(out) <= kMaxOutputBytes) return;
  refusal() = ErrorKind::output;
  luaL_error(state, kOutputOver);
}

void push_optional(lua_State* state, const std::optional<std::string_view>& cbor, const char* what) {
  if (!cbor) return lua_pushnil(state);
  push_cbor(state, *cbor, what);
}

int run_step(lua_State* state) {
  const Request& request = *doing->request;
  lua_settop(state, 0);
  lua_getglobal(state, doing->entrypoint->c_str());
  push_optional(state, request.state, "state");
  lua_createtable(state, 0, 3);
  lua_pushlstring(state, request.schema.data(), request.schema.size());
  lua_setfield(state, -2, "schema");
  push_cbor(state, request.value, "event");
  lua_setfield(state, -2, "value");
  if (request.key) {
    push_cbor(state, *request.key, "key");
    lua_setfield(state, -2, "key");
  }
  push_optional(state, request.ctx, "ctx");
  lua_call(state, 3, 4);
  append_answer(state, doing->answer);
  return 0;
}

bool is_word_at(std::string_view source, std::size_t at, std::size_t size) {
  const auto is_part = [&](std::size_t i) {
    return i < source.size() && (std::isalnum(static_cast<unsigned char>(source[i])) != 0 || source[i] == '_');
  };
  return !is_part(at - 1) && !is_part(at + size);  // at == 0: at - 1 wraps and is outside the source
}

// Estimates the work of compiling a source. Jumps dominate, because each jump walks the list of the pending jumps.
std::uint64_t work_of_source(std::string_view source) {
  std::uint64_t jumps = 0;
  for (const std::string_view word : {"::", "goto", "break", "and", "or", "elseif"}) {
    for (auto at = source.find(word); at != source.npos; at = source.find(word, at + word.size()))
      jumps += word == "::" || is_word_at(source, at, word.size()) ? 1 : 0;
  }
  return source.size() / 4 + jumps * jumps / 16;
}

int load_program(lua_State* state) {
  lua_settop(state, 0);
  open_library(state);
  count_instructions(state);
  charge_more(state, work_of_source(doing->source));
  if (luaL_loadbufferx(state, doing->source.data(), doing->source.size(), doing->name.c_str(), "t") != LUA_OK)
    lua_error(state);
  lua_call(state, 0, 0);
  lua_pushstring(state, doing->entrypoint->c_str());
  lua_pushglobaltable(state);
  lua_insert(state, -2);
  if (lua_rawget(state, -2) != LUA_TFUNCTION)
    luaL_error(state, "it defines no function %s(state, event, ctx)", doing->entrypoint->c_str());
  return 0;
}

// Runs the function in protected mode. Returns an empty string, or the failure.
std::string run(lua_State* state, lua_CFunction function, StepExecution& what, bool loading) {
  refusal() = ErrorKind::none;
  doing = &what;
  lua_settop(state, 0);
  lua_pushcfunction(state, describe_error);  // allocates no memory, so it is safe outside protected mode
  lua_pushcfunction(state, function);
  const int status = lua_pcall(state, 0, 0, 1);
  if (status == LUA_OK && budget().ended == EndReason::no) {
    lua_settop(state, 0);
    return {};
  }
  if (budget().ended == EndReason::by_work) {
    const std::string limit = count_with_noun(budget().limit, "instruction");
    return failure("limit", (loading ? "its top level takes more than " : "the step takes more than ") + limit,
                   what.line);
  }
  if (budget().ended == EndReason::by_memory || is_no_memory(state, status))
    return failure("memory", "it takes more than " + std::to_string(heap().limit() >> 20) + " MiB of memory",
                   what.line);
  std::size_t size = 0;
  const char* const text = lua_tolstring(state, -1, &size);
  const std::string_view message = text == nullptr ? "an error in its error handler" : std::string_view(text, size);
  const ErrorKind why = refusal();
  // A syntax error has no frame: "name:3: ..."
  if (what.line == 0 && loading && message.substr(0, what.name.size()) == what.name.substr(1) + ":")
    what.line = std::atoi(std::string(message.substr(what.name.size(), 9)).c_str());
  return failure(loading                    ? "load"
                 : why == ErrorKind::value  ? "value"
                 : why == ErrorKind::output ? "output"
                                            : "script",
                 message, why == ErrorKind::none ? what.line : 0);
}

}  // namespace

std::string Programs::load_into(Program& program, const std::string& name, std::string_view source) const {
  heap().clear();
  budget() = {.limit = instructions_, .counting = counting_, .source = source.size()};
  // Bytecode starts with this signature and is rejected, because Lua does not verify it.
  if (!source.empty() && source[0] == LUA_SIGNATURE[0]) return failure("load", "it is bytecode: give its source", 0);
  program.state = lua_newstate(allocate, nullptr);
  if (program.state == nullptr) return failure("memory", "no memory for a state of Lua", 0);
  StepExecution loading{nullptr, &program.entrypoint, source, "=" + name, {}, 0};
  if (std::string failed = run(program.state, load_program, loading, true); !failed.empty()) return failed;
  program.image = heap().image();
  program.budget = budget();
  if (program.image.bytes.size() <= kMaxImage) return {};
  return failure("load", "its top level holds more than " + std::to_string(kMaxImage >> 20) + " MiB", 0);
}

void Programs::load(std::string_view hash, const std::string& entrypoint, const std::string& name,
                    std::string_view source) {
  std::erase_if(programs_, [&](const Program& each) { return each.hash == hash; });
  Program& program = programs_.emplace_front();
  program.hash = hash;
  program.entrypoint = entrypoint;
  program.failure = load_into(program, name, source);
  forget_old();
}

void Programs::forget_old() {
  std::size_t kept = 0, bytes = 0;
  for (auto each = programs_.begin(); each != programs_.end();) {
    bytes += each->image.bytes.size();
    each = ++kept > 1 && (kept > kMaxPrograms || bytes > kMaxImages) ? programs_.erase(each) : std::next(each);
  }
}

Result<bool> Programs::step(std::string_view hash, std::string_view request_bytes, std::string& answer) {
  const auto found =
      std::find_if(programs_.begin(), programs_.end(), [&](const Program& each) { return each.hash == hash; });
  if (found == programs_.end()) return false;
  programs_.splice(programs_.begin(), programs_, found);
  const Program& program = programs_.front();
  MJ_TRY(request, read_request(request_bytes));
  if (!program.failure.empty()) {
    answer = program.failure;
    return true;
  }
  heap().restore(program.image);
  budget() = program.budget;
  StepExecution stepping{&request, &program.entrypoint, {}, {}, {}, 0};
  std::string failed = run(program.state, run_step, stepping, false);
  answer = failed.empty() ? std::move(stepping.answer) : std::move(failed);
  return true;
}

std::string engine_name() { return "lua-" LUA_VERSION_MAJOR "." LUA_VERSION_MINOR "." LUA_VERSION_RELEASE "/3"; }

}  // namespace mycojobs::workflow
