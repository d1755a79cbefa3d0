//! Queries on a Ballista cluster: its scheduler and two executors, each a process of this program, on the loopback.

use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::start_server;
use perfweave_archive::generate;
use perfweave_archive::query::{Archive, NAMED};
use std::net::TcpListener;
use std::process::{Child, Command};
use std::sync::Arc;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_stack_size(16 << 20).build().unwrap();
    match arguments.get(1).map(String::as_str) {
        Some("scheduler") => runtime.block_on(scheduler(arguments[2].parse().unwrap())),
        Some("executor") => runtime.block_on(executor(
            arguments[2].parse().unwrap(),
            &arguments[3],
            arguments.get(4).map_or(1 << 30, |bytes| bytes.parse().unwrap()),
        )),
        // What `cargo test` passes to filter tests and list them.
        Some("--list") => println!("cluster: test"),
        _ => runtime.block_on(test()),
    }
}

async fn scheduler(port: u16) {
    let config = SchedulerConfig {
        bind_port: port,
        bind_host: "127.0.0.1".into(),
        external_host: "127.0.0.1".into(),
        ..Default::default()
    };
    let cluster = BallistaCluster::new_from_config(&config).await.unwrap();
    start_server(cluster, ([127, 0, 0, 1], port).into(), Arc::new(config)).await.unwrap();
}

/// Each of its tasks may take its share of `memory` bytes, and then writes to files.
async fn executor(scheduler_port: u16, work: &str, memory: u64) {
    let config = ExecutorProcessConfig {
        bind_host: "127.0.0.1".into(),
        external_host: Some("127.0.0.1".into()),
        port: free_port(),
        grpc_port: free_port(),
        scheduler_host: "127.0.0.1".into(),
        scheduler_port,
        scheduler_connect_timeout_seconds: 60,
        work_dir: Some(work.into()),
        memory_pool_size: Some(memory),
        ..Default::default()
    };
    start_executor_process(Arc::new(config)).await.unwrap();
}

/// Ended with the test, also when it fails.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(arguments: &[&str]) -> Process {
    Process(Command::new(std::env::current_exe().unwrap()).args(arguments).spawn().unwrap())
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

async fn test() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let url = path("archive");
    let options = generate::Options { rows: 60_000, machines: 2, cpus: 2, seed: 3, file_rows: 5_000, to: url.clone() };
    generate::generate(&options).await.unwrap();
    let port = free_port();
    let _scheduler = start(&["scheduler", &port.to_string()]);
    while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
        tokio::task::yield_now().await;
    }
    let work = [path("one"), path("two")];
    let _executors = work.each_ref().map(|work| {
        std::fs::create_dir(work).unwrap();
        start(&["executor", &port.to_string(), work])
    });
    let scheduler = format!("127.0.0.1:{port}");
    for query in NAMED {
        same(&url, &scheduler, query.sql).await;
        println!("cluster: {} ok", query.name);
    }
    // What the executors hand each other is in their folders: both have had a part when there is some in each.
    let busy = |work: &String| std::fs::read_dir(work).unwrap().next().is_some();
    while !work.iter().all(busy) {
        same(&url, &scheduler, NAMED[0].sql).await;
    }
    println!("cluster: both executors took part");
    // A file that cannot be read changes how a table is made; the rest is answered the same.
    std::fs::write(
        folder.path().join("archive/events/sched/sched_switch/machine=m00/date=2026-11-20/hour=09/bad.parquet"),
        "none",
    )
    .unwrap();
    same(
        &url,
        &scheduler,
        "SELECT machine, date, count(*) FROM sched.sched_switch GROUP BY machine, date ORDER BY machine, date",
    )
    .await;
    println!("cluster: with a bad file ok");
}

async fn same(url: &str, scheduler: &str, sql: &str) {
    let here = rows(url, None, sql).await;
    let there = rows(url, Some(scheduler), sql).await;
    assert_eq!(here, there, "{sql}");
    assert!(here.lines().count() > 4, "no rows: {sql}\n{here}");
}

async fn rows(url: &str, cluster: Option<&str>, sql: &str) -> String {
    let mut archive = Archive::open(url, cluster, 1 << 30).await.unwrap();
    let batches = archive.sql(sql).await.unwrap().collect().await.unwrap();
    arrow::util::pretty::pretty_format_batches(&batches).unwrap().to_string()
}
