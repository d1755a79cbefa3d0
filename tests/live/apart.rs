//! Processes of this suite on one machine wait for each other, and none for ever.

use perfweave_support::{apart, cpus, kernel, threads};
use std::process::{Child, Command, Stdio};

/// A process that waits until it is alone with the CPUs, which this one keeps.
struct Peer(Child);

const ROLE: &str = "PERFWEAVE_TEST_WAITS_TO_BE_ALONE";

/// What `apart!` sets for the child.
const INSIDE: &str = "PERFWEAVE_TEST_APART";

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The peer waits for this process, this process waits for its child, and the child does not wait for the peer.
#[test]
fn a_child_does_not_wait_for_who_waits_for_its_parent() {
    if std::env::var_os(ROLE).is_some() {
        return cpus::alone();
    }
    let Some(program) = kernel("find this program", std::env::current_exe()) else { return };
    let mut peer = None;
    if std::env::var_os(INSIDE).is_none() {
        let name = "apart::a_child_does_not_wait_for_who_waits_for_its_parent";
        let child = Command::new(program).args(["--exact", name]).env(ROLE, "1").stdout(Stdio::null()).spawn();
        peer = Some(Peer(child.expect("it can be executed")));
        threads::until("the peer waits at the gate", cpus::is_gate_held);
        // Who waits longer says for whom.
        let whom = cpus::waited_for();
        assert!(whom.iter().all(|whom| whom.contains(" (") && whom.ends_with(')')), "{whom:?}");
    }
    apart!();
    cpus::keep();
    drop(peer);
}
