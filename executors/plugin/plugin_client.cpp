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
#include "security/profiles.h"
#include "text/plural.h"
#include "text/utf8.h"

namespace mycojobs::plugin {
namespace {

constexpr std::size_t kMaxLines = 20;  // maximum number of logged stderr lines per call
constexpr std::size_t kMaxLine = 500;
constexpr int kDeathMs = 500;  // wait for the exit of a host that closed its socket

tl::unexpected<Error> fault(const std::string& how) { return fail(Code::unavailable, how); }

// Duplicates the descriptor above the numbers that the host receives, so dup2(2) does not overwrite another source.
Result<Fd> moved_up(Fd fd) {
  Fd up(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 10));
  if (!up) return fail(Code::io, "descriptors: " + errno_text(errno));
  return up;
}

std::string word_of(PluginFrameKind kind) {
  return kind == PluginFrameKind::probe ? "probe" : kind == PluginFrameKind::prepare ? "prepare" : "interpret";
}

}  // namespace

Result<std::unique_ptr<HostProcess>> HostProcess::start(const std::string& program, int plugin, std::string label,
                                                        std::uint32_t limit_ms) {
  std::unique_ptr<HostProcess> made(new HostProcess(std::move(label)));
  HostProcess& host = *made;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return fail(Code::io, "socketpair: " + errno_text(errno));
  }
  host.socket_.reset(ends[0]);
  MJ_TRY(theirs, moved_up(Fd(ends[1])));
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail(Code::io, "pipe: " + errno_text(errno));
  host.stderr_.reset(ends[0]);
  MJ_TRY(its_stderr, moved_up(Fd(ends[1])));
  MJ_TRY(nothing, moved_up(Fd(::open("/dev/null", O_RDWR | O_CLOEXEC))));
  MJ_TRY(file, moved_up(Fd(::fcntl(plugin, F_DUPFD_CLOEXEC, 0))));
  // The host's end of the stderr pipe blocks, so no output is lost; this end is read without blocking.
  if (::fcntl(host.socket_.get(), F_SETFL, O_NONBLOCK) != 0 || ::fcntl(host.stderr_.get(), F_SETFL, O_NONBLOCK) != 0) {
    return fail(Code::io, "descriptors: " + errno_text(errno));
  }
  SpawnSpec spec;
  spec.program = program;
  spec.argv0 = kHostProgram;
  spec.descriptors = {{nothing.get(), STDIN_FILENO},
                      {nothing.get(), STDOUT_FILENO},
                      {its_stderr.get(), STDERR_FILENO},
                      {theirs.get(), kSocketFd},
                      {file.get(), kPluginFd}};
  MJ_TRY(child, spawn(spec));
  host.child_ = std::move(child);
  theirs.reset();
  its_stderr.reset();

  const std::string during = "loading it";
  host.limit_ms_ = limit_ms;
  host.deadline_boot_ms_ = SystemClock().boot_ms() + limit_ms;
  host.lines_left_ = kMaxLines;
  MJ_TRY(reply, host.receive_frame(0, during));
  host.log_stderr(true);
  if (reply.kind == PluginFrameKind::refused) return fail(Code::invalid, printable_line(reply.text));
  MJ_CHECK(host.take_description(reply.text));
  return made;
}

HostProcess::~HostProcess() {
  if (child_.pid < 0) return;
  ::kill(child_.pid, SIGKILL);
  wait_child(child_);
  read_stderr();
  log_stderr(true);
}

Result<PluginReply> HostProcess::call(PluginFrameKind kind, std::string_view text, std::uint32_t limit_ms) {
  const std::string during = word_of(kind);
  if (text.size() > kMaxRequestBytes) return fail(Code::too_large, "more than a plugin can get of a job");
  limit_ms_ = limit_ms;
  deadline_boot_ms_ = SystemClock().boot_ms() + limit_ms;
  lines_left_ = kMaxLines;
  lines_dropped_ = 0;
  char early = 0;
  const ssize_t unasked = ::recv(socket_.get(), &early, 1, MSG_PEEK | MSG_DONTWAIT);
  if (unasked > 0) return fault("it wrote before it was called (" + during + ")");
  if (unasked == 0) return died("between two calls");
  ++calls_;
  MJ_CHECK(send(header_bytes(kind, calls_, text.size()), during));
  MJ_CHECK(send(text, during));
  auto reply = receive_frame(calls_, during);
  read_stderr();
  log_stderr(true);
  return reply;
}

// Waits until the socket is ready for `events`. Reads the plugin's stderr in the meantime, so the plugin never blocks
// on it.
Result<void> HostProcess::wait(short events, const std::string& during) {
  for (;;) {
    const std::uint64_t now = SystemClock().boot_ms();
    if (now >= deadline_boot_ms_) {
      return fault("it did not answer within " + std::to_string(limit_ms_) + " ms (" + during + ")");
    }
    pollfd places[2] = {{socket_.get(), events, 0}, {stderr_.get(), POLLIN, 0}};
    if (::poll(places, 2, static_cast<int>(deadline_boot_ms_ - now)) < 0 && errno != EINTR) {
      return fail(Code::io, "poll: " + errno_text(errno));
    }
    if (places[1].revents != 0) read_stderr();
    if (places[0].revents != 0) return {};
  }
}

Result<void> HostProcess::send(std::string_view bytes, const std::string& during) {
  while (!bytes.empty()) {
    const ssize_t put = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put > 0) bytes.remove_prefix(static_cast<std::size_t>(put));
    if (put < 0 && errno == EAGAIN) MJ_CHECK(wait(POLLOUT, during));
    if (put < 0 && errno != EAGAIN && errno != EINTR) return died(during);
  }
  return {};
}

Result<void> HostProcess::receive(char* to, std::size_t size, const std::string& during) {
  while (size > 0) {
    const ssize_t got = ::recv(socket_.get(), to, size, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return died(during);
    if (got < 0 && errno == EAGAIN) MJ_CHECK(wait(POLLIN, during));
    if (got <= 0) continue;
    to += got;
    size -= static_cast<std::size_t>(got);
  }
  return {};
}

Result<PluginReply> HostProcess::receive_frame(std::uint32_t call, const std::string& during) {
  std::array<char, kHeaderBytes> bytes{};
  MJ_CHECK(receive(bytes.data(), bytes.size(), during));
  const PluginFrameHeader header = read_header(bytes.data());
  const auto kind = static_cast<PluginFrameKind>(header.kind);
  const bool greeting = kind == PluginFrameKind::loaded || kind == PluginFrameKind::refused;
  const bool known = greeting || (kind >= PluginFrameKind::answer && kind <= PluginFrameKind::too_large);
  if (header.call != call || !known || greeting != (call == 0) || header.size > kMaxReplyBytes) {
    return fault("it wrote invalid data to its host's socket (" + during + ")");
  }
  PluginReply reply{kind, std::string(header.size, '\0')};
  MJ_CHECK(receive(reply.text.data(), reply.text.size(), during));
  return reply;
}

// The host's end of the socket was closed: either the process has ended or the plugin closed the descriptor.
tl::unexpected<Error> HostProcess::died(const std::string& during) {
  pollfd end{child_.pidfd.get(), POLLIN, 0};
  const bool gone = ::poll(&end, 1, kDeathMs) > 0;
  if (!gone) ::kill(child_.pid, SIGKILL);
  const int code = wait_child(child_);
  read_stderr();
  log_stderr(true);
  if (!gone || code == kSocketEndedExit) return fault("it closed its host's socket (" + during + ")");
  if (code <= 128) return fault("it ended its host with exit code " + std::to_string(code) + " (" + during + ")");
  const char* name = ::sigabbrev_np(code - 128);
  return fault("it crashed: signal " + (name != nullptr ? "SIG" + std::string(name) : std::to_string(code - 128)) +
               " (" + during + ")");
}

Result<void> HostProcess::take_description(std::string_view payload) {
  std::vector<std::string> texts;
  while (!payload.empty()) {
    const auto end = std::min(payload.find('\0'), payload.size());
    texts.emplace_back(payload.substr(0, end));
    payload.remove_prefix(std::min(end + 1, payload.size()));
    if (texts.size() > 32) break;
  }
  if (texts.size() < 6 || texts.size() > 32) return fault("it wrote invalid data to its host's socket (loading it)");
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
    const ssize_t got = ::read(stderr_.get(), buffer.data(), buffer.size());
    if (got == 0) stderr_.reset();  // the plugin closed stderr; do not poll it any more
    if (got <= 0) return;
    written_.append(buffer.data(), static_cast<std::size_t>(got));
    log_stderr(false);
  }
}

// all: also logs an incomplete last line.
void HostProcess::log_stderr(bool all) {
  while (!written_.empty()) {
    const auto end = written_.find('\n');
    if (end == std::string::npos && !all && written_.size() <= kMaxLine) return;
    const std::size_t size = std::min({end, written_.size(), kMaxLine});
    if (lines_left_ > 0) {
      --lines_left_;
      log(LogLevel::info, "plugin", "{} writes: {}", label_, excerpt(written_.substr(0, size), kMaxLine));
    } else {
      ++lines_dropped_;
    }
    written_.erase(0, end == size ? size + 1 : size);
  }
  if (!all || lines_dropped_ == 0) return;
  log(LogLevel::info, "plugin", "{} writes: {} omitted", label_,
      count_with_noun(std::exchange(lines_dropped_, 0), "more line"));
}

namespace {

constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;

Result<void> check_owner(const std::string& what, const struct stat& about) {
  if (about.st_uid != 0 && about.st_uid != ::geteuid()) {
    return fail(Code::invalid,
                fmt::format("{}user {} owns it: chown it to root or to user {}", what, about.st_uid, ::geteuid()));
  }
  // In a sticky folder (/tmp), users cannot replace files of other users.
  const bool sticky = S_ISDIR(about.st_mode) && (about.st_mode & S_ISVTX) != 0;
  if ((about.st_mode & kOthersWrite) != 0 && !sticky) {
    return fail(Code::invalid,
                fmt::format("{}mode {:04o}: other users can write to it: chmod go-w", what, about.st_mode & 07777));
  }
  return {};
}

Result<void> check_folder(const std::string& path) {
  const auto slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  struct stat about {};
  if (::stat(folder.c_str(), &about) != 0) return fail(Code::io, folder + ": " + errno_text(errno));
  return check_owner("its folder " + folder + ": ", about);
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
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) return fail(Code::io, errno_text(errno));
  if (!S_ISREG(about.st_mode)) return fail(Code::invalid, kNotRegular);
  MJ_CHECK(check_owner("", about));
  MJ_CHECK(check_folder(path));
  if (::geteuid() == 0 && (about.st_mode & S_IROTH) == 0) {
    return fail(Code::invalid, fmt::format("mode {:04o}: it is loaded as user 65534, which cannot read it: chmod o+r",
                                           about.st_mode & 07777));
  }
  return file;
}

// Plugin names have the syntax of script types.
constexpr const char* kSpelling = " is not a valid name: use 1 to 32 of a-z, 0-9, '_' and '-', a letter first";

Result<void> check_description(const Description& about) {
  if (!is_script_type(about.name)) return fail(Code::invalid, "name: " + excerpt(about.name) + kSpelling);
  const bool printable =
      std::all_of(about.version.begin(), about.version.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (about.version.empty() || about.version.size() > 64 || !printable) {
    return fail(Code::invalid, "version: use 1 to 64 printable ASCII characters, for example 1.2.0");
  }
  for (auto type = about.script_types.begin(); type != about.script_types.end(); ++type) {
    if (!is_script_type(*type)) return fail(Code::invalid, "script_types: " + excerpt(*type) + kSpelling);
    if (std::find(about.script_types.begin(), type, *type) != type) {
      return fail(Code::invalid, "script_types: " + excerpt(*type) + " is listed twice");
    }
  }
  return {};
}

Result<Policy> profile_of(const Description& about) {
  const ParsedPolicy read = read_policy(about.profile, "profile");
  if (!read.ok()) return fail(Code::invalid, join(read.problems));
  return apply_request(mycojobs::profile("command"), read.request);
}

}  // namespace

Result<std::unique_ptr<PluginClient>> PluginClient::load(PluginOptions options, const Clock& clock) {
  std::unique_ptr<PluginClient> made(new PluginClient(std::move(options), clock));
  PluginClient& client = *made;
  MJ_TRY(opened, open_plugin_file(client.options_.file));
  client.opened_ = std::move(opened);
  MJ_TRY(host,
         HostProcess::start(client.options_.host, client.opened_.get(), client.options_.file, client.options_.load_ms));
  MJ_CHECK(check_description(host->description()));
  MJ_TRY(profile, profile_of(host->description()));
  client.description_ = host->description();
  client.profile_ = std::move(profile);
  client.lane({})->host = std::move(host);
  return made;
}

std::shared_ptr<PluginClient::UserState> PluginClient::lane(PluginUser user) {
  constexpr std::size_t kMaxStrands = 1000;
  const std::lock_guard lock(mutex_);
  auto& found = strands_[user];
  if (!found) {
    found = std::make_shared<UserState>();
    if (strands_.size() > kMaxStrands) forget_idle_strands();
  }
  return found;
}

// There may be any number of callers, so entries without host, use and pause are removed.
void PluginClient::forget_idle_strands() {
  const std::uint64_t now = clock_.boot_ms();
  std::erase_if(strands_, [now](const Lanes::value_type& each) {
    UserState& user_state = *each.second;
    if (each.second.use_count() > 1) return false;
    const std::unique_lock its(user_state.mutex, std::try_to_lock);
    return its && !user_state.host && user_state.rest.left_ms(now) == 0 && user_state.used_boot_ms > 0;
  });
}

bool PluginClient::has_faults(PluginUser user) {
  const std::lock_guard lock(mutex_);
  const auto found = strands_.find(user);
  return found != strands_.end() && found->second->has_faults;
}

tl::unexpected<Error> PluginClient::fault(UserState& user_state, const std::string& how, std::uint64_t began_boot_ms) {
  user_state.host.reset();
  const std::uint64_t now = clock_.boot_ms();
  user_state.rest.failed(now, now - std::min(began_boot_ms, now));
  user_state.last_fault = how;
  user_state.has_faults = true;
  log(LogLevel::warn, "plugin", "{}: {}; faults in a row: {}", description_.name, how, user_state.rest.faults());
  return fail(Code::unavailable, fmt::format("plugin {}: {}", description_.name, how));
}

std::string PluginClient::backoff_reason(const UserState& user_state) const {
  const std::uint64_t left = user_state.host || !options_.rests ? 0 : user_state.rest.left_ms(clock_.boot_ms());
  if (left == 0) return {};
  return fmt::format("plugin {}: it is paused for {} s more after {} faults in a row, the last: {}", description_.name,
                     (left + 999) / 1000, user_state.rest.faults(), user_state.last_fault);
}

std::string PluginClient::backoff_reason_for(PluginUser user) {
  if (!has_faults(user)) return {};
  const auto user_state = this->lane(user);
  const std::lock_guard lock(user_state->mutex);
  return backoff_reason(*user_state);
}

Result<void> PluginClient::ensure_host(UserState& user_state) {
  user_state.used_boot_ms = clock_.boot_ms();
  if (user_state.host) return {};
  if (std::string why = backoff_reason(user_state); !why.empty()) return fail(Code::unavailable, std::move(why));
  end_idle_hosts(user_state);
  const std::uint64_t began = clock_.boot_ms();
  auto host = HostProcess::start(options_.host, opened_.get(), options_.file, options_.load_ms);
  if (!host) return fault(user_state, host.error().message, began);
  if ((*host)->description() != description_)
    return fault(user_state, "its file was changed in place: start the agent again", began);
  user_state.host = std::move(*host);
  return {};
}

// Stops the least recently used idle hosts, so that one more can be started.
void PluginClient::end_idle_hosts(const UserState& but) {
  constexpr std::size_t kMaxHosts = 8;
  const std::lock_guard lock(mutex_);
  std::vector<UserState*> idle;
  for (auto& [user, each] : strands_) {
    if (each.get() != &but) idle.push_back(each.get());
  }
  std::sort(idle.begin(), idle.end(),
            [](const UserState* a, const UserState* b) { return a->used_boot_ms > b->used_boot_ms; });
  std::size_t hosts = 1;
  for (UserState* each : idle) {
    const std::unique_lock its(each->mutex, std::try_to_lock);
    if (!its || !each->host || ++hosts <= kMaxHosts) continue;
    each->host.reset();
  }
}

Result<std::string> PluginClient::ask(UserState& user_state, PluginFrameKind kind, std::string_view text,
                                      std::uint32_t limit_ms) {
  MJ_CHECK(ensure_host(user_state));
  const std::uint64_t began = clock_.boot_ms();
  auto reply = user_state.host->call(kind, text, limit_ms);
  if (!reply && reply.error().code == Code::too_large) return tl::unexpected(std::move(reply).error());
  if (!reply) return fault(user_state, reply.error().message, began);
  const char* function = kind == PluginFrameKind::probe     ? "probe"
                         : kind == PluginFrameKind::prepare ? "prepare"
                                                            : "interpret";
  switch (reply->kind) {
    case PluginFrameKind::answer:
      return std::move(reply->text);
    case PluginFrameKind::nothing:
      if (kind == PluginFrameKind::interpret) return "{}";
      return fault(user_state, fmt::format("it returned NULL from {}", function), began);
    case PluginFrameKind::threw:
      return fault(user_state, fmt::format("a C++ exception left {}", function), began);
    default:
      return fault(user_state, fmt::format("it returned more than {} bytes from {}", kMaxReplyBytes, function), began);
  }
}

// Finishes a call: resets the fault count if the reply was valid, otherwise counts a fault.
template <class T>
Result<T> PluginClient::parse_reply(UserState& user_state, Result<T> read, std::string_view function) {
  if (!read) {
    return fault(user_state,
                 fmt::format("it returned invalid data from {}: {}", function, printable_line(read.error().message)),
                 clock_.boot_ms());
  }
  user_state.rest.on_success();
  user_state.has_faults = false;
  return read;
}

Result<std::string> PluginClient::probe() {
  const auto user_state = this->lane({});
  const std::lock_guard lock(user_state->mutex);
  MJ_TRY(reply, ask(*user_state, PluginFrameKind::probe, {}, options_.probe_ms));
  MJ_TRY(probed, parse_reply(*user_state, read_probe(reply), "probe"));
  if (probed.refusal) return fail(Code::invalid, probed.refusal->error);
  return std::move(probed.runs);
}

Result<PrepareReply> PluginClient::prepare(PluginUser user, std::string_view job_json) {
  const auto user_state = this->lane(user);
  const std::lock_guard lock(user_state->mutex);
  MJ_TRY(reply, ask(*user_state, PluginFrameKind::prepare, job_json, options_.prepare_ms));
  MJ_TRY(prepared, parse_reply(*user_state, read_prepare(reply), "prepare"));
  if (const auto& refusal = prepared.refusal; refusal) {
    return fail(Code::invalid, refusal->field.empty() ? refusal->error : refusal->field + ": " + refusal->error);
  }
  return std::move(prepared);
}

Result<InterpretReply> PluginClient::interpret(PluginUser user, std::string_view outcome_json) {
  if (!description_.interprets) return InterpretReply();
  const auto user_state = this->lane(user);
  const std::lock_guard lock(user_state->mutex);
  MJ_TRY(reply, ask(*user_state, PluginFrameKind::interpret, outcome_json, options_.interpret_ms));
  return parse_reply(*user_state, read_interpret(reply), "interpret");
}

}  // namespace mycojobs::plugin
