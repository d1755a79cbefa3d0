//! The pages of `convert --html` and `why --html`, of a recording of this machine, in a browser that is driven as by a
//! hand: wheel, drag, keys, clicks, search.

mod support;

use perfweave_support::runs;
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::process::Command;
use std::time::{Duration, SystemTime};
use support::{Place, objects, perfweave, printed, recorded_while, recorded_with_losses};

/// What drives a page from its end, and writes what it found into the document.
const DRIVE: &str = include_str!("page/drive.js");
const WAY: &str = include_str!("page/way.js");

/// What the browser found in a page, or `None` where there is no browser.
#[track_caller]
fn driven(place: &Place, page: &str, drive: &str) -> Option<Value> {
    runs(&["chromium", "--version"], "Debian's package chromium")?;
    let mut file = OpenOptions::new().append(true).open(page).unwrap();
    write!(file, "<script>{drive}</script>").unwrap();
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
    // Where a switch has no record, nobody may be known to have been ready.
    let waited = (0..10).find_map(|_| {
        let Some(()) = recorded_with_losses(&file, &[]) else { return Some(None) };
        printed(&["convert", "--html", &file, "-o", &page]);
        if let Ok(kept) = std::env::var("PERFWEAVE_KEEP_PAGES") {
            fs::copy(&page, format!("{kept}/page.html")).unwrap();
        }
        let Some(found) = driven(&place, &page, DRIVE) else { return Some(None) };
        assert_eq!(found["problems"], Value::Array(vec![]), "{found:#}");
        found.get("wait").is_some().then_some(Some(found))
    });
    let Some(found) = waited else {
        return perfweave_support::lacks("a thread that is known to have been ready, in ten recordings");
    };
    let Some(found) = found else { return };
    holds_everything(&found, &file);
    moves(&found);
    answers(&found);
    waits(&found);
    keeps_lanes(&found);
    has_dates(&found, &file);
    // A frame has at most a run, a wait and some marks for each pixel of the lanes that are seen, and looks at some
    // entries for each: however many events there are. The canvas draws what is written beside them.
    let sweep = |name: &str| real(&found["sweep"][name]);
    let columns = 45.0 * sweep("width");
    assert!(
        sweep("shapes") < 4.0 * columns && sweep("looked") < 20.0 * columns && sweep("most") < 2000.0,
        "{}",
        found["sweep"]
    );
    eprintln!("{} events: {} frames in {} ms", found["events"], found["sweep"]["frames"], found["sweep"]["ms"]);
}

/// Whether an event only names a thread or a mapping. A page begins with its first event that is no name.
fn is_name(object: &Value) -> bool {
    ["COMM", "FORK", "MMAP", "MMAP2"].map(Value::from).contains(&object["event"])
}

/// The page has what the recording has.
#[track_caller]
fn holds_everything(found: &Value, file: &str) {
    let objects = objects(&["convert", "--json", file]);
    let timed = |object: &&Value| object["event"].is_string() && object["time"].as_u64().unwrap_or(0) > 0;
    assert_eq!(found["events"], objects.iter().filter(timed).skip_while(|event| is_name(event)).count());
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
        let events = objects.into_iter().filter(|object| object["event"].is_string());
        events.map(|event| (is_name(&event), event["time"].as_u64().unwrap())).collect::<Vec<_>>()
    };
    let both = times(&[]).into_iter().zip(times(&["--time", "real"]));
    let timed = both.filter(|((_, time), _)| *time > 0).skip_while(|((is_name, _), _)| *is_name);
    let dated: Vec<_> = timed.map(|((_, time), (_, date))| (time, date)).collect();
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

/// A click on a time in which a thread could run and did not says who ran instead. The shares are that time.
#[track_caller]
fn waits(found: &Value) {
    let wait = &found["wait"];
    has(&wait["record"], &[&"ready".into(), &"ran instead".into(), &wait["time"], &wait["most"]]);
    assert_eq!(real(&wait["sum"]), real(&wait["to"]) - real(&wait["from"]), "{wait}");
    // Each state has its colour. What is near the middle may be a loss alone.
    let frames = found["drawn"].as_object().unwrap();
    for colour in ["ready", "ran", "blocked"] {
        assert!(frames.values().any(|frame| real(&frame[colour]) > 0.0), "{colour}: {frames:?}");
    }
}

/// The CPUs stay at the top. A pinned lane comes to them, and other threads are found by a part of their name.
#[track_caller]
fn keeps_lanes(found: &Value) {
    assert_eq!((&found["kept"], &found["still"]), (&vec![true, true].into(), &true.into()), "{found:#}");
    assert_eq!((&found["pinned"], &found["unpinned"]), (&vec![true, true, true].into(), &0.into()), "{found:#}");
    let filtered = found["filtered"].as_array().unwrap();
    assert!(
        !filtered.is_empty() && filtered.iter().all(|title| title.as_str().unwrap().contains("cat")),
        "{filtered:?}"
    );
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

/// The leaves of a path: what is for nobody else.
fn leaves<'a>(path: &'a Value, leaves: &mut Vec<&'a Value>) {
    for step in path.as_array().unwrap() {
        if step.get("path").is_some() { self::leaves(&step["path"], leaves) } else { leaves.push(step) }
    }
}

/// A shell waits for another, which waits for its children and then for a CPU that a third one has.
const WAITING: &str = "
    cpu=$(sed -n 's/^Cpus_allowed_list:[^0-9]*\\([0-9]*\\).*/\\1/p' /proc/self/status)
    taskset -c $cpu sh -c 'while :; do :; done' & hog=$!
    taskset -c $cpu sh -c 'for i in 1 2 3 4 5 6 7 8; do /bin/true; sleep 0.01; done; :'
    kill $hog";

/// The page has the paths that `why --json` has of the same recording, and draws them as one ribbon each.
#[test]
fn a_way_is_a_ribbon_without_a_hole() {
    let place = Place::new();
    let (file, page) = (place.file("perf.data"), place.file("way.html"));
    // Records may be lost, and the kernel leaves a wake-up or a switch out now and then.
    for _ in 0..20 {
        let events = "sched:sched_switch,sched:sched_waking,raw_syscalls:*";
        let Some(()) = recorded_while(&file, &["-a", "--buffer", "16M", "-e", events], WAITING) else { return };
        let mut whys = objects(&["why", "--json", "--comm", "sh", &file]);
        whys.retain(|object| object.get("why").is_some());
        if whys.first().is_some_and(is_a_chain) {
            return is_a_ribbon(&place, &file, &page, &whys);
        }
    }
    perfweave_support::lacks("a wait of a shell in which somebody is known to have been ready, in twenty recordings");
}

/// The path has several parts, and in one of them a thread could run, and it is known where. On a busy machine the longest
/// wait may be one for a CPU alone.
fn is_a_chain(why: &Value) -> bool {
    let mut all = Vec::new();
    leaves(&why["path"], &mut all);
    let was_ready =
        |leaf: &&Value| leaf["what"] == "ready" && leaf["instead"].as_array().is_some_and(|had| !had.is_empty());
    all.len() > 3 && all.iter().any(was_ready)
}

#[track_caller]
fn is_a_ribbon(place: &Place, file: &str, page: &str, whys: &[Value]) {
    printed(&["why", "--comm", "sh", "--html", page, file]);
    let text = fs::read_to_string(page).unwrap();
    let data = text.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    let data: Value = serde_json::from_str(data).unwrap();
    let (start, ways) = (data["start"].as_str().unwrap().parse::<u64>().unwrap(), data["ways"].as_array().unwrap());
    assert_eq!(ways.len(), whys.len());
    for (way, why) in ways.iter().zip(whys) {
        assert_eq!((&way["ns"], &way["tid"], &way["culprits"]), (&why["ns"], &why["tid"], &why["culprits"]));
        let times = |value: &Value, name: &str| value[name].as_u64().unwrap();
        assert_eq!(times(way, "from") + start, times(why, "from"));
        let mut all = Vec::new();
        leaves(&way["path"], &mut all);
        let mut at = times(way, "from");
        for leaf in all {
            assert_eq!(times(leaf, "from"), at, "{way:#}");
            at = times(leaf, "to");
        }
        assert_eq!(at, times(way, "to"));
    }
    if let Ok(kept) = std::env::var("PERFWEAVE_KEEP_PAGES") {
        fs::copy(page, format!("{kept}/way.html")).unwrap();
    }
    let Some(found) = driven(place, page, WAY) else { return };
    assert_eq!(found["problems"], Value::Array(vec![]), "{found:#}");
    assert_eq!((&found["holes"], &found["shown"]), (&0.into(), &vec![true, true].into()), "{found:#}");
    assert!(real(&found["ribbon"]) > 3.0, "{found:#}");
    // Each reason has its colour.
    for reason in found["reasons"].as_object().unwrap().keys().filter(|reason| *reason != "unknown") {
        assert!(real(&found["pixels"][reason]) > 0.0, "{reason}: {found:#}");
    }
    assert_eq!((&found["first"], &found["folded"]), (&true.into(), &true.into()), "{found:#}");
    assert!(real(&found["unfolded"]) > 0.0, "{found:#}");
    let ready = &found["ready"];
    has(&ready["record"], &[&"on the path".into(), &"ran instead".into(), &ready["most"], &ready["time"]]);
    has(&found["summary"], &[&"why".into(), &found["title"], &whys[0]["culprits"][0]["text"]]);
    assert_eq!(found["without"], serde_json::json!([true, 0, true]), "{found:#}");
}

/// A page that would take the place of its own recording, or that nobody could write, is an error before anything is
/// traced.
#[test]
fn a_page_of_why_is_not_the_recording() {
    let place = Place::new();
    let file = place.file("perf.data");
    let Some(()) = recorded_while(&file, &["-a"], "ls | cat") else { return };
    let before = fs::read(&file).unwrap();
    let ran = perfweave(&["why", "--html", &file, &file]).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.code() == Some(1) && said.contains("is the recording itself"), "{said}");
    assert_eq!(fs::read(&file).unwrap(), before);
    let ran = perfweave(&["why", "--html", "/nowhere/page.html", "--", "touch", &place.file("ran")]).output().unwrap();
    assert!(ran.status.code() == Some(1) && !place.0.join("ran").exists(), "{ran:?}");
}
