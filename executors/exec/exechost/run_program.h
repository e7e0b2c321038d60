// One program for one job: what mycojobs-exechost does in the job's process.
//
//   request --> files, environment --> facts.command is spawned --> its end --> result file, artifacts --> channel
//
// The program's end is the job's: its code, or the signal that ended it. TERM is passed on to it.
#pragma once

namespace mycojobs {

// Returns the exit code; does not return if a signal ended the program.
int run_program(int channel);

}  // namespace mycojobs
