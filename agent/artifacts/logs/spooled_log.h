// The log of a job on the disk of the agent that runs the job: the output behind the head that the store has
// (worker/runs/job_output.h), in the folder <state_dir>/contexts/<context>/ :
//
//   logs/<store>/<caller>.<job>/<run>.<number>.log   a segment; <number> is the number of its first byte
//   logs/<store>/<caller>.<job>/<run>.stopped        empty; the run has written its last segment before its end
//
// <run> is the epoch of the claim (ClaimedJob::epoch), and has 20 digits like <number>. A segment consists of records
// (log_record.h) with ascending numbers, which are those of the log in the store. A run that was lost can have written
// numbers that a later run uses again, also on another host. So each range is that of one run. An agent that is killed
// can leave an incomplete record at the end of a segment, which readers ignore. The functions read the disk and can
// block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

inline constexpr std::size_t kMaxLogRangeBytes = 256U << 10;  // size of the records that one request returns

// The numbers of a run after after_seq, up to until_seq.
struct LogRange {
  std::uint64_t after_seq = 0, until_seq = 0;
  std::uint64_t run = 0;                                                // epoch of its claim
  std::uint32_t max_lines = std::numeric_limits<std::uint32_t>::max();  // the reader needs no more of them; at least 1
  bool operator==(const LogRange&) const = default;
};

// The first lines of a range.
struct SpooledLines {
  std::vector<Log> lines;  // cut to the range; at most about kMaxLogRangeBytes, but at least one if there is any
  bool is_behind = false;  // there are no lines, and the spool ends before the range: it may be written later
};

struct LogSegment {
  std::uint64_t run = 0, first_seq = 0;
  std::uint64_t bytes = 0;  // size of the file
  std::string path;
};
std::string make_segment_path(const std::string& folder, std::uint64_t run, std::uint64_t first_seq);
// Returns the segments by run and number, ascending. Returns no segments if the folder cannot be read.
std::vector<LogSegment> list_log_segments(const std::string& folder);
// Marks that the run writes no more segments although it has not ended. Errors are ignored: then readers wait for a
// time (job_log_reader.h).
void mark_log_stopped(const std::string& folder, std::uint64_t run);
// Returns whether the folder has a file of the run.
bool has_log_of_run(const std::string& folder, std::uint64_t run);

// Returns the folders on this host that can contain the log: one for each name of the store.
std::vector<std::string> list_log_folders(const std::string& state_dir, Id context, const std::string& job_key,
                                          const std::vector<std::string>& store_names);
// Reads the first lines of a range from the first of the folders that has any. Error io: a segment cannot be read.
Result<SpooledLines> read_spooled_lines(const std::vector<std::string>& folders, const LogRange&);

// Cuts an entry to the range. Returns false if the entry has no byte in the range.
bool cut_to_range(Log& entry, const LogRange&);

// The lines of a transfer: "<1 if SpooledLines::is_behind, else 0> LF <records>".
std::string encode_spooled_lines(const SpooledLines&);
// Returns the lines that are in the range, or the lines before the first damaged record.
SpooledLines decode_spooled_lines(std::string_view text, const LogRange&);

}  // namespace mycojobs
