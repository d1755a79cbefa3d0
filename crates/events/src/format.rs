//! A tracepoint's format: its fields by name, and its line of text.

use crate::error::{nearest, no_format_text, short};
use crate::field::{Field, LONGEST, shorten, text_of};
use crate::print::Print;
use crate::texts;
use crate::value::Look;
use perfweave::{Bytes, Error, ErrorKind, Record, Rings};
use std::fmt::Write;
use std::str::FromStr;

/// The format of a tracepoint's payload: the `format` file of tracefs, parsed. It names each field.
///
/// [`Format::of`] gives the format of each source of some rings, [`Format::read`] that of any tracepoint. To use a
/// format from another machine, parse its text.
///
/// ```
/// use perfweave_events::Format;
///
/// let format: Format = "name: wake\nID: 7\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
///                       \tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\nprint fmt: \"comm=%s\", REC->comm\n".parse()?;
/// assert_eq!((format.name(), format.id(), format.field("comm")?.offset()), ("wake", 7, 8));
/// let error = format.field("com").unwrap_err();
/// assert!(error.to_string().contains("did you mean comm?"));
/// # Ok::<(), perfweave::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Format {
    name: String,
    id: u64,
    /// How many of the fields are common to all tracepoints.
    common: usize,
    fields: Vec<Field>,
    /// The parsed `print fmt`, if it is a text with arguments.
    print: Option<Print>,
}

impl Format {
    /// The format of a source of the rings, by the number that [`Record::source`] gives. Call it once for each source,
    /// before reading. It parses the text that [`format`](crate::format) reads.
    ///
    /// # Errors
    /// The errors of [`format`](crate::format); [`ErrorKind::InvalidInput`] for a text that this crate does not understand.
    pub fn of(rings: &Rings, source: usize) -> Result<Self, Error> {
        let format: Self = texts::format(rings, source)?.parse()?;
        // There is one: `texts::format` refuses other numbers.
        let of = &rings.sources()[source];
        // The text of a probe has a name for all of them.
        Ok(if of.tracepoint_id().is_some() { format } else { Self { name: of.name().to_owned(), ..format } })
    }

    /// The format of a tracepoint, `category:name`, of this machine.
    ///
    /// # Errors
    /// The errors of [`format_of`](crate::format_of); [`ErrorKind::InvalidInput`] for a file that this crate does not understand.
    pub fn read(name: &str) -> Result<Self, Error> {
        texts::format_of(name)?.parse()
    }

    /// The event's name, without its category. For a probe, the source's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tracepoint's number, which is also the first field of each payload, `common_type`, a `u16`. 0 for a probe,
    /// whose number is not known before it is opened.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// All fields in their order. The first are common to all tracepoints: `common_type`, `common_flags`,
    /// `common_preempt_count` and `common_pid`.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// A field by its name. Look it up once, before reading.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]. It names the nearest field, if any is near, and lists the existing fields, up to 1 KiB of
    /// names.
    pub fn field(&self, name: &str) -> Result<Field, Error> {
        if let Some(field) = self.fields.iter().find(|field| field.name() == name) {
            return Ok(field.clone());
        }
        let names = self.fields.iter().map(Field::name);
        let all = listed(names.clone());
        let hint = match nearest(name, names) {
            Some(near) => format!("did you mean {near}? There are {all}"),
            None => format!("there are {all}"),
        };
        let message = format!("{} has no field {}", short(&self.name), short(name));
        Err(Error::new(ErrorKind::NotFound, message).hinting(hint))
    }

    /// Whether the crate understands all of the kernel's own way to print the event, so that [`Format::line_with`]
    /// prints the same, except for addresses.
    pub fn prints_as_the_kernel(&self) -> bool {
        self.print.as_ref().is_some_and(|print| print.is_whole)
    }

    /// A line of text for a record of this event, without the event's name, CPU and time. `None` for records without
    /// payload. Kernel functions (`%pS`) are addresses: [`Format::line_with`] names them.
    ///
    /// The text is the kernel's, as in `trace` of tracefs. An exception is `syscalls:*`, where the kernel does not
    /// follow its own `print fmt`; perf(1) follows it, and so does this. The method evaluates `print fmt`: C's operators
    /// and types, all conversions of printf(3), those of addresses, UUIDs, bytes and masks (`%pI4`, `%pISpc`, `%pM`,
    /// `%pU`, `%*ph`, `%*pbl`), and the helpers of the kernel's macros (`__print_flags`, `__print_symbolic`,
    /// `__print_array`, `__get_cpumask` and others). `%p` prints the address itself, which the kernel hides.
    ///
    /// A format may have names that only the kernel's source has. A name in a list of flags or symbols is left out: its
    /// number is printed as that of a flag without a name. An argument with another such name is printed as C, with the
    /// values of the fields in it: `jiffies_to_msecs(25)`. A `print fmt` with C's statements, or longer than 64 KiB,
    /// prints `name=value` for each field in its order. So does a record that does not fit its format.
    /// [`Format::prints_as_the_kernel`] says whether none of this applies to the format.
    ///
    /// A line is cut at 64 KiB; the kernel's lines are at most a page. Text that a precision cuts off counts too. This
    /// allocates.
    ///
    /// Texts of fields are in it as they are, with the escape sequences and ends of lines that a process may have
    /// chosen.
    pub fn line(&self, record: &Record<'_>) -> Option<String> {
        self.line_with(record, |_| None)
    }

    /// The same, with names for addresses in the kernel. `look` gives what lies at one: a function as `%pS` prints it
    /// (`do_exit+0x1a/0xb10`), or a string of the kernel (`printk_formats` of tracefs), of which a format may have the
    /// address only.
    pub fn line_with(&self, record: &Record<'_>, look: impl Fn(u64) -> Option<String>) -> Option<String> {
        record.payload().map(|payload| self.line_of(payload, &look))
    }

    pub(super) fn line_of(&self, payload: Bytes<'_>, look: Look<'_>) -> String {
        if let Some(line) = self.print.as_ref().and_then(|print| print.line(&self.fields, payload, look)) {
            return line;
        }
        self.pairs(payload)
    }

    fn pairs(&self, payload: Bytes<'_>) -> String {
        let mut line = String::new();
        for field in &self.fields[self.common..] {
            let space = if line.is_empty() { "" } else { " " };
            // Writing into a string never fails.
            let _ = write!(line, "{space}{}=", field.name());
            let _ = match (field.data(payload), field.number(payload), field.numbers(payload)) {
                (Some(data), ..) if field.is_text() => write!(line, "{}", text_of(data)),
                (_, Some(number), _) if field.type_name().ends_with('*') => write!(line, "{:#x}", number as u64),
                (_, Some(number), _) if field.is_signed() => write!(line, "{number}"),
                (_, Some(number), _) => write!(line, "{}", number as u64),
                (.., Some(numbers)) if field.is_signed() => write!(line, "{:?}", numbers.collect::<Vec<_>>()),
                (.., Some(numbers)) => write!(line, "{:?}", numbers.map(|number| number as u64).collect::<Vec<_>>()),
                (Some(data), ..) => write!(line, "{data:x?}"),
                (None, ..) => write!(line, "?"),
            };
            // Many fields may point to the same text: a short record can make a long line.
            if line.len() > LONGEST {
                break;
            }
        }
        shorten(&mut line);
        line
    }
}

impl FromStr for Format {
    type Err = Error;

    /// Parses the whole text of a `format` file. The text may be from another machine with the same byte order.
    fn from_str(text: &str) -> Result<Self, Error> {
        let error = no_format_text;
        let (mut name, mut id, mut common) = (None, None, None);
        let mut fields: Vec<Field> = Vec::new();
        // `print fmt` comes last, and its text may have line feeds.
        let (head, print) = text.split_once("\nprint fmt:").unwrap_or((text, ""));
        for (number, line) in (1..).zip(head.lines()) {
            let expected = |expected| move || error(number, line, expected);
            if let Some(rest) = line.strip_prefix("name:") {
                name = Some(rest.trim());
            } else if let Some(rest) = line.strip_prefix("ID:") {
                id = Some(rest.trim().parse().map_err(|_| expected("a number")())?);
            } else if line.trim_start().starts_with("field:") {
                fields.push(Field::parse(line).ok_or_else(expected("field:TYPE NAME; offset:N; size:N; signed:N;"))?);
            } else if line.trim().is_empty() && !fields.is_empty() {
                common = common.or(Some(fields.len()));
            } else if !line.trim().is_empty() && line.trim() != "format:" {
                return Err(error(number, line, "name, ID, format, a field or print fmt"));
            }
        }
        let behind = text.lines().count() + 1;
        let name = name.filter(|name| !name.is_empty()).ok_or_else(|| error(behind, "", "name:"))?.to_owned();
        let id = id.ok_or_else(|| error(behind, "", "ID:"))?;
        // The first blank line separates the common fields from the event's own.
        let common = common.filter(|common| fields[..*common].iter().all(|field| field.name().starts_with("common_")));
        Ok(Self { name, id, common: common.unwrap_or(0), print: Print::parse(print, &fields), fields })
    }
}

/// As many names as fit into [`MOST_NAMED`] bytes, separated by commas, and how many others there are.
fn listed<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let (mut text, mut left) = (String::new(), names.len());
    for name in names {
        if text.len() + name.len() > MOST_NAMED {
            break;
        }
        let comma = if text.is_empty() { "" } else { ", " };
        text.extend([comma, name]);
        left -= 1;
    }
    if left > 0 {
        let and = if text.is_empty() { "" } else { " and " };
        let _ = write!(text, "{and}{left} others");
    }
    text
}

/// Bytes of names that an error lists.
const MOST_NAMED: usize = 1 << 10;
