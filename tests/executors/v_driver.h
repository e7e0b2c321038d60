// Jobs in V through the real executor and the real sandbox, both of their runs: the whole way of a job but the store.
// The compiler is tests/executors/vstandin/v, or the one that V_COMPILER in the environment names.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "executors/v/v_executor.h"
#include "mycojobs/executor.h"
#include "support/process.h"

namespace mycojobs::test {

// A compiler where jobs may see it, in a folder of its own that is gone with this.
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
  std::vector<SecretValue> secrets = {};
  std::uint64_t timeout_ms = 60000;
};

struct VRan {
  Outcome outcome;
  JobEnd end;
  std::string out, err;
  bool cached = false;                              // as its receipt says
  std::string info(const std::string& name) const;  // of error_info, as text or JSON
};

class VHost {
 public:
  explicit VHost(std::vector<std::string> flags = {}) : flags_(std::move(flags)) {}
  VRan run(const VJobSpec&) const;
  // The files of the cache of a context.
  std::vector<std::string> kept(Id context = 7) const;
  // The files that trusted builds have left.
  std::vector<std::string> trusted() const;
  const CompilerFolder& compiler() const { return compiler_; }

  std::vector<std::string> flags_;

 private:
  TempDir state_;
  CompilerFolder compiler_;
  // By flags. An executor stays between two jobs, as in an agent: it builds in the background.
  mutable std::map<std::vector<std::string>, std::unique_ptr<VExecutor>> executors_;
};

}  // namespace mycojobs::test
