//! Answers as text.

use super::Failure;
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

/// Prints an answer. CSV and JSON leave as they come, a table when it is whole.
///
/// # Errors
///
/// [`Failure::Query`], [`Failure::Output`], [`Failure::Arrow`]
pub async fn print(answer: DataFrame, format: Format, output: &mut impl Write) -> Result<(), Failure> {
    match format {
        Format::Table => {
            let schema = Arc::new(answer.schema().as_arrow().clone());
            let mut batches = answer.collect().await?;
            if batches.is_empty() {
                batches.push(RecordBatch::new_empty(schema));
            }
            writeln!(output, "{}", shown(&pretty_format_batches(&batches)?.to_string()))?;
        }
        Format::Csv => {
            let mut batches = answer.execute_stream().await?;
            let header = flat(&RecordBatch::new_empty(batches.schema()))?;
            let mut writer = arrow::csv::Writer::new(output);
            writer.write(&header)?;
            while let Some(batch) = batches.try_next().await? {
                writer.write(&flat(&batch)?)?;
            }
        }
        Format::Json => {
            let mut batches = answer.execute_stream().await?;
            let mut writer = arrow::json::WriterBuilder::new()
                .with_explicit_nulls(true)
                .build::<_, arrow::json::writer::LineDelimited>(output);
            while let Some(batch) = batches.try_next().await? {
                writer.write(&batch)?;
            }
            writer.finish()?;
        }
    }
    Ok(())
}

/// A text that commands no terminal: any process chooses the names in it.
pub(super) fn shown(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            letter if letter.is_control() && letter != '\n' => safe.extend(letter.escape_default()),
            letter => safe.push(letter),
        }
    }
    safe
}

/// CSV has no columns inside of columns: they are text.
fn flat(batch: &RecordBatch) -> Result<RecordBatch, Failure> {
    let mut fields = Vec::new();
    let mut arrays = Vec::new();
    for (field, array) in batch.schema().fields().iter().zip(batch.columns()) {
        if !field.data_type().is_nested() {
            fields.push(field.clone());
            arrays.push(array.clone());
            continue;
        }
        let options = FormatOptions::default();
        let text = ArrayFormatter::try_new(array, &options)?;
        let texts: StringArray = (0..array.len()).map(|row| Some(text.value(row).to_string())).collect();
        fields.push(Arc::new(Field::new(field.name(), DataType::Utf8, true)));
        arrays.push(Arc::new(texts) as ArrayRef);
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?)
}
