//! Signals that are delivered, as strace(1) prints them.

use super::calls::name_of;
use super::named::signal;
use crate::failure::Failure;
use linux_raw_sys::general as kernel;
use nix::sys::signal::Signal;
use perfweave::{Record, RingOptions, Rings};
use perfweave_events::{EventOptions, Field, Format};
use serde_json::{Map, Value, json};
use std::mem::offset_of;

/// The tracepoint that tells of them.
const DELIVER: &str = "signal:signal_deliver";

/// Where the records are, and their fields.
#[derive(Debug)]
pub struct Signals {
    source: usize,
    signal: Field,
    errno: Field,
    code: Field,
    handler: Field,
}

/// A signal that a thread takes.
#[derive(Debug, Clone, Copy)]
pub struct Delivered {
    pub signal: i32,
    errno: i32,
    code: i32,
    /// Whether the program has no handler for it, and does not ignore it.
    is_default: bool,
}

impl Signals {
    pub fn source(options: RingOptions) -> RingOptions {
        options.tracepoint(DELIVER)
    }

    pub fn new(rings: &Rings) -> Result<Self, Failure> {
        let source = rings.sources().iter().position(|source| source.tracepoint() == Some(DELIVER));
        let source = source.ok_or_else(|| Failure::new("signals are not traced"))?;
        let format = Format::of(rings, source)?;
        let [signal, errno, code, handler] = ["sig", "errno", "code", "sa_handler"].map(|name| format.field(name));
        Ok(Self { source, signal: signal?, errno: errno?, code: code?, handler: handler? })
    }

    /// The signal of a record.
    pub fn take(&self, record: &Record<'_>) -> Option<Delivered> {
        if record.source() != Some(self.source) {
            return None;
        }
        let [signal, errno, code, handler] =
            [&self.signal, &self.errno, &self.code, &self.handler].map(|field| field.int(record));
        // SIG_DFL is 0.
        Some(Delivered { signal: signal? as i32, errno: errno? as i32, code: code? as i32, is_default: handler? == 0 })
    }
}

impl Delivered {
    /// Whether it ends the process.
    pub fn kills(&self) -> bool {
        use Signal::{SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH};
        let harmless = [SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH];
        self.is_default && !harmless.iter().any(|harmless| *harmless as i32 == self.signal)
    }

    /// It has no handler, and nothing tells of it but the end of its thread. The threads of a process that ends, or
    /// executes a program, have it too.
    pub fn is_kill(&self) -> bool {
        self.signal == Signal::SIGKILL as i32
    }

    /// `--- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED, si_pid=7} ---`. `info`: what the kernel knows of it.
    pub fn text(&self, info: Option<&[u8]>) -> String {
        let name = self.name();
        let fields: String = self.fields(info).into_iter().map(|(name, _, text)| format!(", {name}={text}")).collect();
        format!("--- {name} {{si_signo={name}, si_code={}{fields}}} ---", self.code_name())
    }

    pub fn json(&self, info: Option<&[u8]>) -> Value {
        let fields = self.fields(info).into_iter().map(|(name, value, _)| (name.to_owned(), value));
        let mut object = json!({ "signal": self.name(), "code": self.code_name() });
        object["info"] = Value::Object(fields.collect::<Map<_, _>>());
        object
    }

    fn name(&self) -> String {
        signal(self.signal as u64)
    }

    /// What is known besides the code: names, values, and these as text.
    fn fields(&self, info: Option<&[u8]>) -> Vec<(&'static str, Value, String)> {
        let mut fields = Vec::new();
        let mut number = |name, value: i64| fields.push((name, json!(value), value.to_string()));
        if self.errno != 0 {
            number("si_errno", self.errno.into());
        }
        let Some(info) = info.map(Info).filter(|info| info.is_of(self)) else { return fields };
        match (self.code, Signal::try_from(self.signal).ok()) {
            (kernel::SI_QUEUE | kernel::SI_TKILL, _) | (0, _) => {
                number("si_pid", info.int(PID).into());
                number("si_uid", info.int(UID).into());
                if self.code == kernel::SI_QUEUE {
                    number("si_int", info.int(VALUE).into());
                }
            }
            (code, Some(Signal::SIGCHLD)) if code > 0 => {
                number("si_pid", info.int(PID).into());
                number("si_uid", info.int(UID).into());
                let status = info.int(STATUS);
                let is_number = code == kernel::CLD_EXITED as i32;
                let text = if is_number { status.to_string() } else { signal(status as u64) };
                fields.push(("si_status", json!(status), text));
                for (name, at) in [("si_utime", USER_TIME), ("si_stime", SYSTEM_TIME)] {
                    // In ticks of sysconf(_SC_CLK_TCK), a hundred in a second on all machines.
                    let ticks = info.long(at);
                    let seconds =
                        if ticks == 0 { String::new() } else { format!(" /* {:.2} s */", ticks as f64 / 100.0) };
                    fields.push((name, json!(ticks), format!("{ticks}{seconds}")));
                }
            }
            (code, Some(Signal::SIGSYS)) if code > 0 => {
                let (address, call) = (info.long(CALL_ADDRESS), info.int(CALL));
                fields.push(("si_call_addr", json!(address), pointer(address)));
                let name = name_of(call.into()).map_or_else(|| call.to_string(), |name| format!("__NR_{name}"));
                fields.push(("si_syscall", json!(call), name));
            }
            (code, Some(Signal::SIGIO)) if code > 0 && code < KERNEL => {
                fields.push(("si_band", json!(info.long(BAND)), info.long(BAND).to_string()));
                fields.push(("si_fd", json!(info.int(DESCRIPTOR)), info.int(DESCRIPTOR).to_string()));
            }
            (code, Some(Signal::SIGSEGV | Signal::SIGBUS | Signal::SIGILL | Signal::SIGFPE | Signal::SIGTRAP))
                if code > 0 =>
            {
                fields.push(("si_addr", json!(info.long(ADDRESS)), pointer(info.long(ADDRESS))));
            }
            _ => {}
        }
        fields
    }

    fn code_name(&self) -> String {
        let of_all = CODES.iter().find(|(code, _)| *code == self.code);
        let own: &[(u32, &str)] = match Signal::try_from(self.signal) {
            Ok(Signal::SIGCHLD) => CHILD_CODES,
            Ok(Signal::SIGSEGV) => MEMORY_CODES,
            Ok(Signal::SIGBUS) => BUS_CODES,
            Ok(Signal::SIGILL) => INSTRUCTION_CODES,
            Ok(Signal::SIGFPE) => ARITHMETIC_CODES,
            Ok(Signal::SIGTRAP) => TRAP_CODES,
            Ok(Signal::SIGSYS) => CALL_CODES,
            Ok(Signal::SIGIO) => POLL_CODES,
            _ => &[],
        };
        let of_signal = || own.iter().find(|(code, _)| *code as i32 == self.code).map(|(_, name)| *name);
        of_all.map(|(_, name)| *name).or_else(of_signal).map_or_else(|| format!("{:#x}", self.code), str::to_owned)
    }
}

fn pointer(address: i64) -> String {
    if address == 0 { "NULL".into() } else { format!("{address:#x}") }
}

/// A `siginfo_t` as the kernel has it (include/uapi/asm-generic/siginfo.h).
struct Info<'a>(&'a [u8]);

/// Bytes that hold all fields.
pub const INFO: usize = size_of::<kernel::siginfo>();

type Head = kernel::siginfo__bindgen_ty_1__bindgen_ty_1;
const FIELDS: usize = offset_of!(Head, _sifields);
const PID: usize = FIELDS + offset_of!(kernel::__sifields__bindgen_ty_4, _pid);
const UID: usize = FIELDS + offset_of!(kernel::__sifields__bindgen_ty_4, _uid);
const STATUS: usize = FIELDS + offset_of!(kernel::__sifields__bindgen_ty_4, _status);
const USER_TIME: usize = FIELDS + offset_of!(kernel::__sifields__bindgen_ty_4, _utime);
const SYSTEM_TIME: usize = FIELDS + offset_of!(kernel::__sifields__bindgen_ty_4, _stime);
const VALUE: usize = FIELDS + offset_of!(kernel::__sifields__bindgen_ty_3, _sigval);
const ADDRESS: usize = FIELDS + offset_of!(kernel::__sifields__bindgen_ty_5, _addr);
const BAND: usize = FIELDS + offset_of!(kernel::__sifields__bindgen_ty_6, _band);
const DESCRIPTOR: usize = FIELDS + offset_of!(kernel::__sifields__bindgen_ty_6, _fd);
const CALL_ADDRESS: usize = FIELDS + offset_of!(kernel::__sifields__bindgen_ty_7, _call_addr);
const CALL: usize = FIELDS + offset_of!(kernel::__sifields__bindgen_ty_7, _syscall);

impl Info<'_> {
    /// Whether it is that of this signal.
    fn is_of(&self, delivered: &Delivered) -> bool {
        let [number, code] = [offset_of!(Head, si_signo), offset_of!(Head, si_code)].map(|at| self.int(at));
        (number, code) == (delivered.signal, delivered.code)
    }

    fn int(&self, at: usize) -> i32 {
        self.0.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| i32::from_ne_bytes(*bytes))
    }

    fn long(&self, at: usize) -> i64 {
        self.0.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| i64::from_ne_bytes(*bytes))
    }
}

const KERNEL: i32 = kernel::SI_KERNEL as i32;

/// Names and numbers of codes, as the crate linux-raw-sys has them from the kernel's headers.
macro_rules! codes {
    ($name:ident, $kind:ty, $($code:ident)+) => {
        const $name: &[($kind, &str)] = &[$((kernel::$code as $kind, stringify!($code))),+];
    };
}

codes!(CODES, i32, SI_USER SI_KERNEL SI_QUEUE SI_TIMER SI_MESGQ SI_ASYNCIO SI_SIGIO SI_TKILL SI_DETHREAD SI_ASYNCNL);
codes!(CHILD_CODES, u32, CLD_EXITED CLD_KILLED CLD_DUMPED CLD_TRAPPED CLD_STOPPED CLD_CONTINUED);
codes!(MEMORY_CODES, u32, SEGV_MAPERR SEGV_ACCERR SEGV_BNDERR SEGV_PKUERR SEGV_ACCADI SEGV_ADIDERR SEGV_ADIPERR
    SEGV_MTEAERR SEGV_MTESERR);
codes!(BUS_CODES, u32, BUS_ADRALN BUS_ADRERR BUS_OBJERR BUS_MCEERR_AR BUS_MCEERR_AO);
codes!(INSTRUCTION_CODES, u32, ILL_ILLOPC ILL_ILLOPN ILL_ILLADR ILL_ILLTRP ILL_PRVOPC ILL_PRVREG ILL_COPROC ILL_BADSTK);
codes!(ARITHMETIC_CODES, u32, FPE_INTDIV FPE_INTOVF FPE_FLTDIV FPE_FLTOVF FPE_FLTUND FPE_FLTRES FPE_FLTINV FPE_FLTSUB);
codes!(TRAP_CODES, u32, TRAP_BRKPT TRAP_TRACE TRAP_BRANCH TRAP_HWBKPT TRAP_UNK TRAP_PERF);
codes!(CALL_CODES, u32, SYS_SECCOMP SYS_USER_DISPATCH);
codes!(POLL_CODES, u32, POLL_IN POLL_OUT POLL_MSG POLL_ERR POLL_PRI POLL_HUP);

#[cfg(test)]
mod tests {
    use super::{Delivered, INFO, PID, STATUS, UID};
    use nix::sys::signal::Signal;

    fn delivered(signal: Signal, code: i32, is_default: bool) -> Delivered {
        Delivered { signal: signal as i32, errno: 0, code, is_default }
    }

    #[test]
    fn a_signal_is_printed_as_strace_does() {
        let child = delivered(Signal::SIGCHLD, 1, false);
        let mut info = vec![0; INFO];
        for (at, value) in [(0, 17), (8, 1), (PID, 4711), (UID, 1000), (STATUS, 3)] {
            info[at..at + 4].copy_from_slice(&i32::to_ne_bytes(value));
        }
        assert_eq!(
            child.text(Some(&info)),
            "--- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED, si_pid=4711, si_uid=1000, si_status=3, si_utime=0, \
             si_stime=0} ---"
        );
        // That of another signal.
        let bare = "--- SIGINT {si_signo=SIGINT, si_code=SI_USER} ---";
        assert_eq!([None, Some(&info[..])].map(|info| delivered(Signal::SIGINT, 0, true).text(info)), [bare; 2]);
        let text = delivered(Signal::SIGSEGV, 1, true).text(None);
        assert_eq!(text, "--- SIGSEGV {si_signo=SIGSEGV, si_code=SEGV_MAPERR} ---");
    }

    #[test]
    fn what_ends_a_process() {
        let kills = |signal, is_default| delivered(signal, 0, is_default).kills();
        assert!(kills(Signal::SIGTERM, true) && kills(Signal::SIGKILL, true));
        assert!(!kills(Signal::SIGTERM, false) && !kills(Signal::SIGCHLD, true) && !kills(Signal::SIGSTOP, true));
    }
}
