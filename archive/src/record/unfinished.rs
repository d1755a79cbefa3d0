//! Files that a recording left open when it was killed: told, and then removed.

use super::recorder::Notice;
use super::store::Store;
use crate::clocks::Reading;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// A file that a dead recording left open, locked so that no other recording tells of it too.
#[derive(Debug)]
pub struct Unfinished {
    /// Which rows are missing.
    pub notice: Notice,
    path: PathBuf,
    _lock: File,
}

impl Unfinished {
    /// Removes the file, of which a finished file tells. If it cannot be removed, the next recording tells of it again.
    pub fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// What dead recordings of this machine left open. What cannot be read is left alone.
pub fn find_all(store: &Store, machine: &str, boot: &str, reading: &Reading) -> Vec<Unfinished> {
    let Store::Folder(root) = store else { return Vec::new() };
    let (mut open, mine) = (Vec::new(), format!("machine={machine}"));
    find(root, &mine, false, &mut open);
    open.sort();
    open.into_iter().filter_map(|path| abandoned(root, path, boot, reading)).collect()
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

fn abandoned(root: &Path, path: PathBuf, boot: &str, reading: &Reading) -> Option<Unfinished> {
    let file = File::open(&path).ok()?;
    // A living writer holds it.
    file.try_lock().ok()?;
    // Its writer may have finished it since it was found. Then it has another name.
    if fs::metadata(&path).ok()?.ino() != file.metadata().ok()?.ino() {
        return None;
    }
    let alive = file.metadata().and_then(|data| data.modified()).ok()?;
    let name = path.file_name()?.to_str()?;
    let (its_boot, rest) = name.split_once('-')?;
    let from = rest.split('-').next()?.parse::<i64>().ok();
    let utc = alive.duration_since(UNIX_EPOCH).ok()?.as_nanos() as i64;
    // In another boot the clock counts from another time.
    let to = boot.starts_with(its_boot).then(|| utc.saturating_sub(reading.utc));
    let shown = path.strip_prefix(root).unwrap_or(&path).display();
    let text = format!(
        "a recording was killed: rows of {shown} are missing, from {} of boot {its_boot} on; its last sign of life, one of each second, was at {}",
        from.map_or("an unknown time".into(), |from| from.to_string()),
        humantime::format_rfc3339_seconds(alive)
    );
    let notice = Notice { kind: "unfinished", from, to, text, ..Notice::default() };
    Some(Unfinished { notice, path, _lock: file })
}
