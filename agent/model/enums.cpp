#include "model/enums.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>

#include "model/records.h"

namespace mycojobs {

namespace {

// The names of the values of an enum, in the order of the values. Those that scripts use, too, are in states.toml.
template <class Enum>
struct EnumNames : StateNames<Enum> {};
template <>
struct EnumNames<MessageType> {
  static constexpr auto kTable = std::to_array<std::string_view>({"job", "chat", "mail"});
};
template <>
struct EnumNames<MessageFormatType> {
  static constexpr auto kTable = std::to_array<std::string_view>({"html", "text", "md"});
};
template <>
struct EnumNames<RunnerType> {
  static constexpr auto kTable = std::to_array<std::string_view>({"v", "python", "osis", "rust"});
};
template <>
struct EnumNames<LogStream> {
  static constexpr auto kTable = std::to_array<std::string_view>({"stdout", "stderr", "system"});
};

template <class Enum>
std::string_view enum_name(Enum value) {
  const auto index = static_cast<std::size_t>(value);
  return index < std::size(EnumNames<Enum>::kTable) ? EnumNames<Enum>::kTable[index] : std::string_view("?");
}

std::string format_key(std::string_view prefix, Id id) { return std::string(prefix) + ':' + std::to_string(id); }

}  // namespace

template <class Enum>
std::span<const std::string_view> enum_names() {
  return EnumNames<Enum>::kTable;
}

template <class Enum>
std::optional<Enum> parse(std::string_view name) {
  const auto& table = EnumNames<Enum>::kTable;
  const auto match = std::find(std::begin(table), std::end(table), name);
  if (match == std::end(table)) return std::nullopt;
  return static_cast<Enum>(match - std::begin(table));
}

#define MJ_ENUM(Enum)                                                 \
  std::string_view to_string(Enum value) { return enum_name(value); } \
  template std::span<const std::string_view> enum_names<Enum>();      \
  template std::optional<Enum> parse<Enum>(std::string_view)
MJ_ENUM(FlowStatus);
MJ_ENUM(JobStatus);
MJ_ENUM(MessageStatus);
MJ_ENUM(MessageType);
MJ_ENUM(MessageFormatType);
MJ_ENUM(RunnerType);
MJ_ENUM(NodeStatus);
MJ_ENUM(LogStream);
#undef MJ_ENUM

bool is_script_type(std::string_view name) {
  const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto is_allowed = [&](char c) { return is_lower(c) || (c >= '0' && c <= '9') || c == '_' || c == '-'; };
  return !name.empty() && name.size() <= 32 && is_lower(name[0]) && std::all_of(name.begin(), name.end(), is_allowed);
}

std::string queue_key(std::string_view script_type) { return "queue:" + std::string(script_type); }

std::string redis_key(const Actor& actor) { return format_key("actor", actor.id); }
std::string redis_key(const Context& context) { return format_key("context", context.id); }
std::string redis_key(const Flow& flow) { return format_key("flow", flow.id); }
std::string redis_key(const Message& message) {
  return format_key(format_key("message", message.caller_id), message.id);
}
std::string redis_key(const Runner& runner) { return format_key("runner", runner.id); }
std::string redis_key(const Job& job) { return job_key(job.caller_id, job.id); }
std::string job_key(Id caller, Id job) { return format_key(format_key("job", caller), job); }

}  // namespace mycojobs
