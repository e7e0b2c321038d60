#include "base/thread.h"

#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <new>
#include <system_error>

#include "base/errno_text.h"
#include "base/shortage.h"

namespace mycojobs {
namespace {

std::atomic<int> shortages_for_tests{0};

tl::unexpected<Error> thread_error(int error) {
  const ResourceShortage* shortage = find_shortage(error);
  return fail(Code::unavailable,
              "no thread can be started: " + (shortage == nullptr ? errno_text(error) : describe_shortage(*shortage)));
}

}  // namespace

void name_this_thread(const std::string& name) {
  constexpr std::size_t kMaxNameBytes = 15;
  if (!name.empty()) ::pthread_setname_np(::pthread_self(), name.substr(0, kMaxNameBytes).c_str());
}

Result<std::thread> start_thread(std::function<void()> body, const std::string& name) {
  if (shortages_for_tests > 0) return thread_error(EAGAIN);
  try {
    return std::thread([body = std::move(body), name] {
      name_this_thread(name);
      body();
    });
  } catch (const std::system_error& error) {
    return thread_error(error.code().value());
  } catch (const std::bad_alloc&) {
    return thread_error(ENOMEM);
  }
}

SimulatedThreadShortage::SimulatedThreadShortage() { ++shortages_for_tests; }
SimulatedThreadShortage::~SimulatedThreadShortage() { --shortages_for_tests; }

}  // namespace mycojobs
