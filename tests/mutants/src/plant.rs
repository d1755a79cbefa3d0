//! Plants all mutants in a copy of the crate: each place says which of its alternatives runs.

use proc_macro2::Span;
use quote::ToTokens;
use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, Pat, ReturnType, Stmt, UnOp};

const LIBC: &str = "[dependencies]\nlibc = \"0.2\"\n";

/// What is done to a statement.
const LEAVE_OUT: &str = "leave out";

/// The crate, and the packages beside it that are mutated too. Each has the switch in it.
pub const PACKAGES: [&str; 5] = ["", "crates/events", "crates/perf-data", "crates/proofs", "crates/symbols"];

/// One mutant.
#[derive(Debug, Clone)]
pub struct Mutant {
    pub file: PathBuf,
    pub line: usize,
    /// The function it is in.
    pub function: String,
    /// What is done, such as "replace < with <=".
    pub what: String,
    /// The text that is replaced, in short.
    pub text: String,
}

/// A copy of the crate with all mutants in it.
pub struct Planted {
    pub directory: PathBuf,
    pub mutants: Vec<Mutant>,
    root: PathBuf,
    files: Vec<File>,
}

/// A source file and the places in it.
struct File {
    path: PathBuf,
    source: String,
    places: Vec<Place>,
    /// Where each alternative ended up: its mutant and its bytes in the file as it was written last, and those of its
    /// place.
    written: Vec<(usize, Range<usize>, Range<usize>)>,
}

/// A stretch of the source, and what may stand in its stead.
struct Place {
    range: Range<usize>,
    shape: Shape,
    /// Index of each mutant, and its text.
    alternatives: Vec<(usize, String)>,
}

enum Shape {
    /// One of several expressions.
    Instead,
    /// A statement that may be left out.
    Statement,
    /// Something is put in front: a condition for a match arm, or a way out of a function.
    Before,
}

impl Planted {
    /// Parses the files that are to be mutated.
    pub fn find(root: &Path, files: &[PathBuf]) -> Result<Self, Box<dyn Error>> {
        let directory = root.join("target/mutants");
        let mut planted = Self { directory, mutants: Vec::new(), root: root.to_owned(), files: Vec::new() };
        for path in files {
            let source = fs::read_to_string(root.join(path))?;
            let tree = syn::parse_file(&source)?;
            let mut finder = Finder::new(path, &source, &mut planted.mutants);
            finder.visit_file(&tree);
            let places = finder.places;
            planted.files.push(File { path: path.clone(), source, places, written: Vec::new() });
        }
        Ok(planted)
    }

    /// Copies the crate but for the files that are to be mutated.
    pub fn copy(&self) -> Result<(), Box<dyn Error>> {
        let mut written: BTreeSet<PathBuf> = self.files.iter().map(|file| self.root.join(&file.path)).collect();
        for package in PACKAGES {
            written.extend(["src/lib.rs", "Cargo.toml"].map(|file| self.root.join(package).join(file)));
        }
        for part in ["src", "crates", "tests", "fuzz/src", "fuzz/corpus", "benches", "docs", "examples", "cli"] {
            copy(&self.root.join(part), &self.directory.join(part), &written)?;
        }
        for part in ["Cargo.lock", "README.md"] {
            copy(&self.root.join(part), &self.directory.join(part), &written)?;
        }
        for package in PACKAGES {
            // What the switch needs.
            let manifest = fs::read_to_string(self.root.join(package).join("Cargo.toml"))?;
            let has_it = manifest.contains("\nlibc = ");
            let manifest = manifest.replacen("[dependencies]\n", if has_it { "[dependencies]\n" } else { LIBC }, 1);
            renew(&self.directory.join(package).join("Cargo.toml"), manifest.as_bytes())?;
        }
        Ok(())
    }

    /// Writes the files without some mutants.
    pub fn write(&mut self, without: &BTreeSet<usize>) -> Result<(), Box<dyn Error>> {
        for file in &mut self.files {
            let text = file.emit(without);
            renew(&self.directory.join(&file.path), text.as_bytes())?;
        }
        for package in PACKAGES {
            let path = Path::new(package).join("src/lib.rs");
            let lib = fs::read_to_string(self.root.join(&path))?.replace("#![forbid(unsafe_code)]\n", "");
            let allowed = "#![allow(warnings, arithmetic_overflow, unconditional_panic, clippy::all)]";
            renew(&self.directory.join(path), format!("{allowed}\n{lib}\n{SWITCH}").as_bytes())?;
        }
        Ok(())
    }

    /// The mutants that a compiler's message about some bytes of a file is about.
    pub fn blamed(&self, file: &Path, bytes: Range<usize>) -> Vec<usize> {
        let Some(file) = self.files.iter().find(|known| known.path == file) else { return Vec::new() };
        let meets = |range: &Range<usize>| range.start < bytes.end && bytes.start < range.end;
        let mut found: Vec<usize> =
            file.written.iter().filter(|(_, own, _)| meets(own)).map(|(mutant, ..)| *mutant).collect();
        if found.is_empty() {
            // In none of the alternatives: the smallest place around it.
            let around = file.written.iter().filter(|(.., place)| meets(place)).min_by_key(|(.., place)| place.len());
            if let Some((.., place)) = around {
                found.extend(file.written.iter().filter(|(.., other)| other == place).map(|(mutant, ..)| *mutant));
            }
        }
        if found.is_empty() {
            // In no place: a statement before it that must stay.
            let before = file.written.iter().filter(|(.., place)| place.start <= bytes.start);
            if let Some((nearest, ..)) = before.max_by_key(|(.., place)| place.start) {
                let function = &self.mutants[*nearest].function;
                let statements = file.written.iter().map(|(mutant, ..)| *mutant);
                found.extend(statements.filter(|mutant| {
                    let Mutant { function: other, what, .. } = &self.mutants[*mutant];
                    other == function && what == LEAVE_OUT
                }));
            }
        }
        found
    }
}

/// Copies a file, or a folder and what is in it, but for `without`. What is the same already is not touched, so that it
/// is not built again.
fn copy(from: &Path, to: &Path, without: &BTreeSet<PathBuf>) -> Result<(), Box<dyn Error>> {
    if without.contains(from) {
        return Ok(());
    }
    if !from.is_dir() {
        return renew(to, &fs::read(from)?);
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        let left_over = !from.join(entry.file_name()).exists();
        match entry.file_type()?.is_dir() {
            true if left_over => fs::remove_dir_all(entry.path())?,
            false if left_over => fs::remove_file(entry.path())?,
            _ => {}
        }
    }
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        if name != "target" {
            copy(&from.join(&name), &to.join(&name), without)?;
        }
    }
    Ok(())
}

fn renew(path: &Path, text: &[u8]) -> Result<(), Box<dyn Error>> {
    if fs::read(path).is_ok_and(|old| old == text) { Ok(()) } else { Ok(fs::write(path, text)?) }
}

/// Says which mutant runs, and, in a process that is to record, which are reached.
const SWITCH: &str = r#"
#[allow(unsafe_code, missing_docs)]
pub(crate) mod mutant {
    use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

    static ACTIVE: AtomicU32 = AtomicU32::new(u32::MAX);
    static REACHED: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
    const RECORD: u32 = u32::MAX - 1;
    const WORDS: usize = 1024;

    #[inline]
    pub(crate) fn is(mutant: u32) -> bool {
        let mut active = ACTIVE.load(Ordering::Relaxed);
        if active == u32::MAX {
            active = start();
        }
        if active == RECORD {
            reach(mutant);
        }
        active == mutant
    }

    #[cold]
    fn reach(mutant: u32) {
        // SAFETY: so many words that stay mapped.
        let word = unsafe { &*REACHED.load(Ordering::Acquire).add(mutant as usize / 64 % WORDS) };
        let bit = 1 << (mutant % 64);
        // Written once: others may read it all the time.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    #[cold]
    fn start() -> u32 {
        let active = match std::env::var("MUTANT") {
            Ok(number) if number == "record" && map().is_some() => RECORD,
            Ok(number) => number.parse().unwrap_or(u32::MAX - 2),
            Err(_) => u32::MAX - 2,
        };
        ACTIVE.store(active, Ordering::Relaxed);
        active
    }

    /// Maps the file that tells what is reached: the same in all processes of a test, also in those that are killed, or
    /// leave without running anything more.
    fn map() -> Option<()> {
        use std::os::fd::AsRawFd;
        let path = std::env::var_os("MUTANT_REACHED")?;
        let file = std::fs::File::options().read(true).write(true).open(path).ok()?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, of a file that is as long as that.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 8 * WORDS, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return None;
        }
        REACHED.store(at.cast(), Ordering::Release);
        Some(())
    }
}
"#;

impl File {
    fn emit(&mut self, without: &BTreeSet<usize>) -> String {
        self.places.sort_by_key(|place| (place.range.start, std::cmp::Reverse(place.range.end)));
        let mut out = String::new();
        let mut written = Vec::new();
        let places: Vec<&Place> = self.places.iter().collect();
        emit(&self.source, 0..self.source.len(), &places, without, &mut out, &mut written);
        self.written = written;
        out
    }
}

/// Writes a stretch of the source with the places that are wholly in it, of which `places` are all, outermost first.
fn emit(
    source: &str,
    range: Range<usize>,
    places: &[&Place],
    without: &BTreeSet<usize>,
    out: &mut String,
    written: &mut Vec<(usize, Range<usize>, Range<usize>)>,
) {
    let mut at = range.start;
    let mut rest = places;
    while let Some((place, mut others)) = rest.split_first() {
        out.push_str(&source[at..place.range.start]);
        let inner = others
            .iter()
            .take_while(|other| {
                other.range.end <= place.range.end && other.range.start < place.range.end.max(place.range.start + 1)
            })
            .count();
        let (inside, behind) = others.split_at(if place.range.is_empty() { 0 } else { inner });
        others = behind;
        let alternatives: Vec<_> = place.alternatives.iter().filter(|(mutant, _)| !without.contains(mutant)).collect();
        let begin = out.len();
        let mut own = Vec::new();
        match place.shape {
            _ if alternatives.is_empty() => emit(source, place.range.clone(), inside, without, out, written),
            Shape::Instead => {
                out.push('(');
                for (mutant, text) in &alternatives {
                    out.push_str(&format!("if crate::mutant::is({mutant}) {{ "));
                    own.push((*mutant, out.len()..out.len() + text.len()));
                    out.push_str(text);
                    out.push_str(" } else ");
                }
                out.push_str("{ ");
                emit(source, place.range.clone(), inside, without, out, written);
                out.push_str(" })");
            }
            Shape::Statement => {
                let (mutant, _) = alternatives[0];
                let text = format!("if !crate::mutant::is({mutant}) {{ ");
                own.push((*mutant, out.len()..out.len() + text.len()));
                out.push_str(&text);
                emit(source, place.range.clone(), inside, without, out, written);
                out.push_str(" }");
            }
            Shape::Before => {
                for (mutant, text) in &alternatives {
                    let text = text.replace("MUTANT", &mutant.to_string());
                    own.push((*mutant, out.len()..out.len() + text.len()));
                    out.push_str(&text);
                }
                emit(source, place.range.clone(), inside, without, out, written);
            }
        }
        let end = out.len();
        written.extend(own.into_iter().map(|(mutant, own)| (mutant, own, begin..end)));
        at = place.range.end;
        rest = others;
    }
    out.push_str(&source[at..range.end]);
}

struct Finder<'a> {
    file: &'a Path,
    source: &'a str,
    /// Byte offset of each line.
    lines: Vec<usize>,
    mutants: &'a mut Vec<Mutant>,
    places: Vec<Place>,
    functions: Vec<String>,
    types: Vec<String>,
    /// Inside of what is evaluated by the compiler.
    constant: u32,
}

impl<'a> Finder<'a> {
    fn new(file: &'a Path, source: &'a str, mutants: &'a mut Vec<Mutant>) -> Self {
        let lines = std::iter::once(0).chain(source.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { file, source, lines, mutants, places: Vec::new(), functions: Vec::new(), types: Vec::new(), constant: 0 }
    }

    fn offset(&self, at: proc_macro2::LineColumn) -> usize {
        let line = &self.source[self.lines[at.line - 1]..];
        // Columns count characters.
        let column = line.char_indices().nth(at.column).map_or(line.len(), |(offset, _)| offset);
        self.lines[at.line - 1] + column
    }

    fn range(&self, span: Span) -> Range<usize> {
        self.offset(span.start())..self.offset(span.end())
    }

    fn text(&self, range: &Range<usize>) -> String {
        let text = self.source[range.clone()].split_whitespace().collect::<Vec<_>>().join(" ");
        let cut = text.char_indices().nth(60).map_or(text.len(), |(at, _)| at);
        text[..cut].to_owned()
    }

    fn place(&mut self, span: Span, range: Range<usize>, shape: Shape, alternatives: Vec<(String, String)>) {
        if self.constant > 0 || self.functions.is_empty() || alternatives.is_empty() {
            return;
        }
        let line = span.start().line;
        let function = [&self.types[..], &self.functions].concat().join("::");
        let shown = if range.is_empty() { String::new() } else { self.text(&range) };
        let alternatives = alternatives.into_iter().map(|(what, text)| {
            let mutant =
                Mutant { file: self.file.to_owned(), line, function: function.clone(), what, text: shown.clone() };
            self.mutants.push(mutant);
            (self.mutants.len() - 1, text)
        });
        let alternatives = alternatives.collect();
        self.places.push(Place { range, shape, alternatives });
    }

    fn function(&mut self, attributes: &[syn::Attribute], signature: &syn::Signature, block: &'a syn::Block) {
        if is_test(attributes) || signature.constness.is_some() {
            return;
        }
        let name = signature.ident.to_string();
        let is_debug = name == "fmt" && self.types.iter().any(|of| of.contains("Debug"));
        if is_debug {
            return;
        }
        self.functions.push(name);
        let values = match &signature.output {
            ReturnType::Default => vec!["()".to_owned()],
            ReturnType::Type(_, of) => values(of),
        };
        if !block.stmts.is_empty() {
            let begin = self.range(block.brace_token.span.open()).end;
            let ways = values.into_iter().map(|value| {
                (format!("give {value} at once"), format!(" if crate::mutant::is(MUTANT) {{ return {value}; }} "))
            });
            let ways = ways.collect();
            self.place(signature.span(), begin..begin, Shape::Before, ways);
        }
        self.visit_block(block);
        self.functions.pop();
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = attribute.to_token_stream().to_string();
        text.contains("test") || text.contains("loom")
    })
}

/// Plain values of a type.
fn values(of: &syn::Type) -> Vec<String> {
    let text = of.to_token_stream().to_string().replace(' ', "");
    let of = |text: &str| -> Vec<String> {
        match text {
            "bool" => vec!["true".into(), "false".into()],
            "u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64" => vec!["0".into(), "1".into()],
            "()" => vec!["()".into()],
            "String" => vec!["String::new()".into()],
            "Duration" => vec!["std::time::Duration::ZERO".into()],
            _ => Vec::new(),
        }
    };
    if let Some(inner) = text.strip_prefix("Option<").and_then(|rest| rest.strip_suffix('>')) {
        let some = of(inner).into_iter().map(|value| format!("Some({value})"));
        return std::iter::once("None".to_owned()).chain(some).collect();
    }
    if let Some(inner) = text.strip_prefix("Result<").and_then(|rest| rest.strip_suffix('>')) {
        let inner = inner.rsplit_once(',').map_or(inner, |(inner, _)| inner);
        if let Some(inner) = inner.strip_prefix("Option<").and_then(|rest| rest.strip_suffix('>')) {
            let some = of(inner).into_iter().map(|value| format!("Ok(Some({value}))"));
            return std::iter::once("Ok(None)".to_owned()).chain(some).collect();
        }
        return of(inner).into_iter().map(|value| format!("Ok({value})")).collect();
    }
    of(&text)
}

/// What another operator may stand for one.
fn others(operator: &BinOp) -> &'static [&'static str] {
    match operator {
        BinOp::Eq(_) => &["!="],
        BinOp::Ne(_) => &["=="],
        BinOp::And(_) => &["||"],
        BinOp::Or(_) => &["&&"],
        BinOp::Lt(_) => &["<=", ">", "=="],
        BinOp::Le(_) => &["<", ">"],
        BinOp::Gt(_) => &[">=", "<", "=="],
        BinOp::Ge(_) => &[">", "<"],
        BinOp::Add(_) => &["-", "*"],
        BinOp::Sub(_) => &["+", "/"],
        BinOp::Mul(_) => &["+", "/"],
        BinOp::Div(_) => &["%", "*"],
        BinOp::Rem(_) => &["/", "+"],
        BinOp::Shl(_) => &[">>"],
        BinOp::Shr(_) => &["<<"],
        BinOp::BitAnd(_) => &["|", "^"],
        BinOp::BitOr(_) => &["&", "^"],
        BinOp::BitXor(_) => &["|", "&"],
        BinOp::AddAssign(_) => &["-=", "*="],
        BinOp::SubAssign(_) => &["+=", "/="],
        BinOp::MulAssign(_) => &["+=", "/="],
        BinOp::BitAndAssign(_) => &["|="],
        BinOp::BitOrAssign(_) => &["&="],
        _ => &[],
    }
}

/// Whether an expression binds something with `let`, as conditions do.
fn binds(expr: &Expr) -> bool {
    struct Lets(bool);
    impl<'a> Visit<'a> for Lets {
        fn visit_expr_let(&mut self, _: &'a syn::ExprLet) {
            self.0 = true;
        }
        fn visit_expr_closure(&mut self, _: &'a syn::ExprClosure) {}
        fn visit_block(&mut self, _: &'a syn::Block) {}
    }
    let mut lets = Lets(false);
    lets.visit_expr(expr);
    lets.0
}

impl<'a, 'f> Visit<'f> for Finder<'a>
where
    'f: 'a,
{
    fn visit_item_mod(&mut self, item: &'f syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'f syn::ItemImpl) {
        if is_test(&item.attrs) {
            return;
        }
        let of = item.self_ty.to_token_stream().to_string().replace(' ', "");
        let of = item.trait_.as_ref().map_or(of.clone(), |(_, path, _)| {
            format!("<{} for {of}>", path.to_token_stream().to_string().replace(' ', ""))
        });
        self.types.push(of);
        visit::visit_item_impl(self, item);
        self.types.pop();
    }

    fn visit_item_const(&mut self, _: &'f syn::ItemConst) {}
    fn visit_impl_item_const(&mut self, _: &'f syn::ImplItemConst) {}
    fn visit_item_static(&mut self, _: &'f syn::ItemStatic) {}
    fn visit_pat(&mut self, _: &'f Pat) {}
    fn visit_type(&mut self, _: &'f syn::Type) {}

    fn visit_item_fn(&mut self, item: &'f syn::ItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'f syn::ImplItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_block(&mut self, block: &'f syn::Block) {
        let last = block.stmts.len().saturating_sub(1);
        for (at, statement) in block.stmts.iter().enumerate() {
            let deletable = match statement {
                Stmt::Expr(Expr::Macro(_), _) => false,
                Stmt::Expr(_, Some(_)) => true,
                Stmt::Expr(Expr::If(_) | Expr::Match(_) | Expr::ForLoop(_) | Expr::While(_) | Expr::Loop(_), None) => {
                    at != last
                }
                Stmt::Macro(statement) => statement.mac.path.is_ident("assert"),
                _ => false,
            };
            let range = self.range(statement.span());
            // Steps are counted in tests alone.
            if deletable && self.source[range.clone()] != *"step();" {
                self.place(statement.span(), range, Shape::Statement, vec![(LEAVE_OUT.into(), String::new())]);
            }
            self.visit_stmt(statement);
        }
    }

    fn visit_expr_binary(&mut self, expr: &'f syn::ExprBinary) {
        if !binds(&expr.left) && !binds(&expr.right) {
            let (left, right) = (self.range(expr.left.span()), self.range(expr.right.span()));
            let (left, right) = (self.source[left].to_owned(), self.source[right].to_owned());
            let operator = expr.op.to_token_stream().to_string();
            let ways = others(&expr.op)
                .iter()
                .map(|other| (format!("replace {operator} with {other}"), format!("{left} {other} {right}")));
            let (range, ways) = (self.range(expr.span()), ways.collect());
            self.place(expr.span(), range, Shape::Instead, ways);
        }
        visit::visit_expr_binary(self, expr);
    }

    fn visit_expr_unary(&mut self, expr: &'f syn::ExprUnary) {
        if matches!(expr.op, UnOp::Not(_) | UnOp::Neg(_)) {
            let inner = self.source[self.range(expr.expr.span())].to_owned();
            let operator = expr.op.to_token_stream().to_string();
            let range = self.range(expr.span());
            self.place(expr.span(), range, Shape::Instead, vec![(format!("delete {operator}"), inner)]);
        }
        visit::visit_expr_unary(self, expr);
    }

    fn visit_expr_match(&mut self, expr: &'f syn::ExprMatch) {
        self.visit_expr(&expr.expr);
        let has_rest = expr.arms.iter().any(|arm| matches!(arm.pat, Pat::Wild(_)) && arm.guard.is_none());
        for arm in &expr.arms {
            if let Some((_, guard)) = &arm.guard {
                if !binds(guard) {
                    let range = self.range(guard.span());
                    let ways = ["true", "false"].map(|way| (format!("replace guard with {way}"), way.to_owned()));
                    self.place(guard.span(), range, Shape::Instead, ways.to_vec());
                }
                self.visit_expr(guard);
            } else if has_rest && !matches!(arm.pat, Pat::Wild(_)) {
                let end = self.range(arm.pat.span()).end;
                let shown = self.text(&self.range(arm.pat.span()));
                let way = (format!("delete arm {shown}"), " if !crate::mutant::is(MUTANT) ".to_owned());
                self.place(arm.pat.span(), end..end, Shape::Before, vec![way]);
            }
            self.visit_expr(&arm.body);
        }
    }
}
