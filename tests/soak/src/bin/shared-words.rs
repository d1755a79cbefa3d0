//! Writers and readers between which nothing synchronises but the two words of each ring, for ThreadSanitizer
//! (`.ci/tsan`).
//!
//! The simulator's writer waits for room by the tail, so that nothing is lost: after a loss the reader would take a
//! lock that the writer shares, and that would hide a race.

use perfweave::{Hold, Item, Key, Layout, Merge, Order, sim};

/// Records of each ring.
const RECORDS: u64 = 20_000;

fn main() {
    // The thread that waits for the other would wait for ever.
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        std::process::exit(101);
    }));
    let pairs: Vec<_> = [(0, 1 << 10), (64 << 20, 4 << 10)]
        .into_iter()
        .flat_map(|(most, bytes)| {
            let kernel = sim::Kernel::with(&[0], bytes, Layout::new(4 | 1024, true, 0));
            let order = Order::new().key(Key::Payload(0)).hold(Hold::None).most_held(most);
            let merge = Merge::new(kernel.rings(), order).expect("a merge");
            [std::thread::spawn(move || write(&kernel)), std::thread::spawn(move || read(merge))]
        })
        .collect();
    pairs.into_iter().for_each(|thread| thread.join().expect("no panic"));
    println!("{} records", 2 * RECORDS);
}

/// Bytes behind a number: as many as leave no padding.
fn rest_of(number: u64) -> usize {
    4 + number as usize % 5 * 8
}

fn write(kernel: &sim::Kernel) {
    for number in 0..RECORDS {
        // Longer and shorter, so that records come to lie over the end of the ring.
        let mut payload = vec![number as u8; rest_of(number) + 8];
        payload[..8].copy_from_slice(&number.to_ne_bytes());
        while kernel.head(0) - kernel.tail(0) > 512 {
            std::thread::yield_now();
        }
        assert!(kernel.emit(0, number, &payload), "there is room");
    }
}

fn read(mut merge: Merge) {
    let mut next = 0;
    while next < RECORDS {
        merge.refresh(0);
        while let Some(event) = merge.next() {
            let Item::Record(record) = event.item() else { panic!("{:?}", event.item()) };
            let payload = record.payload().expect("a payload");
            let rest = payload.iter().skip(8);
            assert!(payload.u64(0) == Some(next) && rest.eq(std::iter::repeat_n(next as u8, rest_of(next))));
            next += 1;
        }
        std::thread::yield_now();
    }
}
