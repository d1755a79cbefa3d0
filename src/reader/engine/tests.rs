//! What is waited for, and for how long.

use super::*;
use crate::order::hold::Fence;
use crate::reader::Reader;
use crate::record::clock::Clock;
use crate::rings::Lane;
use crate::sim;
use nix::sys::eventfd::{EfdFlags, EventFd};

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

/// A reader of an idle machine, whose tick has become an hour.
fn idle(rings: Rings, hold: Hold) -> Engine {
    let mut engine = Engine::new(rings, Order::new().hold(hold).latency(HOUR)).unwrap();
    (1..40).for_each(|hours| engine.pace.looked(Instant::now() + HOUR * hours, 0));
    assert!(sleep(&mut engine) > HOUR / 2);
    engine
}

/// How long it wants to sleep, with nothing to give.
fn sleep(engine: &mut Engine) -> Duration {
    match engine.turn().unwrap() {
        Turn::Sleep(time) => time,
        Turn::Ready => panic!("there is nothing to give"),
    }
}

#[test]
fn what_a_lag_lets_out_within_a_tick_is_waited_for() {
    let kernel = sim::Kernel::new(&[0]);
    let rings = kernel.rings().on_clock(Clock::Monotonic);
    let mut engine = idle(rings, Hold::Lag(MINUTE));
    kernel.emit(0, Clock::Monotonic.now().unwrap(), b"");
    assert!(sleep(&mut engine) <= MINUTE);
    let due = engine.due.expect("held");
    // What comes meanwhile does not put it off.
    kernel.emit(0, Clock::Monotonic.now().unwrap(), b"");
    assert!(sleep(&mut engine) <= MINUTE && engine.due == Some(due));
}

#[test]
fn a_deadline_within_a_tick_is_waited_for() {
    let kernel = sim::Kernel::new(&[0]);
    let mut engine = idle(kernel.rings(), Hold::None);
    engine.control.set_deadline(Some(Instant::now() + MINUTE));
    assert!(sleep(&mut engine) <= MINUTE);
    engine.control.set_deadline(Some(Instant::now() + 2 * HOUR));
    let time = sleep(&mut engine);
    assert!(time > MINUTE && time <= HOUR, "{time:?}: the tick comes first");
    engine.control.set_deadline(None);
    assert!(sleep(&mut engine) > MINUTE);
    engine.control.set_deadline(Some(Instant::now()));
    assert!(matches!(engine.turn(), Err(Error::Deadline)));
}

/// One more look lets out what a round holds.
#[test]
fn a_round_is_over_at_once() {
    let kernel = sim::Kernel::new(&[0]);
    let mut engine = idle(kernel.rings(), Hold::Round);
    kernel.emit(0, 1, b"");
    assert_eq!(sleep(&mut engine), Duration::ZERO);
    assert_eq!(engine.turn().unwrap(), Turn::Ready);
}

/// A ring that fills up is worth a fence, whatever the tick.
#[test]
fn more_than_half_a_ring_is_worth_a_fence() {
    let kernel = sim::Kernel::with(&[0, 1], 4096, crate::record::Layout::new(4 | 1024, true, 0));
    let mut engine = idle(kernel.rings(), Hold::Fence(Fence::custom(|| Ok(()))));
    engine.pace.proving(Instant::now() + HOUR);
    // 32 bytes each.
    (0..64).for_each(|time| assert!(kernel.emit(1, time, &[0; 8])));
    sleep(&mut engine);
    assert!(!engine.proof.as_ref().unwrap().is_under_way(), "half");
    kernel.emit(1, 64, &[0; 8]);
    sleep(&mut engine);
    assert!(engine.proof.as_ref().unwrap().is_under_way());
}

/// A fence that may not begin yet is begun when it may, whatever the tick; one that is under way is waited for.
#[test]
fn a_fence_that_is_paced_is_waited_for() {
    let kernel = sim::Kernel::new(&[0]);
    let fence = Fence::custom(|| Ok(()));
    let mut engine = idle(kernel.rings(), Hold::Fence(fence));
    kernel.emit(0, 1, b"");
    let time = sleep(&mut engine);
    assert!(time > MINUTE, "{time:?}: its end wakes the reader");
    assert!(engine.proof.as_ref().unwrap().is_under_way());
}

/// A message about CPUs comes again and again while the reader spins: each is taken notice of after so many looks, and not only
/// when CPUs are listed anyway.
#[test]
fn messages_about_cpus_are_noticed_while_it_spins() {
    const MESSAGES: u64 = 50;
    let kernel = sim::Kernel::new(&[0]);
    let mut rings = kernel.rings();
    let news = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap());
    news.write(1).unwrap();
    let socket = Arc::new(news.as_fd().try_clone_to_owned().unwrap());
    let (writer, mut noticed) = (kernel.clone(), 0);
    let arrivals = move |_: &Control, _: &mut [Lane], _: &mut Vec<Lane>| {
        noticed += 1;
        if noticed == MESSAGES {
            writer.emit(0, 1, b"");
        }
        news.write(1).unwrap();
        Ok(())
    };
    rings.set_arrivals(Box::new(arrivals), Some(socket), None);
    let order = Order::new().hold(Hold::Fence(Fence::Epochs(kernel.epochs()))).spin(Duration::MAX);
    let mut reader = Reader::new(rings, order).unwrap();
    assert_eq!(reader.next_timeout(HOUR).unwrap().and_then(|event| event.key()), Some(1));
    let stats = reader.stats();
    assert_eq!(stats.sleeps, 0);
    assert!(stats.looks < (MESSAGES + 10) * 1024, "{stats:?}");
}
