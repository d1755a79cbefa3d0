//! The classes of system calls that strace(1) knows, such as `%file`.

use super::calls::Call;

/// Of those who take a path. The names of arguments tell the others.
const FILE: &str = "acct fsconfig getcwd name_to_handle_at umount2";
/// Of those who take or give a descriptor.
const DESC: &str = "\
    bpf creat epoll_create epoll_create1 eventfd eventfd2 fanotify_init fsopen inotify_init1 io_uring_setup \
    landlock_create_ruleset memfd_create memfd_secret mq_open open pidfd_open pselect6 select sendfile \
    timerfd_create userfaultfd";
/// Only a class of its own, although a descriptor is its argument.
const NOT_DESC: &str = "close_range";
const NETWORK: &str = "\
    accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg sendfile \
    sendmmsg sendmsg sendto setsockopt shutdown socket socketpair";
const PROCESS: &str = "\
    clone clone3 execve execveat exit exit_group fork kill pidfd_send_signal rt_sigqueueinfo rt_tgsigqueueinfo \
    tgkill tkill vfork wait4 waitid";
const SIGNAL: &str = "\
    io_uring_enter kill pause pidfd_send_signal rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo \
    rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sigaltstack signalfd signalfd4 tgkill tkill";
const MEMORY: &str = "\
    brk get_mempolicy io_destroy io_setup io_uring_register madvise map_shadow_stack mbind migrate_pages mincore \
    mlock mlock2 mlockall mmap move_pages mprotect mremap mseal msync munlock munlockall munmap pkey_mprotect \
    remap_file_pages set_mempolicy set_mempolicy_home_node shmat shmdt";
const IPC: &str = "msgctl msgget msgrcv msgsnd semctl semget semop semtimedop shmat shmctl shmdt shmget";
const CREDS: &str = "\
    capget capset getegid geteuid getgid getgroups getresgid getresuid getuid prctl setfsgid setfsuid setgid \
    setgroups setregid setresgid setresuid setreuid setuid";
const CLOCK: &str = "adjtimex clock_adjtime clock_getres clock_gettime clock_settime gettimeofday settimeofday time";
const PURE: &str = "getegid geteuid getgid getpgrp getpid getppid gettid getuid";

/// Whether a call is of the class. `None`: there is no such class.
pub fn has(class: &str, call: &Call) -> Option<bool> {
    let name = call.name.as_str();
    let is_of = |names: &str| names.split_whitespace().any(|one| one == name);
    Some(match class {
        "all" => true,
        "file" => call.takes_path() || is_of(FILE),
        "desc" => call.takes_descriptor() && !(is_of(NETWORK) || is_of(NOT_DESC)) || is_of(DESC),
        "net" | "network" => is_of(NETWORK),
        "process" => is_of(PROCESS),
        "signal" => is_of(SIGNAL),
        "memory" => is_of(MEMORY),
        "ipc" => is_of(IPC),
        "creds" => is_of(CREDS),
        "clock" => is_of(CLOCK),
        "pure" => is_of(PURE),
        "stat" => name == "stat",
        "lstat" => name == "lstat",
        "fstat" => is_of("fstat newfstatat statx"),
        "%stat" => is_of("stat lstat fstat newfstatat statx"),
        "statfs" => name == "statfs",
        "fstatfs" => name == "fstatfs",
        "%statfs" => is_of("statfs fstatfs ustat"),
        _ => return None,
    })
}
