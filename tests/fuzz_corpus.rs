//! Every stored input of the fuzz targets, run through the same functions without a fuzzer.

#[path = "fuzz/bodies.rs"]
mod bodies;

use std::path::Path;

/// Runs the corpus of a target; each has some files, or the path is wrong.
fn run(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files = 0;
    for entry in std::fs::read_dir(&folder).expect("the corpus is there") {
        let path = entry.expect("readable").path();
        println!("{}", path.display()); // shown if the body panics
        body(&std::fs::read(&path).expect("readable"));
        files += 1;
    }
    assert!(files >= 10, "{files} files in {}", folder.display());
}

#[test]
fn handshake() {
    run("handshake", bodies::handshake);
}

#[test]
fn frames() {
    run("frames", bodies::frames);
}

#[test]
fn control() {
    run("control", bodies::control);
}

#[test]
fn json() {
    run("json", bodies::json);
}
