# The parts of .ci, by name. `just` lists them.

_list:
    @just --list

# Before a commit: lints, docs, unit and simulated tests, sizes, tables. Without root
check: lint
    cargo clippy --quiet --all-targets -- -D warnings
    cargo test --all-features --lib --test simulated
    benches/tables --check
    .ci/size

# Everything that guards main: as root, on any machine with Rust
ci:
    .ci/run

# What .ci/run leaves out because it takes long; with names, parts of it
release *parts:
    .ci/long {{parts}}

# The README's two commands in a fresh clone, as on a machine that nobody prepared: as root
fresh:
    .ci/fresh

# All tests on this machine's own kernel: as root, with two CPUs
test *args:
    PERFWEAVE_REQUIRE_KERNEL=1 cargo test --all-features {{args}}

# Formatting, clippy and rustdoc, with warnings as errors
lint:
    cargo fmt --all -- --check
    cargo clippy --workspace --all-targets --all-features -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --all-features

# The package as crates.io would have it, built and used elsewhere
package:
    .ci/package

# Lines of src/ that no test runs; with a commit, those of the change since
coverage *args:
    .ci/coverage {{args}}

# Instructions of the hot paths, against benches/instructions.txt
instructions *args:
    .ci/instructions {{args}}

# Other kernels and machines in emulation; all of them without names
guests *names:
    .ci/guests/run {{names}}

# ThreadSanitizer, with only the two shared words to rely on
tsan:
    .ci/tsan

# The loom models
loom:
    RUSTFLAGS="--cfg loom" cargo test -p perfweave --lib --target-dir target/loom

# One fuzz target for a minute
fuzz target="raw_bytes":
    cargo +nightly fuzz run {{target}} -- -max_total_time=60

# Mutants of the crate, or of one room
mutants *rooms:
    cargo run --release --manifest-path tests/mutants/Cargo.toml -- {{rooms}}

# The adversary with random rules, policies, pauses and hotplug
soak seconds="60":
    PERFWEAVE_HOTPLUG=1 cargo run --release -p perfweave-soak -- --seconds {{seconds}}

# The tests that repeat or wait for chance, with twenty times the rounds
long:
    PERFWEAVE_REQUIRE_KERNEL=1 cargo test --release -p perfweave-soak

# The tables of the pages: --check, --write, or names
tables *args:
    benches/tables {{args}}

# Tracers on trial: what tools print, against what happened
trial *args:
    trial/run {{args}}
