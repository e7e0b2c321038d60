#include "model/submitted_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/parse.h"
#include "base/sha256.h"
#include "model/artifact.h"
#include "model/codec.h"
#include "model/upload_limits.h"
#include "text/base64.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr const char* kStdinField = "stdin";
constexpr const char* kFilesField = "files";
constexpr std::string_view kFilePrefix = "file:";

json describe_upload(const UploadReference& upload) { return {{"bytes", upload.bytes}, {"sha256", upload.sha256}}; }

json describe_content(std::string_view bytes) { return {{"bytes", bytes.size()}, {"sha256", sha256_hex(bytes)}}; }

Result<void> check_content_size(const std::string& field, std::size_t bytes) {
  if (bytes <= kMaxJobFileBytes) return {};
  return fail(
      Code::too_large,
      field + ": " + std::to_string(bytes) + " bytes are more than the " + std::to_string(kMaxJobFileBytes) +
          " that a job brings along: let an earlier job store the file as an artifact and "
          "name it in inputs, upload it first (artifact.put; upload() of the clients; --file with COORDINATOR_URL), "
          "or read it from a folder that the policy grants (fs.read)");
}

Result<void> check_file_name(const std::string& name, const SubmittedFiles& files) {
  if (!is_artifact_name(name)) {
    return fail(Code::invalid,
                "files: " + excerpt(name) +
                    " is not a valid name: use a relative path of at most 512 bytes without \"..\", empty "
                    "parts and control characters");
  }
  for (std::size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1)) {
    const std::string_view folder = std::string_view(name).substr(0, slash);
    if (files.files.contains(folder) || files.uploads.contains(folder))
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

Result<UploadReference> parse_upload(const std::string& field, const json& value) {
  auto reference = value.size() == 1 ? parse_upload_reference(text_field(value, "upload")) : std::nullopt;
  if (reference) return std::move(*reference);
  return fail(Code::invalid,
              field + ": is not {\"upload\": reference} with a reference that artifact.put has returned");
}

// Sizes and hashes as in the record of a job.
struct FileDescriptions {
  json stdin_content;  // null: there is no standard input
  json files;          // an object, or null
};

bool is_description(const json& value) {
  return value.is_object() && is_hex(text_field(value, "sha256"), kSha256Digits) && value.contains("bytes") &&
         value["bytes"].is_number_unsigned();
}

using ParsedDescriptions = tl::expected<FileDescriptions, FieldProblem>;

ParsedDescriptions parse_descriptions(const Job& job) {
  const auto fail_field = [](const char* field, const std::string& message) {
    return tl::unexpected(FieldProblem{field, std::string(field) + ": " + message});
  };
  constexpr const char* kNotAnObject = "is not an object";
  constexpr const char* kNotADescription = "is not {\"bytes\": size, \"sha256\": digits}";
  FileDescriptions out;
  if (!job.stdin_description.empty()) {
    auto parsed = parse_json(job.stdin_description);
    if (!parsed || !parsed->is_object()) return fail_field(kStdinField, kNotAnObject);
    if (!is_description(*parsed)) return fail_field(kStdinField, kNotADescription);
    out.stdin_content = std::move(*parsed);
  }
  if (job.file_descriptions.empty()) return out;
  auto parsed = parse_json(job.file_descriptions);
  if (!parsed || !parsed->is_object()) return fail_field(kFilesField, kNotAnObject);
  for (const auto& item : parsed->items()) {
    if (!is_artifact_name(item.key())) return fail_field(kFilesField, excerpt(item.key()) + " is not a name");
    if (!is_description(item.value())) return fail_field(kFilesField, excerpt(item.key()) + ": " + kNotADescription);
  }
  out.files = std::move(*parsed);
  return out;
}

// Checks and describes the contents. If a file is not valid, `out` has the description of the standard input alone.
Result<void> describe_contents(const SubmittedFiles& contents, FileDescriptions& out) {
  if (const std::size_t count = contents.files.size() + contents.uploads.size(); count > kMaxJobFiles) {
    return fail(Code::too_large, "files: " + std::to_string(count) + " files are more than " +
                                     std::to_string(kMaxJobFiles) + ": pack them into one");
  }
  std::size_t bytes = 0;
  if (contents.stdin_bytes) {
    bytes += contents.stdin_bytes->size();
    MJ_CHECK(check_content_size(kStdinField, contents.stdin_bytes->size()));
    out.stdin_content = describe_content(*contents.stdin_bytes);
  }
  json files;
  for (const auto& [name, content] : contents.files) {
    MJ_CHECK(check_file_name(name, contents));
    MJ_CHECK(check_content_size("files: " + excerpt(name), content.size()));
    bytes += content.size();
    files[name] = describe_content(content);
  }
  if (bytes > kMaxAllJobFileBytes) {
    return fail(Code::too_large, "files: " + std::to_string(bytes) +
                                     " bytes of files and standard input are more than " +
                                     std::to_string(kMaxAllJobFileBytes) +
                                     ": let an earlier job store them as artifacts and name them in inputs");
  }
  std::uint64_t uploaded_bytes = 0;
  for (const auto& [name, upload] : contents.uploads) {
    MJ_CHECK(check_file_name(name, contents));
    uploaded_bytes += std::min(upload.bytes, kMaxUploadedBytes + 1);
    files[name] = describe_upload(upload);
  }
  if (uploaded_bytes > kMaxUploadedBytes) {
    return fail(Code::too_large, "files: the uploads of a job may have " + std::to_string(kMaxUploadedBytes) +
                                     " bytes together: divide the work into several jobs");
  }
  out.files = std::move(files);
  return {};
}

void set_descriptions(Job& job, const FileDescriptions& descriptions) {
  job.stdin_description = descriptions.stdin_content.is_null() ? "" : dump_json(descriptions.stdin_content);
  job.file_descriptions = descriptions.files.empty() ? "" : dump_json(descriptions.files);
}

void set_contents(Job& job, SubmittedFiles contents) {
  job.submitted_files = contents.is_empty() ? nullptr : std::make_shared<const SubmittedFiles>(std::move(contents));
}

// Returns the upload of a described file, or no value if the fields have none.
std::optional<UploadReference> find_upload(const json& description, const Fields& stored) {
  const std::string sha256 = text_field(description, "sha256");
  const auto upload = parse_stored_upload(field_of(stored, std::string(kUploadFieldPrefix) + sha256));
  if (!upload) return std::nullopt;
  return UploadReference{upload->id, upload->bytes, sha256};
}

// Moves the content out of the stored fields.
Result<std::string> extract_content(const std::string& field, Fields& stored, const std::string& stored_name) {
  for (auto& [name, bytes] : stored) {
    if (name == stored_name) return std::move(bytes);
  }
  return fail(Code::invalid, field + ": its content is no longer stored: submit the job again");
}

Result<void> match_content(const std::string& field, const json& described, const json& stored) {
  if (text_field(described, "sha256") == text_field(stored, "sha256")) return {};
  return fail(Code::invalid, field + ": its stored content is not that of the record: submit the job again");
}

}  // namespace

Result<void> set_submitted_files(Job& job, SubmittedFiles contents) {
  FileDescriptions descriptions;
  auto described = describe_contents(contents, descriptions);
  set_descriptions(job, descriptions);
  set_contents(job, described ? std::move(contents) : SubmittedFiles());
  return described;
}

Result<SubmittedFiles> parse_submitted_files(const json& object) {
  const auto find_value = [&object](const char* name) -> const json* {
    const auto value = object.find(name);
    return value == object.end() || value->is_null() ? nullptr : &*value;
  };
  SubmittedFiles contents;
  if (const json* value = find_value(kStdinField)) {
    MJ_TRY(bytes, parse_content(kStdinField, *value));
    contents.stdin_bytes = std::move(bytes);
  }
  const json* files = find_value(kFilesField);
  if (files == nullptr) return contents;
  if (!files->is_object()) return fail(Code::invalid, "files: is not an object such as {\"data.csv\": \"a,b\\n\"}");
  for (const auto& item : files->items()) {
    const std::string field = "files: " + excerpt(item.key());
    if (item.value().is_object() && item.value().contains("upload")) {
      MJ_TRY(upload, parse_upload(field, item.value()));
      contents.uploads.emplace(item.key(), std::move(upload));
      continue;
    }
    MJ_TRY(bytes, parse_content(field, item.value()));
    contents.files.emplace(item.key(), std::move(bytes));
  }
  return contents;
}

Result<Job> decode_job_request(json object) {
  MJ_TRY(contents, parse_submitted_files(object));
  if (object.is_object()) {
    object.erase(kStdinField);
    object.erase(kFilesField);
  }
  auto decoded = decode_json<Job>(object);
  if (!decoded.ok()) return fail(Code::invalid, join(decoded.problems));
  MJ_CHECK(set_submitted_files(decoded.record, std::move(contents)));
  return std::move(decoded.record);
}

std::size_t count_submitted_bytes(const Job& job) {
  if (job.submitted_files == nullptr) return 0;
  std::size_t bytes = job.submitted_files->stdin_bytes ? job.submitted_files->stdin_bytes->size() : 0;
  for (const auto& [name, content] : job.submitted_files->files) bytes += name.size() + content.size();
  for (const auto& [name, upload] : job.submitted_files->uploads) bytes += name.size();
  return bytes;
}

bool has_submitted_files(const Job& job) { return !job.stdin_description.empty() || !job.file_descriptions.empty(); }

const char* get_file_field(const Job& job) { return job.stdin_description.empty() ? kFilesField : kStdinField; }

std::optional<FieldProblem> check_file_descriptions(const Job& job) {
  auto parsed = parse_descriptions(job);
  if (parsed) return std::nullopt;
  return std::move(parsed).error();
}

Result<void> check_file_contents(const Job& job) {
  if (!has_submitted_files(job) || job.submitted_files != nullptr) return {};
  return fail(Code::invalid, std::string(get_file_field(job)) +
                                 ": has no content: only a request of its own can bring files along, not a record, a "
                                 "message or an adopted job");
}

Fields encode_submitted_files(const SubmittedFiles& contents) {
  Fields fields;
  if (contents.stdin_bytes) fields.emplace_back(kStdinField, *contents.stdin_bytes);
  for (const auto& [name, bytes] : contents.files) fields.emplace_back(std::string(kFilePrefix) + name, bytes);
  std::set<std::string_view> hashes;
  for (const auto& [name, upload] : contents.uploads) {
    if (hashes.insert(upload.sha256).second)
      fields.emplace_back(std::string(kUploadFieldPrefix) + upload.sha256,
                          upload.id + ' ' + std::to_string(upload.bytes));
  }
  return fields;
}

Result<void> restore_submitted_files(Job& job, Fields stored) {
  const auto described = parse_descriptions(job);
  if (!described) return fail(Code::invalid, described.error().message);
  SubmittedFiles contents;
  if (!described->stdin_content.is_null()) {
    MJ_TRY(bytes, extract_content(kStdinField, stored, kStdinField));
    contents.stdin_bytes = std::move(bytes);
  }
  for (const auto& item : described->files.items()) {
    if (auto upload = find_upload(item.value(), stored)) {
      contents.uploads.emplace(item.key(), std::move(*upload));
      continue;
    }
    MJ_TRY(bytes, extract_content("files: " + excerpt(item.key()), stored, std::string(kFilePrefix) + item.key()));
    contents.files.emplace(item.key(), std::move(bytes));
  }
  FileDescriptions actual;
  MJ_CHECK(describe_contents(contents, actual));
  if (contents.stdin_bytes) MJ_CHECK(match_content(kStdinField, described->stdin_content, actual.stdin_content));
  for (const auto& item : described->files.items())
    MJ_CHECK(match_content("files: " + excerpt(item.key()), item.value(), actual.files.at(item.key())));
  set_descriptions(job, actual);
  set_contents(job, std::move(contents));
  return {};
}

}  // namespace mycojobs
