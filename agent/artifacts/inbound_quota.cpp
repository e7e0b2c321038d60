#include "artifacts/inbound_quota.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <system_error>

#include "artifacts/artifact_folder.h"
#include "base/parse.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;

constexpr int kQuotaLockTimeoutMs = 2000;
constexpr std::chrono::hours kRetention{1};

// Calls `callback` for each entry of the folder. A path that does not exist, or is not a folder, counts as empty. Any
// other failure is returned as an error, since unreadable files must not count as no files.
Result<void> for_each_entry(const fs::path& folder, const std::function<Result<void>(const fs::path&)>& callback) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    MJ_CHECK(callback(entry->path()));
  const bool is_absent = error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  if (!error || is_absent) return {};
  return fail(Code::unavailable, folder.string() + ": " + error.message());
}

// Returns the size in a name of the form "<sha256>.<bytes>" with an optional suffix; 0 for other names.
std::uint64_t parse_file_bytes(std::string_view name) {
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos) return 0;
  const std::string_view size_and_suffix = name.substr(dot + 1);
  std::uint64_t bytes = 0;
  return parse_u64(size_and_suffix.substr(0, size_and_suffix.find('.')), bytes) ? bytes : 0;
}

// Returns true if neither the folder nor a file in the folder was modified within kRetention. Returns false after an
// error.
bool is_expired(const fs::path& folder) {
  const auto min_time = fs::file_time_type::clock::now() - kRetention;
  std::error_code error;
  if (fs::last_write_time(folder, error) >= min_time || error) return false;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code entry_error;
    if (const auto modification_time = fs::last_write_time(entry->path(), entry_error);
        !entry_error && modification_time >= min_time)
      return false;
  }
  return !error;
}

std::uint64_t accounted_bundle_bytes(std::uint64_t file_bytes) {
  return std::max(file_bytes, kMinAccountedBundleBytes);
}

}  // namespace

std::string InboundQuota::folder_name(const InboundBundleId& bundle) { return bundle.name + '.' + bundle.sender; }
std::string InboundQuota::file_name(const FileContent& file) { return file.sha256 + '.' + std::to_string(file.bytes); }

Result<InboundQuota::Usage> InboundQuota::measure_usage(Id context, const InboundBundleId& bundle) const {
  Usage usage;
  const fs::path bundle_folder =
      fs::path(ArtifactFolder(state_dir_, context).path()) / "incoming" / folder_name(bundle);
  const auto add_folder = [&](const fs::path& folder) -> Result<void> {
    std::uint64_t bytes = 0;
    MJ_CHECK(for_each_entry(folder, [&](const fs::path& file) -> Result<void> {
      bytes += accounted_bytes(parse_file_bytes(file.filename().string()));
      return {};
    }));
    if (folder == bundle_folder) usage.bundle_bytes = bytes;
    usage.total_bytes += accounted_bundle_bytes(bytes);
    if (folder.extension() == '.' + bundle.sender) usage.sender_bytes += accounted_bundle_bytes(bytes);
    return {};
  };
  MJ_CHECK(for_each_entry(state_dir_ + "/contexts", [&](const fs::path& context_folder) {
    return for_each_entry(context_folder / "incoming", add_folder);
  }));
  return usage;
}

Result<Fd> InboundQuota::reserve_space(Id context, const InboundBundleId& bundle,
                                       const std::vector<FileContent>& files) const {
  std::uint64_t bytes = 0;
  for (const FileContent& file : files) bytes += accounted_bytes(file.bytes);
  const std::string limit_text =
      std::string(kIncomingBytesSetting) + ", which is " + std::to_string(max_bytes_) + " there";
  if (accounted_bundle_bytes(bytes) > sender_limit())
    return fail(Code::too_large, "files of " + std::to_string(bytes) +
                                     " bytes are more than a sender may have on "
                                     "their way at one time, a quarter of " +
                                     limit_text);
  auto lock = lock_file(state_dir_ + "/incoming.lock", true, kQuotaLockTimeoutMs);
  if (!lock) return fail(Code::unavailable, "the lock of received files is in use: try again later");
  MJ_TRY(usage, measure_usage(context, bundle));
  const std::uint64_t previous_bytes = usage.bundle_bytes > 0 ? accounted_bundle_bytes(usage.bundle_bytes) : 0;
  const std::uint64_t added_bytes = accounted_bundle_bytes(usage.bundle_bytes + bytes) - previous_bytes;
  if (usage.sender_bytes + added_bytes > sender_limit())
    return fail(Code::unavailable, "files of the sender " + bundle.sender + " that are in transfer take " +
                                       std::to_string(usage.sender_bytes) +
                                       " bytes, and no sender has more than a "
                                       "quarter of " +
                                       limit_text + ": try again later");
  if (usage.total_bytes + added_bytes > max_bytes_)
    return fail(Code::unavailable, "files that are in transfer take " + std::to_string(usage.total_bytes) +
                                       " bytes, and the limit is " + limit_text + ": try again later");
  return std::move(*lock);
}

void InboundQuota::delete_expired() const {
  const auto delete_if_expired = [](const fs::path& folder) -> Result<void> {
    std::error_code ignored_error;
    if (is_expired(folder)) fs::remove_all(folder, ignored_error);
    return {};
  };
  (void)for_each_entry(state_dir_ + "/contexts", [&](const fs::path& context_folder) -> Result<void> {
    (void)for_each_entry(context_folder / "incoming", delete_if_expired);
    return {};
  });
}

}  // namespace mycojobs
