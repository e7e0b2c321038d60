// The files that a zygote is made of: libraries that are mapped, modules that it has imported. When one of them is
// updated on the host, the zygote has outlived it: jobs would go on with the old one. The launcher's.
#pragma once

#include <sys/stat.h>
#include <time.h>

#include <string>
#include <vector>

#include "mycojobs/sandbox.h"

namespace mycojobs::sandbox {

class Loaded {
 public:
  // Make it before the zygote is started: a file that changes from now on is in doubt.
  Loaded();
  // Under the names of the zygote's root. What lies neither in the system nor in a folder of the host's is left out.
  void add(const std::vector<std::string>& files, const ScriptHost&);
  // The path of a file that is not the one that was loaded, or may not be; empty: none.
  std::string changed() const;
  // What is wrong with one that others than root and our user can change (trust.h); empty: nothing.
  std::string mistrusted() const;

 private:
  struct File {
    std::string path;
    struct stat was {};
    bool in_doubt = false;  // it has changed while the zygote came up
  };
  timespec since_{};
  std::vector<File> files_;
};

}  // namespace mycojobs::sandbox
