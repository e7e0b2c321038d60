// A way to one database of one Redis: over a socket (redis_connection.h), or into a server in this process
// (memory_server.h). The store knows only this.
//
// Errors: unavailable (refused, timed out, LOADING, OOM, MISCONF, READONLY, ...), denied (password, ACL), unsupported
// (older than 7.0; `databases` too small), invalid (a key holds another type), internal. Passwords are in none of them.
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

#include "metrics/metrics.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"
#include "store/scripts.h"
#include "traces/traces.h"

struct redisReply;

namespace mycojobs {

// A reply, or a part of one. Asking for what it is not answers empty, 0 or nil.
class Reply {
 public:
  explicit Reply(std::shared_ptr<const redisReply> reply) : reply_(std::move(reply)) {}
  bool nil() const;
  bool error() const;
  std::string_view text() const;  // also of an error
  std::uint64_t number() const;   // also of decimal text
  std::size_t size() const;
  Reply at(std::size_t index) const;
  Fields fields() const;  // name, value, name, value, ...

 private:
  std::shared_ptr<const redisReply> reply_;
};

// Arguments of a command. Texts must outlive it; numbers are kept.
class Arguments {
 public:
  Arguments() = default;
  Arguments(std::initializer_list<std::string_view> texts) : list_(texts.begin(), texts.end()) {}
  Arguments& add(std::string_view text);
  Arguments& add(std::uint64_t number);
  Arguments& add(const std::string& text) { return add(std::string_view(text)); }
  Arguments& add(std::string&& text);  // kept; of all others a view alone, so that they outlive the call
  Arguments& add(const char* text) { return add(std::string_view(text)); }
  Arguments& add_list(const Fields&);  // how many texts, then each name and value
  Arguments& add_list(Fields&&) = delete;
  std::span<const std::string_view> list() const { return list_; }

 private:
  std::vector<std::string_view> list_;
  std::vector<std::unique_ptr<std::string>> own_;
};

class Link {
 public:
  virtual ~Link() = default;
  // Connects if need be. extra_ms: how much longer than usual the server may take. An error reply becomes an Error.
  virtual Result<Reply> command(const Arguments&, std::uint32_t extra_ms = 0) = 0;
  // EVALSHA; EVAL if the server does not know the script.
  virtual Result<Reply> run(const Script&, const Arguments&) = 0;
  // run() in two halves, for who may not wait. begin() sends it and answers the descriptor that can be read once the
  // answer is there; nothing: that would take waiting (no connection stands, say), or has failed: run() it. finish()
  // waits for the answer: with the same script and arguments, before any other call.
  virtual std::optional<int> begin(const Script&, const Arguments&) { return std::nullopt; }
  virtual Result<Reply> finish(const Script& script, const Arguments& arguments) { return run(script, arguments); }
  virtual const std::string& server_run_id() const = 0;  // of the latest connection
  virtual bool has_led() const { return true; }          // to a database, once
};

// A way to a context's database; context 0: to the default server, for what belongs to no context.
using OpenLink = std::function<Result<std::unique_ptr<Link>>(Id context)>;

// How many bytes jobs may keep in a context's database: records, output and results (scripts/lib/kept.lua). 0: any
// number.
struct StoreQuota {
  std::uint64_t caller_bytes = 512ULL << 20;    // the jobs of one caller
  std::uint64_t context_bytes = 2048ULL << 20;  // all jobs
};

// Shared by the stores of one process: metrics, traces, and the quota that the stores enforce.
struct Observed {
  std::shared_ptr<Metrics> metrics = no_metrics();
  std::shared_ptr<Traces> traces = no_traces();
  StoreQuota quota = {};
};

// The connections of one store object, one to each context's database, opened when it is first asked for. One that has
// led nowhere is not kept. What each call takes is counted in the metrics.
class ContextLinks {
 protected:
  explicit ContextLinks(OpenLink open, Observed observed = {})
      : observed_(std::move(observed)), open_(std::move(open)) {}
  ~ContextLinks() = default;

  Result<Link*> link(Id context);
  Link* known_link(Id context);  // null: there is none yet
  // Of a context. Error invalid: context 0.
  Result<Reply> run(Id context, const Script&, const Arguments&);
  Result<Reply> command(Id context, const Arguments&, std::uint32_t extra_ms = 0);
  Metrics& metrics() const { return *observed_.metrics; }
  Traces& traces() const { return *observed_.traces; }
  // The two arguments of the scripts that enforce the quota.
  void add_quota(Arguments& to) const { to.add(observed_.quota.caller_bytes).add(observed_.quota.context_bytes); }

 private:
  Observed observed_;
  OpenLink open_;
  std::map<Id, std::unique_ptr<Link>> links_;
};

}  // namespace mycojobs
