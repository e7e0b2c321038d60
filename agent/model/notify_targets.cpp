#include "model/notify_targets.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/sha256.h"
#include "model/codec.h"
#include "model/job_validation.h"
#include "net/web_address.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxTargets = 8, kMaxNotifyBytes = 64U << 10, kMaxTopicBytes = 64;

// Fields that the job of a target may have. Fields that relate it to other jobs are excluded.
constexpr std::array<std::string_view, 12> kJobFields{
    "script", "script_type", "timeout",  "retries",          "env_vars",        "args",
    "policy", "name",        "priority", "queue_timeout_ms", "concurrency_key", "concurrency_limit"};

struct NotifyParser {
  ParsedNotify& out;
  std::string field;
  void add_problem(const std::string& message) const { out.problems.push_back({field, field + ": " + message}); }
};

void parse_webhook(const NotifyParser& parser, const json& value, NotifyTarget& target) {
  target.kind = NotifyTarget::Kind::webhook;
  if (!value.is_string()) return parser.add_problem("a webhook is the text of its address");
  target.url_or_topic = value.get<std::string>();
  if (auto address = parse_web_address(target.url_or_topic); !address) parser.add_problem(address.error().message);
}

void parse_topic(const NotifyParser& parser, const json& value, NotifyTarget& target) {
  target.kind = NotifyTarget::Kind::topic;
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  if (value.is_string()) target.url_or_topic = value.get<std::string>();
  if (target.url_or_topic.empty() || target.url_or_topic.size() > kMaxTopicBytes ||
      !std::all_of(target.url_or_topic.begin(), target.url_or_topic.end(), is_allowed)) {
    parser.add_problem("a topic is 1 to 64 of letters, digits, '.', '_' and '-'");
  }
}

void parse_job(const NotifyParser& parser, const json& value, NotifyTarget& target) {
  target.kind = NotifyTarget::Kind::job;
  if (!value.is_object()) return parser.add_problem("job: is not an object with script and script_type");
  for (const auto& item : value.items()) {
    if (std::find(kJobFields.begin(), kJobFields.end(), item.key()) == kJobFields.end())
      parser.add_problem("job." + excerpt(item.key()) + ": is not a field of a notification job");
  }
  auto decoded = decode_json<Job>(value);
  for (const FieldProblem& problem : decoded.problems) parser.add_problem("job." + problem.message);
  target.job = std::move(decoded.record);
  Job checked = target.job;
  checked.id = checked.caller_id = checked.context_id = 1;
  for (const FieldProblem& problem : validate(checked)) parser.add_problem("job." + problem.message);
}

void parse_end_condition(const NotifyParser& parser, const json& value, NotifyTarget& target) {
  const std::string condition = value.is_string() ? value.get<std::string>() : "";
  if (condition == "finished") {
    target.condition = NotifyTarget::Condition::finished;
  } else if (condition == "error") {
    target.condition = NotifyTarget::Condition::error;
  } else if (condition != "ended") {
    parser.add_problem("on: give ended, finished or error");
  }
}

NotifyTarget parse_target_parts(const NotifyParser& parser, const json& value) {
  NotifyTarget target;
  target.digest = sha256_hex(dump_json(value)).substr(0, 16);
  if (value.is_string()) {
    parse_webhook(parser, value, target);
    return target;
  }
  if (!value.is_object()) {
    parser.add_problem("is neither an address nor an object with webhook, job or topic");
    return target;
  }
  int kind_count = 0;
  for (const auto& item : value.items()) {
    const std::string& key = item.key();
    kind_count += key == "webhook" || key == "job" || key == "topic" ? 1 : 0;
    if (key == "webhook") {
      parse_webhook(parser, item.value(), target);
    } else if (key == "job") {
      parse_job(parser, item.value(), target);
    } else if (key == "topic") {
      parse_topic(parser, item.value(), target);
    } else if (key == "on") {
      parse_end_condition(parser, item.value(), target);
    } else {
      parser.add_problem(excerpt(key) + ": is not one of webhook, job, topic, on");
    }
  }
  if (kind_count != 1) parser.add_problem("give one of webhook, job and topic");
  return target;
}

NotifyTarget parse_notify_target(const NotifyParser& parser, const json& value) {
  const std::size_t problem_count = parser.out.problems.size();
  NotifyTarget target = parse_target_parts(parser, value);
  target.is_valid = parser.out.problems.size() == problem_count;
  return target;
}

}  // namespace

ParsedNotify parse_notify(const json& value, std::string_view field) {
  ParsedNotify out;
  const std::string name(field);
  if (value.is_null()) return out;
  if (const std::size_t bytes = dump_json(value).size(); bytes > kMaxNotifyBytes) {
    NotifyParser{out, name}.add_problem(std::to_string(bytes) + " bytes are more than " +
                                        std::to_string(kMaxNotifyBytes) + ": fetch the values in the job's script");
  } else if (!value.is_array()) {
    out.targets.push_back(parse_notify_target({out, name}, value));
  } else if (value.size() > kMaxTargets) {
    NotifyParser{out, name}.add_problem(std::to_string(value.size()) + " are more than the " +
                                        std::to_string(kMaxTargets) + " receivers of a notification");
  } else {
    for (std::size_t i = 0; i < value.size(); ++i)
      out.targets.push_back(parse_notify_target({out, name + "[" + std::to_string(i) + "]"}, value[i]));
  }
  return out;
}

ParsedNotify parse_notify(const std::string& text, std::string_view field) {
  if (text.empty()) return {};
  if (std::string_view("[{\"").find(text[0]) == std::string_view::npos)
    return parse_notify(json(to_utf8(text)), field);  // a client wrote a URL without JSON
  auto parsed = parse_json(text, kMaxNotifyBytes);
  if (parsed) return parse_notify(*parsed, field);
  ParsedNotify out;
  NotifyParser{out, std::string(field)}.add_problem(parsed.error().message);
  return out;
}

Result<void> add_notify_target(std::string_view target_text, std::string& notify) {
  json list = json::array(), target = std::string(target_text);
  if (!notify.empty()) {
    MJ_TRY(old_list, parse_json(notify));
    list = old_list.is_array() ? std::move(old_list) : json::array({old_list});
  }
  if (target_text.starts_with('{')) {
    MJ_TRY(parsed, parse_json(target_text, kMaxNotifyBytes));
    target = std::move(parsed);
  }
  list.push_back(std::move(target));
  const ParsedNotify parsed_list = parse_notify(list, "notify");
  if (!parsed_list.problems.empty()) return fail(Code::invalid, join(parsed_list.problems));
  notify = dump_json(list);
  return {};
}

}  // namespace mycojobs
