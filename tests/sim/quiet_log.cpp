// What agents say of lost leases and late entries is no news here.
#include <gtest/gtest.h>

#include "base/log.h"

namespace mycojobs {
namespace {

class QuietLog : public testing::Environment {
 public:
  void SetUp() override { init_log(LogLevel::error, LogFormat::text); }
};
const auto* const kQuiet = testing::AddGlobalTestEnvironment(new QuietLog);

}  // namespace
}  // namespace mycojobs
