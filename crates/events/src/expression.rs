//! The expressions of `print fmt`: C over a record's fields, and the kernel's helpers.

use crate::field::Field;
use crate::steps::step;
use crate::tokens::Token;
use crate::types::{INT, LONG, Number, Type, UNSIGNED_LONG};
use std::collections::HashMap;

/// The expression of an argument. Fields are named by their index among the event's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expression {
    Number(Number),
    Text(String),
    Field(usize),
    /// The bytes of a field, which C gives the address of.
    Address(usize),
    /// An element of an array.
    Element(usize, Box<Expression>),
    /// The length of a dynamic array in bytes.
    Length(usize),
    Unary(&'static str, Box<Expression>),
    /// Operators of equal precedence, from left to right. In one list, so that a long chain is no deep tree.
    Chain(Box<Expression>, Vec<(&'static str, Expression)>),
    Choice(Box<[Expression; 3]>),
    Cast(Type, Box<Expression>),
    Flags(Box<Expression>, String, Vec<(i128, String)>),
    Symbol(Box<Expression>, Vec<(i128, String)>),
    /// Bytes in hexadecimal: which, how many, and the separator.
    Hex(Box<[Expression; 2]>, &'static str),
    /// Numbers: the array, how many, and the bytes of each.
    Array(Box<[Expression; 3]>),
    /// The bits of a mask of CPUs.
    Mask(usize),
    /// A name that only the kernel's source has. An expression with one is printed as C, with the values of fields.
    Unknown(String),
    /// The same of a function, with its arguments.
    Call(String, Vec<Expression>),
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
    sizes: Vec<usize>,
    /// The type of plain `char`.
    char: Type,
    deep: u32,
    /// Whether everything was understood so far.
    pub(super) is_whole: bool,
}

impl<'t> Parser<'t> {
    pub(super) fn new(tokens: &'t [Token<'t>], fields: &'t [Field]) -> Self {
        // Of kernels before 6.2 it depends on the machine. Fields of this type tell; later, there is no sign.
        let signed = fields.iter().any(|field| field.type_name() == "char" && field.is_signed());
        let char = Type { bits: 8, signed };
        let sizes = fields.iter().map(Field::size).collect();
        // Of two fields with one name, the first.
        let fields = fields.iter().enumerate().rev().map(|(place, field)| (field.name(), place)).collect();
        Self { tokens, fields, sizes, char, deep: 0, is_whole: true }
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
        } else if self.takes("&") {
            match self.unary()? {
                Expression::Field(field) => Expression::Address(field),
                _ => return None,
            }
        } else if let Some(cast) = self.cast() {
            Expression::Cast(cast, Box::new(self.unary()?))
        } else {
            self.primary()?
        };
        self.deep -= 1;
        Some(found)
    }

    /// Takes `(unsigned long)`, if that comes next.
    fn cast(&mut self) -> Option<Type> {
        let before = self.tokens;
        let found = self.type_in_parentheses();
        // It may be an expression in parentheses.
        if found.is_none() {
            self.tokens = before;
        }
        found
    }

    fn type_in_parentheses(&mut self) -> Option<Type> {
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
            return Some(UNSIGNED_LONG);
        }
        let known = Type::named(&words, self.char);
        // A type that only the kernel's source has: the number stays as it is.
        if known.is_none() && !words.is_empty() && matches!(self.tokens.first(), Some(Token::Name(_))) {
            self.is_whole = false;
            return Some(LONG);
        }
        known
    }

    fn primary(&mut self) -> Option<Expression> {
        let found = self.atom()?;
        if !self.takes("[") {
            return Some(found);
        }
        let Expression::Field(field) = found else { return None };
        let index = self.expression()?;
        self.must("]")?;
        Some(Expression::Element(field, Box::new(index)))
    }

    fn atom(&mut self) -> Option<Expression> {
        match *self.tokens.first()? {
            Token::Number(number) => {
                self.next();
                Some(Expression::Number(number))
            }
            Token::Text(_) => self.text().map(Expression::Text),
            Token::Sign(_) => {
                self.must("(")?;
                // It is a macro's argument.
                if let [Token::Name("REC"), Token::Sign(")"), rest @ ..] = self.tokens {
                    self.tokens = rest;
                    return self.named("REC");
                }
                let inside = self.expression()?;
                self.must(")")?;
                Some(inside)
            }
            Token::Name(name) => {
                self.next();
                self.named(name)
            }
        }
    }

    /// What begins with a name.
    fn named(&mut self, name: &str) -> Option<Expression> {
        match name {
            "REC" => {
                self.must("->")?;
                return self.field().map(Expression::Field);
            }
            "true" | "false" | "NULL" => return Some(Expression::Number(INT.of((name == "true").into()))),
            "sizeof" => return self.size().map(|bytes| Expression::Number(UNSIGNED_LONG.of(bytes))),
            _ => {}
        }
        if !self.takes("(") {
            self.is_whole = false;
            return Some(Expression::Unknown(name.to_owned()));
        }
        let found = self.helper(name)?;
        self.must(")")?;
        Some(found)
    }

    fn field(&mut self) -> Option<usize> {
        let name = self.name()?;
        step();
        self.fields.get(name).copied()
    }

    /// The bytes of a type or a field in parentheses.
    fn size(&mut self) -> Option<i128> {
        if let Some(of) = self.cast() {
            return Some(of.bits.div_ceil(8).into());
        }
        self.must("(")?;
        let Expression::Field(field) = self.expression()? else { return None };
        self.must(")")?;
        Some(self.sizes[field] as i128)
    }

    /// The arguments of a helper, whose macros are in `include/trace/stages/stage3_trace_output.h`.
    fn helper(&mut self, name: &str) -> Option<Expression> {
        // `__get_rel_str` and others: they differ in where the field says that its data lies.
        match &*name.replacen("__get_rel_", "__get_", 1) {
            "__get_str" | "__get_dynamic_array" | "__get_sockaddr" => self.field().map(Expression::Field),
            "__get_dynamic_array_len" => self.field().map(Expression::Length),
            "__get_bitmask" | "__get_cpumask" => self.field().map(Expression::Mask),
            "__print_flags" | "__print_flags_u64" => {
                let flags = self.argument()?;
                let between = self.text_or_none()?.unwrap_or_default();
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
            "__print_dynamic_array" => {
                let field = self.field()?;
                self.must(",")?;
                let width = self.expression()?;
                let count = Expression::Chain(Box::new(Expression::Length(field)), vec![("/", width.clone())]);
                Some(Expression::Array(Box::new([Expression::Field(field), count, width])))
            }
            "__print_ns_to_secs" | "__print_ns_without_secs" => {
                let operator = if name == "__print_ns_to_secs" { "/" } else { "%" };
                let second = Expression::Number(UNSIGNED_LONG.of(1_000_000_000));
                Some(Expression::Chain(Box::new(self.expression()?), vec![(operator, second)]))
            }
            "__builtin_expect" => {
                let value = *self.argument()?;
                // It only tells the compiler which value is likely.
                self.expression()?;
                Some(value)
            }
            _ => {
                self.is_whole = false;
                let mut arguments = Vec::new();
                while !self.is_next(")") {
                    arguments.push(self.expression()?);
                    if !self.takes(",") {
                        break;
                    }
                }
                Some(Expression::Call(name.to_owned(), arguments))
            }
        }
    }

    /// An argument that is not the last.
    fn argument(&mut self) -> Option<Box<Expression>> {
        let argument = self.expression()?;
        self.takes(",").then(|| Box::new(argument))
    }

    /// A text, or a null pointer.
    fn text_or_none(&mut self) -> Option<Option<String>> {
        match self.expression()? {
            Expression::Text(text) => Some(Some(text)),
            other => (other.constant()? == 0).then_some(None),
        }
    }

    /// Names of numbers: `{ 1, "one" }, { 2, "two" }`. A number that only the kernel's source names is left out. A null
    /// pointer for a name ends the list.
    fn names(&mut self) -> Option<Vec<(i128, String)>> {
        let (mut names, mut is_ended) = (Vec::new(), false);
        // The previous one may have taken the comma.
        while self.takes(",") || self.is_next("{") {
            self.must("{")?;
            if self.takes("}") {
                is_ended = true;
                continue;
            }
            let number = self.expression()?.constant();
            self.must(",")?;
            match (number, self.text_or_none()?) {
                (_, None) => is_ended = true,
                (Some(number), Some(name)) if !is_ended => names.push((number, name)),
                (number, _) => self.is_whole &= number.is_some(),
            }
            self.takes(",");
            self.must("}")?;
        }
        Some(names)
    }
}
