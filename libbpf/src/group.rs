//! The perf buffers that have one order, and their reader.

use crate::border::{Failed, failed, guarded};
use crate::calls::{Calls, GO_ON};
use crate::say::say;
use crate::settler::Settler;
use crate::signals::quietly;
use crate::slot::{Asked, Slot};
use crate::sys;
use perfweave::{Certainty, Event, Item, Order, Rings};
use std::ffi::c_int;
use std::ops::ControlFlow;
use std::os::fd::RawFd;
use std::time::Duration;

/// Rings grow up to this by themselves.
const LARGEST: usize = 16 << 20;
/// And so much at once: a flood that fills a ring while a proof is waited for fills twice of it, too.
const GROWTH: usize = 8;

pub(crate) struct Member {
    pub(crate) slot: Slot,
    pub(crate) calls: Calls,
    /// The tool has freed it. Its memory stays until the reader goes.
    pub(crate) is_freed: bool,
}

#[derive(Default)]
pub(crate) struct Group {
    /// Before the slots: dropped before their memory goes.
    settler: Option<Settler>,
    pub(crate) members: Vec<Member>,
    /// For records that do not lie in one piece.
    scratch: Vec<u8>,
    /// Lazy: the next call that reads waits for a proof, since the tool takes silence for the end.
    pub(crate) settles_next: bool,
    /// A call has failed that was to give what is there.
    is_owing: bool,
    /// No more memory was to be had.
    is_largest: bool,
}

impl Group {
    /// Adds the rings of an event, as the next member. A reader that runs takes them too.
    pub(crate) fn add(&mut self, slot: Slot, calls: Calls) -> Result<(), Failed> {
        if let Some(settler) = &mut self.settler {
            for room in &slot.rooms {
                let (ring, layout) = slot.adopt(room, self.members.len() as u32).map_err(|error| failed(&error))?;
                settler.reader.add(slot.cpu, ring, layout).map_err(|error| failed(&error))?;
            }
        }
        self.members.push(Member { slot, calls, is_freed: false });
        Ok(())
    }

    /// Makes the reader, if there is none.
    pub(crate) fn settler(&mut self) -> Result<&mut Settler, Failed> {
        if self.settler.is_none() {
            self.settler = Some(guarded(|| quietly(|| self.open()))??);
        }
        self.settler.as_mut().ok_or(libc::EINVAL)
    }

    fn open(&self) -> Result<Settler, Failed> {
        let clock = self.members.first().ok_or(libc::EINVAL)?.slot.asked.clock();
        let mut rings = Rings::empty(clock);
        for (tag, member) in (0..).zip(&self.members) {
            for room in &member.slot.rooms {
                let (ring, layout) = member.slot.adopt(room, tag).map_err(|error| {
                    say!("cannot read the ring of CPU {}: {error}", member.slot.cpu);
                    failed(&error)
                })?;
                rings.add(member.slot.cpu, ring, layout);
            }
        }
        Settler::new(rings, Order::new())
    }

    /// The member that has this descriptor.
    pub(crate) fn at(&mut self, fd: RawFd) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| !member.is_freed && member.slot.fd() == fd)
    }

    /// A member goes. The last one takes all memory with it.
    pub(crate) fn free(&mut self, fd: RawFd) {
        if let Some(member) = self.at(fd) {
            member.is_freed = true;
            sys::disable(&member.slot.event);
            say_untold(&mut member.slot);
        }
        if self.members.iter().all(|member| member.is_freed) {
            *self = Self::default();
        }
    }

    /// Whether something was written that no call has given, proven, to the tool.
    pub(crate) fn has_new(&self) -> bool {
        self.is_unfinished() || self.members.iter().any(|member| !member.is_freed && member.slot.has_new())
    }

    /// Whether the last call has ended before its end: by a callback, or an error.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.is_owing || self.settler.as_ref().is_some_and(Settler::is_unfinished)
    }

    /// Gives everything that is there, in proven order. `is_over`: whether to stop after an event. Returns what a
    /// callback has said other than to go on.
    pub(crate) fn settle(&mut self, is_over: &dyn Fn() -> bool) -> Result<c_int, Failed> {
        self.settles_next = false;
        // Again if rings grow: then the readiness of the small ones is gone, and what they have lost is known.
        for _ in 0..4 {
            if !self.has_new() {
                return Ok(self.tell_left(is_over));
            }
            self.is_owing = true;
            self.members.iter_mut().for_each(|member| member.slot.look());
            self.settler()?;
            let Self { settler: Some(settler), members, scratch, .. } = self else { return Err(libc::EINVAL) };
            let said = settler.settle(|event| tell(members, scratch, &event, is_over))?;
            self.is_owing = false;
            if let Some(said) = said {
                return Ok(said);
            }
            if !self.grow() {
                return Ok(self.tell_left(is_over));
            }
        }
        Ok(GO_ON)
    }

    /// Tells what rings have lost that were left for larger ones: no record will. Everything in them was given.
    fn tell_left(&mut self, is_over: &dyn Fn() -> bool) -> c_int {
        for member in self.members.iter_mut().filter(|member| !member.is_freed) {
            let count = member.slot.take_left();
            let told = |count| member.calls.lost(&member.slot.asked, member.slot.cpu, count, member.slot.id);
            let said = if count > 0 { told(count) } else { GO_ON };
            if said != GO_ON || is_over() {
                return said;
            }
        }
        GO_ON
    }

    /// Gives what is proven, without waiting; or everything, if the tool would take silence for the end.
    pub(crate) fn take(&mut self, is_over: &dyn Fn() -> bool) -> Result<c_int, Failed> {
        if self.settles_next {
            return self.settle(is_over);
        }
        self.settler()?;
        let Self { settler: Some(settler), members, scratch, .. } = self else { return Err(libc::EINVAL) };
        let said = settler.take(|event| tell(members, scratch, &event, is_over))?;
        // What a small ring still has comes with all the rest.
        self.settles_next |= self.grow();
        Ok(said.unwrap_or(GO_ON))
    }

    /// Lazy: whether the tool, which has waited long enough, is to read once more. Its next read waits for a proof.
    pub(crate) fn is_last(&mut self) -> bool {
        self.settles_next = self.has_new() || self.has_untold();
        self.settles_next
    }

    /// What is asked of a lazy reader: whether an event is proven, within this time.
    pub(crate) fn wait(&mut self, time: Duration) -> Result<bool, Failed> {
        self.settler()?.wait(time)
    }

    /// Whether there are losses of which the tool does not know.
    pub(crate) fn has_untold(&mut self) -> bool {
        self.members.iter_mut().any(|member| !member.is_freed && member.slot.untold() > 0)
    }

    /// Tells losses that no record tells. Only if everything that was written is given: otherwise a record may.
    pub(crate) fn tell_losses(&mut self, is_over: &dyn Fn() -> bool) -> c_int {
        for member in self.members.iter_mut().filter(|member| !member.is_freed) {
            let count = member.slot.untold();
            if count == 0 {
                continue;
            }
            member.slot.tell(count);
            let said = member.calls.lost(&member.slot.asked, member.slot.cpu, count, member.slot.id);
            if said != GO_ON || is_over() {
                return said;
            }
        }
        GO_ON
    }

    /// Gives larger rings to events whose rings were too small. Returns whether there are any.
    fn grow(&mut self) -> bool {
        let mut grew = false;
        for (tag, member) in (0..).zip(&mut self.members) {
            let Some(size) = member.slot.rooms.last().map(|room| room.size) else { continue };
            if member.is_freed || self.is_largest || !member.slot.take_crowded() || size >= LARGEST {
                continue;
            }
            let Some(settler) = &mut self.settler else { return grew };
            let larger = (size * GROWTH).min(LARGEST);
            match guarded(|| enlarge(&mut member.slot, settler, larger, tag)).and_then(|grown| grown) {
                Ok(()) => {
                    grew = true;
                    say!("rings grow by themselves: one filled up while a proof was waited for");
                }
                Err(errno) => {
                    self.is_largest = true;
                    let why = std::io::Error::from_raw_os_error(errno);
                    say!("rings of {} KiB are too small, and the kernel refuses larger ones: {why}", size >> 10);
                }
            }
        }
        grew
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.members.iter_mut().for_each(|member| say_untold(&mut member.slot));
    }
}

/// A loss that was found too late for a callback: the tool may have freed what its callbacks use.
fn say_untold(slot: &mut Slot) {
    let count = slot.untold();
    if count > 0 {
        slot.tell(count);
        say!("CPU {} lost {count} records at the end, and nothing has told this program", slot.cpu);
    }
}

/// The reader reads the larger ring before the event writes into it.
fn enlarge(slot: &mut Slot, settler: &mut Settler, size: usize, tag: u32) -> Result<(), Failed> {
    let (owner, room) = slot.larger(size)?;
    let (ring, layout) = slot.adopt(&room, tag).map_err(|error| failed(&error))?;
    settler.reader.add(slot.cpu, ring, layout).map_err(|error| failed(&error))?;
    // Whatever comes now, the reader has the memory.
    slot.rooms.push(room);
    sys::redirect(&slot.event, &owner)?;
    slot.leave();
    Ok(())
}

/// Gives an event to whom it belongs. Breaks with what a callback says.
fn tell(
    members: &mut [Member],
    scratch: &mut Vec<u8>,
    event: &Event<'_>,
    is_over: &dyn Fn() -> bool,
) -> ControlFlow<c_int> {
    if event.certainty() != Certainty::Proven {
        say!("not all events are in proven order: {:?}, of CPU {:?}", event.certainty(), event.cpu());
    }
    let said = match event.item() {
        Item::Record(record) => match members.get(record.layout().tag() as usize) {
            Some(member) if !member.is_freed => member.calls.record(&member.slot.asked, &record, scratch),
            _ => GO_ON,
        },
        Item::Lost(lost) => match members.get_mut(lost.tag as usize) {
            Some(member) if !member.is_freed => match member.slot.reported(lost.count) {
                0 => GO_ON,
                news => member.calls.lost(&member.slot.asked, lost.cpu, news, lost.id),
            },
            _ => GO_ON,
        },
        other => {
            say!("{other:?}");
            GO_ON
        }
    };
    if said != GO_ON || is_over() { ControlFlow::Break(said) } else { ControlFlow::Continue(()) }
}

/// Opens the event of a CPU.
pub(crate) fn open(asked: Asked, cpu: u32) -> Result<Slot, Failed> {
    guarded(|| Slot::open(asked, cpu)).and_then(|opened| opened)
}
