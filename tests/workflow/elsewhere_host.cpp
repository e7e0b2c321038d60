// Replaces mycojobs-workflowhost and starts it as if on another machine: with another environment, locale and time
// zone, another processor (the C library's variants for a processor without AVX and FMA), other limits, ids and
// addresses.
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

int main(int, char** argv) {
  ::personality(ADDR_NO_RANDOMIZE | ADDR_COMPAT_LAYOUT);
  const rlimit stack{rlim_t{2} << 20, rlim_t{2} << 20};
  ::setrlimit(RLIMIT_STACK, &stack);
  ::umask(0777);
  (void)!::chdir("/");
  if (::geteuid() == 0) {  // otherwise the user is already unprivileged
    (void)!::setresgid(65532, 65532, 65532);
    (void)!::setresuid(65532, 65532, 65532);
  }
  const std::string here = argv[0], host = here.substr(0, here.rfind('/') + 1) + "mycojobs-workflowhost";
  argv[0] = const_cast<char*>("another name");
  const char* const environment[] = {"LC_ALL=tr_TR.UTF-8",
                                     "LANG=tr_TR.UTF-8",
                                     "TZ=Pacific/Chatham",
                                     "HOME=/nowhere",
                                     "LUA_INIT=x = 1",
                                     "GLIBC_TUNABLES=glibc.malloc.perturb=165:glibc.cpu.hwcaps=-AVX,-AVX2,-FMA,-FMA4,-"
                                     "BMI1,-BMI2,-ERMS,-SSE4_1,-SSE4_2,-SSSE3,-AVX512F",
                                     nullptr};
  ::execve(host.c_str(), argv, const_cast<char**>(environment));
  return 127;
}
