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

// Pending lines of a running job are requested again at most kMaxWaitsForDisk times.
constexpr int kMaxWaitsForDisk = 10, kDiskWaitMs = 50;

// Returns whether the line of the store reports output that the store does not contain.
bool is_output_gap(const Log& line) {
  return line.stream == LogStream::system && line.size > 0 && line.seq >= line.size &&
         line.text == format_output_gap(line.size);
}

// Returns whether the line of the store replaces output that exceeds a quota. The number of the line is the number of
// the replaced entry, so the numbers have a gap of the size of this entry.
bool replaces_output(const Log& line, std::uint64_t previous_seq) {
  return line.stream == LogStream::system && line.size == 0 && !line.begins_run && line.seq > previous_seq + 1;
}

Log make_gap_line(std::uint64_t ts_ms, const LogRange& range, const std::string& reason) {
  const std::uint64_t bytes = range.until_seq - range.after_seq;
  std::string text = format_output_gap(bytes);
  if (!reason.empty()) text.insert(text.size() - 1, ": " + reason);
  return {ts_ms, range.until_seq, LogStream::system, std::move(text), bytes};
}

// Removes the text up to the separator and the separator, or the whole text without a separator. Returns the text
// before the separator.
std::string_view pop_part(std::string_view& text, char separator) {
  const std::size_t end = text.find(separator);
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return part;
}

}  // namespace

// The field log_runs of the claim has an entry "<last number>:<epoch>:<runner>" for each run except the latest run.
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
    std::string_view parts = entry;
    Run run;
    std::uint64_t runner = 0;
    if (!parse_u64(pop_part(parts, ':'), run.last_seq) || !parse_u64(pop_part(parts, ':'), run.epoch) ||
        !parse_u64(parts, runner) || runner > UINT32_MAX)
      continue;
    run.runner = static_cast<Id>(runner);
    runs.push_back(run);
  }
  if (!runs.empty()) runs.back().is_live = field_of(*fields, "state") == kJobStateLive;
  return runs;
}

Result<JobLogReader::LogLocation> JobLogReader::find_location(RecordStore& store, Id context,
                                                              const std::string& job_key,
                                                              const std::string& state_dir) {
  LogLocation location;
  location.context = context;
  location.key = job_key;
  MJ_TRY(runs, load_runs(store, context, job_key));
  location.runs = std::move(runs);
  if (state_dir.empty()) return location;
  MJ_TRY(store_names, artifact_store_names(store, context));
  location.folders = list_log_folders(state_dir, context, job_key, store_names);
  return location;
}

Result<SpooledLines> JobLogReader::read_range(const LogLocation& location, const Run& run, const LogRange& range) {
  if (!location.folders.empty()) {
    auto lines = read_spooled_lines(location.folders, range);
    const bool is_on_this_host =
        lines && (!lines->lines.empty() ||
                  std::any_of(location.folders.begin(), location.folders.end(),
                              [&](const std::string& folder) { return has_log_of_run(folder, range.run); }));
    if (is_on_this_host) return lines;
  }
  return fetcher_.read(location.context, run.runner, location.key, range);
}

JobLogReader::FillResult JobLogReader::fill_gap(const LogLocation& location, const Log& gap, std::uint64_t after_seq,
                                                std::size_t max, PendingLines pending_lines, std::vector<Log>& lines) {
  LogRange range{std::max(gap.seq - gap.size, after_seq), gap.seq};
  if (lines.size() >= max) return FillResult::page_full;
  // A gap contains output of one run only.
  const auto run = std::find_if(location.runs.begin(), location.runs.end(),
                                [&](const Run& entry) { return gap.seq <= entry.last_seq; });
  if (run == location.runs.end() || pending_lines == PendingLines::skip_disks) {
    lines.push_back(make_gap_line(gap.ts_ms, range, location.error));
    return FillResult::filled;
  }
  range.run = run->epoch;
  for (int waits = 0; range.after_seq < range.until_seq;) {
    if (lines.size() >= max) return FillResult::page_full;
    range.max_lines = static_cast<std::uint32_t>(std::min<std::size_t>(max - lines.size(), UINT32_MAX));
    const auto read = read_range(location, *run, range);
    const bool is_pending = read && read->lines.empty() && read->has_pending_lines && run->is_live &&
                            clock_.unix_ms() < gap.ts_ms + kMaxDiskWaitMs;
    if (is_pending && pending_lines == PendingLines::end_page) return FillResult::pending;
    if (is_pending && ++waits <= kMaxWaitsForDisk) {
      ::poll(nullptr, 0, kDiskWaitMs);
      continue;
    }
    if (!read || read->lines.empty()) {
      lines.push_back(make_gap_line(gap.ts_ms, range, read ? "" : read.error().message));
      return FillResult::filled;
    }
    for (const Log& line : read->lines) {
      if (lines.size() >= max) return FillResult::page_full;
      const std::uint64_t previous_seq = line.seq - line.size;
      if (previous_seq > range.after_seq)
        lines.push_back(make_gap_line(line.ts_ms, {range.after_seq, previous_seq}, ""));
      range.after_seq = previous_seq;
      if (lines.size() >= max) return FillResult::page_full;
      range.after_seq = line.seq;
      lines.push_back(line);
    }
  }
  return FillResult::filled;
}

Result<JobLogReader::FillResult> JobLogReader::append_spooled_lines(const LogLocation& location, const Run& run,
                                                                    LogRange range, std::size_t max,
                                                                    std::vector<Log>& lines) {
  range.run = run.epoch;
  while (range.after_seq < range.until_seq) {
    if (lines.size() >= max) return FillResult::page_full;
    range.max_lines = static_cast<std::uint32_t>(std::min<std::size_t>(max - lines.size(), UINT32_MAX));
    MJ_TRY(read, read_range(location, run, range));
    if (read.lines.empty()) break;
    range.after_seq = read.lines.back().seq;
    for (Log& line : read.lines) lines.push_back(std::move(line));
  }
  return FillResult::filled;
}

// The text after a gap can begin in the middle of a line, so one additional line end is required.
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
  if (auto location = find_location(store, context, job_key, state_dir_)) {
    stored.location_ = std::move(*location);
  } else {
    stored.location_.error = location.error().message;
  }
  return stored;
}

LogPage JobLogReader::complete(StoredPage stored, PendingLines pending_lines) {
  LogPage page = std::move(stored.page_);
  if (!stored.has_gaps_) return page;
  std::vector<Log> lines;
  std::uint64_t last_seq = stored.after_seq_;
  for (Log& line : page.lines) {
    const bool is_gap = is_output_gap(line);
    if (pending_lines != PendingLines::skip_disks && replaces_output(line, last_seq)) {
      const auto run = std::find_if(stored.location_.runs.begin(), stored.location_.runs.end(),
                                    [&](const Run& entry) { return line.seq <= entry.last_seq; });
      if (run != stored.location_.runs.end())
        (void)append_spooled_lines(stored.location_, *run, {last_seq, line.seq}, stored.max_, lines);
      if (!lines.empty()) last_seq = std::max(last_seq, lines.back().seq);
      if (last_seq >= line.seq) continue;  // the spooled lines have replaced this line
    }
    if (!is_gap && lines.size() < stored.max_) {
      last_seq = line.seq;
      lines.push_back(std::move(line));
      continue;
    }
    const FillResult end =
        is_gap ? fill_gap(stored.location_, line, last_seq, stored.max_, pending_lines, lines) : FillResult::page_full;
    if (!lines.empty()) last_seq = lines.back().seq;
    if (end == FillResult::filled) continue;
    page.ended = false;  // a later call returns the following lines
    // Callers repeat the call at once, since the store has a next line: without a pause they would loop.
    if (end == FillResult::pending && lines.empty()) ::poll(nullptr, 0, kDiskWaitMs);
    break;
  }
  if (page.ended && stored.is_end_missing_ && pending_lines != PendingLines::skip_disks &&
      !stored.location_.runs.empty()) {
    const LogRange range{last_seq, UINT64_MAX};
    const auto end = append_spooled_lines(stored.location_, stored.location_.runs.back(), range, stored.max_, lines);
    page.ended = !end || *end == FillResult::filled;
    if (!end) {
      const std::uint64_t seq = std::max(last_seq, lines.empty() ? 0 : lines.back().seq) + 1;
      lines.push_back({clock_.unix_ms(), seq, LogStream::system, "further output: " + end.error().message + '\n'});
    }
  }
  page.lines = std::move(lines);
  return page;
}

Result<LogPage> JobLogReader::read(RecordStore& store, Id context, const std::string& job_key, std::uint64_t after_seq,
                                   std::size_t max, std::uint32_t wait_ms, PendingLines pending_lines) {
  MJ_TRY(stored, load(store, context, job_key, after_seq, max, wait_ms));
  return complete(std::move(stored), pending_lines);
}

}  // namespace mycojobs
