#include "sandbox/egress/allow_list_checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mycojobs::egress {
namespace {

using ::testing::HasSubstr;

AllowListChecker make_checker(const std::vector<std::string>& entries) {
  auto parsed = parse_allow(entries);
  EXPECT_TRUE(parsed) << (parsed ? "" : parsed.error().message);
  return AllowListChecker(parsed ? *parsed : std::vector<AllowEntry>{});
}
HostPort parse_target(const std::string& text) {
  const auto parsed = parse_host_port(text);
  EXPECT_TRUE(parsed) << text;
  return parsed ? *parsed : HostPort{};
}
IpAddress make_ip(const std::string& text) {
  const auto parsed = parse_ip(text);
  EXPECT_TRUE(parsed) << text;
  return parsed.value_or(IpAddress{});
}
const std::vector<IpAddress>& list_own_addresses() {
  static const std::vector<IpAddress> kOwn = {make_ip("127.0.0.1"), make_ip("::1"), make_ip("8.1.2.3"),
                                              make_ip("2a00::7")};
  return kOwn;
}

TEST(Judge, ResolvesOnlyListedNames) {
  const AllowListChecker list =
      make_checker({"api.example.org:443", "*.example.net:*", "8.8.8.0/24:53", "[2a00::1]:443"});
  for (const char* text :
       {"api.example.org:443", "API.EXAMPLE.ORG:443", "x.example.net:1", "8.8.8.8:53", "[2a00::1]:443"}) {
    EXPECT_TRUE(list.check_request(parse_target(text))) << text;
  }
  for (const char* text : {"api.example.org:80", "example.org:443", "www.api.example.org:443", "example.net:1",
                           "8.8.9.8:53", "8.8.8.8:54", "[2a00::2]:443", "localhost:443", "[::ffff:8.8.8.8]:53"}) {
    const auto answer = list.check_request(parse_target(text));
    ASSERT_FALSE(answer) << text;
    EXPECT_EQ(answer.error().code, Code::denied);
    EXPECT_THAT(answer.error().message, HasSubstr("net = [")) << text;
  }
  EXPECT_FALSE(make_checker({}).check_request(parse_target("example.org:443")));
}

TEST(Judge, KnowsTheSpecialAddresses) {
  const std::pair<const char*, const char*> rows[] = {
      {"8.8.8.8", ""},
      {"9.255.255.255", ""},
      {"11.0.0.0", ""},
      {"172.15.255.255", ""},
      {"172.32.0.0", ""},
      {"100.63.255.255", ""},
      {"100.128.0.0", ""},
      {"169.253.255.255", ""},
      {"192.167.255.255", ""},
      {"223.255.255.255", ""},
      {"0.0.0.0", "this host"},
      {"0.1.2.3", "this host"},
      {"127.0.0.1", "loopback"},
      {"127.255.255.254", "loopback"},
      {"10.0.0.1", "private"},
      {"172.16.0.0", "private"},
      {"172.31.255.255", "private"},
      {"192.168.1.1", "private"},
      {"100.64.0.1", "shared by a carrier"},
      {"169.254.1.1", "link-local"},
      {"169.254.169.254", "cloud metadata"},
      {"169.254.170.2", "cloud metadata"},
      {"169.254.170.23", "cloud metadata"},
      {"100.100.100.200", "cloud metadata"},
      {"192.0.0.192", "cloud metadata"},
      {"168.63.129.16", "cloud metadata"},
      {"192.0.0.1", "reserved"},
      {"192.0.2.1", "for documentation"},
      {"192.88.99.1", "reserved"},
      {"198.18.0.1", "for benchmarks"},
      {"198.19.255.255", "for benchmarks"},
      {"198.51.100.1", "for documentation"},
      {"203.0.113.1", "for documentation"},
      {"224.0.0.1", "multicast"},
      {"239.255.255.250", "multicast"},
      {"240.0.0.1", "reserved"},
      {"255.255.255.255", "broadcast"},
      {"2a00::1", ""},
      {"2606:4700::1111", ""},
      {"::", "this host"},
      {"::1", "loopback"},
      {"fe80::1", "link-local"},
      {"febf::1", "link-local"},
      {"fec0::1", "site-local"},
      {"fc00::1", "private"},
      {"fd12::1", "private"},
      {"fd00:ec2::254", "cloud metadata"},
      {"fd00:ec2::23", "cloud metadata"},
      {"fd20:ce::254", "cloud metadata"},
      {"ff02::1", "multicast"},
      {"100::1", "discarded"},
      {"2001:db8::1", "for documentation"},
      {"3fff::1", "for documentation"},
      {"64:ff9b:1::1", "private (NAT64)"},
      {"4000::1", "reserved"},
      {"::ffff:127.0.0.1", "loopback (IPv4-mapped 127.0.0.1)"},
      {"::ffff:10.0.0.1", "private (IPv4-mapped 10.0.0.1)"},
      {"::ffff:169.254.169.254", "cloud metadata (IPv4-mapped 169.254.169.254)"},
      {"::ffff:8.8.8.8", "reserved"},
      {"::ffff:0:7f00:1", "loopback (IPv4-translated 127.0.0.1)"},
      {"::127.0.0.1", "loopback (IPv4-compatible 127.0.0.1)"},
      {"::8.8.8.8", "reserved"},
      {"64:ff9b::7f00:1", "loopback (NAT64 127.0.0.1)"},
      {"64:ff9b::a9fe:a9fe", "cloud metadata (NAT64 169.254.169.254)"},
      {"64:ff9b::808:808", ""},
      {"2002:7f00:1::1", "loopback (6to4 127.0.0.1)"},
      {"2002:a00:1::1", "private (6to4 10.0.0.1)"},
      {"2002:808:808::1", ""},
      {"2001:0:a00:1::808:808", "private (Teredo 10.0.0.1)"},
      {"2001:0:808:808::80ff:fffe", "loopback (Teredo 127.0.0.1)"},
      {"2001:0:808:808::f7f7:f7f7", ""},
      {"2a00::5efe:a00:1", "private (ISATAP 10.0.0.1)"},
      {"2a00::200:5efe:7f00:1", "loopback (ISATAP 127.0.0.1)"},
  };
  for (const auto& [text, kind] : rows) EXPECT_EQ(find_special_kind(make_ip(text)), kind) << text;
}

struct Row {
  const char* entries[2];
  const char* asked;
  const char* address;
  bool may;
};

TEST(Judge, SpecialAddressesAreOpenedOnlyByAddress) {
  const Row rows[] = {
      {{"a.example:443"}, "a.example:443", "8.8.8.8", true},
      {{"a.example:443"}, "a.example:443", "10.0.0.1", false},
      {{"a.example:443", "10.0.0.1:443"}, "a.example:443", "10.0.0.1", true},
      {{"a.example:443", "10.0.0.1:80"}, "a.example:443", "10.0.0.1", false},
      {{"a.example:443", "10.0.0.1:*"}, "a.example:443", "10.0.0.1", true},
      {{"a.example:443", "10.0.0.0/8:443"}, "a.example:443", "10.9.9.9", true},
      {{"a.example:443", "10.9.0.0/16:443"}, "a.example:443", "10.9.9.9", true},
      {{"a.example:443", "8.0.0.0/6:443"}, "a.example:443", "10.9.9.9", false},
      {{"a.example:443", "0.0.0.0/0:*"}, "a.example:443", "192.168.0.1", false},
      {{"a.example:443", "[::/0]:*"}, "a.example:443", "fd12::1", false},
      {{"a.example:443", "[fd00::/8]:*"}, "a.example:443", "fd12::1", true},
      {{"a.example:443", "[fc00::/7]:*"}, "a.example:443", "fd12::1", true},
      {{"169.254.0.0/16:80"}, "169.254.1.1:80", "169.254.1.1", true},
      {{"169.254.0.0/16:80"}, "169.254.169.254:80", "169.254.169.254", false},
      {{"169.254.169.254:80"}, "169.254.169.254:80", "169.254.169.254", true},
      {{"[fd00:ec2::/32]:80"}, "[fd00:ec2::254]:80", "fd00:ec2::254", false},
      {{"[fd00:ec2::254]:80"}, "[fd00:ec2::254]:80", "fd00:ec2::254", true},
      {{"127.0.0.0/8:80"}, "127.0.0.1:80", "127.0.0.1", false},
      {{"127.0.0.0/8:80"}, "127.0.0.2:80", "127.0.0.2", false},
      {{"127.0.0.1:80"}, "127.0.0.1:80", "127.0.0.1", true},
      {{"127.0.0.1:80"}, "127.0.0.1:80", "127.0.0.2", false},
      {{"0.0.0.0/8:80"}, "0.0.0.0:80", "0.0.0.0", false},
      {{"[::/96]:80"}, "[::1]:80", "::1", false},
      // Addresses of this host, although they look public.
      {{"8.1.0.0/16:80"}, "8.1.2.3:80", "8.1.2.3", false},
      {{"8.1.2.3:80"}, "8.1.2.3:80", "8.1.2.3", true},
      {{"a.example:80"}, "a.example:80", "2a00::7", false},
      {{"a.example:80"}, "a.example:80", "64:ff9b::801:203", false},
      {{"a.example:80"}, "a.example:80", "2002:801:203::1", false},
      {{"a.example:80"}, "a.example:80", "64:ff9b::801:204", true},
      // IPv4 addresses within IPv6: the entry must name the IPv6 form.
      {{"a.example:80", "10.0.0.1:80"}, "a.example:80", "::ffff:10.0.0.1", false},
      {{"a.example:80", "[::ffff:10.0.0.0/104]:80"}, "a.example:80", "::ffff:10.0.0.1", false},
      {{"a.example:80", "[::ffff:10.0.0.1]:80"}, "a.example:80", "::ffff:10.0.0.1", true},
      {{"a.example:80", "127.0.0.1:80"}, "a.example:80", "64:ff9b::7f00:1", false},
  };
  for (const auto& row : rows) {
    std::vector<std::string> entries{row.entries[0]};
    if (row.entries[1] != nullptr) entries.emplace_back(row.entries[1]);
    const AllowListChecker list = make_checker(entries);
    EXPECT_TRUE(list.check_request(parse_target(row.asked))) << row.asked;
    const auto answer = list.check_address(parse_target(row.asked), make_ip(row.address), list_own_addresses());
    EXPECT_EQ(answer.has_value(), row.may) << entries.front() << ' ' << entries.back() << " -> " << row.address;
    if (!answer) {
      EXPECT_EQ(answer.error().code, Code::denied);
    }
  }
}

TEST(Judge, NamesTheEntryThatWouldAllowIt) {
  const auto answer = make_checker({"a.example:80"})
                          .check_address(parse_target("a.example:80"), make_ip("10.0.0.1"), list_own_addresses());
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().message,
            "a.example:80 is 10.0.0.1, which is not public (private); to allow: net = [\"10.0.0.1:80\"] or its range");
  const auto metadata =
      make_checker({"169.254.0.0/16:80"})
          .check_address(parse_target("169.254.169.254:80"), make_ip("169.254.169.254"), list_own_addresses());
  ASSERT_FALSE(metadata);
  EXPECT_EQ(metadata.error().message,
            "169.254.169.254:80 is not public (cloud metadata); to allow: net = [\"169.254.169.254:80\"]");
}

}  // namespace
}  // namespace mycojobs::egress
