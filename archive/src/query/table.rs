//! A table of an archive, as DataFusion's own listing tables: so that it can be sent to a cluster as it is.

use super::files::{File, Found, Notice, PARTITIONS};
use super::{Failure, Location};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::ScalarValue;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::datasource::{ViewTable, provider_as_source};
use datafusion::functions::core::expr_fn::named_struct;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, cast, col, lit};
use datafusion::prelude::ident;
use object_store::path::Path;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The fields of a stamp: what `happened_before` compares.
pub(super) const STAMP: [&str; 8] = ["machine", "boot", "cpu_id", "row", "trace", "tai", "tai_error", "mono"];

/// The columns of all files. A column that some files lack is null there. On a cluster words are plain text: Ballista's
/// executors hand dictionaries to each other as such, to themselves as dictionaries, and cannot put both together.
pub(super) fn union(table: &str, files: &[File], on_cluster: bool, notices: &mut Vec<Notice>) -> SchemaRef {
    let mut fields: Vec<Field> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for field in files.iter().flat_map(|file| file.schema.fields()) {
        let Some(&place) = places.get(field.name()) else {
            places.insert(field.name().clone(), fields.len());
            let of = match field.data_type() {
                DataType::Dictionary(_, values) if on_cluster => values.as_ref(),
                of => of,
            };
            fields.push(Field::new(field.name(), of.clone(), true));
            continue;
        };
        if words(fields[place].data_type()) && words(field.data_type()) {
            continue;
        }
        let both = common_type(fields[place].data_type(), field.data_type());
        let several = &both != fields[place].data_type() || &both != field.data_type();
        fields[place] = Field::new(field.name(), both.clone(), true);
        let notice = Notice::Types { column: format!("{table}.{}", field.name()), read_as: both.to_string() };
        if several && !notices.contains(&notice) {
            notices.push(notice);
        }
    }
    Arc::new(Schema::new(fields))
}

fn words(of: &DataType) -> bool {
    matches!(of, DataType::Utf8 | DataType::Dictionary(..))
}

/// A type that holds the values of both: the wider number, or text.
fn common_type(one: &DataType, other: &DataType) -> DataType {
    use datafusion::logical_expr::type_coercion::binary::comparison_coercion;
    if one == other {
        return one.clone();
    }
    if one.is_integer() && other.is_integer() {
        comparison_coercion(one, other).unwrap_or(DataType::Utf8)
    } else {
        DataType::Utf8
    }
}

/// A part of a table that can be read as a whole.
struct Part {
    urls: Vec<String>,
    /// Values of the partitions whose directories it lies in.
    within: Vec<String>,
}

/// Covers the good files: by whole directories where nothing is bad in them, for these are listed only when they are
/// read; else by what is in them.
fn cover(location: &Location, directory: &Path, within: &[&str], files: &[&File], bad: &[Vec<String>]) -> Vec<Part> {
    let depth = within.len();
    let within_values =
        || within.iter().map(|part| part.split_once('=').map_or(*part, |(_, value)| value).to_string()).collect();
    if files.is_empty() {
        return Vec::new();
    }
    if !bad.iter().any(|parts| parts.len() > depth && parts.iter().zip(within).all(|(part, dir)| part == dir)) {
        let path = directory.parts().chain(within.iter().map(|part| (*part).into())).collect();
        return vec![Part { urls: vec![location.url(&path, true)], within: within_values() }];
    }
    if depth == PARTITIONS.len() {
        return vec![Part {
            urls: files.iter().map(|file| location.url(&file.path, false)).collect(),
            within: within_values(),
        }];
    }
    let mut children: BTreeMap<&str, Vec<&File>> = BTreeMap::new();
    for file in files {
        children.entry(&file.parts[depth]).or_default().push(file);
    }
    children
        .into_iter()
        .flat_map(|(child, files)| cover(location, directory, &[within, &[child]].concat(), &files, bad))
        .collect()
}

/// The table as a view, which has `stamp` too.
pub(super) fn view(
    location: &Location,
    directory: &Path,
    found: &Found,
    schema: &SchemaRef,
) -> Result<ViewTable, Failure> {
    let files: Vec<_> = found.files.iter().collect();
    let mut whole: Option<LogicalPlanBuilder> = None;
    for part in cover(location, &location.inside(directory), &[], &files, &found.bad) {
        let scan = scan(&part, schema)?;
        whole = Some(match whole {
            None => scan,
            Some(whole) => whole.union(scan.build()?)?,
        });
    }
    let Some(whole) = whole else {
        let fields = schema
            .fields()
            .iter()
            .cloned()
            .chain(PARTITIONS.map(|name| Arc::new(Field::new(name, DataType::Utf8, true))));
        let empty = datafusion::common::DFSchema::try_from(Schema::new(fields.collect::<Vec<_>>()))?;
        let plan = LogicalPlan::EmptyRelation(datafusion::logical_expr::EmptyRelation {
            produce_one_row: false,
            schema: Arc::new(empty),
        });
        return Ok(ViewTable::new(stamped(LogicalPlanBuilder::from(plan), schema)?, None));
    };
    Ok(ViewTable::new(stamped(whole, schema)?, None))
}

fn scan(part: &Part, schema: &SchemaRef) -> Result<LogicalPlanBuilder, Failure> {
    let (fixed, open) = PARTITIONS.split_at(part.within.len());
    let options = ListingOptions::new(Arc::new(ParquetFormat::new()))
        .with_file_extension(".parquet")
        .with_table_partition_cols(open.iter().map(|name| (name.to_string(), DataType::Utf8)).collect());
    let urls = part.urls.iter().map(ListingTableUrl::parse).collect::<Result<_, _>>()?;
    let config =
        ListingTableConfig::new_with_multi_paths(urls).with_listing_options(options).with_schema(schema.clone());
    let table = provider_as_source(Arc::new(ListingTable::try_new(config)?));
    let mut columns: Vec<Expr> = schema.fields().iter().map(|field| ident(field.name())).collect();
    columns.extend(
        fixed.iter().zip(&part.within).map(|(name, value)| lit(ScalarValue::Utf8(Some(value.clone()))).alias(*name)),
    );
    columns.extend(open.iter().map(|name| col(*name)));
    Ok(LogicalPlanBuilder::scan("files", table, None)?.project(columns)?)
}

fn stamped(plan: LogicalPlanBuilder, schema: &SchemaRef) -> Result<LogicalPlan, Failure> {
    let names = schema.fields().iter().map(|field| field.name().as_str()).chain(PARTITIONS);
    let mut columns: Vec<Expr> = names.map(ident).collect();
    let text = |name: &str| match name {
        "boot" | "trace" => cast(col(name), DataType::Utf8),
        "row" if schema.column_with_name("row").is_none() => lit(ScalarValue::Int64(None)),
        "cpu_id" if schema.column_with_name("cpu_id").is_none() => lit(ScalarValue::Int32(None)),
        _ => col(name),
    };
    let stamp = STAMP.iter().flat_map(|name| [lit(*name), text(name)]).collect();
    columns.push(named_struct(stamp).alias("stamp"));
    Ok(plan.project(columns)?.build()?)
}
