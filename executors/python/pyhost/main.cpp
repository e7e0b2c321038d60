// mycojobs-pyhost is the zygote of Python jobs, started by the launcher. `--version` starts the interpreter and prints
// its version. `--venv PATH`: host path of the virtual environment that appears at /venv. `--preload MODULE`: may be
// repeated. For tests: `--import-seconds N`.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/uncaught_exception.h"
#include "executors/channel.h"
#include "executors/python/pyhost/pyhost.h"
#include "sandbox/zygote/zygote.h"

static int fail_with(const mycojobs::Error& error) {
  std::fprintf(stderr, "mycojobs-pyhost: %s\n", error.message.c_str());
  return 1;
}

int main(int argc, char** argv) try {
  if (argc > 1 && std::strcmp(argv[1], "--version") == 0) {
    if (const auto works = mycojobs::try_python(); !works) return fail_with(works.error());
    std::printf("CPython %s\n", mycojobs::python_version().c_str());
    return 0;
  }
  mycojobs::PythonSetup setup;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name(argv[i]);
    if (name == "--venv") setup.venv = argv[i + 1];
    if (name == "--import-seconds") setup.import_seconds = static_cast<unsigned>(std::atoi(argv[i + 1]));
    if (name == "--preload") setup.preload.emplace_back(argv[i + 1]);
  }
  const auto warm = [&] {
    const mycojobs::CapabilityDropScope without_capabilities;
    return mycojobs::warm_up(setup);
  }();
  if (!warm) return fail_with(warm.error());
  mycojobs::serve_zygote({.name = "python",
                          .before_fork = nullptr,
                          .after_fork_parent = nullptr,
                          .after_fork_job = nullptr,
                          .run = mycojobs::run_job,
                          .folder = mycojobs::kArtifactsName,
                          .written_memory = mycojobs::get_job_written_memory,
                          .loaded_files = mycojobs::loaded_modules,
                          .can_run_again = mycojobs::can_run_job_again});
} catch (...) {
  mycojobs::exit_with_report("mycojobs-pyhost");
}
