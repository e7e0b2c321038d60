#include "worker/reports/saved_ends.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "artifacts/artifact_folder.h"
#include "base/errno_text.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/parse.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::string_view kTemporarySuffix = ".new";

std::string encode_end(const SavedEnd& saved) {
  const ClaimRef& claim = saved.report.claim;
  const JobEnd& end = saved.report.end;
  json result = json::array();
  for (const auto& [key, value] : end.result) result.push_back({key, value});
  json object = {{"started_unix_ms", saved.started_unix_ms},
                 {"context", claim.context},
                 {"job_key", claim.job_key},
                 {"claim_id", claim.claim_id},
                 {"token", claim.token},
                 {"script_type", claim.script_type},
                 {"traceparent", claim.traceparent},
                 {"attempt", claim.attempt},
                 {"claimed_us", claim.claimed_us},
                 {"is_finished", end.status == JobStatus::finished},
                 {"detail", end.detail},
                 {"error", end.error},
                 {"error_info", end.error_info},
                 {"result", std::move(result)},
                 {"usage", end.usage},
                 {"layers", end.layers},
                 {"receipt", end.receipt},
                 {"artifacts", end.artifacts},
                 {"artifacts_dropped", end.artifacts_dropped},
                 {"result_json", end.result_json},
                 {"ran_as", end.ran_as}};
  if (saved.report.retry_after_ms) object["retry_after_ms"] = *saved.report.retry_after_ms;
  const std::vector<std::uint8_t> bytes = json::to_cbor(object);
  return {bytes.begin(), bytes.end()};
}

std::string get_string(const json& object, const char* name) { return object.at(name).get_ref<const std::string&>(); }

SavedEnd decode_object(const json& object) {
  SavedEnd saved;
  saved.started_unix_ms = object.at("started_unix_ms").get<std::uint64_t>();
  ClaimRef& claim = saved.report.claim;
  claim.context = object.at("context").get<Id>();
  claim.job_key = get_string(object, "job_key");
  claim.claim_id = get_string(object, "claim_id");
  claim.token = get_string(object, "token");
  claim.script_type = get_string(object, "script_type");
  claim.traceparent = get_string(object, "traceparent");
  claim.attempt = object.at("attempt").get<std::uint32_t>();
  claim.claimed_us = object.at("claimed_us").get<std::uint64_t>();
  JobEnd& end = saved.report.end;
  end.status = object.at("is_finished").get<bool>() ? JobStatus::finished : JobStatus::error;
  end.detail = get_string(object, "detail");
  end.error = get_string(object, "error");
  end.error_info = get_string(object, "error_info");
  for (const json& entry : object.at("result"))
    end.result[entry.at(0).get<std::string>()] = entry.at(1).get<std::string>();
  end.usage = get_string(object, "usage");
  end.layers = get_string(object, "layers");
  end.receipt = get_string(object, "receipt");
  end.artifacts = get_string(object, "artifacts");
  end.artifacts_dropped = get_string(object, "artifacts_dropped");
  end.result_json = object.at("result_json").get<std::vector<std::string>>();
  end.ran_as = get_string(object, "ran_as");
  if (object.contains("retry_after_ms")) saved.report.retry_after_ms = object["retry_after_ms"].get<std::uint64_t>();
  return saved;
}

// Decodes the bytes of encode_end(). Returns no value for other bytes, such as an incomplete file after a power
// failure.
std::optional<SavedEnd> decode_end(const std::string& bytes) {
  try {
    return decode_object(json::from_cbor(bytes));
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

Result<void> write_synced(const std::string& path, const std::string& bytes) {
  const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return fail(Code::io, path + ": " + errno_text(errno));
  for (std::size_t written = 0; written < bytes.size();) {
    const ssize_t count = ::write(fd.get(), bytes.data() + written, bytes.size() - written);
    if (count < 0 && errno != EINTR) return fail(Code::io, path + ": " + errno_text(errno));
    if (count > 0) written += static_cast<std::size_t>(count);
  }
  if (::fdatasync(fd.get()) != 0) return fail(Code::io, path + ": " + errno_text(errno));
  return {};
}

}  // namespace

std::string SavedEnds::format_folder(Id context, const std::string& store_name) const {
  return ArtifactFolder(state_dir_, context).path() + "/ends/" + store_name + '.' + std::to_string(runner_);
}

Result<void> SavedEnds::save(const std::string& store_name, const SavedEnd& saved) const {
  const ClaimRef& claim = saved.report.claim;
  const std::string parent = format_folder(claim.context, store_name);
  for (const std::string& path : {std::filesystem::path(parent).parent_path().string(), parent}) {
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return fail(Code::io, path + ": " + errno_text(errno));
  }
  const std::string path = parent + '/' + claim.claim_id, new_path = path + std::string(kTemporarySuffix);
  MJ_CHECK(write_synced(new_path, encode_end(saved)));
  if (::rename(new_path.c_str(), path.c_str()) != 0) return fail(Code::io, path + ": " + errno_text(errno));
  const Fd parent_fd(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!parent_fd || ::fsync(parent_fd.get()) != 0) return fail(Code::io, parent + ": " + errno_text(errno));
  return {};
}

void SavedEnds::remove(const std::string& store_name, const ClaimRef& claim) const {
  (void)::unlink((format_folder(claim.context, store_name) + '/' + claim.claim_id).c_str());
}

std::vector<SavedEnd> SavedEnds::load(Id context, const std::string& store_name) const {
  std::vector<SavedEnd> ends;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(format_folder(context, store_name), error), end;
       !error && entry != end; entry.increment(error)) {
    const std::string path = entry->path().string();
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    auto saved = path.ends_with(kTemporarySuffix) ? std::nullopt : decode_end(bytes);
    if (saved && saved->report.claim.context == context) {
      ends.push_back(std::move(*saved));
      continue;
    }
    log(LogLevel::warn, "worker", "{}: not a complete end of a job; the file is deleted", path);
    (void)::unlink(path.c_str());
  }
  return ends;
}

}  // namespace mycojobs
