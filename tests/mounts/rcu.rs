//! How grace periods are set, as sysfs says it. The test runs on a thread in its own mount namespace, so the machine
//! keeps its setting.

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use perfweave::{ErrorKind, Fence, Rcu};
use perfweave_support::kernel;
use std::fs;
use std::path::Path;

const NORMAL: &str = "/sys/kernel/rcu_normal";
const EXPEDITED: &str = "/sys/kernel/rcu_expedited";

/// The setting is read anew each time, and the fences that were opened before advise by it.
#[test]
fn advice_goes_by_the_setting_of_the_moment() {
    let Some(_) = kernel("read how grace periods are set", Rcu::read()) else { return };
    let thread = std::thread::spawn(|| {
        let [auto, expedited] = [Fence::Auto, Fence::EXPEDITED].map(|fence| kernel("open a fence", fence.open()));
        let (auto, expedited) = (auto?, expedited?);
        let custom = Fence::custom(|| Ok(())).open().unwrap();
        kernel("leave the mount namespace", unshare(CloneFlags::CLONE_NEWNS))?;
        const NONE: Option<&Path> = None;
        mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).unwrap();
        let files = ["normal", "expedited"].map(|name| {
            let file = std::env::temp_dir().join(format!("perfweave-rcu-{name}-{}", std::process::id()));
            fs::write(&file, "").unwrap();
            file
        });
        for (file, setting) in files.iter().zip([NORMAL, EXPEDITED]) {
            mount(Some(file), setting, NONE, MsFlags::MS_BIND, NONE).unwrap();
        }
        let set = |normal: &str, expedited: &str| {
            fs::write(&files[0], normal).unwrap();
            fs::write(&files[1], expedited).unwrap();
        };
        let advise = |file: &str, advice: Option<&str>| advice.is_some_and(|advice| advice.contains(file));
        set("0\n", "0\n");
        assert_eq!(Rcu::read().unwrap(), Rcu::AsAsked);
        assert!(advise(EXPEDITED, auto.advice()) && expedited.advice().is_none(), "{:?}", auto.advice());
        // Any number but 0.
        set("0\n", "-1\n");
        assert_eq!(Rcu::read().unwrap(), Rcu::Expedited);
        assert!(auto.advice().is_none() && advise("Fence::Auto", expedited.advice()), "{:?}", expedited.advice());
        for also in ["0\n", "1\n"] {
            set("1\n", also);
            assert_eq!(Rcu::read().unwrap(), Rcu::Normal);
            assert!([&auto, &expedited].into_iter().all(|periods| advise(NORMAL, periods.advice())));
        }
        assert_eq!(custom.advice(), None);
        // A setting that cannot be read.
        set("\n", "1\n");
        let error = Rcu::read().unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains(NORMAL), "{error}");
        assert_eq!((auto.advice(), expedited.advice()), (None, None));
        files.into_iter().for_each(|file| fs::remove_file(file).unwrap());
        Some(())
    });
    thread.join().unwrap();
}
