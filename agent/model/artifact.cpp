#include "model/artifact.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/parse.h"
#include "base/sha256.h"
#include "model/codec.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {

using nlohmann::json;

namespace {

bool has_control_characters(std::string_view name) {
  // The control characters U+0080 to U+009F have two bytes in UTF-8: C2 80 to C2 9F.
  for (std::size_t i = 0; i < name.size(); ++i) {
    const auto byte = static_cast<unsigned char>(name[i]);
    const bool is_c1_control = byte == 0xC2 && static_cast<unsigned char>(name[i + 1]) < 0xA0;
    if (byte < ' ' || byte == 0x7f || is_c1_control) return true;
  }
  return false;
}

}  // namespace

bool is_artifact_name(std::string_view name) { return find_artifact_name_problem(name).empty(); }

std::string find_artifact_name_problem(std::string_view name) {
  constexpr std::size_t kMaxNameBytes = 512;
  constexpr std::size_t kMaxPartBytes = 255;  // limit of common file systems
  if (name.size() > kMaxNameBytes)
    return "its name has " + std::to_string(name.size()) + " bytes, over 512: give a shorter one";
  if (!is_utf8(name) || has_control_characters(name))
    return "its name is not UTF-8 without control characters: rename the file";
  for (std::size_t start = 0; start <= name.size();) {
    const std::size_t end = std::min(name.find('/', start), name.size());
    const std::string_view part = name.substr(start, end - start);
    if (part.empty() || part == "." || part == "..")
      return "its name is not a path below the artifacts folder, since it contains \"..\" or an empty part: rename the "
             "file";
    if (part.size() > kMaxPartBytes) return "a part of its name has over 255 bytes: give a shorter one";
    start = end + 1;
  }
  const auto folders = std::count(name.begin(), name.end(), '/');
  if (folders > kMaxArtifactFolders)
    return "it is " + std::to_string(folders) + " folders deep, over 32: use fewer folders";
  return {};
}

std::vector<ListedArtifact> read_artifact_list(const std::string& text) {
  std::vector<ListedArtifact> out;
  const auto values = parse_json(text.empty() ? "{}" : text);
  if (!values || !values->is_object()) return out;
  for (const auto& [name, properties] : values->items()) {
    const bool is_valid = properties.is_object() && properties.contains("sha256") && properties["sha256"].is_string() &&
                          properties.contains("bytes") && properties["bytes"].is_number_unsigned();
    if (!is_valid) continue;
    const auto sha256 = properties["sha256"].get<std::string>();
    const auto has_flag = [&entry = properties](const char* flag) {
      const auto value = entry.find(flag);
      return value != entry.end() && *value == true;
    };
    if (is_hex(sha256, kSha256Digits) && is_artifact_name(name))
      out.push_back({name, sha256, properties["bytes"].get<std::uint64_t>(), has_flag("executable"), has_flag("text"),
                     text_field(properties, "store")});
  }
  return out;
}

std::string set_object_store(const std::string& text, const std::string& object_store) {
  auto artifacts = parse_json(text.empty() ? "{}" : text);
  if (!artifacts || !artifacts->is_object()) return text;
  bool is_changed = false;
  for (auto& [name, properties] : artifacts->items()) {
    if (!properties.is_object() || text_field(properties, "store") == object_store) continue;
    if (object_store.empty())
      properties.erase("store");
    else
      properties["store"] = object_store;
    is_changed = true;
  }
  return is_changed ? dump_json(*artifacts) : text;
}

void DroppedArtifacts::add(DroppedArtifact dropped) {
  const bool loses_data = get_drop_reason_row(dropped.reason).loses_data;
  const std::size_t kind_count = loses_data ? data_loss_count_ : all_.size() - data_loss_count_;
  if (kind_count >= kMaxPerKind) return;
  data_loss_count_ += loses_data ? 1 : 0;
  all_.push_back(std::move(dropped));
}

std::string dropped_artifacts_to_json(const std::vector<DroppedArtifact>& dropped, bool optional) {
  if (dropped.empty()) return {};
  json list = json::array();
  for (const DroppedArtifact& artifact : dropped) {
    const DropReasonRow& row = get_drop_reason_row(artifact.reason);
    json entry = {{"name", to_utf8(artifact.name)}, {"reason", row.word}};
    if (artifact.limit != 0) entry["limit"] = artifact.limit;
    if (!row.setting.empty()) entry["setting"] = row.setting;
    if (optional || !row.loses_data) entry["optional"] = true;
    list.push_back(std::move(entry));
  }
  return dump_json(list);
}

namespace {

std::string format_dropped_artifact(const json& entry) {
  const std::string reason = text_field(entry, "reason"), setting = text_field(entry, "setting"),
                    name = text_field(entry, "name");
  const auto row = std::find_if(kDropReasons.begin(), kDropReasons.end(),
                                [&](const auto& candidate) { return candidate.word == reason; });
  std::string explanation(row != kDropReasons.end() ? row->meaning : reason);
  const auto limit = entry.find("limit");
  if (const std::size_t placeholder = explanation.find("{}"); placeholder != std::string::npos)
    explanation.replace(placeholder, 2, limit != entry.end() && limit->is_number_unsigned() ? dump_json(*limit) : "?");
  return (name.empty() ? "the artifacts folder" : name) + ": not kept: " + explanation +
         (setting.empty() ? "" : " (setting " + setting + ")");
}

std::vector<json> parse_dropped_entries(const std::string& text) {
  std::vector<json> entries;
  const auto list = parse_json(text.empty() ? "[]" : text);
  if (!list || !list->is_array()) return entries;
  std::copy_if(list->begin(), list->end(), std::back_inserter(entries),
               [](const json& entry) { return entry.is_object(); });
  return entries;
}

}  // namespace

std::vector<std::string> format_dropped_artifacts(const std::string& text) {
  std::vector<std::string> lines;
  for (const json& entry : parse_dropped_entries(text)) lines.push_back(format_dropped_artifact(entry));
  return lines;
}

bool has_lost_artifacts(const std::string& text) {
  const auto entries = parse_dropped_entries(text);
  return std::any_of(entries.begin(), entries.end(),
                     [](const json& entry) { return entry.value("optional", json()) != true; });
}

namespace {

Result<RemoteInput> parse_remote_input(const std::string& key, const json& value) {
  const std::string field = "given." + excerpt(key);
  std::uint64_t id = 0;
  if (!parse_u64(key, id) || id == 0 || id > UINT32_MAX || !value.is_object())
    return fail(Code::invalid, field + ": is not a job id");
  auto decoded = decode_json<Job>(value);
  if (!decoded.ok()) return fail(Code::invalid, field + "." + join(decoded.problems));
  Job& job = decoded.record;
  return RemoteInput{static_cast<Id>(id), std::move(job.name), std::move(job.result), std::move(job.result_json),
                     std::move(job.artifacts)};
}

}  // namespace

Result<std::vector<RemoteInput>> parse_remote_inputs(const std::string& text) {
  std::vector<RemoteInput> out;
  if (text.empty()) return out;
  const auto inputs = parse_json(text);
  if (!inputs || !inputs->is_object()) return fail(Code::invalid, "given: is not a JSON object");
  for (const auto& [key, value] : inputs->items()) {
    MJ_TRY(input, parse_remote_input(key, value));
    out.push_back(std::move(input));
  }
  return out;
}

std::string remote_inputs_to_json(const std::vector<RemoteInput>& inputs) {
  if (inputs.empty()) return {};
  json out = json::object();
  for (const RemoteInput& input : inputs) {
    json& entry = out[std::to_string(input.id)] = json::object();
    if (!input.name.empty()) entry["name"] = input.name;
    if (!input.result.empty()) entry["result"] = input.result;
    if (!input.result_json.empty()) entry["result_json"] = input.result_json;
    const auto artifacts = parse_json(input.artifacts.empty() ? "{}" : set_object_store(input.artifacts, ""));
    if (artifacts && artifacts->is_object() && !artifacts->empty()) entry["artifacts"] = *artifacts;
  }
  return dump_json(out);
}

}  // namespace mycojobs
