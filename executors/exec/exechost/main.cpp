// mycojobs-exechost: the zygote of jobs that are programs: bash, node, a compiler, a binary. It has nothing to warm up.
#include <malloc.h>

#include <cstdio>
#include <cstring>

#include "base/last_words.h"
#include "base/version.h"
#include "executors/channel.h"
#include "executors/exec/exechost/run_program.h"
#include "sandbox/zygote.h"

int main(int argc, char** argv) try {
  if (argc > 1 && std::strcmp(argv[1], "--version") == 0) {
    std::printf("mycojobs-exechost %s\n", mycojobs::kVersion);
    return 0;
  }
  // Else the first large allocation of each job walks through all that was freed before its fork, and copies the pages.
  ::mallopt(M_MXFAST, 0);
  mycojobs::serve_zygote({.name = "exec",
                          .before_fork = nullptr,
                          .after_fork_parent = nullptr,
                          .after_fork_job = nullptr,
                          .run = mycojobs::run_program,
                          .folder = mycojobs::kArtifactsName});
} catch (...) {
  mycojobs::leave_with_last_words("mycojobs-exechost");
}
