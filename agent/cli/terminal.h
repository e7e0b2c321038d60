// Output to the terminal: messages on stderr, results on stdout. Exit codes are those of sysexits.h, and those of
// exit_code(const Job&) for jobs. For the main thread only.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "model/records.h"
#include "text/terminal_text.h"

namespace mycojobs {

enum class OutputStyle { plain, good, bad, warn, faint, strong };
// Adds colours if the stream is a terminal and NO_COLOR is not set.
std::string paint(OutputStyle, std::string_view text, bool to_stderr = false);

// Adds a colour to text for stdout under the same conditions: one of six, by the position of the text in a list.
std::string paint_distinct(std::size_t position, std::string_view text);

// Prints a message on stderr. Untrusted text in it cannot move the cursor or start a line: line breaks are followed by
// an indentation.
void print_message(std::string_view line);
// Prints a result on stdout: unchanged to a pipe or file, without control codes other than colours to a terminal.
void print(std::string_view text);
using TableRows = std::vector<std::vector<std::string>>;  // the first row is the heading

// Prints columns that are as wide as their widest cell. Line breaks in cells become spaces. On a narrower terminal (or
// COLUMNS) the last cell is wrapped below itself.
void print_table(const TableRows&);
// Prints a table for users. On a narrower terminal (COLUMNS, or its width) times of today lose their date and other
// times their time of day, and the widest cells except those of the first column are cut with "…". Output to a pipe or
// file is complete.
void print_list(TableRows);
// Forwards output of a job to the same stream: byte for byte to a pipe or file, as displayable text to a terminal.
// print_message() ends an unfinished line of the job first.
void print_output(bool is_err, std::string_view bytes);
// Forwards a log line like print_output(). Lines of all streams but stdout go to stderr.
void print_log(const Log&);
// Prints "mycojobs: message" on stderr, or {"error": {code, message, exit}} after print_errors_as_json(). Returns
// exit_code(error).
int print_error(const Error&);
int print_error(const Error&, int exit_status);  // returns exit_status instead of exit_code(error)
void print_errors_as_json();
bool prints_errors_as_json();  // print_errors_as_json() was called
// Returns true if standard output or standard error is a pipe or socket that its reader has closed. Writes nothing.
bool is_output_closed();
// Returns `code`, or EX_IOERR if a result could not be written ("no space left"). A closed pipe is not an error.
int check_output_written(int code);

int exit_code(const Error&);  // a code of sysexits
// Exit code of a command that reflects a job: 0 finished; 1 exit, signal, exception, other failures; 124 timeout; 126
// violation; 130 cancelled; 137 oom.
int exit_code(const Job&);
// As exit_code(), but with the exit code that the script itself requested, or 128 and the number of the signal that
// ended it.
int script_exit_code(const Job&);

// Progress of an operation that takes more than a second, on one line of the terminal. Writes nothing if stderr is not
// a terminal. The destructor erases the line.
class ProgressLine {
 public:
  explicit ProgressLine(const Clock& clock) : clock_(clock), start_boot_ms_(clock.boot_ms()) {}
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void show(std::string_view phase, std::uint64_t done, std::uint64_t total);  // total 0: unknown number

 private:
  const Clock& clock_;
  std::uint64_t start_boot_ms_;
  std::uint64_t update_boot_ms_ = 0;  // time of the latest update; 0: nothing was written
};

// Properties of the terminal of a stream. Colours and character set follow the environment (NO_COLOR, LC_ALL, LC_CTYPE,
// LANG). lines is 0 if the stream is not a terminal.
struct Terminal {
  std::size_t columns = 100, lines = 0;
  bool colour = false, ascii = false;
};
Terminal get_terminal(std::FILE*);

}  // namespace mycojobs
