// Reads the part of a job's log that LogSpool has stored on the disk of the agent: the output that follows the
// beginning of the log in the store (worker/runs/job_output.h). The files are in the folder
// <state_dir>/contexts/<context>/:
//
//   logs/<store>/<caller>.<job>/<run>.<number>.log   a segment; <number> is the number of the first byte of the segment
//   logs/<store>/<caller>.<job>/<run>.stopped        an empty marker: the run has not ended, but writes no more
//   segments
//
// <run> is the epoch of the claim (ClaimedJob::epoch). <run> and <number> have 20 digits. A segment consists of records
// (log_record.h) with ascending numbers, which are the same numbers as in the store. After a lost run, a later run can
// use the same numbers again, on the same or another host. Therefore a range of numbers always belongs to one run. A
// killed agent can leave an incomplete record at the end of a segment, which readers ignore. The functions read the
// disk and can block.
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

inline constexpr std::size_t kMaxLogRangeBytes = 256U << 10;  // maximum size of the records in a SpooledLines

// The bytes of a run with numbers from after_seq + 1 to until_seq.
struct LogRange {
  std::uint64_t after_seq = 0, until_seq = 0;
  std::uint64_t run = 0;                                                // epoch of the claim
  std::uint32_t max_lines = std::numeric_limits<std::uint32_t>::max();  // limit of the reader; at least 1
  bool operator==(const LogRange&) const = default;
};

// The first lines of a range.
struct SpooledLines {
  std::vector<Log> lines;          // cut to the range; about kMaxLogRangeBytes at most, but at least the first line
  bool has_pending_lines = false;  // `lines` is empty, but the run may write lines of the range later
};

struct LogSegment {
  std::uint64_t run = 0, first_seq = 0;
  std::uint64_t bytes = 0;  // size of the file
  std::string path;
};
std::string make_segment_path(const std::string& folder, std::uint64_t run, std::uint64_t first_seq);
// Returns the segments by run and number, ascending. Returns no segments if the folder cannot be read.
std::vector<LogSegment> list_log_segments(const std::string& folder);
// Creates the marker <run>.stopped. Errors are ignored: without the marker, readers wait for kMaxDiskWaitMs
// (job_log_reader.h).
void mark_log_stopped(const std::string& folder, std::uint64_t run);
// Returns whether the folder contains a segment or the marker of the run.
bool has_log_of_run(const std::string& folder, std::uint64_t run);

// Returns the folders on this host that can contain the log of a job: one folder for each name of the store.
std::vector<std::string> list_log_folders(const std::string& state_dir, Id context, const std::string& job_key,
                                          const std::vector<std::string>& store_names);
// Reads the first lines of a range from the first folder that has lines of the range. Error io: a segment cannot be
// read.
Result<SpooledLines> read_spooled_lines(const std::vector<std::string>& folders, const LogRange&);

// Cuts an entry to the range. Returns false if the entry has no byte in the range.
bool cut_to_range(Log& entry, const LogRange&);

// Encodes lines for a message as "<has_pending_lines: 0 or 1> LF <records>".
std::string encode_spooled_lines(const SpooledLines&);
// Decodes the text of encode_spooled_lines(), which can have been changed by another client: returns at most
// range.max_lines lines inside of the range, and stops at the first invalid record.
SpooledLines decode_spooled_lines(std::string_view text, const LogRange&);

}  // namespace mycojobs
