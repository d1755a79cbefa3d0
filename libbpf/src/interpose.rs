//! What else of the C library tools call: dlsym(3), by which Python finds libbcc's functions, and waits, which fail
//! with EINTR for a signal that came during a call of ours ([`crate::signals`]).

use crate::border::{errno, set_errno};
use crate::real::Real;
use crate::settings::is_lazy;
use crate::signals::take_interrupt;
use crate::watch::{self, Shared};
use crate::{ours, sys};
use std::ffi::{CStr, c_int, c_long, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

/// The version of dlsym(3) that the C library has had from the first.
const DLSYM: &CStr = if cfg!(target_arch = "x86_64") { c"GLIBC_2.2.5" } else { c"GLIBC_2.17" };

/// The C library's dlsym(3).
static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

fn know_dlsym() -> *mut c_void {
    let mut real = REAL_DLSYM.load(Ordering::Relaxed);
    if real.is_null() {
        // SAFETY: names that end with zeros. dlvsym(3) is the C library's.
        real = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), DLSYM.as_ptr()) };
        REAL_DLSYM.store(real, Ordering::Relaxed);
    }
    real
}

/// dlsym(3) itself, for a library's handle.
pub(crate) fn real_dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    let real = know_dlsym();
    if real.is_null() {
        return null_mut();
    }
    // SAFETY: the C library's function of that name.
    let real: unsafe extern "C" fn(*mut c_void, *const i8) -> *mut c_void = unsafe { std::mem::transmute(real) };
    // SAFETY: a handle of dlopen(3), and a name.
    unsafe { real(handle, name.as_ptr().cast()) }
}

/// The names of the families that are ours.
const FAMILIES: [&[u8]; 5] = [b"perf_buffer__", b"ring_buffer__", b"ring__", b"perf_reader_", b"bpf_open_perf_buffer"];

/// Our function for a name that the tool asks a library for, if that has it. NULL: ask the C library.
#[cfg_attr(perfweave_panics, allow(dead_code, reason = "see below"))]
extern "C" fn ours_for(handle: *mut c_void, name: *const i8) -> *mut c_void {
    know_dlsym();
    if handle == libc::RTLD_NEXT || handle == libc::RTLD_DEFAULT || name.is_null() {
        return null_mut();
    }
    // SAFETY: the tool gives a name that ends with a zero.
    let name = unsafe { CStr::from_ptr(name.cast()) };
    if !FAMILIES.iter().any(|family| name.to_bytes().starts_with(family)) {
        return null_mut();
    }
    let theirs = real_dlsym(handle, name);
    if theirs.is_null() {
        return null_mut();
    }
    real_dlsym(ours::handle(), name)
}

// Not in the build of libbpf/check that has AddressSanitizer, which asks for names before it has its own memory.
// A jump and no call, so that the C library sees who has called: RTLD_NEXT means "after the caller".
#[cfg(all(target_arch = "x86_64", target_env = "gnu", not(perfweave_panics)))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn dlsym(handle: *mut c_void, name: *const i8) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {ours}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jne 2f",
        "jmp qword ptr [rip + {real}]",
        "2: ret",
        ours = sym ours_for,
        real = sym REAL_DLSYM,
    )
}

#[cfg(all(target_arch = "aarch64", target_env = "gnu", not(perfweave_panics)))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn dlsym(handle: *mut c_void, name: *const i8) -> *mut c_void {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {ours}",
        "mov x9, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "cbnz x9, 2f",
        "adrp x16, {real}",
        "ldr x16, [x16, :lo12:{real}]",
        "br x16",
        "2: mov x0, x9",
        "ret",
        ours = sym ours_for,
        real = sym REAL_DLSYM,
    )
}

type Waits = unsafe extern "C-unwind" fn(c_int, *mut libc::epoll_event, c_int, c_int) -> c_int;

/// Without a C library behind us there is the kernel.
unsafe extern "C-unwind" fn by_the_kernel(
    epoll: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    let none = std::ptr::null::<c_void>();
    // SAFETY: as the caller's.
    let said: c_long = unsafe { libc::syscall(libc::SYS_epoll_pwait, epoll, events, most, timeout, none, 8_usize) };
    said as c_int
}

static EPOLL_WAIT: Real = Real::new(b"epoll_wait\0");

/// epoll_wait(2) of the C library, at which threads can be cancelled.
pub(crate) fn next_epoll_wait() -> Waits {
    let next = EPOLL_WAIT.find();
    if next.is_null() {
        return by_the_kernel;
    }
    // SAFETY: the C library's function of that name.
    unsafe { std::mem::transmute::<*mut c_void, Waits>(next) }
}

/// Finds the functions behind ours before the program runs: a handler of a signal and a child of fork(2) may wait, and
/// may not look for names.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE: extern "C" fn() = {
    extern "C" fn find() {
        know_dlsym();
        for real in [&EPOLL_WAIT, &POLL, &PPOLL, &EPOLL_PWAIT] {
            real.find();
        }
    }
    find
};

/// Fails with EINTR if a signal came during a call of ours.
fn interrupted() -> bool {
    let came = take_interrupt();
    if came {
        set_errno(libc::EINTR);
    }
    came
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int {
    let ours = watch::is_ours(fd);
    // A lazy reader wakes the tool by another descriptor: see `epoll_wait`.
    if !(ours && is_lazy()) && sys::epoll_ctl(epfd, op, fd, event).is_err() {
        return -1;
    }
    if ours {
        // SAFETY: NULL, or the tool's event. The kernel's struct is packed.
        let event = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
        watch::note(epfd, op, fd, event);
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn epoll_wait(epfd: c_int, events: *mut libc::epoll_event, most: c_int, timeout: c_int) -> c_int {
    if interrupted() {
        return -1;
    }
    let groups = watch::groups(epfd);
    // SAFETY: as the tool's own call.
    let wait = |timeout| unsafe { next_epoll_wait()(epfd, events, most, timeout) };
    if groups.is_empty() || most < 1 {
        return wait(timeout);
    }
    let report = |event: &libc::epoll_event| {
        let ready = libc::epoll_event { events: libc::EPOLLIN as u32, u64: event.u64 };
        // SAFETY: the tool has room for one at least.
        unsafe { events.write_unaligned(ready) };
        1
    };
    if is_lazy() {
        return lazy_wait(epfd, &groups, timeout, &wait, &report, events);
    }
    match wait(timeout) {
        // Silence: the tool reads once more if there are losses that nothing has told yet.
        0 => groups.iter().find(|(group, _)| owes(group)).map_or(0, |(_, event)| report(event)),
        said => said,
    }
}

/// Whether the next read of a group tells something.
fn owes(group: &Shared) -> bool {
    group.enter().is_ok_and(|mut group| group.is_unfinished() || !group.has_new() && group.has_untold())
}

/// What the reader's own descriptor reports.
fn marker() -> u64 {
    &raw const REAL_DLSYM as u64
}

/// Waits until an event is proven. The tool hears of it as of one of its descriptors. It takes silence for the end: so
/// before that, it hears of what is there and not proven, and its next read proves it.
fn lazy_wait(
    epfd: c_int,
    groups: &[(Shared, libc::epoll_event)],
    timeout: c_int,
    wait: &dyn Fn(c_int) -> c_int,
    report: &dyn Fn(&libc::epoll_event) -> c_int,
    events: *mut libc::epoll_event,
) -> c_int {
    const LONGEST: Duration = Duration::from_secs(1);
    let until = u64::try_from(timeout).ok().map(|timeout| Instant::now() + Duration::from_millis(timeout));
    loop {
        let mut pause = LONGEST;
        for (shared, event) in groups {
            let Ok(mut group) = shared.enter() else { continue };
            if group.settles_next || group.is_unfinished() || group.wait(Duration::ZERO).unwrap_or(false) {
                return report(event);
            }
            if let Ok(settler) = group.settler() {
                pause = pause.min(settler.reader.time_to_next_refresh());
                // It is there already but the first time.
                let _ = sys::watch(epfd, settler.fd(), marker());
            }
        }
        let left = until.map_or(LONGEST, |until| until.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            let last = groups.iter().find(|(shared, _)| shared.enter().is_ok_and(|mut group| group.is_last()));
            return last.map_or(0, |(_, event)| report(event));
        }
        let said = wait(left.min(pause).as_micros().div_ceil(1000) as c_int);
        let others = others(events, said);
        if said < 0 || others > 0 {
            return others;
        }
    }
}

/// Takes the reader's descriptor out of what the kernel has reported. An error stays one.
fn others(events: *mut libc::epoll_event, said: c_int) -> c_int {
    let Ok(count) = usize::try_from(said) else {
        set_errno(errno());
        return said;
    };
    let mut kept = 0;
    for at in 0..count {
        // SAFETY: the kernel has written that many.
        let place = unsafe { events.add(at) };
        // SAFETY: as above.
        let event = unsafe { place.read_unaligned() };
        if event.u64 != marker() {
            // SAFETY: no further than the one just read.
            let place = unsafe { events.add(kept) };
            // SAFETY: as above.
            unsafe { place.write_unaligned(event) };
            kept += 1;
        }
    }
    kept as c_int
}

macro_rules! waits {
    ($real:ident: $name:ident($($word:ident: $type:ty),*)) => {
        static $real: Real = Real::new(concat!(stringify!($name), "\0").as_bytes());

        #[unsafe(no_mangle)]
        pub extern "C-unwind" fn $name($($word: $type),*) -> c_int {
            let next = $real.find();
            if interrupted() {
                return -1;
            }
            if next.is_null() {
                return crate::real::absent(stringify!($name));
            }
            // SAFETY: the C library's function of that name.
            let next: unsafe extern "C-unwind" fn($($type),*) -> c_int = unsafe { std::mem::transmute(next) };
            // SAFETY: the words are the tool's.
            unsafe { next($($word),*) }
        }
    };
}

waits!(POLL: poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int));
waits!(PPOLL: ppoll(
    fds: *mut libc::pollfd, count: libc::nfds_t, time: *const libc::timespec, mask: *const libc::sigset_t
));
waits!(EPOLL_PWAIT: epoll_pwait(
    epfd: c_int, events: *mut libc::epoll_event, most: c_int, timeout: c_int, mask: *const libc::sigset_t
));
