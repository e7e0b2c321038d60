#include "coordinator/notice_body.h"

#include <array>
#include <ctime>
#include <nlohmann/json.hpp>

#include "model/codec.h"
#include "model/result_values.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxResultBytes = 16U << 10;  // the body is also an environment variable of a job

std::string format_utc(std::uint64_t ms) {
  const auto seconds = static_cast<std::time_t>(ms / 1000);
  std::tm calendar{};
  std::array<char, 32> text{};
  ::gmtime_r(&seconds, &calendar);
  const std::size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &calendar);
  return {text.data(), size};
}

json event_data(Id context, const Notice& notice) {
  return {{"key", notice.record_key},
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
  json result = to_typed_json(record.result, record.result_json);
  const bool is_small = dump_json(result).size() <= kMaxResultBytes;
  if (is_small) data["result"] = std::move(result);
  data["result_omitted"] = !is_small;
}

}  // namespace

std::string make_notice_body(Id context, const Notice& notice, const Fields& record) {
  json data = event_data(context, notice);
  const bool is_flow = notice.record_key.starts_with("flow:");
  if (is_flow) {
    add_record(notice, decode<Flow>(record).record, data);
  } else {
    const Job job = decode<Job>(record).record;
    add_record(notice, job, data);
    if (data.contains("id")) data["attempt"] = job.attempt;
    if (data.contains("id") && job.flow_id != 0) data["flow_id"] = job.flow_id;
  }
  return dump_json({{"type", is_flow ? "flow.ended" : "job.ended"},
                    {"timestamp", format_utc(notice.ended_us / 1000)},
                    {"data", std::move(data)}});
}

std::string make_notice_id(Id context, const Notice& notice) {
  return std::to_string(context) + "/" + notice.record_key + "@" + std::to_string(notice.ended_us);
}

}  // namespace mycojobs
