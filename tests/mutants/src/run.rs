//! Builds the copy, finds out which tests reach which mutants, and runs those for each.

use crate::plant::{Mutant, Planted};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error;
use std::fs;
use std::ops::Range;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Binaries of tests, and tests, that take no part, and why: `rooms` reads the sources; the others take CPUs offline,
/// mount, or change settings of the machine, which a mutant might leave so, or take long.
const LEFT_OUT: &[&str] = &["hotplug", "mounts", "faults", "rooms::", "leaks::", "limits::"];

/// Tests of one binary that take less than this are run together.
const QUICK: Duration = Duration::from_millis(200);

/// How long a mutant may take beyond what its tests take without it: of the processors' time, which others on the
/// machine do not use up, and in all.
const BUSY: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(20);

/// A test that takes longer takes no part.
const SLOWEST: Duration = Duration::from_secs(60);

/// A mutant gets tests that take no longer than this together if nothing else is asked for, those first that catch most
/// for their time.
pub const BUDGET: Duration = Duration::from_secs(30);

/// The most memory that a test may map, in bytes: a mutant may ask for any.
const MEMORY: u64 = 6 << 30;

/// How many times properties are tried.
const PROPERTIES: &str = "60";

/// What became of all mutants.
pub struct Outcome {
    pub caught: usize,
    pub survivors: Vec<Mutant>,
    /// Mutants that no test reaches.
    pub unreached: Vec<Mutant>,
    pub unviable: usize,
}

/// A test, how long it took, and which mutants it reached.
struct Test {
    binary: PathBuf,
    name: String,
    time: Duration,
    reached: BTreeSet<usize>,
}

/// Runs the mutants that are `chosen`, each with tests that take no longer than `budget` together.
pub fn run(mut planted: Planted, chosen: Vec<usize>, budget: Duration) -> Result<Outcome, Box<dyn Error>> {
    let begin = Instant::now();
    let unviable = make_viable(&mut planted)?;
    println!("{} of them do not compile", unviable.len());
    let executables = executables(&planted.directory)?;
    println!("built after {} s", begin.elapsed().as_secs());
    let tests = record(&planted, &executables)?;
    let reached: BTreeSet<usize> = tests.iter().flat_map(|test| &test.reached).copied().collect();
    let all = chosen.len();
    let chosen: Vec<usize> = chosen.into_iter().filter(|mutant| !unviable.contains(mutant)).collect();
    let unviable = all - chosen.len();
    let (chosen, unreached): (VecDeque<usize>, VecDeque<usize>) =
        chosen.into_iter().partition(|mutant| reached.contains(mutant));
    let unreached: Vec<Mutant> = unreached.into_iter().map(|mutant| planted.mutants[mutant].clone()).collect();
    println!(
        "{} are reached by some of {} tests, {} by none; {} s",
        chosen.len(),
        tests.len(),
        unreached.len(),
        begin.elapsed().as_secs()
    );
    let total = chosen.len();
    let queue = Mutex::new(chosen);
    let (survivors, known) = (Mutex::new(Vec::new()), Known::default());
    std::thread::scope(|scope| {
        for _ in 0..workers() {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().ok().and_then(|mut queue| Some((queue.pop_front()?, queue.len())));
                    let Some((mutant, left)) = next else { return };
                    if !is_caught((mutant, &planted.mutants[mutant].file), &tests, &planted.directory, budget, &known) {
                        println!("SURVIVED {}", show(&planted.mutants[mutant]));
                        survivors.lock().expect("no panic").push(planted.mutants[mutant].clone());
                    }
                    if left % 100 == 0 {
                        println!("{left} of {total} left after {} s", begin.elapsed().as_secs());
                    }
                }
            });
        }
    });
    let mut survivors = survivors.into_inner().expect("no panic");
    survivors.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
    let caught = total - survivors.len();
    Ok(Outcome { caught, survivors, unreached, unviable })
}

/// More than there are processors: many tests wait most of the time.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from) * 2
}

pub fn show(mutant: &Mutant) -> String {
    let Mutant { file, line, function, what, text } = mutant;
    format!("{}:{line}: {function}: {what}{}{text}", file.display(), if text.is_empty() { "" } else { " in: " })
}

/// Without what a debugger needs: it is built faster.
fn cargo(directory: &Path) -> Command {
    let mut command = Command::new("cargo");
    command
        .current_dir(directory)
        .env("CARGO_TARGET_DIR", directory.join("target"))
        .env("CARGO_PROFILE_TEST_DEBUG", "false");
    command
}

/// Leaves out what does not compile, until the rest does.
fn make_viable(planted: &mut Planted) -> Result<BTreeSet<usize>, Box<dyn Error>> {
    // Those that did not compile the last time, as they are shown.
    let kept = planted.directory.join("unviable");
    let known = fs::read_to_string(&kept).unwrap_or_default();
    let known: BTreeSet<&str> = known.lines().collect();
    let shown: Vec<String> = planted.mutants.iter().map(show).collect();
    let mut unviable: BTreeSet<usize> =
        (0..shown.len()).filter(|mutant| known.contains(shown[*mutant].as_str())).collect();
    planted.write(&unviable)?;
    loop {
        // As tests are built: the dependencies are shared.
        let output = cargo(&planted.directory)
            .args(["check", "--profile", "test", "--all-features", "--lib", "--message-format=json"])
            .stderr(Stdio::null())
            .output()?;
        if output.status.success() {
            let lines: Vec<&str> = unviable.iter().map(|mutant| shown[*mutant].as_str()).collect();
            fs::write(&kept, lines.join("\n"))?;
            return Ok(unviable);
        }
        let before = unviable.len();
        let messages = String::from_utf8_lossy(&output.stdout);
        let errors = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let errors: Vec<Value> = errors.filter(|message| message["message"]["level"] == "error").collect();
        for (file, bytes) in errors.iter().flat_map(|error| spans(&error["message"])) {
            unviable.extend(planted.blamed(Path::new(&file), bytes));
        }
        if unviable.len() == before {
            let first = errors.first().map_or("", |error| error["message"]["rendered"].as_str().unwrap_or(""));
            return Err(format!("the copy does not compile, and no mutant is to blame: {first}").into());
        }
        planted.write(&unviable)?;
    }
}

/// The primary spans of a compiler's message: file, and bytes.
fn spans(message: &Value) -> Vec<(String, Range<usize>)> {
    let spans = message["spans"].as_array().into_iter().flatten().filter(|span| span["is_primary"] == true);
    let read = spans.filter_map(|span| {
        let byte = |name: &str| usize::try_from(span[name].as_u64()?).ok();
        Some((span["file_name"].as_str()?.to_owned(), byte("byte_start")?..byte("byte_end")?))
    });
    read.collect()
}

/// Builds the tests. Gives where they are.
fn executables(directory: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut command = cargo(directory);
    command.args(["test", "--all-features", "--no-run", "--message-format=json", "--lib"]);
    for entry in fs::read_dir(directory.join("tests"))? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.join("main.rs").exists() && !LEFT_OUT.contains(&name.as_str()) {
            command.args(["--test", &name]);
        }
    }
    let output = command.stderr(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let messages: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if !output.status.success() {
        let error = messages.iter().find(|message| message["message"]["level"] == "error");
        let said = error.map_or("", |error| error["message"]["rendered"].as_str().unwrap_or(""));
        return Err(format!("the tests do not build: {said}").into());
    }
    Ok(messages.iter().filter_map(|message| message["executable"].as_str().map(PathBuf::from)).collect())
}

/// Runs each test by itself, and notes which mutants it reaches. What is known of a binary that has not been built
/// again is kept.
fn record(planted: &Planted, executables: &[PathBuf]) -> Result<Vec<Test>, Box<dyn Error>> {
    let kept = planted.directory.join("reached");
    fs::create_dir_all(&kept)?;
    let (mut queue, mut tests) = (Vec::new(), Vec::new());
    for binary in executables {
        let built = fs::metadata(binary)?.modified()?;
        let listed = Command::new(binary).arg("--list").output()?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let takes_part = |name: &&str| !LEFT_OUT.iter().any(|left_out| name.starts_with(left_out));
        for name in listed.lines().filter_map(|line| line.strip_suffix(": test")).filter(takes_part) {
            let stem = binary.file_name().unwrap_or_default().to_string_lossy();
            let known = kept.join(format!("{stem}-{}", name.replace("::", "-")));
            if fs::read_to_string(&known).is_ok_and(|known| known == TOO_SLOW) {
                println!("was too slow to take part: {name} of {}", binary.display());
                continue;
            }
            let is_new = fs::metadata(&known).and_then(|known| known.modified()).is_ok_and(|known| known > built);
            match is_new.then(|| Test::read(&known, binary, name)).flatten() {
                Some(test) => tests.push(test),
                None => queue.push((binary.clone(), name.to_owned(), known)),
            }
        }
    }
    let queue = Mutex::new(queue);
    let tests = Mutex::new(tests);
    std::thread::scope(|scope| {
        for worker in 0..workers() {
            let file = planted.directory.join(format!("reached-by-{worker}"));
            let (queue, tests) = (&queue, &tests);
            scope.spawn(move || {
                while let Some((binary, name, kept)) = take(queue) {
                    // On a busy machine even a sound test may fail once, or take long.
                    let once = || record_one(planted, &binary, &name, &file);
                    let first = once().ok().flatten();
                    match first.map_or_else(once, |test| Ok(Some(test))) {
                        Ok(Some(test)) => {
                            let _ = test.write(&kept);
                            tests.lock().expect("no panic").push(test);
                        }
                        Ok(None) => {
                            println!("too slow to take part: {name} of {}", binary.display());
                            let _ = fs::write(&kept, TOO_SLOW);
                        }
                        Err(error) => println!("takes no part: {error}"),
                    }
                }
            });
        }
    });
    Ok(tests.into_inner().expect("no panic"))
}

/// What is kept of a test that takes no part.
const TOO_SLOW: &str = "too slow";

impl Test {
    /// In milliseconds, and the mutants.
    fn write(&self, path: &Path) -> std::io::Result<()> {
        let reached: Vec<String> = self.reached.iter().map(usize::to_string).collect();
        fs::write(path, format!("{} {}", self.time.as_millis(), reached.join(" ")))
    }

    fn read(path: &Path, binary: &Path, name: &str) -> Option<Self> {
        let text = fs::read_to_string(path).ok()?;
        let mut numbers = text.split_whitespace().map(|number| number.parse::<u64>().ok());
        let time = Duration::from_millis(numbers.next()??);
        let reached = numbers.map(|number| usize::try_from(number?).ok()).collect::<Option<_>>()?;
        Some(Self { binary: binary.to_owned(), name: name.to_owned(), time, reached })
    }
}

fn take<T>(queue: &Mutex<Vec<T>>) -> Option<T> {
    queue.lock().expect("no panic").pop()
}

fn record_one(planted: &Planted, binary: &Path, name: &str, file: &Path) -> Result<Option<Test>, Box<dyn Error>> {
    fs::write(file, [0; 8 << 10])?;
    let begin = Instant::now();
    let child = start(binary, &[name], &planted.directory, "record", SLOWEST, Some(file))?;
    match ended(child, SLOWEST) {
        Some(status) if status.success() => {}
        // Killed, for it is slow: it takes no part.
        None => return Ok(None),
        Some(status) if status.signal().is_some() && begin.elapsed() >= SLOWEST / 2 => return Ok(None),
        Some(_) => return Err(format!("{name} of {} fails without any mutant", binary.display()).into()),
    }
    let time = begin.elapsed();
    let mut reached = BTreeSet::new();
    for (at, word) in fs::read(file)?.chunks_exact(8).enumerate() {
        let word = u64::from_ne_bytes(word.try_into()?);
        reached.extend((0..64).filter(|bit| word >> bit & 1 == 1).map(|bit| at * 64 + bit));
    }
    reached.retain(|at| *at < planted.mutants.len());
    Ok(Some(Test { binary: binary.to_owned(), name: name.to_owned(), time, reached }))
}

/// What is known of tests that run together: the quick ones of a binary, or one that is not.
type Known = Mutex<BTreeMap<(PathBuf, Option<String>), Past>>;

/// What they did so far.
#[derive(Debug, Clone, Copy, Default)]
struct Past {
    /// How many mutants they have caught.
    caught: u32,
    /// The longest that they took for one that they did not catch: less than one by one, since a process is started
    /// once.
    took: Duration,
}

/// Tests that run in one process.
struct Together<'a> {
    binary: &'a Path,
    /// The test, if it runs alone.
    alone: Option<&'a str>,
    /// Whether they are of the mutant's own module.
    near: bool,
    names: Vec<&'a str>,
    /// What they took one by one.
    time: Duration,
    past: Past,
}

impl Together<'_> {
    fn key(&self) -> (PathBuf, Option<String>) {
        (self.binary.to_owned(), self.alone.map(str::to_owned))
    }

    /// What they will take.
    fn takes(&self) -> Duration {
        if self.past.took.is_zero() { self.time } else { self.time.min(self.past.took) }
    }
}

/// Whether a test is of the module that a file is.
fn is_near(test: &Test, file: &Path) -> bool {
    let Some((module, _)) = test.name.split_once("::tests::") else { return false };
    let path: PathBuf = module.split("::").collect();
    file.strip_prefix("src").is_ok_and(|file| file.with_extension("").starts_with(path))
}

/// Whether some test fails with a mutant.
fn is_caught(
    (mutant, file): (usize, &Path),
    tests: &[Test],
    directory: &Path,
    budget: Duration,
    known: &Known,
) -> bool {
    let mut runs: Vec<Together<'_>> = Vec::new();
    for test in tests.iter().filter(|test| test.reached.contains(&mutant)) {
        let (quick, near) = (test.time < QUICK, is_near(test, file));
        let same = |run: &&mut Together<'_>| run.alone.is_none() && run.near == near && run.binary == test.binary;
        match runs.iter_mut().filter(|_| quick).find(same) {
            Some(run) => {
                run.time += test.time;
                run.names.push(&test.name);
            }
            None => {
                let alone = (!quick).then_some(test.name.as_str());
                let (binary, names, time) = (test.binary.as_path(), vec![test.name.as_str()], test.time);
                runs.push(Together { binary, alone, near, names, time, past: Past::default() });
            }
        }
    }
    for run in &mut runs {
        run.past = known.lock().expect("no panic").get(&run.key()).copied().unwrap_or_default();
    }
    // The module's own first, then those that catch most for the time they take.
    runs.sort_by_key(|run| (!run.near, run.takes() / (run.past.caught + 1)));
    let mut spent = Duration::ZERO;
    for run in runs {
        // Others may still fit.
        if spent + run.takes() > budget {
            continue;
        }
        spent += run.takes();
        let begin = Instant::now();
        let child = start(run.binary, &run.names, directory, &mutant.to_string(), run.time * 3 + BUSY, None);
        // One that hangs is noticed too.
        let passes =
            child.is_ok_and(|child| ended(child, run.time * 5 + PATIENCE).is_some_and(|status| status.success()));
        let mut known = known.lock().expect("no panic");
        let past = known.entry(run.key()).or_default();
        if !passes {
            past.caught += 1;
            return true;
        }
        past.took = past.took.max(begin.elapsed());
    }
    false
}

/// Starts some tests of a binary in a process group of their own, which may use so much of the processors' time.
fn start(
    binary: &Path,
    names: &[&str],
    directory: &Path,
    mutant: &str,
    busy: Duration,
    reached: Option<&Path>,
) -> std::io::Result<Child> {
    let mut command = Command::new("prlimit");
    command
        .arg(format!("--as={MEMORY}"))
        .arg(format!("--cpu={}", busy.as_secs() + 1))
        .arg("--core=0")
        .arg(binary)
        .args(names)
        // Unstable, but for this variable: nothing is run behind the first test that fails.
        .args(["--exact", "--quiet", "--test-threads=4", "-Zunstable-options", "--fail-fast"])
        .env("RUSTC_BOOTSTRAP", "1")
        .current_dir(directory)
        .env("MUTANT", mutant)
        .env("RUST_BACKTRACE", "0")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if std::env::var_os("QUICKCHECK_TESTS").is_none() {
        command.env("QUICKCHECK_TESTS", PROPERTIES);
    }
    if let Some(reached) = reached {
        command.env("MUTANT_REACHED", reached);
    }
    command.spawn()
}

/// How a process ended; `None` if it did not in time. All that it started and left behind is killed.
fn ended(mut child: Child, most: Duration) -> Option<ExitStatus> {
    let begin = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if begin.elapsed() < most => std::thread::sleep(Duration::from_millis(1)),
            _ => break None,
        }
    };
    let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).stderr(Stdio::null()).status();
    let _ = child.wait();
    status
}
