#include "base/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/fd.h"
#include "base/log.h"

namespace mycojobs {
namespace {

std::string read_variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::optional<std::uint64_t> parse_number(const std::string& text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

// Source: sd_watchdog_enabled(3). The interval is valid for one process only, not for its children.
std::optional<std::uint64_t> parse_watchdog_interval_ms(const std::string& usec, const std::string& pid) {
  if (usec.empty()) return {};
  const auto interval_us = parse_number(usec);
  if (!interval_us || *interval_us == 0) {
    log(LogLevel::warn, "worker",
        "WATCHDOG_USEC is \"{}\", no number of microseconds: the watchdog gets no sign of life", usec);
    return {};
  }
  if (!pid.empty() && parse_number(pid) != static_cast<std::uint64_t>(::getpid())) return {};
  return std::max<std::uint64_t>(*interval_us / 2000, 1);
}

}  // namespace

ServiceManager::ServiceManager(std::string notify_socket, const std::string& watchdog_usec,
                               const std::string& watchdog_pid)
    : socket_(std::move(notify_socket)) {
  const bool is_address = socket_.starts_with('/') || socket_.starts_with('@');
  if (!socket_.empty() && (!is_address || socket_.size() < 2 || socket_.size() >= sizeof(sockaddr_un::sun_path))) {
    log(LogLevel::warn, "worker", "NOTIFY_SOCKET is \"{}\", neither a path nor an abstract name: not used", socket_);
    socket_.clear();
  }
  if (is_available()) watchdog_interval_ms_ = parse_watchdog_interval_ms(watchdog_usec, watchdog_pid);
}

ServiceManager ServiceManager::from_environment() {
  return {read_variable("NOTIFY_SOCKET"), read_variable("WATCHDOG_USEC"), read_variable("WATCHDOG_PID")};
}

void ServiceManager::notify_ready(std::string_view status) const { send("READY=1\nSTATUS=" + std::string(status)); }
void ServiceManager::notify_stopping() const { send("STOPPING=1"); }
void ServiceManager::notify_watchdog() const { send("WATCHDOG=1"); }
void ServiceManager::notify_status(std::string_view text) const { send("STATUS=" + std::string(text)); }

void ServiceManager::send(const std::string& state) const {
  if (!is_available()) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  if (socket_[0] == '@') address.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
  const Fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // The manager itself reports the effect of a lost datagram: a start or a watchdog that times out.
  if (socket)
    (void)!::sendto(socket.get(), state.data(), state.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
                    reinterpret_cast<const sockaddr*>(&address), size);
}

bool is_managed_credential(const std::string& path) {
  const char* const folder = std::getenv("CREDENTIALS_DIRECTORY");
  std::error_code error;  // a folder that does not exist is not the folder of the file
  return folder != nullptr && std::filesystem::equivalent(std::filesystem::path(path).parent_path(), folder, error);
}

}  // namespace mycojobs
