//! `perfweave trace` beside strace(1): the same calls have the same text.

mod program;

use perfweave_support::runs;
use program::{perfweave, python, run, traced};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A folder of its own for a test.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("perfweave-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A C program.
fn built(folder: &Path, source: &str) -> Option<PathBuf> {
    // make and others start a test with open descriptors. The program closes them, so that its own begin with 3.
    const ITS_OWN: &str = "int close(int);
        __attribute__((constructor)) static void begin(void) { for (int f = 3; f < 256; f++) close(f); }";
    runs(&["cc", "--version"], "a C compiler")?;
    let program = folder.join("program");
    let ran =
        run(Command::new("cc").args(["-w", "-O1", "-xc", "-", "-o"]).arg(&program), &format!("{source}\n{ITS_OWN}\n"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    Some(program)
}

/// A line without what a clock says: seconds since 1970 or since the machine began, what is left of a time-out, and CPU
/// time.
fn without_times(line: &str) -> String {
    const TIME: &str = "{tv_sec=";
    let (mut text, mut rest) = (String::new(), line);
    while let Some(at) = rest.find(TIME) {
        let (before, time) = rest.split_at(at);
        let (time, after) = time.split_at(time.find('}').map_or(time.len(), |end| end + 1));
        let seconds = time[TIME.len()..].split(|digit: char| !digit.is_ascii_digit()).next().unwrap();
        let is_clock = seconds.len() > 3 || ["left ", "ru_utime=", "ru_stime="].iter().any(|of| before.ends_with(of));
        text.push_str(before);
        text.push_str(if is_clock { "TIME" } else { time });
        // The date.
        let date = after.strip_prefix(" /* ").filter(|_| is_clock).and_then(|date| date.split_once(" */"));
        rest = date.map_or(after, |(_, after)| after);
    }
    text + rest
}

/// Words of a line in which numbers of threads and inodes, addresses, times, random bytes and how much memory and disk
/// is free are the same for all runs.
fn normal(line: &str, threads: &BTreeMap<String, usize>) -> String {
    let line = without_times(line);
    let line = line.as_str();
    if line.starts_with("getrandom(") {
        return line.split('"').enumerate().map(|(n, part)| if n == 1 { "RANDOM" } else { part }).collect();
    }
    let is_machine = ["sysinfo(", "statfs(", "fstatfs("].iter().any(|call| line.starts_with(call));
    // The parent of the command is the tracer.
    let is_tracer = line.starts_with("getppid() = ");
    let mut text = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(|letter: char| letter.is_ascii_alphanumeric()) {
        let (before, word) = rest.split_at(at);
        let end = word.find(|letter: char| !letter.is_ascii_alphanumeric()).unwrap_or(word.len());
        let (word, after) = word.split_at(end);
        text.push_str(before);
        let is_inode = text.ends_with("pipe:[") || text.ends_with("socket:[");
        match threads.get(word) {
            _ if is_inode => text.push_str("INODE"),
            _ if is_machine && word.bytes().all(|byte| byte.is_ascii_digit()) => text.push('N'),
            Some(number) => text.push_str(&format!("THREAD{number}")),
            None if is_tracer && word != "getppid" => text.push_str("TRACER"),
            None if word.starts_with("0x") && word.len() >= 8 => text.push_str("ADDRESS"),
            None => text.push_str(word),
        }
        rest = after;
    }
    text + rest
}

/// How often there is each line. `lines`: numbers of threads, and what they do.
fn counted(lines: &[(String, String)]) -> BTreeMap<String, usize> {
    let mut threads = BTreeMap::new();
    for (thread, _) in lines {
        let next = threads.len();
        threads.entry(thread.clone()).or_insert(next);
    }
    let mut counted = BTreeMap::new();
    for (_, line) in lines {
        *counted.entry(normal(line, &threads)).or_default() += 1;
    }
    counted
}

/// What strace prints of a command, with the parts of a call in one line.
fn theirs(file: &Path, words: &[String]) -> BTreeMap<String, usize> {
    let mut strace = Command::new("strace");
    // Both have a pipe for errors, and no folders of cargo's in which libraries are looked for.
    strace
        .env_remove("LD_LIBRARY_PATH")
        .args(["-f", "-o"])
        .arg(file)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    strace.output().unwrap();
    let text = String::from_utf8_lossy(&std::fs::read(file).unwrap()).into_owned();
    let (mut lines, mut begun) = (Vec::new(), BTreeMap::new());
    for line in text.lines() {
        let (thread, line) = line.split_once(' ').unwrap();
        let line = line.trim_start();
        if let Some(begin) = line.strip_suffix(" <unfinished ...>") {
            begun.insert(thread.to_owned(), begin.to_owned());
            continue;
        }
        let end = line.strip_prefix("<... ").and_then(|line| Some(line.split_once(" resumed>")?.1));
        let whole = end.map_or_else(|| line.to_owned(), |end| begun.remove(thread).unwrap_or_default() + end);
        // Results stand below each other.
        let whole = match whole.rsplit_once(" = ") {
            Some((call, result)) => format!("{} = {result}", call.trim_end()),
            None => whole,
        };
        lines.push((thread.to_owned(), whole));
    }
    lines.extend(begun.into_iter().map(|(thread, call)| (thread, call + ") = ?")));
    counted(&lines)
}

/// What perfweave prints of it.
fn ours(file: &Path, words: &[String]) -> BTreeMap<String, usize> {
    let mut traces = perfweave();
    traces
        .env_remove("LD_LIBRARY_PATH")
        .args(["trace", "-f", "-o"])
        .arg(file)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let said = traces.stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("nothing is missing"), "{words:?} {said}");
    let text = String::from_utf8_lossy(&std::fs::read(file).unwrap()).into_owned();
    let line = |line: &str| {
        let (head, line) = line.split_once("] ")?;
        let (name, call) = line.split_once('/').and_then(|(_, line)| line.split_once(' '))?;
        assert!(head.contains('['), "{line}");
        // How long it took.
        let call = call.rsplit_once(" <").map_or(call, |(call, _)| call);
        Some((name.to_owned(), call.to_owned()))
    };
    counted(&text.lines().filter_map(line).collect::<Vec<_>>())
}

/// A server with a thread for each client.
const SERVER: &str = r#"
import socket, socketserver, threading
class Echo(socketserver.BaseRequestHandler):
    def handle(self): self.request.sendall(self.request.recv(99))
with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
    threading.Thread(target=server.serve_forever, args=(0.01,)).start()
    for n in range(3):
        with socket.create_connection(server.server_address) as c: c.sendall(b"x"); c.recv(9)
    server.shutdown()
"#;

/// The files that the commands of `programs.txt` find, as they were not touched.
fn prepared(folder: &Path) {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder.join("folder")).unwrap();
    std::fs::create_dir(folder.join("empty")).unwrap();
    std::os::unix::fs::symlink("text", folder.join("link")).unwrap();
    for (name, text) in [
        ("text", "a line\nanother line\nthe last line\n"),
        ("folder/one", "one\n"),
        ("folder/two", "two line\n"),
        ("pairs", "a b\nb c\n"),
        ("Makefile", "all: copied\ncopied: text\n\tcp text copied\n"),
        ("main.c", "int main(void) { return 0; }\n"),
        ("server.py", SERVER),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let script = "git init -q repository && cd repository && echo a > file && git add file && \
        GIT_AUTHOR_DATE=2000-01-01T00:00:00Z GIT_COMMITTER_DATE=2000-01-01T00:00:00Z \
        git -c user.name=a -c user.email=a@b commit -qm first";
    run(Command::new("sh").args(["-c", script]).current_dir(folder), "");
}

/// The words of a line of `programs.txt`.
fn words(line: &str, folder: &Path, python: &str) -> Vec<String> {
    let (mut words, mut is_quoted) = (vec![String::new()], false);
    for letter in line.chars() {
        match letter {
            '\'' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(String::new()),
            letter => words.last_mut().unwrap().push(letter),
        }
    }
    let place = folder.to_str().unwrap();
    words.iter().map(|word| if word == "PYTHON" { python.into() } else { word.replace("HERE", place) }).collect()
}

/// The commands of `programs.txt` under both. `PERFWEAVE_PROGRAMS=1` runs more of them, `PERFWEAVE_PROGRAMS=held-out`
/// those that nobody has mended for. What differs, in the order of how much it is:
///
/// - random bytes, names and ports, what files say of times and processes, and the machine's processes: of any two runs
/// - how long things take, which strace changes: who waits for a futex, at which call a SIGCHLD comes, and how often a
///   program looks for its child
/// - SIGCHLD of a process that ignores it: the kernel delivers it to nobody, but to a tracer like strace
/// - messages of netlink(7), directories of more than 8 KiB, NUMA policies and priorities of I/O: not decoded
/// - a program of 32 bits (ldd asks one): its calls have other numbers
#[test]
fn the_same_calls_have_the_same_text() {
    let Some(()) = runs(&["strace", "--version"], "Debian's package strace") else { return };
    let Some(python) = python() else { return };
    let Some(_) = traced(&["trace", "true"]) else { return };
    let asked = std::env::var("PERFWEAVE_PROGRAMS").unwrap_or_default();
    let lists: Vec<_> = include_str!("programs.txt").split("\n**\n").collect();
    let lines: Vec<_> = match asked.as_str() {
        "" => lists[0].lines().collect(),
        "held-out" => lists[2].lines().collect(),
        _ => lists[..2].iter().flat_map(|list| list.lines()).collect(),
    };
    let (folder, files) = (folder("same"), folder("files"));
    let file = folder.join("trace");
    let (mut all, mut equal, mut differ) = (0, 0, Vec::new());
    for line in lines.into_iter().filter(|line| !line.starts_with('#')) {
        let words = words(line, &files, &python);
        let program = words.iter().find(|word| !word.starts_with('-')).unwrap();
        let has_it = Command::new("sh").args(["-c", "command -v \"$0\"", program]).stdout(Stdio::null()).status();
        if !has_it.unwrap().success() {
            println!("{program} is not installed: skipped");
            continue;
        }
        let both = [theirs, ours].map(|run| {
            prepared(&files);
            run(&file, &words)
        });
        let [theirs, ours] = &both;
        let same: usize = ours.iter().map(|(line, count)| *count.min(theirs.get(line).unwrap_or(&0))).sum();
        let most = theirs.values().sum::<usize>().max(ours.values().sum());
        (all, equal) = (all + most, equal + same);
        println!("{:5.1} % of {most:5} lines: {line}", 100.0 * same as f64 / most as f64);
        for (these, those, who) in [(theirs, ours, "strace:   "), (ours, theirs, "perfweave:")] {
            let others = these.iter().filter(|(line, count)| those.get(*line).unwrap_or(&0) < count);
            differ.extend(others.map(|(line, _)| format!("{who} {line}")));
        }
    }
    let share = 100.0 * equal as f64 / all as f64;
    // What differs of those held out stays unseen.
    let others = if asked == "held-out" { String::new() } else { differ.join("\n") };
    println!("{share:.2} % of {all} lines are equal. Others:\n{others}");
    // The texts are those of this version of strace: others have some of their own.
    let version = run(Command::new("strace").arg("--version"), "").out;
    let is_this = version.lines().next().is_some_and(|line| line.ends_with("version 6.1"));
    let least = if asked == "held-out" || !is_this { 95.0 } else { 98.0 };
    assert!(share >= least, "{share:.1} %");
    std::fs::remove_dir_all(folder).unwrap();
    std::fs::remove_dir_all(files).unwrap();
}

/// Calls of which the numbers have names, and pointers that lead to what one wants to know.
const CALLS: &str = r#"
    #define _GNU_SOURCE
    #include <arpa/inet.h>
    #include <fcntl.h>
    #include <linux/futex.h>
    #include <poll.h>
    #include <signal.h>
    #include <string.h>
    #include <sys/ioctl.h>
    #include <sys/prctl.h>
    #include <sys/resource.h>
    #include <sys/statfs.h>
    #include <sys/socket.h>
    #include <sys/stat.h>
    #include <sys/syscall.h>
    #include <sys/time.h>
    #include <sys/un.h>
    #include <sys/uio.h>
    #include <sys/wait.h>
    #include <unistd.h>
    void handler(int signal) {}
    int main(void) {
        struct sockaddr_un u = {.sun_family = AF_UNIX, .sun_path = "/nonexistent/socket"};
        connect(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), (void *)&u, sizeof u);
        int l = socket(AF_INET, SOCK_STREAM, 0), s = socket(AF_INET, SOCK_STREAM, 0);
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000001)};
        bind(l, (void *)&a, sizeof a), listen(l, 1);
        char big[128];
        socklen_t n = sizeof big;
        getsockname(l, (void *)&a, &n), connect(s, (void *)&a, sizeof a);
        struct rlimit r = {1024 * 1024, RLIM_INFINITY};
        setrlimit(RLIMIT_CPU, &r), getrlimit(RLIMIT_CPU, &r);
        signal(SIGUSR1, SIG_IGN);
        sigset_t set;
        sigemptyset(&set), sigaddset(&set, SIGINT), sigaddset(&set, SIGCHLD), sigprocmask(SIG_BLOCK, &set, 0);
        struct timespec t = {0, 5};
        nanosleep(&t, 0);
        struct itimerval i = {{0, 0}, {100, 7}};
        setitimer(ITIMER_REAL, &i, 0);
        int p[2];
        pipe(p);
        struct iovec v[2] = {{"ab", 2}, {"cde\n", 4}};
        writev(p[1], v, 2);
        struct pollfd f[2] = {{p[0], POLLIN | POLLPRI}, {p[1], POLLIN}};
        poll(f, 2, 0);
        char b[3], c[60];
        struct iovec w[2] = {{b, 3}, {c, 60}};
        readv(p[0], w, 2);
        write(p[1], "01234567890123456789012345678901234567890123456789", 50);
        read(p[0], c, 60);
        struct stat st;
        stat("/dev/null", &st), readlink("/proc/self/exe", c, 4), fcntl(p[0], F_SETFD, FD_CLOEXEC);
        fcntl(p[0], F_GETFD), fcntl(p[1], F_GETFL), lseek(p[0], 0, SEEK_END);
        struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
        int q[2];
        socketpair(AF_UNIX, SOCK_STREAM, 0, q), sendmsg(q[0], &m, MSG_NOSIGNAL);
        m.msg_iov = w, recvmsg(q[1], &m, 0);
        int status, child = fork();
        if (!child) execl("/bin/sh", "sh", "-c", "exit 3", "a b\n", (char *)0);
        wait4(child, &status, 0, 0);
        char *again[] = {"sh", "-c", "exit 4", 0}, *with[] = {"A=1", "B=2", 0};
        if (!fork()) syscall(SYS_execveat, AT_FDCWD, "/bin/sh", again, with, 0);
        wait(&status);
        struct flock k = {F_WRLCK, SEEK_SET, 3, 4};
        fcntl(p[0], F_SETLK, &k), ioctl(p[0], FIOCLEX);
        stack_t alternate = {big, 0, 8192};
        sigaltstack(&alternate, 0);
        syscall(SYS_memfd_create, "mine", 1), prctl(PR_CAPBSET_READ, 0), prctl(PR_CAPBSET_READ, 63);
        n = sizeof big, getsockname(q[0], (void *)big, &n), socket(AF_NETLINK, SOCK_RAW, 0);
        signal(SIGUSR2, handler), raise(SIGUSR2);
        struct statfs fs;
        statfs("/proc", &fs);
        struct timespec times[2] = {{946684800, 0}, {946684800, 7}};
        utimensat(AT_FDCWD, "/nonexistent", times, 0);
        syscall(SYS_futex, &status, FUTEX_WAKE_BITSET, 1, 0, 0, -1);
        preadv(p[0], w, 1, 3), syscall(436, 61, -1, 4);
        return 0;
    }
"#;

/// What is printed of them.
const TEXTS: &[&str] = &[
    r#"connect(3, {sa_family=AF_UNIX, sun_path="/nonexistent/socket"}, 110) = -1 ENOENT"#,
    r#"bind(4, {sa_family=AF_INET, sin_port=htons(0), sin_addr=inet_addr("127.0.0.1")}, 16) = 0"#,
    r#", sin_addr=inet_addr("127.0.0.1")}, [128 => 16]) = 0"#,
    "prlimit64(0, RLIMIT_CPU, {rlim_cur=1024*1024, rlim_max=RLIM64_INFINITY}, NULL) = 0",
    "prlimit64(0, RLIMIT_CPU, NULL, {rlim_cur=1024*1024, rlim_max=RLIM64_INFINITY}) = 0",
    "rt_sigaction(SIGUSR1, {sa_handler=SIG_IGN, sa_mask=[USR1], sa_flags=SA_RESTORER|SA_RESTART, sa_restorer=0x",
    "rt_sigprocmask(SIG_BLOCK, [INT CHLD], NULL, 8) = 0",
    "{tv_sec=0, tv_nsec=5}, NULL) = 0",
    "setitimer(ITIMER_REAL, {it_interval={tv_sec=0, tv_usec=0}, it_value={tv_sec=100, tv_usec=7}}, NULL) = 0",
    "pipe2([6, 7], 0) = 0",
    r#"writev(7, [{iov_base="ab", iov_len=2}, {iov_base="cde\n", iov_len=4}], 2) = 6"#,
    "poll([{fd=6, events=POLLIN|POLLPRI}, {fd=7, events=POLLIN}], 2, 0) = 1 ([{fd=6, revents=POLLIN}])",
    r#"readv(6, [{iov_base="abc", iov_len=3}, {iov_base="de\n", iov_len=60}], 2) = 6"#,
    r#"write(7, "01234567890123456789012345678901"..., 50) = 50"#,
    r#"read(6, "01234567890123456789012345678901"..., 60) = 50"#,
    "{st_mode=S_IFCHR|0666, st_rdev=makedev(0x1, 0x3), ...}",
    r#"readlink("/proc/self/exe", "/"#,
    "fcntl(6, F_SETFD, FD_CLOEXEC) = 0",
    "fcntl(6, F_GETFD) = 0x1 (flags FD_CLOEXEC)",
    "fcntl(7, F_GETFL) = 0x1 (flags O_WRONLY)",
    "lseek(6, 0, SEEK_END) = -1 ESPIPE (Illegal seek)",
    "socketpair(AF_UNIX, SOCK_STREAM, 0, [8, 9]) = 0",
    r#"msg_iov=[{iov_base="ab", iov_len=2}, {iov_base="cde\n", iov_len=4}], msg_iovlen=2, msg_controllen=0"#,
    r#"msg_iov=[{iov_base="abc", iov_len=3}, {iov_base="de\n", iov_len=60}], msg_iovlen=2, msg_controllen=0"#,
    r#"execve("/bin/sh", ["sh", "-c", "exit 3", "a b\n"], 0x"#,
    "[{WIFEXITED(s) && WEXITSTATUS(s) == 3}], 0, NULL) = ",
    r#"execveat(AT_FDCWD, "/bin/sh", ["sh", "-c", "exit 4"], 0x"#,
    " /* 2 vars */, 0) = 0",
    "fcntl(6, F_SETLK, {l_type=F_WRLCK, l_whence=SEEK_SET, l_start=3, l_len=4}) = -1 EBADF",
    "ioctl(6, FIOCLEX) = 0",
    "ss_flags=0, ss_size=8192}, NULL) = 0",
    r#"memfd_create("mine", MFD_CLOEXEC) = "#,
    "prctl(PR_CAPBSET_READ, CAP_CHOWN) = ",
    "prctl(PR_CAPBSET_READ, 0x3f /* CAP_??? */) = -1 EINVAL",
    "getsockname(8, {sa_family=AF_UNIX}, [128 => 2]) = 0",
    "socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE) = ",
    "f_type=PROC_SUPER_MAGIC, f_bsize=",
    "f_flags=ST_VALID",
    "[{tv_sec=946684800, tv_nsec=0} /* ",
    "00.000000007",
    "FUTEX_WAKE_BITSET, 1, FUTEX_BITSET_MATCH_ANY) = 0",
    ", 1, 3) = -1 ESPIPE",
    "close_range(61, 4294967295, CLOSE_RANGE_CLOEXEC) = 0",
];

#[test]
fn what_arguments_point_to_is_printed() {
    let folder = folder("arguments");
    let Some(program) = built(&folder, CALLS) else { return };
    let Some(ran) = traced(&["trace", program.to_str().unwrap()]) else { return };
    for text in TEXTS {
        assert!(ran.out.contains(text), "{text} in {}", ran.out);
    }
    if cfg!(target_arch = "x86_64") {
        assert!(ran.out.contains("rt_sigreturn({mask=[INT CHLD]}) = 0"), "{}", ran.out);
    }
    // Limits and forms of strings are those that are asked for.
    let cases = [
        ("-s", "4", r#"write(7, "0123"..., 50)"#),
        ("-s", "999", r#"0123456789", 50)"#),
        ("-xx", "-xx", r#""\x30\x31"#),
    ];
    for (option, value, text) in cases {
        let ran = traced(&["trace", option, value, "-e", "write", program.to_str().unwrap()]).unwrap();
        assert!(ran.out.contains(text), "{text} in {}", ran.out);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Strings at odd places: at the end of a page whose next page is not mapped; in a page of a file that was dropped from
/// memory right before the call; across two pages of which the second was dropped; in argv of an execve.
const COLD: &str = r#"
    #define _GNU_SOURCE
    #include <fcntl.h>
    #include <string.h>
    #include <sys/mman.h>
    #include <unistd.h>
    int main(int c, char **v) {
        char *m = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        munmap(m + 4096, 4096);
        open(strcpy(m + 4096 - sizeof "/tmp/at-the-edge", "/tmp/at-the-edge"), O_RDONLY);
        int f = open(v[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
        char page[8192] = {0};
        strcpy(page + 100, "/tmp/in-a-cold-page"), strcpy(page + 200, "/bin/true"), strcpy(page + 300, "an argument");
        strcpy(page + 4096 - 6, "/tmp/half-cold");
        write(f, page, sizeof page);
        char *p = mmap(0, 8192, PROT_READ, MAP_SHARED, f, 0);
        madvise(p, 8192, MADV_DONTNEED);
        open(p + 100, O_RDONLY);
        madvise(p, 8192, MADV_DONTNEED);
        volatile char touch = p[10];
        open(p + 4096 - 6, O_RDONLY);
        madvise(p, 8192, MADV_DONTNEED);
        char *a[] = {p + 200, p + 300, 0};
        execv(a[0], a);
        return 0;
    }
"#;

#[test]
fn strings_that_were_not_in_memory_are_read_at_the_return() {
    let folder = folder("cold");
    let Some(program) = built(&folder, COLD) else { return };
    let page = folder.join("page");
    let command = ["trace", "-e", "openat,execve", program.to_str().unwrap(), page.to_str().unwrap()];
    for run in [traced, traced_beneath_another] {
        let Some(ran) = run(&command) else { return };
        for text in ["\"/tmp/at-the-edge\", ", "\"/tmp/in-a-cold-page\", ", "\"/tmp/half-cold\", "] {
            assert!(ran.out.contains(text), "{text} in {}", ran.out);
        }
        assert!(ran.out.contains(r#"execve("/bin/true", ["/bin/true", "an argument"], 0x"#), "{}", ran.out);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Calls of all kinds, none of which changes anything.
const KINDS: &str = r#"
    #define _GNU_SOURCE
    #include <fcntl.h>
    #include <grp.h>
    #include <linux/fiemap.h>
    #include <linux/fs.h>
    #include <netinet/tcp.h>
    #include <sched.h>
    #include <signal.h>
    #include <sys/epoll.h>
    #include <sys/eventfd.h>
    #include <sys/ioctl.h>
    #include <sys/mman.h>
    #include <sys/prctl.h>
    #include <sys/resource.h>
    #include <sys/sendfile.h>
    #include <sys/signalfd.h>
    #include <sys/socket.h>
    #include <sys/stat.h>
    #include <sys/syscall.h>
    #include <sys/sysmacros.h>
    #include <sys/time.h>
    #include <sys/timerfd.h>
    #include <sys/wait.h>
    #include <sys/xattr.h>
    #include <time.h>
    #include <unistd.h>
    int main(void) {
        int f = open("/etc/passwd", O_RDONLY), n = open("/dev/null", O_WRONLY), p[2], v = 1;
        pipe(p), fcntl(f, F_GETFL);
        off_t o = 0;
        sendfile(n, f, &o, 9), sendfile(n, f, 0, 9), sendfile(n, f, (void *)8, 9);
        o = 0, splice(f, &o, p[1], 0, 10, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
        ioctl(p[0], FIONREAD, &v), ioctl(p[0], _IOC(_IOC_READ, 0x56, 0x78, 4), 7);
        struct fiemap m = {.fm_length = 4096, .fm_extent_count = 0};
        ioctl(n, FS_IOC_FIEMAP, &m), ioctl(f, 0xb701);
        lsetxattr("/nonexistent", "user.a", "2", 1, XATTR_REPLACE), listxattr("/nonexistent", 0, 0);
        struct timespec t = {1, 0}, z[2] = {{0, 1}, {0, 0}};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0);
        timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC), eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
        sigset_t s;
        sigemptyset(&s), signalfd(-1, &s, SFD_NONBLOCK);
        struct itimerspec i = {{0, 0}, {100, 0}};
        timerfd_settime(7, TFD_TIMER_ABSTIME, &i, 0);
        syscall(SYS_faccessat2, AT_FDCWD, "/etc", R_OK, AT_EACCESS | AT_SYMLINK_NOFOLLOW);
        syscall(SYS_renameat2, -1, "a", -1, "b", RENAME_NOREPLACE | RENAME_EXCHANGE);
        mknodat(-1, "c", S_IFCHR | 0666, makedev(1, 3)), mknodat(-1, "c", S_IFIFO | 0, 5);
        mknodat(-1, "c", 0177744, 0), mknodat(-1, "c", 044, 0), mknodat(-1, "c", S_IFBLK | 04640, makedev(300, 0));
        getpriority(PRIO_PROCESS, 0), setpriority(PRIO_USER, -1, -3);
        prctl(PR_GET_DUMPABLE), prctl(PR_SET_DUMPABLE, 1);
        timer_t d;
        struct sigevent e = {.sigev_signo = SIGALRM, .sigev_notify = SIGEV_SIGNAL};
        timer_create(CLOCK_REALTIME, &e, &d), e.sigev_value.sival_int = 5, e.sigev_notify = SIGEV_NONE;
        timer_create(CLOCK_REALTIME, &e, &d);
        int q = socket(AF_INET, SOCK_STREAM, 0);
        struct linger l = {1, 2};
        v = 1, setsockopt(q, SOL_SOCKET, SO_REUSEADDR, &v, 4), setsockopt(q, SOL_SOCKET, SO_LINGER, &l, 8);
        setsockopt(q, SOL_TCP, 1, &v, 4), v = 4, getsockopt(q, SOL_SOCKET, SO_TYPE, &v, &v);
        socklen_t b = 4;
        getsockopt(q, SOL_SOCKET, SO_REUSEADDR, &v, &b), b = 8, getsockopt(q, SOL_SOCKET, SO_LINGER, &l, &b);
        b = 1, getsockopt(q, 0, 1, &v, &b);
        struct rusage u;
        getrusage(RUSAGE_SELF, &u), getgroups(10, (void *)8);
        utimensat(-1, "a", z, AT_SYMLINK_NOFOLLOW), sched_getscheduler(0), sched_get_priority_max(SCHED_RR);
        madvise(0, 0, MADV_WILLNEED), msync(0, 0, MS_SYNC), fallocate(-1, FALLOC_FL_KEEP_SIZE, 0, 10);
        siginfo_t g;
        waitid(P_ALL, 0, &g, WEXITED), epoll_ctl(-1, EPOLL_CTL_DEL, 3, (void *)&v);
        write(n, "\310\221 is no text\377", 14), write(n, "Gr\303\266\303\237e", 7);
        return 0;
    }
"#;

/// What is printed of them.
const OF_KINDS: &[&str] = &[
    "fcntl(3, F_GETFL) = 0x8000 (flags O_RDONLY|O_LARGEFILE)",
    "sendfile(4, 3, [0] => [9], 9) = 9",
    "sendfile(4, 3, NULL, 9) = 9",
    "sendfile(4, 3, 0x8, 9) = -1 EFAULT (Bad address)",
    "splice(3, [0], 6, NULL, 10, SPLICE_F_MOVE|SPLICE_F_NONBLOCK) = 10",
    "ioctl(5, FIONREAD, [10]) = 0",
    "ioctl(5, _IOC(_IOC_READ, 0x56, 0x78, 0x4), 0x7) = -1 ENOTTY",
    "ioctl(4, FS_IOC_FIEMAP, {fm_start=0, fm_length=4096, fm_flags=0, fm_extent_count=0}) = -1 ",
    "ioctl(3, NS_GET_USERNS) = -1 ENOTTY",
    r#"lsetxattr("/nonexistent", "user.a", "2", 1, XATTR_REPLACE) = -1 ENOENT"#,
    r#"listxattr("/nonexistent", NULL, 0) = -1 ENOENT"#,
    "clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, {tv_sec=1, tv_nsec=0}, NULL) = 0",
    "timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC) = 7",
    "eventfd2(0, EFD_SEMAPHORE|EFD_CLOEXEC) = 8",
    "signalfd4(-1, [], 8, SFD_NONBLOCK) = 9",
    "timerfd_settime(7, TFD_TIMER_ABSTIME, {it_interval={tv_sec=0, tv_nsec=0}, it_value={tv_sec=100, tv_nsec=0}}, \
     NULL) = 0",
    r#"faccessat2(AT_FDCWD, "/etc", R_OK, AT_SYMLINK_NOFOLLOW|AT_EACCESS) = 0"#,
    r#"renameat2(-1, "a", -1, "b", RENAME_NOREPLACE|RENAME_EXCHANGE) = -1 "#,
    r#"mknodat(-1, "c", S_IFCHR|0666, makedev(0x1, 0x3)) = -1 EBADF"#,
    r#"mknodat(-1, "c", S_IFIFO|000) = -1 EBADF"#,
    r#"mknodat(-1, "c", 0177744) = -1 "#,
    r#"mknodat(-1, "c", 044) = -1 EBADF"#,
    r#"mknodat(-1, "c", S_IFBLK|S_ISUID|0640, makedev(0x12c, 0)) = -1 EBADF"#,
    "getpriority(PRIO_PROCESS, 0) = ",
    "setpriority(PRIO_USER, -1, -3) = -1 ESRCH",
    "prctl(PR_GET_DUMPABLE) = 1 (SUID_DUMP_USER)",
    "prctl(PR_SET_DUMPABLE, SUID_DUMP_USER) = 0",
    "timer_create(CLOCK_REALTIME, {sigev_signo=SIGALRM, sigev_notify=SIGEV_SIGNAL}, [0]) = 0",
    "timer_create(CLOCK_REALTIME, {sigev_value={sival_int=5, sival_ptr=0x5}, sigev_signo=14, \
     sigev_notify=SIGEV_NONE}, [1]) = 0",
    ", SOL_SOCKET, SO_REUSEADDR, [1], 4) = 0",
    ", SOL_SOCKET, SO_LINGER, {l_onoff=1, l_linger=2}, 8) = 0",
    ", SOL_TCP, TCP_NODELAY, [1], 4) = 0",
    ", SOL_SOCKET, SO_TYPE, ",
    ", SOL_SOCKET, SO_REUSEADDR, [1], [4]) = 0",
    // What is no number of four bytes is not printed as one.
    ", SOL_SOCKET, SO_LINGER, 0x",
    ", SOL_IP, IP_TOS, 0x",
    "getrusage(RUSAGE_SELF, {ru_utime={tv_sec=",
    r#"utimensat(-1, "a", [{tv_sec=0, tv_nsec=1} /* 1970-01-01T"#,
    ", {tv_sec=0, tv_nsec=0}], AT_SYMLINK_NOFOLLOW) = -1 EBADF",
    "sched_getscheduler(0) = 0 (SCHED_OTHER)",
    "sched_get_priority_max(SCHED_RR) = 99",
    "madvise(NULL, 0, MADV_WILLNEED) = 0",
    "msync(NULL, 0, MS_SYNC) = 0",
    "fallocate(-1, FALLOC_FL_KEEP_SIZE, 0, 10) = -1 EBADF",
    "waitid(P_ALL, 0, 0x",
    "epoll_ctl(-1, EPOLL_CTL_DEL, 3, 0x",
    r#"write(4, "\310\221 is no text\377", 14) = 14"#,
    r#"write(4, "Größe", 7) = 7"#,
];

#[test]
fn numbers_of_all_kinds_have_the_names_of_strace() {
    let folder = folder("kinds");
    let Some(program) = built(&folder, KINDS) else { return };
    let Some(ran) = traced(&["trace", program.to_str().unwrap()]) else { return };
    let mut at = 0;
    for text in OF_KINDS {
        let found = ran.out[at..].find(text);
        at += found.unwrap_or_else(|| panic!("{text} in {}", &ran.out[at..]));
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Calls that wait for descriptors. 60 is one that is not open. It is in each process's table, which has 64 or more:
/// select(2) does not look behind the end of the table.
const WAITS: &str = r#"
    #define _GNU_SOURCE
    #include <poll.h>
    #include <signal.h>
    #include <sys/epoll.h>
    #include <sys/select.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    int main(void) {
        int p[2];
        alarm(100), pipe(p), write(p[1], "x", 1);
        fd_set r, w, e;
        struct timeval t = {100, 7};
        struct timespec s = {100, 5};
        sigset_t set;
        sigemptyset(&set), sigaddset(&set, SIGINT);
        FD_ZERO(&r); FD_ZERO(&w); FD_ZERO(&e); FD_SET(p[0], &r), FD_SET(p[1], &w), FD_SET(65, &e);
        FD_CLR(65, &e), syscall(SYS_pselect6, 70, &r, &w, &e, &s, 0);
        FD_ZERO(&r); FD_SET(p[0], &r), FD_SET(p[1], &r), pselect(5, &r, 0, 0, &(struct timespec){100, 5}, &set);
        FD_ZERO(&r); pselect(5, &r, 0, 0, &(struct timespec){0, 7}, 0);
        FD_SET(60, &r), pselect(61, &r, 0, 0, 0, 0), pselect(-1, &r, 0, 0, 0, 0), pselect(5, (void *)8, 0, 0, 0, 0);
    #ifdef SYS_select
        FD_ZERO(&r); FD_ZERO(&w); FD_SET(p[0], &r), FD_SET(p[1], &w), syscall(SYS_select, 5, &r, &w, 0, &t);
    #endif
        int x = epoll_create1(0);
        struct epoll_event v = {EPOLLIN, {.u64 = 0x1234567890}}, all[50];
        epoll_ctl(x, EPOLL_CTL_ADD, p[0], &v), v.events = EPOLLOUT, epoll_ctl(x, EPOLL_CTL_ADD, p[1], &v);
        epoll_pwait(x, all, 8, -1, &set), epoll_pwait(x, all, 1, -1, 0), epoll_pwait(x, (void *)8, 1, 0, 0);
        read(p[0], &v, 1), epoll_ctl(x, EPOLL_CTL_DEL, p[1], 0), epoll_pwait(x, all, 8, 0, 0);
        struct pollfd f[3] = {{p[1], POLLOUT}, {-1, POLLIN}, {p[1], POLLOUT}};
        ppoll(f, 2, &(struct timespec){100, 5}, &set), ppoll(f, 3, 0, 0), ppoll(f, 0, &(struct timespec){0, 7}, 0);
        return 0;
    }
"#;

/// What is printed of them, with `-s 2`: no more elements of a list than bytes of a string. `left` is what is left.
const WAITED: &[&str] = &[
    "pselect6(70, [3], [4], [], {tv_sec=100, tv_nsec=5}, NULL) = 2 (in [3], out [4], left)",
    "pselect6(5, [3 4], NULL, NULL, {tv_sec=100, tv_nsec=5}, {sigmask=[INT], sigsetsize=8}) = 1 (in [3], left)",
    "pselect6(5, [], NULL, NULL, {tv_sec=0, tv_nsec=7}, {sigmask=NULL, sigsetsize=8}) = 0 (Timeout)",
    "pselect6(61, [60], NULL, NULL, NULL, {sigmask=NULL, sigsetsize=8}) = -1 EBADF (Bad file descriptor)",
    "pselect6(-1, 0x, NULL, NULL, NULL, {sigmask=NULL, sigsetsize=8}) = -1 EINVAL (Invalid argument)",
    "pselect6(5, 0x, NULL, NULL, NULL, {sigmask=NULL, sigsetsize=8}) = -1 EFAULT (Bad address)",
    #[cfg(target_arch = "x86_64")]
    "select(5, [3], [4], NULL, {tv_sec=100, tv_usec=7}) = 2 (in [3], out [4], left)",
    "epoll_pwait(5, [{events=EPOLLIN, data={u32=878082192, u64=78187493520}}, {events=EPOLLOUT, \
     data={u32=878082192, u64=78187493520}}], 8, -1, [INT], 8) = 2",
    "epoll_pwait(5, [{events=EPOLLIN, data={u32=878082192, u64=78187493520}}], 1, -1, NULL, 8) = 1",
    "epoll_pwait(5, 0x, 1, 0, NULL, 8) = -1 EFAULT (Bad address)",
    "epoll_pwait(5, [], 8, 0, NULL, 8) = 0",
    "ppoll([{fd=4, events=POLLOUT}, {fd=-1}], 2, {tv_sec=100, tv_nsec=5}, [INT], 8) = 1 \
     ([{fd=4, revents=POLLOUT}], left)",
    "ppoll([{fd=4, events=POLLOUT}, {fd=-1}, ...], 3, NULL, NULL, 8) = 2 \
     ([{fd=4, revents=POLLOUT}, {fd=4, revents=POLLOUT}])",
    "ppoll([], 0, {tv_sec=0, tv_nsec=7}, NULL, 8) = 0 (Timeout)",
];

/// A call without addresses, and without how much of a time-out was left.
fn without_left(call: &str) -> String {
    let call = match call.split_once("left {") {
        Some((before, after)) => format!("{before}left{}", after.split_once('}').unwrap().1),
        None => call.to_owned(),
    };
    let mut parts = call.split("0x");
    let first = parts.next().unwrap().to_owned();
    let rest = parts.map(|part| part.trim_start_matches(|digit: char| digit.is_ascii_hexdigit()));
    std::iter::once(first.as_str()).chain(rest).collect::<Vec<_>>().join("0x")
}

#[test]
fn sets_and_events_that_are_waited_for_are_printed() {
    let folder = folder("waits");
    let Some(program) = built(&folder, WAITS) else { return };
    const CALLS: &str = "trace=?select,pselect6,epoll_pwait,ppoll";
    let Some(ran) = traced(&["trace", "-s", "2", "-e", CALLS, program.to_str().unwrap()]) else { return };
    let call = |line: &str| Some(without_left(line.split_once("] ")?.1.split_once(' ')?.1.rsplit_once(" <")?.0));
    let ours: Vec<_> = ran.out.lines().filter_map(call).collect();
    assert_eq!(ours, WAITED);
    let Some(()) = runs(&["strace", "--version"], "Debian's package strace") else { return };
    let theirs = run(Command::new("strace").args(["-a", "0", "-s", "2", "-e", CALLS]).arg(&program), "");
    let theirs: Vec<_> = theirs.err.lines().filter(|line| line.contains(" = ")).map(without_left).collect();
    assert_eq!(theirs, WAITED);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Descriptors of all kinds, and files that go away or get another name while they are open.
const DESCRIPTORS: &str = r#"
import os, socket, select, fcntl, sys
os.closerange(3, 256)
os.chdir(sys.argv[1])
l = socket.socket(); l.bind(("127.0.0.1", 0)); l.listen()
c = socket.create_connection(l.getsockname()); a, _ = l.accept(); c.send(b"tcp")
u, v = socket.socketpair(); u.send(b"unix")
d = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s = socket.socket(socket.AF_UNIX); s.bind("path"); s.listen()
r, w = os.pipe(); select.epoll().register(r); p = select.poll(); p.register(r); p.poll(0)
f = os.open("gone", os.O_CREAT | os.O_RDWR); os.unlink("gone"); os.write(f, b"gone")
f = os.open("old", os.O_CREAT | os.O_RDWR); os.rename("old", "new"); os.write(f, b"moved")
os.open("old", os.O_CREAT | os.O_RDWR); os.dup2(f, 77); fcntl.fcntl(f, fcntl.F_DUPFD, 100); os.write(100, b"dup")
os.symlink("new", "link"); n = os.open("link", os.O_RDWR); os.write(n, b"link")
t = os.open("..", os.O_DIRECTORY); os.stat("/dev", dir_fd=t)
os.write(os.open("/dev/null", os.O_RDWR), b"device"); os.write(os.memfd_create("mine"), b"memory")
os.write(os.open("a<b>\n", os.O_CREAT | os.O_RDWR), b"odd")
k = os.fork()
if k == 0: os.dup2(n, 9); os.execl("/bin/sh", "sh", "-c", "echo child >&9")
os.waitpid(k, 0)
"#;

/// A text with an N for each long number: ports, inodes, processes.
fn without_numbers(text: &str) -> String {
    let (mut out, mut digits) = (String::new(), String::new());
    for letter in text.chars().chain(['\n']) {
        if letter.is_ascii_digit() {
            digits.push(letter);
            continue;
        }
        out.push_str(if digits.len() >= 4 { "N" } else { &digits });
        digits.clear();
        out.push(letter);
    }
    out
}

/// Where the kernel's types are unknown, or BPF is not granted, numbers are all there is, and a line says so.
fn has_types(ran: &program::Ran) -> bool {
    let says = ["descriptors are printed as numbers", "strings are printed as addresses"];
    let is_told = !says.iter().any(|words| ran.err.contains(words));
    perfweave_support::needs("the kernel's types (BTF), and root", is_told).is_some()
}

#[test]
fn descriptors_have_what_is_behind_them() {
    let Some(python) = python() else { return };
    let folder = folder("descriptors").canonicalize().unwrap();
    let place = folder.to_str().unwrap();
    let run = |option| traced(&["trace", option, &python, "-S", "-c", DESCRIPTORS, place]);
    let Some(ran) = run("-y") else { return };
    if !has_types(&ran) {
        return;
    }
    let has = |ran: &program::Ran, texts: &[&str]| {
        // Some machines have dup3(2) alone.
        let out = without_numbers(&ran.out.replace(", 77, 0) = 77", ", 77) = 77"));
        for text in texts {
            let text = without_numbers(&text.replace("HERE", place));
            assert!(out.contains(text.trim_end()), "{text} in {out}");
        }
    };
    has(
        &ran,
        &[
            r#"openat(AT_FDCWD<HERE>, "gone", O_RDWR|O_CREAT|O_CLOEXEC, 0777) = "#,
            "</dev/null>, \"device\", 6)",
            r#"</memfd:mine>(deleted), "memory", 6)"#,
            r#"<HERE/gone>(deleted), "gone", 4)"#,
            r#"<HERE/new>, "moved", 5)"#,
            r#"write(100<HERE/new>, "dup", 3)"#,
            ", 77) = 77<HERE/new>",
            ", F_DUPFD, 100) = 100<HERE/new>",
            r#""link", O_RDWR|O_CLOEXEC) = "#,
            r#"<HERE/new>, "link", 4)"#,
            r#"<HERE/a\74b\76\n>, "odd", 3)"#,
            r#"write(1<HERE/new>, "child\n", 6) = 6"#,
            r#"<socket:[9999]>, "tcp", 3, "#,
            "socketpair(AF_UNIX, SOCK_STREAM|SOCK_CLOEXEC, 0, [",
            "<socket:[9999]>]) = 0",
            "pipe2([",
            "<pipe:[9999]>], O_CLOEXEC) = 0",
            "<anon_inode:[eventpoll]>",
            "<pipe:[9999]>, events=POLLIN|POLLPRI|POLLOUT}]",
        ],
    );
    let mut link = ran.out.lines().filter(|line| line.contains(r#""link", O_RDWR"#));
    assert!(link.any(|line| line.contains(&format!("<{place}/new> <"))), "{}", ran.out);
    std::fs::remove_file(folder.join("path")).unwrap();
    std::fs::remove_file(folder.join("link")).unwrap();
    let ran = run("-yy").unwrap();
    has(
        &ran,
        &[
            r#"<TCP:[127.0.0.1:9999->127.0.0.1:9999]>, "tcp", 3, "#,
            "listen(3<TCP:[127.0.0.1:9999]>, ",
            "SOCK_STREAM|SOCK_CLOEXEC, IPPROTO_IP) = 3<TCP:[9999]>",
            r#"<UNIX-STREAM:[9999->9999]>, "unix", 4, "#,
            "<UDPv6:[9999]>",
            r#"<UNIX-STREAM:[9999,"path"]>, "#,
            "</dev/null<char 1:3>>, \"device\", 6)",
        ],
    );
    std::fs::remove_dir_all(folder).unwrap();
}

/// -P takes calls on a descriptor that is open on the path, without printing what is behind descriptors.
#[test]
fn a_path_has_the_calls_of_its_descriptors() {
    let folder = folder("path").canonicalize().unwrap();
    let path = folder.join("new");
    std::fs::write(&path, "child\n").unwrap();
    let command = ["trace", "-P", path.to_str().unwrap(), "sh", "-c", "exec 5<\"$0\"; cat <&5", path.to_str().unwrap()];
    let Some(ran) = traced(&command) else { return };
    if !has_types(&ran) {
        return;
    }
    // Some machines have dup3(2) alone, and how much cat(1) reads at a time is its own.
    let has_copied = [" dup2(5, 0) = 0 ", " dup3(5, 0, 0) = 0 "].iter().any(|call| ran.out.contains(call));
    assert!(ran.out.contains("child\\n\", ") && has_copied, "{}", ran.out);
    assert!(!ran.out.contains("ld.so.cache") && !ran.out.contains("(0<"), "{}", ran.out);
    let ran = traced(&["trace", "-y", "--json", "cat", path.to_str().unwrap()]).unwrap();
    // Its number is 3 where no other descriptor was left open.
    let files = ran.out.split(r#""files":{""#).skip(1).filter_map(|rest| rest.split_once('"'));
    let its = format!(r#":"{}"}}"#, path.display());
    let is_its =
        |(number, rest): (&str, &str)| number.parse::<u8>().is_ok_and(|number| number > 2) && rest.starts_with(&its);
    assert!(files.into_iter().any(is_its), "{}", ran.out);
    std::fs::remove_dir_all(folder).unwrap();
}

/// First a call that gives nothing, then one with the same result that gives something, at once.
const GIVES_NOTHING_FIRST: &str = r#"
    #define _GNU_SOURCE
    #include <fcntl.h>
    #include <signal.h>
    #include <unistd.h>
    int main(void) {
        int a = open("/etc/passwd", O_RDONLY | O_CLOEXEC), b = open("/dev/null", O_RDONLY);
        close(1), fcntl(a, F_GETFD), dup2(a, 1), fcntl(a, F_GETFD);
        for (int n = 0; n < 5; n++) fcntl(a, F_DUPFD, 100), close(100), fcntl(b, F_DUPFD, 100), close(100);
        int signals[] = {SIGUSR1, SIGINT, SIGTERM, SIGHUP, SIGQUIT};
        for (int n = 0; n < 5; n++) {
            sigset_t set, old;
            sigemptyset(&set), sigaddset(&set, signals[n]), sigprocmask(SIG_SETMASK, &set, n ? &old : 0);
        }
        return 0;
    }
"#;

/// A run beneath another tracer, which was there before: the kernel tells it of each call first.
fn traced_beneath_another(arguments: &[&str]) -> Option<program::Ran> {
    let outer = ["trace", "-e", "getpid", "-o", "/dev/null", env!("CARGO_BIN_EXE_perfweave")];
    traced(&[&outer, arguments].concat())
}

#[test]
fn what_a_call_gives_is_its_own() {
    let folder = folder("own");
    let Some(program) = built(&folder, GIVES_NOTHING_FIRST) else { return };
    for run in [traced, traced_beneath_another] {
        let Some(ran) = run(&["trace", "-e", "rt_sigprocmask", program.to_str().unwrap()]) else { return };
        for text in ["[INT], [USR1]", "[TERM], [INT]", "[HUP], [TERM]", "[QUIT], [HUP]"] {
            assert!(ran.out.contains(&format!("rt_sigprocmask(SIG_SETMASK, {text}, 8) = 0")), "{text} {}", ran.out);
        }
        let ran = run(&["trace", "-y", "-e", "fcntl", program.to_str().unwrap()]).unwrap();
        if !has_types(&ran) {
            return;
        }
        for file in ["</etc/passwd>", "</dev/null>"] {
            let its = format!("{file}, F_DUPFD, 100) = 100{file} ");
            assert_eq!(ran.out.matches(&its).count(), 5, "{its} {}", ran.out);
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Files in places of which paths say little: of a namespace, in a folder that was moved out of its mount, in mounts that
/// are nowhere; and a file with the longest name.
const ODD_PLACES: &str = r#"
import ctypes, os, sys
l = ctypes.CDLL(None)
def tell(file, number): l.lseek(file, ctypes.c_long(number), 0)
os.chdir(sys.argv[1])
if l.unshare(0x20000) or l.mount(None, b"/", None, 0x44000, None): sys.exit(9)
tell(os.open("/proc/self/ns/net", 0), 1001)
os.makedirs("src/a/d/e"); os.mkdir("tgt"); os.mkdir("t")
for name in "src/a/d/e/file", "src/one", "point", "n" * 255: os.close(os.open(name, os.O_CREAT | os.O_RDWR))
tell(os.open("n" * 255, 0), 1002)
l.mount(b"src/a", b"tgt", None, 0x1000, None); l.mount(b"src/one", b"point", None, 0x1000, None)
tell(os.open("point", 0), 1003)
f = os.open("tgt/d/e/file", 0); tell(f, 1004); os.rename("src/a/d", "src/d"); tell(f, 1005)
l.mount(b"x", b"t", b"tmpfs", 0, None); os.makedirs("t/a/d"); os.close(os.open("t/a/d/file", os.O_CREAT | os.O_RDWR))
t = l.syscall(428, -100, b"t/a", 0x80001); tell(t, 1006); tell(os.open("d/file", 0, dir_fd=t), 1007)
"#;

#[test]
fn a_path_is_one_that_there_is() {
    let Some(python) = python() else { return };
    let folder = folder("places").canonicalize().unwrap();
    let place = folder.to_str().unwrap();
    let Some(ran) = traced(&["trace", "-y", "-e", "lseek", &python, "-S", "-c", ODD_PLACES, place]) else { return };
    if !has_types(&ran) || perfweave_support::needs("mounts for this user", ran.code != Some(9)).is_none() {
        return;
    }
    let long = format!("<{place}/{}>", "n".repeat(255));
    for (number, path) in [
        (1001, ""),
        (1002, &*long),
        (1003, &*format!("<{place}/point>")),
        (1004, &*format!("<{place}/tgt/d/e/file>")),
        (1005, ""),
        (1006, "</>"),
        (1007, "</d/file>"),
    ] {
        let line = ran.out.lines().find(|line| line.contains(&format!(", {number}, SEEK_SET)"))).unwrap();
        let of = line.split_once("lseek(").unwrap().1.split_once(", ").unwrap().0;
        assert_eq!(of.trim_start_matches(|digit: char| digit.is_ascii_digit()), path, "{line}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Numbers that are no descriptors.
const NO_DESCRIPTORS: &str = r#"
import ctypes, fcntl, os, struct
l = ctypes.CDLL(None)
fcntl.fcntl(os.open("/dev/null", os.O_RDWR), fcntl.F_GETFD)
l.poll(ctypes.c_void_p(1), 1, 0)
l.read(-100, None, 0)
l.poll(struct.pack("ihh", -100, 1, 0), 1, 0)
"#;

/// What the call does not have is not told: a list that is in no memory, a result that is a flag, and the working
/// directory where no directory is meant.
#[test]
fn only_what_is_a_descriptor_has_a_file() {
    let Some(python) = python() else { return };
    let command = [&*python, "-S", "-c", NO_DESCRIPTORS];
    let Some(ran) = traced(&[&["trace", "-y", "--json"], &command[..]].concat()) else { return };
    if !has_types(&ran) {
        return;
    }
    let lines: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let files = |name: &str, is_it: &dyn Fn(&Value) -> bool| -> Vec<_> {
        let its = lines.iter().filter(|line| line["call"].as_str().is_some_and(|call| call.ends_with(name)));
        its.filter(|line| is_it(&line["args"])).map(|line| line["files"].clone()).collect()
    };
    let of_lists = files("poll", &|_| true);
    let of_number = files("read", &|args| args["fd"] == -100);
    let of_flags = files("fcntl", &|args| args["cmd"] == 1).pop().unwrap();
    let of_flags: Vec<_> = of_flags.as_object().unwrap().values().cloned().collect();
    let none = Value::Null;
    assert_eq!(
        [of_lists, of_number, of_flags],
        [vec![none.clone(), none.clone()], vec![none], vec!["/dev/null".into()]]
    );
    let ran = traced(&[&["trace", "--decode-fds=path", "-e", "%desc"], &command[..]].concat()).unwrap();
    assert!(ran.out.contains("read(-100, NULL, 0)") && ran.out.contains("[{fd=-100}]"), "{}", ran.out);
}

/// Where the kernel refuses the programs that tell what is behind descriptors, strings are printed all the same, and a
/// line says why. strace(1) refuses here.
#[test]
fn without_the_programs_for_descriptors_there_are_strings() {
    let Some(()) = runs(&["strace", "--version"], "Debian's package strace") else { return };
    let Some(ran) = traced(&["trace", "-y", "-e", "openat", "true"]) else { return };
    if !has_types(&ran) {
        return;
    }
    let folder = folder("refused");
    let file = folder.join("calls");
    let under_strace = |inject: &[&str]| {
        let mut strace = Command::new("strace");
        strace.args(["-v", "-e", "trace=bpf", "-o"]).arg(&file).args(inject);
        let ran = run(strace.arg(env!("CARGO_BIN_EXE_perfweave")).args(["trace", "-y", "-e", "openat", "true"]), "");
        (ran, std::fs::read_to_string(&file).unwrap())
    };
    let (_, calls) = under_strace(&[]);
    let first = calls.lines().position(|line| line.contains("descriptors_ent")).unwrap() + 1;
    // Once more for the verifier's log.
    let (ran, calls) = under_strace(&["-e", &format!("inject=bpf:error=EACCES:when={first}..{}", first + 1)]);
    assert!(calls.contains("(INJECTED)"), "{calls}");
    assert!(ran.err.contains("descriptors are printed as numbers: ") && ran.err.lines().count() <= 3, "{}", ran.err);
    assert!(ran.out.contains("openat(AT_FDCWD, \"/"), "{}", ran.out);
    std::fs::remove_dir_all(folder).unwrap();
}
