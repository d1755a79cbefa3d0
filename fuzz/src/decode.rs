//! Feeds any bytes, in any layout, to all functions that decode a record, and any text to the parser of formats. The
//! values of a record are the same for every place where it wraps.

use crate::raw_bytes::Input;
use perfweave::{Hold, Item, Layout, Merge, Order, Record, sim};
use perfweave_events::Format;

/// Bytes of the ring. Any record of an input fits into it.
const RING: usize = 4096;

/// Fields that the order needs.
const TIME: u64 = 4;

/// One input: a layout, a place, a record, and a format's text.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input(input);
    let choice = input.byte();
    // Mostly fields that exist.
    let sample_type = TIME | if choice & 1 == 0 { input.word() } else { input.word() & ((1 << 25) - 1) };
    let (read_format, branches) = (input.byte().into(), u64::from(input.byte()) << 12);
    let registers = [input.byte(), input.byte()].map(|byte| u64::from(byte) << (byte % 57));
    let layout = Layout::new(sample_type, choice & 2 != 0, read_format).registers(registers[0], registers[1]);
    let before_wrap = 8 * (1 + usize::from(input.byte()));
    let record = record(&mut input);
    let format: Option<Format> = String::from_utf8_lossy(input.0).parse().ok();
    if let Some(format) = &format {
        check(format);
    }
    let layout = layout.branches(branches);
    let whole = seen(layout, &record, RING, format.as_ref());
    let wrapped = seen(layout, &record, before_wrap, format.as_ref());
    assert_eq!(whole, wrapped, "a wrap after {before_wrap} bytes changes the values");
}

/// A valid header, and a body.
fn record(input: &mut Input<'_>) -> Vec<u8> {
    // Kinds that exist, and one that does not.
    let kind = u32::from(input.byte() % 24);
    let misc = [input.byte(), input.byte()];
    let len = 8 * usize::from(input.byte());
    let body = input.bytes(len);
    let size = (8 + len) as u16;
    [&kind.to_ne_bytes()[..], &misc, &size.to_ne_bytes(), &body].concat()
}

/// The values of a record that lies this many bytes before the ring's end.
fn seen(layout: Layout, record: &[u8], before_end: usize, format: Option<&Format>) -> Vec<String> {
    let kernel = sim::Kernel::with(&[0], RING, layout);
    let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::None)).expect("a merge");
    let begin = RING - before_end;
    if begin > 0 {
        // Fills the ring up to there with a record of unknown kind, or damage of the same length.
        let header = [&99u32.to_ne_bytes()[..], &[0, 0], &(begin as u16).to_ne_bytes()].concat();
        kernel.scribble(0, 0, &header);
        kernel.force_head(0, begin as u64);
        merge.refresh(0);
        assert!(merge.next().is_some() && merge.next().is_none());
        merge.advance_tails();
    }
    kernel.scribble(0, begin as u64, record);
    kernel.force_head(0, (begin + record.len()) as u64);
    merge.refresh(0);
    let Some(event) = merge.next() else {
        // LOST has the count after an id, LOST_SAMPLES has nothing before it.
        let count = match u32::from_ne_bytes(record[..4].try_into().expect("four bytes")) {
            2 => &record[16..24],
            13 => &record[8..16],
            kind => panic!("no event of kind {kind}"),
        };
        assert_eq!(count, [0; 8], "only a loss with the count 0 is no event");
        return Vec::new();
    };
    match event.item() {
        Item::Record(found) => {
            assert_eq!(found.as_bytes(), *record);
            said(&found, format)
        }
        Item::Damage(damage) => {
            assert_eq!(damage.bytes, *record);
            vec![format!("{:?}", damage.fault())]
        }
        // A loss also has the key of the record before it, which differs between the two.
        Item::Lost(lost) => vec![format!("{:?}", (lost.count, lost.id, lost.source, lost.until))],
        other => panic!("{other:?}"),
    }
}

/// All values of a record.
fn said(record: &Record<'_>, format: Option<&Format>) -> Vec<String> {
    let mut said = vec![format!("{:?}", (record.kind(), record.misc(), record.time(), record.id(), record.source()))];
    said.push(format!("{:?}", (record.pid_tid(), record.ip(), record.addr(), record.period())));
    said.push(format!("{:?}", record.callchain().map(|frames| frames.collect::<Vec<_>>())));
    for bit in 0..64 {
        let field = record.field(1u64 << bit).map(|bytes| bytes.to_vec());
        assert!(field.as_ref().is_none_or(|field| field.len() + 8 <= record.as_bytes().len()));
        said.extend(field.map(|field| format!("{bit}: {field:x?}")));
    }
    let payload = record.payload();
    said.push(format!("{:x?}", payload.map(|payload| payload.to_vec())));
    let Some(format) = format else { return said };
    let line = format.line(record);
    assert_eq!(line.is_some(), payload.is_some());
    said.extend(line);
    for field in format.fields() {
        let bytes = field.bytes(record).map(|bytes| bytes.to_vec());
        let ints: Option<Vec<i64>> = field.ints(record).map(Iterator::collect);
        assert!(bytes.as_ref().is_none_or(|bytes| payload.is_some_and(|payload| bytes.len() <= payload.len())));
        let (int, uint) = (field.int(record), field.uint(record));
        assert_eq!(int.is_some(), uint.is_some(), "{field:?}");
        assert!(int.is_none() || !field.is_array() && ints == int.map(|int| vec![int]), "{field:?}");
        said.push(format!("{:?} {bytes:x?} {ints:?} {int:?} {uint:?} {:?}", field.name(), field.text(record)));
    }
    said
}

/// Uses a parsed format by its own names.
fn check(format: &Format) {
    assert!(!format.name().is_empty());
    for field in format.fields() {
        let found = format.field(field.name()).expect("it has this field");
        assert_eq!(found.name(), field.name());
        assert!(!field.is_array() || field.width() > 0, "{field:?}");
    }
    let has_it = format.fields().iter().any(|field| field.name() == "nobody");
    assert_eq!(format.field("nobody").is_ok(), has_it);
}
