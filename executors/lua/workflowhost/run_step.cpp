#include "executors/lua/workflowhost/run_step.h"

#include <algorithm>
#include <cctype>
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

constexpr std::size_t kMaxPrograms = 64, kMaxImageBytes = 4U << 20, kMaxTotalImageBytes = 64U << 20;

// A decoded request. The values refer to the bytes of the request and are CBOR.
struct StepRequestView {
  std::optional<std::string_view> state, ctx, key;
  std::string_view schema, value;
};

// Parses a byte string or null.
Result<std::optional<std::string_view>> read_optional_bytes(CborItems& items) {
  MJ_TRY(item, items.next());
  if (item.kind == CborItem::Kind::null) return std::nullopt;
  if (item.kind != CborItem::Kind::bytes) return items.make_error("bytes or null are expected");
  return std::optional(item.text);
}

Result<std::string_view> read_string(CborItems& items, CborItem::Kind kind) {
  MJ_TRY(item, items.next());
  if (item.kind != kind) return items.make_error("another kind of value is expected");
  return item.text;
}

Result<std::uint64_t> read_map_size(CborItems& items) {
  MJ_TRY(item, items.next());
  if (item.kind != CborItem::Kind::map) return items.make_error("a map is expected");
  return item.argument;
}

Result<void> read_event(CborItems& items, StepRequestView& out) {
  MJ_TRY(fields, read_map_size(items));
  std::string_view previous_key;
  for (std::uint64_t i = 0; i < fields; ++i) {
    MJ_TRY(name, items.read_key(previous_key));
    if (name != "value" && name != "schema" && name != "key") return items.make_error("an unknown field of an event");
    MJ_TRY(text, read_string(items, name == "schema" ? CborItem::Kind::text : CborItem::Kind::bytes));
    if (name == "key") {
      out.key = text;
    } else {
      (name == "value" ? out.value : out.schema) = text;
    }
  }
  if (out.schema.empty() || out.value.empty()) return items.make_error("an event has a schema and a value");
  return {};
}

Result<StepRequestView> read_request(std::string_view request) {
  CborItems items(request);
  StepRequestView out;
  bool has_version = false;
  MJ_TRY(fields, read_map_size(items));
  std::string_view previous_key;
  for (std::uint64_t i = 0; i < fields; ++i) {
    MJ_TRY(name, items.read_key(previous_key));
    if (name == "event") {
      MJ_CHECK(read_event(items, out));
    } else if (name == "state" || name == "ctx") {
      MJ_TRY(bytes, read_optional_bytes(items));
      (name == "state" ? out.state : out.ctx) = bytes;
    } else if (name == "version") {
      MJ_TRY(number, items.next());
      has_version = number.kind == CborItem::Kind::natural && number.argument == 1;
    } else {
      return items.make_error("an unknown field of a request");
    }
  }
  if (!has_version || out.schema.empty()) return items.make_error("a request has version 1 and an event");
  MJ_CHECK(items.check_end());
  return out;
}

std::string encode_failure(std::string_view kind, std::string_view message, int line) {
  std::string out;
  append_cbor_head(out, CborMajor::map, 1);
  append_cbor_text(out, "error");
  append_cbor_head(out, CborMajor::map, line > 0 ? 3 : 2);
  append_cbor_text(out, "kind");
  append_cbor_text(out, kind);
  if (line > 0) {
    append_cbor_text(out, "line");
    append_cbor_integer(out, line);
  }
  std::string text = to_utf8(message.substr(0, kMaxStepMessageBytes));
  text.resize(std::min(text.size(), kMaxStepMessageBytes));
  while (!is_utf8(text)) text.pop_back();
  append_cbor_text(out, "message");
  append_cbor_text(out, text);
  return out;
}

// The input and the results of the current step, or of loading a program. Functions that Lua calls in protected mode
// cannot have other parameters.
struct StepExecution {
  const StepRequestView* request = nullptr;
  const std::string* entrypoint = nullptr;
  std::string_view source;
  std::string name;  // name of the Lua chunk
  std::string answer;
  int line = 0;                 // source line of the error; 0 if unknown
  std::size_t state_bytes = 0;  // size of the encoded state in the answer
};
StepExecution* current_step = nullptr;  // a process runs one step at a time

// Message handler: converts the error to a text and stores the line of the innermost Lua function.
int describe_error(lua_State* state) {
  lua_Debug frame;
  for (int level = 0; current_step->line == 0 && lua_getstack(state, level, &frame) != 0; ++level) {
    lua_getinfo(state, "Sl", &frame);
    if (frame.currentline > 0) current_step->line = frame.currentline;
  }
  if (budget().end_reason != EndReason::none || lua_type(state, 1) == LUA_TSTRING) return 1;
  if (lua_istable(state, 1)) {
    lua_pushliteral(state, "message");
    if (lua_rawget(state, 1) == LUA_TSTRING) return 1;
  }
  lua_pushfstring(state, "the error is a %s", luaL_typename(state, 1));
  return 1;
}

void push_field(lua_State* state, int table, const char* name) {
  lua_pushstring(state, name);
  lua_rawget(state, table);
}

[[noreturn]] void raise_value_error(lua_State* state, const std::string& message) {
  error_kind() = ErrorKind::value;
  lua_pushlstring(state, message.data(), message.size());
  lua_error(state);
  __builtin_unreachable();
}

constexpr const char* kStateTooLarge =
    "the state is over 10 MiB: keep less, or keep it elsewhere and a name of it here";
constexpr const char* kOutputTooLarge =
    "the step's output is over 1 MiB beside its state: keep less, or keep it elsewhere and a name of it here";

// Returns the size of the answer without the state.
std::size_t count_output_bytes(const std::string& out) { return out.size() - current_step->state_bytes; }

void append_value(lua_State* state, int index, std::string path, std::string& out, ValueLimit limit) {
  std::string value;
  append_cbor(state, index, std::move(path), value, limit);
  append_cbor_bytes(out, value);
}
void append_value(lua_State* state, int index, std::string path, std::string& out) {
  const std::size_t remaining = kMaxStepBytes - std::min(kMaxStepBytes, count_output_bytes(out));
  append_value(state, index, std::move(path), out, {remaining, kOutputTooLarge});
}

// Describes a list of the answer: events or effects. Each row is a table.
struct ListSchema {
  const char* name;         // name in messages
  const char* name_field;   // text field: the schema of an event, the kind of an effect
  const char* value_field;  // field with a value that is encoded as CBOR
  std::size_t max_rows;
  const char* note_field;  // optional text field of a list whose rows have an index; nullptr if the rows have neither
};
constexpr ListSchema kEvents{"events", "schema", "value", kMaxStepEvents, nullptr};
constexpr ListSchema kEffects{"effects", "kind", "params", kMaxStepEffects, "ref"};

bool has_field(const ListSchema& schema, std::string_view name) {
  return name == schema.name_field || name == schema.value_field ||
         (schema.note_field != nullptr && name == schema.note_field);
}

void check_row(lua_State* state, int row, const ListSchema& schema, const std::string& path) {
  if (!lua_istable(state, row))
    raise_value_error(state, path + ": is no table with " + schema.name_field + " and " + schema.value_field);
  const TableKeys keys = push_sorted_keys(state, row, path.c_str());
  for (std::size_t i = 0; i < keys.count; ++i) {
    const std::string_view name =
        keys.entries[i].text == nullptr ? "" : std::string_view(keys.entries[i].text, keys.entries[i].size);
    if (!has_field(schema, name))
      raise_value_error(state, path + ": has " + schema.name_field + " and " + schema.value_field + ", no " +
                                   (name.empty() ? "integer key" : excerpt(name)));
  }
  lua_pop(state, 1);
  push_field(state, row, schema.name_field);
  std::size_t size = 0;
  const char* const kind = lua_type(state, -1) == LUA_TSTRING ? lua_tolstring(state, -1, &size) : nullptr;
  if (kind == nullptr || size == 0 || !is_utf8({kind, size}))
    raise_value_error(state, path + "." + schema.name_field + ": is no name");
  push_field(state, row, schema.value_field);
  if (lua_isnil(state, -1)) raise_value_error(state, path + "." + schema.value_field + ": is missing");
  push_field(state, row, schema.note_field == nullptr ? schema.name_field : schema.note_field);
  const bool is_text = lua_type(state, -1) == LUA_TSTRING;
  const char* const note = is_text ? lua_tolstring(state, -1, &size) : nullptr;
  if ((!is_text && !lua_isnil(state, -1)) || (is_text && !is_utf8({note, size})))
    raise_value_error(state, path + "." + schema.note_field + ": is no text");
}

// Appends a list that the step returned: nil or an array of rows. The fields of a row are in the order of deterministic
// CBOR.
void append_rows(lua_State* state, int index, const ListSchema& schema, std::string& out) {
  const bool is_absent = lua_isnoneornil(state, index);
  if (!is_absent && !lua_istable(state, index)) raise_value_error(state, std::string(schema.name) + ": is no array");
  std::size_t count = 0;
  if (!is_absent) {
    const TableKeys keys = push_sorted_keys(state, index, schema.name);
    count = keys.count;
    for (std::size_t i = 0; i < count; ++i) {
      if (keys.entries[i].text != nullptr || keys.entries[i].number != static_cast<lua_Integer>(i) + 1)
        raise_value_error(state,
                          std::string(schema.name) + ": is no array: its keys are not 1 to " + std::to_string(count));
    }
    lua_pop(state, 1);
  }
  if (count > schema.max_rows) {
    error_kind() = ErrorKind::output;
    luaL_error(state, "%s: the step returned %d; at most %d", schema.name, static_cast<int>(count),
               static_cast<int>(schema.max_rows));
  }
  append_cbor_head(out, CborMajor::array, count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string path = std::string(schema.name) + '[' + std::to_string(i + 1) + ']';
    lua_rawgeti(state, index, static_cast<lua_Integer>(i) + 1);
    const int row = lua_gettop(state);
    check_row(state, row, schema, path);  // the name at row + 1, the value at row + 2, the note at row + 3
    std::size_t size = 0;
    const char* const kind = lua_tolstring(state, row + 1, &size);
    const bool has_index = schema.note_field != nullptr, has_note = has_index && !lua_isnil(state, row + 3);
    append_cbor_head(out, CborMajor::map, has_index ? (has_note ? 4 : 3) : 2);
    if (!has_index) {
      append_cbor_text(out, schema.value_field);
      append_value(state, row + 2, path + '.' + schema.value_field, out);
    }
    append_cbor_text(out, schema.name_field);
    append_cbor_text(out, {kind, size});
    if (has_index) {
      append_cbor_text(out, "index");
      append_cbor_integer(out, static_cast<std::int64_t>(i));
      append_cbor_text(out, schema.value_field);
      append_value(state, row + 2, path + '.' + schema.value_field, out);
    }
    if (has_note) {
      const char* const note = lua_tolstring(state, row + 3, &size);
      append_cbor_text(out, "issuer_ref");
      append_cbor_text(out, {note, size});
    }
    lua_settop(state, row - 1);
  }
}

// Appends the answer. Stack indexes 1 to 4 are the state, the events, the effects and the annotations.
void append_answer(lua_State* state, std::string& out) {
  const bool has_annotations = !lua_isnil(state, 4);
  append_cbor_head(out, CborMajor::map, has_annotations ? 4 : 3);
  if (has_annotations) {
    append_cbor_text(out, "ann");
    append_value(state, 4, "ann", out);
  }
  append_cbor_text(out, "state");
  if (lua_isnil(state, 1) || lua_islightuserdata(state, 1)) {
    append_cbor_null(out);
  } else {
    const std::size_t old_size = out.size();
    append_value(state, 1, "state", out, {kMaxStateBytes, kStateTooLarge});
    current_step->state_bytes = out.size() - old_size;
  }
  append_cbor_text(out, "effects");
  append_rows(state, 3, kEffects, out);
  append_cbor_text(out, "domain_events");
  append_rows(state, 2, kEvents, out);
  if (count_output_bytes(out) <= kMaxStepBytes) return;
  error_kind() = ErrorKind::output;
  luaL_error(state, kOutputTooLarge);
}

void push_optional_cbor(lua_State* state, const std::optional<std::string_view>& cbor, const char* name) {
  if (!cbor) return lua_pushnil(state);
  push_cbor(state, *cbor, name);
}

int call_entrypoint(lua_State* state) {
  const StepRequestView& request = *current_step->request;
  lua_settop(state, 0);
  lua_getglobal(state, current_step->entrypoint->c_str());
  push_optional_cbor(state, request.state, "state");
  lua_createtable(state, 0, 3);
  lua_pushlstring(state, request.schema.data(), request.schema.size());
  lua_setfield(state, -2, "schema");
  push_cbor(state, request.value, "event");
  lua_setfield(state, -2, "value");
  if (request.key) {
    push_cbor(state, *request.key, "key");
    lua_setfield(state, -2, "key");
  }
  push_optional_cbor(state, request.ctx, "ctx");
  lua_call(state, 3, 4);
  append_answer(state, current_step->answer);
  return 0;
}

// Returns whether the text at `at` is not part of a longer word. If `at` is 0, `at - 1` wraps around to a position
// outside of the source.
bool is_word_at(std::string_view source, std::size_t at, std::size_t size) {
  const auto is_word_byte = [&](std::size_t i) {
    return i < source.size() && (std::isalnum(static_cast<unsigned char>(source[i])) != 0 || source[i] == '_');
  };
  return !is_word_byte(at - 1) && !is_word_byte(at + size);
}

// Estimates the work of compiling a source. Jumps dominate the work, because for each jump the compiler walks the list
// of pending jumps.
std::uint64_t estimate_compile_work(std::string_view source) {
  std::uint64_t jumps = 0;
  for (const std::string_view word : {"::", "goto", "break", "and", "or", "elseif"}) {
    for (auto at = source.find(word); at != source.npos; at = source.find(word, at + word.size()))
      jumps += word == "::" || is_word_at(source, at, word.size()) ? 1 : 0;
  }
  return source.size() / 4 + jumps * jumps / 16;
}

int load_source(lua_State* state) {
  lua_settop(state, 0);
  open_library(state);
  install_instruction_hook(state);
  charge_v2(state, estimate_compile_work(current_step->source));
  if (luaL_loadbufferx(state, current_step->source.data(), current_step->source.size(), current_step->name.c_str(),
                       "t") != LUA_OK)
    lua_error(state);
  lua_call(state, 0, 0);
  lua_pushstring(state, current_step->entrypoint->c_str());
  lua_pushglobaltable(state);
  lua_insert(state, -2);
  if (lua_rawget(state, -2) != LUA_TFUNCTION)
    luaL_error(state, "it defines no function %s(state, event, ctx)", current_step->entrypoint->c_str());
  return 0;
}

// Runs the function in protected mode. Returns an empty string, or the answer that reports the failure.
std::string run_protected(lua_State* state, lua_CFunction function, StepExecution& step, bool is_loading) {
  error_kind() = ErrorKind::none;
  current_step = &step;
  lua_settop(state, 0);
  lua_pushcfunction(state, describe_error);  // allocates no memory, so it is safe outside protected mode
  lua_pushcfunction(state, function);
  const int status = lua_pcall(state, 0, 0, 1);
  if (status == LUA_OK && budget().end_reason == EndReason::none) {
    lua_settop(state, 0);
    return {};
  }
  if (budget().end_reason == EndReason::work) {
    const std::string limit = count_with_noun(budget().limit, "instruction");
    return encode_failure(kStepErrorLimit,
                          (is_loading ? "its top level takes more than " : "the step takes more than ") + limit,
                          step.line);
  }
  if (budget().end_reason == EndReason::memory || is_out_of_memory(state, status))
    return encode_failure(kStepErrorMemory,
                          "it takes more than " + std::to_string(heap().limit() >> 20) + " MiB of memory", step.line);
  std::size_t size = 0;
  const char* const text = lua_tolstring(state, -1, &size);
  const std::string_view message = text == nullptr ? "an error in its error handler" : std::string_view(text, size);
  const ErrorKind kind = error_kind();
  // A syntax error has no stack frame. Its message begins with "name:line: ".
  if (step.line == 0 && is_loading && message.substr(0, step.name.size()) == step.name.substr(1) + ":")
    step.line = std::atoi(std::string(message.substr(step.name.size(), 9)).c_str());
  return encode_failure(is_loading                  ? kStepErrorLoad
                        : kind == ErrorKind::value  ? kStepErrorValue
                        : kind == ErrorKind::output ? kStepErrorOutput
                                                    : kStepErrorScript,
                        message, kind == ErrorKind::none ? step.line : 0);
}

}  // namespace

std::string StepInterpreter::create_state(Program& program, const std::string& name, std::string_view source) const {
  heap().clear();
  budget() = {.limit = instructions_, .counting_version = counting_version_, .source_bytes = source.size()};
  // Bytecode starts with this signature and is rejected, because Lua does not verify it.
  if (!source.empty() && source[0] == LUA_SIGNATURE[0])
    return encode_failure(kStepErrorLoad, "it is bytecode: give its source", 0);
  program.state = lua_newstate(allocate, nullptr);
  if (program.state == nullptr) return encode_failure(kStepErrorMemory, "no memory for a state of Lua", 0);
  StepExecution execution{nullptr, &program.entrypoint, source, "=" + name, {}, 0};
  if (std::string failure = run_protected(program.state, load_source, execution, true); !failure.empty())
    return failure;
  program.image = heap().save_image();
  program.budget = budget();
  if (program.image.bytes.size() <= kMaxImageBytes) return {};
  return encode_failure(kStepErrorLoad,
                        "its top level holds more than " + std::to_string(kMaxImageBytes >> 20) + " MiB", 0);
}

void StepInterpreter::load_program(std::string_view hash, const std::string& entrypoint, const std::string& name,
                                   std::string_view source) {
  std::erase_if(programs_, [&](const Program& program) { return program.hash == hash; });
  Program& program = programs_.emplace_front();
  program.hash = hash;
  program.entrypoint = entrypoint;
  program.failure = create_state(program, name, source);
  evict_programs();
}

void StepInterpreter::evict_programs() {
  std::size_t count = 0, bytes = 0;
  for (auto program = programs_.begin(); program != programs_.end();) {
    bytes += program->image.bytes.size();
    program = ++count > 1 && (count > kMaxPrograms || bytes > kMaxTotalImageBytes) ? programs_.erase(program)
                                                                                   : std::next(program);
  }
}

Result<bool> StepInterpreter::run_step(std::string_view hash, std::string_view request_bytes, std::string& answer) {
  const auto entry =
      std::find_if(programs_.begin(), programs_.end(), [&](const Program& program) { return program.hash == hash; });
  if (entry == programs_.end()) return false;
  programs_.splice(programs_.begin(), programs_, entry);
  const Program& program = programs_.front();
  MJ_TRY(request, read_request(request_bytes));
  if (!program.failure.empty()) {
    answer = program.failure;
    return true;
  }
  heap().restore(program.image);
  budget() = program.budget;
  StepExecution execution{&request, &program.entrypoint, {}, {}, {}, 0};
  std::string failure = run_protected(program.state, call_entrypoint, execution, false);
  answer = failure.empty() ? std::move(execution.answer) : std::move(failure);
  return true;
}

std::string engine_name() { return "lua-" LUA_VERSION_MAJOR "." LUA_VERSION_MINOR "." LUA_VERSION_RELEASE "/3"; }

}  // namespace mycojobs::workflow
