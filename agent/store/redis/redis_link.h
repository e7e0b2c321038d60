// Access to one database of one Redis server: through a connection of its own (redis_connection.h) or of a pool
// (redis_pool.h), or to the imitation of Redis in this process (tests/support/redis/memory_server.h). The stores use
// Redis through this interface only.
//
// Thread-safety: a Link and a ContextLinks are each used by one thread.
//
// Errors: unavailable (refused, timed out, LOADING, OOM, MISCONF, READONLY, ...), denied (password, ACL), unsupported
// (older than 7.0; `databases` too small), invalid (a key holds another type), internal. No message contains a
// password.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "model/records.h"
#include "net/tls.h"
#include "store/lua_scripts.h"
#include "telemetry/metrics.h"
#include "telemetry/traces.h"

struct redisReply;

namespace mycojobs {

// A reply of Redis, or a part of it. An accessor for another type of reply returns an empty text, 0 or a nil reply.
// Copies and parts share the memory of the whole reply, and a returned view is valid as long as one of them exists.
class Reply {
 public:
  explicit Reply(std::shared_ptr<const redisReply> reply) : reply_(std::move(reply)) {}
  bool is_nil() const;
  bool is_error() const;
  std::string_view text() const;  // a string, a status or the text of an error
  std::uint64_t number() const;   // an integer or a decimal string; a negative integer is 0
  std::size_t size() const;
  Reply at(std::size_t index) const;
  Fields fields() const;  // name, value, name, value, ...

 private:
  std::shared_ptr<const redisReply> reply_;
};

// Arguments of a command. A text is stored as a view and must outlive the object; a number or an rvalue string is
// copied.
class Arguments {
 public:
  Arguments() = default;
  Arguments(std::initializer_list<std::string_view> texts) : list_(texts.begin(), texts.end()) {}
  Arguments& add(std::string_view text);
  Arguments& add(std::uint64_t number);
  Arguments& add(const std::string& text) { return add(std::string_view(text)); }
  Arguments& add(std::string&& text);  // stores the string itself
  Arguments& add(const char* text) { return add(std::string_view(text)); }
  Arguments& add_list(const Fields&);  // adds the number of texts, then each name and value
  Arguments& add_list(Fields&&) = delete;
  std::span<const std::string_view> list() const { return list_; }

 private:
  std::vector<std::string_view> list_;
  std::vector<std::unique_ptr<std::string>> owned_;
};

class Link {
 public:
  virtual ~Link() = default;
  // Executes a command; connects first if necessary. extra_ms is added to the time-out, for a command that blocks. An
  // error reply is returned as an Error.
  virtual Result<Reply> command(const Arguments&, std::uint32_t extra_ms = 0) = 0;
  // Executes two commands on one connection. Returns the reply of the second, or the first error. extra_ms is added to
  // the time-out of the second.
  virtual Result<Reply> command_pair(const Arguments& first, const Arguments& second, std::uint32_t extra_ms) {
    if (auto reply = command(first); !reply) return reply;
    return command(second, extra_ms);
  }
  // Runs a script with EVALSHA, or with EVAL if the server does not have the script yet.
  virtual Result<Reply> run(const Script&, const Arguments&) = 0;
  // run() in two halves, for callers that must not block. begin() sends the request and returns the descriptor that
  // becomes readable with the reply (with TLS rarely before it), or nullopt if sending would block (for example without
  // a connection) or has failed; then call run(). finish() waits for the reply. It must be called with the same script
  // and arguments, before any other call.
  virtual std::optional<int> begin(const Script&, const Arguments&) { return std::nullopt; }
  virtual Result<Reply> finish(const Script& script, const Arguments& arguments) { return run(script, arguments); }
  virtual const std::string& server_run_id() const = 0;  // run_id of the server of the latest call
  // Returns true if a call has reached its database at least once.
  virtual bool has_been_connected() const { return true; }
  virtual std::optional<TlsState> tls_state() const { return std::nullopt; }  // set while connected with TLS
};

// Creates a link to the database of a context. Context 0 stands for database 0 of the default server, which has the
// records without a context.
using OpenLink = std::function<Result<std::unique_ptr<Link>>(Id context)>;

// Maximum number of bytes that jobs may store in a context's database: records, output and results
// (store/scripts/lib/stored_usage.lua). 0 means no limit.
struct StoreQuota {
  std::uint64_t caller_bytes = 512ULL << 20;    // for the jobs of one caller
  std::uint64_t context_bytes = 2048ULL << 20;  // for all jobs of the context
};

// Shared by all stores of a process: metrics, traces, and the quota that the stores enforce.
struct StoreInstrumentation {
  std::shared_ptr<Metrics> metrics = no_metrics();
  std::shared_ptr<Traces> traces = no_traces();
  StoreQuota quota = {};
};

// The links of one store, one for each context. A link is created at its first use. A link that was never connected is
// dropped when another link is created, so that requests for contexts that do not exist do not accumulate links. The
// duration of each call is recorded in the metrics.
class ContextLinks {
 public:
  explicit ContextLinks(OpenLink open, StoreInstrumentation instrumentation = {})
      : instrumentation_(std::move(instrumentation)), open_(std::move(open)) {}
  virtual ~ContextLinks() = default;

  Result<Link*> link(Id context);
  Link* find_link(Id context);  // returns null if link() has not created the link yet
  // Link::run() and Link::command() on the link of a context. Error invalid: context 0.
  Result<Reply> run(Id context, const Script&, const Arguments&);
  Result<Reply> command(Id context, const Arguments&, std::uint32_t extra_ms = 0);
  Result<Reply> command_pair(Id context, const Arguments& first, const Arguments& second, std::uint32_t extra_ms);
  Metrics& metrics() const { return *instrumentation_.metrics; }
  Traces& traces() const { return *instrumentation_.traces; }
  // Adds the two quota arguments, which a script reads with read_quota().
  void add_quota(Arguments& arguments) const {
    arguments.add(instrumentation_.quota.caller_bytes).add(instrumentation_.quota.context_bytes);
  }

 private:
  StoreInstrumentation instrumentation_;
  OpenLink open_;
  std::map<Id, std::unique_ptr<Link>> links_;
};

}  // namespace mycojobs
