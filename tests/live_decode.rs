//! What live records say, beside what the kernel says elsewhere: in tracefs, in `/proc`, in its own words.

use perfweave::decode::Format;
use perfweave_support::{kernel, tracefs};
use std::fs;

/// Each format that this kernel has is parsed: as many fields as it lists, each where it says.
#[test]
fn every_format_of_this_kernel_is_understood() {
    let Some(root) = kernel("find tracefs", tracefs::find_or_mount()) else { return };
    let list = fs::read_to_string(root.join("available_events"));
    let Some(list) = kernel("list tracepoints", list) else { return };
    let (mut formats, mut printed) = (0, 0);
    for name in list.lines() {
        let path = root.join("events").join(name.replace(':', "/")).join("format");
        // Those of ftrace itself have none, and others may go away.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let format: Format = text.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
        let listed: Vec<_> = text.lines().filter(|line| line.contains("field:")).collect();
        assert_eq!(format.fields().len(), listed.len(), "{name}");
        for (field, line) in format.fields().iter().zip(listed) {
            let place = format!(
                "\toffset:{};\tsize:{};\tsigned:{};",
                field.offset(),
                field.size(),
                u8::from(field.is_signed())
            );
            assert!(line.contains(&place) && line.contains(field.name()), "{name}: {line}: {field:?}");
        }
        formats += 1;
        printed += usize::from(format.prints_as_the_kernel());
    }
    println!("{formats} formats, {printed} of them printed as the kernel does");
    assert!(formats > 0);
}
