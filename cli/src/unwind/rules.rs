//! How a file's functions are unwound: its call frame information (`.eh_frame`, which C++, Rust and C have without
//! being asked for it). A rule says where a function's caller goes on, and which registers it had.
//!
//! Nothing is guessed. What the rules do not say is not known: an address without a rule, a register that a caller
//! does not get back, memory that was not copied.

use super::registers::Registers;
use super::stack::Stack;
use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, Encoding, EndianSlice, EvaluationResult, Location, NativeEndian, Piece,
    Register, RegisterRule, UnwindContext, UnwindExpression, UnwindSection, Value,
};
use object::{Object, ObjectSection, ObjectSegment, ReadCache};
use std::collections::HashMap;
use std::fs::File;
use std::rc::Rc;

/// The largest section that is read, in bytes. Some 60 are of one function.
const MOST: u64 = 64 << 20;

/// So many operations of one expression are evaluated. Those of compilers have fewer than ten.
const OPERATIONS: u32 = 1000;

/// The longest entry that is used, in bytes: each new address costs its length. Those of compilers have some hundreds.
const LONGEST: usize = 64 << 10;

type Section<'a> = EhFrame<EndianSlice<'a, NativeEndian>>;

/// The rules of a file.
#[derive(Debug)]
pub struct Rules {
    bytes: Vec<u8>,
    bases: BaseAddresses,
    /// Where the parts of the program lie in its file, how long they are, and at which addresses they are meant to be.
    parts: Vec<[u64; 3]>,
    /// Where each function begins and ends, and the place of its rules in the section. Sorted.
    functions: Vec<(u64, u64, usize)>,
    /// The address at which the kernel starts it. 0: it has none.
    entry: u64,
    known: HashMap<u64, Option<Rc<Rule>>>,
}

/// What holds at one address.
#[derive(Debug)]
struct Rule {
    /// The caller's stack pointer, before the call.
    stack: CfaRule<usize>,
    registers: Vec<(Register, RegisterRule<usize>)>,
    /// The register that stands for the return address.
    back: Register,
    encoding: Encoding,
    /// Whether a signal has interrupted what it returns to, which is then no call.
    is_of_signal: bool,
}

/// What called a function.
#[derive(Debug)]
pub struct Caller {
    pub registers: Registers,
    /// Whether its address is that after a call.
    pub has_called: bool,
}

/// Why there is no caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The function has none.
    Outermost,
    /// The copy of the stack does not have what is needed.
    Cut,
    /// It has more frames than are told.
    Long,
    /// A register is needed whose value is not known: it was not sampled, or a function outside of this one keeps it
    /// where the copy does not reach.
    NoRegister,
    /// It runs in memory that is no file's.
    NoFile,
    /// The file is not here as it was recorded.
    OtherFile,
    /// Nothing says where the function returns to.
    NoRule,
}

impl End {
    /// All with words for what is not whole.
    pub const WORDS: [(Self, &'static str); 6] = [
        (Self::Cut, "where the copy of the stack ends (--call-graph dwarf,65528 copies the most)"),
        (Self::Long, "after 1024 frames"),
        (Self::NoRegister, "where a register is needed that is not known"),
        (Self::NoFile, "in memory that is no file's"),
        (Self::OtherFile, "in files that are not here as recorded"),
        (Self::NoRule, "in functions that nothing says how to unwind"),
    ];
}

impl Rules {
    /// Those of an ELF file: none, if it has no section of them. `None` if they cannot be read.
    pub fn read(file: &File) -> Option<Self> {
        let cache = ReadCache::new(file);
        let elf = object::File::parse(&cache)
            .ok()
            .filter(|elf| elf.is_64() && elf.is_little_endian() == cfg!(target_endian = "little"))?;
        let address = |name| elf.section_by_name(name).map_or(0, |section| section.address());
        let section = elf.section_by_name(".eh_frame");
        let bytes = match &section {
            Some(section) if section.size() > MOST => return None,
            Some(section) => section.data().ok()?.to_vec(),
            None => Vec::new(),
        };
        let bases = BaseAddresses::default().set_eh_frame(address(".eh_frame"));
        let bases = bases.set_text(address(".text")).set_got(address(".got"));
        let part = |part: object::Segment<'_, '_, _>| {
            let (offset, len) = part.file_range();
            [offset, len, part.address()]
        };
        let (parts, entry) = (elf.segments().map(part).collect(), elf.entry());
        let mut rules = Self { bytes, bases, parts, functions: Vec::new(), entry, known: HashMap::new() };
        rules.functions = rules.functions();
        Some(rules)
    }

    /// The offsets in the file at which functions begin.
    #[cfg(test)]
    pub fn offsets(&self) -> impl Iterator<Item = u64> {
        let offset = |(begin, ..): &(u64, u64, usize)| {
            let mut parts = self.parts.iter();
            let [from, _, address] = parts.find(|[_, len, at]| (*at..at.saturating_add(*len)).contains(begin))?;
            Some(begin - address + from)
        };
        self.functions.iter().filter_map(offset)
    }

    /// Puts another section in its place. Gives how many functions it has.
    #[cfg(test)]
    pub fn replace(&mut self, section: Vec<u8>) -> usize {
        self.bytes = section;
        self.functions = self.functions();
        self.functions.len()
    }

    /// Changes the section.
    #[cfg(test)]
    pub fn damage(&mut self, change: impl FnOnce(&mut [u8])) {
        change(&mut self.bytes);
        self.functions = self.functions();
        self.known.clear();
    }

    fn section(&self) -> Section<'_> {
        let mut section = EhFrame::new(&self.bytes, NativeEndian);
        section.set_address_size(8);
        if cfg!(target_arch = "aarch64") {
            section.set_vendor(gimli::Vendor::AArch64);
        }
        section
    }

    /// All that can be read. What comes after damage cannot.
    fn functions(&self) -> Vec<(u64, u64, usize)> {
        let section = self.section();
        let (mut entries, mut functions) = (section.entries(&self.bases), Vec::new());
        // What many functions share is read once, however long a hostile file makes it.
        let mut shared = HashMap::new();
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(entry) = entry else { continue };
            let entry = entry.parse(|section: &Section<'_>, bases, at| {
                let read = || section.cie_from_offset(bases, at);
                shared.entry(at.0).or_insert_with(read).clone()
            });
            if let Ok(entry) = entry
                && entry.entry_len() <= LONGEST
                && entry.cie().entry_len() <= LONGEST
            {
                functions.push((entry.initial_address(), entry.end_address(), entry.offset()));
            }
        }
        functions.sort_unstable();
        functions
    }

    /// The address that an offset of the file is meant to have.
    fn address(&self, offset: u64) -> Option<u64> {
        let mut parts = self.parts.iter();
        let [from, _, address] = parts.find(|[from, len, _]| (*from..from.saturating_add(*len)).contains(&offset))?;
        address.checked_add(offset - from)
    }

    fn rule(&mut self, offset: u64) -> Option<Rc<Rule>> {
        if let Some(known) = self.known.get(&offset) {
            return known.clone();
        }
        let rule = self.look(offset).map(Rc::new);
        self.known.insert(offset, rule.clone());
        rule
    }

    fn look(&self, offset: u64) -> Option<Rule> {
        let address = self.address(offset)?;
        let at = self.functions.partition_point(|(begin, ..)| *begin <= address);
        let (_, end, place) = self.functions[..at].last()?;
        if address >= *end {
            return None;
        }
        let section = self.section();
        let entry = section.fde_from_offset(&self.bases, (*place).into(), EhFrame::cie_from_offset).ok()?;
        let mut context = UnwindContext::new();
        let row = entry.unwind_info_for_address(&section, &self.bases, &mut context, address).ok()?;
        Some(Rule {
            stack: row.cfa().clone(),
            registers: row.registers().cloned().collect(),
            back: entry.cie().return_address_register(),
            encoding: entry.cie().encoding(),
            is_of_signal: entry.is_signal_trampoline(),
        })
    }

    /// Whether no function with rules lies between the file's entry point and an offset: the entry point is that of a
    /// function without rules, such as the first one of a dynamic loader.
    fn is_entry(&self, offset: u64) -> bool {
        let Some(address) = self.address(offset).filter(|address| *address >= self.entry) else { return false };
        let before = self.functions.partition_point(|(begin, ..)| *begin <= address);
        self.entry != 0 && self.functions[..before].last().is_none_or(|(_, end, _)| *end <= self.entry)
    }

    /// Whether a rule says who called what runs at an offset of the file.
    pub fn lead_on(&mut self, offset: u64) -> bool {
        let is_outermost = |rule: &Rule| rule.registers.contains(&(rule.back, RegisterRule::Undefined));
        self.rule(offset).is_some_and(|rule| !is_outermost(&rule))
    }

    /// Who called what runs at an offset of the file.
    pub fn caller(&mut self, offset: u64, registers: &Registers, stack: &Stack<'_>) -> Result<Caller, End> {
        let Some(rule) = self.rule(offset) else {
            let is_first = self.is_entry(offset) && is_given(registers, stack).unwrap_or(false);
            return Err(if is_first { End::Outermost } else { End::NoRule });
        };
        let of = Of { rules: self, rule: &rule, registers, stack };
        let base = of.base()?;
        let mut caller = registers.clone();
        let mut back = registers.get(rule.back.0);
        for (register, kept) in &rule.registers {
            let value = of.value(*register, kept, base);
            if *register == rule.back {
                back = Some(value?);
            } else {
                caller.set(register.0, value.ok());
            }
        }
        let back = back.ok_or(End::NoRule)?;
        if back == 0 {
            return Err(End::Outermost);
        }
        caller.returns(base, back);
        Ok(Caller { registers: caller, has_called: !rule.is_of_signal })
    }
}

/// Whether a function has the stack that the kernel gives a program: the number of its arguments, where each lies
/// farther out, and a zero (`create_elf_tables`, fs/binfmt_elf.c). `None` if it was not copied.
fn is_given(registers: &Registers, stack: &Stack<'_>) -> Option<bool> {
    let at = registers.stack()?;
    let count = i32::try_from(stack.word(at)?).ok()?;
    let end = at.checked_add(8 * (u64::try_from(count).ok()? + 1))?;
    let is_list = count == 0 || stack.word(at.checked_add(8)?)? > end;
    // Of many arguments the copy has not all.
    Some(is_list && stack.word(end).is_none_or(|word| word == 0))
}

/// A rule, and what it is of.
struct Of<'a> {
    rules: &'a Rules,
    rule: &'a Rule,
    registers: &'a Registers,
    stack: &'a Stack<'a>,
}

impl Of<'_> {
    /// The caller's stack pointer.
    fn base(&self) -> Result<u64, End> {
        match &self.rule.stack {
            CfaRule::RegisterAndOffset { register, offset } => {
                Ok(self.registers.get(register.0).ok_or(End::NoRegister)?.wrapping_add_signed(*offset))
            }
            CfaRule::Expression(expression) => self.evaluate(expression, None),
        }
    }

    /// The value that a register had in the caller.
    fn value(&self, register: Register, rule: &RegisterRule<usize>, base: u64) -> Result<u64, End> {
        let own = |register: Register| self.registers.get(register.0).ok_or(End::NoRegister);
        let kept = |address: u64| match self.stack.word(address) {
            Some(word) => Ok(word),
            // Below the stack pointer: an epilogue has taken it from there already.
            None if self.registers.stack().is_some_and(|stack| address < stack) => own(register),
            None => Err(End::Cut),
        };
        match rule {
            RegisterRule::SameValue => own(register),
            RegisterRule::Offset(offset) => kept(base.wrapping_add_signed(*offset)),
            RegisterRule::ValOffset(offset) => Ok(base.wrapping_add_signed(*offset)),
            RegisterRule::Register(other) => own(*other),
            RegisterRule::Expression(expression) => kept(self.evaluate(expression, Some(base))?),
            RegisterRule::ValExpression(expression) => self.evaluate(expression, Some(base)),
            RegisterRule::Constant(value) => Ok(*value),
            // Of a return address: there is none.
            RegisterRule::Undefined => Err(End::Outermost),
            _ => Err(End::NoRule),
        }
    }

    fn evaluate(&self, expression: &UnwindExpression<usize>, first: Option<u64>) -> Result<u64, End> {
        let none = |_| End::NoRule;
        let mut evaluation = expression.get(&self.rules.section()).map_err(none)?.evaluation(self.rule.encoding);
        evaluation.set_max_iterations(OPERATIONS);
        if let Some(first) = first {
            evaluation.set_initial_value(first);
        }
        let mut result = evaluation.evaluate().map_err(none)?;
        loop {
            result = match result {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresMemory { address, size: 8, .. } => {
                    let word = self.stack.word(address).ok_or(End::Cut)?;
                    evaluation.resume_with_memory(Value::Generic(word)).map_err(none)?
                }
                EvaluationResult::RequiresRegister { register, .. } => {
                    let value = self.registers.get(register.0).ok_or(End::NoRegister)?;
                    evaluation.resume_with_register(Value::Generic(value)).map_err(none)?
                }
                _ => return Err(End::NoRule),
            };
        }
        match evaluation.as_result() {
            [Piece { location: Location::Address { address }, .. }] => Ok(*address),
            _ => Err(End::NoRule),
        }
    }
}
