// mycojobs-egress is started by the launcher, with its socket as descriptor 3 and an empty environment.
//
// For tests: --hosts FILE and --name-servers ADDRESS:PORT (resolver.h), --header-ms N, --connect-ms N, --idle-ms N.
#include <fcntl.h>
#include <linux/close_range.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "base/uncaught_exception.h"
#include "sandbox/egress/confinement.h"
#include "sandbox/egress/proxy.h"

namespace {

using namespace mycojobs;

Result<std::uint64_t> parse_milliseconds(const std::string& name, const std::string& text) {
  std::uint64_t value = 0;
  for (char c : text) {
    if (c < '0' || c > '9' || value > 86400000) return fail(Code::invalid, name + ": milliseconds, up to a day");
    value = value * 10 + static_cast<std::uint64_t>(c - '0');
  }
  if (value == 0) return fail(Code::invalid, name + ": at least 1");
  return value;
}

Result<egress::Proxy::Options> parse_options(int argc, char** argv) {
  egress::Proxy::Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 >= argc) return fail(Code::invalid, name + ": its value is missing");
    const std::string value = argv[i + 1];
    if (name == "--hosts") {
      std::ifstream file(value);
      if (!file) return fail(Code::invalid, "--hosts: cannot read " + value);
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      MJ_TRY(hosts, egress::Resolver::parse_hosts(text));
      options.hosts = std::move(hosts);
      continue;
    }
    if (name == "--name-servers") {
      options.name_servers = value;
      continue;
    }
    std::uint64_t* timeout_ms = name == "--header-ms"    ? &options.timeouts.header_ms
                                : name == "--connect-ms" ? &options.timeouts.connect_ms
                                : name == "--idle-ms"    ? &options.timeouts.idle_ms
                                                         : nullptr;
    if (timeout_ms == nullptr) return fail(Code::invalid, "unknown option " + name);
    MJ_TRY(number, parse_milliseconds(name, value));
    *timeout_ms = number;
  }
  return options;
}

int report_error(const Error& error, int code) {
  std::fprintf(stderr, "%s: %s\n", egress::kEgressProgram, error.message.c_str());
  return code;
}

}  // namespace

int main(int argc, char** argv) try {
  if (::fcntl(egress::kLauncherSocket, F_GETFD) < 0) {
    std::fputs("mycojobs-egress is started by the launcher, with a socket as descriptor 3\n", stderr);
    return 64;
  }
  // Signals of a service manager are meant for the agent; this process ends when its socket is closed.
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(number, SIG_IGN);
  ::close_range(egress::kLauncherSocket + 1, ~0U, 0);
  auto options = parse_options(argc, argv);
  if (!options) return report_error(options.error(), 64);
  if (auto ready = egress::Resolver::start_library(); !ready) return report_error(ready.error(), 71);
  auto descriptors = egress::drop_privileges();
  if (!descriptors) return report_error(descriptors.error(), 71);
  options->descriptors = *descriptors;
  // Skips exit handlers of libraries: for example, a leak checker's tracer would be refused by the seccomp filter.
  ::_exit(egress::Proxy(Fd(egress::kLauncherSocket), std::move(*options)).run());
} catch (...) {
  mycojobs::exit_with_report("mycojobs-egress");
}
