//! The expressions of `print fmt`: C over a record's fields, and the kernel's helpers.

use crate::field::Field;
use crate::steps::step;
use crate::tokens::Token;
use std::collections::HashMap;

/// The expression of an argument. Fields are named by their index among the event's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expression {
    Number(i128),
    Text(String),
    Field(usize),
    /// An element of an array.
    Element(usize, Box<Expression>),
    /// The length of a dynamic array in bytes.
    Length(usize),
    Unary(&'static str, Box<Expression>),
    /// Operators of equal precedence, from left to right. In one list, so that a long chain is no deep tree.
    Chain(Box<Expression>, Vec<(&'static str, Expression)>),
    Choice(Box<[Expression; 3]>),
    Cast(Cast, Box<Expression>),
    Flags(Box<Expression>, String, Vec<(i128, String)>),
    Symbol(Box<Expression>, Vec<(i128, String)>),
    /// Bytes in hexadecimal: which, how many, and the separator.
    Hex(Box<[Expression; 2]>, &'static str),
    /// Numbers: the array, how many, and the bytes of each.
    Array(Box<[Expression; 3]>),
}

/// The width to which a cast cuts a number. Pointers and 64 bits keep all bits and only change the sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cast {
    pub(super) bits: u32,
    pub(super) signed: bool,
}

/// Operators by precedence, the lowest first.
const LEVELS: [&[&str]; 10] = [
    &["||"],
    &["&&"],
    &["|"],
    &["^"],
    &["&"],
    &["==", "!="],
    &["<", ">", "<=", ">="],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "/", "%"],
];

/// The greatest depth of nested expressions. The kernel's are much less deep. A text from another machine must not
/// overflow the stack.
const DEEPEST: u32 = 64;

/// Parses expressions from tokens. Each function gives `None` for anything it does not understand.
pub(super) struct Parser<'t> {
    tokens: &'t [Token<'t>],
    /// The index of each field, by its name. A text from another machine may have many fields, and name each of them
    /// many times.
    fields: HashMap<&'t str, usize>,
    deep: u32,
}

impl<'t> Parser<'t> {
    pub(super) fn new(tokens: &'t [Token<'t>], fields: &'t [Field]) -> Self {
        // Of two fields with one name, the first.
        let fields = fields.iter().enumerate().rev().map(|(place, field)| (field.name(), place)).collect();
        Self { tokens, fields, deep: 0 }
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.tokens.is_empty()
    }

    fn next(&mut self) -> Option<&'t Token<'t>> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(first)
    }

    fn is_next(&self, sign: &str) -> bool {
        matches!(self.tokens.first(), Some(Token::Sign(found)) if *found == sign)
    }

    /// Takes a sign if it is the next token.
    pub(super) fn takes(&mut self, sign: &str) -> bool {
        let takes = self.is_next(sign);
        if takes {
            self.tokens = &self.tokens[1..];
        }
        takes
    }

    fn must(&mut self, sign: &str) -> Option<()> {
        self.takes(sign).then_some(())
    }

    fn name(&mut self) -> Option<&'t str> {
        match self.next()? {
            Token::Name(name) => Some(name),
            _ => None,
        }
    }

    /// Adjacent texts are one text.
    pub(super) fn text(&mut self) -> Option<String> {
        let Token::Text(first) = self.next()? else { return None };
        let mut text = first.clone();
        while let Some(Token::Text(more)) = self.tokens.first() {
            text.push_str(more);
            self.tokens = &self.tokens[1..];
        }
        Some(text)
    }

    pub(super) fn expression(&mut self) -> Option<Expression> {
        // `unary` comes next, and checks it.
        self.deep += 1;
        let condition = self.binary(0)?;
        let whole = if self.takes("?") {
            let then = self.expression()?;
            self.must(":")?;
            Expression::Choice(Box::new([condition, then, self.expression()?]))
        } else {
            condition
        };
        // Not lowered where something fails: then nothing more is parsed.
        self.deep -= 1;
        Some(whole)
    }

    fn binary(&mut self, level: usize) -> Option<Expression> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let first = self.binary(level + 1)?;
        let mut others = Vec::new();
        while let Some(operator) = operators.iter().find(|operator| self.is_next(operator)) {
            self.next();
            others.push((*operator, self.binary(level + 1)?));
        }
        Some(if others.is_empty() { first } else { Expression::Chain(Box::new(first), others) })
    }

    fn unary(&mut self) -> Option<Expression> {
        self.deep += 1;
        if self.deep > DEEPEST {
            return None;
        }
        let operator = ["-", "+", "!", "~"].into_iter().find(|operator| self.is_next(operator));
        let found = if let Some(operator) = operator {
            self.next();
            Expression::Unary(operator, Box::new(self.unary()?))
        } else if let Some(cast) = self.cast() {
            Expression::Cast(cast, Box::new(self.unary()?))
        } else {
            self.primary()?
        };
        self.deep -= 1;
        Some(found)
    }

    /// Takes `(unsigned long)`, if that comes next.
    fn cast(&mut self) -> Option<Cast> {
        let before = self.tokens;
        let found = self.type_in_parentheses();
        // It may be an expression in parentheses.
        if found.is_none() {
            self.tokens = before;
        }
        found
    }

    fn type_in_parentheses(&mut self) -> Option<Cast> {
        self.must("(")?;
        let mut words = Vec::new();
        while let Some(Token::Name(word)) = self.tokens.first() {
            words.push(*word);
            self.next();
        }
        let pointer = self.takes("*");
        while self.takes("*") {}
        self.must(")")?;
        if pointer {
            return Some(Cast { bits: 64, signed: false });
        }
        words.retain(|word| !matches!(*word, "const" | "volatile" | "__force"));
        let signed = !words.contains(&"unsigned");
        let bits = |bits, signed| Some(Cast { bits, signed });
        let base = words.iter().copied().filter(|word| !matches!(*word, "unsigned" | "signed" | "int"));
        match *base.collect::<Vec<_>>() {
            [] if !words.is_empty() => bits(32, signed),
            ["char"] => bits(8, signed),
            ["short"] => bits(16, signed),
            ["long"] | ["long", "long"] => bits(64, signed),
            ["u8" | "__u8" | "uint8_t"] => bits(8, false),
            ["u16" | "__u16" | "uint16_t" | "umode_t"] => bits(16, false),
            ["u32" | "__u32" | "uint32_t" | "uint" | "gfp_t" | "dev_t"] => bits(32, false),
            ["u64" | "__u64" | "uint64_t" | "size_t" | "uintptr_t" | "sector_t"] => bits(64, false),
            ["s8" | "__s8" | "int8_t"] => bits(8, true),
            ["s16" | "__s16" | "int16_t"] => bits(16, true),
            ["s32" | "__s32" | "int32_t" | "pid_t"] => bits(32, true),
            ["s64" | "__s64" | "int64_t" | "loff_t" | "ssize_t"] => bits(64, true),
            _ => None,
        }
    }

    fn primary(&mut self) -> Option<Expression> {
        match self.tokens.first()? {
            Token::Number(number) => {
                self.next();
                Some(Expression::Number(*number))
            }
            Token::Text(_) => self.text().map(Expression::Text),
            Token::Sign(_) => {
                self.must("(")?;
                let inside = self.expression()?;
                self.must(")")?;
                Some(inside)
            }
            Token::Name("REC") => {
                self.next();
                self.must("->")?;
                let field = self.field()?;
                if !self.takes("[") {
                    return Some(Expression::Field(field));
                }
                let index = self.expression()?;
                self.must("]")?;
                Some(Expression::Element(field, Box::new(index)))
            }
            // A name without parentheses is one that only the kernel's source has.
            Token::Name(helper) => {
                self.next();
                self.must("(")?;
                let found = self.helper(helper)?;
                self.must(")")?;
                Some(found)
            }
        }
    }

    fn field(&mut self) -> Option<usize> {
        let name = self.name()?;
        step();
        self.fields.get(name).copied()
    }

    /// The arguments of a helper, whose macros are in `include/trace/stages/stage3_trace_output.h`.
    fn helper(&mut self, name: &str) -> Option<Expression> {
        match name {
            "__get_str" | "__get_rel_str" | "__get_dynamic_array" | "__get_rel_dynamic_array" => {
                self.field().map(Expression::Field)
            }
            "__get_dynamic_array_len" | "__get_rel_dynamic_array_len" => self.field().map(Expression::Length),
            "__print_flags" | "__print_flags_u64" => {
                let flags = self.argument()?;
                let between = self.text()?;
                Some(Expression::Flags(flags, between, self.names()?))
            }
            "__print_symbolic" | "__print_symbolic_u64" => Some(Expression::Symbol(self.argument()?, self.names()?)),
            "__print_hex" | "__print_hex_str" => {
                let between = if name == "__print_hex" { " " } else { "" };
                Some(Expression::Hex(Box::new([*self.argument()?, self.expression()?]), between))
            }
            "__print_array" => {
                let (array, count) = (*self.argument()?, *self.argument()?);
                Some(Expression::Array(Box::new([array, count, self.expression()?])))
            }
            "__builtin_expect" => {
                let value = *self.argument()?;
                // It only tells the compiler which value is likely.
                self.expression()?;
                Some(value)
            }
            _ => None,
        }
    }

    /// An argument that is not the last.
    fn argument(&mut self) -> Option<Box<Expression>> {
        let argument = self.expression()?;
        self.takes(",").then(|| Box::new(argument))
    }

    /// Names of numbers: `{ 1, "one" }, { 2, "two" }`.
    fn names(&mut self) -> Option<Vec<(i128, String)>> {
        let mut names = Vec::new();
        // The previous one may have taken the comma.
        while self.takes(",") || self.is_next("{") {
            self.must("{")?;
            let number = self.expression()?.constant()?;
            self.must(",")?;
            names.push((number, self.text()?));
            self.must("}")?;
        }
        Some(names)
    }
}
