//! A reader on aya as its documentation has it, of a map that is pinned: `reader-aya MAP PAGES`.

use aya::maps::perf::{PerfEvent, PerfEventArray};
use aya::maps::{Map, MapData};
use aya::util::online_cpus;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::error::Error;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::{env, io, thread};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = env::args().skip(1);
    let (map, pages) =
        (words.next().ok_or("reader-aya MAP PAGES")?, words.next().ok_or("reader-aya MAP PAGES")?.parse()?);
    let mut array = PerfEventArray::try_from(Map::PerfEventArray(MapData::from_pin(map)?))?;
    let (lines, printed) = mpsc::channel();
    for cpu in online_cpus().map_err(|(_, error)| error)? {
        let mut buffer = array.open(cpu, Some(pages))?;
        let lines = lines.clone();
        // A thread for each CPU: the documentation has a task.
        thread::spawn(move || {
            loop {
                let mut text = Vec::new();
                buffer.for_each(|event| match event {
                    PerfEvent::Sample { head, tail } => text.extend_from_slice(&line(&[head, tail].concat())),
                    PerfEvent::Lost { count } => {
                        text.extend_from_slice(format!("lost {count} on CPU {cpu}\n").as_bytes())
                    }
                });
                if lines.send(text).is_err()
                    || poll(&mut [PollFd::new(buffer.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).is_err()
                {
                    return;
                }
            }
        });
    }
    let mut out = io::stdout().lock();
    writeln!(out, "ready")?;
    out.flush()?;
    for text in printed {
        out.write_all(&text)?;
        out.flush()?;
    }
    Ok(())
}

fn line(bytes: &[u8]) -> Vec<u8> {
    let number =
        |at: usize| bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes);
    format!("ticket {} ns {} number {} cpu {}\n", number(0), number(8), number(16), number(24) as u32).into_bytes()
}
