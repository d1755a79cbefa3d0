//! Generated archives: the same for a seed, and answers equal to those that are counted without SQL.

#[path = "../examples/merge.rs"]
mod merge;

use arrow::array::AsArray;
use arrow::datatypes::TimestampNanosecondType;
use arrow::ipc::reader::StreamReader;
use perfweave_archive::generate::{Options, generate};
use perfweave_archive::query::{Archive, FRONTIER, Format, NAMED, print, stream};
use std::collections::{BTreeMap, HashMap};
use std::io::Cursor;
use std::sync::{Arc, Mutex};

async fn ask(archive: &mut Archive, sql: &str) -> Vec<Vec<String>> {
    let mut text = Vec::new();
    print(archive.sql(sql).await.unwrap(), Format::Csv, false, &mut text).await.unwrap();
    let lines = String::from_utf8(text).unwrap();
    lines.lines().skip(1).map(|line| line.split(',').map(str::to_string).collect()).collect()
}

async fn made(rows: u64) -> (tempfile::TempDir, Archive, Options) {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("new/archive").to_str().unwrap().to_string();
    let options = Options { rows, machines: 2, cpus: 2, seed: 7, file_rows: 3_000, to };
    let summary = generate(&options).await.unwrap();
    assert_eq!(summary.rows, rows);
    let archive = Archive::open(&options.to, None, 1 << 30).await.unwrap();
    (folder, archive, options)
}

fn number(text: &str) -> i64 {
    text.parse().unwrap()
}

/// As `percentile_cont`: between two neighbours.
fn percentile(sorted: &[i64], part: f64) -> i64 {
    let place = part * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[place.floor() as usize] as f64, sorted[place.ceil() as usize] as f64);
    (low + (high - low) * (place - place.floor())) as i64
}

#[tokio::test]
async fn wakeup_latency_is_what_a_count_by_hand_gives() {
    let (_folder, mut archive, _) = made(30_000).await;
    let all = "SELECT machine, mono, 1, pid, '', 0 FROM sched.sched_waking \
               UNION ALL SELECT machine, mono, 2, prev_pid, CASE WHEN prev_state = 0 OR (prev_state & 256) <> 0 THEN 'preempted' ELSE 'out' END, 0 \
               FROM sched.sched_switch \
               UNION ALL SELECT machine, mono, 3, next_pid, next_comm, cpu_id FROM sched.sched_switch ORDER BY 1, 2, 3";
    let losses = ask(&mut archive, "SELECT machine, from_mono, to_mono FROM notices WHERE kind = 'lost'").await;
    assert!(!losses.is_empty());
    let spans_a_loss = |machine: &str, since: i64, until: i64| {
        losses.iter().any(|loss| loss[0] == machine && number(&loss[1]) < until && number(&loss[2]) > since)
    };
    // The last two steps of each thread, the newest first, and when they were.
    let mut steps: HashMap<(String, String), ([String; 2], [i64; 2])> = HashMap::new();
    // The waits, and how many more span a loss.
    let mut waits: BTreeMap<[String; 3], (Vec<i64>, usize)> = BTreeMap::new();
    for row in ask(&mut archive, all).await {
        let (machine, now) = (&row[0], number(&row[1]));
        let step = match row[2].as_str() {
            "1" => "woken".into(),
            "2" => row[4].clone(),
            _ => "in".to_string(),
        };
        let ([last, before], [since, since_before]) =
            steps.remove(&(machine.clone(), row[3].clone())).unwrap_or_default();
        let is_wait = (last == "woken" && before != "preempted") || (last == "out" && before == "woken");
        if step == "in" && is_wait {
            let (waits, left_out) = waits.entry([machine.clone(), row[4].clone(), row[5].clone()]).or_default();
            // A wake-up before a loss is not that of a switch after it.
            let from = if last == "out" { since_before } else { since };
            if spans_a_loss(machine, from, now) { *left_out += 1 } else { waits.push(now - since) }
        }
        steps.insert((machine.clone(), row[3].clone()), ([step, last], [now, since]));
    }
    let answer = ask(&mut archive, NAMED[0].sql).await;
    assert_eq!(answer.len(), waits.len());
    for row in answer {
        let (waits, left_out) = waits.get_mut(&row[..3]).unwrap();
        waits.sort();
        assert_eq!([&row[3], &row[7]], [&waits.len().to_string(), &left_out.to_string()], "{row:?}");
        for (column, part) in [(4, 0.5), (5, 0.99), (6, 1.0)] {
            assert!((number(&row[column]) - percentile(waits, part)).abs() <= 1, "{row:?}: {waits:?}");
        }
    }
}

#[tokio::test]
async fn hops_are_true_and_claims_are_never_false() {
    let (_folder, mut archive, _) = made(60_000).await;
    let sql = "SELECT happened_before(s.stamp, r.stamp), happened_before(r.stamp, s.stamp), count(*) \
               FROM net.message_send s JOIN net.message_receive r ON r.message = s.message GROUP BY 1, 2";
    let claims = ask(&mut archive, sql).await;
    // No message comes before it was sent: never the other way. Of some, clocks that may be wrong by 100 us tell
    // nothing.
    assert!(claims.iter().all(|row| row[..2] == ["true", "false"] || row[..2] == ["", ""]), "{claims:?}");
    assert_eq!(claims.len(), 2, "{claims:?}");
    let slowest = ask(&mut archive, NAMED.iter().find(|query| query.name == "slowest-hops").unwrap().sql).await;
    assert_eq!(slowest.len(), 20);
    assert!(slowest.windows(2).all(|rows| number(&rows[0][4]) >= number(&rows[1][4])));
}

#[tokio::test]
async fn files_are_sorted_and_the_same_for_a_seed() {
    let (folder, mut archive, options) = made(20_000).await;
    let order = "SELECT count(*) FROM (SELECT mono, lag(mono) OVER (PARTITION BY machine ORDER BY row) AS before FROM sched.sched_switch) \
                 WHERE before >= mono";
    assert_eq!(ask(&mut archive, order).await, [["0"]]);
    let again = Options { to: folder.path().join("again").to_str().unwrap().to_string(), ..options };
    generate(&again).await.unwrap();
    let mut second = Archive::open(&again.to, None, 1 << 30).await.unwrap();
    for table in archive.tables().await.unwrap().keys() {
        let sql = format!("SELECT * FROM {table} ORDER BY machine, mono, trace");
        assert_eq!(ask(&mut archive, &sql).await, ask(&mut second, &sql).await, "{table}");
    }
    assert_eq!(archive.tables().await.unwrap(), second.tables().await.unwrap());
}

/// The stream of one machine.
async fn streamed(archive: &mut Archive, machine: &str) -> Vec<u8> {
    let sql = format!("SELECT tai, machine, boot, stamp FROM sched.sched_waking WHERE machine = '{machine}'");
    let mut bytes = Vec::new();
    stream(archive.sql(&sql).await.unwrap(), &mut bytes).await.unwrap();
    assert!(StreamReader::try_new(bytes.as_slice(), None).unwrap().count() > 1, "one batch has nothing to wait for");
    bytes
}

/// A row may have no time, behind an outer join say. None is lost.
#[tokio::test]
async fn rows_without_a_time_come_first() {
    let (_folder, mut archive, _) = made(20_000).await;
    let all = number(&ask(&mut archive, "SELECT count(*) FROM sched.sched_waking").await[0][0]);
    let sql = "SELECT CASE WHEN cpu_id = 0 THEN NULL ELSE tai END AS tai FROM sched.sched_waking";
    let mut bytes = Vec::new();
    stream(archive.sql(sql).await.unwrap(), &mut bytes).await.unwrap();
    let (mut rows, mut frontier) = (0, i64::MIN);
    for batch in StreamReader::try_new(bytes.as_slice(), None).unwrap().map(Result::unwrap) {
        let [times, frontiers] = ["tai", FRONTIER]
            .map(|name| batch.column_by_name(name).unwrap().as_primitive::<TimestampNanosecondType>().clone());
        assert!(times.iter().flatten().all(|time| time >= frontier && time <= frontiers.value(0)));
        (rows, frontier) = (rows + batch.num_rows() as u64, frontiers.value(0));
    }
    assert_eq!(rows, u64::try_from(all).unwrap());
}

#[tokio::test]
async fn streams_of_two_machines_merge_by_their_frontiers() {
    let (_folder, mut archive, _) = made(100_000).await;
    let streams = vec![streamed(&mut archive, "m00").await, streamed(&mut archive, "m01").await];
    let merged = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&merged);
    merge::merge(streams.into_iter().map(Cursor::new).collect(), move |row| to.lock().unwrap().push(row)).unwrap();
    let merged = Arc::into_inner(merged).unwrap().into_inner().unwrap();
    assert!(merged.iter().all(|(_, of, _, text)| text.contains(["m00", "m01"][*of])));
    let merged = merged.into_iter().map(|(tai, ..)| tai).collect::<Vec<_>>();
    let expected = ask(&mut archive, "SELECT CAST(tai AS BIGINT) AS ns FROM sched.sched_waking ORDER BY ns").await;
    assert!(merged.is_sorted());
    assert_eq!(merged, expected.iter().map(|row| number(&row[0])).collect::<Vec<_>>());
    assert!(merge::merge(vec![Cursor::new(b"no stream")], |_| ()).is_err());
    let none = archive.sql("SELECT mono FROM sched.sched_waking").await.unwrap();
    assert!(stream(none, &mut Vec::new()).await.unwrap_err().to_string().contains("column tai"));
}
