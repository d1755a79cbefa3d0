//! Merges the streams of several machines in order of TAI with timely dataflow, which takes their frontiers as they
//! are: nothing is delayed by a guess, and nothing comes too late.
//!
//! Live, of machines that write to sockets or pipes:
//!
//! ```sh
//! cargo run --example merge -- <(ssh m01 perfweave-archive record --arrow-stream -e sched:sched_waking) \
//!                              <(ssh m02 perfweave-archive record --arrow-stream -e sched:sched_waking)
//! ```
//!
//! Of archives:
//!
//! ```sh
//! sql="SELECT tai, machine, pid FROM sched.sched_waking WHERE machine ="
//! cargo run --example merge -- <(perfweave-archive query --arrow-stream "$sql 'm01'" traces/) \
//!                              <(perfweave-archive query --arrow-stream "$sql 'm02'" traces/)
//! ```

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::TimestampNanosecondType;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use perfweave_archive::query::FRONTIER;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::input::Handle as InputHandle;
use timely::dataflow::operators::{Concatenate, Input};

/// A row: its TAI, the place of its stream, its number in that stream, and its text.
pub type Row = (i64, usize, u64, String);

/// Merges streams, and gives each row in order of TAI. Rows of one time are in the order of the streams.
///
/// # Errors
/// If bytes are no stream of `perfweave-archive`.
pub fn merge<R, F>(streams: Vec<R>, each: F) -> Result<(), ArrowError>
where
    R: Read + Send + Sync + 'static,
    F: FnMut(Row) + Send + Sync + 'static,
{
    let mut readers =
        streams.into_iter().map(|stream| StreamReader::try_new(stream, None)).collect::<Result<Vec<_>, _>>()?;
    timely::execute_directly(move |worker| {
        let mut inputs = worker.dataflow::<i64, _, _>(|scope| {
            let (inputs, streams): (Vec<_>, Vec<_>) = readers
                .iter()
                .map(|_| scope.new_input::<Vec<Row>>())
                .map(|(input, stream)| (Some(input), stream))
                .unzip();
            let (mut held, mut each) = (BTreeMap::new(), each);
            scope.concatenate(streams).sink(Pipeline, "in order", move |(input, frontier)| {
                input
                    .for_each(|_, rows| held.extend(rows.drain(..).map(|(tai, of, row, text)| ((tai, of, row), text))));
                // What is before the frontiers of all streams can go: nothing comes before it any more.
                let later = frontier.frontier().first().map_or_else(BTreeMap::new, |tai| held.split_off(&(*tai, 0, 0)));
                let now = std::mem::replace(&mut held, later);
                now.into_iter().for_each(|((tai, of, row), text)| each((tai, of, row, text)));
            });
            inputs
        });
        let mut numbers = vec![0; readers.len()];
        // The stream that is behind holds up the others, so that it is read next.
        let behind = |inputs: &[Option<InputHandle<i64, Row>>]| {
            let open = inputs.iter().enumerate().filter_map(|(of, input)| Some((*input.as_ref()?.time(), of)));
            open.min().map(|(_, of)| of)
        };
        while let Some(of) = behind(&inputs) {
            match (readers[of].next().transpose()?, inputs[of].as_mut()) {
                (Some(batch), Some(input)) => {
                    rows(&batch, of, &mut numbers[of])?.into_iter().for_each(|row| input.send(row));
                    input.advance_to(frontier(&batch)?.max(*input.time()));
                }
                // It is over, and holds up nobody.
                _ => inputs[of] = None,
            }
            worker.step();
        }
        Ok(())
    })
}

/// The column of times. Rows without one have the earliest.
fn times(batch: &RecordBatch, name: &str) -> Result<Vec<i64>, ArrowError> {
    let column = batch.column_by_name(name).and_then(|column| column.as_primitive_opt::<TimestampNanosecondType>());
    let column = column.ok_or_else(|| ArrowError::SchemaError(format!("the stream has no column {name} of times")))?;
    Ok(column.iter().map(|time| time.unwrap_or(i64::MIN)).collect())
}

fn frontier(batch: &RecordBatch) -> Result<i64, ArrowError> {
    Ok(times(batch, FRONTIER)?.last().copied().unwrap_or(i64::MIN))
}

/// The rows of a batch, as text without the frontier.
fn rows(batch: &RecordBatch, of: usize, number: &mut u64) -> Result<Vec<Row>, ArrowError> {
    let options = FormatOptions::default();
    let columns = batch.columns().iter().zip(batch.schema_ref().fields()).filter(|(_, field)| field.name() != FRONTIER);
    let columns =
        columns.map(|(column, _)| ArrayFormatter::try_new(column, &options)).collect::<Result<Vec<_>, _>>()?;
    let text = |row: usize| columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join(" ");
    let times = times(batch, "tai")?.into_iter().enumerate();
    Ok(times
        .zip(*number..)
        .map(|((row, tai), at)| {
            *number = at + 1;
            (tai, of, at, text(row))
        })
        .collect())
}

#[allow(dead_code, reason = "a test has this file as a module")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let streams = std::env::args().skip(1).map(File::open).collect::<Result<Vec<_>, _>>()?;
    if streams.is_empty() {
        return Err("give the files or pipes of the streams".into());
    }
    // A thread may call itself by a command to the terminal, or by a line of its own.
    Ok(merge(streams, |(.., text)| println!("{}", text.escape_debug()))?)
}
