#include "executors/table.h"

#include "executors/lua/lua_executor.h"
#include "executors/python/python_executor.h"

namespace mycojobs {

std::vector<std::unique_ptr<Executor>> make_executors(const ExecutorSettings& settings) {
  std::vector<std::unique_ptr<Executor>> table;
  table.push_back(std::make_unique<PythonExecutor>(settings.libexec_dir + "/mycojobs-pyhost"));
  for (const char* name : {"sal", "osis"}) {
    table.push_back(std::make_unique<LuaExecutor>(name, settings.libexec_dir + "/mycojobs-luahost"));
  }
  return table;
}

}  // namespace mycojobs
