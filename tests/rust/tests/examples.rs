//! The programs of examples/rust, which must have been built into the same target folder.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use quire_tests::{source, Folder};

const QUESTION: &str = "What is the pass key? The pass key is";

fn program(name: &str) -> Command {
    let test = std::env::current_exe().unwrap(); // TARGET/debug/deps/examples-...
    let path = test.ancestors().nth(2).unwrap().join(name);
    assert!(path.exists(), "{} is missing: build examples/rust with the same CARGO_TARGET_DIR", path.display());
    let mut command = Command::new(path);
    command.arg(source("examples/embedded_model/model"));
    command
}

/// A text of more tokens than the model was trained for, with a number in it.
fn document(key: u32) -> String {
    let filler =
        "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n".repeat(20);
    format!("{filler}The pass key is {key}. Remember it. {key} is the pass key.\n{filler}")
}

#[test]
fn forks() {
    let folder = Folder::new();
    let paths = [("one.txt", 41728), ("two.txt", 90355)].map(|(name, key)| {
        std::fs::write(folder.join(name), document(key)).unwrap();
        folder.join(name)
    });
    let output = program("forks").args(&paths).args([QUESTION, QUESTION]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let found = String::from_utf8(output.stdout).unwrap();
    let line = |path: &std::path::PathBuf, key| format!("{}: {QUESTION} {key}.\n", path.display()).repeat(2);
    assert_eq!(found, line(&paths[0], 41728) + &line(&paths[1], 90355));
}

fn interrupt(child: &Child) {
    let status = Command::new("sh").arg("-c").arg(format!("kill -INT {}", child.id())).status().unwrap();
    assert!(status.success());
}

/// Reads until this was there.
fn read_until(from: &mut impl Read, wanted: &str) -> String {
    let (mut found, mut byte) = (Vec::new(), [0]);
    while !String::from_utf8_lossy(&found).ends_with(wanted) {
        assert_eq!(from.read(&mut byte).unwrap(), 1, "only {} came", String::from_utf8_lossy(&found));
        found.push(byte[0]);
    }
    String::from_utf8(found).unwrap()
}

/// Of a line such as "256 of 1000 tokens".
fn total(line: &str) -> u64 {
    line.split(' ').rev().nth(1).unwrap().parse().unwrap()
}

#[test]
fn ask_and_interrupt() {
    let folder = Folder::new();
    std::fs::write(folder.join("document.txt"), document(41728)).unwrap();
    let mut command = program("ask");
    command.arg(folder.join("document.txt")).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut errors = child.stderr.take().unwrap();
    read_until(&mut errors, "a question a line\n");
    writeln!(input, "{QUESTION}").unwrap();
    assert_eq!(read_until(&mut output, "\n"), " 41728.\n");
    // A question that takes long to read.
    let long = "the sky is blue and the grass is green ".repeat(20_000);
    writeln!(input, "{long}").unwrap();
    while total(&read_until(&mut errors, " tokens\r")) < 10_000 {}
    interrupt(&child);
    assert_eq!(read_until(&mut output, "\n"), " (interrupted)\n");
    writeln!(input, "{QUESTION}").unwrap();
    assert_eq!(read_until(&mut output, "\n"), " 41728.\n");
    drop((input, errors));
    assert!(child.wait().unwrap().success());
}
