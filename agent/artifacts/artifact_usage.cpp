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
constexpr std::uint64_t kAccountedBlock = 4096;
constexpr std::string_view kCountPrefix = "usage-";

std::optional<std::string> read_usage_file(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return std::nullopt;
  std::string text;
  std::array<char, 16384> some{};
  while (true) {
    const ssize_t got = ::read(fd.get(), some.data(), some.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) return text;
    text.append(some.data(), static_cast<std::size_t>(got));
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
      if (!parse_u64(line, count.changes)) return std::nullopt;
      continue;
    }
    const std::size_t blank = line.find(' '), second = line.find(' ', blank + 1);
    std::uint64_t caller = 0;
    ArtifactUsage::CallerCount of_caller;
    if (blank == std::string_view::npos || second == std::string_view::npos ||
        !parse_u64(line.substr(0, blank), caller) ||
        !parse_u64(line.substr(blank + 1, second - blank - 1), of_caller.bytes) ||
        !parse_u64(line.substr(second + 1), of_caller.change) || caller > UINT32_MAX)
      return std::nullopt;
    count.callers[static_cast<Id>(caller)] = of_caller;
  }
  return count;
}

std::uint64_t sum_of(const ArtifactUsage::Count& count) {
  return std::accumulate(count.callers.begin(), count.callers.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const auto& each) { return sum + each.second.bytes; });
}

}  // namespace

std::uint64_t accounted_artifact_bytes(std::uint64_t bytes) {
  return (std::max<std::uint64_t>(bytes, 1) + kAccountedBlock - 1) / kAccountedBlock * kAccountedBlock;
}

Id caller_of_folder(const std::string& name) {
  const std::string job_key = job_key_of_folder(name);
  return job_key.empty() ? 0 : caller_of_job(job_key);
}

std::uint64_t space_of_folder(const std::string& path) {
  std::uint64_t room = 0;
  std::error_code gone;
  for (fs::directory_iterator entry(path, gone), end; !gone && entry != end; entry.increment(gone)) {
    struct stat info {};
    if (::lstat(entry->path().c_str(), &info) == 0 && S_ISREG(info.st_mode))
      room += accounted_artifact_bytes(static_cast<std::uint64_t>(info.st_size));
  }
  return room;
}

ArtifactUsage::ArtifactUsage(ArtifactFolder folder, const std::string& store_name)
    : folder_(std::move(folder)),
      store_name_(store_name),
      path_(folder_.path() + '/' + std::string(kCountPrefix) + store_name) {}

Result<Fd> ArtifactUsage::lock() const {
  auto locked = lock_file(path_ + ".lock", true, kUsageLockWaitMs);
  if (!locked) return fail(Code::io, path_ + ".lock is held by another process, or cannot be made");
  return std::move(*locked);
}

Result<ArtifactUsage::Count> ArtifactUsage::load() const {
  const auto text = read_usage_file(path_);
  if (!text && errno != ENOENT) return fail(Code::io, path_ + ": " + errno_text(errno));
  if (text && !text->empty()) {
    if (auto count = parse_count(*text)) return std::move(*count);
  }
  Count counted = count_folders();
  MJ_CHECK(save(counted));
  return counted;
}

ArtifactUsage::Count ArtifactUsage::count_folders() const {
  Count count;
  count.changes = unix_us();  // greater than all numbers of a file that was lost
  std::error_code gone;
  for (fs::directory_iterator entry(folder_.store_folder(store_name_), gone), end; !gone && entry != end;
       entry.increment(gone)) {
    const Id caller = caller_of_folder(entry->path().filename().string());
    if (caller == 0) continue;
    if (const std::uint64_t room = space_of_folder(entry->path().string()); room > 0) {
      count.callers[caller].bytes += room;
      count.callers[caller].change = count.changes;
    }
  }
  return count;
}

Result<void> ArtifactUsage::save(const Count& count) const {
  std::string text = std::to_string(count.changes) + '\n';
  for (const auto& [caller, each] : count.callers)
    text += std::to_string(caller) + ' ' + std::to_string(each.bytes) + ' ' + std::to_string(each.change) + '\n';
  const std::string fresh = path_ + ".new";
  Fd fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return fail(Code::io, fresh + ": " + errno_text(errno));
  for (std::string_view left = text; !left.empty();) {
    const ssize_t written = ::write(fd.get(), left.data(), left.size());
    if (written < 0 && errno != EINTR) return fail(Code::io, fresh + ": " + errno_text(errno));
    if (written > 0) left.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::rename(fresh.c_str(), path_.c_str()) != 0) return fail(Code::io, path_ + ": " + errno_text(errno));
  return {};
}

Result<std::vector<ArtifactUsage::Fit>> ArtifactUsage::reserve(Id caller, const std::vector<std::uint64_t>& sizes,
                                                               const ArtifactQuota& quota) const {
  const auto locked = lock();
  if (!locked) return tl::unexpected<Error>(locked.error());
  MJ_TRY(count, load());
  std::uint64_t own = count.bytes_of(caller);
  std::uint64_t all = sum_of(count);
  const std::uint64_t share =
      quota.caller_bytes > 0 ? std::min(quota.caller_bytes, quota.context_bytes) : quota.context_bytes;
  std::vector<Fit> fits;
  bool changed = false;
  for (const std::uint64_t size : sizes) {
    const std::uint64_t room = accounted_artifact_bytes(size);
    // In a full context a caller with few artifacts is still accepted, so that other callers cannot lock it out.
    const bool is_small = own + room <= share / 16;
    if (quota.caller_bytes > 0 && own + room > quota.caller_bytes) {
      fits.push_back(Fit::caller_full);
    } else if (quota.context_bytes > 0 && all + room > quota.context_bytes && !is_small) {
      fits.push_back(Fit::context_full);
    } else {
      fits.push_back(Fit::fits);
      own += room;
      all += room;
      changed = true;
    }
  }
  if (changed) {
    count.callers[caller] = {own, ++count.changes};
    MJ_CHECK(save(count));
  }
  return fits;
}

Result<ArtifactUsage::Change> ArtifactUsage::release_bytes(Id caller, std::uint64_t room) const {
  if (room == 0) return Change{};
  const auto locked = lock();
  if (!locked) return tl::unexpected<Error>(locked.error());
  MJ_TRY(count, load());
  CallerCount& own = count.callers[caller];
  const Change change{own.change, ++count.changes};
  own = {own.bytes - std::min(own.bytes, room), change.now};
  MJ_CHECK(save(count));
  return change;
}

Result<ArtifactUsage::Count> ArtifactUsage::read() const {
  const auto locked = lock();
  if (!locked) return tl::unexpected<Error>(locked.error());
  return load();
}

// A caller without bytes stays in the file until no recount can arrive that began before its last change.
Result<void> ArtifactUsage::correct(const Recount& recount) const {
  const auto locked = lock();
  if (!locked) return tl::unexpected<Error>(locked.error());
  MJ_TRY(count, load());
  const auto before = count.callers;
  // The last change of a caller without an entry is unknown.
  for (const auto& [caller, bytes] : recount.bytes) {
    if (count.changes == recount.since) count.callers.try_emplace(caller);
  }
  for (auto each = count.callers.begin(); each != count.callers.end();) {
    auto& [caller, of_caller] = *each;
    const auto own = recount.own_changes.find(caller);
    const bool is_unchanged =
        of_caller.change <= recount.since || (own != recount.own_changes.end() && own->second == of_caller.change);
    const auto counted = recount.bytes.find(caller);
    const std::uint64_t bytes = counted == recount.bytes.end() ? 0 : counted->second;
    if (is_unchanged && of_caller.bytes != bytes) of_caller = {bytes, count.changes + 1};
    const bool is_over = is_unchanged && of_caller.bytes == 0;
    each = is_over ? count.callers.erase(each) : std::next(each);
  }
  if (count.callers == before) return {};
  ++count.changes;
  return save(count);
}

ArtifactTotals artifact_totals(const std::string& state_dir, Id context) {
  BytesByCaller callers;
  std::error_code gone;
  const std::string folder = ArtifactFolder(state_dir, context).path();
  for (fs::directory_iterator entry(folder, gone), end; !gone && entry != end; entry.increment(gone)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(kCountPrefix) || name.find('.') != std::string::npos) continue;
    const auto text = read_usage_file(entry->path().string());
    const auto count = text ? parse_count(*text) : std::nullopt;
    if (!count) continue;
    for (const auto& [caller, each] : count->callers) callers[caller] += each.bytes;
  }
  ArtifactTotals totals;
  for (const auto& [caller, bytes] : callers) {
    totals.bytes += bytes;
    if (bytes > totals.largest_bytes) totals.largest_caller = caller, totals.largest_bytes = bytes;
  }
  return totals;
}

}  // namespace mycojobs
