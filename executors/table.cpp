#include "executors/table.h"

#include "executors/python/python_executor.h"

namespace mycojobs {

std::vector<std::unique_ptr<Executor>> make_executors(const ExecutorSettings& settings) {
  std::vector<std::unique_ptr<Executor>> table;
  table.push_back(std::make_unique<PythonExecutor>(settings.libexec_dir + "/mycojobs-pyhost"));
  return table;
}

}  // namespace mycojobs
