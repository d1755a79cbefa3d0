//! How the machine's administrator has set grace periods: `/sys/kernel/rcu_expedited` and `/sys/kernel/rcu_normal`. The
//! setting changes how long a fence of the kernel takes, never what it proves.

use std::fs;
use std::io::{self, Error, ErrorKind};
use std::path::Path;

/// How fast grace periods are on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rcu {
    /// Both files have 0, as most kernels begin: each grace period is as its caller asks.
    AsAsked,
    /// `rcu_expedited` is 1: every grace period is expedited. Whatever waits for one interrupts every busy CPU.
    Expedited,
    /// `rcu_normal` is 1: no grace period is expedited, whatever `rcu_expedited` says. Kernels with `PREEMPT_RT` begin
    /// so.
    Normal,
}

impl Rcu {
    /// Reads the setting. An error where the files are not: `/sys` is not mounted, or the kernel is built for one CPU
    /// (`CONFIG_TINY_RCU`).
    pub fn read() -> io::Result<Self> {
        Self::read_in(Path::new("/sys/kernel"))
    }

    fn read_in(folder: &Path) -> io::Result<Self> {
        let is_set = |name: &str| {
            let path = folder.join(name);
            let said = |kind, why| Error::new(kind, format!("cannot read {}: {why}", path.display()));
            let text = fs::read_to_string(&path).map_err(|errno| said(errno.kind(), errno.to_string()))?;
            let number = text.trim().parse::<i64>();
            let number = number.map_err(|_| said(ErrorKind::InvalidData, format!("{text:?} is no number")))?;
            Ok::<_, Error>(number != 0)
        };
        // In the order of `synchronize_rcu_expedited()` (kernel/rcu/tree_exp.h), to which `synchronize_rcu()` leads if
        // it may be expedited.
        Ok(match (is_set("rcu_normal")?, is_set("rcu_expedited")?) {
            (true, _) => Self::Normal,
            (false, true) => Self::Expedited,
            (false, false) => Self::AsAsked,
        })
    }

    /// What makes grace periods shorter, for a way of this name.
    pub fn advice(self, way: &str) -> Option<&'static str> {
        match (self, way) {
            (Self::AsAsked, "membarrier" | "map") => Some(
                "for shorter ones, root can write 1 into /sys/kernel/rcu_expedited: then every grace period of the \
                 machine is expedited, and interrupts every busy CPU; --hold expedited expedites only its own, and \
                 takes CAP_SYS_ADMIN",
            ),
            (Self::Expedited, "expedited") => Some(
                "--hold fence takes no privilege, mounts nothing, and is expedited too while \
                 /sys/kernel/rcu_expedited is 1",
            ),
            (Self::Normal, "membarrier" | "map" | "expedited") => Some(
                "no grace period of this machine is expedited while /sys/kernel/rcu_normal is 1: root can write 0; \
                 real-time kernels begin with 1, because expedited grace periods interrupt every busy CPU",
            ),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Rcu;
    use std::fs;

    /// Any number but 0 is set, and normal comes first. What is no number is unknown.
    #[test]
    fn normal_grace_periods_come_before_expedited_ones() {
        let folder = std::env::temp_dir().join(format!("perfweave-rcu-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let read = |normal: &str, expedited: &str| {
            fs::write(folder.join("rcu_normal"), normal).unwrap();
            fs::write(folder.join("rcu_expedited"), expedited).unwrap();
            Rcu::read_in(&folder).ok()
        };
        assert_eq!(read("0\n", "0\n"), Some(Rcu::AsAsked));
        assert_eq!(read("0\n", "-1\n"), Some(Rcu::Expedited));
        assert_eq!([read("1\n", "0\n"), read("1\n", "1\n")], [Some(Rcu::Normal); 2]);
        assert_eq!(read("\n", "1\n"), None);
        fs::remove_dir_all(&folder).unwrap();
        assert!(Rcu::read_in(&folder).is_err());
    }

    #[test]
    fn advice_names_what_would_help_and_nothing_else() {
        let named = |rcu: Rcu| {
            ["membarrier", "map", "expedited", "epochs", "custom"].map(|way| {
                let advice = rcu.advice(way).unwrap_or_default();
                ["rcu_expedited", "rcu_normal", "--hold fence"].into_iter().find(|name| advice.contains(name))
            })
        };
        let [expedited, normal] = [Some("rcu_expedited"), Some("rcu_normal")];
        assert_eq!(named(Rcu::AsAsked), [expedited, expedited, None, None, None]);
        assert_eq!(named(Rcu::Expedited), [None, None, expedited, None, None]);
        assert_eq!(named(Rcu::Normal), [normal, normal, normal, None, None]);
    }
}
