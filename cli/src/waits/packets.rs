//! Packets to this machine that are on their way.

use super::Who;
use std::collections::HashMap;

/// So many are kept. One that is dropped never arrives.
const MOST: usize = 4_096;

/// Who sent each, and on which CPU.
#[derive(Debug, Default)]
pub struct Packets(HashMap<u64, (Who, u32)>);

impl Packets {
    /// One is put where a soft interrupt delivers it. Where its sender is not known, nor is it any more.
    pub fn send(&mut self, packet: u64, sender: Option<Who>, cpu: u32) {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        match sender {
            Some(who) => drop(self.0.insert(packet, (who, cpu))),
            None => drop(self.0.remove(&packet)),
        }
    }

    /// One arrives. Gives who sent it.
    pub fn arrive(&mut self, packet: u64) -> Option<Who> {
        self.0.remove(&packet).map(|(who, _)| who)
    }

    /// A CPU has delivered all that was sent there. What has not arrived was dropped, and another packet may have its
    /// address. One that went to another CPU is forgotten as well: of such a one nothing is said
    /// ([`super::cpu::Cpu::sender`]).
    pub fn delivered(&mut self, cpu: u32) {
        self.0.retain(|_, (_, on)| *on != cpu);
    }

    /// Records are missing: any may have arrived.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}
