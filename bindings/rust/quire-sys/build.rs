//! Finds libquire: in `QUIRE_LIB_DIR`, else where pkg-config says, else it is built from the sources in `source`.
//!
//! Build scripts of crates that depend on this one directly find the library's folder in `DEP_QUIRE_LIB_DIR`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    for name in ["QUIRE_LIB_DIR", "PKG_CONFIG_PATH"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("DOCS_RS").is_some() {
        return; // documentation needs no library
    }
    let folder = named().or_else(installed).unwrap_or_else(build);
    println!("cargo:rustc-link-search=native={}", folder.display());
    println!("cargo:rustc-link-lib=dylib=quire");
    println!("cargo:lib_dir={}", folder.display());
}

/// The folder in `QUIRE_LIB_DIR`. The linker works in another folder than this script, which is in that of the package: what a
/// relative path was meant to be relative to cannot be known.
fn named() -> Option<PathBuf> {
    let folder = PathBuf::from(env::var_os("QUIRE_LIB_DIR")?);
    let usable = folder.is_absolute() && folder.is_dir();
    assert!(usable, "QUIRE_LIB_DIR is {folder:?}, which is not the absolute path of a folder");
    Some(folder)
}

/// The folder of the library that pkg-config knows, if its minor version is that of this crate: others have another ABI. Where
/// that folder is not there, building another library, without CUDA, is not what the installation was for.
fn installed() -> Option<PathBuf> {
    let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
    let next: u32 = minor.parse::<u32>().ok()? + 1;
    let wanted = [format!("quire >= {major}.{minor}"), format!("quire < {major}.{next}")];
    let known = Command::new("pkg-config").arg("--exists").args(wanted).status().ok()?;
    if !known.success() {
        return None;
    }
    let output = Command::new("pkg-config").args(["--variable=libdir", "quire"]).output().ok()?;
    let folder = unescaped(String::from_utf8(output.stdout).ok()?.trim());
    // Where the installation can be moved, the folder is said by way of that of quire.pc.
    match Path::new(&folder).canonicalize() {
        Ok(folder) => Some(folder),
        Err(error) => panic!(
            "pkg-config knows quire, but its libdir, {folder:?}, cannot be used: {error}. To use another library, set \
             QUIRE_LIB_DIR to its folder"
        ),
    }
}

/// pkg-config writes a backslash before a space.
fn unescaped(text: &str) -> String {
    let mut characters = text.chars();
    let mut result = String::new();
    while let Some(c) = characters.next() {
        result.extend(if c == '\\' { characters.next() } else { Some(c) });
    }
    result
}

/// Builds the library alone, for the CPU, as a release. `source` has links to the sources; in a package it has the files.
fn build() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("source");
    println!("cargo:rerun-if-changed={}", source.display());
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("cmake");
    let jobs = env::var("NUM_JOBS").unwrap_or_else(|_| "1".to_string());
    run(Command::new("cmake").arg("-S").arg(&source).arg("-B").arg(&folder).args([
        "-DCMAKE_BUILD_TYPE=Release",
        "-DQUIRE_TESTS=OFF",
        "-DQUIRE_EXAMPLES=OFF",
        "-DQUIRE_CUDA=OFF",
        "-DQUIRE_UNITY=ON",
        "-DQUIRE_WERROR=OFF",
    ]));
    run(Command::new("cmake").arg("--build").arg(&folder).args(["--target", "quire_shared", "--parallel", &jobs]));
    folder.join("lib/abi")
}

/// Ends the build with what went wrong, unless the command succeeds.
fn run(command: &mut Command) {
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{command:?} ended with {status}"),
        Err(error) => panic!(
            "{command:?} could not be started: {error}. To build libquire takes CMake and a C++ compiler; to use one that \
             is there, set QUIRE_LIB_DIR to its folder, or install quire.pc where pkg-config looks"
        ),
    }
}
