// A package index on the loopback interface, with a dozen wheels (package_index.py).
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/build_paths.h"
#include "support/process.h"

namespace mycojobs::test {

class PackageIndex {
 public:
  // credentials: "user:password", which requests must have; empty: none. certificates: a folder with tls.crt and
  // tls.key, with which the index is served by HTTPS; empty: by HTTP.
  explicit PackageIndex(const std::string& credentials = "", const std::string& certificates = "")
      : scheme_(certificates.empty() ? "http" : "https"), server_(folder_, make_command(credentials, certificates)) {
    EXPECT_TRUE(eventually([this] { return server_.out().find('\n') != std::string::npos; })) << server_.err();
  }
  // "127.0.0.1:40123"
  std::string address() const {
    const std::string line = server_.out();
    return "127.0.0.1:" + line.substr(5, line.find('\n') - 5);
  }
  std::string url() const { return scheme_ + "://" + address() + "/simple"; }
  void add_package(const std::string& name, const std::string& version) const {
    const ProcessResult added =
        run(folder_, {"/usr/bin/python3", mj::test::source_path("tests/support/package_index.py"), "add",
                      folder_.path().string(), name, version});
    EXPECT_EQ(added.code, 0) << added.err;
  }
  std::string requests() const { return server_.err(); }  // log of the server

 private:
  std::vector<std::string> make_command(const std::string& credentials, const std::string& certificates) const {
    std::vector<std::string> command{"/usr/bin/python3", mj::test::source_path("tests/support/package_index.py"),
                                     "serve", folder_.path().string(), credentials};
    if (!certificates.empty()) command.insert(command.end(), {certificates + "/tls.crt", certificates + "/tls.key"});
    return command;
  }

  TempDir folder_;
  const std::string scheme_;
  Process server_;
};

}  // namespace mycojobs::test
