//! Archives asked by SQL, with DataFusion in this process or on a Ballista cluster.

mod before;
mod failure;
mod files;
mod location;
mod named;
mod print;
mod stream;
mod table;

pub use before::happened_before;
pub use failure::Failure;
pub use files::Notice;
pub use location::Location;
pub use named::{NAMED, Named};
pub use print::{Format, print};
pub use stream::{FRONTIER, stream};

use crate::printable::{printable, say};
use ballista::prelude::SessionContextExt;
use datafusion::catalog::MemorySchemaProvider;
use datafusion::catalog::SchemaProvider;
use datafusion::common::TableReference;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::context::SQLOptions;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{DataFrame, SessionConfig, SessionContext};
use datafusion::sql::parser::DFParser;
use object_store::path::Path;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::Arc;

/// Tables that are no events.
const OTHERS: [&str; 3] = ["notices", "clocks", "traces"];

/// What to ask.
#[derive(Debug, Clone, clap::Args)]
#[command(allow_missing_positional = true)]
pub struct Options {
    /// How to print the answer
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// Write Arrow's IPC stream in order of TAI, with the frontier in each batch: for engines that take it as their
    /// watermark
    #[arg(long, conflicts_with_all = ["format", "list"])]
    pub arrow_stream: bool,
    /// Ask one of the queries that are built in
    #[arg(long, value_name = "NAME", conflicts_with = "sql")]
    pub named: Option<String>,
    /// List the archive's tables and the queries that are built in
    #[arg(long, conflicts_with_all = ["named", "sql"])]
    pub list: bool,
    /// Let the query write files, as COPY (SELECT ...) TO 'FILE' does. Without it, whatever does more than answer is
    /// refused
    #[arg(long, conflicts_with_all = ["named", "list"])]
    pub allow_writes: bool,
    /// Let a Ballista cluster answer, by the address of its scheduler
    #[arg(long, value_name = "HOST:PORT")]
    pub cluster: Option<String>,
    /// Memory for sorts, joins and groups, in MiB; what does not fit is on disk meanwhile
    #[arg(long, value_name = "MIB", default_value_t = 4096)]
    pub memory: usize,
    /// A query
    #[arg(required_unless_present_any = ["named", "list"])]
    pub sql: Option<String>,
    /// The archive: a folder, or URL of an object store
    pub url: String,
}

/// Answers on standard output. What the answer lacks is told on standard error.
///
/// # Errors
///
/// [`Failure`], where there is no answer.
pub async fn query(options: &Options) -> Result<(), Failure> {
    let mut archive = Archive::open(&options.url, options.cluster.as_deref(), options.memory << 20).await?;
    if options.allow_writes {
        archive.allow_writes();
    }
    let to = std::io::stdout().lock();
    let to_terminal = to.is_terminal();
    let mut output = Pipe { to, is_closed: false };
    match answer(&mut archive, options, to_terminal, &mut output).await {
        // Who reads the answer has seen enough.
        Err(_) if output.is_closed => Ok(()),
        answered => answered,
    }
}

/// An output that remembers that nobody reads it any more. Writers of CSV and Arrow hand that on as text.
struct Pipe<W> {
    to: W,
    is_closed: bool,
}

impl<W: Write> Pipe<W> {
    fn note<T>(&mut self, done: std::io::Result<T>) -> std::io::Result<T> {
        self.is_closed |= done.as_ref().is_err_and(|error| error.kind() == ErrorKind::BrokenPipe);
        done
    }
}

impl<W: Write> Write for Pipe<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let done = self.to.write(bytes);
        self.note(done)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let done = self.to.flush();
        self.note(done)
    }
}

async fn answer(
    archive: &mut Archive,
    options: &Options,
    to_terminal: bool,
    output: &mut impl Write,
) -> Result<(), Failure> {
    if options.list {
        return archive.list(output).await;
    }
    let sql = match (&options.named, &options.sql) {
        (Some(name), _) => named::sql(name)?,
        (None, sql) => sql.as_deref().unwrap_or_default(),
    };
    let answer = archive.sql(sql).await;
    for notice in archive.notices() {
        say(format_args!("perfweave-archive: {notice}"));
    }
    if options.arrow_stream {
        stream(answer?, output).await
    } else {
        print(answer?, options.format, to_terminal, output).await
    }
}

/// An archive whose tables can be asked.
pub struct Archive {
    name: String,
    location: Location,
    context: SessionContext,
    on_cluster: bool,
    registered: BTreeSet<String>,
    may_write: bool,
    spans: Vec<files::Span>,
    notices: Vec<Notice>,
}

impl std::fmt::Debug for Archive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Archive")
            .field("location", &self.location)
            .field("registered", &self.registered)
            .finish_non_exhaustive()
    }
}

impl Archive {
    /// Opens an archive, to be asked in this process or on the cluster of a scheduler, with so many bytes of memory.
    ///
    /// # Errors
    ///
    /// [`Failure::Location`], [`Failure::Folder`]; [`Failure::Query`], where there is no scheduler.
    pub async fn open(location: &str, cluster: Option<&str>, memory: usize) -> Result<Self, Failure> {
        let name = location.to_string();
        let location = Location::open(location)?;
        let config = SessionConfig::new()
            .with_information_schema(true)
            .set_bool("datafusion.execution.parquet.pushdown_filters", true);
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::new(FairSpillPool::new(memory))).build_arc()?;
        let state =
            SessionStateBuilder::new().with_default_features().with_config(config).with_runtime_env(runtime).build();
        let context = match cluster {
            Some(scheduler) => SessionContext::remote_with_state(&format!("df://{scheduler}"), state).await?,
            None => SessionContext::new_with_state(state),
        };
        context.register_object_store(&location.root, location.store.clone());
        context.register_udf(happened_before());
        let on_cluster = cluster.is_some();
        Ok(Self {
            name,
            location,
            context,
            on_cluster,
            registered: BTreeSet::new(),
            may_write: false,
            spans: Vec::new(),
            notices: Vec::new(),
        })
    }

    /// Lets queries write files, read others, and change settings, from now on.
    pub fn allow_writes(&mut self) {
        self.may_write = true;
    }

    /// What was left out so far, and what else the answers need said.
    #[must_use]
    pub fn notices(&self) -> Vec<Notice> {
        self.notices.iter().cloned().chain(files::overlaps(self.spans.iter())).collect()
    }

    /// Plans a query. The tables that it names are looked at first; no others are.
    ///
    /// # Errors
    ///
    /// [`Failure::Table`], [`Failure::Query`], [`Failure::Store`]; [`Failure::Writes`], if the query does more than
    /// answer.
    pub async fn sql(&mut self, sql: &str) -> Result<DataFrame, Failure> {
        let mut missing = Ok(());
        for statement in DFParser::parse_sql(sql)? {
            let (tables, _) = datafusion::sql::resolve::resolve_table_references(&statement, true)?;
            for table in tables {
                match self.register(&table).await {
                    // It may be one that the query makes.
                    Err(failure @ Failure::Table { .. }) => missing = missing.and(Err(failure)),
                    registered => registered?,
                }
            }
        }
        let plan = match self.context.state().create_logical_plan(sql).await {
            Ok(plan) => plan,
            Err(error) => return missing.and(Err(error.into())),
        };
        let allowed = SQLOptions::new()
            .with_allow_ddl(self.may_write)
            .with_allow_dml(self.may_write)
            .with_allow_statements(self.may_write);
        allowed.verify_plan(&plan).map_err(|error| Failure::Writes(Box::new(error)))?;
        Ok(self.context.execute_logical_plan(plan).await?)
    }

    async fn register(&mut self, table: &TableReference) -> Result<(), Failure> {
        let name = table.to_string();
        if table.schema() == Some("information_schema") || !self.registered.insert(name.clone()) {
            return Ok(());
        }
        if name == named::SYSCALLS {
            return self.register_as(table, named::syscalls()?);
        }
        let directory = match table.schema() {
            Some(system) => Path::from_iter(["events", system, table.table()]),
            None => Path::from(table.table()),
        };
        let cache = self.context.runtime_env().cache_manager.get_file_metadata_cache();
        let mut found = files::find(&self.location, &directory, &cache).await?;
        if found.files.is_empty()
            && found.bad.is_empty()
            && !(table.schema().is_none() && OTHERS.contains(&name.as_str()))
        {
            let has = self.tables().await?.into_keys().collect::<Vec<_>>().join(", ");
            return Err(Failure::Table { archive: self.name.clone(), name, has });
        }
        let schema = match table::union(&name, &found.files, self.on_cluster, &mut found.notices) {
            schema if schema.fields().is_empty() => crate::generate::schema(table.table(), table.schema().is_some()),
            schema => schema,
        };
        let view = table::view(&self.location, &directory, &found, &schema)?;
        self.spans.extend(found.files.into_iter().filter_map(|file| file.span));
        self.notices.extend(found.notices);
        self.register_as(table, Arc::new(view))
    }

    fn register_as(
        &self,
        table: &TableReference,
        provider: Arc<dyn datafusion::catalog::TableProvider>,
    ) -> Result<(), Failure> {
        let catalogs = self.context.catalog("datafusion");
        if let (Some(catalog), Some(system)) = (catalogs, table.schema())
            && catalog.schema(system).is_none()
        {
            catalog.register_schema(system, Arc::new(MemorySchemaProvider::new()) as Arc<dyn SchemaProvider>)?;
        }
        self.context.register_table(table.clone(), provider)?;
        Ok(())
    }

    /// The tables that there are, by the names that queries call them, with how many files each has.
    ///
    /// # Errors
    ///
    /// [`Failure::Store`]
    pub async fn tables(&self) -> Result<BTreeMap<String, u64>, Failure> {
        use futures::StreamExt;
        let mut tables = BTreeMap::new();
        let mut listed = self.location.list()?;
        let skipped = self.location.prefix.parts().count();
        while let Some(file) = listed.next().await {
            let file = match file {
                // No file of an archive has a name that stores cannot have, such as one with a line break. Files of
                // others may.
                Err(object_store::Error::InvalidPath { .. }) => continue,
                file => file?,
            };
            let parts: Vec<_> = file.location.parts().skip(skipped).map(|part| part.as_ref().to_string()).collect();
            let name = match parts.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                ["events", system, event, _, ..] => format!("{system}.{event}"),
                [other, _, ..] if OTHERS.contains(&other) => other.to_string(),
                _ => continue,
            };
            if file.location.as_ref().ends_with(".parquet") {
                *tables.entry(name).or_insert(0) += 1;
            }
        }
        Ok(tables)
    }

    async fn list(&self, output: &mut impl Write) -> Result<(), Failure> {
        writeln!(output, "Tables:")?;
        for (table, files) in self.tables().await? {
            writeln!(output, "  {:<32} {files} file{}", printable(&table), if files == 1 { "" } else { "s" })?;
        }
        writeln!(output, "Queries, for --named:")?;
        for query in NAMED {
            writeln!(output, "  {:<32} {}", query.name, query.about())?;
        }
        Ok(())
    }
}
