// What agents and coordinators log of the trouble that is made for them is no news here. MYCOJOBS_SIM_TRACE has the
// errors among what it writes.
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <cstdlib>

#include "base/log.h"

namespace mycojobs {
namespace {

class QuietLog : public testing::Environment {
 public:
  void SetUp() override {
    init_log(LogLevel::error, LogFormat::text);
    if (std::getenv("MYCOJOBS_SIM_TRACE") == nullptr) spdlog::get("mycojobs")->set_level(spdlog::level::off);
  }
};
const auto* const kQuiet = testing::AddGlobalTestEnvironment(new QuietLog);

}  // namespace
}  // namespace mycojobs
