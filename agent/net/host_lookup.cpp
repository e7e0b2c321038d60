#include "net/host_lookup.h"

#include <netdb.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/thread.h"

namespace mycojobs {
namespace {

using Addresses = Result<std::vector<SocketAddress>>;

Addresses call_getaddrinfo(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* first = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &first);
  if (error != 0) return fail(error == EAI_AGAIN ? Code::unavailable : Code::not_found, ::gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(first, ::freeaddrinfo);
  std::vector<SocketAddress> out;
  for (const addrinfo* entry = first; entry != nullptr; entry = entry->ai_next) {
    SocketAddress& address = out.emplace_back();
    address.size = std::min<socklen_t>(entry->ai_addrlen, sizeof address.storage);
    std::memcpy(&address.storage, entry->ai_addr, address.size);
  }
  return out;
}

// The lookups that have not ended. The object is never destroyed, since a thread may use it while the process exits.
struct PendingLookups {
  std::mutex mutex;
  std::condition_variable changed;
  using Lookup = std::shared_ptr<std::optional<Addresses>>;  // empty until the lookup has ended
  std::map<std::pair<std::string, std::uint16_t>, Lookup> lookups;
  NameLookup test_lookup;
};
PendingLookups& pending_lookups() {
  static auto* const lookups = new PendingLookups;
  return *lookups;
}

// Starts the lookup of a name unless one is pending. REQUIRES: the caller holds the mutex.
Result<PendingLookups::Lookup> start_lookup(PendingLookups& pending, const std::string& host, std::uint16_t port) {
  const std::pair key(host, port);
  if (const auto entry = pending.lookups.find(key); entry != pending.lookups.end()) return entry->second;
  auto lookup = std::make_shared<std::optional<Addresses>>();
  NameLookup run = pending.test_lookup ? pending.test_lookup : [](const std::string& name, std::uint16_t number) {
    return call_getaddrinfo(name, number, 0);
  };
  MJ_TRY(thread, start_thread(
                     [&pending, key, lookup, run = std::move(run)] {
                       Addresses addresses = run(key.first, key.second);
                       const std::lock_guard lock(pending.mutex);
                       *lookup = std::move(addresses);
                       pending.lookups.erase(key);
                       pending.changed.notify_all();
                     },
                     "resolver"));
  thread.detach();
  pending.lookups.emplace(key, lookup);
  return lookup;
}

}  // namespace

Result<std::vector<SocketAddress>> resolve_host(const std::string& host, std::uint16_t port, Deadline deadline) {
  if (auto addresses = call_getaddrinfo(host, port, AI_NUMERICHOST); addresses) return addresses;
  PendingLookups& pending = pending_lookups();
  std::unique_lock lock(pending.mutex);
  MJ_TRY(lookup, start_lookup(pending, host, port));
  if (!pending.changed.wait_until(lock, deadline, [&] { return lookup->has_value(); }))
    return fail(Code::unavailable, "the host name was not resolved in time");
  return **lookup;
}

void set_name_lookup_for_test(NameLookup lookup) {
  const std::lock_guard lock(pending_lookups().mutex);
  pending_lookups().test_lookup = std::move(lookup);
}

}  // namespace mycojobs
