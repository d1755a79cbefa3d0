//! Values as few bytes, for what has to be kept of each event. Only this program reads them, while it runs.

use std::sync::Arc;

pub trait Packed: Sized {
    fn pack(&self, out: &mut Vec<u8>);
    /// What [`Packed::pack`] wrote, which begins here. Its bytes are taken away.
    fn unpack(bytes: &mut &[u8]) -> Self;
}

/// Seven bits a byte, the lowest first. All but the last byte have the highest bit.
impl Packed for u64 {
    fn pack(&self, out: &mut Vec<u8>) {
        let mut number = *self;
        while number > 0x7f {
            out.push(number as u8 | 0x80);
            number >>= 7;
        }
        out.push(number as u8);
    }

    fn unpack(bytes: &mut &[u8]) -> Self {
        let (mut number, mut shift) = (0, 0);
        while let Some((byte, rest)) = bytes.split_first() {
            *bytes = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if *byte < 0x80 {
                break;
            }
            shift += 7;
        }
        number
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Packed for $number {
            fn pack(&self, out: &mut Vec<u8>) {
                (*self as u64).pack(out);
            }

            fn unpack(bytes: &mut &[u8]) -> Self {
                u64::unpack(bytes) as $number
            }
        }
    )*};
}
numbers!(u8, u32, usize, i64);

impl Packed for bool {
    fn pack(&self, out: &mut Vec<u8>) {
        u8::from(*self).pack(out);
    }

    fn unpack(bytes: &mut &[u8]) -> Self {
        u8::unpack(bytes) != 0
    }
}

impl<T: Packed> Packed for Option<T> {
    fn pack(&self, out: &mut Vec<u8>) {
        self.is_some().pack(out);
        self.iter().for_each(|value| value.pack(out));
    }

    fn unpack(bytes: &mut &[u8]) -> Self {
        bool::unpack(bytes).then(|| T::unpack(bytes))
    }
}

impl<A: Packed, B: Packed> Packed for (A, B) {
    fn pack(&self, out: &mut Vec<u8>) {
        self.0.pack(out);
        self.1.pack(out);
    }

    fn unpack(bytes: &mut &[u8]) -> Self {
        (A::unpack(bytes), B::unpack(bytes))
    }
}

impl<T: Packed, const N: usize> Packed for [T; N] {
    fn pack(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|value| value.pack(out));
    }

    fn unpack(bytes: &mut &[u8]) -> Self {
        std::array::from_fn(|_| T::unpack(bytes))
    }
}

impl Packed for String {
    fn pack(&self, out: &mut Vec<u8>) {
        self.len().pack(out);
        out.extend(self.as_bytes());
    }

    fn unpack(bytes: &mut &[u8]) -> Self {
        let len = usize::unpack(bytes);
        let (text, rest) = bytes.split_at(len.min(bytes.len()));
        *bytes = rest;
        String::from_utf8_lossy(text).into_owned()
    }
}

impl Packed for Arc<str> {
    fn pack(&self, out: &mut Vec<u8>) {
        self.to_string().pack(out);
    }

    fn unpack(bytes: &mut &[u8]) -> Self {
        String::unpack(bytes).into()
    }
}

impl<T: Packed> Packed for Vec<T> {
    fn pack(&self, out: &mut Vec<u8>) {
        self.len().pack(out);
        self.iter().for_each(|value| value.pack(out));
    }

    fn unpack(bytes: &mut &[u8]) -> Self {
        (0..usize::unpack(bytes)).map(|_| T::unpack(bytes)).collect()
    }
}

/// A structure by its fields, or an enumeration without data by its names.
macro_rules! packed {
    ($type:ident { $($field:ident),* }) => {
        impl $crate::packed::Packed for $type {
            fn pack(&self, out: &mut Vec<u8>) {
                $($crate::packed::Packed::pack(&self.$field, out);)*
            }

            fn unpack(bytes: &mut &[u8]) -> Self {
                $(let $field = $crate::packed::Packed::unpack(bytes);)*
                Self { $($field),* }
            }
        }
    };
    ($type:ident: $first:ident $(, $name:ident)*) => {
        impl $crate::packed::Packed for $type {
            fn pack(&self, out: &mut Vec<u8>) {
                (*self as u8).pack(out);
            }

            fn unpack(bytes: &mut &[u8]) -> Self {
                let number = u8::unpack(bytes);
                $(if number == Self::$name as u8 {
                    return Self::$name;
                })*
                Self::$first
            }
        }
    };
}
pub(crate) use packed;

#[cfg(test)]
mod tests {
    use super::Packed;

    #[test]
    fn what_was_packed_is_unpacked() {
        let values = [(0, None), (127, Some("größer".to_owned())), (128, None), (u64::MAX, Some(String::new()))];
        let mut bytes = Vec::new();
        values.to_vec().pack(&mut bytes);
        (-1i64).pack(&mut bytes);
        let mut rest = &bytes[..];
        assert_eq!((Vec::unpack(&mut rest), i64::unpack(&mut rest), rest), (values.to_vec(), -1, &[][..]));
    }
}
