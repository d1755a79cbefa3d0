//! Files that a recording left open when it was killed: told, and removed.

use super::recorder::Notice;
use super::store::Store;
use crate::clocks::Reading;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Removes what dead recordings of this machine left open, and says which intervals are missing. What cannot be read or removed is left.
pub fn notices(store: &Store, machine: &str, boot: &str, reading: &Reading) -> Vec<Notice> {
    let Store::Folder(root) = store else { return Vec::new() };
    let (mut open, mine) = (Vec::new(), format!("machine={machine}"));
    find(root, &mine, false, &mut open);
    open.sort();
    open.iter().filter_map(|path| abandoned(root, path, boot, reading)).collect()
}

/// Open files below the machine's own folders.
fn find(folder: &Path, mine: &str, is_mine: bool, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        // Links are not followed, so that the search ends.
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && (!name.starts_with("machine=") || name == mine) => {
                find(&path, mine, is_mine || name == mine, found);
            }
            Ok(kind) if kind.is_file() && is_mine && name.contains(".parquet.open-") => found.push(path),
            _ => {}
        }
    }
}

fn abandoned(root: &Path, path: &Path, boot: &str, reading: &Reading) -> Option<Notice> {
    let file = File::open(path).ok()?;
    // A living writer holds it.
    file.try_lock().ok()?;
    let alive = file.metadata().and_then(|data| data.modified()).ok()?;
    let name = path.file_name()?.to_str()?;
    let (its_boot, rest) = name.split_once('-')?;
    let from = rest.split('-').next()?.parse::<i64>().ok();
    let utc = alive.duration_since(UNIX_EPOCH).ok()?.as_nanos() as i64;
    // In another boot the clock counts from another time.
    let to = boot.starts_with(its_boot).then(|| utc.saturating_sub(reading.utc));
    fs::remove_file(path).ok()?;
    let shown = path.strip_prefix(root).unwrap_or(path).display();
    let text = format!(
        "a recording was killed: rows of {shown} are missing, from {} of boot {its_boot} on; its last sign of life, one of each second, was at {}",
        from.map_or("an unknown time".into(), |from| from.to_string()),
        humantime::format_rfc3339_seconds(alive)
    );
    Some(Notice { kind: "unfinished", from, to, text, ..Notice::default() })
}
