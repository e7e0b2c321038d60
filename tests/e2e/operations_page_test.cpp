// Numbers in docs/operations.md, compared with a running program.
#include <fstream>
#include <iterator>
#include <sstream>

#include "e2e/client.h"
#include "support/build_paths.h"

namespace mycojobs::test {
namespace {

class OperationsPage : public Operator {
 protected:
  // Reads 14 from "| coordinator | 14 for each context, and one |".
  static std::size_t read_connections_per_context() {
    std::ifstream in(mj::test::source_path("docs/operations.md"));
    const std::string page{std::istreambuf_iterator<char>(in), {}};
    const std::string row = "| coordinator | ";
    const std::size_t row_end = page.find(" for each context, and one |");
    const std::size_t row_begin = page.rfind(row, row_end);
    return row_begin == std::string::npos ? 0 : std::stoul(page.substr(row_begin + row.size(), row_end));
  }
  std::size_t count_connections() const {
    std::istringstream clients(redis_.cli(0, {"CLIENT", "LIST"}));
    std::size_t count = 0;
    for (std::string client; std::getline(clients, client);) count += client.find("name=mycojobs") != std::string::npos;
    return count;
  }
};

TEST_F(OperationsPage, CountsTheConnectionsOfACoordinator) {
  constexpr std::size_t kContexts = 3;
  Process coordinator(
      folder_, {program_path(), "coordinator", "--redis", redis_.url(), "--context", "1,2,3", "--coordinator-lease",
                "1s", "--state-dir", folder_ / "coordinator", "--api-listen", "127.0.0.1:0"});
  const std::size_t documented_count = kContexts * read_connections_per_context() + 1;
  EXPECT_TRUE(eventually([&] { return count_connections() == documented_count; }))
      << count_connections() << " are not " << documented_count;
}

}  // namespace
}  // namespace mycojobs::test
