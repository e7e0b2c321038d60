#include "artifacts/artifact_usage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <optional>
#include <string_view>

#include "base/clock.h"
#include "base/errno_text.h"
#include "base/parse.h"
#include "store/keys.h"
#include "telemetry/traces.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;

constexpr int kUsageLockTimeoutMs = 2000;
constexpr std::uint64_t kAccountedBlockBytes = 4096;
constexpr std::string_view kUsagePrefix = "usage-";
constexpr const char* kLogStoppedSuffix = ".stopped";  // marks an empty file without a reservation (logs/spooled_log.h)

// Returns no value and sets errno if the file cannot be read.
std::optional<std::string> read_usage_file(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return std::nullopt;
  std::string text;
  std::array<char, 16384> buffer{};
  while (true) {
    const ssize_t size = ::read(fd.get(), buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return std::nullopt;
    if (size == 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(size));
  }
}

// Returns no value if the text is damaged or in the format of an older version.
std::optional<ArtifactUsage::UsageRecord> parse_usage(std::string_view text) {
  ArtifactUsage::UsageRecord usage;
  for (bool is_first_line = true; !text.empty(); is_first_line = false) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (is_first_line) {
      if (!parse_u64(line, usage.last_change_number)) return std::nullopt;
      continue;
    }
    const std::size_t first_space = line.find(' '), second_space = line.find(' ', first_space + 1);
    std::uint64_t caller = 0;
    ArtifactUsage::CallerUsage caller_usage;
    if (first_space == std::string_view::npos || second_space == std::string_view::npos ||
        !parse_u64(line.substr(0, first_space), caller) ||
        !parse_u64(line.substr(first_space + 1, second_space - first_space - 1), caller_usage.bytes) ||
        !parse_u64(line.substr(second_space + 1), caller_usage.last_change_number) || caller > UINT32_MAX)
      return std::nullopt;
    usage.callers[static_cast<Id>(caller)] = caller_usage;
  }
  return usage;
}

std::uint64_t sum_caller_bytes(const ArtifactUsage::UsageRecord& usage) {
  return std::accumulate(usage.callers.begin(), usage.callers.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const auto& entry) { return sum + entry.second.bytes; });
}

}  // namespace

std::uint64_t accounted_artifact_bytes(std::uint64_t bytes) {
  return (std::max<std::uint64_t>(bytes, 1) + kAccountedBlockBytes - 1) / kAccountedBlockBytes * kAccountedBlockBytes;
}

Id parse_folder_caller(const std::string& name) {
  const std::string job_key = parse_job_folder_name(name);
  return job_key.empty() ? 0 : parse_job_caller(job_key);
}

std::uint64_t measure_folder(const std::string& path) {
  std::uint64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    struct stat info {};
    if (entry->path().extension() == kLogStoppedSuffix) continue;
    if (::lstat(entry->path().c_str(), &info) == 0 && S_ISREG(info.st_mode))
      bytes += accounted_artifact_bytes(static_cast<std::uint64_t>(info.st_size));
  }
  return bytes;
}

ArtifactUsage::ArtifactUsage(ArtifactFolder folder, const std::string& store_name)
    : ArtifactUsage(folder.store_folder(store_name), folder.path() + '/' + std::string(kUsagePrefix) + store_name) {}

ArtifactUsage ArtifactUsage::of_logs(ArtifactFolder folder, const std::string& store_name) {
  return {folder.log_folder(store_name), folder.path() + "/log-" + std::string(kUsagePrefix) + store_name};
}

Result<Fd> ArtifactUsage::lock() const {
  auto lock_fd = lock_file(path_ + ".lock", true, kUsageLockTimeoutMs);
  if (!lock_fd) return fail(Code::io, path_ + ".lock is held by another process, or cannot be made");
  return std::move(*lock_fd);
}

Result<ArtifactUsage::UsageRecord> ArtifactUsage::load_usage() const {
  const auto text = read_usage_file(path_);
  if (!text && errno != ENOENT) return fail(Code::io, path_ + ": " + errno_text(errno));
  if (text && !text->empty()) {
    if (auto usage = parse_usage(*text)) return std::move(*usage);
  }
  UsageRecord measured_usage = measure_folders();
  MJ_CHECK(save_usage(measured_usage));
  return measured_usage;
}

ArtifactUsage::UsageRecord ArtifactUsage::measure_folders() const {
  UsageRecord usage;
  usage.last_change_number = unix_us();  // This number is greater than all change numbers of a previous file.
  std::error_code error;
  for (fs::directory_iterator entry(jobs_folder_, error), end; !error && entry != end; entry.increment(error)) {
    const Id caller = parse_folder_caller(entry->path().filename().string());
    if (caller == 0) continue;
    if (const std::uint64_t bytes = measure_folder(entry->path().string()); bytes > 0) {
      usage.callers[caller].bytes += bytes;
      usage.callers[caller].last_change_number = usage.last_change_number;
    }
  }
  return usage;
}

Result<void> ArtifactUsage::save_usage(const UsageRecord& usage) const {
  std::string text = std::to_string(usage.last_change_number) + '\n';
  for (const auto& [caller, caller_usage] : usage.callers)
    text += std::to_string(caller) + ' ' + std::to_string(caller_usage.bytes) + ' ' +
            std::to_string(caller_usage.last_change_number) + '\n';
  const std::string temporary_path = path_ + ".new";
  Fd fd(::open(temporary_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return fail(Code::io, temporary_path + ": " + errno_text(errno));
  for (std::string_view remaining = text; !remaining.empty();) {
    const ssize_t written = ::write(fd.get(), remaining.data(), remaining.size());
    if (written < 0 && errno != EINTR) return fail(Code::io, temporary_path + ": " + errno_text(errno));
    if (written > 0) remaining.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::rename(temporary_path.c_str(), path_.c_str()) != 0) return fail(Code::io, path_ + ": " + errno_text(errno));
  return {};
}

Result<std::vector<ArtifactUsage::QuotaResult>> ArtifactUsage::reserve(Id caller,
                                                                       const std::vector<std::uint64_t>& sizes,
                                                                       const ArtifactQuota& quota) const {
  const auto lock_fd = lock();
  if (!lock_fd) return tl::unexpected<Error>(lock_fd.error());
  MJ_TRY(usage, load_usage());
  std::uint64_t caller_bytes = usage.get_bytes(caller);
  std::uint64_t total_bytes = sum_caller_bytes(usage);
  const std::uint64_t caller_limit_bytes =
      quota.caller_bytes > 0 ? std::min(quota.caller_bytes, quota.context_bytes) : quota.context_bytes;
  std::vector<QuotaResult> results;
  bool has_reserved = false;
  for (const std::uint64_t size : sizes) {
    const std::uint64_t bytes = accounted_artifact_bytes(size);
    // In a full context a caller with few artifacts is still accepted, so that other callers cannot lock it out.
    const bool is_small = caller_bytes + bytes <= caller_limit_bytes / 16;
    if (quota.caller_bytes > 0 && caller_bytes + bytes > quota.caller_bytes) {
      results.push_back(QuotaResult::caller_full);
    } else if (quota.context_bytes > 0 && total_bytes + bytes > quota.context_bytes && !is_small) {
      results.push_back(QuotaResult::context_full);
    } else {
      results.push_back(QuotaResult::accepted);
      caller_bytes += bytes;
      total_bytes += bytes;
      has_reserved = true;
    }
  }
  if (has_reserved) {
    usage.callers[caller] = {caller_bytes, ++usage.last_change_number};
    MJ_CHECK(save_usage(usage));
  }
  return results;
}

Result<ArtifactUsage::UsageChange> ArtifactUsage::release_bytes(Id caller, std::uint64_t bytes) const {
  if (bytes == 0) return UsageChange{};
  const auto lock_fd = lock();
  if (!lock_fd) return tl::unexpected<Error>(lock_fd.error());
  MJ_TRY(usage, load_usage());
  CallerUsage& caller_usage = usage.callers[caller];
  const UsageChange change{caller_usage.last_change_number, ++usage.last_change_number};
  caller_usage = {caller_usage.bytes - std::min(caller_usage.bytes, bytes), change.current_number};
  MJ_CHECK(save_usage(usage));
  return change;
}

Result<ArtifactUsage::UsageRecord> ArtifactUsage::read() const {
  const auto lock_fd = lock();
  if (!lock_fd) return tl::unexpected<Error>(lock_fd.error());
  return load_usage();
}

// Sets the count of each unchanged caller to the recounted bytes. The entry of a changed caller is not removed, even if
// its count is 0: another recount that began before the change needs the number of the change.
Result<void> ArtifactUsage::apply_recount(const Recount& recount) const {
  const auto lock_fd = lock();
  if (!lock_fd) return tl::unexpected<Error>(lock_fd.error());
  MJ_TRY(usage, load_usage());
  const auto previous_callers = usage.callers;
  // For a caller without an entry, the number of the last change is unknown. An entry is therefore added only if no
  // count of any caller has changed since the round began.
  for (const auto& [caller, bytes] : recount.bytes) {
    if (usage.last_change_number == recount.start_change_number) usage.callers.try_emplace(caller);
  }
  for (auto entry = usage.callers.begin(); entry != usage.callers.end();) {
    auto& [caller, caller_usage] = *entry;
    const auto included_number = recount.included_change_numbers.find(caller);
    const bool is_unchanged = caller_usage.last_change_number <= recount.start_change_number ||
                              (included_number != recount.included_change_numbers.end() &&
                               included_number->second == caller_usage.last_change_number);
    const auto recounted = recount.bytes.find(caller);
    const std::uint64_t bytes = recounted == recount.bytes.end() ? 0 : recounted->second;
    if (is_unchanged && caller_usage.bytes != bytes) caller_usage = {bytes, usage.last_change_number + 1};
    const bool is_removable = is_unchanged && caller_usage.bytes == 0;
    entry = is_removable ? usage.callers.erase(entry) : std::next(entry);
  }
  if (usage.callers == previous_callers) return {};
  ++usage.last_change_number;
  return save_usage(usage);
}

ArtifactTotals read_artifact_totals(const std::string& state_dir, Id context) {
  BytesByCaller callers;
  std::error_code error;
  const std::string folder = ArtifactFolder(state_dir, context).path();
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(kUsagePrefix) || name.find('.') != std::string::npos) continue;
    const auto text = read_usage_file(entry->path().string());
    const auto usage = text ? parse_usage(*text) : std::nullopt;
    if (!usage) continue;
    for (const auto& [caller, caller_usage] : usage->callers) callers[caller] += caller_usage.bytes;
  }
  ArtifactTotals totals;
  for (const auto& [caller, bytes] : callers) {
    totals.bytes += bytes;
    if (bytes > totals.largest_bytes) totals.largest_caller = caller, totals.largest_bytes = bytes;
  }
  return totals;
}

}  // namespace mycojobs
