// Runs jobs in V with the real executor and the real sandbox, both compile and run: the whole path of a job except for
// the store. The compiler is tests/executors/vstandin/v, or the program in the environment variable V_COMPILER.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "executors/executor.h"
#include "executors/v/v_executor.h"
#include "support/process.h"

namespace mycojobs::test {

// A folder with a compiler that jobs can read. The destructor removes it.
class CompilerFolder {
 public:
  CompilerFolder();
  ~CompilerFolder();
  CompilerFolder(const CompilerFolder&) = delete;
  CompilerFolder& operator=(const CompilerFolder&) = delete;
  std::string program() const { return path_ + "/v"; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct VJobSpec {
  std::string script;
  std::string name = "greet";
  std::string policy = {};  // JSON
  Id context = 7;
  TextMap environment = {};
  std::vector<Secret> secrets = {};
  std::uint64_t timeout_ms = 60000;
};

struct VResult {
  Outcome outcome;
  JobEnd end;
  std::string out, err;
  bool cached = false;                              // from the receipt
  std::string info(const std::string& name) const;  // a value of error_info, as text or JSON
};

class VHost {
 public:
  explicit VHost(std::vector<std::string> flags = {}) : flags_(std::move(flags)) {}
  VResult run(const VJobSpec&) const;
  // Returns the files in the cache of a context.
  std::vector<std::string> list_cached_files(Id context = 7) const;
  // Returns the files that trusted builds have left.
  std::vector<std::string> list_trusted_files() const;
  const CompilerFolder& compiler() const { return compiler_; }

  std::vector<std::string> flags_;

 private:
  TempDir state_;
  CompilerFolder compiler_;
  // The key is the list of compiler flags. As in an agent, an executor persists between jobs, because it builds in the
  // background.
  mutable std::map<std::vector<std::string>, std::unique_ptr<VExecutor>> executors_;
};

}  // namespace mycojobs::test
