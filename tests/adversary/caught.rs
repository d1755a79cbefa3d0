//! A writer that is caught between drawing its key and writing its record.

use crate::reading;
use perfweave::{Certainty, Hold, Key, Order, Reader, Rings};
use perfweave_support::bpf::{Keeping, Map, Stamps};
use perfweave_support::{foreign, kernel, load, needs, threads};
use std::time::Duration;

pub(crate) const SLOW: u32 = 1;
pub(crate) const QUICK: u32 = 2;

/// A writer on another CPU draws its time, and is caught before it writes. Then a writer on this CPU draws a later time
/// and writes. Repeats this until there is `enough`, and gives each time how a reader orders both, and with which
/// certainty. The first writes when this process makes a system call that no other code in it makes.
pub(crate) fn caught_inside(
    hold: impl FnOnce(&Map) -> Hold + Send,
    keeping: Option<Keeping>,
    (number, call): (libc::c_long, fn()),
    enough: impl Fn(&[[(u32, Certainty); 2]]) -> bool + Sync,
) -> Option<Vec<[(u32, Certainty); 2]>> {
    let cpus = load::online();
    needs("a second CPU that is online", cpus.len() > 1)?;
    let (here, there) = (cpus[0], cpus[cpus.len() - 1]);
    let events = kernel("make a perf event array", Map::perf_event_array(load::slots()))?;
    let (counter, words) = (Map::array(8, 1).unwrap(), Map::epochs(load::slots()).unwrap());
    let stamps = Stamps { events: &events, counter: &counter, epochs: keeping.map(|keeping| (&words, keeping)) };
    // Some milliseconds: as many instructions as the verifier accepts.
    let slow = kernel("load a BPF program", stamps.on_syscall(number, SLOW, 150_000))?;
    let quick = stamps.when_run(QUICK).unwrap();
    let _link = kernel("attach to sys_enter", slow.attach_raw_tracepoint("sys_enter"))?;
    // A program that interrupts the slow one, again and again, and enters and leaves as well. It writes nothing.
    let visitor = keeping.map(|_| stamps.visit_on_clock().unwrap());
    let _clock = visitor.as_ref().map(|visitor| visitor.attach_clock(there, 1_000_000).unwrap());
    load::pinned(here, || {
        let rings = Rings::options().bpf_output(&events).open().unwrap();
        let base = rings.raw(there).unwrap().base;
        // SAFETY: mapped until the reader is dropped.
        let head = || unsafe { foreign::words(base) }[0];
        // The reader refreshes while the writer is inside, even if few events came before.
        let order = Order::new().key(Key::Payload(0)).hold(hold(&words)).latency(Duration::from_millis(1));
        let mut reader = Reader::new(rings, order).unwrap();
        let mut caught = Vec::new();
        threads::until("the writer is caught inside", || {
            let (written, drawn) = (head(), counter.lookup_u64(0, 0).unwrap());
            std::thread::scope(|scope| {
                scope.spawn(|| load::pinned(there, call));
                threads::until("the writer begins", || counter.lookup_u64(0, 0).unwrap() > drawn);
                assert_eq!(quick.run_on(here).unwrap(), 0);
                let is_inside = head() == written;
                let both = [(); 2].map(|()| {
                    let event = reading::next(&mut reader);
                    let kind = event.record().and_then(|record| record.payload()?.u32(16)).expect("a kind");
                    (kind, event.certainty())
                });
                caught.extend(is_inside.then_some(both));
            });
            enough(&caught)
        });
        Some(caught)
    })
}
