#include "executors/plugin/plugin_client.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <vector>

#include "base/clock.h"
#include "base/errno_text.h"
#include "base/log.h"
#include "executors/plugin/plugin_json.h"
#include "model/policy_json.h"
#include "security/ceilings.h"
#include "security/profiles.h"
#include "text/plural.h"
#include "text/utf8.h"

namespace mycojobs::plugin {
namespace {

constexpr std::size_t kMaxLines = 20;  // maximum number of logged stderr lines per call
constexpr std::size_t kMaxLine = 500;
constexpr int kExitTimeoutMs = 500;  // wait for the exit of a host that closed its socket

tl::unexpected<Error> plugin_fault(const std::string& problem) { return fail(Code::unavailable, problem); }

// Duplicates the descriptor above the numbers that the host receives, so dup2(2) does not overwrite another source.
Result<Fd> move_above_host_descriptors(Fd fd) {
  Fd duplicate(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 10));
  if (!duplicate) return fail(Code::io, "descriptors: " + errno_text(errno));
  return duplicate;
}

const char* get_function_name(PluginFrameKind kind) {
  return kind == PluginFrameKind::probe ? "probe" : kind == PluginFrameKind::prepare ? "prepare" : "interpret";
}

}  // namespace

Result<std::unique_ptr<HostProcess>> HostProcess::start(const std::string& program, int plugin_fd, std::string label,
                                                        std::uint32_t limit_ms) {
  std::unique_ptr<HostProcess> process(new HostProcess(std::move(label)));
  HostProcess& host = *process;
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    return fail(Code::io, "socketpair: " + errno_text(errno));
  }
  host.socket_.reset(pair[0]);
  MJ_TRY(host_socket, move_above_host_descriptors(Fd(pair[1])));
  if (::pipe2(pair, O_CLOEXEC) != 0) return fail(Code::io, "pipe: " + errno_text(errno));
  host.stderr_.reset(pair[0]);
  MJ_TRY(host_stderr, move_above_host_descriptors(Fd(pair[1])));
  MJ_TRY(dev_null, move_above_host_descriptors(Fd(::open("/dev/null", O_RDWR | O_CLOEXEC))));
  MJ_TRY(file, move_above_host_descriptors(Fd(::fcntl(plugin_fd, F_DUPFD_CLOEXEC, 0))));
  // The host's end of the stderr pipe blocks, so no output is lost; this end is read without blocking.
  if (::fcntl(host.socket_.get(), F_SETFL, O_NONBLOCK) != 0 || ::fcntl(host.stderr_.get(), F_SETFL, O_NONBLOCK) != 0) {
    return fail(Code::io, "descriptors: " + errno_text(errno));
  }
  SpawnSpec spec;
  spec.program = program;
  spec.argv0 = kHostProgram;
  spec.inherited_descriptors = {{dev_null.get(), STDIN_FILENO},
                                {dev_null.get(), STDOUT_FILENO},
                                {host_stderr.get(), STDERR_FILENO},
                                {host_socket.get(), kSocketFd},
                                {file.get(), kPluginFd}};
  MJ_TRY(child, spawn(spec));
  host.child_ = std::move(child);
  host_socket.reset();
  host_stderr.reset();

  const std::string phase = "loading it";
  host.limit_ms_ = limit_ms;
  host.deadline_boot_ms_ = SystemClock().boot_ms() + limit_ms;
  host.remaining_lines_ = kMaxLines;
  MJ_TRY(reply, host.receive_frame(0, phase));
  host.log_stderr(true);
  if (reply.kind == PluginFrameKind::refused) return fail(Code::invalid, printable_line(reply.text));
  MJ_CHECK(host.parse_description(reply.text));
  return process;
}

HostProcess::~HostProcess() {
  if (child_.pid < 0) return;
  ::kill(child_.pid, SIGKILL);
  wait_child(child_);
  read_stderr();
  log_stderr(true);
}

Result<PluginReply> HostProcess::call(PluginFrameKind kind, std::string_view text, std::uint32_t limit_ms) {
  const std::string phase = get_function_name(kind);
  if (text.size() > kMaxRequestBytes) return fail(Code::too_large, "more than a plugin can get of a job");
  limit_ms_ = limit_ms;
  deadline_boot_ms_ = SystemClock().boot_ms() + limit_ms;
  remaining_lines_ = kMaxLines;
  dropped_lines_ = 0;
  char unexpected_byte = 0;
  const ssize_t received = ::recv(socket_.get(), &unexpected_byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (received > 0) return plugin_fault("it wrote before it was called (" + phase + ")");
  if (received == 0) return make_exit_error("between two calls");
  ++call_count_;
  MJ_CHECK(send(header_bytes(kind, call_count_, text.size()), phase));
  MJ_CHECK(send(text, phase));
  auto reply = receive_frame(call_count_, phase);
  read_stderr();
  log_stderr(true);
  return reply;
}

// Waits until the socket is ready for `events`. Reads the plugin's stderr in the meantime, so the plugin never blocks
// on it.
Result<void> HostProcess::wait_for_socket(short events, const std::string& phase) {
  for (;;) {
    const std::uint64_t now = SystemClock().boot_ms();
    if (now >= deadline_boot_ms_) {
      return plugin_fault("it did not answer within " + std::to_string(limit_ms_) + " ms (" + phase + ")");
    }
    pollfd descriptors[2] = {{socket_.get(), events, 0}, {stderr_.get(), POLLIN, 0}};
    if (::poll(descriptors, 2, static_cast<int>(deadline_boot_ms_ - now)) < 0 && errno != EINTR) {
      return fail(Code::io, "poll: " + errno_text(errno));
    }
    if (descriptors[1].revents != 0) read_stderr();
    if (descriptors[0].revents != 0) return {};
  }
}

Result<void> HostProcess::send(std::string_view bytes, const std::string& phase) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
    if (sent < 0 && errno == EAGAIN) MJ_CHECK(wait_for_socket(POLLOUT, phase));
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return make_exit_error(phase);
  }
  return {};
}

Result<void> HostProcess::receive(char* buffer, std::size_t size, const std::string& phase) {
  while (size > 0) {
    const ssize_t count = ::recv(socket_.get(), buffer, size, 0);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return make_exit_error(phase);
    if (count < 0 && errno == EAGAIN) MJ_CHECK(wait_for_socket(POLLIN, phase));
    if (count <= 0) continue;
    buffer += count;
    size -= static_cast<std::size_t>(count);
  }
  return {};
}

Result<PluginReply> HostProcess::receive_frame(std::uint32_t call, const std::string& phase) {
  std::array<char, kHeaderBytes> bytes{};
  MJ_CHECK(receive(bytes.data(), bytes.size(), phase));
  const PluginFrameHeader header = read_header(bytes.data());
  const auto kind = static_cast<PluginFrameKind>(header.kind);
  const bool is_greeting = kind == PluginFrameKind::loaded || kind == PluginFrameKind::refused;
  const bool is_valid_kind = is_greeting || (kind >= PluginFrameKind::answer && kind <= PluginFrameKind::too_large);
  if (header.call != call || !is_valid_kind || is_greeting != (call == 0) || header.size > kMaxReplyBytes) {
    return plugin_fault("it wrote invalid data to its host's socket (" + phase + ")");
  }
  PluginReply reply{kind, std::string(header.size, '\0')};
  MJ_CHECK(receive(reply.text.data(), reply.text.size(), phase));
  return reply;
}

// The host's end of the socket was closed: either the process has ended or the plugin closed the descriptor.
tl::unexpected<Error> HostProcess::make_exit_error(const std::string& phase) {
  pollfd exit_event{child_.pidfd.get(), POLLIN, 0};
  const bool has_exited = ::poll(&exit_event, 1, kExitTimeoutMs) > 0;
  if (!has_exited) ::kill(child_.pid, SIGKILL);
  const int code = wait_child(child_);
  read_stderr();
  log_stderr(true);
  if (!has_exited || code == kSocketEndedExit) return plugin_fault("it closed its host's socket (" + phase + ")");
  if (code <= 128) return plugin_fault("it ended its host with exit code " + std::to_string(code) + " (" + phase + ")");
  const char* name = ::sigabbrev_np(code - 128);
  return plugin_fault("it crashed: signal " +
                      (name != nullptr ? "SIG" + std::string(name) : std::to_string(code - 128)) + " (" + phase + ")");
}

Result<void> HostProcess::parse_description(std::string_view payload) {
  std::vector<std::string> texts;
  while (!payload.empty()) {
    const auto end = std::min(payload.find('\0'), payload.size());
    texts.emplace_back(payload.substr(0, end));
    payload.remove_prefix(std::min(end + 1, payload.size()));
    if (texts.size() > 32) break;
  }
  if (texts.size() < 6 || texts.size() > 32)
    return plugin_fault("it wrote invalid data to its host's socket (loading it)");
  description_.abi = texts[0] == std::to_string(MYCOJOBS_PLUGIN_ABI) ? MYCOJOBS_PLUGIN_ABI : 0;
  description_.interprets = texts[1] == "1";
  description_.name = texts[2];
  description_.version = texts[3];
  description_.profile = texts[4];
  description_.script_types.assign(texts.begin() + 5, texts.end());
  return {};
}

void HostProcess::read_stderr() {
  std::array<char, 4096> buffer;
  // Bounded, so that the deadline applies to a plugin that writes faster than this loop reads.
  for (int round = 0; round < 64; ++round) {
    const ssize_t count = ::read(stderr_.get(), buffer.data(), buffer.size());
    if (count == 0) stderr_.reset();  // the plugin closed stderr; do not poll it any more
    if (count <= 0) return;
    stderr_text_.append(buffer.data(), static_cast<std::size_t>(count));
    log_stderr(false);
  }
}

// include_incomplete: also logs an incomplete last line.
void HostProcess::log_stderr(bool include_incomplete) {
  while (!stderr_text_.empty()) {
    const auto end = stderr_text_.find('\n');
    if (end == std::string::npos && !include_incomplete && stderr_text_.size() <= kMaxLine) return;
    const std::size_t size = std::min({end, stderr_text_.size(), kMaxLine});
    if (remaining_lines_ > 0) {
      --remaining_lines_;
      log(LogLevel::info, "plugin", "{} writes: {}", label_, excerpt(stderr_text_.substr(0, size), kMaxLine));
    } else {
      ++dropped_lines_;
    }
    stderr_text_.erase(0, end == size ? size + 1 : size);
  }
  if (!include_incomplete || dropped_lines_ == 0) return;
  log(LogLevel::info, "plugin", "{} writes: {} omitted", label_,
      count_with_noun(std::exchange(dropped_lines_, 0), "more line"));
}

namespace {

constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;

Result<void> check_owner(const std::string& subject, const struct stat& status) {
  if (status.st_uid != 0 && status.st_uid != ::geteuid()) {
    return fail(Code::invalid,
                fmt::format("{}user {} owns it: chown it to root or to user {}", subject, status.st_uid, ::geteuid()));
  }
  // In a sticky folder (/tmp), users cannot replace files of other users.
  const bool sticky = S_ISDIR(status.st_mode) && (status.st_mode & S_ISVTX) != 0;
  if ((status.st_mode & kOthersWrite) != 0 && !sticky) {
    return fail(Code::invalid,
                fmt::format("{}mode {:04o}: other users can write to it: chmod go-w", subject, status.st_mode & 07777));
  }
  return {};
}

Result<void> check_folder(const std::string& path) {
  const auto slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) return fail(Code::io, folder + ": " + errno_text(errno));
  return check_owner("its folder " + folder + ": ", status);
}

// Opens the plugin's file for reading. A plugin decides which programs run in jobs, so only root or the agent's user
// may own the file and its folder, and no other user may have write permission. An agent that runs as root loads
// plugins as user 65534, so the file must be readable for others. Errors: invalid, with the remedy; not_found; io.
Result<Fd> open_plugin_file(const std::string& path) {
  constexpr const char* kNotRegular = "it is not a regular file: put the plugin itself there";
  // Refuses symbolic links, and does not block on a FIFO.
  Fd file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file && (errno == ELOOP || errno == ENXIO)) return fail(Code::invalid, kNotRegular);
  if (!file) return fail(errno == ENOENT ? Code::not_found : Code::io, errno_text(errno));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return fail(Code::io, errno_text(errno));
  if (!S_ISREG(status.st_mode)) return fail(Code::invalid, kNotRegular);
  MJ_CHECK(check_owner("", status));
  MJ_CHECK(check_folder(path));
  if (::geteuid() == 0 && (status.st_mode & S_IROTH) == 0) {
    return fail(Code::invalid, fmt::format("mode {:04o}: it is loaded as user 65534, which cannot read it: chmod o+r",
                                           status.st_mode & 07777));
  }
  return file;
}

// Plugin names have the syntax of script types.
constexpr const char* kNameRule = " is not a valid name: use 1 to 32 of a-z, 0-9, '_' and '-', a letter first";

Result<void> check_description(const PluginDescription& description) {
  if (!is_script_type(description.name)) return fail(Code::invalid, "name: " + excerpt(description.name) + kNameRule);
  const bool is_printable =
      std::all_of(description.version.begin(), description.version.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (description.version.empty() || description.version.size() > 64 || !is_printable) {
    return fail(Code::invalid, "version: use 1 to 64 printable ASCII characters, for example 1.2.0");
  }
  for (auto type = description.script_types.begin(); type != description.script_types.end(); ++type) {
    if (!is_script_type(*type)) return fail(Code::invalid, "script_types: " + excerpt(*type) + kNameRule);
    if (std::find(description.script_types.begin(), type, *type) != type) {
      return fail(Code::invalid, "script_types: " + excerpt(*type) + " is listed twice");
    }
  }
  return {};
}

Result<Policy> parse_profile(const PluginDescription& description) {
  const ParsedPolicy parsed = read_policy(description.profile, "profile");
  if (!parsed.ok()) return fail(Code::invalid, join(parsed.problems));
  return apply_request(mycojobs::profile("command"), parsed.request);
}

}  // namespace

Result<std::unique_ptr<PluginClient>> PluginClient::load(PluginOptions options, const Clock& clock) {
  std::unique_ptr<PluginClient> loaded(new PluginClient(std::move(options), clock));
  PluginClient& client = *loaded;
  MJ_TRY(plugin_fd, open_plugin_file(client.options_.file));
  client.plugin_fd_ = std::move(plugin_fd);
  MJ_TRY(host, HostProcess::start(client.options_.host, client.plugin_fd_.get(), client.options_.file,
                                  client.options_.load_timeout_ms));
  MJ_CHECK(check_description(host->description()));
  MJ_TRY(profile, parse_profile(host->description()));
  client.description_ = host->description();
  client.profile_ = std::move(profile);
  client.get_user_state({})->host = std::move(host);
  return loaded;
}

std::shared_ptr<PluginClient::UserState> PluginClient::get_user_state(PluginUser user) {
  constexpr std::size_t kMaxUsers = 1000;
  const std::lock_guard lock(mutex_);
  auto& state = user_states_[user];
  if (!state) {
    state = std::make_shared<UserState>();
    if (user_states_.size() > kMaxUsers) remove_idle_users();
  }
  return state;
}

// There may be any number of callers, so entries without host, use and pause are removed.
void PluginClient::remove_idle_users() {
  const std::uint64_t now = clock_.boot_ms();
  std::erase_if(user_states_, [now](const UserStates::value_type& entry) {
    UserState& user_state = *entry.second;
    if (entry.second.use_count() > 1) return false;
    const std::unique_lock lock(user_state.mutex, std::try_to_lock);
    return lock && !user_state.host && user_state.backoff.remaining_ms(now) == 0 && user_state.used_boot_ms > 0;
  });
}

bool PluginClient::has_faults(PluginUser user) {
  const std::lock_guard lock(mutex_);
  const auto state = user_states_.find(user);
  return state != user_states_.end() && state->second->has_faults;
}

tl::unexpected<Error> PluginClient::record_fault(UserState& user_state, const std::string& problem,
                                                 std::uint64_t start_boot_ms) {
  user_state.host.reset();
  const std::uint64_t now = clock_.boot_ms();
  user_state.backoff.on_failed(now, now - std::min(start_boot_ms, now));
  user_state.last_fault = problem;
  user_state.has_faults = true;
  log(LogLevel::warn, "plugin", "{}: {}; faults in a row: {}", description_.name, problem, user_state.backoff.faults());
  return fail(Code::unavailable, fmt::format("plugin {}: {}", description_.name, problem));
}

std::string PluginClient::describe_backoff(const UserState& user_state) const {
  const std::uint64_t remaining_ms =
      user_state.host || !options_.pauses_after_faults ? 0 : user_state.backoff.remaining_ms(clock_.boot_ms());
  if (remaining_ms == 0) return {};
  return fmt::format("plugin {}: it is paused for {} s more after {} faults in a row, the last: {}", description_.name,
                     (remaining_ms + 999) / 1000, user_state.backoff.faults(), user_state.last_fault);
}

std::string PluginClient::get_backoff_reason(PluginUser user) {
  if (!has_faults(user)) return {};
  const auto user_state = get_user_state(user);
  const std::lock_guard lock(user_state->mutex);
  return describe_backoff(*user_state);
}

Result<void> PluginClient::ensure_host(UserState& user_state) {
  user_state.used_boot_ms = clock_.boot_ms();
  if (user_state.host) return {};
  if (std::string reason = describe_backoff(user_state); !reason.empty())
    return fail(Code::unavailable, std::move(reason));
  stop_idle_hosts(user_state);
  const std::uint64_t start_ms = clock_.boot_ms();
  auto host = HostProcess::start(options_.host, plugin_fd_.get(), options_.file, options_.load_timeout_ms);
  if (!host) return record_fault(user_state, host.error().message, start_ms);
  if ((*host)->description() != description_)
    return record_fault(user_state, "its file was changed in place: start the agent again", start_ms);
  user_state.host = std::move(*host);
  return {};
}

// Stops the least recently used idle hosts, so that another host can be started.
void PluginClient::stop_idle_hosts(const UserState& active) {
  constexpr std::size_t kMaxHosts = 8;
  const std::lock_guard lock(mutex_);
  std::vector<UserState*> idle;
  for (auto& [user, state] : user_states_) {
    if (state.get() != &active) idle.push_back(state.get());
  }
  std::sort(idle.begin(), idle.end(),
            [](const UserState* a, const UserState* b) { return a->used_boot_ms > b->used_boot_ms; });
  std::size_t hosts = 1;
  for (UserState* state : idle) {
    const std::unique_lock state_lock(state->mutex, std::try_to_lock);
    if (!state_lock || !state->host || ++hosts <= kMaxHosts) continue;
    state->host.reset();
  }
}

Result<std::string> PluginClient::call_host(UserState& user_state, PluginFrameKind kind, std::string_view text,
                                            std::uint32_t limit_ms) {
  MJ_CHECK(ensure_host(user_state));
  const std::uint64_t start_ms = clock_.boot_ms();
  auto reply = user_state.host->call(kind, text, limit_ms);
  if (!reply && reply.error().code == Code::too_large) return tl::unexpected(std::move(reply).error());
  if (!reply) return record_fault(user_state, reply.error().message, start_ms);
  const char* function = get_function_name(kind);
  switch (reply->kind) {
    case PluginFrameKind::answer:
      return std::move(reply->text);
    case PluginFrameKind::nothing:
      if (kind == PluginFrameKind::interpret) return "{}";
      return record_fault(user_state, fmt::format("it returned NULL from {}", function), start_ms);
    case PluginFrameKind::threw:
      return record_fault(user_state, fmt::format("a C++ exception left {}", function), start_ms);
    default:
      return record_fault(user_state, fmt::format("it returned more than {} bytes from {}", kMaxReplyBytes, function),
                          start_ms);
  }
}

// Finishes a call: resets the fault count if the reply was valid, otherwise counts a fault.
template <class T>
Result<T> PluginClient::parse_reply(UserState& user_state, Result<T> parsed, PluginFrameKind kind) {
  if (!parsed) {
    return record_fault(user_state,
                        fmt::format("it returned invalid data from {}: {}", get_function_name(kind),
                                    printable_line(parsed.error().message)),
                        clock_.boot_ms());
  }
  user_state.backoff.on_success();
  user_state.has_faults = false;
  return parsed;
}

Result<std::string> PluginClient::probe() {
  const auto user_state = get_user_state({});
  const std::lock_guard lock(user_state->mutex);
  MJ_TRY(reply, call_host(*user_state, PluginFrameKind::probe, {}, options_.probe_timeout_ms));
  MJ_TRY(probed, parse_reply(*user_state, parse_probe_reply(reply), PluginFrameKind::probe));
  if (probed.refusal) return fail(Code::invalid, probed.refusal->reason);
  return std::move(probed.program);
}

Result<PrepareReply> PluginClient::prepare(PluginUser user, std::string_view job_json) {
  const auto user_state = get_user_state(user);
  const std::lock_guard lock(user_state->mutex);
  MJ_TRY(reply, call_host(*user_state, PluginFrameKind::prepare, job_json, options_.prepare_timeout_ms));
  MJ_TRY(prepared, parse_reply(*user_state, parse_prepare_reply(reply), PluginFrameKind::prepare));
  if (const auto& refusal = prepared.refusal; refusal) {
    return fail(Code::invalid, refusal->field.empty() ? refusal->reason : refusal->field + ": " + refusal->reason);
  }
  return std::move(prepared);
}

Result<InterpretReply> PluginClient::interpret(PluginUser user, std::string_view outcome_json) {
  if (!description_.interprets) return InterpretReply();
  const auto user_state = get_user_state(user);
  const std::lock_guard lock(user_state->mutex);
  MJ_TRY(reply, call_host(*user_state, PluginFrameKind::interpret, outcome_json, options_.interpret_timeout_ms));
  return parse_reply(*user_state, parse_interpret_reply(reply), PluginFrameKind::interpret);
}

}  // namespace mycojobs::plugin
