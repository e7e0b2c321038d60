// The connections that a store keeps open.
#include "store/redis/redis_link.h"

#include <gtest/gtest.h>

#include "store/redis/store_connection.h"
#include "store/store.h"

namespace mycojobs {
namespace {

// A connection to a server without this database: each call fails.
class DeadEnd final : public Link {
 public:
  explicit DeadEnd(int& alive) : alive_(alive) { ++alive_; }
  ~DeadEnd() override { --alive_; }
  Result<Reply> command(const Arguments&, std::uint32_t) override { return fail(Code::unsupported, "no database"); }
  Result<Reply> run(const Script&, const Arguments&) override { return fail(Code::unsupported, "no database"); }
  const std::string& server_run_id() const override { return run_id_; }
  bool has_been_connected() const override { return false; }

 private:
  int& alive_;
  std::string run_id_;
};

// Regression test: every context id that a client named used memory permanently.
TEST(Links, FailedConnectionIsDropped) {
  int alive = 0;
  Store store(std::make_unique<StoreConnection>(
      [&](Id) -> Result<std::unique_ptr<Link>> { return std::make_unique<DeadEnd>(alive); }));
  for (Id context = 1; context <= 100; ++context) {
    EXPECT_FALSE(store.load(context, "job:1:1"));
    EXPECT_LE(alive, 2) << context;
  }
}

}  // namespace
}  // namespace mycojobs
