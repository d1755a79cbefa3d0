//! The page in a browser: what it draws, and what it answers.

use crate::convert::picture::{By, Loss, Picture, Place, Point, Run, Thread, Wait, Wake};
use crate::waits::Why;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Names and texts of a recording are anybody's.
#[test]
fn no_name_ends_the_page() {
    const EVIL: &str = "</script><script>alert(1)<!--";
    let thread = Thread { pid: None, name: EVIL.into() };
    let (text, chain) = (EVIL.to_owned(), vec![EVIL.to_owned()]);
    let point =
        Point { time: 1, cpu: None, tid: Some(1), interrupt: None, event: 0, text, place: Place::Proven, chain };
    let by = || By::Interrupt(EVIL.into());
    let (why, call) = (Why::Asleep, Some(EVIL.into()));
    let wait = Wait { tid: 1, from: 1, to: 2, why, cpu: None, call, by: Some(by()) };
    let wake = Wake { time: 1, point: None, by: by(), cpu: None, woken: 1, ran: (2, 0) };
    let picture = Picture {
        threads: [(1, thread)].into(),
        events: vec![EVIL.into()],
        points: [point].into_iter().collect(),
        waits: [wait].into_iter().collect(),
        wakes: [wake].into_iter().collect(),
        losses: vec![Loss { cpu: None, from: 1, to: 2, text: EVIL.into() }],
        ..Picture::default()
    };
    let mut page = Vec::new();
    let way = serde_json::json!({ "thread": EVIL, "path": [{ "call": EVIL }] });
    let hang = serde_json::json!({ "hangs": EVIL, "tid": 1, "for": [], "text": EVIL });
    let told = super::Told { ways: &[way], hangs: &[hang] };
    super::page(&mut page, &picture, "</title>/*SCRIPT*/<!--", None, told).unwrap();
    let page = String::from_utf8(page).unwrap();
    assert_eq!(
        (page.matches("</script>").count(), page.matches("<script").count(), page.matches("<!--").count()),
        (2, 2, 0)
    );
    assert_eq!(page.matches("\\u003c/script>\\u003cscript>alert(1)").count(), 10);
    assert!(!page.contains("/*DATA*/"));
    let frames = "requestAnimationFrame";
    assert_eq!(page.matches(frames).count(), super::SCRIPT.matches(frames).count());
}

/// 100,000 events of 4 CPUs and 40 threads, a microsecond apart. One is late, one not proven, and one CPU loses some.
fn large() -> Picture {
    const EVENTS: u64 = 100_000;
    let mut picture = Picture { start: 5_000_000_000, end: 5_000_000_000 + 1000 * EVENTS, ..Picture::default() };
    picture.cpus = (0..4).collect();
    picture.events = vec!["sched:sched_switch".into(), "sched:sched_waking".into()];
    for tid in 100..140 {
        picture.threads.insert(tid, Thread { pid: Some(100), name: format!("worker-{tid}") });
    }
    for at in 0..EVENTS {
        let (time, cpu, tid) = (picture.start + 1000 * at, (at % 4) as u32, 100 + (at % 40) as u32);
        let place = match at {
            LATE => Place::Late(77_000),
            UNPROVEN => Place::Assumed,
            _ => Place::Proven,
        };
        let text = if at == NEEDLE { "a needle in it".into() } else { format!("event {}", at % 10) };
        let point = Point {
            time,
            cpu: Some(cpu),
            tid: Some(tid),
            interrupt: None,
            event: (at % 2) as usize,
            text,
            place,
            chain: vec![],
        };
        picture.points.push(&point).unwrap();
        let run = Run { cpu, tid, from: time, to: time + 3000 };
        if at % 4 == 0 {
            picture.runs.push(&run).unwrap();
        }
        if at % 10 == 0 {
            let (woken, ran, by) = (100 + ((at + 4) % 40) as u32, (time + 4000, cpu), By::Thread(tid));
            let wake = Wake { time, point: Some(at as usize), by, cpu: Some((cpu + 1) % 4), woken, ran };
            picture.wakes.push(&wake).unwrap();
            let (why, cpu, call, by) = (Why::Ready, Some(cpu), None, None);
            let wait = Wait { tid: woken, from: time, to: time + 4000, why, cpu, call, by };
            picture.waits.push(&wait).unwrap();
        }
    }
    let from = picture.start + 40_000_000;
    picture.losses.push(Loss { cpu: Some(2), from, to: from + 10_000_000, text: "CPU 2 lost 9 records here".into() });
    picture
}

const LATE: u64 = 60_001;
const UNPROVEN: u64 = 70_002;
const NEEDLE: u64 = 33_333;

/// What the page says after it has drawn: its elements, and how many pixels of some colours there are.
fn answers(name: &str, hash: &str) -> Option<String> {
    answers_of(&large(), super::Told::default(), name, hash)
}

fn answers_of(picture: &Picture, told: super::Told<'_>, name: &str, hash: &str) -> Option<String> {
    perfweave_support::runs(&["chromium", "--version"], "Debian's package chromium")?;
    let path = std::env::temp_dir().join(format!("perfweave-page-{}-{name}.html", std::process::id()));
    let mut page = Vec::new();
    super::page(&mut page, picture, "large", None, told).unwrap();
    page.extend(COUNT_COLOURS.as_bytes());
    fs::write(&path, page).unwrap();
    let profile = PathBuf::from(format!("{}.profile", path.display()));
    let mut browser = Command::new("chromium");
    browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,900", "--dump-dom"]);
    browser.arg(format!("--user-data-dir={}", profile.display())).arg(format!("file://{}#{hash}", path.display()));
    let output = browser.output().unwrap();
    if std::env::var_os("PERFWEAVE_KEEP_PAGES").is_none() {
        let _ = (fs::remove_file(&path), fs::remove_dir_all(&profile));
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Counts the pixels of late events and of losses.
const COUNT_COLOURS: &str = "<script>
let told = 0;
for (const name of ['fillRect', 'fillText', 'stroke']) {
  const original = paint[name];
  paint[name] = function (...all) { told += 1; return original.apply(this, all); };
}
draw();
document.body.dataset.told = told;
const image = paint.getImageData(0, 0, canvas.width, canvas.height).data;
for (const name of ['late', 'loss']) {
  const [red, green, blue] = colours[name].match(/[0-9]+/g).map(Number);
  let count = 0;
  for (let at = 0; at < image.length; at += 4) count += image[at] === red && image[at + 1] === green && image[at + 2] \
                             === blue;
  document.body.dataset[name] = count;
}
</script>";

/// The number of a `data-` attribute of the page's body.
#[track_caller]
fn number(page: &str, name: &str) -> u64 {
    let (_, rest) = page.split_once(&format!("data-{name}=\"")).unwrap_or_else(|| panic!("no {name} in {page:.2000}"));
    rest.split('"').next().unwrap().parse().unwrap()
}

#[test]
fn a_hundred_thousand_events_are_drawn_as_few_shapes() {
    let Some(page) = answers("large", "") else { return };
    assert_eq!([number(&page, "events"), number(&page, "wakes"), number(&page, "runs")], [100_000, 10_000, 25_000]);
    assert_eq!(number(&page, "lanes"), 44);
    // A lane has at most a run and a mark for each of the canvas's pixels.
    let drawn = number(&page, "drawn");
    assert!(drawn > 100 && drawn < 44 * 2 * 1400, "{drawn} shapes");
    // The canvas draws titles, lines and arrows alone. A search begins near the end of the last one.
    let (looked, told) = (number(&page, "looked"), number(&page, "told"));
    assert!(looked < 44 * 1060 * 5, "{looked} entries");
    assert!(told < 700, "{told} calls");
    assert!(page.contains("10000 wake-ups here: the 55 slowest have arrows"));
    // However many events share its pixel, a late one is red.
    assert!(number(&page, "late") > 0 && number(&page, "loss") > 100);
}

#[test]
fn a_part_has_no_red_and_no_hatching_of_another() {
    let Some(page) = answers("part", "from=1000000&to=2000000") else { return };
    assert_eq!([number(&page, "from"), number(&page, "to")], [1_000_000, 2_000_000]);
    assert_eq!([number(&page, "late"), number(&page, "loss")], [0, 0]);
}

/// A recording may have any times. A microsecond after 36 years is less than a number of a script tells apart.
#[test]
fn a_ruler_of_times_that_are_not_told_apart_has_an_end() {
    let mut picture = large();
    picture.end = picture.start + (1 << 61);
    let told = super::Told::default();
    let Some(page) = answers_of(&picture, told, "ages", &format!("from={}&to={}", 1_u64 << 60, (1_u64 << 60) + 768))
    else {
        return;
    };
    // As scripts print numbers of that size.
    let shown = [number(&page, "from"), number(&page, "to")].map(|time| time as f64);
    assert_eq!(shown, [1_u64 << 60, (1 << 60) + 768].map(|time| time as f64));
}

/// Two threads wait for each other, one waits for one of them, and one for a thread that does not wait.
#[test]
fn who_waits_for_whom_is_drawn() {
    let hang = |tid: u32, whom: u32, deadlock: bool| {
        serde_json::json!({ "hangs": "worker", "tid": tid, "pid": 100, "on": "lock", "deadlock": deadlock,
            "for": [{ "thread": "other", "tid": whom, "pid": 100 }], "text": "for another", "ns": 5_000 })
    };
    let hangs = [hang(101, 102, true), hang(102, 101, true), hang(103, 102, false), hang(104, 999, false)];
    let Some(page) = answers_of(&large(), super::Told { ways: &[], hangs: &hangs }, "hangs", "") else { return };
    let count = |what: &str| page.matches(what).count();
    assert_eq!(
        (count("class=\"deadlock\""), count("class=\"waits\""), number(&page, "hangs")),
        (2, 2, 4),
        "{page:.4000}"
    );
    assert!(page.contains(">worker 101: lock</text>") && page.contains(">other 999</text>"), "{page:.4000}");
    // One waits for many, and others for nobody.
    let mut hangs: Vec<_> = (0..100).map(|tid| hang(200 + tid, 200 + tid, false)).collect();
    hangs[0]["for"] =
        (0..100).map(|tid| serde_json::json!({ "thread": "other", "tid": 500 + tid, "pid": 100 })).collect();
    let Some(page) = answers_of(&large(), super::Told { ways: &[], hangs: &hangs }, "many", "") else { return };
    assert!(page.contains("99 more threads wait"), "{page:.4000}");
}

#[test]
fn the_page_finds_and_shows_records() {
    let Some(page) = answers("found", "search=needle&hit=1") else { return };
    assert!(page.contains("1 of 1") && page.contains("<pre>a needle in it</pre>"));
    assert!(page.contains("5.033333000 s") && page.contains("worker-113 113"));
    let Some(page) = answers("late", &format!("event={LATE}")) else { return };
    assert!(page.contains("<dd class=\"late\">late by 77 µs</dd>"));
    let Some(page) = answers("unproven", &format!("event={UNPROVEN}")) else { return };
    assert!(page.contains("<dd class=\"late\">not proven</dd>"));
}

#[test]
fn a_click_shows_what_is_there() {
    // CPU 0's lane is the first: 24 pixels of ruler, 22 of a heading. The canvas has 1400 - 340 pixels, 180 of them for
    // names.
    let Some(page) = answers("click", "from=8000&to=8880&click=560,56") else { return };
    assert!(page.contains("<h2>worker-108 108</h2>") || page.contains("<h2>sched:sched_switch</h2>"), "{page:.3000}");
}
