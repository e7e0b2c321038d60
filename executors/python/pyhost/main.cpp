// mycojobs-pyhost: the zygote of Python jobs. Started by the launcher; `--version` tries the interpreter and says
// which.
#include <cstdio>
#include <cstring>

#include "executors/python/pyhost/pyhost.h"
#include "sandbox/zygote.h"

int main(int argc, char** argv) {
  if (const auto warm = mycojobs::warm_up(); !warm) {
    std::fprintf(stderr, "mycojobs-pyhost: %s\n", warm.error().message.c_str());
    return 1;
  }
  if (argc > 1 && std::strcmp(argv[1], "--version") == 0) {
    std::printf("CPython %s\n", mycojobs::python_version().c_str());
    return 0;
  }
  mycojobs::serve_zygote({.name = "python",
                          .before_fork = nullptr,
                          .after_fork_parent = nullptr,
                          .after_fork_job = nullptr,
                          .run = mycojobs::run_job});
}
