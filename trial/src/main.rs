//! Tracers on trial. `README.md` has the words.

mod history;
mod judge;
mod report;
mod run;
mod tool;

use judge::Kind;
use pico_args::Arguments;
use report::{OfTool, REPRODUCED, Report, Row};
use run::{CASES, Case, Outcome, Places};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use std::{env, fs};
use tool::{Result, Tool};

const HELP: &str = "\
trial/run [--minutes N] [--runs N] [--tool NAME]... [--work NAME]... [--hotplug] [--report FOLDER]
  --minutes  begin no run after so many minutes [10]
  --runs     runs of each tool beside each work, as far as there is time [5]
  --tool     only tools whose name contains this
  --work     only this work: its name begins so
  --hotplug  also take a CPU away and bring it back, again and again
  --report   where report.md, report.json and report.html are written [target/trial]
trial/run judge TOOL WAY FOLDER    judges again what a run has left: out, err, history; findings leave theirs in FOLDER/evidence of the report
trial/run list                             tools and work";

fn main() -> ExitCode {
    match main_or_error() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("trial: {error}");
            ExitCode::FAILURE
        }
    }
}

fn main_or_error() -> Result<bool> {
    let mut args = Arguments::from_env();
    if args.contains(["-h", "--help"]) {
        println!("{HELP}");
        return Ok(true);
    }
    let package: PathBuf = env::var_os("TRIAL").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into()).into();
    let tools = tools(&package)?;
    match args.subcommand()?.as_deref() {
        None => trial(args, package, &tools),
        Some("judge") => judge_files(args, &tools),
        Some("list") => {
            for tool in &tools {
                println!(
                    "{}: {}",
                    tool.name,
                    tool.mode.iter().map(|mode| mode.name.as_str()).collect::<Vec<_>>().join("; ")
                );
            }
            CASES.iter().for_each(|case| println!("{}: {}", case.name, case.about));
            Ok(true)
        }
        Some(other) => Err(format!("{other}: no such command\n{HELP}").into()),
    }
}

fn tools(package: &Path) -> Result<Vec<Tool>> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(package.join("tools"))?.map(|file| Ok(file?.path())).collect::<Result<_>>()?;
    files.sort();
    files.iter().map(|file| Tool::read(file)).collect()
}

fn judge_files(mut args: Arguments, tools: &[Tool]) -> Result<bool> {
    let [tool, mode] = [args.free_from_str::<String>()?, args.free_from_str()?];
    let folder: PathBuf = args.free_from_str()?;
    let tool = tools.iter().find(|known| known.name == tool).ok_or_else(|| format!("{tool}: no such tool"))?;
    let mode = tool.mode.iter().find(|known| known.name == mode).ok_or_else(|| format!("{mode}: no such way"))?;
    let verdict = run::judged(tool, mode, &folder, f64::MAX)?;
    println!("{}", serde_json::to_string_pretty(&verdict)?);
    Ok(Kind::ALL.into_iter().all(|kind| verdict.count(kind) == 0))
}

/// What is chosen, and what came of it.
struct Trial<'a> {
    places: Places,
    /// Where the report goes.
    to: PathBuf,
    begin: Instant,
    end: Duration,
    rows: Vec<Row>,
    /// Of each tool, its ways that could not be run.
    failed: BTreeMap<&'a str, BTreeMap<String, String>>,
}

fn trial(mut args: Arguments, package: PathBuf, tools: &[Tool]) -> Result<bool> {
    let minutes: f64 = args.opt_value_from_str("--minutes")?.unwrap_or(10.0);
    let runs: usize = args.opt_value_from_str("--runs")?.unwrap_or(5);
    let names: Vec<String> = args.values_from_str("--tool")?;
    let works: Vec<String> = args.values_from_str("--work")?;
    let hotplug = args.contains("--hotplug");
    let to: PathBuf = args.opt_value_from_str("--report")?.unwrap_or_else(|| package.join("target/trial"));
    let bin: PathBuf = env::var_os("BIN").ok_or("BIN is not set: run trial/run")?.into();
    if let [unknown, ..] = &args.finish()[..] {
        return Err(format!("{}: what is that?\n{HELP}", unknown.display()).into());
    }
    let scratch = env::temp_dir().join(format!("perfweave-trial-{}", std::process::id()));
    let chosen: Vec<&Tool> = tools
        .iter()
        .filter(|tool| names.is_empty() || names.iter().any(|name| tool.name.contains(name.as_str())))
        .collect();
    let cases: Vec<&Case> = CASES
        .iter()
        .filter(|case| works.is_empty() || works.iter().any(|work| case.name.starts_with(work.as_str())))
        .filter(|case| hotplug || case.beside != "hotplug")
        .collect();
    let _ = fs::remove_dir_all(to.join("evidence"));
    let mut trial = Trial {
        places: Places { package, bin, scratch },
        to: to.clone(),
        begin: Instant::now(),
        end: Duration::from_secs_f64(60.0 * minutes),
        rows: Vec::new(),
        failed: BTreeMap::new(),
    };
    let (planted, others): (Vec<&Tool>, Vec<&Tool>) = chosen.iter().partition(|tool| tool.is_planted());
    // First of all, whether the judge sees.
    for case in &cases {
        for tool in &planted {
            trial.ways(tool, case, 0)?;
        }
    }
    for round in 0..runs {
        for case in &cases {
            for tool in others.iter().chain(&planted) {
                trial.ways(tool, case, round)?;
            }
        }
    }
    trial.again(&chosen)?;
    let _ = fs::remove_dir_all(&trial.places.scratch);
    let report = trial.report(&chosen);
    fs::create_dir_all(&to)?;
    fs::write(to.join("report.md"), report.markdown())?;
    fs::write(to.join("report.json"), report.json()?)?;
    fs::write(to.join("report.html"), report.page())?;
    println!("{}", to.join("report.md").display());
    Ok(conclude(&report))
}

impl<'a> Trial<'a> {
    fn has_time(&self) -> bool {
        self.begin.elapsed() < self.end
    }

    /// All ways of a tool beside one work, once. What stands beside something is tried with the first way alone: it
    /// takes long.
    fn ways(&mut self, tool: &'a Tool, case: &Case, round: usize) -> Result<()> {
        if let Some(missing) = tool.needs.iter().find(|needed| !is_there(needed)) {
            self.failed.entry(&tool.name).or_default().insert("all".into(), format!("{missing}: not found"));
            return Ok(());
        }
        let ways = tool.mode.iter().filter(|mode| case.suits(mode));
        let most = if case.beside.is_empty() || tool.mode.iter().any(|mode| !mode.planted.is_empty()) {
            usize::MAX
        } else {
            1
        };
        for mode in ways.take(most) {
            let row = self.row(tool, &mode.name, case);
            if self.has_time() && self.rows[row].runs.len() <= round {
                self.once(tool, mode, case, row)?;
            }
        }
        Ok(())
    }

    fn row(&mut self, tool: &Tool, mode: &str, case: &Case) -> usize {
        let at = self.rows.iter().position(|row| row.tool == tool.name && row.mode == mode && row.case == case.name);
        at.unwrap_or_else(|| {
            let of = tool.mode.iter().find(|known| known.name == mode);
            self.rows.push(Row {
                case: case.name.into(),
                tool: tool.name.clone(),
                mode: mode.into(),
                proves: of.is_some_and(|mode| mode.proves),
                planted: of.map(|mode| mode.planted.clone()).unwrap_or_default(),
                runs: Vec::new(),
            });
            self.rows.len() - 1
        })
    }

    fn once(&mut self, tool: &'a Tool, mode: &tool::Mode, case: &Case, row: usize) -> Result<()> {
        // What failed before, and never ran, is not tried again.
        let failed = self.failed.get(tool.name.as_str()).is_some_and(|failed| failed.contains_key(&mode.name));
        if failed && self.rows.iter().all(|row| row.tool != tool.name || row.mode != mode.name || row.runs.is_empty()) {
            return Ok(());
        }
        let begin = Instant::now();
        let outcome = run::run(&self.places, tool, mode, case)?;
        let took = begin.elapsed().as_secs_f64();
        let said = match &outcome {
            Outcome::Judged(verdict) => {
                let found = Kind::ALL.into_iter().filter(|&kind| verdict.count(kind) > 0);
                let found: Vec<_> = found.map(|kind| format!("{} {}", verdict.count(kind), kind.name())).collect();
                format!(
                    "{} lines, {} of {} missing, {}",
                    verdict.lines,
                    verdict.missing(),
                    verdict.happened,
                    if found.is_empty() { "right".into() } else { found.join(", ") }
                )
            }
            Outcome::Failed(why) => format!("failed: {why}"),
        };
        println!(
            "{:6.1} s  {}, {}, {}: {said} ({took:.1} s)",
            self.begin.elapsed().as_secs_f64(),
            case.name,
            tool.name,
            mode.name
        );
        match outcome {
            Outcome::Judged(verdict) => {
                self.keep(row, &verdict)?;
                self.rows[row].runs.push(verdict);
            }
            Outcome::Failed(why) => {
                self.failed.entry(&tool.name).or_default().insert(mode.name.clone(), format!("{}: {why}", case.name));
            }
        }
        Ok(())
    }

    /// Keeps what a run has left that has the first finding of a kind.
    fn keep(&self, row: usize, verdict: &judge::Verdict) -> Result<()> {
        let row = &self.rows[row];
        for kind in Kind::ALL {
            if verdict.count(kind) == 0 || row.runs.iter().any(|run| run.count(kind) > 0) {
                continue;
            }
            let folder = self.to.join("evidence").join(report::evidence(&row.case, &row.tool, &row.mode, kind));
            fs::create_dir_all(&folder)?;
            for file in ["out", "err", "history", "tickets"] {
                let from = self.places.scratch.join(file);
                if from.exists() {
                    fs::copy(from, folder.join(file))?;
                }
            }
        }
        Ok(())
    }

    /// What was found in fewer runs than a finding needs is run again, within a quarter of the time more. So is a
    /// planted fault that was not found.
    fn again(&mut self, tools: &[&'a Tool]) -> Result<()> {
        self.end += self.end / 4;
        for at in 0..self.rows.len() {
            let few = |row: &Row| {
                (1..REPRODUCED).contains(&row.runs.len()) && (row.findings().next().is_some() || row.hides().is_some())
            };
            while self.has_time() && few(&self.rows[at]) {
                let row = &self.rows[at];
                let (Some(tool), Some(case)) =
                    (tools.iter().find(|tool| tool.name == row.tool), CASES.iter().find(|case| case.name == row.case))
                else {
                    break;
                };
                let Some(mode) = tool.mode.iter().find(|mode| mode.name == row.mode) else { break };
                let before = row.runs.len();
                self.once(tool, mode, case, at)?;
                if self.rows[at].runs.len() == before {
                    break;
                }
            }
        }
        Ok(())
    }

    fn report(&mut self, tools: &[&'a Tool]) -> Report {
        let findings = self.rows.iter().flat_map(Row::findings).collect();
        let tools = tools.iter().map(|tool| OfTool {
            name: tool.name.clone(),
            from: tool.from.clone(),
            version: shell(&tool.version, &self.places.bin),
            promises: tool.promises.clone(),
            failed: self.failed.remove(tool.name.as_str()).unwrap_or_default(),
        });
        Report {
            machine: shell(
                "echo \"$(date +%F), Linux $(uname -r | cut -d- -f1), $(uname -m), $(nproc) CPUs\"",
                &self.places.bin,
            ),
            minutes: self.begin.elapsed().as_secs_f64() / 60.0,
            tools: tools.collect(),
            cases: CASES.iter().map(|case| (case.name.into(), case.about.into())).collect(),
            rows: std::mem::take(&mut self.rows),
            findings,
        }
    }
}

/// Says what came of it. Whether the judge saw each planted fault that was run, and nothing where the order is proven.
fn conclude(report: &Report) -> bool {
    let mut good = true;
    for row in report.rows.iter().filter(|row| !row.runs.is_empty()) {
        if let Some(fault) = row.hides() {
            println!("THE JUDGE IS BLIND: {}, {}: {fault} was planted and not found", row.case, row.mode);
            good = false;
        }
    }
    for finding in report.findings.iter().filter(|finding| finding.proves) {
        let witness = finding.witness.as_ref().map(|witness| witness.why.as_str()).unwrap_or_default();
        println!(
            "AGAINST US: {}, {}, {}: {}: {witness}",
            finding.case,
            finding.tool,
            finding.mode,
            finding.kind.name()
        );
        good = false;
    }
    let reproduced =
        report.findings.iter().filter(|finding| finding.is_reproduced() && !finding.planted && !finding.proves).count();
    let ran: Vec<&Row> = report.rows.iter().filter(|row| !row.runs.is_empty()).collect();
    let count = |of: fn(&Row) -> &str| ran.iter().map(|row| of(row)).collect::<std::collections::BTreeSet<_>>().len();
    let (tools, cases) = (count(|row| &row.tool), count(|row| &row.case));
    println!(
        "{} runs of {tools} tools beside {cases} kinds of work; {reproduced} findings against others were seen three times",
        ran.iter().map(|row| row.runs.len()).sum::<usize>()
    );
    good
}

fn is_there(command: &str) -> bool {
    Command::new("bash")
        .args(["-c", "command -v -- \"$1\" >/dev/null", "-", command])
        .status()
        .is_ok_and(|status| status.success())
}

/// What a command prints, in one line.
fn shell(command: &str, bin: &Path) -> String {
    let output = Command::new("bash").args(["-c", command]).env("BIN", bin).output();
    output.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().replace('\n', ", "))
}
