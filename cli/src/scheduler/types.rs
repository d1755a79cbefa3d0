//! Where this kernel has what the programs of [`switch`](super::switch) read: from its own type information
//! (`/sys/kernel/btf/vmlinux`), so that nothing here depends on how a kernel was built.

use crate::read::btf::Kernel;
use btf_rs::Type;

/// Offsets in bytes, and places of arguments.
#[derive(Debug)]
pub struct Types {
    /// Of `sched_switch`: the thread that goes, the one that comes, and the state in which the first goes. Kernels
    /// before 5.18 do not hand the state over.
    pub switch: ([usize; 2], Option<usize>),
    /// `task_struct`
    pub pid: usize,
    pub state: usize,
    /// From `task_struct` to the pointer to its queue of the fair class, from there to that to the CPU's, and there to
    /// how many switches that CPU has made.
    pub numbers: [usize; 3],
    /// Where it is asked in which calls threads wait.
    pub calls: Option<Calls>,
}

/// Where a system call is told.
#[derive(Debug)]
pub struct Calls {
    /// `task_struct.flags`
    pub flags: usize,
    /// `task_struct.files`, `files_struct.fdt`, and `max_fds` and `fd` of `fdtable`.
    pub files: [usize; 4],
    /// `file.f_inode`, `inode.i_sb`, `inode.i_ino`, `super_block.s_dev`.
    pub inode: [usize; 4],
    /// Where it says that a call is one of a 32-bit program, and which bits say so.
    pub compat: (usize, u32),
    /// Of `struct pt_regs`: the number of the call, its six arguments, the address of its caller, its result.
    pub call: usize,
    pub args: [usize; 6],
    pub caller: usize,
    pub result: usize,
}

impl Types {
    pub fn read(calls: bool) -> Result<Self, String> {
        let kernel = Kernel::read()?;
        let task = |name: &str| kernel.offset("task_struct", name);
        let calls = calls.then(|| Calls::of(&kernel)).transpose()?;
        let numbers = numbers(&kernel).map_err(|why| format!("switches have no numbers: {why}"))?;
        Ok(Self { switch: switch(&kernel)?, pid: task("pid")?, state: task("__state")?, numbers, calls })
    }
}

/// Where a CPU counts its switches. Each thread has the queues of its CPU, whatever its class, and the idle one as well
/// (`set_task_rq`, kernel/sched/sched.h).
fn numbers(kernel: &Kernel) -> Result<[usize; 3], String> {
    let at = |kind: &str, name: &str| kernel.offset(kind, name);
    Ok([at("task_struct", "se")? + at("sched_entity", "cfs_rq")?, at("cfs_rq", "rq")?, at("rq", "nr_switches")?])
}

impl Calls {
    /// On other machines registers have other widths, and a call that a signal ends is told in another way: nobody has
    /// tried it there.
    fn of(kernel: &Kernel) -> Result<Self, String> {
        if !cfg!(target_arch = "x86_64") {
            return Err("calls are told at switches on x86-64 alone".into());
        }
        let at = |kind: &str, name: &str| kernel.offset(kind, name);
        let register = |name: &str| at("pt_regs", name);
        let mut args = [0; 6];
        for (arg, name) in args.iter_mut().zip(["di", "si", "dx", "r10", "r8", "r9"]) {
            *arg = register(name)?;
        }
        Ok(Self {
            flags: at("task_struct", "flags")?,
            files: [
                at("task_struct", "files")?,
                at("files_struct", "fdt")?,
                at("fdtable", "max_fds")?,
                at("fdtable", "fd")?,
            ],
            inode: [at("file", "f_inode")?, at("inode", "i_sb")?, at("inode", "i_ino")?, at("super_block", "s_dev")?],
            // `TS_COMPAT` (arch/x86/include/asm/thread_info.h).
            compat: (at("task_struct", "thread_info")? + at("thread_info", "status")?, 2),
            call: register("orig_ax")?,
            args,
            caller: register("ip")?,
            result: register("ax")?,
        })
    }
}

/// Which arguments `sched_switch` has where: they have no names, but types.
fn switch(Kernel(btf): &Kernel) -> Result<([usize; 2], Option<usize>), String> {
    let no = || "this kernel has no sched_switch".to_owned();
    let types = btf.resolve_types_by_name("btf_trace_sched_switch").map_err(|_| no())?;
    let typedef =
        types.into_iter().find_map(|kind| if let Type::Typedef(typedef) = kind { Some(typedef) } else { None });
    let Ok(Type::Ptr(pointer)) = btf.resolve_chained_type(&typedef.ok_or_else(no)?) else { return Err(no()) };
    let Ok(Type::FuncProto(function)) = btf.resolve_chained_type(&pointer) else { return Err(no()) };
    // The first is the tracer's own.
    let kinds = function.parameters.iter().skip(1).map(|parameter| match btf.resolve_chained_type(parameter) {
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
