//! Answers as text.

use super::Failure;
use crate::printable::printable;
use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow::util::pretty::pretty_format_batches;
use datafusion::prelude::DataFrame;
use futures::TryStreamExt;
use std::io::Write;
use std::sync::Arc;

/// How an answer is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// Comma-separated, with a line of names
    Csv,
    /// One object a line
    Json,
}

/// Prints an answer. CSV and JSON leave as they come, a table when it is whole. Any process chooses the names in an
/// answer: in a table, and in CSV `to_terminal`, they are shown so that they command no terminal. Other CSV and all
/// JSON have the exact text.
///
/// # Errors
///
/// [`Failure::Query`], [`Failure::Output`], [`Failure::Arrow`]
pub async fn print(
    answer: DataFrame,
    format: Format,
    to_terminal: bool,
    output: &mut impl Write,
) -> Result<(), Failure> {
    match format {
        Format::Table => {
            let schema = Arc::new(answer.schema().as_arrow().clone());
            let mut batches = answer.collect().await?;
            if batches.is_empty() {
                batches.push(RecordBatch::new_empty(schema));
            }
            let shown = batches.iter().map(shown).collect::<Result<Vec<_>, _>>()?;
            writeln!(output, "{}", pretty_format_batches(&shown)?)?;
        }
        Format::Csv => {
            let mut batches = answer.execute_stream().await?;
            let text = if to_terminal { shown } else { flat };
            let header = text(&RecordBatch::new_empty(batches.schema()))?;
            let mut writer = arrow::csv::Writer::new(output);
            writer.write(&header)?;
            while let Some(batch) = batches.try_next().await? {
                writer.write(&text(&batch)?)?;
            }
        }
        Format::Json => {
            let mut batches = answer.execute_stream().await?;
            while let Some(batch) = batches.try_next().await? {
                let mut writer = arrow::json::WriterBuilder::new()
                    .with_explicit_nulls(true)
                    .build::<_, arrow::json::writer::LineDelimited>(Vec::new());
                writer.write(&batch)?;
                writer.finish()?;
                let text = String::from_utf8_lossy(writer.get_ref());
                // It means the same.
                text.lines().try_for_each(|line| writeln!(output, "{}", printable(line)))?;
            }
        }
    }
    Ok(())
}

/// All columns as text that commands no terminal, and is one line.
fn shown(batch: &RecordBatch) -> Result<RecordBatch, Failure> {
    texts(batch, |_| true, |text| printable(text).into_owned())
}

/// CSV has no columns inside of columns: they are text.
fn flat(batch: &RecordBatch) -> Result<RecordBatch, Failure> {
    texts(batch, DataType::is_nested, str::to_owned)
}

/// Some of the columns as text, and all names, each by a function.
fn texts(
    batch: &RecordBatch,
    is_text: impl Fn(&DataType) -> bool,
    text: impl Fn(&str) -> String,
) -> Result<RecordBatch, Failure> {
    let (mut fields, mut arrays) = (Vec::new(), Vec::new());
    for (field, array) in batch.schema().fields().iter().zip(batch.columns()) {
        if is_text(field.data_type()) {
            let options = FormatOptions::default();
            let values = ArrayFormatter::try_new(array, &options)?;
            let texts = (0..array.len()).map(|row| text(&values.value(row).to_string()));
            arrays.push(Arc::new(StringArray::from_iter_values(texts)) as ArrayRef);
            fields.push(Field::new(text(field.name()), DataType::Utf8, true));
        } else {
            arrays.push(array.clone());
            fields.push(Field::new(text(field.name()), field.data_type().clone(), true));
        }
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?)
}
