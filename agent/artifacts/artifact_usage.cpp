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

constexpr int kUsageLockWaitMs = 2000;
constexpr std::uint64_t kAccountedBlockBytes = 4096;
constexpr std::string_view kUsagePrefix = "usage-";

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

// Returns no value if the text is damaged, or an older version has written it.
std::optional<ArtifactUsage::Count> parse_count(std::string_view text) {
  ArtifactUsage::Count count;
  for (bool first = true; !text.empty(); first = false) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (first) {
      if (!parse_u64(line, count.last_change)) return std::nullopt;
      continue;
    }
    const std::size_t first_space = line.find(' '), second_space = line.find(' ', first_space + 1);
    std::uint64_t caller = 0;
    ArtifactUsage::CallerCount caller_count;
    if (first_space == std::string_view::npos || second_space == std::string_view::npos ||
        !parse_u64(line.substr(0, first_space), caller) ||
        !parse_u64(line.substr(first_space + 1, second_space - first_space - 1), caller_count.bytes) ||
        !parse_u64(line.substr(second_space + 1), caller_count.last_change) || caller > UINT32_MAX)
      return std::nullopt;
    count.callers[static_cast<Id>(caller)] = caller_count;
  }
  return count;
}

std::uint64_t sum_bytes(const ArtifactUsage::Count& count) {
  return std::accumulate(count.callers.begin(), count.callers.end(), std::uint64_t{0},
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
    if (::lstat(entry->path().c_str(), &info) == 0 && S_ISREG(info.st_mode))
      bytes += accounted_artifact_bytes(static_cast<std::uint64_t>(info.st_size));
  }
  return bytes;
}

ArtifactUsage::ArtifactUsage(ArtifactFolder folder, const std::string& store_name)
    : folder_(std::move(folder)),
      store_name_(store_name),
      path_(folder_.path() + '/' + std::string(kUsagePrefix) + store_name) {}

Result<Fd> ArtifactUsage::lock() const {
  auto lock_fd = lock_file(path_ + ".lock", true, kUsageLockWaitMs);
  if (!lock_fd) return fail(Code::io, path_ + ".lock is held by another process, or cannot be made");
  return std::move(*lock_fd);
}

Result<ArtifactUsage::Count> ArtifactUsage::load_count() const {
  const auto text = read_usage_file(path_);
  if (!text && errno != ENOENT) return fail(Code::io, path_ + ": " + errno_text(errno));
  if (text && !text->empty()) {
    if (auto count = parse_count(*text)) return std::move(*count);
  }
  Count measured = measure_folders();
  MJ_CHECK(save_count(measured));
  return measured;
}

ArtifactUsage::Count ArtifactUsage::measure_folders() const {
  Count count;
  count.last_change = unix_us();  // greater than all change numbers of a previous file
  std::error_code error;
  for (fs::directory_iterator entry(folder_.store_folder(store_name_), error), end; !error && entry != end;
       entry.increment(error)) {
    const Id caller = parse_folder_caller(entry->path().filename().string());
    if (caller == 0) continue;
    if (const std::uint64_t bytes = measure_folder(entry->path().string()); bytes > 0) {
      count.callers[caller].bytes += bytes;
      count.callers[caller].last_change = count.last_change;
    }
  }
  return count;
}

Result<void> ArtifactUsage::save_count(const Count& count) const {
  std::string text = std::to_string(count.last_change) + '\n';
  for (const auto& [caller, caller_count] : count.callers)
    text += std::to_string(caller) + ' ' + std::to_string(caller_count.bytes) + ' ' +
            std::to_string(caller_count.last_change) + '\n';
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
  MJ_TRY(count, load_count());
  std::uint64_t caller_bytes = count.get_bytes(caller);
  std::uint64_t total_bytes = sum_bytes(count);
  const std::uint64_t caller_share =
      quota.caller_bytes > 0 ? std::min(quota.caller_bytes, quota.context_bytes) : quota.context_bytes;
  std::vector<QuotaResult> results;
  bool changed = false;
  for (const std::uint64_t size : sizes) {
    const std::uint64_t bytes = accounted_artifact_bytes(size);
    // In a full context a caller with few artifacts is still accepted, so that other callers cannot lock it out.
    const bool is_small = caller_bytes + bytes <= caller_share / 16;
    if (quota.caller_bytes > 0 && caller_bytes + bytes > quota.caller_bytes) {
      results.push_back(QuotaResult::caller_full);
    } else if (quota.context_bytes > 0 && total_bytes + bytes > quota.context_bytes && !is_small) {
      results.push_back(QuotaResult::context_full);
    } else {
      results.push_back(QuotaResult::accepted);
      caller_bytes += bytes;
      total_bytes += bytes;
      changed = true;
    }
  }
  if (changed) {
    count.callers[caller] = {caller_bytes, ++count.last_change};
    MJ_CHECK(save_count(count));
  }
  return results;
}

Result<ArtifactUsage::CountChange> ArtifactUsage::release_bytes(Id caller, std::uint64_t bytes) const {
  if (bytes == 0) return CountChange{};
  const auto lock_fd = lock();
  if (!lock_fd) return tl::unexpected<Error>(lock_fd.error());
  MJ_TRY(count, load_count());
  CallerCount& caller_count = count.callers[caller];
  const CountChange change{caller_count.last_change, ++count.last_change};
  caller_count = {caller_count.bytes - std::min(caller_count.bytes, bytes), change.current};
  MJ_CHECK(save_count(count));
  return change;
}

Result<ArtifactUsage::Count> ArtifactUsage::read() const {
  const auto lock_fd = lock();
  if (!lock_fd) return tl::unexpected<Error>(lock_fd.error());
  return load_count();
}

// The entry of a caller without bytes is kept until all recounts that began before its last change are applied.
Result<void> ArtifactUsage::apply_recount(const Recount& recount) const {
  const auto lock_fd = lock();
  if (!lock_fd) return tl::unexpected<Error>(lock_fd.error());
  MJ_TRY(count, load_count());
  const auto previous_callers = count.callers;
  // The last change of a caller without an entry is unknown, so an entry is added only if nothing has changed at all.
  for (const auto& [caller, bytes] : recount.bytes) {
    if (count.last_change == recount.start_change) count.callers.try_emplace(caller);
  }
  for (auto entry = count.callers.begin(); entry != count.callers.end();) {
    auto& [caller, caller_count] = *entry;
    const auto included_change = recount.included_changes.find(caller);
    const bool is_unchanged =
        caller_count.last_change <= recount.start_change ||
        (included_change != recount.included_changes.end() && included_change->second == caller_count.last_change);
    const auto measured = recount.bytes.find(caller);
    const std::uint64_t bytes = measured == recount.bytes.end() ? 0 : measured->second;
    if (is_unchanged && caller_count.bytes != bytes) caller_count = {bytes, count.last_change + 1};
    const bool is_obsolete = is_unchanged && caller_count.bytes == 0;
    entry = is_obsolete ? count.callers.erase(entry) : std::next(entry);
  }
  if (count.callers == previous_callers) return {};
  ++count.last_change;
  return save_count(count);
}

ArtifactTotals read_artifact_totals(const std::string& state_dir, Id context) {
  BytesByCaller callers;
  std::error_code error;
  const std::string folder = ArtifactFolder(state_dir, context).path();
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(kUsagePrefix) || name.find('.') != std::string::npos) continue;
    const auto text = read_usage_file(entry->path().string());
    const auto count = text ? parse_count(*text) : std::nullopt;
    if (!count) continue;
    for (const auto& [caller, caller_count] : count->callers) callers[caller] += caller_count.bytes;
  }
  ArtifactTotals totals;
  for (const auto& [caller, bytes] : callers) {
    totals.bytes += bytes;
    if (bytes > totals.largest_bytes) totals.largest_caller = caller, totals.largest_bytes = bytes;
  }
  return totals;
}

}  // namespace mycojobs
