// Numbers in docs/operations.md, compared with a running program.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "e2e/client.h"
#include "support/build_paths.h"

namespace mycojobs::test {
namespace {

class OperationsPage : public Operator {
 protected:
  // Reads 18 from "| coordinator | at most 18 for each Redis server".
  static std::size_t read_max_connections() {
    std::ifstream in(mj::test::source_path("docs/operations.md"));
    const std::string page{std::istreambuf_iterator<char>(in), {}};
    const std::string row = "| coordinator | at most ";
    const std::size_t row_begin = page.find(row);
    return row_begin == std::string::npos ? 0 : std::stoul(page.substr(row_begin + row.size()));
  }
  std::size_t count_connections() const {
    std::istringstream clients(redis_.cli(0, {"CLIENT", "LIST"}));
    std::size_t count = 0;
    for (std::string client; std::getline(clients, client);) count += client.find("name=mycojobs") != std::string::npos;
    return count;
  }
};

TEST_F(OperationsPage, BoundsTheConnectionsOfACoordinator) {
  Process coordinator(
      folder_, {program_path(), "coordinator", "--redis", redis_.url(), "--context", "1,2,3,4,5,6,7,8,9,10,11,12",
                "--coordinator-lease", "1s", "--state-dir", folder_ / "coordinator", "--api-listen", "127.0.0.1:0"});
  ASSERT_TRUE(
      eventually([&] { return coordinator.err().find("context 12: acquired leadership") != std::string::npos; }));
  std::size_t max_count = 0;
  for (int i = 0; i < 20; ++i, std::this_thread::sleep_for(std::chrono::milliseconds(100)))
    max_count = std::max(max_count, count_connections());
  EXPECT_GT(max_count, 0U);
  EXPECT_LE(max_count, read_max_connections());
}

}  // namespace
}  // namespace mycojobs::test
