//! Two machines whose clocks are skewed on purpose.

use super::*;

/// Numbers by chance, the same in each run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: i64) -> i64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % limit.unsigned_abs()).cast_signed()
    }
}

const SECOND: i64 = 1_000_000_000;

/// Where TAI is now, or so.
const EPOCH: i64 = 1_790_000_000 * SECOND;

/// A clock that is wrong by so much at first, and drifts.
#[derive(Clone, Copy)]
struct Skewed {
    wrong: i64,
    ppm: i64,
}

impl Skewed {
    fn at(self, true_time: i64) -> i64 {
        EPOCH + true_time + self.wrong + true_time * self.ppm / 1_000_000
    }
}

const A: Skewed = Skewed { wrong: 3_000_000, ppm: 20 };
const B: Skewed = Skewed { wrong: -2_000_000, ppm: -35 };

/// What each machine says that its clock is wrong by, at most.
const ERROR: i64 = 6_000_000;

const LASTING: i64 = 20 * SECOND;

fn messages(chance: &mut Chance, count: usize) -> Vec<Message> {
    let one = |number| {
        let (sent, from_a) = (chance.below(LASTING), number % 2 == 0);
        // Most take some time in queues.
        let received = sent + 20_000 + chance.below(100_000) * chance.below(20);
        if from_a {
            Message { from_a, sent: A.at(sent), received: B.at(received) }
        } else {
            Message { from_a, sent: B.at(sent), received: A.at(received) }
        }
    };
    (0..count).map(one).collect()
}

#[test]
fn no_claim_is_false_and_messages_make_more_of_them_possible() {
    let mut chance = Chance(7);
    let bounds = Bounds::of(&messages(&mut chance, 2000)).unwrap().unwrap();
    let (mut before, mut after) = (0, 0);
    for _ in 0..20_000 {
        let on_a = chance.below(LASTING);
        let on_b = (on_a + chance.below(20_000_000) - 10_000_000).max(0);
        let around = |time: i64| Interval { from: time - ERROR, to: time + ERROR };
        let claims = [
            around(A.at(on_a)).is_before(around(B.at(on_b))),
            Interval { from: A.at(on_a), to: A.at(on_a) }.is_before(bounds.on_a(B.at(on_b))),
        ];
        assert!(claims.into_iter().flatten().all(|claim| claim == (on_a < on_b)), "{on_a} {on_b} {claims:?}");
        // The fastest of many messages take hardly more than 20 µs.
        assert!(claims[1].is_some() || on_a.abs_diff(on_b) < 200_000, "{on_a} {on_b}");
        before += usize::from(claims[0].is_some());
        after += usize::from(claims[1].is_some());
    }
    println!("of 20000 pairs of events: {before} claims before, {after} after");
    assert!(0 < before && before < after, "{before} {after}");
}

#[test]
fn the_true_difference_is_always_within_the_bounds() {
    for seed in 0..200 {
        let mut chance = Chance(seed);
        let count = 2 + chance.below(40) as usize;
        let bounds = Bounds::of(&messages(&mut chance, count)).unwrap().unwrap();
        // Also before the first message and after the last.
        for _ in 0..100 {
            let time = chance.below(3 * LASTING) - LASTING;
            let (least, most) = bounds.ahead(A.at(time));
            let ahead = B.at(time) - A.at(time);
            assert!(least <= ahead && ahead <= most, "seed {seed}, time {time}: {least} {ahead} {most}");
            let Interval { from, to } = bounds.on_a(B.at(time));
            assert!(from <= A.at(time) && A.at(time) <= to, "seed {seed}, time {time}: {from} {} {to}", A.at(time));
        }
    }
}

#[test]
fn one_direction_bounds_one_side_alone_and_a_clock_that_is_set_is_found() {
    let mut all = messages(&mut Chance(3), 100);
    let one_way = all.iter().copied().filter(|message| message.from_a).collect::<Vec<_>>();
    assert!(Bounds::of(&one_way).unwrap().is_none());
    assert!(Bounds::of(&[]).unwrap().is_none());
    for message in &mut all[50..] {
        *if message.from_a { &mut message.received } else { &mut message.sent } += SECOND;
    }
    assert_eq!(Bounds::of(&all).unwrap_err(), Contradiction);
}

#[test]
fn a_line_is_only_as_steep_as_clocks_are() {
    let single = [Message { from_a: true, sent: 0, received: 100 }, Message { from_a: false, sent: 0, received: 100 }];
    let bounds = Bounds::of(&single).unwrap().unwrap();
    let (least, most) = bounds.ahead(0);
    assert!((-120..=-95).contains(&least) && (95..=120).contains(&most), "{least} {most}");
    let (least, most) = bounds.ahead(SECOND);
    assert!((-1_002_000..=-1_000_000).contains(&least) && (1_000_000..=1_002_000).contains(&most), "{least} {most}");
}
