#include "messaging/message_artifacts.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/parse.h"
#include "text/base64.h"
#include "text/split.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxBytes = 1ULL << 40;  // limit for one file, so that sums of sizes do not overflow

std::string bundle_id(const char* kind, const MessageName& name) {
  return kind + std::to_string(name.caller) + '.' + std::to_string(name.id) + '.' + name.content;
}

}  // namespace

std::vector<FileContent> file_contents(const std::string& artifacts) {
  std::vector<FileContent> out;
  std::set<std::string> seen;
  for (ListedArtifact& each : read_artifact_list(artifacts)) {
    if (each.bytes <= kMaxBytes && seen.insert(each.sha256).second) out.push_back({std::move(each.sha256), each.bytes});
  }
  return out;
}

Result<std::vector<FileContent>> input_files(const Job& job) {
  std::vector<FileContent> out;
  std::set<std::string> seen;
  MJ_TRY(given, parse_remote_inputs(job.given));
  for (const RemoteInput& each : given) {
    for (FileContent& file : file_contents(each.artifacts)) {
      if (seen.insert(file.sha256).second) out.push_back(std::move(file));
    }
  }
  return out;
}

Result<std::vector<JobFileList>> files_of(const Message& message) {
  std::vector<JobFileList> out;
  for (std::size_t i = 0; i < message.job.size(); ++i) {
    auto given = parse_remote_inputs(message.job[i].given);
    if (!given) return fail(given.error(), "job[" + std::to_string(i) + "]");
    for (const RemoteInput& each : *given)
      out.push_back({job_key(message.caller_id, each.id), file_contents(each.artifacts)});
  }
  return out;
}

std::uint64_t bytes_of(const std::vector<FileContent>& files) {
  std::uint64_t sum = 0;
  for (const FileContent& file : files) sum += file.bytes;
  return sum;
}

std::uint64_t bytes_of(const std::vector<JobFileList>& all) {
  std::uint64_t sum = 0;
  for (const JobFileList& each : all) sum += bytes_of(each.files);
  return sum;
}

std::uint64_t accounted_bytes(const std::vector<FileContent>& files) {
  std::uint64_t sum = 0;
  for (const FileContent& file : files) sum += accounted_bytes(file.bytes);
  return sum;
}

Result<void> check_files(RecordStore& store, const MessageAttachments& carried, Id context, const Message& message) {
  MJ_TRY(all, files_of(message));
  const std::uint64_t bytes = bytes_of(all);
  if (bytes > carried.max_bytes)
    return fail(Code::too_large, "inputs: artifacts of " + std::to_string(bytes) +
                                     " bytes are too large for a message; " + kCarriedLimit + " is " +
                                     std::to_string(carried.max_bytes) + " here");
  for (const JobFileList& each : all) {
    if (each.files.empty()) continue;
    bool here = false;
    if (carried.store) {
      MJ_TRY(found, carried.store->has(store, context, each.job_key, each.files));
      here = found;
    }
    if (!here)
      return fail(
          Code::not_found,
          "inputs: artifacts of " + each.job_key +
              " are not on the host of this coordinator: give it the same state_dir as the agent that ran the job");
  }
  return {};
}

InboundBundleId message_bundle_id(const MessageName& name, std::string signer) {
  return {bundle_id("message.", name), std::move(signer)};
}
InboundBundleId answer_bundle_id(const MessageName& name, std::string supervisor) {
  return {bundle_id("answer.", name), std::move(supervisor)};
}

namespace {

std::vector<FileContent> each_once(const std::vector<JobFileList>& all) {
  std::vector<FileContent> out;
  std::set<std::pair<std::string, std::uint64_t>> seen;
  for (const JobFileList& each : all) {
    for (const FileContent& file : each.files)
      if (seen.emplace(file.sha256, file.bytes).second) out.push_back(file);
  }
  return out;
}

}  // namespace

Result<std::optional<RequestedFile>> first_missing(ArtifactStore& files, RecordStore& store, Id context,
                                                   const InboundBundleId& bundle, const std::vector<JobFileList>& all) {
  for (const JobFileList& each : all) {
    for (const FileContent& file : each.files) {
      auto have = files.is_complete(context, bundle, file);
      if (!have) {
        MJ_CHECK(files.expect(store, context, bundle, each_once(all)));
        have = files.is_complete(context, bundle, file);
      }
      if (have.value_or(0) < file.bytes)
        return std::optional(RequestedFile{each.job_key, file.sha256, have.value_or(0)});
    }
  }
  return std::optional<RequestedFile>();
}

json to_json(const RequestedFile& wanted) {
  return {{"status", "files"}, {"want", {{"job", wanted.job_key}, {"sha256", wanted.sha256}, {"have", wanted.have}}}};
}

std::optional<RequestedFile> parse_requested_file(const json& answer) {
  if (!answer.is_object() || answer.value("status", json()) != json("files")) return std::nullopt;
  const json want = answer.value("want", json());
  if (!want.is_object()) return std::nullopt;
  const json job = want.value("job", json()), sha256 = want.value("sha256", json()), have = want.value("have", json());
  if (!job.is_string() || !sha256.is_string() || !have.is_number_unsigned()) return std::nullopt;
  RequestedFile out{job.get<std::string>(), sha256.get<std::string>(), have.get<std::uint64_t>()};
  const bool is_word =
      !out.job_key.empty() && out.job_key.find(' ') == std::string::npos;  // The key is a word of a mark (text_of()).
  if (!is_word || out.job_key.size() > 64 || !is_hex(out.sha256, 64)) return std::nullopt;
  return out;
}

std::string text_of(const RequestedFile& wanted) {
  return wanted.job_key + ' ' + wanted.sha256 + ' ' + std::to_string(wanted.have);
}

std::optional<RequestedFile> requested_file(std::string_view text) {
  const auto words = split_words(text);
  std::uint64_t have = 0;
  if (words.size() != 3 || !parse_u64(words[2], have)) return std::nullopt;
  return RequestedFile{words[0], words[1], have};
}

json piece_json(const MessageName& name, const FileContent& file, std::uint64_t offset, std::string_view piece) {
  return {{"of", to_json(name)},
          {"sha256", file.sha256},
          {"bytes", file.bytes},
          {"offset", offset},
          {"data", encode_base64(piece)}};
}

Result<FilePiece> read_piece(const json& body) {
  const json sha256 = body.value("sha256", json()), bytes = body.value("bytes", json()),
             offset = body.value("offset", json()), data = body.value("data", json());
  if (!sha256.is_string() || !is_hex(sha256.get<std::string>(), 64))
    return fail(Code::invalid, "sha256: is not a SHA-256 hash of 64 hex digits");
  if (!bytes.is_number_unsigned() || !offset.is_number_unsigned())
    return fail(Code::invalid, "bytes, offset: are not whole numbers");
  auto piece = data.is_string() ? decode_base64(data.get<std::string>()) : std::nullopt;
  if (!piece) return fail(Code::invalid, "data: is not base64");
  FilePiece out{
      {sha256.get<std::string>(), bytes.get<std::uint64_t>()}, offset.get<std::uint64_t>(), std::move(*piece)};
  if (out.file.bytes > kMaxBytes || out.offset > out.file.bytes) return fail(Code::invalid, "offset: is out of range");
  return out;
}

}  // namespace mycojobs
