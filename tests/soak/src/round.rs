//! One round: a reader on live rings, from opening to dropping.

use crate::plan::{End, Plan, Way, Which};
use crate::random::Random;
use crate::tally::Tally;
use crate::writers::Writers;
use perfweave::{Clock, Ended, Error, Event, Handle, Item, Layout, Pause, Reader, Ring, Rings};
use perfweave_support::load::{self, Beside};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What became of a round.
#[derive(Debug, Default)]
pub struct Outcome {
    pub records: u64,
    pub lost: u64,
    pub late: u64,
    pub flushes: u64,
    pub deadlines: u64,
    pub pauses: u64,
    pub fences: u64,
    pub most_memory: usize,
    pub wrong: Vec<String>,
}

/// A flush that was asked for and not reported yet: what each CPU had written when it was.
type Asked = Arc<Mutex<Option<Vec<u64>>>>;

fn take(asked: &Asked) -> Option<Vec<u64>> {
    asked.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Asks for a flush, unless one is under way.
fn ask(asked: &Asked, writers: &Writers, handle: &Handle) -> Result<bool, Box<dyn std::error::Error>> {
    let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
    if asked.is_some() {
        return Ok(false);
    }
    *asked = Some(writers.all()?.iter().map(|outputs| outputs.written).collect());
    handle.flush()?;
    Ok(true)
}

/// Opens the rings of a plan.
fn open(plan: &Plan, writers: &Writers) -> Result<Rings, Error> {
    let mut rings = if plan.rings == Which::Buffers {
        Rings::empty(Clock::Monotonic)
    } else {
        let mut options = Rings::options().bpf_output(&writers.events).pages(plan.pages).clock(plan.clock);
        if let Some(wakeup) = plan.wakeup {
            options = options.wakeup(wakeup);
        }
        options.open()?
    };
    if let Some(buffers) = &writers.buffers {
        // SAFETY: nobody else reads this map.
        let adopted = unsafe { Ring::adopt_ring_buffers(&buffers.map) }?;
        for (cpu, ring) in adopted {
            rings.add(cpu, ring, Layout::RING_BUFFER);
        }
        rings.count_failures(&buffers.failures)?;
    }
    Ok(rings)
}

/// Runs a round against the writers of a process.
pub fn run(plan: &Plan, random: Random, process: u32) -> Result<Outcome, Box<dyn std::error::Error>> {
    let mut writers = Writers::new(process, plan)?;
    let rings = open(plan, &writers)?;
    let mut cpus: Vec<u32> = rings.cpus().collect();
    cpus.dedup();
    let mut reader = Reader::new(rings, plan.order(&writers.epochs)?)?;
    writers.start(cpus.into_iter())?;

    let writers = Arc::new(Mutex::new(writers));
    let asked = Asked::default();
    let paused = Arc::new(Mutex::new(0));
    let hands = {
        let (handle, writers, asked, paused) =
            (reader.handle(), Arc::clone(&writers), Arc::clone(&asked), Arc::clone(&paused));
        let which = [plan.pauses, plan.flushes, plan.deadlines];
        Beside::start(move |wait| {
            let done = meddle(which, random, &handle, &writers, &asked, &paused, wait);
            done.map_err(|error| error.to_string())
        })
    };

    let mut tally = Tally::new(plan.is_dense(), plan.numbers, load::slots() as usize);
    let mut outcome = Outcome::default();
    let begin = Instant::now();
    while begin.elapsed() < plan.time && tally.wrong.is_empty() {
        let until = Instant::now() + Duration::from_millis(20);
        while Instant::now() < until {
            turn(plan.way, &mut reader, &mut outcome, &mut tally, &asked)?;
        }
        std::thread::sleep(plan.stall);
    }
    if plan.end == End::Flush {
        hands.end()?;
        reader.handle().resume()?;
        reader.handle().set_deadline(None)?;
        let mut writers = writers.lock().unwrap_or_else(PoisonError::into_inner);
        writers.stop()?;
        // One that is under way first.
        while !ask(&asked, &writers, &reader.handle())? {
            turn(Way::Batch, &mut reader, &mut outcome, &mut tally, &asked)?;
        }
        let before = outcome.flushes;
        while outcome.flushes == before {
            turn(Way::Batch, &mut reader, &mut outcome, &mut tally, &asked)?;
        }
        tally.balance(&reader.ledger()?, &writers.all()?, writers.drawn()?, true);
    } else if plan.end == End::Close {
        // Beside whoever meddles, as it may be: what they get is that it is closed.
        reader.handle().close();
        let event = reader.next_timeout(Duration::ZERO)?.map(|event| event.to_owned());
        if event.is_some() || reader.ended() != Some(Ended::Closed) {
            tally.wrong(format!("a closed reader gives {event:?}: {:?}", reader.ended()));
        }
        hands.end()?;
        let mut writers = writers.lock().unwrap_or_else(PoisonError::into_inner);
        writers.stop()?;
        tally.balance(&reader.ledger()?, &writers.all()?, writers.drawn()?, false);
    } else {
        hands.end()?;
    }
    let status = reader.status();
    if status.most_memory > plan.most_held {
        tally.wrong(format!("{} bytes of copies, and at most {}", status.most_memory, plan.most_held));
    }
    if plan.proves() && status.total().late > 0 {
        tally.wrong(format!(
            "{} late by up to {} ns under {:?}",
            status.total().late,
            status.total().max_late,
            plan.hold
        ));
    }
    if tally.late != status.total().late {
        tally.wrong(format!("{} late came out, {} were counted", tally.late, status.total().late));
    }
    outcome.records = tally.yielded.iter().sum();
    outcome.late = status.total().late;
    (outcome.fences, outcome.most_memory, outcome.lost) = (status.fences, status.most_memory, status.total().lost);
    outcome.pauses = *paused.lock().unwrap_or_else(PoisonError::into_inner);
    outcome.wrong = tally.wrong;
    Ok(outcome)
}

/// Takes some events. A stream that has ended by a deadline goes on.
fn turn(way: Way, reader: &mut Reader, outcome: &mut Outcome, tally: &mut Tally, asked: &Asked) -> Result<(), Error> {
    match take_some(way, reader, |event| match event.item() {
        Item::Flushed { complete } => {
            outcome.flushes += 1;
            match take(asked) {
                // A program was kept from committing for longer than a flush waits.
                Some(_) if !complete => {}
                Some(written) => tally.flushed(&written),
                None => tally.wrong("the end of a flush that nobody asked for".into()),
            }
        }
        _ => tally.event(event),
    }) {
        // A program that was preempted inside; the reader goes on with a kernel fence.
        Ok(()) => {}
        Err(error) if error.to_string().contains("without perfweave_leave()") => {}
        Err(other) => return Err(other),
    }
    if matches!(reader.ended(), Some(Ended::Deadline { .. })) {
        outcome.deadlines += 1;
        reader.handle().set_deadline(None)?;
    }
    Ok(())
}

fn take_some(way: Way, reader: &mut Reader, mut each: impl FnMut(&Event<'_>)) -> Result<(), Error> {
    let time = Duration::from_millis(10);
    match way {
        Way::Batch => reader.batch(time)?.into_iter().flatten().for_each(|event| each(&event)),
        Way::Next => {
            for _ in 0..64 {
                let Some(event) = reader.next_timeout(time)? else { break };
                each(&event.event());
            }
        }
        Way::Fold => {
            let all = reader.try_fold((), |(), event| {
                each(&event);
                ControlFlow::<(), ()>::Continue(())
            })?;
            assert!(all.is_continue());
        }
        Way::Owned => {
            for _ in 0..64 {
                let Some(event) = reader.next_timeout(time)?.map(|event| event.to_owned()) else { break };
                each(&event.as_event());
            }
        }
    }
    Ok(())
}

/// Pauses, flushes, sets deadlines, until the round is over. Output is resumed in the end.
fn meddle(
    which: [bool; 3],
    mut random: Random,
    handle: &Handle,
    writers: &Mutex<Writers>,
    asked: &Asked,
    paused: &Mutex<u64>,
    wait: &dyn Fn(Duration) -> bool,
) -> Result<(), Box<dyn std::error::Error>> {
    let [pauses, flushes, deadlines] = which;
    while wait(random.millis(1, 150)) {
        match random.below(3) {
            0 if pauses => {
                handle.pause(random.one(&[Pause::Output, Pause::Slots]))?;
                *paused.lock().unwrap_or_else(PoisonError::into_inner) += 1;
                let go_on = wait(random.millis(1, 100));
                handle.resume()?;
                if !go_on {
                    break;
                }
            }
            1 if flushes => {
                let writers = writers.lock().unwrap_or_else(PoisonError::into_inner);
                ask(asked, &writers, handle)?;
            }
            2 if deadlines => handle.set_deadline(Some(Instant::now() + random.millis(0, 50)))?,
            _ => {}
        }
    }
    Ok(())
}
