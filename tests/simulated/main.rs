//! Tests without kernel rings: the merge, the reader and the recorder on simulated rings, the documentation, the rooms.

mod control;
mod documented_loops;
mod epochs;
mod forged;
mod full_rings;
mod fuzz_corpus;
mod ledger;
mod lent_bytes;
mod litmus;
mod loss;
mod merge_cases;
mod merge_matches_sort;
mod proofs;
#[path = "../../fuzz/src/raw_bytes.rs"]
mod raw_bytes;
mod reader;
#[expect(dead_code, reason = "each binary takes a part")]
#[path = "../reading/mod.rs"]
mod reading;
mod recorded;
mod recorder;
#[path = "../../fuzz/src/ring_buffers.rs"]
mod reservations;
mod ring_buffers;
mod rooms;
#[path = "../schedule/mod.rs"]
mod schedule;
mod texts;

use perfweave::{Event, Item, Layout, Merge, sim};

/// A machine with rings of this many bytes, whose records have a time.
fn small(cpus: &[u32], bytes: usize) -> sim::Kernel {
    sim::Kernel::with(cpus, bytes, Layout::new(4 | 1024, true, 0))
}

/// A fence while no writer is inside a section. Gives whether the merge wants one.
fn fence(merge: &mut Merge) -> bool {
    merge.refresh(0);
    let begun = merge.begin_fence();
    if begun {
        merge.end_fence();
        merge.refresh(0);
    }
    begun
}

/// An event as text: the letters at the beginning of its payload, or its kind.
fn text(event: &Event<'_>) -> String {
    match event.item() {
        Item::Record(record) => match record.payload() {
            Some(payload) => payload.iter().map(char::from).take_while(char::is_ascii_alphanumeric).collect(),
            None => record.kind_name().unwrap_or("?").to_owned(),
        },
        Item::Lost(lost) => format!("lost {}", lost.count),
        Item::Gap(gap) => format!("gap {}-{}", gap.first, gap.last),
        Item::Damage(damage) => format!("damage {}", damage.bytes.len()),
        other => panic!("{other:?}"),
    }
}
