//! Where this kernel has what the programs of [`switch`](super::switch) read: from its own type information
//! (`/sys/kernel/btf/vmlinux`), so that nothing here depends on how a kernel was built.

use btf_rs::{Btf, Type};

/// The kernel's types.
const FILE: &str = "/sys/kernel/btf/vmlinux";

/// Offsets in bytes, and places of arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Types {
    /// Of `sched_switch`: the thread that goes, the one that comes, and the state in which the first goes. Kernels
    /// before 5.18 do not hand the state over.
    pub switch: ([usize; 2], Option<usize>),
    /// `task_struct`
    pub pid: usize,
    pub flags: usize,
    pub state: usize,
    /// `task_struct.files`, `files_struct.fdt`, and `max_fds` and `fd` of `fdtable`.
    pub files: [usize; 4],
    /// `file.f_inode`, `inode.i_sb`, `inode.i_ino`, `super_block.s_dev`.
    pub inode: [usize; 4],
    /// Where it says that a system call is one of a 32-bit program, and which bits say so.
    pub compat: (usize, u32),
    /// Of `struct pt_regs`: the number of the call, its six arguments, its result.
    pub call: usize,
    pub args: [usize; 6],
    pub result: usize,
}

impl Types {
    pub fn read() -> Result<Self, String> {
        let kernel = Kernel(Btf::from_file(FILE).map_err(|error| format!("{FILE}: {error}"))?);
        let task = |name: &str| kernel.offset("task_struct", name);
        let of = |kind: &str, names: &[&str]| {
            names.iter().map(|name| kernel.offset(kind, name)).collect::<Result<Vec<_>, _>>()
        };
        let tables = of("fdtable", &["max_fds", "fd"])?;
        let inodes = of("inode", &["i_sb", "i_ino"])?;
        let registers = Registers::of(&kernel)?;
        Ok(Self {
            switch: kernel.switch()?,
            pid: task("pid")?,
            flags: task("flags")?,
            state: task("__state")?,
            files: [task("files")?, kernel.offset("files_struct", "fdt")?, tables[0], tables[1]],
            inode: [kernel.offset("file", "f_inode")?, inodes[0], inodes[1], kernel.offset("super_block", "s_dev")?],
            compat: registers.compat,
            call: registers.call,
            args: registers.args,
            result: registers.result,
        })
    }
}

/// What depends on the machine.
struct Registers {
    compat: (usize, u32),
    call: usize,
    args: [usize; 6],
    result: usize,
}

impl Registers {
    #[cfg(target_arch = "x86_64")]
    fn of(kernel: &Kernel) -> Result<Self, String> {
        let register = |name: &str| kernel.offset("pt_regs", name);
        let mut args = [0; 6];
        for (arg, name) in args.iter_mut().zip(["di", "si", "dx", "r10", "r8", "r9"]) {
            *arg = register(name)?;
        }
        // `TS_COMPAT` (arch/x86/include/asm/thread_info.h).
        let status = kernel.offset("task_struct", "thread_info")? + kernel.offset("thread_info", "status")?;
        let [call, result] = [register("orig_ax")?, register("ax")?];
        Ok(Self { compat: (status, 2), call, args, result })
    }

    #[cfg(target_arch = "aarch64")]
    fn of(kernel: &Kernel) -> Result<Self, String> {
        let register = |name: &str| kernel.offset("pt_regs", name);
        // The result takes the place of the first argument, which is kept elsewhere as well.
        let [regs, first] = [register("regs")?, register("orig_x0")?];
        let args = [first, regs + 8, regs + 16, regs + 24, regs + 32, regs + 40];
        // `TIF_32BIT` (arch/arm64/include/asm/thread_info.h).
        let flags = kernel.offset("task_struct", "thread_info")? + kernel.offset("thread_info", "flags")?;
        let call = register("syscallno")?;
        Ok(Self { compat: (flags, 1 << 22), call, args, result: regs })
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn of(_: &Kernel) -> Result<Self, String> {
        Err("it is not known here in which registers a system call has its arguments".into())
    }
}

struct Kernel(Btf);

impl Kernel {
    /// Where a member is in a struct, also one of a struct without a name in it.
    fn offset(&self, kind: &str, member: &str) -> Result<usize, String> {
        let types = self.0.resolve_types_by_name(kind).unwrap_or_default();
        let mut offsets = types.into_iter().filter_map(|kind| self.member(&kind, member, 2));
        offsets.next().ok_or_else(|| format!("this kernel has no {kind}.{member}"))
    }

    /// `depth`: how deep structs without a name are looked into.
    fn member(&self, of: &Type, name: &str, depth: u32) -> Option<usize> {
        let (Type::Struct(of) | Type::Union(of)) = of else { return None };
        of.members.iter().find_map(|member| {
            let inside = match self.0.resolve_name(member).unwrap_or_default() {
                own if own == name => Some(0),
                own if own.is_empty() && depth > 0 => {
                    self.member(&self.0.resolve_chained_type(member).ok()?, name, depth - 1)
                }
                _ => None,
            };
            Some(member.bit_offset() as usize / 8 + inside?)
        })
    }

    /// Which arguments `sched_switch` has where: they have no names, but types.
    fn switch(&self) -> Result<([usize; 2], Option<usize>), String> {
        let no = || "this kernel has no sched_switch".to_owned();
        let types = self.0.resolve_types_by_name("btf_trace_sched_switch").map_err(|_| no())?;
        let typedef =
            types.into_iter().find_map(|kind| if let Type::Typedef(typedef) = kind { Some(typedef) } else { None });
        let Ok(Type::Ptr(pointer)) = self.0.resolve_chained_type(&typedef.ok_or_else(no)?) else { return Err(no()) };
        let Ok(Type::FuncProto(function)) = self.0.resolve_chained_type(&pointer) else { return Err(no()) };
        // The first is the tracer's own.
        let kinds = function.parameters.iter().skip(1).map(|parameter| match self.0.resolve_chained_type(parameter) {
            Ok(Type::Ptr(_)) => Some(true),
            // `bool` is an integer as well, or a typedef of one.
            Ok(Type::Int(int)) if int.size() >= 4 => Some(false),
            _ => None,
        });
        let kinds: Vec<_> = kinds.collect();
        let places = |is_pointer: bool| {
            let places = kinds.iter().enumerate().filter(move |(_, kind)| **kind == Some(is_pointer));
            places.map(|(place, _)| place)
        };
        let tasks: Vec<_> = places(true).collect();
        Ok((tasks.try_into().map_err(|_| no())?, places(false).next()))
    }
}
