//! What was found, as Markdown, JSON and one page.

use crate::judge::{Kind, Verdict, Witness};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A finding counts if it was seen in so many runs.
pub const REPRODUCED: usize = 3;

/// All that a trial has found.
#[derive(Debug, Serialize)]
pub struct Report {
    pub machine: String,
    pub minutes: f64,
    pub tools: Vec<OfTool>,
    pub cases: Vec<(String, String)>,
    pub rows: Vec<Row>,
    pub findings: Vec<Finding>,
}

#[derive(Debug, Serialize)]
pub struct OfTool {
    pub name: String,
    pub from: String,
    pub version: String,
    pub promises: String,
    /// Ways in which it could not be run, and what it said.
    pub failed: BTreeMap<String, String>,
}

/// One way to run one tool beside one work.
#[derive(Debug, Serialize)]
pub struct Row {
    pub case: String,
    pub tool: String,
    pub mode: String,
    pub proves: bool,
    pub planted: Vec<String>,
    pub runs: Vec<Verdict>,
}

#[derive(Debug, Serialize)]
pub struct Finding {
    pub case: String,
    pub tool: String,
    pub mode: String,
    pub kind: Kind,
    /// Runs in which it was seen, of how many.
    pub seen: usize,
    pub runs: usize,
    pub planted: bool,
    pub proves: bool,
    pub witness: Option<Witness>,
}

/// The folder of what a run has left, below `evidence`.
pub fn evidence(case: &str, tool: &str, mode: &str, kind: Kind) -> String {
    let name = format!("{case} {tool} {mode} {}", kind.name());
    let words = name.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-")
}

impl Finding {
    pub fn is_reproduced(&self) -> bool {
        self.seen >= REPRODUCED
    }
}

impl Row {
    pub fn findings(&self) -> impl Iterator<Item = Finding> {
        Kind::ALL.into_iter().filter_map(|kind| {
            let seen = self.runs.iter().filter(|run| run.count(kind) > 0).count();
            let witness = self.runs.iter().flat_map(|run| &run.witnesses).find(|witness| witness.kind == kind).cloned();
            (seen > 0).then(|| Finding {
                case: self.case.clone(),
                tool: self.tool.clone(),
                mode: self.mode.clone(),
                kind,
                seen,
                runs: self.runs.len(),
                planted: !self.planted.is_empty(),
                proves: self.proves,
                witness,
            })
        })
    }

    /// A planted fault that no run shows.
    pub fn hides(&self) -> Option<&str> {
        self.planted
            .iter()
            .map(String::as_str)
            .find(|fault| self.findings().all(|finding| finding.kind.name() != *fault))
    }

    /// The figures of the table: name and unit of each, and its values in all runs.
    fn figures(&self) -> [(&'static str, &'static str, Vec<f64>); 7] {
        let percent = |part: fn(&Verdict) -> u64, whole: fn(&Verdict) -> u64| {
            self.runs.iter().map(|run| 100.0 * part(run) as f64 / whole(run).max(1) as f64).collect()
        };
        let count = |of: fn(&Verdict) -> u64| self.runs.iter().map(|run| of(run) as f64).collect();
        [
            ("inverted", " %", percent(|run| run.inverted, |run| run.lines)),
            ("misdated", " %", percent(|run| run.misdated, |run| run.lines)),
            ("missing", " %", percent(Verdict::missing, |run| run.happened)),
            ("in silence", " %", percent(|run| run.silent, |run| run.happened)),
            ("doubled", "", count(|run| run.doubled)),
            ("invented", "", count(|run| run.invented)),
            ("impossible", "", count(|run| run.impossible)),
        ]
    }
}

/// The median, with the least and the most where they differ from it.
fn spread(values: &[f64]) -> String {
    let (least, most) = (values.iter().copied().reduce(f64::min), values.iter().copied().reduce(f64::max));
    let (Some(least), Some(most)) = (least.map(number), most.map(number)) else { return String::new() };
    if least == most { least } else { format!("{} ({least}–{most})", median(values)) }
}

fn median(values: &[f64]) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().map_or(String::new(), number)
}

fn number(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        _ if value.fract() == 0.0 && value >= 1.0 => format!("{value:.0}"),
        _ if value < 0.01 => "<0.01".to_owned(),
        _ => format!("{value:.2}"),
    }
}

impl Report {
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    fn failed(&self, tool: &str, mode: &str) -> bool {
        self.tools.iter().any(|of| of.name == tool && (of.failed.contains_key(mode) || of.failed.contains_key("all")))
    }

    fn rows_of<'a>(&'a self, case: &'a str) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(move |row| row.case == case && !row.runs.is_empty())
    }

    /// Findings of one of four classes, with its heading.
    fn classes(&self) -> [(&'static str, Vec<&Finding>); 4] {
        let of = |test: &dyn Fn(&Finding) -> bool| self.findings.iter().filter(|finding| test(finding)).collect();
        [
            (
                "Findings, each seen in three runs at least",
                of(&|found| found.is_reproduced() && !found.planted && !found.proves),
            ),
            ("Findings against ways that prove their order", of(&|found| found.proves)),
            ("Seen, and not three times", of(&|found| !found.is_reproduced() && !found.planted && !found.proves)),
            ("Planted faults that were found", of(&|found| found.planted)),
        ]
    }

    /// The first way of each tool in each work, planted faults aside: the median share of lines that are out of order.
    fn short(&self) -> String {
        let cases: Vec<_> =
            self.cases.iter().map(|(case, _)| case).filter(|case| self.rows_of(case).next().is_some()).collect();
        let mut text = String::from("| tool |");
        for case in &cases {
            let _ = write!(text, " {case} |");
        }
        let _ = writeln!(text, "\n| --- |{}", " --- |".repeat(cases.len()));
        for tool in &self.tools {
            let cells: Vec<_> = cases
                .iter()
                .map(|case| {
                    let first = self.rows_of(case).find(|row| row.tool == tool.name && row.planted.is_empty());
                    first.map_or(String::new(), |row| median(&row.figures()[0].2))
                })
                .collect();
            if cells.iter().any(|cell| !cell.is_empty()) {
                let _ = writeln!(text, "| {} | {} |", tool.name, cells.join(" | "));
            }
        }
        text
    }

    pub fn markdown(&self) -> String {
        let mut text = format!("# Tracers on trial\n\n{}\n\n{WORDS}\n", self.machine);
        let _ =
            write!(text, "\n## In short\n\nInverted, % of the lines, each tool in its first way.\n\n{}", self.short());
        text += "\n## Tools\n\n| tool | version | from | order it promises |\n| --- | --- | --- | --- |\n";
        for tool in &self.tools {
            let _ = writeln!(text, "| {} | {} | {} | {} |", tool.name, tool.version, tool.from, tool.promises);
        }
        text += "\n## What could not be run here\n\n";
        for tool in &self.tools {
            for (mode, said) in &tool.failed {
                let _ = writeln!(text, "- **{}**, {mode}: `{}`", tool.name, said.replace('`', "'"));
            }
        }
        for (case, about) in &self.cases {
            if self.rows_of(case).next().is_none() {
                continue;
            }
            let _ = write!(text, "\n## {case}\n\n{}.\n\n", capital(about));
            for (at, row) in self.rows_of(case).enumerate() {
                let figures = row.figures();
                if at == 0 {
                    let names: Vec<_> =
                        figures.iter().map(|(name, unit, _)| format!("{name}{}", unit.replace(' ', ", "))).collect();
                    let _ = writeln!(
                        text,
                        "| tool | way | runs | {} |\n| --- | --- | ---{} |",
                        names.join(" | "),
                        " | ---".repeat(names.len())
                    );
                }
                let cells: Vec<_> = figures.iter().map(|figure| spread(&figure.2)).collect();
                let _ = writeln!(text, "| {} | {} | {} | {} |", row.tool, row.mode, row.runs.len(), cells.join(" | "));
            }
        }
        for (heading, findings) in self.classes() {
            let _ = write!(text, "\n## {heading}\n\n");
            if findings.is_empty() {
                text += "None.\n";
            }
            for finding in findings {
                let Finding { tool, mode, case, kind, seen, runs, .. } = finding;
                let _ = writeln!(
                    text,
                    "**{tool}**, {mode}: {}, {case}, in {seen} of {runs} runs. `evidence/{}`\n",
                    kind.name(),
                    evidence(case, tool, mode, *kind)
                );
                if let Some(witness) = &finding.witness {
                    if !witness.lines.is_empty() {
                        text += "```text\n";
                        for (number, line) in &witness.lines {
                            let _ = writeln!(text, "{number:>7}: {line}");
                        }
                        text += "```\n\n";
                    }
                    let _ = writeln!(text, "{}.\n", capital(&witness.why));
                }
            }
        }
        text
    }

    /// One page, without a script: a table of tools and work, and the witnesses behind each cell.
    pub fn page(&self) -> String {
        let mut text = format!(
            "{HEAD}<h1>Tracers on trial</h1><p>{}</p><p>{}</p>",
            escape(&self.machine),
            escape(WORDS).replace("\n\n", "</p><p>")
        );
        let cases: Vec<_> = self.cases.iter().filter(|(case, _)| self.rows_of(case).next().is_some()).collect();
        text += "<table><thead><tr><th>tool<th>way";
        for (case, about) in &cases {
            let _ = write!(text, "<th title=\"{}\">{}", escape(about), escape(case));
        }
        text += "</thead><tbody>";
        let mut ways: Vec<(&str, &str)> = Vec::new();
        for row in self.tools.iter().flat_map(|tool| self.rows.iter().filter(|row| row.tool == tool.name)) {
            if !ways.contains(&(&row.tool, &row.mode)) {
                ways.push((&row.tool, &row.mode));
            }
        }
        for (tool, mode) in ways {
            let _ = write!(text, "<tr><th>{}<td>{}", escape(tool), escape(mode));
            for (case, _) in &cases {
                text += &match self.rows_of(case).find(|row| row.tool == tool && row.mode == mode) {
                    Some(row) => cell(row),
                    // It was to be run and was not, or it prints nothing of this work.
                    None if self.failed(tool, mode) => "<td class=failed>could not be run".into(),
                    None => "<td>".into(),
                };
            }
        }
        text += "</tbody></table><p><span class=good>0</span> nothing found, <span class=said>missing, and said</span>, <span class=seen>found in fewer than \
            three runs</span>, <span class=bad>found in three or more</span>. An empty cell: it prints nothing of this work, or was tried only with its first way.";
        for (heading, findings) in self.classes() {
            let _ = write!(text, "<h2>{heading}</h2>");
            if findings.is_empty() {
                text += "<p>None.</p>";
            }
            for finding in findings {
                let Finding { tool, mode, case, kind, seen, runs, .. } = finding;
                let title = format!("{tool}, {mode}: {}, {case}, in {seen} of {runs} runs", kind.name());
                let _ = write!(text, "<details><summary>{}</summary>", escape(&title));
                if let Some(witness) = &finding.witness {
                    let lines: Vec<_> =
                        witness.lines.iter().map(|(number, line)| format!("{number:>7}: {line}")).collect();
                    let _ = write!(
                        text,
                        "<pre>{}</pre><p>{}.</p>",
                        escape(&lines.join("\n")),
                        escape(&capital(&witness.why))
                    );
                }
                text += "</details>";
            }
        }
        text += "<h2>Tools</h2><table><tr><th>tool<th>version<th>from<th>order it promises<th>could not be run here";
        for tool in &self.tools {
            let failed: Vec<_> = tool.failed.iter().map(|(mode, said)| format!("{mode}: {said}")).collect();
            let cells = [&tool.version, &tool.from, &tool.promises, &failed.join("; ")]
                .map(|cell| format!("<td>{}", escape(cell)));
            let _ = write!(text, "<tr><th>{}{}", escape(&tool.name), cells.concat());
        }
        text + "</table></html>\n"
    }
}

/// A cell of the page: the worst figure that was seen three times, in words and a colour.
fn cell(row: &Row) -> String {
    let figures = row.figures();
    let figure = |(name, unit, values): &(&str, &str, Vec<f64>)| format!("{name} {}{unit}", spread(values));
    let shown: Vec<_> =
        figures.iter().filter(|(.., values)| values.iter().any(|&value| value > 0.0)).map(figure).collect();
    let class = match row.findings().map(|finding| finding.is_reproduced()).max() {
        None if shown.is_empty() => "good",
        None => "said",
        Some(false) => "seen",
        Some(true) => "bad",
    };
    let words = if shown.is_empty() { "0".into() } else { escape(&shown.join("\n")).replace('\n', "<br>") };
    let all: Vec<_> = figures.iter().map(figure).collect();
    format!("<td class={class} title=\"{} runs: {}\">{words}", row.runs.len(), escape(&all.join(", ")))
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const WORDS: &str = "Each work counts what it does by itself, and the order of its steps is that of cause and effect: no clock is asked. The judge \
reads only what a tool printed. Figures are medians over the runs, with the least and the most.

Inverted: an effect stands before its cause; counted are the fewest lines that would have to be moved. Misdated: by the tool's own times, the \
effect is earlier. Missing: what happened and is not printed. \
In silence: more is missing than the tool says. Doubled, invented: printed twice; did not happen. Impossible: runs before it is woken, negative waits, a \
step of a thread that did not make it. A tool that promises no order across CPUs breaks no promise by an inversion.";

const HEAD: &str = "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\"><title>Tracers on trial</title><style>
body { font: 15px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 110em; padding: 0 1em; color: #222; background: #fff }
p { max-width: 60em } table { border-collapse: collapse; font-size: 13px } th, td { border: 1px solid #ccc; padding: .3em .5em; text-align: left; vertical-align: top }
thead th { position: sticky; top: 0; background: #f4f4f4 } pre { background: #f4f4f4; padding: .6em; overflow-x: auto } summary { cursor: pointer }
span { padding: 0 .4em } .failed { color: #888 } .good { background: #e3f4e3 } .said { background: #f2f2d8 } .seen { background: #fbe8d0 } .bad { background: #f8d2d2 }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #1b1b1b } thead th, pre { background: #2a2a2a } th, td { border-color: #444 }
.good { background: #1f3a1f } .said { background: #3a3a1c } .seen { background: #4a3517 } .bad { background: #522 } }
</style>";
