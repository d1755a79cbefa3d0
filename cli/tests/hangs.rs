//! `perfweave why -p` on programs that hang, each for another reason: the cause is named.
//!
//! The programs are this test binary, which runs [`hung`] alone with the name of a reason.

mod program;

use nix::libc;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use program::traced;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Barrier, Condvar};

const REASON: &str = "PERFWEAVE_HANGS_FOR";

/// A program that hangs, with all that it started.
struct Hung(Child);

impl Hung {
    /// Starts it, and waits until it says that it is about to hang.
    fn start(reason: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command.args(["--exact", "hung", "--nocapture", "--test-threads=1"]).env(REASON, reason);
        Self::start_another(command)
    }

    /// The same of another program.
    fn start_another(mut command: Command) -> Self {
        let mut child = command.process_group(0).stdout(Stdio::piped()).spawn().expect("it starts");
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        let is_ready = |line: std::io::Result<String>| line.expect("text").ends_with("hangs now");
        assert!(out.lines().any(is_ready), "{command:?}: it ends");
        Self(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        // A stopped one is killed, too.
        let _ = killpg(Pid::from_raw(self.0.id() as i32), Signal::SIGKILL);
        let _ = self.0.wait();
        // Where it mounted something, in its own mount namespace.
        let _ = std::fs::remove_dir(folder(self.0.id()));
    }
}

/// A place for what a program makes.
fn folder(pid: u32) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("perfweave-hangs-{pid}"))
}

/// The waits that go on, of lines of objects.
fn hangs(lines: &str) -> Vec<Value> {
    let objects = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("an object"));
    objects.filter(|object| object.get("hangs").is_some()).collect()
}

/// The waits of a program that go on, once one of them is on something. As long as it runs into its hang, it is asked
/// again.
fn waits(hung: &Hung, on: &str) -> Option<Vec<Value>> {
    let pid = hung.pid().to_string();
    let mut last = String::new();
    for _ in 0..50 {
        let ran = traced(&["why", "-p", &pid, "-d", "0.2", "--json"])?;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let waits = hangs(&ran.out);
        if waits.iter().any(|wait| wait["on"] == on && wait["at_least"] == true) {
            return Some(waits);
        }
        last = ran.out;
    }
    panic!("nothing waits on {on}: {last}")
}

/// The one wait that is on something.
fn wait(hung: &Hung, on: &str) -> Option<Value> {
    waits(hung, on)?.into_iter().find(|wait| wait["on"] == on)
}

/// The children of all its threads: the test harness runs it in one of its own.
fn children(pid: u32) -> Vec<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives").flatten();
    let of = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
    tasks.map(of).flat_map(|text| text.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()).collect()
}

/// Whom a wait is for, by the numbers of threads.
fn whom(wait: &Value) -> Vec<u64> {
    wait["for"].as_array().unwrap().iter().map(|one| one["tid"].as_u64().unwrap()).collect()
}

#[test]
fn a_deadlock_of_threads_is_named_first() {
    let hung = Hung::start("mutexes");
    let Some(waits) = waits(&hung, "lock") else { return };
    let of = |name: &str| waits.iter().find(|wait| wait["hangs"] == name).unwrap_or_else(|| panic!("{waits:#?}"));
    let (one, two) = (of("one"), of("two"));
    assert_eq!((whom(one), whom(two)), (vec![two["tid"].as_u64().unwrap()], vec![one["tid"].as_u64().unwrap()]));
    for wait in [one, two] {
        assert_eq!(
            [&wait["on"], &wait["known"], &wait["deadlock"], &wait["call"]],
            ["lock", "likely", "true", "futex"]
                .map(|text| if text == "true" { Value::Bool(true) } else { text.into() })
                .each_ref()
        );
    }
    assert!(waits[..2].iter().all(|wait| wait["deadlock"] == true), "they come first");
    // Who waits for one of them is in no deadlock itself.
    let main = waits.iter().find(|wait| wait["on"] == "join").unwrap_or_else(|| panic!("{waits:#?}"));
    assert_eq!((whom(main), &main["deadlock"]), (whom(two), &Value::Bool(false)));
    let ran = traced(&["why", "-p", &hung.pid().to_string(), "-d", "0.2"]).unwrap();
    let first = ran.out.lines().next().unwrap_or_default();
    assert!(first.starts_with("deadlock: ") && ["one/", "two/"].iter().all(|name| first.contains(name)), "{ran:?}");
    assert!(ran.out.contains("s at least in futex(") && ran.out.contains(", as its memory looks"), "{ran:?}");
}

/// Two threads of Python, each of which has a lock that the other wants. Who owns one is in Python's own memory: nobody
/// is guessed, and what to type is said.
#[test]
fn locks_of_a_runtime_have_no_owner_and_a_tool_that_knows_it() {
    let Some(python) = program::python() else { return };
    const SCRIPT: &str = "import sys, threading
locks = [getattr(threading, sys.argv[1])() for _ in range(2)]
both = threading.Barrier(2)
def holds(one, other):
    with one:
        both.wait()
        other.acquire()
threads = [threading.Thread(target=holds, args=pair) for pair in (locks, locks[::-1])]
for thread in threads: thread.start()
print('hangs now', flush=True)
for thread in threads: thread.join()";
    for kind in ["Lock", "RLock"] {
        let mut command = Command::new(&python);
        command.args(["-c", SCRIPT, kind]);
        let hung = Hung::start_another(command);
        let Some(waits) = waits(&hung, "word") else { return };
        let ask = format!("py-spy dump -p {}", hung.pid());
        for wait in &waits {
            assert!(whom(wait).is_empty() && wait["deadlock"] == false && wait["ask"] == *ask, "{kind}: {waits:#?}");
            let text = wait["text"].as_str().unwrap();
            assert!(text.starts_with("nobody's number is in the memory at ") && text.ends_with(&ask), "{text}");
            // It was before the trace.
            assert!(wait.get("last_waker").is_none(), "{wait}");
        }
        assert!(!waits.is_empty());
    }
}

/// A condition has no owner. Who woke a thread there last is told, if that was seen.
#[test]
fn who_woke_a_thread_last_at_a_condition_is_named() {
    let hung = Hung::start("condition");
    let pid = hung.pid().to_string();
    for way in [None, Some("--no-bpf")] {
        let arguments: Vec<&str> =
            ["why", "-p", &pid, "-d", "0.2", "-n", "100", "--json"].into_iter().chain(way).collect();
        if !is_named(&hung, &arguments) {
            return;
        }
    }
}

/// Whether it could be traced.
fn is_named(hung: &Hung, arguments: &[&str]) -> bool {
    let mut last = String::new();
    for _ in 0..50 {
        let Some(ran) = traced(arguments) else { return false };
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let waits = hangs(&ran.out);
        let of = |name: &str| waits.iter().find(|wait| wait["hangs"] == name && wait["on"] == "word");
        if let (Some(woken), Some(never)) = (of("woken"), of("never"))
            && woken.get("last_waker").is_some()
        {
            let waker = &woken["last_waker"];
            assert_eq!([&waker["by"]["thread"], &waker["ended"]], [&Value::from("wakes"), &false.into()], "{waits:#?}");
            assert_eq!(waker["by"]["pid"], hung.pid(), "{waits:#?}");
            assert_eq!(
                (&waker["woken"]["tid"], waker["known"].as_str()),
                (&woken["tid"], Some("recorded")),
                "{waits:#?}"
            );
            let text = woken["text"].as_str().unwrap();
            assert!(text.contains(" was the last seen to wake a thread of this process there: woken/"), "{text}");
            // It is no deadlock, and nobody's lock. Of another word nothing is said.
            assert!(whom(woken).is_empty() && woken["deadlock"] == false && never.get("last_waker").is_none());
            return true;
        }
        last = format!("{ran:?}");
    }
    panic!("nobody is known to have woken a thread: {last}");
}

/// The page has who waits for whom as `--json` has it.
#[test]
fn a_page_has_who_waits_for_whom() {
    let hung = Hung::start("mutexes");
    let Some(waits) = waits(&hung, "lock") else { return };
    let (pid, page) = (hung.pid().to_string(), folder(hung.pid()).with_extension("html"));
    let ran = traced(&["why", "-p", &pid, "-d", "0.2", "--html", page.to_str().unwrap()]).unwrap();
    let text = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    std::fs::remove_file(&page).unwrap();
    let data = text.split_once("id=\"data\">").and_then(|(_, rest)| rest.split_once("</script>")).unwrap().0;
    let data: Value = serde_json::from_str(data).unwrap();
    let edges = |all: &[Value]| -> std::collections::BTreeSet<_> {
        all.iter().map(|one| (one["tid"].as_u64(), whom(one), one["deadlock"].as_bool())).collect()
    };
    assert_eq!(edges(data["hangs"].as_array().unwrap()), edges(&waits));
}

/// Threads that take turns at a mutex, processes that answer each other, and waits that a time ends are no deadlocks,
/// whenever they are asked.
#[test]
fn programs_that_go_on_are_in_no_deadlock() {
    for reason in ["busy mutex", "ping-pong", "timed mutexes"] {
        let hung = Hung::start(reason);
        for _ in 0..12 {
            let Some(ran) = traced(&["why", "-p", &hung.pid().to_string(), "-d", "0.05", "--json"]) else { return };
            assert!(ran.code == Some(0) && !ran.out.contains("\"deadlock\":true"), "{reason}: {ran:?}");
        }
    }
}

/// In a PID namespace, as that of a container, threads name each other by numbers that are others' here.
#[test]
fn numbers_of_a_namespace_are_not_taken_for_those_here() {
    let hung = Hung::start("namespace");
    let Some(lock) = wait(&hung, "lock") else { return };
    assert_eq!((&lock["known"], lock["for"][0]["thread"].as_str()), (&"seen".into(), Some("owner")), "{lock}");
    assert_eq!(lock["for"][0]["pid"], lock["pid"], "{lock}");
}

#[test]
fn who_holds_what_others_wait_for_is_named() {
    let hung = Hung::start("flock");
    let Some(lock) = wait(&hung, "file lock") else { return };
    assert_eq!(whom(&lock), children(hung.pid()), "{lock}");
    assert!(lock["text"].as_str().unwrap().contains("perfweave-hangs-"), "{lock}");

    let hung = Hung::start("dead owner");
    let Some(lock) = wait(&hung, "lock") else { return };
    assert!(
        whom(&lock).is_empty() && lock["text"].as_str().unwrap().contains("which has ended, held the lock"),
        "{lock}"
    );

    let hung = Hung::start("priority inheritance");
    let Some(lock) = wait(&hung, "lock") else { return };
    assert_eq!((&lock["known"], lock["for"][0]["thread"].as_str()), (&"seen".into(), Some("owner")), "{lock}");
}

#[test]
fn the_other_end_of_pipes_and_sockets_is_named() {
    let hung = Hung::start("full pipe");
    let Some(full) = wait(&hung, "write") else { return };
    assert_eq!(whom(&full), children(hung.pid()), "{full}");
    assert!(full["text"].as_str().unwrap().contains("which is full"), "{full}");

    // Its own descriptor keeps the pipe open, so that the end never comes.
    let hung = Hung::start("own pipe");
    let Some(own) = wait(&hung, "read") else { return };
    assert!(
        whom(&own).is_empty() && own["text"].as_str().unwrap().starts_with("only its own process has pipe:["),
        "{own}"
    );

    for reason in ["socket", "connection"] {
        let hung = Hung::start(reason);
        let Some(silent) = wait(&hung, "read") else { return };
        assert_eq!(whom(&silent), children(hung.pid()), "{reason}: {silent}");
    }
}

#[test]
fn children_that_do_not_end_are_named() {
    for (reason, on) in [("child", "child"), ("vfork", "vfork")] {
        let hung = Hung::start(reason);
        let Some(waits) = wait(&hung, on) else { return };
        assert_eq!(whom(&waits), children(hung.pid()), "{reason}: {waits}");
    }
}

#[test]
fn who_was_stopped_is_told_how_it_goes_on() {
    let hung = Hung::start("time");
    let Some(asleep) = wait(&hung, "time") else { return };
    assert_eq!(asleep["call"], "clock_nanosleep");
    kill(Pid::from_raw(hung.pid() as i32), Signal::SIGSTOP).unwrap();
    let Some(stopped) = wait(&hung, "stopped") else { return };
    assert!(stopped["text"].as_str().unwrap().ends_with(&format!("kill -CONT {}", hung.pid())), "{stopped}");
}

/// A file system whose server does not answer, as one of a network.
#[test]
fn a_file_system_that_does_not_answer_is_named() {
    if perfweave_support::kernel("open /dev/fuse", File::options().read(true).write(true).open("/dev/fuse")).is_none() {
        return;
    }
    let hung = Hung::start("file system");
    let Some(served) = wait(&hung, "file system") else { return };
    assert!(whom(&served).contains(&children(hung.pid())[0]) || whom(&served).contains(&hung.pid().into()), "{served}");
}

// The programs.

/// Says that all is prepared. What follows blocks.
fn now() {
    println!("hangs now");
    std::io::stdout().flush().unwrap();
}

/// Sleeps for ever.
fn sleep() -> ! {
    loop {
        std::thread::sleep(std::time::Duration::from_secs(1000));
    }
}

/// A child that goes on with a function, and never returns.
fn child(then: impl FnOnce()) {
    if !child_or_parent() {
        then();
        sleep()
    }
}

/// Forks. True in the parent.
fn child_or_parent() -> bool {
    // SAFETY: the other thread of this process is the test harness's, which waits.
    unsafe { nix::unistd::fork() }.unwrap().is_parent()
}

/// A mutex of the C library.
struct Mutex(std::cell::UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: the C library's own functions are the only ones that use it.
unsafe impl Sync for Mutex {}

impl Mutex {
    const fn new() -> Self {
        Self(std::cell::UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER))
    }

    fn lock(&self) {
        // SAFETY: it was initialized, and lives as long as the program.
        assert_eq!(unsafe { libc::pthread_mutex_lock(self.0.get()) }, 0);
    }

    fn unlock(&self) {
        // SAFETY: this thread has locked it.
        assert_eq!(unsafe { libc::pthread_mutex_unlock(self.0.get()) }, 0);
    }

    /// For so many seconds.
    fn lock_for(&self, seconds: i64) {
        let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a time to write to.
        unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut until) };
        until.tv_sec += seconds;
        // SAFETY: as in `lock`, and a time that lives until the call returns.
        unsafe { libc::pthread_mutex_timedlock(self.0.get(), &raw const until) };
    }
}

static FIRST: Mutex = Mutex::new();
static SECOND: Mutex = Mutex::new();

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> {
    std::thread::Builder::new().name(name.into()).spawn(run).unwrap()
}

/// Runs alone, as a program that hangs.
#[test]
fn hung() {
    let Some(reason) = std::env::var_os(REASON) else { return };
    match reason.to_str().unwrap() {
        "condition" => {
            static WORD: (std::sync::Mutex<()>, Condvar) = (std::sync::Mutex::new(()), Condvar::new());
            static OTHER: (std::sync::Mutex<()>, Condvar) = (std::sync::Mutex::new(()), Condvar::new());
            let waits = |(lock, condition): &'static (std::sync::Mutex<()>, Condvar)| {
                move || {
                    let mut held = lock.lock().unwrap();
                    loop {
                        held = condition.wait(held).unwrap();
                    }
                }
            };
            thread("woken", waits(&WORD));
            thread("never", waits(&OTHER));
            let wakes = || loop {
                std::thread::sleep(std::time::Duration::from_millis(20));
                WORD.1.notify_one();
            };
            let wakes = thread("wakes", wakes);
            now();
            wakes.join().unwrap();
        }
        "mutexes" => {
            static BOTH: Barrier = Barrier::new(2);
            let take = |mine: &'static Mutex, other: &'static Mutex| {
                move || {
                    mine.lock();
                    BOTH.wait();
                    other.lock();
                }
            };
            let one = thread("one", take(&FIRST, &SECOND));
            thread("two", take(&SECOND, &FIRST));
            now();
            one.join().unwrap();
        }
        "busy mutex" => {
            for _ in 0..8 {
                thread("busy", || {
                    loop {
                        FIRST.lock();
                        std::thread::sleep(std::time::Duration::from_micros(100));
                        FIRST.unlock();
                    }
                });
            }
            now();
        }
        "ping-pong" => {
            let (mut asked, mut asks) = std::io::pipe().unwrap();
            let (mut answered, mut answers) = std::io::pipe().unwrap();
            let turn = move |of: &mut dyn Read, to: &mut dyn Write| {
                while of.read_exact(&mut [0]).and_then(|()| to.write_all(b"1")).is_ok() {}
            };
            let is_parent = child_or_parent();
            if is_parent {
                drop((asked, answers));
                now();
                asks.write_all(b"1").unwrap();
                turn(&mut answered, &mut asks);
            } else {
                drop((asks, answered));
                turn(&mut asked, &mut answers);
            }
        }
        "timed mutexes" => {
            static BOTH: Barrier = Barrier::new(2);
            let take = |mine: &'static Mutex, other: &'static Mutex| {
                move || {
                    mine.lock();
                    BOTH.wait();
                    other.lock_for(1000);
                }
            };
            thread("one", take(&FIRST, &SECOND));
            thread("two", take(&SECOND, &FIRST));
            now();
        }
        "namespace" => {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWPID).unwrap();
            child(priority_inheritance);
        }
        "dead owner" => {
            thread("owner", || FIRST.lock()).join().unwrap();
            now();
            FIRST.lock();
        }
        "priority inheritance" => priority_inheritance(),
        "flock" => flock(),
        "full pipe" => {
            let (reads, mut writes) = std::io::pipe().unwrap();
            child(|| ());
            drop(reads);
            now();
            writes.write_all(&vec![0; 1 << 20]).unwrap();
        }
        "own pipe" => {
            let (mut reads, _writes) = std::io::pipe().unwrap();
            now();
            reads.read_to_end(&mut Vec::new()).unwrap();
        }
        "socket" => {
            let (mut one, other) = UnixStream::pair().unwrap();
            child(|| ());
            drop(other);
            now();
            one.read_exact(&mut [0]).unwrap();
        }
        "connection" => {
            let listens = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let mut client = std::net::TcpStream::connect(listens.local_addr().unwrap()).unwrap();
            let (server, _) = listens.accept().unwrap();
            child(|| ());
            drop(server);
            now();
            client.read_exact(&mut [0]).unwrap();
        }
        "child" => {
            child(|| ());
            now();
            nix::sys::wait::wait().unwrap();
        }
        "vfork" => {
            now();
            // The child sleeps in place of becoming a program.
            let mut command = Command::new("true");
            // SAFETY: it calls nothing but sleep.
            unsafe { command.pre_exec(|| sleep()) };
            vfork();
        }
        "file system" => file_system(),
        "time" => {
            now();
            sleep();
        }
        other => panic!("{other}"),
    }
    sleep();
}

/// As posix_spawn(3) starts a child, which then sleeps.
fn vfork() {
    extern "C" fn sleeps(_: *mut libc::c_void) -> libc::c_int {
        sleep()
    }
    let mut stack = vec![0u128; 1 << 12];
    let top = stack.as_mut_ptr_range().end;
    // SAFETY: the child has a stack of its own, which lives as long as this call, and calls nothing but sleep.
    unsafe {
        libc::clone(sleeps, top.cast(), libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD, std::ptr::null_mut())
    };
}

/// A thread holds a futex of priority inheritance, for which the kernel keeps the owner.
fn priority_inheritance() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static WORD: AtomicU32 = AtomicU32::new(0);
    let (tell, told) = std::sync::mpsc::channel();
    thread("owner", move || {
        WORD.store(nix::unistd::gettid().as_raw() as u32, Ordering::SeqCst);
        tell.send(()).unwrap();
        sleep()
    });
    told.recv().unwrap();
    now();
    let (word, none) = (WORD.as_ptr(), std::ptr::null::<libc::timespec>());
    // SAFETY: the word lives as long as the program.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_LOCK_PI, 0, none) };
}

/// A child holds the lock on a file.
fn flock() {
    let path = folder(std::process::id());
    let (mut told, mut tell) = std::io::pipe().unwrap();
    let own = File::create(&path).unwrap();
    let other = path.clone();
    child(move || {
        let lock = nix::fcntl::Flock::lock(File::open(other).unwrap(), nix::fcntl::FlockArg::LockExclusive);
        tell.write_all(b"1").unwrap();
        std::mem::forget(lock);
    });
    told.read_exact(&mut [0]).unwrap();
    std::fs::remove_file(path).unwrap();
    now();
    let _ = nix::fcntl::Flock::lock(own, nix::fcntl::FlockArg::LockExclusive);
}

/// A file system of a server that never answers, in a mount namespace of its own.
fn file_system() {
    use nix::mount::{MsFlags, mount};
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    let folder = folder(std::process::id());
    std::fs::create_dir(&folder).unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    mount(Some("none"), &folder, Some("fuse"), MsFlags::empty(), Some(&*options)).unwrap();
    // The server: it has the device open, and does not read it.
    child(|| ());
    now();
    let _ = std::fs::metadata(&folder);
    let _ = std::fs::read_dir(&folder);
}
