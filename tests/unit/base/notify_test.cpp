#include "base/service_manager.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "base/fd.h"
#include "support/process.h"

namespace mycojobs {
namespace {

// Opens the socket of a service manager at a path or an abstract name ("@...").
Fd listen_on(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, name.data(), name.size());
  if (name[0] == '@') address.sun_path[0] = '\0';
  Fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size), 0) << name;
  return socket;
}

std::string receive_text(const Fd& socket) {
  char text[4096];
  const ssize_t size = ::recv(socket.get(), text, sizeof text, 0);
  return size < 0 ? "" : std::string(text, static_cast<std::size_t>(size));
}

TEST(ServiceManager, ReceivesEachStateInOneDatagram) {
  const test::TempDir folder;
  for (const std::string& name : {folder / "notify", "@mycojobs-notify-" + std::to_string(::getpid())}) {
    const Fd socket = listen_on(name);
    const ServiceManager manager(name, "30000000", std::to_string(::getpid()));
    EXPECT_TRUE(manager.is_available());
    manager.notify_ready("runner 20");
    EXPECT_EQ(receive_text(socket), "READY=1\nSTATUS=runner 20");
    manager.notify_watchdog();
    EXPECT_EQ(receive_text(socket), "WATCHDOG=1");
    manager.notify_stopping();
    EXPECT_EQ(receive_text(socket), "STOPPING=1");
    EXPECT_EQ(receive_text(socket), "");
  }
}

TEST(ServiceManager, WatchesOnlyTheProcessThatItNames) {
  const std::string self = std::to_string(::getpid());
  EXPECT_EQ(ServiceManager("/run/x", "30000000", self).watchdog_interval_ms(), 15000U);
  EXPECT_EQ(ServiceManager("/run/x", "30000000", "").watchdog_interval_ms(), 15000U);
  EXPECT_EQ(ServiceManager("/run/x", "1", self).watchdog_interval_ms(), 1U);
  EXPECT_EQ(ServiceManager("/run/x", "30000000", "1").watchdog_interval_ms(), std::nullopt);
  EXPECT_EQ(ServiceManager("/run/x", "", "").watchdog_interval_ms(), std::nullopt);
  EXPECT_EQ(ServiceManager("", "30000000", self).watchdog_interval_ms(), std::nullopt);
  for (const char* invalid : {"0", "-1", "1s", "99999999999999999999999", " 5"}) {
    EXPECT_EQ(ServiceManager("/run/x", invalid, self).watchdog_interval_ms(), std::nullopt) << invalid;
  }
}

TEST(ServiceManager, InvalidAddressIsIgnored) {
  for (const std::string& invalid : {std::string("run/x"), std::string("vsock:2:1"), std::string("/"), std::string("@"),
                                     "/" + std::string(200, 'x')}) {
    const ServiceManager manager(invalid, "", "");
    EXPECT_FALSE(manager.is_available()) << invalid;
    manager.notify_ready("x");
  }
  ServiceManager("/nonexistent/socket", "", "").notify_stopping();  // Without a listener, the call has no effect.
}

// A service manager that does not read must not block the sender.
TEST(ServiceManager, FullSocketDropsMessages) {
  const test::TempDir folder;
  const Fd socket = listen_on(folder / "notify");
  const ServiceManager manager(folder / "notify", "", "");
  for (int i = 0; i < 2000; ++i) manager.notify_watchdog();
  EXPECT_EQ(receive_text(socket), "WATCHDOG=1");
}

}  // namespace
}  // namespace mycojobs
