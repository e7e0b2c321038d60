// Plugins with one fault each, built once per fault with FAULT_<name> defined. All other code is correct. A function
// that fails only for some jobs searches its input for a word.
#include <fcntl.h>
#include <mycojobs/plugin.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace {

char* reply(const std::string& text) { return ::strdup(text.c_str()); }

[[maybe_unused]] bool has(const char* text, const char* word) { return std::strstr(text, word) != nullptr; }

const std::string kPrepared = R"({"command": ["/bin/cat", "{script}"]})";

struct AtLoad {
  AtLoad() {
#if defined(FAULT_load_crash)
    std::abort();
#elif defined(FAULT_load_exit)
    std::exit(0);
#elif defined(FAULT_load_hang)
    for (;;) ::pause();
#elif defined(FAULT_load_throw)
    throw std::runtime_error("from a constructor");
#endif
  }
};
const AtLoad kAtLoad;

[[maybe_unused]] char* probe() {
#if defined(FAULT_probe_refuses)
  return reply(R"({"error": "no /usr/bin/nothing: apt install nothing"})");
#elif defined(FAULT_probe_exit)
  std::exit(3);
#elif defined(FAULT_probe_null)
  return nullptr;
#elif defined(FAULT_attack)
  // Actions that a plugin must not be able to perform. The error names the actions that succeeded.
  std::string could;
  if (::fork() >= 0) could += "fork ";
  if (::socket(AF_INET, SOCK_STREAM, 0) >= 0) could += "socket ";
  if (::socket(AF_UNIX, SOCK_STREAM, 0) >= 0) could += "unix ";
  if (::open("/tmp/mycojobs-plugin-was-here", O_CREAT | O_WRONLY, 0600) >= 0) could += "write ";
  if (::open("/tmp", O_RDONLY) >= 0) could += "read ";
  if (::open(("/proc/" + std::to_string(::getppid()) + "/environ").c_str(), O_RDONLY) >= 0) could += "environ ";
  if (::kill(::getppid(), 0) == 0) could += "kill ";
  if (::execl("/bin/true", "true", nullptr) == 0) could += "exec ";
  if (::getuid() == 0 || ::setuid(0) == 0) could += "root ";
  if (environ != nullptr && *environ != nullptr) could += "environment ";
  for (int fd = 5; fd < 64; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) could += "descriptor" + std::to_string(fd) + " ";
  }
// sanitizers need more memory than a limit would leave
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  if (std::malloc(600U << 20) != nullptr) could += "memory ";
#endif
  return reply("{\"runs\": \"could: " + could + "\"}");
#else
  return reply(R"({"runs": "cat"})");
#endif
}

[[maybe_unused]] char* prepare([[maybe_unused]] const char* job) {
#if defined(FAULT_throws)
  throw std::runtime_error("out of a C function");
#elif defined(FAULT_sleeps)
  ::signal(SIGALRM, SIG_IGN);
  for (;;) ::pause();
#elif defined(FAULT_crashes)
  *static_cast<volatile char*>(nullptr) = 1;
#elif defined(FAULT_aborts)
  std::abort();
#elif defined(FAULT_exits)
  std::exit(7);
#elif defined(FAULT_floods)
  return reply("{\"command\": [\"/bin/cat\"], \"notes\": [\"" + std::string(5U << 20, 'x') + "\"]}");
#elif defined(FAULT_floods_socket)
  for (const std::string junk(65536, 'x');;) {
    if (::write(3, junk.data(), junk.size()) < 0) return nullptr;
  }
#elif defined(FAULT_speaks_early)
  (void)!::write(3, "x", 1);
#elif defined(FAULT_closes)
  ::close(3);
#elif defined(FAULT_deep)
  return reply(std::string(200000, '[') + std::string(200000, ']'));
#elif defined(FAULT_no_json)
  return reply("command: /bin/cat");
#elif defined(FAULT_no_utf8)
  return reply("{\"command\": [\"/bin/\xff\"]}");
#elif defined(FAULT_wrong_types)
  return reply(R"({"command": "/bin/cat {script}"})");
#elif defined(FAULT_unknown_name)
  return reply(R"({"command": ["/bin/cat"], "enviroment": {}})");
#elif defined(FAULT_null)
  return nullptr;
#elif defined(FAULT_forks)
  if (::fork() >= 0) return reply(R"({"error": "it could fork"})");
#elif defined(FAULT_stderr)
  for (int i = 0; i < 100000; ++i) std::fprintf(stderr, "line %d\n", i);
#elif defined(FAULT_sometimes)
  if (has(job, "crash")) std::abort();
  if (has(job, "never")) return reply(R"({"error": "this can never run", "field": "script"})");
#endif
  return reply(kPrepared);
}

[[maybe_unused]] char* interpret([[maybe_unused]] const char* outcome) {
#if defined(FAULT_interpret_sleeps)
  for (;;) ::pause();
#elif defined(FAULT_interpret_crashes)
  std::abort();
#elif defined(FAULT_interpret_lies)
  return reply(R"({"result": {"n": 1}})");
#elif defined(FAULT_sometimes)
  if (has(outcome, "\"signal\":0,\"status\":\"exit\""))
    return reply(R"({"error": {"type": "Exit", "message": "told by the plugin", "line": 3, "retry": false}})");
  return reply(R"({"result": {"told": "by the plugin"}})");
#endif
  return nullptr;
}

[[maybe_unused]] void release(char* text) {
#if defined(FAULT_release_throws)
  std::free(text);
  throw std::runtime_error("out of release");
#elif defined(FAULT_release_crashes)
  std::free(text);
  std::abort();
#else
  std::free(text);
#endif
}

#if defined(FAULT_no_types)
[[maybe_unused]] const char* const kTypes[] = {nullptr};
#elif defined(FAULT_bad_type)
[[maybe_unused]] const char* const kTypes[] = {"Bad Type", nullptr};
#elif defined(FAULT_taken_type)
[[maybe_unused]] const char* const kTypes[] = {"python", nullptr};
#elif defined(FAULT_same_type_twice)
[[maybe_unused]] const char* const kTypes[] = {"cat", "cat", nullptr};
#else
[[maybe_unused]] const char* const kTypes[] = {"cat", nullptr};
#endif

}  // namespace

#if defined(FAULT_no_symbol)
extern "C" MYCOJOBS_PLUGIN_EXPORT int another_symbol;
int another_symbol = 1;
#elif defined(FAULT_symbol_is_function)
extern "C" MYCOJOBS_PLUGIN_EXPORT void plugin_function() __asm__("mycojobs_plugin");
extern "C" void plugin_function() {}
#elif defined(FAULT_short_symbol)
extern "C" MYCOJOBS_PLUGIN_EXPORT const uint32_t plugin_words[2] __asm__("mycojobs_plugin");
extern "C" const uint32_t plugin_words[2] = {MYCOJOBS_PLUGIN_ABI, sizeof(struct mycojobs_plugin)};
#else
const struct mycojobs_plugin mycojobs_plugin = {
#if defined(FAULT_too_old)
    MYCOJOBS_PLUGIN_ABI - 1,
#elif defined(FAULT_too_new)
    MYCOJOBS_PLUGIN_ABI + 1,
#else
    MYCOJOBS_PLUGIN_ABI,
#endif
#if defined(FAULT_wrong_size)
    sizeof(struct mycojobs_plugin) - 8,
#else
    sizeof(struct mycojobs_plugin),
#endif
#if defined(FAULT_null_name)
    nullptr,
#elif defined(FAULT_taken_type)
    "other",
#elif defined(FAULT_bad_name)
    "cat; rm -rf /",
#elif defined(FAULT_wild_name)
    reinterpret_cast<const char*>(0x10),
#else
    "cat",
#endif
    "1.0",
    kTypes,
#if defined(FAULT_bad_profile)
    R"({"memory": "much"})",
#elif defined(FAULT_greedy_profile)
    R"({"memory": "512 GiB", "net": ["example.org:443"], "fs.write": ["/srv/data"]})",
#else
    nullptr,
#endif
#if defined(FAULT_null_function)
    nullptr,
#else
    probe,
#endif
    prepare,
    interpret,
    release};
#endif
