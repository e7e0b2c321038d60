#include "artifacts/logs/spooled_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <tuple>

#include "artifacts/artifact_folder.h"
#include "artifacts/job_artifacts.h"
#include "artifacts/logs/log_record.h"
#include "base/errno_text.h"
#include "base/fd.h"
#include "base/parse.h"

namespace mycojobs {
namespace {

constexpr std::string_view kSegmentSuffix = ".log", kStoppedSuffix = ".stopped";
constexpr std::size_t kSegmentDigits = 20;
constexpr std::size_t kSegmentNameBytes = 2 * kSegmentDigits + 1 + kSegmentSuffix.size();
constexpr std::uint64_t kMaxReadBytes = 8U << 20;  // limit of one segment; LogSpool writes smaller segments

// Returns an empty text for a segment that was deleted since it was listed.
Result<std::string> read_segment(const LogSegment& segment) {
  const Fd fd(::open(segment.path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat info {};
  if (!fd && errno == ENOENT) return std::string();
  if (!fd || ::fstat(fd.get(), &info) != 0) return fail(Code::io, segment.path + ": " + errno_text(errno));
  return read_file_piece(fd.get(), 0,
                         static_cast<std::size_t>(std::min(static_cast<std::uint64_t>(info.st_size), kMaxReadBytes)));
}

// Adds the lines of a segment that are in the range. Returns false if `lines` is full, or contains the end of the
// range.
bool add_lines(std::string_view records, const LogRange& range, std::size_t& bytes, std::vector<Log>& lines) {
  while (auto entry = pop_log_record(records)) {
    if (entry->seq <= range.after_seq) continue;
    if (!cut_to_range(*entry, range)) return false;
    bytes += entry->text.size() + kMaxRecordHeadBytes;
    if (!lines.empty() && (bytes > kMaxLogRangeBytes || lines.size() >= range.max_lines)) return false;
    lines.push_back(std::move(*entry));
  }
  return true;
}

Result<std::uint64_t> find_last_seq(const std::vector<LogSegment>& segments) {
  if (segments.empty()) return 0;
  MJ_TRY(text, read_segment(segments.back()));
  std::uint64_t last_seq = segments.back().first_seq - 1;
  std::string_view records = text;
  while (const auto entry = pop_log_record(records)) last_seq = entry->seq;
  return last_seq;
}

std::string stopped_path(const std::string& folder, std::uint64_t run) {
  return fmt::format("{}/{:0{}}{}", folder, run, kSegmentDigits, kStoppedSuffix);
}

Result<SpooledLines> read_folder(const std::string& folder, const LogRange& range) {
  // The marker is checked before the segments are listed: otherwise a segment that is written between the two steps
  // could be missed although the run is reported as stopped.
  const bool has_stopped = ::access(stopped_path(folder, range.run).c_str(), F_OK) == 0;
  std::vector<LogSegment> segments = list_log_segments(folder);
  std::erase_if(segments, [&](const LogSegment& segment) { return segment.run != range.run; });
  // Finds the last segment that begins at or before the first byte of the range.
  auto segment = std::upper_bound(segments.begin(), segments.end(), range.after_seq + 1,
                                  [](std::uint64_t seq, const LogSegment& entry) { return seq < entry.first_seq; });
  if (segment != segments.begin()) --segment;
  SpooledLines result;
  std::size_t bytes = 0;
  for (; segment != segments.end() && segment->first_seq <= range.until_seq; ++segment) {
    MJ_TRY(records, read_segment(*segment));
    if (!add_lines(records, range, bytes, result.lines)) break;
  }
  if (!result.lines.empty()) return result;
  MJ_TRY(last_seq, find_last_seq(segments));
  result.has_pending_lines = !has_stopped && last_seq < range.until_seq;
  return result;
}

}  // namespace

std::string make_segment_path(const std::string& folder, std::uint64_t run, std::uint64_t first_seq) {
  return fmt::format("{}/{:0{}}.{:0{}}{}", folder, run, kSegmentDigits, first_seq, kSegmentDigits, kSegmentSuffix);
}

void mark_log_stopped(const std::string& folder, std::uint64_t run) {
  const Fd fd(::open(stopped_path(folder, run).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
}

bool has_log_of_run(const std::string& folder, std::uint64_t run) {
  if (::access(stopped_path(folder, run).c_str(), F_OK) == 0) return true;
  const std::vector<LogSegment> segments = list_log_segments(folder);
  return std::any_of(segments.begin(), segments.end(), [&](const LogSegment& segment) { return segment.run == run; });
}

std::vector<LogSegment> list_log_segments(const std::string& folder) {
  std::vector<LogSegment> segments;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    LogSegment segment;
    struct stat info {};
    if (name.size() != kSegmentNameBytes || !name.ends_with(kSegmentSuffix) || name[kSegmentDigits] != '.' ||
        !parse_u64(std::string_view(name).substr(0, kSegmentDigits), segment.run) ||
        !parse_u64(std::string_view(name).substr(kSegmentDigits + 1, kSegmentDigits), segment.first_seq) ||
        segment.first_seq == 0)
      continue;
    segment.path = entry->path().string();
    if (::lstat(segment.path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    segment.bytes = static_cast<std::uint64_t>(info.st_size);
    segments.push_back(std::move(segment));
  }
  std::sort(segments.begin(), segments.end(), [](const LogSegment& a, const LogSegment& b) {
    return std::tie(a.run, a.first_seq) < std::tie(b.run, b.first_seq);
  });
  return segments;
}

std::vector<std::string> list_log_folders(const std::string& state_dir, Id context, const std::string& job_key,
                                          const std::vector<std::string>& store_names) {
  std::vector<std::string> folders;
  for (const std::string& name : store_names)
    folders.push_back(ArtifactFolder(state_dir, context).log_folder(name, job_key));
  return folders;
}

Result<SpooledLines> read_spooled_lines(const std::vector<std::string>& folders, const LogRange& range) {
  SpooledLines result;
  result.has_pending_lines = true;
  for (const std::string& folder : folders) {
    MJ_TRY(lines, read_folder(folder, range));
    if (!lines.lines.empty()) return lines;
    result.has_pending_lines = result.has_pending_lines && lines.has_pending_lines;
  }
  return result;
}

bool cut_to_range(Log& entry, const LogRange& range) {
  const std::uint64_t first_seq = entry.seq - entry.text.size() + 1;
  if (entry.seq <= range.after_seq || first_seq > range.until_seq) return false;
  if (entry.seq > range.until_seq) {
    entry.text.resize(entry.text.size() - static_cast<std::size_t>(entry.seq - range.until_seq));
    entry.seq = range.until_seq;
  }
  if (first_seq <= range.after_seq) entry.text.erase(0, static_cast<std::size_t>(range.after_seq - first_seq + 1));
  entry.size = entry.text.size();
  return true;
}

std::string encode_spooled_lines(const SpooledLines& lines) {
  std::string text = lines.has_pending_lines ? "1\n" : "0\n";
  for (const Log& entry : lines.lines) append_log_record(text, entry);
  return text;
}

SpooledLines decode_spooled_lines(std::string_view text, const LogRange& range) {
  SpooledLines result;
  if (text.size() < 2 || text[1] != '\n') return result;
  result.has_pending_lines = text[0] == '1';
  text.remove_prefix(2);
  std::uint64_t last_seq = range.after_seq;
  while (auto entry = pop_log_record(text)) {
    if (result.lines.size() >= range.max_lines || !cut_to_range(*entry, {last_seq, range.until_seq})) break;
    last_seq = entry->seq;
    result.lines.push_back(std::move(*entry));
  }
  return result;
}

}  // namespace mycojobs
