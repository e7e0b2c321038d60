#include "model/submitted_files.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/parse.h"
#include "base/sha256.h"
#include "model/artifact.h"
#include "model/codec.h"
#include "text/base64.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr const char* kStdinField = "stdin";
constexpr std::string_view kFilePrefix = "file:";
constexpr std::size_t kSha256Digits = 64;

json describe_content(std::string_view bytes) { return {{"bytes", bytes.size()}, {"sha256", sha256_hex(bytes)}}; }

Result<void> check_content_size(const std::string& field, std::size_t bytes) {
  if (bytes <= kMaxJobFileBytes) return {};
  return fail(Code::too_large, field + ": " + std::to_string(bytes) + " bytes are more than the " +
                                   std::to_string(kMaxJobFileBytes) +
                                   " that a job brings along: let an earlier job store the file as an artifact and "
                                   "name it in inputs, or read it from a folder that the policy grants (fs.read)");
}

Result<void> check_file_name(const std::string& name, const SubmittedFiles& files) {
  if (!is_artifact_name(name)) {
    return fail(Code::invalid,
                "files: " + excerpt(name) +
                    " is not a valid name: use a relative path of at most 512 bytes without \"..\", empty "
                    "parts and control characters");
  }
  for (std::size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1)) {
    if (const std::string_view folder = std::string_view(name).substr(0, slash); files.files.contains(folder))
      return fail(Code::invalid, "files: " + excerpt(folder) + " is a file and the folder of " + excerpt(name) +
                                     ": rename one of them");
  }
  return {};
}

Result<std::string> parse_content(const std::string& field, const json& value) {
  if (const auto* text = value.get_ptr<const std::string*>()) return *text;
  if (value.is_object() && value.size() == 1 && value.contains("base64") && value["base64"].is_string()) {
    if (auto bytes = decode_base64(value["base64"].get_ref<const std::string&>())) return std::move(*bytes);
    return fail(Code::invalid, field + ": its base64 is not valid: use the alphabet with + and /, with padding");
  }
  return fail(Code::invalid, field + ": is neither a text nor an object such as {\"base64\": \"aGk=\"}");
}

Result<json> parse_description(const char* field, const std::string& text) {
  if (text.empty()) return json(nullptr);
  auto parsed = parse_json(text);
  if (!parsed || !parsed->is_object()) return fail(Code::invalid, std::string(field) + ": is not an object");
  return parsed;
}

Result<void> check_description(const std::string& field, const json& value) {
  const auto sha256 = value.is_object() ? text_field(value, "sha256") : std::string();
  const bool is_valid = is_hex(sha256, kSha256Digits) && value.contains("bytes") && value["bytes"].is_number_unsigned();
  if (is_valid) return {};
  return fail(Code::invalid, field + ": is not {\"bytes\": size, \"sha256\": digits}");
}

Result<std::string> find_content(const std::string& field, const Fields& stored, const std::string& stored_name) {
  for (const auto& [name, bytes] : stored) {
    if (name == stored_name) return bytes;
  }
  return fail(Code::invalid, field + ": its content is no longer stored: submit the job again");
}

Result<void> match_content(const std::string& field, const json& described, const json& stored) {
  if (text_field(described, "sha256") == text_field(stored, "sha256")) return {};
  return fail(Code::invalid, field + ": its stored content is not that of the record: submit the job again");
}

}  // namespace

Result<void> set_submitted_files(Job& job, SubmittedFiles contents) {
  job.stdin_description.clear();
  job.file_descriptions.clear();
  job.submitted_files = nullptr;
  if (contents.is_empty()) return {};
  if (contents.files.size() > kMaxJobFiles) {
    return fail(Code::too_large, "files: " + std::to_string(contents.files.size()) + " files are more than " +
                                     std::to_string(kMaxJobFiles) + ": pack them into one");
  }
  std::size_t bytes = 0;
  if (contents.stdin_bytes) {
    bytes += contents.stdin_bytes->size();
    MJ_CHECK(check_content_size(kStdinField, contents.stdin_bytes->size()));
    job.stdin_description = dump_json(describe_content(*contents.stdin_bytes));
  }
  json descriptions = json::object();
  for (const auto& [name, content] : contents.files) {
    MJ_CHECK(check_file_name(name, contents));
    MJ_CHECK(check_content_size("files: " + excerpt(name), content.size()));
    bytes += content.size();
    descriptions[name] = describe_content(content);
  }
  if (bytes > kMaxAllJobFileBytes) {
    return fail(Code::too_large, "files: " + std::to_string(bytes) +
                                     " bytes of files and standard input are more than " +
                                     std::to_string(kMaxAllJobFileBytes) +
                                     ": let an earlier job store them as artifacts and name them in inputs");
  }
  if (!descriptions.empty()) job.file_descriptions = dump_json(descriptions);
  job.submitted_files = std::make_shared<const SubmittedFiles>(std::move(contents));
  return {};
}

Result<SubmittedFiles> parse_submitted_files(const json* stdin_value, const json* files_value) {
  SubmittedFiles contents;
  if (stdin_value != nullptr && !stdin_value->is_null()) {
    MJ_TRY(bytes, parse_content(kStdinField, *stdin_value));
    contents.stdin_bytes = std::move(bytes);
  }
  if (files_value == nullptr || files_value->is_null()) return contents;
  if (!files_value->is_object())
    return fail(Code::invalid, "files: is not an object such as {\"data.csv\": \"a,b\\n\"}");
  for (const auto& item : files_value->items()) {
    MJ_TRY(bytes, parse_content("files: " + excerpt(item.key()), item.value()));
    contents.files.emplace(item.key(), std::move(bytes));
  }
  return contents;
}

Result<Job> decode_job_request(const json& object) {
  const auto find_value = [&](const char* name) -> const json* {
    const auto value = object.is_object() ? object.find(name) : object.end();
    return value == object.end() ? nullptr : &*value;
  };
  const json *stdin_value = find_value("stdin"), *files_value = find_value("files");
  const bool has_contents = stdin_value != nullptr || files_value != nullptr;
  MJ_TRY(contents, parse_submitted_files(stdin_value, files_value));
  json fields;
  if (has_contents) {
    fields = object;
    fields.erase("stdin");
    fields.erase("files");
  }
  auto decoded = decode_json<Job>(has_contents ? fields : object);
  if (!decoded.ok()) return fail(Code::invalid, join(decoded.problems));
  MJ_CHECK(set_submitted_files(decoded.record, std::move(contents)));
  return std::move(decoded.record);
}

std::size_t count_submitted_bytes(const Job& job) {
  if (job.submitted_files == nullptr) return 0;
  std::size_t bytes = job.submitted_files->stdin_bytes ? job.submitted_files->stdin_bytes->size() : 0;
  for (const auto& [name, content] : job.submitted_files->files) bytes += name.size() + content.size();
  return bytes;
}

bool has_submitted_files(const Job& job) { return !job.stdin_description.empty() || !job.file_descriptions.empty(); }

Result<void> check_file_descriptions(const Job& job) {
  MJ_TRY(stdin_description, parse_description(kStdinField, job.stdin_description));
  if (!stdin_description.is_null()) MJ_CHECK(check_description(kStdinField, stdin_description));
  MJ_TRY(descriptions, parse_description("files", job.file_descriptions));
  for (const auto& item : descriptions.items()) {
    if (!is_artifact_name(item.key())) return fail(Code::invalid, "files: " + excerpt(item.key()) + " is not a name");
    MJ_CHECK(check_description("files: " + excerpt(item.key()), item.value()));
  }
  return {};
}

Result<void> check_file_contents(const Job& job) {
  if (!has_submitted_files(job) || job.submitted_files != nullptr) return {};
  return fail(Code::invalid, std::string(job.stdin_description.empty() ? "files" : "stdin") +
                                 ": has no content: only a request of its own can bring files along, not a record, a "
                                 "message or an adopted job");
}

Fields encode_submitted_files(const SubmittedFiles& contents) {
  Fields fields;
  if (contents.stdin_bytes) fields.emplace_back(kStdinField, *contents.stdin_bytes);
  for (const auto& [name, bytes] : contents.files) fields.emplace_back(std::string(kFilePrefix) + name, bytes);
  return fields;
}

Result<void> restore_submitted_files(Job& job, const Fields& stored) {
  MJ_CHECK(check_file_descriptions(job));
  MJ_TRY(described_stdin, parse_description(kStdinField, job.stdin_description));
  MJ_TRY(described_files, parse_description("files", job.file_descriptions));
  SubmittedFiles contents;
  if (!described_stdin.is_null()) {
    MJ_TRY(bytes, find_content(kStdinField, stored, kStdinField));
    contents.stdin_bytes = std::move(bytes);
  }
  for (const auto& item : described_files.items()) {
    MJ_TRY(bytes, find_content("files: " + excerpt(item.key()), stored, std::string(kFilePrefix) + item.key()));
    contents.files.emplace(item.key(), std::move(bytes));
  }
  Job restored;  // has only the files; each content is hashed once, here
  MJ_CHECK(set_submitted_files(restored, std::move(contents)));
  MJ_TRY(stored_stdin, parse_description(kStdinField, restored.stdin_description));
  MJ_TRY(stored_files, parse_description("files", restored.file_descriptions));
  if (!described_stdin.is_null()) MJ_CHECK(match_content(kStdinField, described_stdin, stored_stdin));
  for (const auto& item : described_files.items())
    MJ_CHECK(match_content("files: " + excerpt(item.key()), item.value(), stored_files.at(item.key())));
  job.stdin_description = std::move(restored.stdin_description);
  job.file_descriptions = std::move(restored.file_descriptions);
  job.submitted_files = std::move(restored.submitted_files);
  return {};
}

}  // namespace mycojobs
