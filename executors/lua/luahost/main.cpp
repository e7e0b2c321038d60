// mycojobs-luahost is the zygote of Lua jobs, started by the launcher. `--version` starts the interpreter and prints
// its version.
#include <cstdio>
#include <cstring>

#include "base/uncaught_exception.h"
#include "executors/channel.h"
#include "executors/lua/luahost/luahost.h"
#include "sandbox/zygote/zygote.h"

int main(int argc, char** argv) try {
  if (const auto warm_up = mycojobs::warm_lua(); !warm_up) {
    std::fprintf(stderr, "mycojobs-luahost: %s\n", warm_up.error().message.c_str());
    return 1;
  }
  if (argc > 1 && std::strcmp(argv[1], "--version") == 0) {
    std::printf("Lua %s\n", mycojobs::lua_version().c_str());
    return 0;
  }
  mycojobs::serve_zygote({.name = "lua",
                          .before_fork = nullptr,
                          .after_fork_parent = nullptr,
                          .after_fork_job = nullptr,
                          .run = [](mycojobs::JobChannel channel) { return mycojobs::run_lua_job(channel); },
                          .folder = mycojobs::kArtifactsName,
                          .can_run_again = mycojobs::can_run_lua_job_again});
} catch (...) {
  mycojobs::exit_with_report("mycojobs-luahost");
}
