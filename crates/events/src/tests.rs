//! Hand-made and hostile formats, in text.

use crate::Format;
use crate::steps::count;
use perfweave::{Bytes, ErrorKind, Hold, Layout, Merge, Order, sim};
use quickcheck::quickcheck;
use std::fmt::Write;
use std::thread;

fn pair(low: u32, high: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&low.to_ne_bytes());
    bytes[4..].copy_from_slice(&high.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

quickcheck! {
    /// For any format and any payload, fields are read within the payload, and a line is printed.
    fn hostile_formats_are_parsed_or_refused(words: Vec<u8>, fields: Vec<(u8, u16, u16, bool)>, payload: Vec<u8>, cut: usize) -> bool {
        let mut text = "name: x\nID: 1\nformat:\n".to_owned();
        const TYPES: [&str; 8] =
            ["int x", "char x[16]", "__data_loc char[] x", "__rel_loc u32[] x", "u64 x[3]", "char x[]", "struct s x", "u16 x[0][7]"];
        for (at, (kind, offset, size, signed)) in (0..).zip(&fields) {
            let declared = TYPES[usize::from(kind % 8)].replace('x', &format!("f{at}"));
            let (offset, size) = if kind & 8 == 0 { (offset % 32, size % 9) } else { (*offset, *size) };
            writeln!(text, "\tfield:{declared};\toffset:{offset};\tsize:{size};\tsigned:{};", u8::from(*signed)).unwrap();
        }
        const WORDS: [&str; 50] = [
            "\"%d %s %u\"", ",", "REC->f0", "REC->f1", "REC->f2", "(", ")", "+", "-", "<<", ">>", "/", "%", "?", ":", "&", "~", "!", "0",
            "1", "63", "0xffffffffffffffff", "(int)", "(u8)", "(unsigned long)", "__get_str(f2)", "__get_dynamic_array_len(f2)",
            "__print_flags(REC->f0, \"|\", {1, \"A\"})", "__print_symbolic(REC->f0, {1, \"A\"})", "__print_hex(REC->f1, 4)",
            "__print_array(REC->f1, 4, 2)", "[", "]", "\"%*.*s\"", "\"%-#08llx|%+5hhd|% c\"", "\"", "\\", "{", "*", "==",
            "NAME", "name(", "&REC->f1", "&", "sizeof(u64)", "(unknown)", "__get_cpumask(f2)", "\"%pISpsfc %pU %pM %pI6c %pa\"",
            "\"%*ph %*pbl %64pb %64ph\"", "__print_flags(REC->f0, \"|\", {NAME, \"A\"}, {0, NULL})",
        ];
        text.push_str("\nprint fmt: \"%s %d\"");
        words.iter().for_each(|word| write!(text, " {}", WORDS[usize::from(*word) % WORDS.len()]).unwrap());
        let Ok(format) = text.parse::<Format>() else { return true };
        let (head, tail) = payload.split_at(cut % (payload.len() + 1));
        let payload = Bytes::new(head, tail);
        for field in format.fields() {
            let _ = (field.number(payload), field.numbers(payload).map(|numbers| numbers.count()));
            assert!(field.data(payload).is_none_or(|data| data.len() <= payload.len()));
        }
        format.line_of(payload, &|_| None);
        true
    }

    fn any_text_is_parsed_or_refused(text: String, line: usize) -> bool {
        let whole = format("%d", "REC->pid");
        let mut lines: Vec<&str> = whole.lines().collect();
        let line = line % lines.len();
        lines[line] = &text;
        let _ = lines.join("\n").parse::<Format>();
        let _ = format!("name: x\nID: 1\nprint fmt: {text}\n").parse::<Format>();
        let _ = format!("name: x\nID: 1\nformat:\n\tfield:{text}; offset:0; size:4; signed:1;\n").parse::<Format>();
        true
    }
}

/// A format with a field of each kind.
fn format(format: &str, arguments: &str) -> String {
    let comma = if arguments.is_empty() { "" } else { ", " };
    format!(
        "name: made_up\nID: 321\nformat:\n\
         \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
         \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
         \tfield:pid_t pid;\toffset:8;\tsize:4;\tsigned:1;\n\
         \tfield:u64 big;\toffset:16;\tsize:8;\tsigned:0;\n\
         \tfield:char comm[8];\toffset:24;\tsize:8;\tsigned:0;\n\
         \tfield:u16 words[2];\toffset:32;\tsize:4;\tsigned:0;\n\
         \tfield:__data_loc char[] name;\toffset:36;\tsize:4;\tsigned:0;\n\
         \tfield:__rel_loc char[] near;\toffset:40;\tsize:4;\tsigned:0;\n\n\
         print fmt: \"{format}\"{comma}{arguments}\n"
    )
}

/// Its payload.
fn payload() -> Vec<u8> {
    let mut bytes = pair(321, 77).to_ne_bytes().to_vec();
    bytes.extend((-5i32).to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(u64::MAX.to_ne_bytes());
    bytes.extend(b"bash\0old");
    bytes.extend([1u16, 0xfffe].map(u16::to_ne_bytes).concat());
    bytes.extend((4u32 << 16 | 44).to_ne_bytes());
    bytes.extend((5u32 << 16 | 4).to_ne_bytes());
    bytes.extend(b"far\0near\0\0\0\0");
    bytes
}

/// Conversions, operators and helpers, as C and the kernel have them.
#[test]
fn lines_are_printed_as_by_printf() {
    for (said, arguments, line) in [
        ("plain 100%%", "", "plain 100%"),
        ("%d %u %x %#x %o", "REC->pid, REC->pid, REC->pid, REC->pid, 8", "-5 4294967291 fffffffb 0xfffffffb 10"),
        ("%ld|%5d|%-5d|%05d|%+d|% d", "REC->pid, REC->pid, REC->pid, REC->pid, 5, 5", "-5|   -5|-5   |-0005|+5| 5"),
        (
            "%llu %lld %llx %hhx %hu",
            "REC->big, REC->big, REC->big, REC->big, REC->big",
            "18446744073709551615 -1 ffffffffffffffff ff 65535",
        ),
        ("%#06x|%.3d|%X", "255, 7, 255", "0x00ff|007|FF"),
        ("%#x %#o %#o", "0, 0, 8", "0x0 0 010"),
        (
            "[%s] [%8s] [%-8s] [%.2s] [%.*s]",
            "REC->comm, REC->comm, REC->comm, REC->comm, 3, REC->comm",
            "[bash] [    bash] [bash    ] [ba] [bas]",
        ),
        ("%s %s", "__get_str(name), __get_rel_str(near)", "far near"),
        ("%c%c%d", "'a', 0x62, '\\0' == 0 && '\\n' == 10 && '\\t' == 9 && '\\r' == 13 && '\\'' == 39", "ab1"),
        ("%d %d", "__get_dynamic_array_len(name), REC->words[1]", "4 65534"),
        ("%d", "1 + 2 * 3 - 10 / 5 % 3 << 1", "10"),
        ("%d %d", "(1 | 6 ^ 3 & 5) == 7 && !0, 0 || 1 > 2", "1 0"),
        ("%s", "REC->pid < 0 ? REC->pid == -5 ? \"five\" : \"less\" : \"more\"", "five"),
        ("%u %u %d", "(u8)REC->pid, (unsigned short)~0, (int)(u32)REC->pid", "251 65535 -5"),
        ("%lx", "((unsigned long)(REC->pid))", "fffffffffffffffb"),
        ("%d%d%d%d%d%d", "5 != 4, 4 != 4, 4 <= 4, 5 <= 4, 4 >= 5, 4 >= 4", "101001"),
        ("%d%d%d%d %d %d", "4 < 4, 3 < 4, 4 > 4, 5 > 4, -16 >> 2, 3 & 6 | 8 ^ 1", "0101 -4 11"),
        ("%d %d %d", &format!("{}1, 017, __builtin_expect(REC->pid, 0)", "-".repeat(62)), "1 15 -5"),
        ("%llx %llx %llx", "0xffull << 60, -1 << 63, (7 ^ 3) << 0", "f000000000000000 8000000000000000 4"),
        ("%d%d %d", "1ull << 63 > 0, -1 << 1 < 0, 3 < 3 || 3 > 3", "11 0"),
        ("[%.s] [%*s] [%-3d] [%0*d]", "REC->comm, -6, REC->comm, 1, 0, 7", "[] [bash  ] [1  ] [7]"),
        ("%d%d%d%d %d", "0 && 1 / 0, 1 || 1 / 0, -1 || 1 / 0, 2 && 3, + 3 - -3", "0111 6"),
        ("%s", "__print_flags(REC->words[0] | 8, \"|\", { 0x1, \"A\" }, { (1 << 1), \"B\" }, { 4, \"C\" })", "A|0x8"),
        ("%s", "__print_flags(0, \"|\", { 0x1, \"A\" })", ""),
        (
            "%s %s",
            "__print_symbolic(REC->pid, { -5, \"minus\" \" five\" }), __print_symbolic(9, { 1, \"one\" })",
            "minus five 0x9",
        ),
        ("%s %s", "__print_hex(REC->comm, 2), __print_hex_str(REC->comm, 2)", "62 61 6261"),
        ("%s", "__print_array(REC->words, 2, 2)", "{0x1,0xfffe}"),
        ("%pS %p", "(void *)REC->big, 255", "0xffffffffffffffff 0xff"),
        ("a\\tb \\\"%d\\\"", "1", "a\tb \"1\""),
    ] {
        let text = format(said, arguments);
        let format: Format = text.parse().unwrap();
        assert!(format.prints_as_the_kernel(), "{text}");
        let payload = payload();
        for cut in 0..=payload.len() {
            let (head, tail) = payload.split_at(cut);
            assert_eq!(format.line_of(Bytes::new(head, tail), &|_| None), line, "{said} {arguments}");
        }
    }
}

/// Every type that a number may be cast to, with all its names; and what a constant is cut to by a comparison.
#[test]
fn numbers_are_cut_to_the_type_of_a_cast() {
    const NUMBER: u64 = 0xf1f2_f3f4_f5f6_f7f8;
    for (types, number) in [
        ("u8,__u8,uint8_t,unsigned char,char", (NUMBER as u8).into()),
        ("s8,__s8,int8_t,signed char", (NUMBER as i8).into()),
        ("u16,__u16,uint16_t,umode_t,unsigned short,unsigned short int", (NUMBER as u16).into()),
        ("s16,__s16,int16_t,short,const short", (NUMBER as i16).into()),
        ("u32,__u32,uint32_t,uint,gfp_t,dev_t,unsigned,unsigned int,__force u32", (NUMBER as u32).into()),
        ("s32,__s32,int32_t,pid_t,int,signed,volatile int", (NUMBER as i32).into()),
        ("u64,__u64,uint64_t,size_t,uintptr_t,sector_t,unsigned long long,void *,char **", i128::from(NUMBER)),
        ("s64,__s64,int64_t,loff_t,ssize_t,long,long long int", (NUMBER as i64).into()),
    ] {
        for name in types.split(',') {
            let text = format("%llx %d", &format!("({name}){NUMBER:#x}, ({name}){NUMBER:#x} < 0"));
            let line = text.parse::<Format>().unwrap().line_of(Bytes::from(&payload()[..]), &|_| None);
            assert_eq!(line, format!("{:x} {}", number as u64, u8::from(number < 0)), "{name}");
        }
    }
}

/// Long chains of operators of every kind, each inside the first side of the next: no text is deep enough to end the
/// stack.
#[test]
fn expressions_nest_as_deep_as_can_be() {
    let mut nested = "1".to_owned();
    let chains: String =
        ["*", "+", "<<", "<", "==", "&", "^", "|", "&&", "||"].map(|sign| format!("{sign} 1 ").repeat(20)).concat();
    let nest = move || {
        for _ in 0..110 {
            nested = format!("({nested} {chains})");
            let format: Format = format("%d", &nested).parse().unwrap();
            format.line_of(Bytes::from(&payload()[..]), &|_| None);
        }
    };
    // What 64 levels need is 180 KiB of stack.
    thread::Builder::new().stack_size(512 << 10).spawn(nest).unwrap().join().unwrap();
    let long = "1 + ".repeat(16_000) + "1";
    let format: Format = format("%d", &long).parse().unwrap();
    assert_eq!(format.line_of(Bytes::from(&payload()[..]), &|_| None), "16001");
}

/// A format that the crate does not understand prints names and values, and so does a record that is too short for its
/// format.
#[test]
fn lines_that_are_not_understood_name_each_field() {
    for (said, arguments) in [
        ("%pI6", "REC->words"),
        ("%p", "REC->words"),
        ("%d", "REC->unknown"),
        ("%d", "REC->pid.low"),
        ("%d", "REC->words.low"),
        ("%d", "&REC->words[1]"),
        ("%d", "1[2]"),
        ("%d", "f(1"),
        ("%d", "sizeof(1)"),
        ("%d", ""),
        ("%d", "1, 2"),
        ("%d", "1 +"),
        ("%d", "({ 1; })"),
        ("%d", "1 / (REC->pid + 5)"),
        ("%n", "1"),
        ("%d", "()1"),
        ("%d", "1 << 64"),
        ("%d", "09"),
        ("%d", "__builtin_expect(REC->pid)"),
        ("%s", "__print_symbolic(1, { 1 })"),
        ("%s", "__print_symbolic(1, { 1, \"one\" )"),
        // Not longer than what is evaluated: the depth is what is refused.
        ("%d", &format!("{}1{}", "(".repeat(30_000), ")".repeat(30_000))),
        ("%d", &format!("{}1", "-".repeat(60_000))),
        ("%d", &format!("{}1", "-".repeat(63))),
        ("%d", &format!("{}1", "1 ? 1 : ".repeat(7000))),
        ("%d", &"1 + ".repeat(15_000)),
    ] {
        let format: Format = format(said, arguments).parse().unwrap();
        let line = format.line_of(Bytes::from(&payload()[..]), &|_| None);
        assert_eq!(line, "pid=-5 big=18446744073709551615 comm=bash words=[1, 65534] name=far near=near", "{said}");
    }
    let format: Format = format("%d %llu", "REC->pid, REC->big").parse().unwrap();
    assert_eq!(format.line_of(Bytes::from(&payload()[..12]), &|_| None), "pid=-5 big=? comm=? words=? name=? near=?");
}

/// Every line has a bounded length. Text counts when it is produced, even if a precision hides it.
#[test]
fn lines_end_where_they_are_too_long() {
    let mut payload = payload();
    payload.truncate(44);
    payload[36..40].copy_from_slice(&(1000u32 << 16 | 44).to_ne_bytes());
    payload.extend([b'n'; 1000]);
    let most = 64 << 10;
    let length = |arguments: &str, said: &str| {
        let format: Format = format(said, arguments).parse().unwrap();
        assert!(format.prints_as_the_kernel(), "{said}");
        let line = format.line_of(Bytes::from(&payload[..]), &|_| None);
        assert!(line.capacity() <= 4 * most, "{said:.20}: {} bytes were made for it", line.capacity());
        line.len()
    };
    let masks = format!("__print_flags(1, \"{}\", {})", "x".repeat(4000), vec!["{0,\"\"}"; 4000].join(","));
    // The first is of the kernel's own length: a mask of 0 fits, as it does there.
    assert_eq!(length("__print_flags(1, \"|\", {0,\"none\"}, {0,\"none\"}, {1,\"one\"}, {0,\"no more\"})", "%s"), 13);
    assert_eq!(length(&masks, "%s"), most);
    assert_eq!(length(&masks, "%.3s-"), 3);
    // Each makes a text of 600 bytes or more, and a format of 64 KiB has thousands.
    for helper in ["__print_array(REC->name, 200, 1)", "__print_hex(REC->name, 200)", "REC->name"] {
        let count = (63 << 10) / (helper.len() + ",%.0s!".len());
        let hidden = length(&vec![helper; count].join(","), &"%.0s!".repeat(count));
        assert!((50..200).contains(&hidden) && count > 1500, "{helper}: {hidden} of {count}");
    }
    assert_eq!(length(&vec!["1"; 100].join(","), &"%04000d".repeat(100)), most);
    // Fields by name and value, which all have the same text.
    let fields = "	field:__data_loc char[] name;	offset:0;	size:4;	signed:0;
"
    .repeat(1000);
    let format: Format = format!(
        "name: x
ID: 1
format:
{fields}
print fmt: ?
"
    )
    .parse()
    .unwrap();
    let mut payload = (40_000u32 << 16 | 4).to_ne_bytes().to_vec();
    // Of several bytes each, one of which lies on the end.
    payload.extend("€".repeat(14_000).into_bytes());
    let line = format.line_of(Bytes::from(&payload[..]), &|_| None);
    assert!((most - 2..=most).contains(&line.len()), "{}", line.len());
    assert!(line.capacity() < 8 * most, "{} bytes were made for it", line.capacity());
}

/// A format with this many fields, all of which its line prints.
fn wide(fields: usize) -> String {
    let mut text = String::from("name: wide\nID: 1\nformat:\n");
    (0..fields).for_each(|n| writeln!(text, "\tfield:u8 field_{n};\toffset:0;\tsize:1;\tsigned:0;").unwrap());
    text.push_str("\nprint fmt: \"");
    (0..fields).for_each(|_| text.push_str("%.0s"));
    text.push('"');
    (0..fields).for_each(|n| write!(text, ", REC->field_{n} ? \"\" : \"\"").unwrap());
    text
}

/// Twice as many fields take twice as long, and not four times.
#[test]
fn a_format_is_parsed_in_time_that_grows_with_its_length() {
    let parse = |fields| count(|| wide(fields).parse::<Format>().unwrap());
    let (steps, format) = parse(1000);
    assert!(format.prints_as_the_kernel());
    assert_eq!(format.field("field_999").unwrap().offset(), 0);
    assert!(steps <= 2 * 1000, "{steps}");
    // Of two fields with one name the first counts, as in `Format::field`.
    let twice: Format =
        "name: x\nID: 1\nformat:\n\tfield:u8 a;\toffset:0;\tsize:1;\tsigned:0;\n\tfield:u8 a;\toffset:1;\tsize:1;\t\
                         signed:0;\n\nprint fmt: \"%d\", REC->a\n"
            .parse()
            .unwrap();
    assert_eq!(twice.line_of(Bytes::from(&[1, 2][..]), &|_| None), "1");
}

/// What is no format is refused, and where it is none is said; blank lines between its parts are no fault.
#[test]
fn what_is_not_understood_is_quoted_with_its_line() {
    let field = "\tfield:int a;\toffset:0;\tsize:4;\tsigned:1;\n";
    assert!(format!("name: x\n\nID: 1\n\nformat:\n{field}\n\n{field}").parse::<Format>().is_ok());
    for (text, says) in [
        (format!("name: x\nID: 1\nformat:\n{field}nonsense\n"), "line 5 of the format is not understood: \"nonsense\""),
        ("name: x\nnonsense\nID: 1\n".into(), "line 2 of the format is not understood: \"nonsense\""),
        ("name: x\nID: one\n".into(), "line 2 of the format is not understood: \"ID: one\", where a number should be"),
        (format!("ID: 1\nformat:\n{field}"), "line 4 of the format is not understood: \"\", where name: should be"),
        ("name: x\n".into(), "line 2 of the format is not understood: \"\", where ID: should be"),
    ] {
        let said = text.parse::<Format>().unwrap_err().to_string();
        assert!(said.contains(says), "{said}: not {says}");
    }
    for name in ["sched/x:switch", "sched:x/switch", "sched_switch"] {
        let error = Format::read(name).unwrap_err();
        assert!(
            error.kind() == ErrorKind::InvalidInput && error.to_string().contains("write it as category:name"),
            "{error}"
        );
    }
}

/// Strings are read from arrays of bytes only, wherever the record wraps.
#[test]
fn fields_of_a_record_have_text_or_none() {
    const RING: usize = 4096;
    // Of `enum perf_event_sample_format`.
    const TIME: u64 = 1 << 2;
    const RAW: u64 = 1 << 10;
    let format = format("%d", "REC->pid").parse::<Format>().unwrap();
    let kernel = sim::Kernel::with(&[0], RING, Layout::new(TIME | RAW, true, 0));
    let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
    let mut wraps = 0;
    for time in 0..2 * RING as u64 {
        // Of three lengths, so that the end of the ring comes at every place.
        let more = 8 * (time % 3) as usize;
        assert!(kernel.emit(0, time, &[payload(), vec![0; more]].concat()));
        merge.refresh(0);
        {
            let event = merge.next().unwrap();
            let record = event.record().unwrap();
            wraps += usize::from(!record.payload().unwrap().as_slices().1.is_empty());
            for (name, text) in [("comm", Some("bash")), ("pid", None), ("words", None), ("name", Some("far"))] {
                assert_eq!(format.field(name).unwrap().text(&record).as_deref(), text, "{name}, {record:?}");
            }
        }
        merge.advance_tails();
    }
    assert!(wraps > 0);
}

/// A format from elsewhere may have any length, and each printed line evaluates all of it.
#[test]
fn a_line_costs_no_more_than_a_format_of_64_kib() {
    let format: Format = wide(100_000).parse().unwrap();
    let (steps, line) = count(|| format.line_of(Bytes::from(&[1][..]), &|_| None));
    assert!(steps <= 64 << 10, "{steps}");
    assert!(!format.prints_as_the_kernel() && line.starts_with("field_0=1 field_1=1 "), "{line:.100}");
}

/// The error for a missing field is a readable message, for any number of fields and any length of the name.
#[test]
fn a_field_that_there_is_not_is_named_in_a_message_that_can_be_read() {
    let format: Format = wide(10_000).parse().unwrap();
    let said = format.field("field_10000").unwrap_err().to_string();
    assert!(said.contains("did you mean field_1000?") && said.contains("field_7, "), "{said:.200}");
    let (listed, others) = said.split_once("There are ").and_then(|(_, said)| said.split_once(" and ")).unwrap();
    let others: usize = others.split_once(" others").unwrap().0.parse().unwrap();
    assert!((900..1200).contains(&listed.len()), "{listed}");
    assert_eq!(listed.matches("field_").count() + others, 10_000, "{said:.2000}");
    let said = wide(2).parse::<Format>().unwrap().field("x").unwrap_err().to_string();
    assert!(said.contains("field_0, field_1") && !said.contains("others"), "{said}");
    for name in ["field_10000".to_owned(), "x".repeat(64 << 10), "\u{20ac}".repeat(64 << 10)] {
        let said = format.field(&name).unwrap_err().to_string();
        assert!(said.len() < 4 << 10, "{} bytes", said.len());
    }
}

/// The line of an event with one field of bytes, `b`, and one that points to them, `d`.
fn of_bytes(said: &str, arguments: &str, bytes: &[u8]) -> String {
    let (len, text) = (bytes.len(), format!("print fmt: \"{said}\", {arguments}"));
    let text = format!(
        "name: x\nID: 1\nformat:\n\tfield:__data_loc u8[] d;\toffset:0;\tsize:4;\tsigned:0;\n\tfield:u8 b[{len}];\t\
         offset:4;\tsize:{len};\tsigned:0;\n\n{text}\n"
    );
    let format: Format = text.parse().unwrap();
    assert!(format.prints_as_the_kernel(), "{text}");
    let payload = [&((len as u32) << 16 | 4).to_ne_bytes(), bytes].concat();
    line(&format, &payload)
}

fn line(format: &Format, payload: &[u8]) -> String {
    format.line_of(Bytes::from(payload), &|_| None)
}

/// Numbers have C's types: an operand without a sign makes the other one so, and results wrap.
#[test]
fn operators_convert_numbers_as_c_does() {
    for (said, arguments, says) in [
        ("%d%d%d%d", "5ULL >= -9ULL, -1 < 1u, -1 < 1, REC->pid < 0ull", "0010"),
        ("%lld %lld %lld", "(u32)1 - 2, (u8)255 + 1, (u16)1 - 2", "4294967295 256 -1"),
        ("%llx %llx %llx", "~0u, ~0, ~(u8)0", "ffffffff ffffffffffffffff ffffffffffffffff"),
        ("%llx %llx", "0xffffffff + 1, 4294967295 + 1", "0 100000000"),
        ("%lld %lld", "-REC->pid, -(1u)", "5 4294967295"),
        ("%llu %lld", "REC->big * 2, REC->big + 1", "18446744073709551614 0"),
        ("%llx %llx", "1 << 31, 1u << 31", "ffffffff80000000 80000000"),
        ("%d%d%d", "(bool)2, (bool)REC->pid, (_Bool)0", "110"),
        ("%d %d %d %d", "sizeof(u64), sizeof(unsigned int), sizeof(void *), sizeof(REC->comm)", "8 4 8 8"),
        ("%llu", "__get_dynamic_array_len(name) / sizeof(u16) - 3", "18446744073709551615"),
        ("%llu.%09u", "__print_ns_to_secs(12000000034ull), __print_ns_without_secs(12000000034ull)", "12.000000034"),
        ("%d%d %s", "true, false, NULL == 0 ? \\\"none\\\" : \\\"some\\\"", "10 none"),
        ("%d %d", "__get_str(name)[0], (REC)->words[1]", "102 65534"),
    ] {
        let format: Format = format(said, &arguments.replace("\\\"", "\"")).parse().unwrap();
        assert!(format.prints_as_the_kernel(), "{arguments}");
        assert_eq!(line(&format, &payload()), says, "{said} {arguments}");
    }
}

/// Addresses of the net, UUIDs, bytes and masks are printed from the record's bytes.
#[test]
fn letters_behind_p_say_what_the_bytes_are() {
    let v6 = |tail: &[u8]| {
        [&[0x20, 1, 0xd, 0xb8][..], &[0; 12]].concat()[..16 - tail.len()]
            .iter()
            .chain(tail)
            .copied()
            .collect::<Vec<_>>()
    };
    let uuid: Vec<u8> = (0xa0..0xb0).collect();
    let inet = [&2u16.to_ne_bytes()[..], &443u16.to_be_bytes(), &[10, 0, 0, 2], &[0; 8]].concat();
    let mut inet6 = [&10u16.to_ne_bytes()[..], &443u16.to_be_bytes(), &7u32.to_be_bytes(), &v6(&[1])].concat();
    inet6.extend(3u32.to_ne_bytes());
    let mask = [0xf000_0000_0000_0083u64.to_ne_bytes(), 1u64.to_ne_bytes()].concat();
    let four = [127, 0, 0, 1];
    for (said, bytes, says) in [
        ("%pI4 %pi4 %pI4l %pI4b", &four[..], "127.0.0.1 127.000.000.001 1.0.0.127 127.0.0.1"),
        ("[%12pI4] [%-12pI4]", &four, "[   127.0.0.1] [127.0.0.1   ]"),
        ("%pI6c %pI6", &v6(&[7]), "2001:db8::7 2001:0db8:0000:0000:0000:0000:0000:0007"),
        ("%pi6 %pI6c", &[[0; 15].as_slice(), &[1]].concat(), "00000000000000000000000000000001 ::1"),
        ("%pI6c", &[&[0; 10][..], &[255, 255, 10, 0, 0, 1]].concat(), "::ffff:10.0.0.1"),
        ("%pISpc %pIS", &inet, "10.0.0.2:443 10.0.0.2"),
        ("%pISpc %pISc", &inet6, "[2001:db8::1]:443 2001:db8::1"),
        ("%pISpsfc", &inet6, "[2001:db8::1]:443/7%3"),
        ("%pIS", &inet6, "2001:0db8:0000:0000:0000:0000:0000:0001"),
        ("%pISpc", &[1, 1], "(einval)"),
        (
            "%pM %pMF %pMR %pm",
            &[0, 0x1b, 2, 3, 4, 5],
            "00:1b:02:03:04:05 00-1b-02-03-04-05 05:04:03:02:1b:00 001b02030405",
        ),
        ("%pU %pUB", &uuid, "a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf A0A1A2A3-A4A5-A6A7-A8A9-AAABACADAEAF"),
        ("%pUl %pUL", &uuid, "a3a2a1a0-a5a4-a7a6-a8a9-aaabacadaeaf A3A2A1A0-A5A4-A7A6-A8A9-AAABACADAEAF"),
        ("%3ph %2phC %2phD %4phN", &uuid, "a0 a1 a2 a0:a1 a0-a1 a0a1a2a3"),
        ("%16pbl %80pbl", &mask, "0-1,7 0-1,7,60-64"),
        ("%16pb %36pb %128pb", &mask, "0083 0,00000083 00000000,00000001,f0000000,00000083"),
        ("%pa", &0x1234u64.to_ne_bytes(), "0x0000000000001234"),
    ] {
        let count = said.matches("%").count();
        for field in
            ["REC->b", "&REC->b", "(const void *)__get_dynamic_array(d)", "(struct sockaddr *)__get_sockaddr(d)"]
        {
            assert_eq!(of_bytes(said, &vec![field; count].join(", "), bytes), says, "{said} {field}");
        }
    }
    assert_eq!(of_bytes("%*phC", "2, REC->b", &uuid), "a0:a1");
    assert_eq!(of_bytes("%s", "__get_cpumask(d)", &mask), "00000000,00000001,f0000000,00000083");
    assert_eq!(of_bytes("%s", "__print_dynamic_array(d, sizeof(u16))", &[7, 7, 8, 8]), "{0x707,0x808}");
    // A record that has less than that does not fit its format.
    assert_eq!(of_bytes("%pI6", "REC->b", &four), "d=[127, 0, 0, 1] b=[127, 0, 0, 1]");
    // Scalars have an address too.
    let format: Format = format("%pI4h", "&REC->pid").parse().unwrap();
    assert_eq!(line(&format, &payload()), "255.255.255.251");
}

/// One name that only the kernel's source has leaves the rest of the line as it is, and is printed as C with the values
/// of fields.
#[test]
fn names_that_only_the_kernel_has_do_not_give_up_the_line() {
    const CLASS: &str = "__print_symbolic(REC->words[0], { CLASS_NONE, \"none\" }, { 1, \"one\" })";
    for (said, arguments, says) in [
        ("%s", CLASS, "one"),
        ("%s %d", "__print_symbolic(2, { NO, \"no\" }, { (1 << NO), \"no\" }, { 1, \"one\" }), REC->pid", "0x2 -5"),
        ("%s", "__print_flags(REC->words[0] | 6, \"|\", { DIRTY, \"D\" }, { 2, \"two\" }, { f(1), \"f\" })", "two|0x5"),
        ("%u of %s", "jiffies_to_msecs(REC->pid), __get_str(name)", "jiffies_to_msecs(-5) of far"),
        ("%p %s", "(((struct page *)vmemmap_base) + (REC->words[1])), f()", "(vmemmap_base + 65534) f()"),
        ("%p", "REC->pid != -5 ? ((struct page *)vmemmap_base) : ((void *)0)", "0x0"),
        ("%d %s", "!FLAG, REC->pid & FLAG ? \"yes\" : \"no\"", "!FLAG ((-5 & FLAG) ? yes : no)"),
        ("%ps", "(void *)((unsigned long)(_stext) + REC->words[0])", "(_stext + 1)"),
        ("%s|%5d|", "f(REC->pid, \"a\", REC->comm), NAME", "f(-5, a, bash)| NAME|"),
        ("%d", "(unknown_t)REC->pid", "-5"),
        ("%d%d", "0 && NAME, 1 || NAME", "01"),
        ("%pd", "(void *)REC->big", "0xffffffffffffffff"),
    ] {
        let format: Format = format(said, arguments).parse().unwrap();
        assert!(!format.prints_as_the_kernel(), "{arguments}");
        assert_eq!(line(&format, &payload()), says, "{said} {arguments}");
    }
}

/// A null pointer ends a list of names; an entry may have a comma more.
#[test]
fn lists_of_names_end_as_in_the_kernel() {
    for (arguments, says) in [
        ("__print_symbolic(REC->pid, { 7, \"seven\" }, { -5, \"TX\" }, { -1, ((void *)0) })", "TX"),
        ("__print_symbolic(REC->pid, { 7, \"seven\", }, { -1, NULL }, { -5, \"TX\" })", "0xfffffffffffffffb"),
        ("__print_symbolic(REC->words[0], { })", "0x1"),
        ("__print_flags(REC->words[0], NULL, { 1, \"a\" }, { 0, ((void *)0) })", "a"),
    ] {
        let format: Format = format("%s", arguments).parse().unwrap();
        assert!(format.prints_as_the_kernel(), "{arguments}");
        assert_eq!(line(&format, &payload()), says, "{arguments}");
    }
}

/// `char` has no sign since Linux 6.2. A field of this type says what it had before.
#[test]
fn plain_char_has_the_sign_that_a_field_of_it_has() {
    let text = format("%d %d", "(char)200, (signed char)200");
    assert_eq!(line(&text.parse().unwrap(), &payload()), "200 -56");
    let old = text.replace("size:8;\tsigned:0;\n\tfield:u16", "size:8;\tsigned:1;\n\tfield:u16");
    assert_eq!(line(&old.parse().unwrap(), &payload()), "-56 -56");
}

/// Functions and strings of the kernel have names if the caller knows them; addresses are hexadecimal everywhere.
#[test]
fn addresses_in_the_kernel_have_the_names_that_the_caller_knows() {
    let look = |address: u64| match address {
        255 => Some("do_exit+0x1a/0xb10".to_owned()),
        256 => Some("init+0x0/0x40 [ext4]".to_owned()),
        257 => Some("rcu_sched".to_owned()),
        _ => None,
    };
    for (said, arguments, says) in [
        ("%pS %pF %pB %pSR", "255, 255, 255, 255", &["do_exit+0x1a/0xb10"; 4].join(" ")[..]),
        ("%ps|%10pf|%-10ps|", "255, 255, 255", "do_exit|   do_exit|do_exit   |"),
        ("%ps %pS", "256, 256", "init [ext4] init+0x0/0x40 [ext4]"),
        ("%s %.3s", "257, (char *)257", "rcu_sched rcu"),
        ("%pS %ps %s %p", "1, 2, 3, 255", "0x1 0x2 0x3 0xff"),
    ] {
        let format: Format = format(said, arguments).parse().unwrap();
        assert_eq!(format.line_of(Bytes::from(&payload()[..]), &look), says, "{said}");
    }
    let text = format("%d", "({ 1; })");
    for (of, says) in [("void * big", "0xffffffffffffffff"), ("u64 big[1]", "[18446744073709551615]")] {
        let line = line(&text.replace("u64 big", of).parse().unwrap(), &payload());
        assert!(line.starts_with(&format!("pid=-5 big={says} comm=bash ")), "{line}");
    }
}
