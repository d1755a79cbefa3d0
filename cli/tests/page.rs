//! The page of `convert --html`, of a recording of this machine, in a browser that is driven as by a hand: wheel, drag, keys, clicks, search.

mod support;

use perfweave_support::runs;
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::process::Command;
use std::time::{Duration, SystemTime};
use support::{Place, objects, printed, recorded_with_losses};

/// Drives a page from its end, and writes what it found into the document.
const DRIVE: &str = include_str!("page/drive.js");

/// What the browser found in a page, or `None` where there is no browser.
#[track_caller]
fn driven(place: &Place, page: &str) -> Option<Value> {
    runs(&["chromium", "--version"], "Debian's package chromium")?;
    let mut file = OpenOptions::new().append(true).open(page).unwrap();
    write!(file, "<script>{DRIVE}</script>").unwrap();
    let mut browser = Command::new("chromium");
    browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1600,900", "--dump-dom"]);
    browser.arg(format!("--user-data-dir={}", place.file("profile"))).arg(format!("file://{page}"));
    let output = browser.output().unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    let found = dom.split_once("data-found=\"").and_then(|(_, rest)| rest.split_once('"'));
    let (found, _) = found.unwrap_or_else(|| panic!("{dom:.1000} {}", String::from_utf8_lossy(&output.stderr)));
    let found = found.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    Some(serde_json::from_str(&found).unwrap())
}

#[track_caller]
fn real(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Whether a text has others in it.
#[track_caller]
fn has(text: &Value, parts: &[&Value]) {
    let said = text.as_str().unwrap_or_else(|| panic!("{text} is no text"));
    for part in parts {
        assert!(said.contains(part.as_str().unwrap()), "{said:?} lacks {part}");
    }
}

#[test]
fn a_hand_zooms_pans_clicks_and_searches_a_live_recording() {
    let place = Place::new();
    let (file, page) = (place.file("perf.data"), place.file("page.html"));
    let Some(()) = recorded_with_losses(&file, &[]) else { return };
    printed(&["convert", "--html", &file, "-o", &page]);
    if let Ok(kept) = std::env::var("PERFWEAVE_KEEP_PAGES") {
        fs::copy(&page, format!("{kept}/page.html")).unwrap();
    }
    let Some(found) = driven(&place, &page) else { return };
    assert_eq!(found["problems"], Value::Array(vec![]), "{found:#}");
    holds_everything(&found, &file);
    moves(&found);
    answers(&found);
    has_dates(&found, &file);
    // A frame has at most a run, a wait and some marks for each pixel of the lanes that are seen: however many events there are.
    let most = real(&found["sweep"]["most"]);
    assert!(most < 45.0 * 4.0 * real(&found["sweep"]["width"]), "{}", found["sweep"]);
    eprintln!("{} events: {} frames in {} ms", found["events"], found["sweep"]["frames"], found["sweep"]["ms"]);
}

/// The page has what the recording has.
#[track_caller]
fn holds_everything(found: &Value, file: &str) {
    let objects = objects(&["convert", "--json", file]);
    let timed = |object: &&Value| object["event"].is_string() && object["time"].as_u64().unwrap_or(0) > 0;
    assert_eq!(found["events"], objects.iter().filter(timed).count());
    let lost = objects.iter().filter(|object| object["notice"] == "lost").count();
    assert!(lost > 0, "the recorder stood still, and nothing was lost");
    assert_eq!(found["losses"], lost);
    let lanes = found["lanes"].as_array().unwrap();
    for name in ["CPU ", "dd ", "sh ", "cat "] {
        assert!(lanes.iter().any(|lane| lane.as_str().unwrap().starts_with(name)), "{name}: {lanes:?}");
    }
    // One command is recorded: when others run, nobody knows.
    assert_eq!(found["strangers"], 0, "runs of threads that are not recorded");
    assert!(real(&found["runs"]) > 20.0 && real(&found["wakes"]) > 0.0);
}

/// The page's origin and the chosen event have the dates that `--time real` gives them.
#[track_caller]
fn has_dates(found: &Value, file: &str) {
    let times = |clock: &[&str]| {
        let objects = objects(&[&["convert", "--json", file][..], clock].concat());
        let times = objects.iter().filter(|object| object["event"].is_string()).map(|object| object["time"].as_u64());
        times.collect::<Option<Vec<_>>>().unwrap()
    };
    let dated: Vec<_> = times(&[]).into_iter().zip(times(&["--time", "real"])).filter(|(time, _)| *time > 0).collect();
    let date = |real: u64| {
        let date = humantime::format_rfc3339_nanos(SystemTime::UNIX_EPOCH + Duration::from_nanos(real)).to_string();
        date.replace('T', " ").replace('Z', " UTC")
    };
    assert_eq!(found["began"], format!("0 is {}", date(dated[0].1)));
    let marked: u64 = found["marked"].as_str().unwrap().parse().unwrap();
    let (_, real) = dated.iter().find(|(time, _)| *time == marked).unwrap();
    has(&found["mark"], &[&date(*real).into()]);
}

#[track_caller]
fn moves(found: &Value) {
    // Twenty turns of the wheel around the pointer, a drag of 100 pixels, `a`, `0`, and the wheel without a key.
    assert!(
        (real(&found["zoom"]["by"]) - 1.002_f64.powi(2400)).abs() < 1.0 && real(&found["zoom"]["moved"]) < 1.0,
        "{found:#}"
    );
    assert!((real(&found["panned"]) - 100.0).abs() < 1.0, "{}", found["panned"]);
    assert_eq!((&found["panned_back"], &found["whole"]), (&true.into(), &vec![0, 0].into()));
    assert_eq!(found["scrolled"][0], found["scrolled"][1]);
}

#[track_caller]
fn answers(found: &Value) {
    let (run, loss, search) = (&found["run"], &found["loss"], &found["search"]);
    has(&run["record"], &[&run["woken"], &run["waker"], &run["waited"], &"woken by".into()]);
    assert_eq!((&run["shows_wake"], &run["again"]), (&true.into(), &true.into()));
    has(&found["mark"], &[&"since start".into(), &"thread".into()]);
    assert!(real(&found["drawn"]["run"]["arrows"]) > 0.0, "{}", found["drawn"]);
    has(&loss["record"], &[&"Loss".into(), &loss["text"]]);
    assert!(real(&found["drawn"]["loss"]["loss"]) > 100.0, "{}", found["drawn"]);
    let hits = real(&search["hits"]);
    assert!(hits > 2.0 && real(&found["drawn"]["search"]["hit"]) > 0.0, "{search}");
    has(&search["record"], &[&"cat".into()]);
    assert_eq!((&search["second"], &search["back"]), (&format!("2 of {hits}").into(), &format!("1 of {hits}").into()));
    assert_eq!(search["shown"], true);
}
