#include "model/artifact.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/parse.h"
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
    const bool second_half = byte == 0xC2 && static_cast<unsigned char>(name[i + 1]) < 0xA0;
    if (byte < ' ' || byte == 0x7f || second_half) return true;
  }
  return false;
}

}  // namespace

bool is_artifact_name(std::string_view name) { return problem_with_artifact_name(name).empty(); }

std::string problem_with_artifact_name(std::string_view name) {
  constexpr std::size_t kMaxNameBytes = 512;
  constexpr std::size_t kMaxPartBytes = 255;  // limit of common file systems
  if (name.size() > kMaxNameBytes)
    return "its name has " + std::to_string(name.size()) + " bytes, over 512: give a shorter one";
  if (!is_utf8(name) || has_control_characters(name))
    return "its name is not UTF-8 without control characters: rename the file";
  for (std::size_t from = 0; from <= name.size();) {
    const std::size_t end = std::min(name.find('/', from), name.size());
    const std::string_view part = name.substr(from, end - from);
    if (part.empty() || part == "." || part == "..")
      return "its name is not a path below the artifacts folder, since it contains \"..\" or an empty part: rename the "
             "file";
    if (part.size() > kMaxPartBytes) return "a part of its name has over 255 bytes: give a shorter one";
    from = end + 1;
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
  for (const auto& [name, about] : values->items()) {
    const bool known = about.is_object() && about.contains("sha256") && about["sha256"].is_string() &&
                       about.contains("bytes") && about["bytes"].is_number_unsigned();
    if (!known) continue;
    const auto sha256 = about["sha256"].get<std::string>();
    const auto executable = about.find("executable");
    if (is_hex(sha256, 64) && is_artifact_name(name))
      out.push_back(
          {name, sha256, about["bytes"].get<std::uint64_t>(), executable != about.end() && *executable == true});
  }
  return out;
}

void DroppedArtifacts::add(DroppedArtifact dropped) {
  const bool loses_data = row_of(dropped.reason).loses_data;
  const std::size_t same = loses_data ? losing_data_ : all_.size() - losing_data_;
  if (same >= kMax) return;
  losing_data_ += loses_data ? 1 : 0;
  all_.push_back(std::move(dropped));
}

std::string dropped_json(const std::vector<DroppedArtifact>& dropped, bool optional) {
  if (dropped.empty()) return {};
  json list = json::array();
  for (const DroppedArtifact& each : dropped) {
    const DropReasonRow& row = row_of(each.reason);
    json entry = {{"name", to_utf8(each.name)}, {"reason", row.word}};
    if (each.limit != 0) entry["limit"] = each.limit;
    if (!row.setting.empty()) entry["setting"] = row.setting;
    if (optional || !row.loses_data) entry["optional"] = true;
    list.push_back(std::move(entry));
  }
  return dump_json(list);
}

namespace {

std::string dropped_line(const json& entry) {
  const auto text = [&entry](const char* name) {
    const auto found = entry.find(name);
    return found != entry.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const std::string reason = text("reason"), setting = text("setting"), name = text("name");
  const auto row =
      std::find_if(kDropReasons.begin(), kDropReasons.end(), [&](const auto& each) { return each.word == reason; });
  std::string why(row != kDropReasons.end() ? row->meaning : reason);
  const auto limit = entry.find("limit");
  if (const std::size_t at = why.find("{}"); at != std::string::npos)
    why.replace(at, 2, limit != entry.end() && limit->is_number_unsigned() ? dump_json(*limit) : "?");
  return (name.empty() ? "the artifacts folder" : name) + ": not kept: " + why +
         (setting.empty() ? "" : " (setting " + setting + ")");
}

std::vector<json> dropped_entries(const std::string& text) {
  std::vector<json> entries;
  const auto list = parse_json(text.empty() ? "[]" : text);
  if (!list || !list->is_array()) return entries;
  std::copy_if(list->begin(), list->end(), std::back_inserter(entries),
               [](const json& each) { return each.is_object(); });
  return entries;
}

}  // namespace

std::vector<std::string> dropped_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (const json& entry : dropped_entries(text)) lines.push_back(dropped_line(entry));
  return lines;
}

bool has_lost_artifacts(const std::string& text) {
  const auto entries = dropped_entries(text);
  return std::any_of(entries.begin(), entries.end(),
                     [](const json& each) { return each.value("optional", json()) != true; });
}

namespace {

Result<RemoteInput> read_given_one(const std::string& key, const json& value) {
  const std::string where = "given." + excerpt(key);
  std::uint64_t id = 0;
  if (!parse_u64(key, id) || id == 0 || id > UINT32_MAX || !value.is_object())
    return fail(Code::invalid, where + ": is not a job id");
  auto decoded = decode_json<Job>(value);
  if (!decoded.ok()) return fail(Code::invalid, where + "." + join(decoded.problems));
  Job& job = decoded.record;
  return RemoteInput{static_cast<Id>(id), std::move(job.name), std::move(job.result), std::move(job.result_json),
                     std::move(job.artifacts)};
}

}  // namespace

Result<std::vector<RemoteInput>> parse_remote_inputs(const std::string& text) {
  std::vector<RemoteInput> out;
  if (text.empty()) return out;
  const auto all = parse_json(text);
  if (!all || !all->is_object()) return fail(Code::invalid, "given: is not a JSON object");
  for (const auto& [key, value] : all->items()) {
    MJ_TRY(one, read_given_one(key, value));
    out.push_back(std::move(one));
  }
  return out;
}

std::string remote_inputs_to_json(const std::vector<RemoteInput>& all) {
  if (all.empty()) return {};
  json out = json::object();
  for (const RemoteInput& each : all) {
    json& one = out[std::to_string(each.id)] = json::object();
    if (!each.name.empty()) one["name"] = each.name;
    if (!each.result.empty()) one["result"] = each.result;
    if (!each.result_json.empty()) one["result_json"] = each.result_json;
    const auto artifacts = parse_json(each.artifacts.empty() ? "{}" : each.artifacts);
    if (artifacts && artifacts->is_object() && !artifacts->empty()) one["artifacts"] = *artifacts;
  }
  return dump_json(out);
}

}  // namespace mycojobs
