#include "artifacts/transfer/job_log_reader.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "artifacts/job_artifacts.h"
#include "base/parse.h"
#include "model/codec.h"
#include "model/output_gap.h"
#include "model/states.h"
#include "store/keys.h"

namespace mycojobs {
namespace {

// A running job can have lines that are not on the disk yet. They are requested again for this time.
constexpr int kMaxWaitsForDisk = 10, kDiskWaitMs = 50;

// Returns whether the line names output that the store does not have.
bool is_output_gap(const Log& line) {
  return line.stream == LogStream::system && line.size > 0 && line.seq >= line.size &&
         line.text == format_output_gap(line.size);
}

// Returns whether the line of the store reports that a quota is used up. It has the number of the entry that it
// replaces, so that its number rises by the size of that entry.
bool replaces_output(const Log& line, std::uint64_t previous_seq) {
  return line.stream == LogStream::system && line.size == 0 && !line.begins_run && line.seq > previous_seq + 1;
}

Log make_gap_line(std::uint64_t ts_ms, const LogRange& range, const std::string& reason) {
  const std::uint64_t bytes = range.until_seq - range.after_seq;
  std::string text = format_output_gap(bytes);
  if (!reason.empty()) text.insert(text.size() - 1, ": " + reason);
  return {ts_ms, range.until_seq, LogStream::system, std::move(text), bytes};
}

// Removes the text up to the separator, and the separator. Without a separator, removes all.
std::string_view pop_part(std::string_view& text, char separator) {
  const std::size_t end = text.find(separator);
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return word;
}

}  // namespace

// The field log_runs has "<last number>:<epoch>:<runner>" of each earlier run that a later run follows in the log.
Result<std::vector<JobLogReader::Run>> JobLogReader::load_runs(RecordStore& store, Id context,
                                                               const std::string& job_key) {
  static constexpr std::array<std::string_view, 4> kFields = {"state", "epoch", "runner", "log_runs"};
  auto fields = store.load_fields(context, kClaimKey + job_key, kFields);
  if (!fields && fields.error().code == Code::not_found) return std::vector<Run>();
  MJ_CHECK(fields);
  std::string text(field_of(*fields, "log_runs"));
  if (!text.empty()) text += ' ';
  text.append(std::to_string(UINT64_MAX)).append(":").append(field_of(*fields, "epoch"));
  text.append(":").append(field_of(*fields, "runner"));
  std::vector<Run> runs;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view entry = pop_part(rest, ' ');
    std::string_view words = entry;
    Run run;
    std::uint64_t runner = 0;
    if (!parse_u64(pop_part(words, ':'), run.last_seq) || !parse_u64(pop_part(words, ':'), run.epoch) ||
        !parse_u64(words, runner) || runner > UINT32_MAX)
      continue;
    run.runner = static_cast<Id>(runner);
    runs.push_back(run);
  }
  if (!runs.empty()) runs.back().is_live = field_of(*fields, "state") == kJobStateLive;
  return runs;
}

Result<JobLogReader::Job> JobLogReader::locate(RecordStore& store, Id context, const std::string& job_key,
                                               const std::string& state_dir) {
  Job job;
  job.context = context;
  job.key = job_key;
  MJ_TRY(runs, load_runs(store, context, job_key));
  job.runs = std::move(runs);
  if (state_dir.empty()) return job;
  MJ_TRY(store_names, artifact_store_names(store, context));
  job.folders = list_log_folders(state_dir, context, job_key, store_names);
  return job;
}

Result<SpooledLines> JobLogReader::read_range(const Job& job, const Run& run, const LogRange& range) {
  if (!job.folders.empty()) {
    auto lines = read_spooled_lines(job.folders, range);
    const bool is_here = lines && (!lines->lines.empty() ||
                                   std::any_of(job.folders.begin(), job.folders.end(), [&](const std::string& folder) {
                                     return has_log_of_run(folder, range.run);
                                   }));
    if (is_here) return lines;
  }
  return fetcher_.read(job.context, run.runner, job.key, range);
}

JobLogReader::GapEnd JobLogReader::fill_gap(const Job& job, const Log& gap, std::uint64_t after_seq, std::size_t max,
                                            LateLines late_lines, std::vector<Log>& lines) {
  LogRange range{std::max(gap.seq - gap.size, after_seq), gap.seq};
  if (lines.size() >= max) return GapEnd::page_full;
  // A gap ends before the next run begins.
  const auto run =
      std::find_if(job.runs.begin(), job.runs.end(), [&](const Run& entry) { return gap.seq <= entry.last_seq; });
  if (run == job.runs.end() || late_lines == LateLines::skip) {
    lines.push_back(make_gap_line(gap.ts_ms, range, job.problem));
    return GapEnd::filled;
  }
  range.run = run->epoch;
  for (int waits = 0; range.after_seq < range.until_seq;) {
    if (lines.size() >= max) return GapEnd::page_full;
    range.max_lines = static_cast<std::uint32_t>(std::min<std::size_t>(max - lines.size(), UINT32_MAX));
    const auto read = read_range(job, *run, range);
    const bool is_late =
        read && read->lines.empty() && read->is_behind && run->is_live && clock_.unix_ms() < gap.ts_ms + kMaxDiskWaitMs;
    if (is_late && late_lines == LateLines::wait) return GapEnd::late;
    if (is_late && ++waits <= kMaxWaitsForDisk) {
      ::poll(nullptr, 0, kDiskWaitMs);
      continue;
    }
    if (!read || read->lines.empty()) {
      lines.push_back(make_gap_line(gap.ts_ms, range, read ? "" : read.error().message));
      return GapEnd::filled;
    }
    for (const Log& line : read->lines) {
      if (lines.size() >= max) return GapEnd::page_full;
      const std::uint64_t previous_seq = line.seq - line.size;
      if (previous_seq > range.after_seq)
        lines.push_back(make_gap_line(line.ts_ms, {range.after_seq, previous_seq}, ""));
      range.after_seq = previous_seq;
      if (lines.size() >= max) return GapEnd::page_full;
      range.after_seq = line.seq;
      lines.push_back(line);
    }
  }
  return GapEnd::filled;
}

Result<JobLogReader::GapEnd> JobLogReader::append_spooled_lines(const Job& job, const Run& run, LogRange range,
                                                                std::size_t max, std::vector<Log>& lines) {
  range.run = run.epoch;
  while (range.after_seq < range.until_seq) {
    if (lines.size() >= max) return GapEnd::page_full;
    range.max_lines = static_cast<std::uint32_t>(std::min<std::size_t>(max - lines.size(), UINT32_MAX));
    MJ_TRY(read, read_range(job, run, range));
    if (read.lines.empty()) break;
    range.after_seq = read.lines.back().seq;
    for (Log& line : read.lines) lines.push_back(std::move(line));
  }
  return GapEnd::filled;
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

Result<JobLogReader::StoredPage> JobLogReader::load(RecordStore& store, Id context, const std::string& job_key,
                                                    std::uint64_t after_seq, std::size_t max,
                                                    std::uint32_t wait_ms) const {
  MJ_TRY(page, store.logs(context, job_key, after_seq, max, wait_ms));
  StoredPage stored;
  stored.after_seq_ = after_seq;
  stored.max_ = max;
  std::uint64_t previous_seq = after_seq;
  for (const Log& line : page.lines) {
    if (is_output_gap(line) || replaces_output(line, previous_seq)) stored.has_gaps_ = true;
    previous_seq = line.seq;
  }
  if (page.ended) {
    static constexpr std::array<std::string_view, 1> kFields = {"log_full"};
    const auto fields = store.load_fields(context, kClaimKey + job_key, kFields);
    stored.is_end_missing_ = fields && field_of(*fields, "log_full") == "1";
  }
  stored.page_ = std::move(page);
  stored.has_gaps_ = stored.has_gaps_ || stored.is_end_missing_;
  if (!stored.has_gaps_) return stored;
  if (auto job = locate(store, context, job_key, state_dir_)) {
    stored.job_ = std::move(*job);
  } else {
    stored.job_.problem = job.error().message;
  }
  return stored;
}

LogPage JobLogReader::complete(StoredPage stored, LateLines late_lines) {
  LogPage page = std::move(stored.page_);
  if (!stored.has_gaps_) return page;
  std::vector<Log> lines;
  std::uint64_t last_seq = stored.after_seq_;
  for (Log& line : page.lines) {
    const bool is_gap = is_output_gap(line);
    if (late_lines != LateLines::skip && replaces_output(line, last_seq)) {
      const auto run = std::find_if(stored.job_.runs.begin(), stored.job_.runs.end(),
                                    [&](const Run& entry) { return line.seq <= entry.last_seq; });
      if (run != stored.job_.runs.end())
        (void)append_spooled_lines(stored.job_, *run, {last_seq, line.seq}, stored.max_, lines);
      if (!lines.empty()) last_seq = std::max(last_seq, lines.back().seq);
      if (last_seq >= line.seq) continue;  // the output is not missing for this reader
    }
    if (!is_gap && lines.size() < stored.max_) {
      last_seq = line.seq;
      lines.push_back(std::move(line));
      continue;
    }
    const GapEnd end =
        is_gap ? fill_gap(stored.job_, line, last_seq, stored.max_, late_lines, lines) : GapEnd::page_full;
    if (!lines.empty()) last_seq = lines.back().seq;
    if (end == GapEnd::filled) continue;
    page.ended = false;  // a later call returns the following lines
    // Callers repeat the call at once, since the store has the next line.
    if (end == GapEnd::late && lines.empty()) ::poll(nullptr, 0, kDiskWaitMs);
    break;
  }
  if (page.ended && stored.is_end_missing_ && late_lines != LateLines::skip && !stored.job_.runs.empty()) {
    const LogRange range{last_seq, UINT64_MAX};
    const auto end = append_spooled_lines(stored.job_, stored.job_.runs.back(), range, stored.max_, lines);
    page.ended = !end || *end == GapEnd::filled;
    if (!end) {
      const std::uint64_t seq = std::max(last_seq, lines.empty() ? 0 : lines.back().seq) + 1;
      lines.push_back({clock_.unix_ms(), seq, LogStream::system, "further output: " + end.error().message + '\n'});
    }
  }
  page.lines = std::move(lines);
  return page;
}

Result<LogPage> JobLogReader::read(RecordStore& store, Id context, const std::string& job_key, std::uint64_t after_seq,
                                   std::size_t max, std::uint32_t wait_ms, LateLines late_lines) {
  MJ_TRY(stored, load(store, context, job_key, after_seq, max, wait_ms));
  return complete(std::move(stored), late_lines);
}

}  // namespace mycojobs
