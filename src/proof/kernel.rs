//! The kernel's grace periods as proofs: membarrier, and a map.

use crate::error::Error;
use crate::proof::wait_thread::{WaitThread, Way};
use crate::sys::grace::Grace;
use crate::sys::status::Status;
use std::io;
use std::time::Duration;

/// Which grace period is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The first that works, without a privilege if there is one.
    Any,
    Membarrier,
    Map,
}

/// The shortest time between the starts of two. With `/sys/kernel/rcu_expedited`
/// set, they are as fast as expedited ones and also interrupt every CPU.
const SHORTEST: Duration = Duration::from_millis(1);

impl Wanted {
    /// A thread that waits for it.
    pub(crate) fn proof(self) -> WaitThread {
        WaitThread::named("grace periods", SHORTEST, move || {
            let mut grace = self.open().map_err(|tried| Error::no_fence(&tried, hint()))?;
            let name = grace.name();
            let way: Way = Box::new(move || self.wait(&mut grace).map(|()| grace.name()));
            Ok((name, way))
        })
    }

    /// Opens the first way that works, for use on the calling thread, or says why none works.
    fn open(self) -> Result<Grace, String> {
        let named = |name: &'static str| move |errno: io::Error| format!("{name}: {errno}");
        let membarrier = || Grace::membarrier().map_err(named("membarrier"));
        let map = || Grace::map().map_err(named("array of maps"));
        match self {
            // Membarrier first, since it needs no privilege.
            Self::Any => membarrier().or_else(|first| map().map_err(|second| format!("{first}; {second}"))),
            Self::Membarrier => membarrier(),
            Self::Map => map(),
        }
    }

    fn wait(self, grace: &mut Grace) -> io::Result<()> {
        match grace.wait() {
            // For example, a seccomp filter was installed meanwhile. If no other way works, this one is tried again.
            Err(_) if self == Self::Any && grace.wait_by_map().is_ok() => Ok(()),
            waited => waited,
        }
    }
}

/// What helps if no grace period is possible.
fn hint() -> String {
    let filtered = if Status::read().is_filtered {
        ". This process has a seccomp filter, as in a container, which may refuse the calls"
    } else {
        ""
    };
    format!("an expedited one takes CAP_SYS_ADMIN alone; a rule that proves nothing needs no fence{filtered}")
}
