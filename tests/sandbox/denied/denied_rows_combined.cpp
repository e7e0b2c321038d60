// Attempts that combine two rows of rows.txt or have no row, and attempts of jobs that may fork and exec.
#include "denied.h"

namespace mycojobs::test {

const std::vector<DeniedRow>& combined_rows() {
  static const std::vector<DeniedRow> kRows = {
      {"SZ5",
       "let_through prctl 6 8 10 14 24 26 28 31 33 35 37 43 45 47 50 54 55 57 58 59 61 62 63 65 67 69 70 "
       "71 72 73 74 75 77 78",
       {"none"},
       "let_through prctl 8 => 8 8 8"},
      {"SZ6",
       "let_through fcntl 8 10 11 15 17 1024 1025 1026 1029 1031 1035 1036 1037 1038 1039 1040",
       {"none"},
       "let_through fcntl 1025 => 1025 1025 1025"},
      {"SZ7",
       "calls_let_through cachestat fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue statmount "
       "listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal setxattrat removexattrat open_tree_attr "
       "file_setattr listns io_setup io_submit io_destroy io_getevents mbind set_mempolicy memfd_secret "
       "process_mrelease move_pages migrate_pages remap_file_pages "
       "set_mempolicy_home_node "
       "quotactl quotactl_fd vhangup nfsservctl ustat sched_setattr seccomp clock_adjtime",
       {"none"},
       "calls_let_through move_pages => move_pages=ok|move_pages=EINVAL|move_pages=EFAULT|move_pages=ENODEV"},
      {"SZ8",
       "whiteout /tmp",
       {"EINVAL", "EPERM", "EACCES", "opens: EACCES", "opens: ENXIO"},
       "whiteout ~ => opens: ENXIO|opens: EACCES|EPERM|EINVAL"},
      {"SZ9",
       "open_resolved /proc/1/root/etc/passwd 0",
       {"ENOSYS", "EACCES", "ENOENT", "EPERM"},
       "open_resolved /etc/passwd 0"},
      {"SZ9",
       "open_resolved /proc/self/root/../../root/.bashrc 0x10",
       {"ENOSYS", "EACCES", "ENOENT", "EXDEV", "ELOOP"},
       "open_resolved /etc/passwd 0"},
      {"SZ9", "open_resolved /etc/shadow 0x10", {"ENOSYS", "EACCES", "ENOENT"}, "open_resolved . 0x10"},
      {"SZ10", "reopen 0 2", {"EACCES", "EROFS", "ok"}},
      {"SZ10", "reopen 3 2", {"ENXIO", "EACCES"}, "open_read /proc/self/fd"},
      {"SZ11", "reuse_pids 200", {"EPERM"}, "reuse_pids 20"},
      {"SZ12", "map_two_faces", {"EPERM", "EACCES"}},
      {"SZ12", "map_executable /tmp/program", {"EPERM", "EACCES"}, "map_executable ~/program"},
      {"SZ13", "map_file /usr/bin/env 3", {"EACCES", "EPERM"}, "map_file /usr/bin/env 1"},
      {"SZ13",
       "write_through_mem /usr/bin/env",
       {"EIO", "EACCES", "mem: EACCES", "mem: EPERM", "mem: EROFS"},
       "write_through_mem /usr/bin/env => EIO|EACCES|EFAULT|mem: EROFS"},
      {"SZ14", "core_limit 0", {"kept"}, "=> ok|kept"},
      {"SZ14", "core_limit 0 0", {"kept"}, "=> ok|kept"},
      {"SZ14", "core_limit 1 0", {"kept", "EINVAL"}, "core_limit 0 0 => ok|kept"},
      {"SZ14", "call_on prlimit64 0 4 @ @", {"EPERM"}},  // The call requests the old limit.
      {"SZ14", "call_on prlimit64 1 4 @ 0", {"EPERM"}, "call_on prlimit64 0 4 @ 0"},
      {"SZ15", "file_into_pipe /etc/passwd", {"EINVAL", "EPERM"}},
      {"SZ16", "call 0xffffffff", {"EPERM", "ENOSYS"}, "=> ENOSYS"},
      {"SZ17", "landlock_layers 1", {"ok"}},
      {"SZ18", "vsyscall", {"ok", "EPERM", "no page"}, "vsyscall => ok|no page"},
      {"SZ19",
       "open_write /proc/self/coredump_filter",
       {"EROFS", "EACCES", "EPERM"},
       "open_read /proc/self/coredump_filter"},
      {"SZ19",
       "open_write /proc/self/clear_refs",
       {"EROFS", "EACCES", "EPERM", "ENOENT"},
       "open_read /proc/self/status"},
      {"SZ19",
       "open_write /proc/self/autogroup",
       {"EROFS", "EACCES", "EPERM", "ENOENT"},
       "open_read /proc/self/status"},
      {"SZ19",
       "open_write /proc/self/timens_offsets",
       {"EROFS", "EACCES", "EPERM", "ENOENT"},
       "open_read /proc/self/status"},
      {"SZ19", "open_write /proc/self/loginuid", {"EROFS", "EACCES", "EPERM", "ENOENT"}, "open_read /proc/self/status"},
      {"SZ19",
       "open_write /proc/self/attr/current",
       {"EROFS", "EACCES", "EPERM", "ENOENT", "EINVAL"},
       "open_read /proc/self/status"},
      {"SZ19", "open_write /proc/self/comm", {"EROFS", "EACCES", "EPERM"}, "open_read /proc/self/comm"},
      {"SZ20", "ioctl 0x40085203", {"EPERM"}, "=> ENOTTY"},  // RNDADDENTROPY
      {"SZ20", "ioctl 0x4004667f", {"EPERM"}, "=> ENOTTY|EINVAL|EFAULT"},
      {"SZ20", "ioctl 0x80086601", {"EPERM", "ENOTTY"}, "=> ENOTTY"},  // FS_IOC_GETFLAGS
      {"SZ20", "ioctl 0x40086602", {"EPERM", "ENOTTY"}, "=> ENOTTY"},  // FS_IOC_SETFLAGS
      {"SZ21",
       "search shadow .ssh docker.sock mycojobs.toml oldroot",
       {"none"},
       "search os-release => /etc/os-release"},
      {"SZ22",
       "calls_let_through bind connect listen accept accept4 sendmmsg",
       {"none"},
       "calls_let_through listen => listen=ENOTSOCK"},
      {"SZ23", "chmod_read /etc/passwd", {"EROFS", "EPERM", "EACCES"}, "open_read /etc/passwd"},
      {"SZ24", "call clone 0x100000000", {"EPERM"}, "fork"},  // clone() ignores the upper half.
      // In clone(), this bit (CLONE_NEWTIME) is part of the exit signal.
      {"SZ24", "call clone 0x80", {"EPERM"}, "fork"},
      {"SZ24", "call clone 0x1001ff", {"EPERM"}, "fork"},
      {"SZ25", "deep /tmp 2000", {"ok"}},
      {"SZ25", "posix_timers", {"EAGAIN"}, "lower_limit 11 10"},
      {"SZ26", "rights_to_channel 200", {"EPERM", "ok", "EAGAIN", "ETOOMANYREFS"}},
      {"SZ27", "nest_rights 100", {"EPERM", "ok", "ETOOMANYREFS", "EMFILE", "EAGAIN"}},
      {"SQ10", "eventfds", {"EMFILE"}, "fill_pair => EAGAIN"},
      {"SQ10", "timerfds", {"EMFILE"}, "fill_pair => EAGAIN"},
      {"SQ10", "memfds", {"EMFILE"}, "fill_pair => EAGAIN"},
      {"SQ11", "fill_pair", {"EAGAIN", "EMFILE"}, "=> EAGAIN"},
  };
  return kRows;
}

const std::vector<DeniedRow>& exec_rows() {
  static const std::vector<DeniedRow> kRows = {
      {"exec on", "run /bin/true", {"ok"}},
      {"exec on", "fork", {"ok"}},
      {"threads", "thread", {"ok"}},
      {"SK13", "pthread", {"ok"}},
      {"SK13", "clone3 0", {"ENOSYS"}},
      {"SZ11", "reuse_pids 200", {"ok"}},
      // An executed program is dumpable again. A core limit of 0 would start the host's crash helper for the program.
      {"SZ14", "core_limit_exec", {"kept"}, "core_limit_exec => ok|kept"},
      {"SZ28", "serve_again", {"left with 126", "left with 0", "left with 1"}, "=> left with 126"},
      {"SZ29", "shell echo -17 > /proc/self/oom_score_adj", {"1", "2"}, "shell true => 0"},
      {"SZ29", "shell echo 1 > /proc/self/coredump_filter", {"1", "2"}, "shell true => 0"},
      {"SZ29", "shell echo 0 > /proc/self/loginuid", {"1", "2"}, "shell true => 0"},
      {"SZ29", "shell exec 9</proc/1/root", {"1", "2"}, "shell exec 9</proc/self/root => 0"},
      {"SZ29", "shell exec 9</proc/1/fd", {"1", "2"}, "shell exec 9</proc/self/fd => 0"},
      {"SZ29", "shell cp /bin/true /usr/bin/x", {"1"}, "shell cp /bin/true ./x => 0"},
      {"SR1", "run /bin/su", {"EPERM", "ENOENT", "EACCES", "ok", "errno 1"}},
      {"SR2", "set_ids setuid other", {"EPERM"}, "set_ids setuid own"},
      {"SR2", "set_ids setuid own", {"ok"}},
      {"SP1", "flood_init 300", {"ok", "EAGAIN", "EPERM"}},
      {"SP9", "orphans 200", {"ok"}},
      {"SK8", "seccomp_allow 0", {"EPERM"}},
      {"SN5", "socket 2 1", {"EAFNOSUPPORT"}},
      {"w^x", "map_wx", {"EPERM", "EACCES"}},
  };
  return kRows;
}

}  // namespace mycojobs::test
