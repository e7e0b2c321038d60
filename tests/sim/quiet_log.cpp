// Suppresses the log of agents and coordinators about injected faults. MYCOJOBS_SIM_TRACE prints these errors with its
// other output.
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
