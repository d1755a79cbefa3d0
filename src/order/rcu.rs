//! How the machine's administrator has set grace periods.

use crate::error::Error;
use crate::sys::machine;
use std::io;

/// How fast grace periods are on this machine, as its administrator has set it: `/sys/kernel/rcu_expedited` and
/// `/sys/kernel/rcu_normal`. The setting holds for everything that waits for a grace period on this machine, until it
/// is changed or the machine boots again.
///
/// It changes how long a [`Fence`](crate::Fence) of the kernel takes, never what it proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "rcu_expedited")]
#[doc(alias = "rcu_normal")]
pub enum Rcu {
    /// Both are 0, as most kernels begin. Each grace period is as its caller asks:
    /// [`Fence::Membarrier`](crate::Fence::Membarrier) and [`Fence::Map`](crate::Fence::Map) ask for normal ones,
    /// [`Fence::Expedited`](crate::Fence::Expedited) for expedited ones.
    AsAsked,
    /// `rcu_expedited` is 1: every grace period is expedited. [`Fence::Auto`](crate::Fence::Auto) then takes as long as
    /// [`Fence::Expedited`](crate::Fence::Expedited), without a privilege and without mounts. Whatever waits for a
    /// grace period on the machine interrupts every busy CPU, which real-time programs pay for.
    Expedited,
    /// `rcu_normal` is 1: no grace period is expedited, whatever `rcu_expedited` says.
    /// [`Fence::Expedited`](crate::Fence::Expedited) then takes as long as any other. Kernels with `PREEMPT_RT` begin
    /// so.
    Normal,
}

impl Rcu {
    /// Reads the setting. Needs no privilege.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) where the files are not: `/sys` is not mounted, or the
    /// kernel is built for one CPU (`CONFIG_TINY_RCU`). Any other error of reading a file.
    pub fn read() -> Result<Self, Error> {
        Self::read_by(machine::is_set)
    }

    fn read_by(is_set: impl Fn(&str) -> io::Result<bool>) -> Result<Self, Error> {
        let read = |path: &str| is_set(path).map_err(|errno| Error::system(&format!("read {path}"), errno));
        // In the order of `synchronize_rcu_expedited()` (kernel/rcu/tree_exp.h), to which `synchronize_rcu()` leads if
        // it may be expedited.
        Ok(match (read("/sys/kernel/rcu_normal")?, read("/sys/kernel/rcu_expedited")?) {
            (true, _) => Self::Normal,
            (false, true) => Self::Expedited,
            (false, false) => Self::AsAsked,
        })
    }

    /// What makes grace periods shorter, for a way of this name.
    pub(super) fn advice(self, way: &str) -> Option<&'static str> {
        match (self, way) {
            (Self::AsAsked, "membarrier" | "map") => Some(
                "for shorter ones, root can write 1 into /sys/kernel/rcu_expedited: then every grace period of the \
                 machine is expedited, and interrupts every busy CPU; an expedited fence expedites only its own, and \
                 takes CAP_SYS_ADMIN",
            ),
            (Self::Expedited, "expedited") => Some(
                "the default fence takes no privilege, mounts nothing, and is expedited too while /sys/kernel/rcu_expedited \
                 is 1",
            ),
            (Self::Normal, "membarrier" | "map" | "expedited") => Some(
                "no grace period of this machine is expedited while /sys/kernel/rcu_normal is 1: root can write 0; \
                 real-time kernels begin with 1, because expedited grace periods interrupt every busy CPU",
            ),
            _ => None,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn normal_grace_periods_come_before_expedited_ones() {
        let read =
            |normal, expedited| Rcu::read_by(|path| Ok(if path.ends_with("normal") { normal } else { expedited }));
        assert_eq!(read(false, false).unwrap(), Rcu::AsAsked);
        assert_eq!(read(false, true).unwrap(), Rcu::Expedited);
        assert_eq!(read(true, false).unwrap(), Rcu::Normal);
        assert_eq!(read(true, true).unwrap(), Rcu::Normal);
        let error = Rcu::read_by(|_| Err(io::Error::from_raw_os_error(libc::ENOENT))).unwrap_err();
        assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::NotFound, Some(libc::ENOENT)));
        assert!(error.to_string().contains("/sys/kernel/rcu_normal"), "{error}");
    }

    #[test]
    fn advice_names_what_would_help_and_nothing_else() {
        let named = |rcu: Rcu| {
            ["membarrier", "map", "expedited", "epochs", "custom"].map(|way| {
                let advice = rcu.advice(way).unwrap_or_default();
                ["rcu_expedited", "rcu_normal", "default fence"].into_iter().find(|name| advice.contains(name))
            })
        };
        let [expedited, normal] = [Some("rcu_expedited"), Some("rcu_normal")];
        assert_eq!(named(Rcu::AsAsked), [expedited, expedited, None, None, None]);
        assert_eq!(named(Rcu::Expedited), [None, None, expedited, None, None]);
        assert!(Rcu::Expedited.advice("expedited").is_some_and(|advice| advice.contains("default fence")));
        assert_eq!(named(Rcu::Normal), [normal, normal, normal, None, None]);
    }
}
