//! What examples say with `--json`: one object in one line. A crate for JSON would be a fifth of what an example
//! compiles.

use std::fmt::{Display, Formatter, Result};

/// JSON as text.
#[derive(Debug, Clone)]
pub struct Json(String);

impl Display for Json {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(&self.0)
    }
}

impl Json {
    /// An object with these members, in this order. See [`json!`](crate::json!).
    pub fn object(members: &[(&str, Json)]) -> Self {
        let members = members.iter().map(|(name, value)| format!("{}:{value}", name.json()));
        Self(format!("{{{}}}", members.collect::<Vec<_>>().join(",")))
    }
}

/// An object: `json!({ "name": value, … })`. Values are [`Value`]s.
#[macro_export]
macro_rules! json {
    ({ $($name:literal: $value:expr),* $(,)? }) => {
        $crate::json::Json::object(&[$(($name, $crate::json::Value::json(&$value))),*])
    };
}

/// What can be said as JSON.
pub trait Value {
    /// Says it.
    fn json(&self) -> Json;
}

impl Value for Json {
    fn json(&self) -> Json {
        self.clone()
    }
}

impl Value for str {
    fn json(&self) -> Json {
        let mut text = String::from('"');
        for letter in self.chars() {
            match letter {
                '"' | '\\' => text.extend(['\\', letter]),
                '\0'..' ' => text.push_str(&format!("\\u{:04x}", u32::from(letter))),
                _ => text.push(letter),
            }
        }
        Json(text + "\"")
    }
}

impl Value for String {
    fn json(&self) -> Json {
        self.as_str().json()
    }
}

impl Value for f64 {
    fn json(&self) -> Json {
        // What is no number has no name in JSON.
        if self.is_finite() { Json(self.to_string()) } else { None::<f64>.json() }
    }
}

macro_rules! as_displayed {
    ($($type:ty)*) => {
        $(impl Value for $type {
            fn json(&self) -> Json {
                Json(self.to_string())
            }
        })*
    };
}

as_displayed!(bool i32 i64 u16 u32 u64 usize);

impl<T: Value> Value for Option<T> {
    fn json(&self) -> Json {
        self.as_ref().map_or_else(|| Json("null".into()), Value::json)
    }
}

impl<T: Value> Value for [T] {
    fn json(&self) -> Json {
        let items: Vec<String> = self.iter().map(|item| item.json().0).collect();
        Json(format!("[{}]", items.join(",")))
    }
}

impl<T: Value, const N: usize> Value for [T; N] {
    fn json(&self) -> Json {
        self.as_slice().json()
    }
}

impl<T: Value> Value for Vec<T> {
    fn json(&self) -> Json {
        self.as_slice().json()
    }
}

impl<T: Value + ?Sized> Value for &T {
    fn json(&self) -> Json {
        (**self).json()
    }
}

#[test]
fn an_object_is_json() {
    let inner = json!({ "half": 0.5, "none": None::<u32>, "nan": f64::NAN });
    let object =
        json!({ "text": "a \"b\" \\ \n é", "number": u64::MAX, "below": -1, "yes": true, "list": vec![inner] });
    let said = r#"{"text":"a \"b\" \\ \u000a é","number":18446744073709551615,"below":-1,"yes":true,"#;
    assert_eq!(object.to_string(), format!("{said}{}", r#""list":[{"half":0.5,"none":null,"nan":null}]}"#));
}
