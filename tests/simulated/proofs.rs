//! A proof of a user's own.

use perfweave::{Certainty, Done, Error, ErrorKind, Fence, Hold, Item, Order, Proof, Reader, Rings, sim};
use perfweave_proofs::{Barrier, Epochs};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A proof that a test ends, and what it needs for that.
#[derive(Default, Clone)]
struct Told {
    done: Arc<Mutex<Option<Done>>>,
    ended: Arc<AtomicBool>,
    refuses: bool,
}

impl Told {
    fn raise(&self) {
        self.done.lock().unwrap().as_ref().expect("it is open").raise();
    }
}

impl Proof for Told {
    fn name(&self) -> &'static str {
        "told"
    }

    fn open(&mut self, rings: Option<&Rings>, done: &Done) -> Result<(), Error> {
        assert_eq!(rings.map(|rings| rings.cpus().len()), Some(1));
        *self.done.lock().unwrap() = Some(done.clone());
        if self.refuses { Err(Error::new(ErrorKind::Unsupported, "not these")) } else { Ok(()) }
    }

    fn begin(&mut self) {
        self.ended.store(false, Ordering::Relaxed);
    }

    fn nap(&self) -> Option<Duration> {
        assert!(self.done.lock().unwrap().is_some(), "it is asked before it is open");
        None
    }

    fn poll(&mut self) -> Option<io::Result<()>> {
        self.ended.load(Ordering::Relaxed).then_some(Ok(()))
    }
}

/// What says that a proof has ended makes the reader ask, and proves nothing.
#[test]
fn nothing_is_proven_by_being_told_of_an_end() {
    for dense in [false, true] {
        let (kernel, told) = (sim::Kernel::new(&[0]), Told::default());
        let own = told.clone();
        let fence = Fence::Proof("told", Arc::new(move || Box::new(own.clone())));
        let hold = if dense { Hold::Dense { first: Some(1), fence } } else { Hold::Fence(fence) };
        let order = Order::new().hold(hold).latency(Duration::from_millis(1));
        let mut reader = Reader::new(kernel.rings(), order).unwrap();
        assert_eq!((reader.fence(), reader.status().stand_ins), (Some("told"), 0));
        kernel.emit(0, 5, b"");
        for _ in 0..3 {
            assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
            told.raise();
        }
        assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none(), "told, and asked");
        told.ended.store(true, Ordering::Relaxed);
        assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none(), "not told");
        told.raise();
        // With numbers of the machine the gap comes first.
        let event = reader.next_timeout(Duration::ZERO).unwrap().expect("it is proven");
        assert_eq!((matches!(event.item(), Item::Gap(_)), event.certainty()), (dense, Certainty::Proven));
    }
}

#[test]
fn a_proof_refuses_the_rings_of_which_it_proves_nothing() {
    let kernel = sim::Kernel::new(&[0]);
    let hold = Hold::Fence(Fence::Proof("told", Arc::new(|| Box::new(Told { refuses: true, ..Told::default() }))));
    let error = Reader::new(kernel.rings(), Order::new().hold(hold)).unwrap_err();
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::Unsupported, "not these".into()));
}

/// Nor does a proof that stands in for another.
#[test]
fn a_stand_in_refuses_the_rings_of_which_it_proves_nothing() {
    let kernel = sim::Kernel::new(&[0]);
    let epochs = Epochs::over(kernel.epochs()).stand_in(Barrier::Programs.fence());
    let error = Reader::new(kernel.rings(), Order::new().hold(Hold::Fence(epochs.fence()))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

/// The function may make one proof alone: nothing else calls it.
#[test]
fn to_print_a_rule_makes_no_proof() {
    let hold = Hold::Fence(Fence::Proof("unmade", Arc::new(|| panic!("it is made"))));
    assert_eq!((hold.to_string(), format!("{hold:?}")), ("unmade".into(), "Fence(Proof(\"unmade\"))".into()));
}
