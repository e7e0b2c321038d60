#include "artifacts/transfer/job_log_reader.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "artifacts/job_artifacts.h"
#include "base/parse.h"
#include "model/codec.h"
#include "model/output_gap.h"
#include "store/keys.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kSilentRunnerMs = 10000;  // time for which a runner that did not answer is not requested
// A running job can have lines that are not on the disk yet. They are requested again for this time.
constexpr int kMaxWaitsForDisk = 10, kDiskWaitMs = 50;

// Returns whether the line names output that the store does not have.
bool is_output_gap(const Log& line) {
  return line.stream == LogStream::system && line.size > 0 && line.seq >= line.size &&
         line.text == format_output_gap(line.size);
}

Log make_gap_line(std::uint64_t ts_ms, const LogRange& range, const std::string& reason) {
  const std::uint64_t bytes = range.until_seq - range.after_seq;
  std::string text = format_output_gap(bytes);
  if (!reason.empty()) text.insert(text.size() - 1, ": " + reason);
  return {ts_ms, range.until_seq, LogStream::system, std::move(text), bytes};
}

}  // namespace

Result<JobLogReader::Job> JobLogReader::locate(RecordStore& store, Id context, const std::string& job_key,
                                               const std::string& state_dir) {
  static constexpr std::array<std::string_view, 2> kFields = {"runner_id", "status"};
  MJ_TRY(fields, store.load_fields(context, job_key, kFields));
  Job job;
  job.context = context;
  job.key = job_key;
  const std::string_view status = field_of(fields, "status");
  job.has_ended = status == kJobStatusFinished || status == kJobStatusError;
  std::uint64_t runner = 0;
  if (parse_u64(field_of(fields, "runner_id"), runner) && runner <= UINT32_MAX) job.runner = static_cast<Id>(runner);
  if (state_dir.empty()) return job;
  MJ_TRY(store_names, artifact_store_names(store, context));
  job.folders = list_log_folders(state_dir, context, job_key, store_names);
  return job;
}

Result<SpooledLines> JobLogReader::read_range(const Job& job, const LogRange& range) {
  SpooledLines local;
  bool is_own_folder = false;
  if (!job.folders.empty()) {
    auto lines = read_spooled_lines(job.folders, range);
    if (lines && !lines->lines.empty()) return lines;
    is_own_folder = lines && std::any_of(job.folders.begin(), job.folders.end(),
                                         [](const std::string& folder) { return !list_log_segments(folder).empty(); });
    if (lines) local = std::move(*lines);
  }
  if (is_own_folder || job.runner == 0) return local;
  {
    const std::lock_guard lock(mutex_);
    const auto silent = silent_until_ms_.find(job.runner);
    if (silent != silent_until_ms_.end() && clock_.boot_ms() < silent->second)
      return fail(Code::unavailable, "runner " + std::to_string(job.runner) + ", which has these lines, is away");
  }
  auto lines = fetcher_.read(job.context, job.runner, job.key, range);
  const std::lock_guard lock(mutex_);
  if (lines) {
    silent_until_ms_.erase(job.runner);
  } else {
    silent_until_ms_[job.runner] = clock_.boot_ms() + kSilentRunnerMs;
  }
  return lines;
}

bool JobLogReader::fill_gap(const Job& job, const Log& gap, std::size_t max, std::vector<Log>& lines) {
  LogRange range{gap.seq - gap.size, gap.seq};
  for (int waits = 0; range.after_seq < range.until_seq;) {
    if (lines.size() >= max) return false;
    const auto read = read_range(job, range);
    if (read && read->lines.empty() && read->is_behind && !job.has_ended && ++waits <= kMaxWaitsForDisk) {
      ::poll(nullptr, 0, kDiskWaitMs);
      continue;
    }
    if (!read || read->lines.empty()) {
      lines.push_back(make_gap_line(gap.ts_ms, range, read ? "" : read.error().message));
      return true;
    }
    for (const Log& line : read->lines) {
      if (lines.size() >= max) return false;
      const std::uint64_t previous_seq = line.seq - line.size;
      if (previous_seq > range.after_seq)
        lines.push_back(make_gap_line(line.ts_ms, {range.after_seq, previous_seq}, ""));
      range.after_seq = line.seq;
      lines.push_back(line);
    }
  }
  return true;
}

// The text behind a gap can begin within a line, so one more line end is required.
Result<std::uint64_t> JobLogReader::find_last_lines(RecordStore& store, Id context, const std::string& job_key,
                                                    std::uint64_t after_seq, std::size_t lines) {
  constexpr std::size_t kPageLines = 500;
  std::uint64_t last_seq = after_seq, gap_seq = after_seq;
  std::size_t line_ends = 0;
  for (bool has_lines = true; has_lines;) {
    MJ_TRY(page, store.logs(context, job_key, last_seq, kPageLines, 0));
    for (const Log& line : page.lines) {
      last_seq = line.seq;
      line_ends += static_cast<std::size_t>(std::count(line.text.begin(), line.text.end(), '\n'));
      if (!is_output_gap(line)) continue;
      gap_seq = line.seq;
      line_ends = 0;
    }
    has_lines = !page.lines.empty() && !page.ended;
  }
  return line_ends > lines ? gap_seq : after_seq;
}

Result<LogPage> JobLogReader::read(RecordStore& store, Id context, const std::string& job_key, std::uint64_t after_seq,
                                   std::size_t max, std::uint32_t wait_ms) {
  MJ_TRY(page, store.logs(context, job_key, after_seq, max, wait_ms));
  if (std::none_of(page.lines.begin(), page.lines.end(), is_output_gap)) return page;
  MJ_TRY(job, locate(store, context, job_key, state_dir_));
  std::vector<Log> lines;
  for (Log& line : page.lines) {
    const bool is_gap = is_output_gap(line);
    if (is_gap && fill_gap(job, line, max, lines)) continue;
    if (is_gap || lines.size() >= max) {
      page.ended = false;  // the next call returns the following lines
      break;
    }
    lines.push_back(std::move(line));
  }
  page.lines = std::move(lines);
  return page;
}

}  // namespace mycojobs
