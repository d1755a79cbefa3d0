//! Queries on archives whose answers are known: a few rows made by hand, and generated ones that are counted again
//! without SQL.

mod made;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Field, Int32Type, Schema};
use made::{Made, Switch, row};
use perfweave_archive::Failure;
use perfweave_archive::query::{Archive, Format, NAMED, Notice, print};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

async fn open(url: &str) -> Archive {
    Archive::open(url, None, 1 << 30).await.unwrap()
}

/// The answer as CSV without its header.
async fn ask(archive: &mut Archive, sql: &str) -> Vec<String> {
    let answer = archive.sql(sql).await.unwrap();
    let mut text = Vec::new();
    print(answer, Format::Csv, false, &mut text).await.unwrap();
    String::from_utf8(text).unwrap().lines().skip(1).map(str::to_string).collect()
}

fn named(name: &str) -> &'static str {
    NAMED.iter().find(|query| query.name == name).unwrap().sql
}

#[tokio::test]
async fn wakeups_by_hand() {
    let made = Made::new();
    made.waking("m1", "t1", &[row(100, 1).pid(10), row(130, 3).pid(11), row(500, 6).pid(10)]);
    // Nobody runs from 50 on. 10 runs 50 ns after its wake-up.
    // 11 is woken at 130 and runs at 190, while 10 has the CPU. 10 is woken at 500 and never runs.
    made.switches(
        "m1",
        "t1",
        &[Switch(50, 0, 12, 1, 0), Switch(150, 2, 0, 0, 10), Switch(190, 4, 10, 1, 11), Switch(250, 5, 11, 2, 0)],
    );
    let mut archive = open(made.url()).await;
    let mut answer = ask(&mut archive, named("wakeup-latency")).await;
    answer.sort();
    assert_eq!(answer, ["m1,p10,3,1,50,50,50,0", "m1,p11,3,1,60,60,60,0"]);
    assert_eq!(ask(&mut archive, named("ran-instead")).await, ["m1,p10,p0,50", "m1,p11,p10,40", "m1,p11,p0,20"]);
    assert_eq!(archive.notices(), []);
}

#[tokio::test]
async fn off_cpu_by_hand() {
    let made = Made::new();
    let wakings = [(150, 2), (380, 5), (440, 7), (510, 11)];
    made.waking("m1", "t1", &wakings.map(|(mono, place)| row(mono, place).pid(10)));
    let switches = [
        // 10 sleeps until 150, and is ready until 200.
        Switch(100, 1, 10, 1, 11),
        Switch(200, 3, 11, 256, 10),
        // 10 waits for a disk until 380. 11 was preempted from 200 to 260, and sleeps from 400 on.
        Switch(260, 4, 10, 2, 11),
        Switch(400, 6, 11, 1, 10),
        // The wake-up at 440 comes before the switch of the thread that is just going to sleep: it is ready from then
        // on.
        Switch(450, 8, 10, 1, 12),
        Switch(480, 9, 12, 0, 10),
        // A wake-up does not end that another thread runs instead.
        Switch(500, 10, 10, 256, 0),
        Switch(530, 12, 0, 0, 10),
        // Who woke it is not known, and so when.
        Switch(540, 13, 10, 1, 0),
        Switch(600, 14, 0, 0, 10),
    ];
    made.switches("m1", "t1", &switches);
    let answer = ask(&mut open(made.url()).await, named("off-cpu")).await;
    assert_eq!(
        answer,
        [
            "m1,p10,uninterruptible,1,120,120,120,0",
            "m1,p10,ready,3,100,49,50,0",
            "m1,p11,preempted,1,60,60,60,0",
            "m1,p10,sleeping,1,50,50,50,1",
            "m1,p10,preempted,1,30,30,30,0"
        ]
    );
    // The wait of the race, in which the wake-up comes before the switch, is one as well.
    assert_eq!(ask(&mut open(made.url()).await, named("wakeup-latency")).await, ["m1,p10,3,3,30,49,50,0"]);
}

/// 10 sleeps from 100 to 150 and is ready until 200. Losses touch or span these times.
#[tokio::test]
async fn what_is_off_the_cpu_over_a_loss_is_left_out_and_counted() {
    for (loss, expected) in [
        ((Some(10), Some(100)), ["ready,1,50,50,50,0", "sleeping,1,50,50,50,0"]),
        ((Some(110), Some(120)), ["ready,1,50,50,50,0", "sleeping,0,,,,1"]),
        ((Some(150), Some(150)), ["ready,1,50,50,50,0", "sleeping,1,50,50,50,0"]),
        ((Some(140), Some(160)), ["ready,0,,,,1", "sleeping,0,,,,1"]),
        ((Some(199), Some(300)), ["ready,0,,,,1", "sleeping,1,50,50,50,0"]),
    ] {
        let made = Made::new();
        made.waking("m1", "t1", &[row(150, 2).pid(10)]);
        made.switches("m1", "t1", &[Switch(100, 1, 10, 1, 0), Switch(200, 3, 0, 0, 10)]);
        made.losses("m1", "t1", &[loss]);
        let mut answer = ask(&mut open(made.url()).await, named("off-cpu")).await;
        answer.sort();
        assert_eq!(answer, expected.map(|rest| format!("m1,p10,{rest}")), "{loss:?}");
    }
}

/// The next thread with a number is another, which does not go on after the end of the first.
#[tokio::test]
async fn a_thread_that_has_ended_is_off_no_cpu() {
    for state in [16, 32] {
        let made = Made::new();
        // 10 ends at 100, just when it is woken. 11 ends at 300. Their numbers are those of other threads later, which
        // nothing woke.
        made.waking("m1", "t1", &[row(90, 1).pid(10)]);
        let switches = [
            Switch(50, 0, 0, 0, 10),
            Switch(100, 2, 10, state, 11),
            Switch(300, 3, 11, state, 0),
            Switch(500, 4, 0, 0, 10),
            Switch(600, 5, 10, 0, 11),
        ];
        made.switches("m1", "t1", &switches);
        let mut archive = open(made.url()).await;
        assert_eq!(ask(&mut archive, named("off-cpu")).await, Vec::<String>::new(), "{state}");
        assert_eq!(ask(&mut archive, named("wakeup-latency")).await, Vec::<String>::new(), "{state}");
    }
}

/// 10 is woken at 100 and leaves at 200. Nothing lost: it was about to sleep, and is ready until 250. If something is
/// lost in between, that wake-up may be the one that made it run before, and nothing says what made it run at 250.
#[tokio::test]
async fn no_wake_up_is_joined_across_a_loss() {
    for (loss, off_cpu, waits) in [
        ((Some(300), Some(400)), "ready,1,50,50,50,0", "1,50,50,50,0"),
        ((Some(50), Some(100)), "ready,1,50,50,50,0", "1,50,50,50,0"),
        ((Some(200), Some(200)), "ready,1,50,50,50,0", "1,50,50,50,0"),
        ((Some(120), Some(180)), "sleeping,0,,,,1", "0,,,,1"),
        ((Some(150), Some(201)), "sleeping,0,,,,1", "0,,,,1"),
        ((None, Some(101)), "sleeping,0,,,,1", "0,,,,1"),
        ((Some(210), Some(220)), "ready,0,,,,1", "0,,,,1"),
    ] {
        let made = Made::new();
        made.waking("m1", "t1", &[row(100, 1).pid(10)]);
        made.switches("m1", "t1", &[Switch(50, 0, 0, 0, 10), Switch(200, 2, 10, 1, 0), Switch(250, 3, 0, 0, 10)]);
        made.losses("m1", "t1", &[loss]);
        let mut archive = open(made.url()).await;
        assert_eq!(ask(&mut archive, named("off-cpu")).await, [format!("m1,p10,{off_cpu}")], "{loss:?}");
        assert_eq!(ask(&mut archive, named("wakeup-latency")).await, [format!("m1,p10,3,{waits}")], "{loss:?}");
    }
}

/// 10 waits from 100 to 150, 11 from 200 to 260, 12 from 300 to 390. Losses touch, span or cover these times.
#[tokio::test]
async fn what_spans_a_loss_is_left_out_and_counted() {
    for (losses, expected) in [
        (&[][..], ["1,50,50,50,0", "1,60,60,60,0", "1,90,90,90,0"]),
        // Up to a begin, and from an end on.
        (
            &[(Some(50), Some(100)), (Some(150), Some(200)), (Some(260), Some(300)), (Some(390), None)],
            ["1,50,50,50,0", "1,60,60,60,0", "1,90,90,90,0"],
        ),
        // Inside, over the begin, over the end.
        (&[(Some(120), Some(130)), (Some(190), Some(201)), (Some(389), Some(391))], ["0,,,,1", "0,,,,1", "0,,,,1"]),
        (&[(Some(110), Some(250))], ["0,,,,1", "0,,,,1", "1,90,90,90,0"]),
        // From the first event of a ring on, and up to the last.
        (&[(None, Some(210)), (Some(380), None)], ["0,,,,1", "0,,,,1", "0,,,,1"]),
        (&[(Some(280), None)], ["1,50,50,50,0", "1,60,60,60,0", "0,,,,1"]),
    ] {
        let made = Made::new();
        made.waking("m1", "t1", &[row(100, 1).pid(10), row(200, 3).pid(11), row(300, 5).pid(12)]);
        made.switches(
            "m1",
            "t1",
            &[Switch(150, 2, 0, 0, 10), Switch(260, 4, 10, 1, 11), Switch(390, 6, 11, 1, 12), Switch(400, 7, 12, 1, 0)],
        );
        made.losses("m1", "t1", losses);
        // Those of another recording do not matter.
        made.losses("m1", "t2", &[(None, None)]);
        let mut answer = ask(&mut open(made.url()).await, named("wakeup-latency")).await;
        answer.sort();
        let expected: Vec<_> =
            ["p10", "p11", "p12"].iter().zip(expected).map(|(of, rest)| format!("m1,{of},3,{rest}")).collect();
        assert_eq!(answer, expected, "{losses:?}");
    }
}

/// Writes an archive of what is told in a schedule of the table.
fn schedule(told: &[Value]) -> Made {
    let made = Made::new();
    let (mut wakings, mut switches, mut cpus, mut losses) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (place, fact) in (1..).zip(told) {
        let number = |at: usize| fact[at].as_i64().unwrap();
        let small = |at: usize| i32::try_from(number(at)).unwrap();
        match fact[2].as_str().unwrap() {
            "switches" => {
                switches.push(Switch(number(0), place, small(3), number(4), small(5)));
                cpus.push(small(1));
            }
            "wakes" => wakings.push(row(number(0), place).pid(small(3)).cpu(small(1))),
            "lost" => losses.push((Some(number(3)), Some(number(0)))),
            other => panic!("{other}"),
        }
    }
    made.waking("m1", "t1", &wakings);
    made.switches_on("m1", "t1", &switches, &cpus);
    if !losses.is_empty() {
        made.losses("m1", "t1", &losses);
    }
    made
}

/// How many times there are of each kind, how long they are together, and the longest.
fn sums(times: impl Iterator<Item = (String, i64)>) -> Vec<String> {
    let mut sums = BTreeMap::<String, [i64; 3]>::new();
    for (of, time) in times {
        let [count, total, most] = sums.entry(of).or_default();
        (*count, *total, *most) = (*count + 1, *total + time, time.max(*most));
    }
    sums.into_iter().map(|(of, [count, total, most])| format!("{of},{count},{total},{most}")).collect()
}

/// The program's account of waiting says the same without an archive: its tests read the same table.
#[tokio::test]
async fn schedules_come_to_what_the_programs_account_says() {
    let table: Vec<Value> = serde_json::from_str(include_str!("../../cli/src/waits/schedules.json")).unwrap();
    for one in &table {
        let made = schedule(one["told"].as_array().unwrap());
        let mut archive = open(made.url()).await;
        let list = |name: &str| one[name].as_array().unwrap().iter();
        let lasted = |of: &Value, at: usize| of[at + 1].as_i64().unwrap() - of[at].as_i64().unwrap();

        // machine, process, reason, times, total_ns, p99_ns, max_ns, left_out
        let off = sums(list("off").map(|of| (format!("p{},{}", of[0], of[1].as_str().unwrap()), lasted(of, 2))));
        let said = ask(&mut archive, named("off-cpu")).await;
        let fields = said.iter().map(|line| line.split(',').collect::<Vec<_>>()).filter(|fields| fields[3] != "0");
        let mut said: Vec<_> = fields.map(|of| [of[1], of[2], of[3], of[4], of[6]].join(",")).collect();
        said.sort();
        assert_eq!(said, off, "off-cpu: {}", one["about"]);

        // machine, process, cpu, waits, p50_ns, p99_ns, max_ns, left_out
        let waits = sums(list("waits").map(|of| (format!("p{},{}", of[0], of[1]), lasted(of, 2))));
        let without_total = waits.iter().map(|line| {
            let fields: Vec<_> = line.split(',').collect();
            [fields[0], fields[1], fields[2], fields[4]].join(",")
        });
        let said = ask(&mut archive, named("wakeup-latency")).await;
        let fields = said.iter().map(|line| line.split(',').collect::<Vec<_>>()).filter(|fields| fields[3] != "0");
        let mut said: Vec<_> = fields.map(|of| [of[1], of[2], of[3], of[6]].join(",")).collect();
        said.sort();
        assert_eq!(said, without_total.collect::<Vec<_>>(), "wakeup-latency: {}", one["about"]);

        // machine, process, ran, ns
        let shares = list("waits").flat_map(|of| {
            let had = of[4].as_object().unwrap().iter();
            had.map(|(ran, time)| (format!("p{},p{ran}", of[0]), time.as_i64().unwrap())).collect::<Vec<_>>()
        });
        let mut instead = BTreeMap::<String, i64>::new();
        shares.for_each(|(of, time)| *instead.entry(of).or_default() += time);
        let instead: Vec<_> = instead.into_iter().map(|(of, time)| format!("m1,{of},{time}")).collect();
        let mut said = ask(&mut archive, named("ran-instead")).await;
        said.sort();
        assert_eq!(said, instead, "ran-instead: {}", one["about"]);
    }
}

#[tokio::test]
async fn before_is_claimed_only_where_clocks_allow() {
    let made = Made::new();
    made.waking("m1", "t1", &[row(1000, 1), row(2000, 2), row(2000, 3), row(2000, 4).cpu(5)]);
    made.waking("m1", "t2", &[row(2000, 1)]);
    made.waking("m2", "t3", &[row(1015, 1), row(1030, 2)]);
    let mut archive = open(made.url()).await;
    let sql = "SELECT a.trace, a.row, b.trace, b.row, happened_before(a.stamp, b.stamp) AS before \
               FROM sched.sched_waking a, sched.sched_waking b WHERE a.stamp <> b.stamp ORDER BY 1, 2, 3, 4";
    let mut answers = BTreeMap::new();
    for line in ask(&mut archive, sql).await {
        let (pair, before) = line.rsplit_once(',').unwrap();
        answers.insert(pair.to_string(), before.to_string());
    }
    for (pair, before) in [
        ("t1,1,t1,2", "true"),
        ("t1,2,t1,1", "false"),
        // One time in one CPU's ring: by its order. In two rings, or in two recordings: not known.
        ("t1,2,t1,3", "true"),
        ("t1,3,t1,2", "false"),
        ("t1,3,t1,4", ""),
        ("t1,4,t1,3", ""),
        ("t1,2,t2,1", ""),
        ("t1,1,t2,1", "true"),
        // Errors are 10 ns: 1000 and 1015 may be either way, 1000 and 1030 not.
        ("t1,1,t3,1", ""),
        ("t3,1,t1,1", ""),
        ("t1,1,t3,2", "true"),
        ("t3,2,t1,1", "false"),
    ] {
        assert_eq!(answers[pair], before, "{pair}");
    }
    let wrong = archive.sql("SELECT happened_before(mono, mono) FROM sched.sched_waking").await;
    assert!(wrong.unwrap_err().to_string().contains("compares two stamps"));
}

#[tokio::test]
async fn bad_files_are_told_and_the_rest_is_answered() {
    let made = Made::new();
    made.waking("m1", "t1", &[row(100, 1), row(200, 2)]);
    made.waking("m1", "t2", &[row(300, 1)]);
    made.waking("m2", "t3", &[row(300, 1)]);
    let good = made.files("sched_waking");
    let bytes = std::fs::read(&good[0]).unwrap();
    std::fs::write(good[0].with_file_name("cut.parquet"), &bytes[..bytes.len() / 2]).unwrap();
    std::fs::write(good[0].with_file_name("text.parquet"), "no parquet at all").unwrap();
    std::fs::write(good[0].with_file_name("x.parquet.open-1"), "still written").unwrap();
    std::fs::copy(&good[0], good[0].ancestors().nth(4).unwrap().join("astray.parquet")).unwrap();
    made.foreign("m2");
    let mut archive = open(made.url()).await;
    let sql = "SELECT machine, date, hour, count(*), sum(mono) FROM sched.sched_waking GROUP BY 1, 2, 3 ORDER BY 1";
    assert_eq!(ask(&mut archive, sql).await, ["m1,2026-11-20,09,3,600", "m2,2026-11-20,09,1,300"]);
    let told: Vec<_> = archive.notices().iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 4, "{told:#?}");
    for (file, kind) in [
        ("cut.parquet", "cannot be read"),
        ("text.parquet", "cannot be read"),
        ("astray.parquet", "directories"),
        ("foreign.parquet", "no column"),
    ] {
        assert!(told.iter().any(|notice| notice.contains(file) && notice.contains(kind)), "{file}: {told:#?}");
    }
}

#[tokio::test]
async fn recordings_that_overlap_are_read_both_and_told() {
    let made = Made::new();
    made.waking("m1", "t1", &[row(100, 1), row(200, 2)]);
    made.waking("m1", "t2", &[row(150, 1), row(300, 2)]);
    made.waking("m1", "t3", &[row(301, 1)]);
    let mut archive = open(made.url()).await;
    assert_eq!(
        ask(&mut archive, "SELECT trace, count(*) FROM sched.sched_waking GROUP BY trace ORDER BY trace").await,
        ["t1,2", "t2,2", "t3,1"]
    );
    let overlap = Notice::Overlap { machine: "m1".into(), traces: ["t1".into(), "t2".into()], mono: [150, 200] };
    assert_eq!(archive.notices(), [overlap]);
}

#[tokio::test]
async fn a_field_that_a_kernel_added_is_null_before() {
    let made = Made::new();
    made.waking("m1", "t1", &[row(100, 1)]);
    made.waking("m2", "t2", &[row(100, 1).added(7)]);
    let mut archive = open(made.url()).await;
    assert_eq!(ask(&mut archive, "SELECT machine, added FROM sched.sched_waking ORDER BY 1").await, ["m1,", "m2,7"]);
    assert_eq!(archive.notices(), []);
}

/// A query answers. What writes or reads other files, or sets what the engine does, is refused unless it is asked for.
#[tokio::test]
async fn a_query_writes_nothing_unless_that_is_allowed() {
    let made = Made::new();
    made.waking("m1", "t1", &[row(100, 1)]);
    let other = tempfile::tempdir().unwrap();
    let path = |name: &str| other.path().join(name).to_str().unwrap().to_string();
    std::fs::write(path("secret.csv"), "a,b\n1,2\n").unwrap();
    let copy = format!("COPY (SELECT mono FROM sched.sched_waking) TO '{}' STORED AS PARQUET", path("stolen.parquet"));
    let external = format!("CREATE EXTERNAL TABLE secret STORED AS PARQUET LOCATION '{}'", path("secret.csv"));
    let mut archive = open(made.url()).await;
    for sql in [
        &copy,
        &format!("EXPLAIN ANALYZE {copy}"),
        &external,
        "CREATE TABLE t AS SELECT mono FROM sched.sched_waking",
        "CREATE VIEW v AS SELECT mono FROM sched.sched_waking",
        "INSERT INTO sched.sched_waking SELECT * FROM sched.sched_waking",
        "SET datafusion.execution.batch_size = 1",
        "PREPARE p AS SELECT 1",
    ] {
        let failure = archive.sql(sql).await.map(|_| ()).unwrap_err();
        assert!(matches!(failure, Failure::Writes(_)), "{sql}: {failure}");
        assert!(failure.to_string().contains("--allow-writes"), "{sql}: {failure}");
    }
    assert!(!std::path::Path::new(&path("stolen.parquet")).exists());
    // No file is a table, by whatever name.
    for table in [&format!("'{}'", path("secret.csv")), "\"../../../etc\"", "\"..\".\"..\""] {
        assert!(archive.sql(&format!("SELECT * FROM {table}")).await.is_err(), "{table}");
    }
    for sql in ["EXPLAIN SELECT mono FROM sched.sched_waking", "SHOW TABLES", "DESCRIBE sched.sched_waking"] {
        ask(&mut archive, sql).await;
    }
    let mut archive = open(made.url()).await;
    archive.allow_writes();
    ask(&mut archive, &copy).await;
    assert!(std::fs::metadata(path("stolen.parquet")).unwrap().len() > 0);
}

/// A name that any process may give itself, in SQL.
const NAME: &str = "concat(chr(27), ']0;title', chr(7), chr(155), '2J', chr(10), 'F/1 ', chr(8238), '\"x\", ', chr(13), chr(9), chr(8232))";
/// The same, and as it is shown.
const TEXT: [&str; 2] = [
    "\x1b]0;title\x07\u{9b}2J\nF/1 \u{202e}\"x\", \r\t\u{2028}",
    r#"\u001b]0;title\u0007\u009b2J\nF/1 \u202e"x", \r\t\u2028"#,
];

/// An answer in a format, to a terminal or not.
async fn printed(sql: &str, format: Format, to_terminal: bool) -> String {
    let made = Made::new();
    made.waking("m1", "t1", &[row(100, 1)]);
    let mut archive = open(made.url()).await;
    let mut text = Vec::new();
    print(archive.sql(sql).await.unwrap(), format, to_terminal, &mut text).await.unwrap();
    String::from_utf8(text).unwrap()
}

/// Any process chooses the names that a table shows: none commands the terminal of who asks, or makes a line of it.
#[tokio::test]
async fn a_name_in_a_table_commands_no_terminal() {
    let sql = format!("SELECT {NAME} AS comm, [{NAME}] AS comms, pid AS \"p\nid\" FROM sched.sched_waking");
    let text = printed(&sql, Format::Table, false).await;
    let lines: Vec<_> = text.lines().collect();
    // Three borders, the names of the columns, and a row.
    assert!(lines.len() == 5 && lines[1].contains(r"| p\nid |"), "{text}");
    assert!(lines[3].contains(&format!("| {} ", TEXT[1])) && lines[3].contains(&format!("[{}]", TEXT[1])), "{text}");
    assert!(!text.contains(|letter: char| letter.is_control() && letter != '\n'), "{text}");
}

/// Programs read CSV and JSON: the text in them is what was traced. JSON has a way to say it that commands no terminal.
#[tokio::test]
async fn csv_and_json_are_valid_and_have_the_exact_text() {
    let sql = format!("SELECT {NAME} AS comm, pid AS \"p\n\"\"id\" FROM sched.sched_waking");
    let text = printed(&sql, Format::Csv, false).await;
    let mut csv = csv::Reader::from_reader(text.as_bytes());
    assert_eq!(csv.headers().unwrap(), vec!["comm", "p\n\"id"]);
    let rows: Vec<_> = csv.records().map(Result::unwrap).collect();
    assert!(rows.len() == 1 && rows[0] == vec![TEXT[0], "1"], "{rows:?}");
    // A person sees what no reader of CSV would understand.
    let text = printed(&sql, Format::Csv, true).await;
    let shown = TEXT[1].replace('"', "\"\"");
    assert!(text.lines().count() == 2 && text.ends_with(&format!("\n\"{shown}\",1\n")), "{text}");
    let text = printed(&sql, Format::Json, false).await;
    assert!(text.ends_with('\n') && text.bytes().filter(u8::is_ascii_control).count() == 1, "{text}");
    assert!(!text.contains(|letter| "\u{9b}\u{202e}\u{2028}".contains(letter)), "{text}");
    let fields = vec![Field::new("comm", DataType::Utf8, true), Field::new("p\n\"id", DataType::Int32, true)];
    let mut json = arrow::json::ReaderBuilder::new(Arc::new(Schema::new(fields))).build(text.as_bytes()).unwrap();
    let batch = json.next().unwrap().unwrap();
    assert!(batch.num_rows() == 1 && json.next().is_none());
    assert_eq!(batch.column(0).as_string::<i32>().value(0), TEXT[0]);
    assert_eq!(batch.column(1).as_primitive::<Int32Type>().value(0), 1);
}

fn program(args: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_perfweave-archive"));
    let command = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// What the program says, all of it.
fn said(args: &[&str], input: &str) -> String {
    let Output { stdout, stderr, .. } = program(args, input);
    String::from_utf8([stdout, stderr].concat()).unwrap()
}

/// Who can write into an archive's folder chooses names of tables.
#[test]
fn names_of_tables_command_no_terminal() {
    let made = Made::new();
    made.waking("m1", "t1", &[row(100, 1)]);
    let files = made.files("sched_waking");
    let hidden = files[0].ancestors().nth(4).unwrap().with_file_name("a\u{202e}b");
    let folder = hidden.join("machine=m1/date=2026-11-20/hour=09");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(&files[0], folder.join("t1.parquet")).unwrap();
    // The second is an error, which says what there is.
    for ask in ["--list", "SELECT * FROM sched.nothing"] {
        let said = said(&["query", ask, made.url()], "");
        assert!(said.contains(r"sched.a\u202eb") && !said.contains('\u{202e}'), "{ask}: {said:?}");
    }
}

/// Files of others may lie anywhere below the folder, under names that no store can have. The tables before and behind
/// them are listed.
#[tokio::test]
async fn a_file_with_any_name_does_not_hide_tables() {
    let made = Made::new();
    made.waking("m1", "t1", &[row(100, 1)]);
    made.switches("m1", "t1", &[]);
    made.losses("m1", "t1", &[]);
    let tables = open(made.url()).await.tables().await.unwrap();
    assert!(tables.len() >= 3, "{tables:?}");
    let root = std::path::Path::new(made.url());
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        folders.extend(
            std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()),
        );
        std::fs::write(folder.join("a\nb\u{1b}"), "").unwrap();
    }
    assert_eq!(open(made.url()).await.tables().await.unwrap(), tables);
    assert!(said(&["query", "--list", made.url()], "").contains("sched.sched_waking"));
}

/// Who made the pairs chose the names of machines.
#[test]
fn names_of_machines_command_no_terminal() {
    let name = "a\x1b[2J\n\u{202e}b";
    for rows in [format!("\"{name}\",1,B,1\n"), format!("\"{name}\",100000,B,1000\nB,100000,\"{name}\",1000\n")] {
        // The first rows go one way, and the second contradict each other: the program names the machines.
        let said = said(&["tighten", "-"], &format!("from,sent,to,received\n{rows}"));
        assert!(said.contains(r"a\u001b[2J\n\u202eb") && !said.contains(['\x1b', '\u{202e}']), "{said:?}");
    }
}

/// A machine's name may have what separates columns.
#[test]
fn corrections_are_valid_csv() {
    let pairs = "from,sent,to,received\nA,0,\"B,\"\"1\n2\",1100\n\"B,\"\"1\n2\",1000,A,100\n";
    let Output { stdout, stderr, .. } = program(&["tighten", "-"], pairs);
    let mut csv = csv::Reader::from_reader(&stdout[..]);
    assert_eq!(csv.headers().unwrap(), vec!["machine", "relative_to", "from_tai", "to_tai", "offset", "error"]);
    let rows: Vec<_> = csv.records().map(Result::unwrap).collect();
    assert!(rows.len() == 1 && &rows[0][0] == "B,\"1\n2" && &rows[0][1] == "A", "{rows:?} {stderr:?}");
}

/// What is made of a recording tells of all users, as the recording does.
#[test]
fn files_that_are_made_are_for_this_user_alone() {
    let made = Made::new();
    made.waking("m1", "t1", &[row(100, 1)]);
    let other = tempfile::tempdir().unwrap();
    let path = |name: &str| other.path().join(name).to_str().unwrap().to_owned();
    let ran = |args: &[&str]| {
        // As most users have it.
        let line = "umask 022; exec \"$0\" \"$@\"";
        let output = Command::new("sh").args(["-c", line, env!("CARGO_BIN_EXE_perfweave-archive")]).args(args).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    // One is there, and everybody may read it.
    std::fs::write(path("b.csv"), "old").unwrap();
    for name in ["a.parquet", "b.csv", "c.json"] {
        let kind = name.split_once('.').unwrap().1;
        let copy = format!("COPY (SELECT mono FROM sched.sched_waking) TO '{}' STORED AS {kind}", path(name));
        ran(&["query", "--allow-writes", &copy, made.url()]);
    }
    ran(&["generate", "--rows", "1000", "--to", &path("generated")]);
    let mut files = Vec::new();
    made::below(other.path(), &mut files);
    assert!(files.len() > 3 + 4, "{files:?}");
    let modes = files.iter().map(|file| (file, std::fs::metadata(file).unwrap().permissions().mode() & 0o7777));
    let open: Vec<_> = modes.filter(|(_, mode)| *mode != 0o600).collect();
    assert!(open.is_empty(), "{open:?}");
}

#[tokio::test]
async fn what_is_not_there_is_named() {
    let made = Made::new();
    made.waking("m1", "t1", &[row(100, 1)]);
    let mut archive = open(made.url()).await;
    let failure = archive.sql("SELECT * FROM sched.sched_wakin").await.unwrap_err();
    assert!(
        matches!(&failure, Failure::Table { name, has, .. } if name == "sched.sched_wakin" && has == "sched.sched_waking"),
        "{failure}"
    );
    assert_eq!(ask(&mut archive, named("missing")).await, Vec::<String>::new());
    assert!(Archive::open("/does/not/exist", None, 1 << 20).await.is_err());
}
