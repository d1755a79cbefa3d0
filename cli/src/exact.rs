//! Strings of records in JSON. Processes choose any bytes for their names and paths, only the beginning of a long string
//! is copied, and JSON has UTF-8 alone.

use serde_json::{Map, Value};

/// What the strings of an object do not say of themselves. Each is text, with U+FFFD for what is no UTF-8. Beside them,
/// under the same keys, `raw` has the bytes of those that are no UTF-8, as hexadecimal digits, and `cut` says `true` of
/// those that go on. Nothing is there of all others, that is, of nearly every string.
#[derive(Debug, Default)]
pub struct Exact {
    raw: Map<String, Value>,
    cut: Map<String, Value>,
}

impl Exact {
    /// A string for this place in the object. `goes_on`: whether these are only its first bytes.
    pub fn string(&mut self, place: &[&str], bytes: &[u8], goes_on: bool) -> Value {
        if goes_on {
            put(&mut self.cut, place, true.into());
        }
        match str::from_utf8(bytes) {
            Ok(text) => text.into(),
            Err(_) => {
                put(&mut self.raw, place, hex(bytes).into());
                String::from_utf8_lossy(bytes).into()
            }
        }
    }

    /// Adds what there is to the object.
    pub fn put(self, object: &mut Map<String, Value>) {
        for (key, of_strings) in [("raw", self.raw), ("cut", self.cut)] {
            if of_strings.is_empty() {
                continue;
            }
            if let Value::Object(all) = object.entry(key).or_insert_with(|| Map::new().into()) {
                all.extend(of_strings);
            }
        }
    }
}

/// Puts a value at a place, as deep as its keys.
fn put(object: &mut Map<String, Value>, place: &[&str], value: Value) {
    let Some((key, rest)) = place.split_first() else { return };
    if rest.is_empty() {
        object.insert((*key).into(), value);
    } else if let Value::Object(inner) = object.entry(*key).or_insert_with(|| Map::new().into()) {
        put(inner, rest, value);
    }
}

/// Two digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::Exact;
    use serde_json::{Map, Value, json};

    /// The bytes of a string as an object has them, and whether they are all.
    fn read(object: &Value, place: &str) -> (Vec<u8>, bool) {
        let at = |kind: &str| object.pointer(&format!("/{kind}{place}"));
        let bytes = match at("raw").map(|digits| digits.as_str().unwrap()) {
            None => object.pointer(place).unwrap().as_str().unwrap().as_bytes().to_vec(),
            Some(digits) => {
                let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
                (0..digits.len()).step_by(2).map(byte).collect()
            }
        };
        (bytes, at("cut").is_none())
    }

    /// Any bytes, whole or not, are read back as they were, and as other ones never.
    #[test]
    fn strings_are_read_back_as_they_were() {
        let strings: [(&[u8], bool); 9] = [
            (b"plain", false),
            (b"cut", true),
            (b"cut...", false),
            (b"", true),
            (b"\xff \"quoted\" \\xff \\u00ff", false),
            ("\u{fffd}".as_bytes(), false),
            (b"\xff", false),
            // The first half of a letter.
            (b"Gr\xc3", true),
            (b"\0\x01\x7f\x80", false),
        ];
        for (bytes, goes_on) in strings {
            let (mut exact, mut object) = (Exact::default(), Map::new());
            object.insert("comm".into(), exact.string(&["comm"], bytes, goes_on));
            object.insert(
                "args".into(),
                json!({ "path": exact.string(&["args", "path"], bytes, goes_on), "other": "..." }),
            );
            exact.put(&mut object);
            let is_noted = ["raw", "cut"].map(|key| object.contains_key(key));
            assert_eq!(is_noted, [str::from_utf8(bytes).is_err(), goes_on], "an ordinary string has nothing beside it");
            let object: Value = serde_json::from_str(&Value::from(object).to_string()).unwrap();
            for place in ["/comm", "/args/path"] {
                assert_eq!(read(&object, place), (bytes.to_vec(), !goes_on), "{object}");
            }
            assert_eq!(read(&object, "/args/other"), (b"...".to_vec(), true), "{object}");
        }
    }

    /// What several have noted of one object is one.
    #[test]
    fn notes_of_one_object_are_together() {
        let mut object = Map::new();
        for place in [&["comm"][..], &["args", "path"]] {
            let mut exact = Exact::default();
            exact.string(place, b"\xff", true);
            exact.put(&mut object);
        }
        let expected = json!({ "raw": { "comm": "ff", "args": { "path": "ff" } }, "cut": { "comm": true, "args": { "path": true } } });
        assert_eq!(Value::from(object), expected);
    }
}
