// Talk goes to stderr, answers to stdout. Exit codes: sysexits, and those of a job (exit_code(const Job&)).
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "domain/screen_text.h"
#include "mycojobs/clock.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

enum class Tone { plain, good, bad, warn, faint, strong };
// Colours only on a terminal, and never with NO_COLOR.
std::string paint(Tone, std::string_view text, bool to_stderr = false);

// A line of ours, on stderr. What outsiders wrote into it moves no cursor and begins no line: line ends in it are
// followed by an indentation.
void say(std::string_view line);
// An answer, on stdout: to a pipe or a file as it is, to a terminal without control codes but those of colours.
void print(std::string_view text);
// Columns as wide as their widest cell; the first row is the heading. A cell is one line, whatever stands in it; on a
// terminal (or in COLUMNS) that is narrower the last one goes on below itself.
void print_table(const std::vector<std::vector<std::string>>& rows);
// The same for rows that a person looks over: on a terminal that is narrower (COLUMNS, or its own width) moments lose
// their date if it is today's and else their time, and the widest cells but those of the first column end in "…". To a
// pipe or a file they are whole.
void print_list(std::vector<std::vector<std::string>> rows);
// A piece of what a job writes, its stdout to ours: to a pipe or a file byte for byte, to a terminal so that it does
// nothing there but show. A last line that the job left open is ended before say() begins one of ours.
void print_output(bool is_err, std::string_view bytes);
void print_log(const Log&);  // the same for a piece of its log: all but its stdout goes to stderr
// "mycojobs: message" on stderr, or once complain_in_json() was called {"error": {code, message, exit}}; returns
// exit_code(error).
int complain(const Error&);
int complain(const Error&, int exit);  // the same with another exit code
void complain_in_json();
bool complains_in_json();
// True once standard output or standard error is a pipe or socket whose reader has closed it. Writes nothing.
bool has_lost_reader();
// What a command returns: its code, or its complaint's.
int finish(const Result<int>& code);
// The same, or EX_IOERR if an answer could not be written ("no space left"). A pipe whose reader has gone is no error.
int leave(int code);

int exit_code(const Error&);
// 0 finished; 1 exit, signal, exception, other failures; 124 timeout; 126 violation; 130 cancelled; 137 oom
int exit_code(const Job&);

// Progress of what takes longer than a second, on one line of a terminal. Writes nothing where stderr is no terminal.
// The line is taken away when this goes.
class ProgressLine {
 public:
  explicit ProgressLine(const Clock& clock) : clock_(clock), since_boot_ms_(clock.boot_ms()) {}
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void show(std::string_view phase, std::uint64_t done, std::uint64_t total);  // total 0: nobody knows

 private:
  const Clock& clock_;
  std::uint64_t since_boot_ms_;
  std::uint64_t shown_boot_ms_ = 0;  // 0: never
};

// Columns and lines of the terminal behind this stream; 0 lines: it is none. Colours and more than ASCII, as far as the
// environment (NO_COLOR, LC_ALL, LC_CTYPE, LANG) says.
struct Terminal {
  std::size_t columns = 100, lines = 0;
  bool colour = false, ascii = false;
};
Terminal terminal_of(std::FILE*);

}  // namespace mycojobs
