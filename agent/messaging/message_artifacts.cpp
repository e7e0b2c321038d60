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

constexpr std::uint64_t kMaxFileBytes = 1ULL << 40;  // limit for one file, so that sums of sizes do not overflow

std::string bundle_id(const char* kind, const MessageRef& ref) {
  return kind + std::to_string(ref.caller) + '.' + std::to_string(ref.id) + '.' + ref.content;
}

}  // namespace

std::vector<FileContent> parse_file_contents(const std::string& artifacts) {
  std::vector<FileContent> result;
  std::set<std::string> hashes;
  for (ListedArtifact& entry : read_artifact_list(artifacts)) {
    if (entry.bytes <= kMaxFileBytes && hashes.insert(entry.sha256).second)
      result.push_back({std::move(entry.sha256), entry.bytes});
  }
  return result;
}

Result<std::vector<FileContent>> parse_input_files(const Job& job) {
  std::vector<FileContent> result;
  std::set<std::string> hashes;
  MJ_TRY(inputs, parse_remote_inputs(job.remote_inputs));
  for (const RemoteInput& entry : inputs) {
    for (FileContent& file : parse_file_contents(entry.artifacts)) {
      if (hashes.insert(file.sha256).second) result.push_back(std::move(file));
    }
  }
  return result;
}

Result<std::vector<JobFiles>> find_dependency_files(const Message& message) {
  std::vector<JobFiles> result;
  for (std::size_t i = 0; i < message.job.size(); ++i) {
    auto inputs = parse_remote_inputs(message.job[i].remote_inputs);
    if (!inputs) return fail(inputs.error(), "job[" + std::to_string(i) + "]");
    for (const RemoteInput& entry : *inputs)
      result.push_back({job_key(message.caller_id, entry.id), parse_file_contents(entry.artifacts)});
  }
  return result;
}

std::uint64_t sum_bytes(const std::vector<FileContent>& files) {
  std::uint64_t sum = 0;
  for (const FileContent& file : files) sum += file.bytes;
  return sum;
}

std::uint64_t sum_bytes(const std::vector<JobFiles>& job_files) {
  std::uint64_t sum = 0;
  for (const JobFiles& entry : job_files) sum += sum_bytes(entry.files);
  return sum;
}

std::uint64_t accounted_bytes(const std::vector<FileContent>& files) {
  std::uint64_t sum = 0;
  for (const FileContent& file : files) sum += accounted_bytes(file.bytes);
  return sum;
}

Result<void> check_message_files(RecordStore& store, const MessageAttachments& attachments, Id context,
                                 const Message& message) {
  MJ_TRY(job_files, find_dependency_files(message));
  const std::uint64_t bytes = sum_bytes(job_files);
  if (bytes > attachments.max_bytes)
    return fail(Code::too_large, "inputs: artifacts of " + std::to_string(bytes) +
                                     " bytes are too large for a message; " + kMessageFilesSetting + " is " +
                                     std::to_string(attachments.max_bytes) + " here");
  for (const JobFiles& entry : job_files) {
    if (entry.files.empty()) continue;
    bool is_available = false;
    if (attachments.store) {
      MJ_TRY(has_files, attachments.store->has_files(store, context, entry.job_key, entry.files));
      is_available = has_files;
    }
    if (!is_available)
      return fail(Code::not_found,
                  "inputs: artifacts of " + entry.job_key +
                      " are neither on the host of this coordinator nor at the runner of the job: run the job again");
  }
  return {};
}

InboundBundleId message_bundle_id(const MessageRef& ref, std::string signer) {
  return {bundle_id("message.", ref), std::move(signer)};
}
InboundBundleId answer_bundle_id(const MessageRef& ref, std::string supervisor) {
  return {bundle_id("answer.", ref), std::move(supervisor)};
}

namespace {

std::vector<FileContent> deduplicate_files(const std::vector<JobFiles>& job_files) {
  std::vector<FileContent> result;
  std::set<std::pair<std::string, std::uint64_t>> hashes;
  for (const JobFiles& entry : job_files) {
    for (const FileContent& file : entry.files)
      if (hashes.emplace(file.sha256, file.bytes).second) result.push_back(file);
  }
  return result;
}

}  // namespace

Result<std::optional<RequestedFile>> find_missing_file(ArtifactStore& files, RecordStore& store, Id context,
                                                       const InboundBundleId& bundle,
                                                       const std::vector<JobFiles>& job_files) {
  for (const JobFiles& entry : job_files) {
    for (const FileContent& file : entry.files) {
      auto received_bytes = files.received_bytes(context, bundle, file);
      if (!received_bytes) {
        MJ_CHECK(files.reserve_files(store, context, bundle, deduplicate_files(job_files)));
        received_bytes = files.received_bytes(context, bundle, file);
      }
      if (received_bytes.value_or(0) < file.bytes)
        return std::optional(RequestedFile{entry.job_key, file.sha256, received_bytes.value_or(0)});
    }
  }
  return std::optional<RequestedFile>();
}

json to_json(const RequestedFile& request) {
  return {{"status", "files"},
          {"want", {{"job", request.job_key}, {"sha256", request.sha256}, {"have", request.received_bytes}}}};
}

std::optional<RequestedFile> parse_requested_file(const json& answer) {
  if (!answer.is_object() || answer.value("status", json()) != json("files")) return std::nullopt;
  const json want = answer.value("want", json());
  if (!want.is_object()) return std::nullopt;
  const json job = want.value("job", json()), sha256 = want.value("sha256", json()),
             received_bytes = want.value("have", json());
  if (!job.is_string() || !sha256.is_string() || !received_bytes.is_number_unsigned()) return std::nullopt;
  RequestedFile result{job.get<std::string>(), sha256.get<std::string>(), received_bytes.get<std::uint64_t>()};
  // The key is a word in the text of format_requested_file().
  const bool is_valid_key = !result.job_key.empty() && result.job_key.find(' ') == std::string::npos;
  if (!is_valid_key || result.job_key.size() > 64 || !is_hex(result.sha256, 64)) return std::nullopt;
  return result;
}

std::string format_requested_file(const RequestedFile& request) {
  return request.job_key + ' ' + request.sha256 + ' ' + std::to_string(request.received_bytes);
}

std::optional<RequestedFile> parse_requested_file_text(std::string_view text) {
  const auto words = split_words(text);
  std::uint64_t received_bytes = 0;
  if (words.size() != 3 || !parse_u64(words[2], received_bytes)) return std::nullopt;
  return RequestedFile{words[0], words[1], received_bytes};
}

json make_piece_body(const MessageRef& ref, const FileContent& file, std::uint64_t offset, std::string_view piece) {
  return {{"of", to_json(ref)},
          {"sha256", file.sha256},
          {"bytes", file.bytes},
          {"offset", offset},
          {"data", encode_base64(piece)}};
}

Result<FilePiece> parse_piece(const json& body) {
  const json sha256 = body.value("sha256", json()), bytes = body.value("bytes", json()),
             offset = body.value("offset", json()), data = body.value("data", json());
  if (!sha256.is_string() || !is_hex(sha256.get<std::string>(), 64))
    return fail(Code::invalid, "sha256: is not a SHA-256 hash of 64 hex digits");
  if (!bytes.is_number_unsigned() || !offset.is_number_unsigned())
    return fail(Code::invalid, "bytes, offset: are not whole numbers");
  auto piece = data.is_string() ? decode_base64(data.get<std::string>()) : std::nullopt;
  if (!piece) return fail(Code::invalid, "data: is not base64");
  FilePiece result{
      {sha256.get<std::string>(), bytes.get<std::uint64_t>()}, offset.get<std::uint64_t>(), std::move(*piece)};
  if (result.file.bytes > kMaxFileBytes || result.offset > result.file.bytes)
    return fail(Code::invalid, "offset: is out of range");
  return result;
}

}  // namespace mycojobs
