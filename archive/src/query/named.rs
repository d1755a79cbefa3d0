//! Queries that are built in: each is a file of SQL, whose first line says what it answers.

use super::Failure;
use datafusion::catalog::TableProvider;
use datafusion::datasource::ViewTable;
use datafusion::logical_expr::{Expr, LogicalPlanBuilder, ident, lit};
use std::sync::Arc;

/// A table of this program's own: the system calls of this machine's architecture, with `id` and `name`.
pub(super) const SYSCALLS: &str = "system_calls";

/// A query that is built in.
#[derive(Debug, Clone, Copy)]
pub struct Named {
    /// What `--named` takes.
    pub name: &'static str,
    /// The query.
    pub sql: &'static str,
}

impl Named {
    /// What it answers, in one line.
    #[must_use]
    pub fn about(&self) -> &'static str {
        self.sql.lines().next().unwrap_or_default().trim_start_matches("-- ")
    }
}

/// All queries that are built in.
pub const NAMED: &[Named] = &[
    Named { name: "wakeup-latency", sql: include_str!("named/wakeup-latency.sql") },
    Named { name: "ran-instead", sql: include_str!("named/ran-instead.sql") },
    Named { name: "off-cpu", sql: include_str!("named/off-cpu.sql") },
    Named { name: "system-calls", sql: include_str!("named/system-calls.sql") },
    Named { name: "missing", sql: include_str!("named/missing.sql") },
    Named { name: "slowest-hops", sql: include_str!("named/slowest-hops.sql") },
    Named { name: "messages", sql: include_str!("named/messages.sql") },
];

pub(super) fn sql(name: &str) -> Result<&'static str, Failure> {
    NAMED.iter().find(|query| query.name == name).map(|query| query.sql).ok_or_else(|| Failure::Named(name.to_string()))
}

/// As values in the plan itself, so that a cluster gets them with it.
pub(super) fn syscalls() -> Result<Arc<dyn TableProvider>, Failure> {
    let row = |call: syscalls::Sysno| -> Vec<Expr> { vec![lit(i64::from(call.id())), lit(call.name())] };
    let rows = syscalls::SysnoSet::all().iter().map(row).collect();
    let named = LogicalPlanBuilder::values(rows)?
        .project(vec![ident("column1").alias("id"), ident("column2").alias("name")])?;
    Ok(Arc::new(ViewTable::new(named.build()?, None)))
}
