#include "domain/artifact_list.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "domain/codec.h"
#include "domain/utf8.h"

namespace mycojobs {

using nlohmann::json;

namespace {

bool has_control_characters(std::string_view name) {
  // The second half of the control characters has two bytes: C2 80 to C2 9F.
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
  constexpr std::size_t kLongest = 512;
  constexpr std::size_t kLongestPart = 255;  // of the file systems that there are
  if (name.size() > kLongest)
    return "its name has " + std::to_string(name.size()) + " bytes, over 512: give a shorter one";
  if (!is_utf8(name) || has_control_characters(name))
    return "its name is no UTF-8 without control characters: rename it";
  for (std::size_t from = 0; from <= name.size();) {
    const std::size_t end = std::min(name.find('/', from), name.size());
    const std::string_view part = name.substr(from, end - from);
    if (part.empty() || part == "." || part == "..")
      return "its name is no path below the artifacts folder, with \"..\" or an empty part in it: rename it";
    if (part.size() > kLongestPart) return "a part of its name has over 255 bytes: give a shorter one";
    from = end + 1;
  }
  const auto folders = std::count(name.begin(), name.end(), '/');
  if (folders > kMostArtifactFolders)
    return "it is " + std::to_string(folders) + " folders deep, over 32: put it into fewer";
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

namespace {

Result<GivenInput> read_given_one(const std::string& key, const json& value) {
  const std::string where = "given." + shown(key);
  std::uint64_t id = 0;
  if (!parse_u64(key, id) || id == 0 || id > UINT32_MAX || !value.is_object())
    return fail(Code::invalid, where + ": is no job by its id");
  auto decoded = decode_json<Job>(value);
  if (!decoded.ok()) return fail(Code::invalid, where + "." + join(decoded.problems));
  Job& job = decoded.record;
  return GivenInput{static_cast<Id>(id), std::move(job.name), std::move(job.result), std::move(job.result_json),
                    std::move(job.artifacts)};
}

}  // namespace

Result<std::vector<GivenInput>> read_given(const std::string& text) {
  std::vector<GivenInput> out;
  if (text.empty()) return out;
  const auto all = parse_json(text);
  if (!all || !all->is_object()) return fail(Code::invalid, "given: is no JSON object");
  for (const auto& [key, value] : all->items()) {
    MJ_TRY(one, read_given_one(key, value));
    out.push_back(std::move(one));
  }
  return out;
}

std::string given_json(const std::vector<GivenInput>& all) {
  if (all.empty()) return {};
  json out = json::object();
  for (const GivenInput& each : all) {
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
