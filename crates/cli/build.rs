//! Links the unwinder of GCC statically where that is possible.
//!
//! `libgcc_s.so` is the only reason to load another library for panics, and each process that loads it asks the
//! processor for its features once more, which is slow in a virtual machine. `leasehold run` starts two
//! processes before its command (ADR 0042).

use std::{env, path::Path, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CC");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    // When building for another system, the compiler here has the wrong library.
    let is_native = env::var("HOST").ok() == env::var("TARGET").ok();
    if !(is_native && is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu")) {
        return;
    }
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let Ok(output) = Command::new(compiler).arg("-print-file-name=libgcc_eh.a").output() else { return };
    let Ok(library) = String::from_utf8(output.stdout) else { return };
    let library = Path::new(library.trim());
    // Without the library, the compiler prints its bare name.
    if !library.is_absolute() || !library.exists() {
        return;
    }
    let Some(directory) = library.parent() else { return };
    println!("cargo::rustc-link-search=native={}", directory.display());
    println!("cargo::rustc-link-lib=static:-bundle=gcc_eh");
    // The linker takes from a static library only what is missing at that point. So this has to be missing from
    // the start.
    println!("cargo::rustc-link-arg-bins=-Wl,--undefined=_Unwind_RaiseException");
}
