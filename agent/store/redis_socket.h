// The bytes under a Redis connection: close-on-exec, never a SIGPIPE, each step with a deadline.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "mycojobs/result.h"
#include "store/redis_url.h"

namespace mycojobs {

using Deadline = std::chrono::steady_clock::time_point;
Deadline deadline_in(std::uint64_t ms);

// Tries each address of the host. Error: unavailable, naming the endpoint.
Result<Fd> connect_socket(const RedisEndpoint&, Deadline);
// Empty text: all was sent. The text says why not.
std::string send_all(int fd, std::string_view bytes, Deadline);
// What is there, at least a byte by the deadline: `got` of them. Empty text: so it is.
std::string receive_some(int fd, std::span<char> room, std::size_t& got, Deadline);

}  // namespace mycojobs
