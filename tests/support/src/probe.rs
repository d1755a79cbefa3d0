//! A function to set probes on, and where it is.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};

/// The name of [`probed`] in the symbols of its file.
pub const SYMBOL: &str = "perfweave_support_probed";

/// Gives three times the number. It has no counter of coverage in front: that is an instruction with a LOCK prefix,
/// which the kernel does not probe.
#[cfg(target_arch = "x86_64")]
// SAFETY: no other function has that name, and the number comes in rdi and goes in rax.
#[unsafe(export_name = "perfweave_support_probed")]
#[unsafe(naked)]
pub extern "C" fn probed(number: u64) -> u64 {
    core::arch::naked_asm!("lea rax, [rdi + 2*rdi]", "ret")
}

/// Gives three times the number.
#[cfg(not(target_arch = "x86_64"))]
// SAFETY: no other function has that name.
#[unsafe(export_name = "perfweave_support_probed")]
#[inline(never)]
pub extern "C" fn probed(number: u64) -> u64 {
    std::hint::black_box(number).wrapping_mul(3)
}

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text",
    ".globl perfweave_support_operand",
    "perfweave_support_operand:",
    // movabs of a number to rax, and a return. As instructions, the number's bytes are none, and one that 64-bit
    // programs lack.
    ".byte 0x48, 0xb8, 0x62, 0xcf, 0x1a, 0x00, 0x06, 0xff, 0xff, 0xff, 0xc3",
    ".popsection",
);

/// An instruction whose number lies from its third byte on: the file, and how far behind that file's begin the
/// instruction is. A decoder finds nothing at the third byte, and what no program may do at the seventh.
#[cfg(target_arch = "x86_64")]
pub fn operand() -> io::Result<(PathBuf, u64)> {
    unsafe extern "C" {
        safe fn perfweave_support_operand();
    }
    let (_, file, offset) = place_of(perfweave_support_operand as *const () as u64)?;
    Ok((file, offset))
}

/// Where [`probed`] is: its address, the file, and how far behind that file's begin it is.
pub fn place() -> io::Result<(u64, PathBuf, u64)> {
    place_of(probed as *const () as u64)
}

fn place_of(address: u64) -> io::Result<(u64, PathBuf, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let place = maps.lines().find_map(|line| {
        // 55d0c0a00000-55d0c0a2d000 r-xp 0002c000 fe:00 1234    /path
        let mut fields = line.split_ascii_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (from, to, offset) = (hex(from)?, hex(to)?, hex(fields.nth(1)?)?);
        (from..to).contains(&address).then(|| offset + (address - from))
    });
    let offset = place.ok_or_else(|| io::Error::other("this program is not where it is"))?;
    Ok((address, std::env::current_exe()?, offset))
}

// Static probes as `sys/sdt.h` makes them: one in two places, and one with a semaphore.
core::arch::global_asm!(
    ".pushsection .text",
    ".globl perfweave_support_go",
    "perfweave_support_go:",
    "2: nop",
    "3: nop",
    "ret",
    ".globl perfweave_support_guarded",
    "perfweave_support_guarded:",
    "4: nop",
    "ret",
    ".popsection",
    ".macro perfweave_note place, semaphore, name",
    ".balign 4",
    ".4byte 6f - 5f, 8f - 7f, 3",
    "5: .asciz \"stapsdt\"",
    "6: .balign 4",
    "7: .8byte \\place, 0, \\semaphore",
    ".asciz \"perfweave\"",
    ".asciz \"\\name\"",
    ".asciz \"8@%rdi\"",
    "8: .balign 4",
    ".endm",
    ".pushsection .note.stapsdt, \"\", %note",
    "perfweave_note 2b, 0, go",
    "perfweave_note 4b, perfweave_support_semaphore, guarded",
    "perfweave_note 3b, 0, go",
    ".popsection",
);

// SAFETY: nothing else has that name. The section is one of data, whose offset in the file the kernel can be told.
#[unsafe(export_name = "perfweave_support_semaphore")]
#[unsafe(link_section = ".probes")]
static SEMAPHORE: AtomicU16 = AtomicU16::new(0);

/// Passes the static probe `perfweave:go`, which has two places.
pub fn go() {
    unsafe extern "C" {
        safe fn perfweave_support_go();
    }
    perfweave_support_go();
}

/// Passes the static probe `perfweave:guarded` if somebody traces it: whether somebody does.
pub fn guarded() -> bool {
    unsafe extern "C" {
        safe fn perfweave_support_guarded();
    }
    let is_traced = SEMAPHORE.load(Ordering::Relaxed) > 0;
    if is_traced {
        perfweave_support_guarded();
    }
    is_traced
}
