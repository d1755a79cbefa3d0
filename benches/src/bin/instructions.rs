//! Reads rings in one way, this many times, so that `.ci/instructions` can count the instructions: `instructions WAY
//! RINGS BURST DISORDER TURNS`. A burst of `~16` has a random length with a mean of 16, and a random ring comes next.
//! DISORDER is the share of displaced records, in per cent.

use perfweave_benches::{Kind, Shape, Way};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [way, rings, burst, disorder, turns] = &arguments[..] else {
        panic!("instructions WAY RINGS BURST DISORDER TURNS")
    };
    let kind = Kind::ALL
        .into_iter()
        .chain(Kind::COUNTED)
        .find(|kind| kind.name().trim_matches('`') == way)
        .expect("one of the ways");
    let random = burst.starts_with('~');
    let [rings, burst, disorder, turns] =
        [rings, burst.trim_start_matches('~'), disorder, turns].map(|text| text.parse().expect("a number"));
    let shape = Shape { rings, burst, random, disorder, record: 48, records: 16384 };
    let mut way = Way::new(kind, shape);
    for _ in 0..turns {
        way.fill();
        let sum = way.read();
        way.check(sum);
    }
    println!("{}", turns * shape.records);
}
