//! Compiles the BPF program. Both packages use this script.

use std::env;
use std::path::Path;
use std::process::{Command, exit};

const SOURCE: &str = "../order.bpf.c";
/// The folder of `perfweave.bpf.h`. Your own tool writes `perfweave_proofs::Epochs::HEADER` to a file.
const HEADERS: &str = "../../../crates/proofs/src";

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-changed={HEADERS}/perfweave.bpf.h");
    println!("cargo::rerun-if-env-changed=CLANG");
    let variable = |name| env::var(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    let clang = env::var("CLANG").unwrap_or("clang".into());
    let compiled = Command::new(&clang)
        .args(["-O2", "-g", "-Wall", "-target", "bpf", "-mcpu=v3", "-I", HEADERS])
        // Debian and Ubuntu have <asm/types.h>, which <linux/bpf.h> includes, where only the host's compiler looks.
        .args(["-idirafter", &format!("/usr/include/{}-linux-gnu", variable("CARGO_CFG_TARGET_ARCH"))])
        .args(["-c", SOURCE, "-o"])
        .arg(Path::new(&variable("OUT_DIR")).join("order.bpf.o"))
        .status();
    let missing = match compiled {
        Ok(status) if status.success() => return,
        Ok(status) => format!("{clang} did not compile {SOURCE} ({status}); bpf/bpf_helpers.h is in libbpf-dev"),
        Err(error) => format!("{clang}: {error}; clang compiles the BPF program: install it, or set CLANG"),
    };
    println!("cargo::error={missing}");
    exit(1);
}
