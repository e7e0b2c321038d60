// Base class of tests with jobs that store artifacts.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "e2e/client.h"

namespace mycojobs::test {

class ArtifactOperator : public Operator {
 protected:
  // Submits a Python script, waits until the job has finished, and returns the key of the job.
  std::string run_to_end(const std::string& script, std::vector<std::string> more_options = {}) {
    std::string key = mycojobs_.submit(script, std::move(more_options));
    EXPECT_TRUE(mycojobs_.wait_for_value(key, "status", "finished")) << mycojobs_.read_field(key, "error");
    return key;
  }
  // Returns the number of regular files in a folder and its subfolders; 0 if the folder does not exist.
  static std::size_t count_files_in(const std::string& folder) {
    std::size_t count = 0;
    std::error_code ignored;
    for (std::filesystem::recursive_directory_iterator entry(folder, ignored), end; !ignored && entry != end;
         entry.increment(ignored))
      count += entry->is_regular_file(ignored) ? 1 : 0;
    return count;
  }
};

}  // namespace mycojobs::test
