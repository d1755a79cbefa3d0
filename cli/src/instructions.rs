//! BPF programs as instructions.

mod object;

pub use object::object;
use std::os::fd::{AsRawFd, BorrowedFd};

// Conditions under which instructions are left out: include/uapi/linux/bpf_common.h, bpf.h.
pub const EQUAL: u8 = 0x10;
pub const UNEQUAL: u8 = 0x50;
pub const NOT_ABOVE: u8 = 0xb0;
pub const NOT_NEGATIVE: u8 = 0x70;

/// The register of the frame.
pub const FRAME: u8 = 10;

// enum bpf_func_id
const MAP_LOOKUP_ELEM: i32 = 1;

/// Instructions, and those that need a map.
#[derive(Debug, Default)]
pub struct Code {
    pub bytes: Vec<[u8; 8]>,
    pub maps: Vec<(usize, &'static str)>,
}

impl Code {
    pub fn push(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> &mut Self {
        let registers = if cfg!(target_endian = "little") { to | from << 4 } else { to << 4 | from };
        let mut bytes = [code, registers, 0, 0, 0, 0, 0, 0];
        bytes[2..4].copy_from_slice(&offset.to_ne_bytes());
        bytes[4..].copy_from_slice(&immediate.to_ne_bytes());
        self.bytes.push(bytes);
        self
    }

    /// A register gets a number.
    pub fn set(&mut self, to: u8, value: i32) -> &mut Self {
        self.push(0xb7, to, 0, 0, value)
    }

    /// A register gets another one plus a number.
    pub fn place(&mut self, to: u8, from: u8, plus: i32) -> &mut Self {
        self.push(0xbf, to, from, 0, 0).push(0x07, to, 0, 0, plus)
    }

    /// A register grows by another one.
    pub fn add(&mut self, to: u8, from: u8) -> &mut Self {
        self.push(0x0f, to, from, 0, 0)
    }

    /// A register gets the `u64` at another one plus an offset.
    pub fn load(&mut self, to: u8, from: u8, offset: usize) -> &mut Self {
        self.push(0x79, to, from, offset as i16, 0)
    }

    pub fn load_u32(&mut self, to: u8, from: u8, offset: usize) -> &mut Self {
        self.push(0x61, to, from, offset as i16, 0)
    }

    pub fn load_local(&mut self, to: u8, local: i16) -> &mut Self {
        self.push(0x79, to, FRAME, local, 0)
    }

    pub fn store(&mut self, to: u8, offset: i16, from: u8) -> &mut Self {
        self.push(0x7b, to, from, offset, 0)
    }

    #[cfg(feature = "btf")]
    pub fn store_u32(&mut self, to: u8, offset: i16, from: u8) -> &mut Self {
        self.push(0x63, to, from, offset, 0)
    }

    /// A register gets the map.
    pub fn map(&mut self, name: &'static str, to: u8) -> &mut Self {
        self.maps.push((self.bytes.len(), name));
        self.push(0x18, to, 0, 0, 0).push(0, 0, 0, 0, 0)
    }

    /// A register gets the map with this descriptor, which the loading process has open.
    pub fn map_fd(&mut self, to: u8, map: BorrowedFd<'_>) -> &mut Self {
        const PSEUDO_MAP_FD: u8 = 1;
        self.push(0x18, to, PSEUDO_MAP_FD, 0, map.as_raw_fd()).push(0, 0, 0, 0, 0)
    }

    /// A register gets the address of the first element of the array with this descriptor.
    pub fn map_value(&mut self, to: u8, map: BorrowedFd<'_>) -> &mut Self {
        const PSEUDO_MAP_VALUE: u8 = 2;
        self.push(0x18, to, PSEUDO_MAP_VALUE, 0, map.as_raw_fd()).push(0, 0, 0, 0, 0)
    }

    /// Jumps back to an earlier instruction if a register is less than a number.
    pub fn back_if_less(&mut self, of: u8, value: i32, begin: usize) -> &mut Self {
        let back = begin as i64 - self.bytes.len() as i64 - 1;
        self.push(0xa5, of, 0, back as i16, value)
    }

    pub fn call(&mut self, helper: i32) -> &mut Self {
        self.push(0x85, 0, 0, 0, helper)
    }

    /// Ends with a number.
    pub fn exit_with(&mut self, value: i32) -> &mut Self {
        self.set(0, value).exit()
    }

    pub fn exit(&mut self) -> &mut Self {
        self.push(0x95, 0, 0, 0, 0)
    }

    /// Leaves instructions out under a condition on a register and a number.
    pub fn unless(&mut self, condition: u8, of: u8, value: i32, body: impl FnOnce(&mut Self)) -> &mut Self {
        self.unless_by(0x05 | condition, of, 0, value, body)
    }

    fn unless_by(&mut self, code: u8, of: u8, by: u8, value: i32, body: impl FnOnce(&mut Self)) -> &mut Self {
        let at = self.bytes.len();
        self.push(code, of, by, 0, value);
        body(self);
        let skipped = (self.bytes.len() - at - 1) as i16;
        self.bytes[at][2..4].copy_from_slice(&skipped.to_ne_bytes());
        self
    }

    /// A register keeps these bits.
    pub fn and(&mut self, of: u8, bits: i32) -> &mut Self {
        self.push(0x57, of, 0, 0, bits)
    }

    /// A register is shifted to the left.
    pub fn shift(&mut self, of: u8, by: i32) -> &mut Self {
        self.push(0x67, of, 0, 0, by)
    }

    pub fn negate(&mut self, of: u8) -> &mut Self {
        self.push(0x87, of, 0, 0, 0)
    }

    /// Leaves instructions out if a register is less than another one.
    pub fn unless_less(&mut self, of: u8, than: u8, body: impl FnOnce(&mut Self)) -> &mut Self {
        self.unless_by(0xad, of, than, 0, body)
    }

    /// The first instructions if a register is a number, and the others if it is not.
    pub fn either(
        &mut self,
        of: u8,
        value: i32,
        is: impl FnOnce(&mut Self),
        is_not: impl FnOnce(&mut Self),
    ) -> &mut Self {
        let mut at = 0;
        self.unless(UNEQUAL, of, value, |code| {
            is(code);
            at = code.bytes.len();
            code.push(0x05, 0, 0, 0, 0);
        });
        is_not(self);
        let skipped = (self.bytes.len() - at - 1) as i16;
        self.bytes[at][2..4].copy_from_slice(&skipped.to_ne_bytes());
        self
    }

    /// Leaves instructions out if a register is not above a number, both without a sign.
    pub fn unless_less_or_equal(&mut self, of: u8, value: i32, body: impl FnOnce(&mut Self)) -> &mut Self {
        self.unless_by(0xb5, of, 0, value, body)
    }

    /// Leaves instructions out if a register is not above another one.
    pub fn unless_not_above(&mut self, of: u8, than: u8, body: impl FnOnce(&mut Self)) -> &mut Self {
        self.unless_by(0xbd, of, than, 0, body)
    }

    /// R0 gets the address of an element of a map, whose `u32` index is at a local place. Without it the program ends.
    pub fn element(&mut self, map: &'static str, index: i16) -> &mut Self {
        self.map(map, 1).place(2, FRAME, index.into()).call(MAP_LOOKUP_ELEM);
        self.unless(UNEQUAL, 0, 0, |code| {
            code.exit();
        })
    }
}
