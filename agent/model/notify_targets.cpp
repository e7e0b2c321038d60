#include "model/notify_targets.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/sha256.h"
#include "model/result_values.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxUrlBytes = 2048;

tl::unexpected<Error> refuse_url(std::string_view url, const std::string& why) {
  return fail(Code::invalid, excerpt(url) + ": " + why);
}

bool is_dots(std::string_view segment) {
  segment = segment.substr(0, segment.find(';'));  // some servers treat the rest as parameters
  std::string plain;
  for (std::size_t i = 0; i < segment.size(); ++i) {
    const bool escaped = segment.substr(i, 3) == "%2e" || segment.substr(i, 3) == "%2E";
    plain += escaped ? '.' : segment[i];
    i += escaped ? 2 : 0;
  }
  return plain == "." || plain == "..";
}

// Returns whether the path has an escape that a server may treat as '/' or as the end of the path.
bool hides_parts(std::string_view path) {
  path = path.substr(0, path.find('?'));
  for (const std::string_view each : {"%2f", "%2F", "%5c", "%5C", "%00"}) {
    if (path.find(each) != std::string_view::npos) return true;
  }
  return false;
}

// A server may treat "/a/../b" as "/b", which an entry "/a/" does not allow.
bool has_dots(std::string_view path) {
  path = path.substr(0, path.find('?'));
  while (!path.empty()) {
    path.remove_prefix(1);  // removes the '/'
    const std::size_t end = std::min(path.find('/'), path.size());
    if (is_dots(path.substr(0, end))) return true;
    path.remove_prefix(end);
  }
  return false;
}

Result<WebAddress> read_address(std::string_view url, bool any_port) {
  WebAddress out;
  if (url.size() > kMaxUrlBytes)
    return refuse_url(url.substr(0, 64), "is longer than " + std::to_string(kMaxUrlBytes) + " bytes");
  out.encrypted = url.starts_with("https://");
  if (!out.encrypted && !url.starts_with("http://")) return refuse_url(url, "does not begin with https:// or http://");
  const bool odd = std::any_of(url.begin(), url.end(), [](char c) {
    return static_cast<unsigned char>(c) <= ' ' || static_cast<unsigned char>(c) >= 0x7f || c == '\\' || c == '#';
  });
  if (odd) return refuse_url(url, "has a blank, a control character, a letter beyond ASCII, '\\' or '#' in it");
  const std::string_view rest = url.substr(out.encrypted ? 8 : 7);
  std::string_view place = rest.substr(0, rest.find_first_of("/?"));
  out.path = rest.substr(place.size());
  if (!out.path.empty() && out.path[0] == '?') out.path.insert(0, "/");
  if (hides_parts(out.path)) return refuse_url(url, "has %2f, %5c or %00 in its path");
  if (has_dots(out.path)) return refuse_url(url, "has '.' or '..' as a part of its path");
  const bool any = any_port && place.ends_with(":*");
  if (any) place.remove_suffix(2);
  auto parsed = parse_host_port(place, out.encrypted ? 443 : 80);
  if (!parsed) return refuse_url(url, parsed.error().message);
  out.place = std::move(*parsed);
  if (any) out.place.port = 0;
  return out;
}

bool goes_on(std::string_view path, std::string_view entry) {
  if (entry.empty() || entry == "/" || path == entry) return true;
  if (!path.starts_with(entry)) return false;
  return entry.ends_with('/') || path[entry.size()] == '/' || path[entry.size()] == '?';
}

bool allows(const WebAddress& entry, const WebAddress& address) {
  return entry.encrypted == address.encrypted && entry.place.host == address.place.host &&
         (entry.place.port == 0 || entry.place.port == address.place.port) && goes_on(address.path, entry.path);
}

}  // namespace

Result<WebAddress> parse_web_address(std::string_view url) { return read_address(url, false); }

Result<Webhooks> Webhooks::parse(const std::vector<std::string>& entries) {
  Webhooks made;
  std::string text;
  for (const std::string& entry : entries) {
    MJ_TRY(address, read_address(entry, true));
    made.allowed_.push_back(std::move(address));
    text += (text.empty() ? "" : ", ") + entry;
  }
  if (!text.empty()) made.text_ = std::move(text);
  return made;
}

Result<void> Webhooks::check(std::string_view url) const {
  MJ_TRY(address, parse_web_address(url));
  if (std::any_of(allowed_.begin(), allowed_.end(), [&](const auto& entry) { return allows(entry, address); }))
    return {};
  return fail(Code::denied,
              excerpt(url, 200) +
                  ": is not a webhook that the coordinator may call; its setting coordinator.webhooks allows " + text_);
}

namespace {

using nlohmann::json;

constexpr std::size_t kMaxTargets = 8, kMaxNotifyBytes = 64U << 10, kMaxTopicBytes = 64;
constexpr std::size_t kMaxResultBytes = 16U << 10;  // the body is also an environment variable of a job

// Fields that the job of a target may have. Fields that relate it to other jobs are excluded.
constexpr std::array<std::string_view, 11> kJobFields{
    "script", "script_type", "timeout",          "retries",         "env_vars",         "policy",
    "name",   "priority",    "queue_timeout_ms", "concurrency_key", "concurrency_limit"};

struct NotifyParser {
  ParsedNotify& out;
  std::string field;
  void refuse(const std::string& what) const { out.problems.push_back({field, field + ": " + what}); }
};

void read_webhook(const NotifyParser& at, const json& value, NotifyTarget& target) {
  target.kind = NotifyTarget::Kind::webhook;
  if (!value.is_string()) return at.refuse("a webhook is the text of its address");
  target.where = value.get<std::string>();
  if (auto address = parse_web_address(target.where); !address) at.refuse(address.error().message);
}

void read_topic(const NotifyParser& at, const json& value, NotifyTarget& target) {
  target.kind = NotifyTarget::Kind::topic;
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  if (value.is_string()) target.where = value.get<std::string>();
  if (target.where.empty() || target.where.size() > kMaxTopicBytes ||
      !std::all_of(target.where.begin(), target.where.end(), plain)) {
    at.refuse("a topic is 1 to 64 of letters, digits, '.', '_' and '-'");
  }
}

void read_job(const NotifyParser& at, const json& value, NotifyTarget& target) {
  target.kind = NotifyTarget::Kind::job;
  if (!value.is_object()) return at.refuse("job: is not an object with script and script_type");
  for (const auto& item : value.items()) {
    if (std::find(kJobFields.begin(), kJobFields.end(), item.key()) == kJobFields.end())
      at.refuse("job." + excerpt(item.key()) + ": is not a field of a notification job");
  }
  auto decoded = decode_json<Job>(value);
  for (const FieldProblem& problem : decoded.problems) at.refuse("job." + problem.message);
  target.job = std::move(decoded.record);
  Job checked = target.job;
  checked.id = checked.caller_id = checked.context_id = 1;
  for (const FieldProblem& problem : validate(checked)) at.refuse("job." + problem.message);
}

void read_on(const NotifyParser& at, const json& value, NotifyTarget& target) {
  const std::string word = value.is_string() ? value.get<std::string>() : "";
  if (word == "finished") {
    target.on = NotifyTarget::Condition::finished;
  } else if (word == "error") {
    target.on = NotifyTarget::Condition::error;
  } else if (word != "ended") {
    at.refuse("on: give ended, finished or error");
  }
}

NotifyTarget read_target_parts(const NotifyParser& at, const json& value) {
  NotifyTarget target;
  target.digest = sha256_hex(dump_json(value)).substr(0, 16);
  if (value.is_string()) {
    read_webhook(at, value, target);
    return target;
  }
  if (!value.is_object()) {
    at.refuse("is neither an address nor an object with webhook, job or topic");
    return target;
  }
  int kinds = 0;
  for (const auto& item : value.items()) {
    const std::string& key = item.key();
    kinds += key == "webhook" || key == "job" || key == "topic" ? 1 : 0;
    if (key == "webhook") {
      read_webhook(at, item.value(), target);
    } else if (key == "job") {
      read_job(at, item.value(), target);
    } else if (key == "topic") {
      read_topic(at, item.value(), target);
    } else if (key == "on") {
      read_on(at, item.value(), target);
    } else {
      at.refuse(excerpt(key) + ": is not one of webhook, job, topic, on");
    }
  }
  if (kinds != 1) at.refuse("give one of webhook, job and topic");
  return target;
}

std::string utc_text(std::uint64_t ms) {
  const auto seconds = static_cast<std::time_t>(ms / 1000);
  std::tm parts{};
  std::array<char, 32> text{};
  ::gmtime_r(&seconds, &parts);
  const std::size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {text.data(), size};
}

NotifyTarget read_target(const NotifyParser& at, const json& value) {
  const std::size_t before = at.out.problems.size();
  NotifyTarget target = read_target_parts(at, value);
  target.sound = at.out.problems.size() == before;
  return target;
}

json data_of(Id context, const Notice& notice) {
  return {{"key", notice.of},
          {"context_id", context},
          {"status", notice.finished ? "finished" : "error"},
          {"ended_ms", notice.ended_us / 1000}};
}

template <class Record>
void add_record(const Notice& notice, const Record& record, json& data) {
  if (record.ended_ms != notice.ended_us / 1000) return;
  data["id"] = record.id;
  data["caller_id"] = record.caller_id;
  data["name"] = to_utf8(record.name.substr(0, 255));
  data["detail"] = to_utf8(record.detail.substr(0, 255));
  data["error"] = to_utf8(record.error.substr(0, 1000));
  data["started_ms"] = record.started_ms;
  json result = typed_values(record.result, record.result_json);
  const bool small = dump_json(result).size() <= kMaxResultBytes;
  if (small) data["result"] = std::move(result);
  data["result_omitted"] = !small;
}

}  // namespace

ParsedNotify read_notify(const json& value, std::string_view field) {
  ParsedNotify out;
  const std::string name(field);
  if (value.is_null()) return out;
  if (const std::size_t bytes = dump_json(value).size(); bytes > kMaxNotifyBytes) {
    NotifyParser{out, name}.refuse(std::to_string(bytes) + " bytes are more than " + std::to_string(kMaxNotifyBytes) +
                                   ": fetch the values in the job's script");
  } else if (!value.is_array()) {
    out.targets.push_back(read_target({out, name}, value));
  } else if (value.size() > kMaxTargets) {
    NotifyParser{out, name}.refuse(std::to_string(value.size()) + " are more than the " + std::to_string(kMaxTargets) +
                                   " receivers of a notification");
  } else {
    for (std::size_t i = 0; i < value.size(); ++i)
      out.targets.push_back(read_target({out, name + "[" + std::to_string(i) + "]"}, value[i]));
  }
  return out;
}

ParsedNotify read_notify(const std::string& text, std::string_view field) {
  if (text.empty()) return {};
  if (std::string_view("[{\"").find(text[0]) == std::string_view::npos)
    return read_notify(json(to_utf8(text)), field);  // a client wrote a URL without JSON
  auto parsed = parse_json(text, kMaxNotifyBytes);
  if (parsed) return read_notify(*parsed, field);
  ParsedNotify out;
  NotifyParser{out, std::string(field)}.refuse(parsed.error().message);
  return out;
}

Result<void> add_notify(std::string_view typed, std::string& notify) {
  json list = json::array(), one = std::string(typed);
  if (!notify.empty()) {
    MJ_TRY(before, parse_json(notify));
    list = before.is_array() ? std::move(before) : json::array({before});
  }
  if (typed.starts_with('{')) {
    MJ_TRY(parsed, parse_json(typed, kMaxNotifyBytes));
    one = std::move(parsed);
  }
  list.push_back(std::move(one));
  const ParsedNotify read = read_notify(list, "notify");
  if (!read.problems.empty()) return fail(Code::invalid, join(read.problems));
  notify = dump_json(list);
  return {};
}

std::string notice_body(Id context, const Notice& notice, const Fields& record) {
  json data = data_of(context, notice);
  const bool flow = notice.of.starts_with("flow:");
  if (flow) {
    add_record(notice, decode<Flow>(record).record, data);
  } else {
    const Job job = decode<Job>(record).record;
    add_record(notice, job, data);
    if (data.contains("id")) data["attempt"] = job.attempt;
    if (data.contains("id") && job.flow_id != 0) data["flow_id"] = job.flow_id;
  }
  return dump_json({{"type", flow ? "flow.ended" : "job.ended"},
                    {"timestamp", utc_text(notice.ended_us / 1000)},
                    {"data", std::move(data)}});
}

std::string notice_id(Id context, const Notice& notice) {
  return std::to_string(context) + "/" + notice.of + "@" + std::to_string(notice.ended_us);
}

}  // namespace mycojobs
