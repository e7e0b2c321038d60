#include "net/networks.h"

#include <gtest/gtest.h>

namespace mycojobs {
namespace {

TEST(Networks, ContainTheirAddresses) {
  struct Row {
    std::vector<std::string> entries;
    const char* address;
    bool is_contained;
  };
  const Row rows[] = {{{"loopback"}, "127.8.9.1", true},
                      {{"loopback"}, "::1", true},
                      {{"loopback"}, "10.0.0.1", false},
                      {{"loopback"}, "::ffff:127.0.0.1", true},
                      {{"loopback"}, "::ffff:10.0.0.1", false},
                      {{"loopback"}, "169.254.169.254", false},
                      {{}, "127.0.0.1", false},
                      {{"10.1.0.0/16", "fd00::/8"}, "10.1.255.1", true},
                      {{"10.1.0.0/16"}, "10.2.0.1", false},
                      {{"fd00::/8"}, "fdab::1", true},
                      {{"192.0.2.7"}, "192.0.2.7", true},
                      {{"192.0.2.7"}, "192.0.2.8", false},
                      {{"any"}, "8.8.8.8", true},
                      {{"any"}, "2001:db8::1", true}};
  for (const Row& row : rows) {
    const auto networks = Networks::parse(row.entries);
    ASSERT_TRUE(networks);
    EXPECT_EQ(networks->contains(*parse_ip(row.address)), row.is_contained) << networks->text() << ' ' << row.address;
  }
}

TEST(Networks, RejectInvalidNetworks) {
  for (const char* invalid_entry :
       {"", "localhost", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/x", "::/129", "127.1", "10.0.0.0/8 "})
    EXPECT_FALSE(Networks::parse({invalid_entry})) << invalid_entry;
}

}  // namespace
}  // namespace mycojobs
