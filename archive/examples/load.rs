//! So many system calls a second, for so many seconds: a load to measure a recording by.
//!
//! `perfweave-archive record -e raw_syscalls:sys_enter --to /tmp/archive -- load 200000 10`

use std::time::{Duration, Instant};

/// How often calls are made up for.
const PERIOD: Duration = Duration::from_millis(5);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = std::env::args().skip(1).map(|arg| arg.parse::<f64>()).collect::<Result<Vec<_>, _>>()?;
    let [rate, seconds] = args[..] else { return Err("give the calls a second, and the seconds".into()) };
    let (began, mut made) = (Instant::now(), 0_u64);
    while began.elapsed().as_secs_f64() < seconds {
        let due = (began.elapsed().as_secs_f64() * rate) as u64;
        (made..due).for_each(|_| {
            nix::unistd::getppid();
        });
        made = due.max(made);
        std::thread::sleep(PERIOD);
    }
    println!("{made} calls in {:.2} s", began.elapsed().as_secs_f64());
    Ok(())
}
