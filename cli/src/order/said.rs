//! What is said on standard error: what is ordered, what is not, and what changes for the tool.

use super::relay::{Done, End, Relay};
use super::ring::Before;
use super::tool::Open;
use crate::out::say;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// What was said, and what is to be said at the end.
#[derive(Debug, Default)]
pub struct Said {
    taken: u32,
    done: Done,
    ring_buffers: u32,
    refused: u32,
    waiting: BTreeSet<u32>,
    stuck: BTreeSet<u32>,
    failed: BTreeMap<u32, String>,
    is_broken: bool,
}

impl Said {
    pub fn taken(&mut self, relay: &Relay, before: Before) {
        self.taken += 1;
        self.waiting.remove(&relay.id());
        self.failed.remove(&relay.id());
        let (pid, id, cpu, cpus) = (relay.pid(), relay.id(), relay.cpu(), relay.cpus());
        let had = match before {
            Before { bytes: 0, .. } => "It had no events before".into(),
            Before { records: Some(records), .. } => {
                format!("The {records} events that it had before are in its own order")
            }
            Before { bytes, .. } => format!("What it had before, {bytes} bytes of events, is in its own order"),
        };
        say(format_args!(
            "perfweave: map {id} of process {pid} is taken over: {cpus} rings, whose records come in proven order \
             through the ring of CPU {cpu}. The tool takes them for that CPU's; where it asks the kernel for thread and \
             CPU of a sample, these are not the writer's. {had}"
        ));
    }

    /// A ring buffer, which has an order of its own or none.
    pub fn ring_buffer(&mut self, map: &Open) {
        self.ring_buffers += 1;
        say(format_args!(
            "perfweave: map {} of process {} is a BPF ring buffer and not ordered: one alone is in the order of its \
             reservations, several have no order",
            map.id, map.pid
        ));
    }

    /// No slot is filled yet.
    pub fn empty(&mut self, map: &Open) {
        if self.waiting.insert(map.id) {
            say(format_args!("perfweave: map {} of process {} has no events yet, and is waited for", map.id, map.pid));
        }
    }

    pub fn refused(&mut self, map: &Open, why: &str) {
        self.waiting.remove(&map.id);
        self.refused += 1;
        say(format_args!("perfweave: map {} of process {} is not ordered: {why}", map.id, map.pid));
    }

    /// It is tried again.
    pub fn failed(&mut self, map: &Open, error: &io::Error) {
        self.failed.insert(map.id, error.to_string());
    }

    /// Whether there is a map whose slots may be filled some day.
    pub fn has_hope(&self) -> bool {
        !self.waiting.is_empty() || !self.stuck.is_empty()
    }

    pub fn was_stuck(&self, id: u32) -> bool {
        self.stuck.contains(&id)
    }

    pub fn thread(&mut self, error: &io::Error) {
        self.is_broken = true;
        say(format_args!("perfweave: no thread can be started, and the tool has its rings back: {error}"));
    }

    pub fn broken(&mut self, id: u32, why: &str) {
        self.is_broken = true;
        say(format_args!(
            "perfweave: map {id} is given back: {why}. Events that were held are lost, and their number is not known"
        ));
    }

    /// A relay has ended.
    pub fn ended(&mut self, id: u32, end: End, done: Done) {
        let sum = &mut self.done;
        for (sum, one) in [
            (&mut sum.relayed, done.relayed),
            (&mut sum.lost, done.lost),
            (&mut sum.untold, done.untold),
            (&mut sum.unproven, done.unproven),
            (&mut sum.waits, done.waits),
            (&mut sum.repeated, done.repeated),
            (&mut sum.behind, done.behind),
            (&mut sum.untraced, done.untraced),
        ] {
            *sum += one;
        }
        match end {
            End::Asked | End::Tool => {}
            End::Stuck => {
                self.stuck.insert(id);
                say(format_args!(
                    "perfweave: map {id} is given back: its tool has read nothing of a full ring for seconds. It is taken \
                     over again when the tool has read all"
                ));
            }
            End::Slots => say(format_args!(
                "perfweave: the tool has changed the slots of map {id}: it is looked at anew. Events meanwhile are in no order"
            )),
            End::Guard => {
                self.is_broken = true;
                say(format_args!("perfweave: map {id} is given back: its guard was killed"));
            }
        }
    }

    /// Whether anything was ordered, and what.
    pub fn summary(&self) -> bool {
        if self.taken == 0 {
            for (id, error) in &self.failed {
                say(format_args!("perfweave: map {id} is not ordered: {error}"));
            }
            let found = match (self.refused, self.waiting.len(), self.ring_buffers) {
                (0, 0, 0) => "the tool has no perf event array".into(),
                (0, 0, _) => "the tool has BPF ring buffers, and no perf event array".into(),
                (0, ..) => "no slot of the tool's perf event arrays has an event".into(),
                _ => "none of the tool's perf event arrays can be".to_owned(),
            };
            say(format_args!("perfweave: nothing was ordered: {found}"));
            return false;
        }
        let Done { relayed, lost, untold, unproven, repeated, behind, untraced, .. } = self.done;
        let mut text = format!("{relayed} events");
        text +=
            &if unproven == 0 { " in proven order".into() } else { format!(": the order of {unproven} is not proven") };
        text += &match (lost, untold + untraced, self.is_broken) {
            (0, 0, false) => "; nothing is missing".into(),
            (0, ..) => String::new(),
            _ => format!("; {lost} lost, which the tool is told with its next record"),
        };
        for (count, what) in [
            (untold, "lost or damaged, which the tool was not told"),
            (repeated, "told to the tool as lost, and written all the same"),
            (behind, "written while the tool had its rings back, perhaps behind newer ones"),
            (untraced, "times a CPU was not traced"),
        ] {
            if count > 0 {
                text += &format!("; {count} {what}");
            }
        }
        say(format_args!("perfweave: {text}"));
        !self.is_broken
    }
}

/// What the tool had in other rings and has not read in time.
pub fn old(id: u32, left: u64) {
    if left > 0 {
        say(format_args!(
            "perfweave: the tool has not read {left} bytes of older events of map {id}: it may read them behind newer ones"
        ));
    }
}
