// The running interpreter must equal the installed one: either the linked build or the system's (base/linked_build.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/linked_build.h"
#include "executors/python/python_executor.h"
#include "python_sandbox.h"
#include "support/build_paths.h"
#include "support/process.h"

namespace mycojobs::test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kPrintLibraryScript = R"(
import ctypes, os
class Where(ctypes.Structure):
    _fields_ = [('file', ctypes.c_char_p), ('base', ctypes.c_void_p), ('name', ctypes.c_char_p), ('at', ctypes.c_void_p)]
where, find = Where(), ctypes.CDLL(None).dladdr
find.argtypes = [ctypes.c_void_p, ctypes.POINTER(Where)]
find(ctypes.cast(ctypes.pythonapi.Py_GetVersion, ctypes.c_void_p), ctypes.byref(where))
print(os.path.basename(where.file.decode()))
import json, zlib, pyexpat, xml.dom.minidom
result['n'] = zlib.decompress(zlib.compress(b'x' * 1000)).decode()
)";

// A copy of the helpers after an update of one library: the linked helper has recorded the id of another build.
class HelperCopy {
 public:
  explicit HelperCopy(const std::string& library) {
    for (const char* name : {"mycojobs-pyhost", "mycojobs-pyhost-shared"})
      std::filesystem::copy(mj::test::programs_folder() + "/" + name, folder_.path() / name);
    std::string program = read_file(pyhost());
    for (const std::string& file : select_program_build(pyhost()).compared_libraries) {
      if (file.find(library) == std::string::npos) continue;
      const std::size_t position = program.find(read_build_id(file) + " " + file);
      if (position == std::string::npos) continue;
      program[position] = program[position] == '0' ? '1' : '0';
    }
    folder_.write("mycojobs-pyhost", program);
  }
  std::string pyhost() const { return folder_ / "mycojobs-pyhost"; }

 private:
  TempDir folder_;
};

bool is_linked() { return select_program_build(mj::test::program_path("mycojobs-pyhost")).has_linked_libraries; }

TEST(PythonBuild, LinkedBuildRunsWhileItIsTheInstalledOne) {
  if (!is_linked()) GTEST_SKIP() << "this build has no archives that are the installed build";
  EXPECT_EQ(run_python_confined(kPrintLibraryScript).out, "mycojobs-pyhost\n");
  EXPECT_THAT(PythonExecutor(mj::test::program_path("mycojobs-pyhost")).probe().value(),
              EndsWith(", linked in, the same build as the installed one"));
}

// A build without complete Python archives: the only program is the shared one.
TEST(PythonBuild, SharedBuildRunsAloneAndReportsIt) {
  const std::string shared_program = mj::test::program_path("mycojobs-pyhost-shared");
  const TempDir folder;
  const std::string pyhost = folder / "mycojobs-pyhost";
  std::filesystem::copy(
      std::filesystem::exists(shared_program) ? shared_program : mj::test::program_path("mycojobs-pyhost"), pyhost);
  EXPECT_THAT(PythonExecutor(pyhost).probe().value(), EndsWith(", the installed shared library"));
  const auto sandbox = start_test_sandbox({{.name = "python", .program = pyhost, .context = 7}});
  const RunResult result = run_python_confined(kPrintLibraryScript, {.sandbox = sandbox.get()});
  EXPECT_THAT(result.out, StartsWith("libpython3.")) << result.err << result.end.error;
}

TEST(PythonBuild, InstalledBuildRunsAfterALibraryUpdate) {
  if (!is_linked()) GTEST_SKIP() << "this build has no archives that are the installed build";
  for (const char* library : {"libpython3", "libexpat", "libz", "libstdc++", "libgcc_s"}) {
    const HelperCopy helpers(library);
    const auto output = PythonExecutor(helpers.pyhost()).probe();
    ASSERT_TRUE(output) << output.error().message;
    EXPECT_THAT(*output, HasSubstr(std::string(library)));
    EXPECT_THAT(*output, HasSubstr("the installed shared library, which uses more CPU"));
    EXPECT_THAT(*output, HasSubstr("is another build than the one that was linked in"));
    if (library != std::string("libexpat")) continue;
    const auto sandbox = start_test_sandbox({{.name = "python", .program = helpers.pyhost(), .context = 7}});
    const RunResult result = run_python_confined(kPrintLibraryScript, {.sandbox = sandbox.get()});
    EXPECT_THAT(result.out, HasSubstr("libpython3.")) << result.err << result.end.error;
    EXPECT_EQ(result.end.result.count("n"), 1U);
  }
}

}  // namespace
}  // namespace mycojobs::test
