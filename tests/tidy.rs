//! The house rules, checked in the ordinary test run. Each rule says what to do instead, and each has a canary: a piece
//! of text that it must find, so that a rule which finds nothing any more is noticed.

#[path = "tidy/source.rs"]
mod source;

use source::{Source, files, is_word, words};
use std::collections::{BTreeMap, BTreeSet};

/// The layers, lowest first. A module may use those before it.
const LAYERS: [&str; 13] = [
    "limits", "config", "metrics", "wire", "schema", "shard", "echo", "mesh", "uring", "control", "client",
    "server", "cli",
];
/// What the client may use: it is a library of its own.
const CLIENT_MAY_USE: [&str; 3] = ["limits", "wire", "schema"];
/// Longest file, lines.
const FILE_LINES: usize = 800;
/// Longest line, characters.
const LINE_CHARS: usize = 120;
/// Longest function, lines; longer ones are listed in `tests/tidy/long_functions.txt`.
const FUNCTION_LINES: usize = 70;

/// A rule for one file.
struct Rule {
    name: &'static str,
    instead: &'static str,
    check: fn(&Source) -> Vec<(usize, String)>,
    canary: (&'static str, &'static str),
}

const RULES: [Rule; 14] = [
    Rule {
        name: "layers",
        instead: "imports go to the left only (docs/ARCHITECTURE.md): move the item down, or hand the value in",
        check: layers,
        canary: ("src/wire/frame.rs", "//! x\nuse crate::{limits, shard::step};\n"),
    },
    Rule {
        name: "layers by super",
        instead: "write `crate::module::...`, so that the layers can be read off the imports",
        check: super_paths,
        canary: ("src/wire/frame.rs", "//! x\nuse super::super::shard;\n"),
    },
    Rule {
        name: "unsafe",
        instead: "keep it under src/uring, behind a safe function",
        check: unsafe_outside,
        canary: ("src/shard/mod.rs", "//! x\nfn f() { unsafe { g() } }\n"),
    },
    Rule {
        name: "forbid unsafe",
        instead: "begin the module with `#![forbid(unsafe_code)]`",
        check: forbids_unsafe,
        canary: ("src/mesh/mod.rs", "//! x\nfn f() {}\n"),
    },
    Rule {
        name: "safety",
        instead: "put a `// SAFETY:` before it that says why the contract of what is called holds here",
        check: safety,
        canary: ("src/uring/ring.rs", "//! x\nfn f() {\n    // quick\n    unsafe { g() }\n}\n"),
    },
    Rule {
        name: "clocks",
        instead: "take the time as an argument: the turn reads the clock once",
        check: clocks,
        canary: ("src/client/session.rs", "//! x\nfn f() { let t = std::time::Instant::now(); }\n"),
    },
    Rule {
        name: "shared state",
        instead: "give the state one owner and hand messages over; a table that never changes is a `const`",
        check: shared_state,
        canary: ("src/shard/store.rs", "//! x\nstatic COUNT: u32 = 0;\n"),
    },
    Rule {
        name: "printing",
        instead: "log with `tracing` on the control thread, or return the text to the command line",
        check: printing,
        canary: ("src/control/admin.rs", "//! x\nfn f() { println!(); }\n"),
    },
    Rule {
        name: "unwrap",
        instead: "return the error, or `.expect(\"why it cannot fail\")`",
        check: unwraps,
        canary: ("src/wire/mod.rs", "//! x\nfn f() { g().unwrap(); }\n"),
    },
    Rule {
        name: "size",
        instead: "move what only computes into a file of its own; wrap the line",
        check: size,
        canary: (
            "src/wire/mod.rs",
            concat!(
                "//! x\n// wide wide wide wide wide wide wide wide wide wide wide wide wide wide wide wide wide ",
                "wide wide wide wide wide wide wide wide wide wide wide wide\n"
            ),
        ),
    },
    Rule {
        name: "purpose",
        instead: "begin the file with `//!` and the one idea that it owns",
        check: purpose,
        canary: ("src/wire/mod.rs", "use std::fmt;\n"),
    },
    Rule {
        name: "file names",
        instead: "name the file after the noun it holds",
        check: file_names,
        canary: ("src/shard/utils.rs", "//! x\n"),
    },
    Rule {
        name: "leftovers",
        instead: "do it, or write it down in docs/decisions",
        check: leftovers,
        canary: ("src/wire/mod.rs", "//! x\n// FIXME: later\n"),
    },
    Rule {
        name: "switched-off tests",
        instead: "mend the test or delete it",
        check: switched_off,
        canary: ("tests/wire.rs", "//! x\n#[ignore]\nfn f() {}\n"),
    },
];

#[test]
fn every_file_keeps_every_rule() {
    let sources = sources(&["src", "tests", "bench", "benches", "fuzz", "loom", "examples"]);
    assert!(sources.len() > 5, "found only {} files: the walk over the repository is broken", sources.len());
    let mut report = String::new();
    for rule in &RULES {
        let mut found = sources.iter().flat_map(|s| findings(rule, s)).peekable();
        if found.peek().is_some() {
            report +=
                &format!("\n{}: {}\n  {}", rule.name, rule.instead, found.collect::<Vec<_>>().join("\n  "));
        }
    }
    assert!(report.is_empty(), "{report}\n");
}

#[test]
fn every_rule_finds_its_canary() {
    for rule in &RULES {
        let (path, text) = rule.canary;
        assert!(
            !findings(rule, &Source::new(path, text)).is_empty(),
            "rule '{}' overlooked its canary",
            rule.name
        );
    }
}

#[test]
fn literals_comments_and_tests_are_told_from_code() {
    let text = concat!(
        "//! x\nconst A: &str = \"unsafe \\\" // no\"; // unsafe\n",
        "const B: &str = r#\"static \"x\" \"#; let c = '\"';\n",
        "/* unsafe /* nested */ unsafe */ fn f<'a>(x: &'a str) {}\n",
        "#[cfg(test)]\nmod tests {\n    fn g() { x.unwrap() }\n}\n",
        "fn h() {\n}\n"
    );
    let s = Source::new("src/shard/mod.rs", text);
    let code = s.code.join("\n");
    for gone in ["unsafe", "static \"", "nested", "// no"] {
        assert!(!code.contains(gone), "{gone:?} left in {code}");
    }
    assert!(s.comments.join("\n").contains("unsafe /* nested */ unsafe"));
    assert!(unwraps(&s).is_empty(), "test code counted as production code");
    assert_eq!(s.functions(), [("f".to_owned(), 4, 1), ("h".to_owned(), 9, 2)]);
}

#[test]
fn long_functions_only_shrink() {
    let listed: BTreeMap<String, usize> = include_str!("tidy/long_functions.txt")
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let (lines, name) = line.split_once(' ').expect("a line is: LINES FILE FUNCTION");
            (name.to_owned(), lines.parse().expect("LINES is a number"))
        })
        .collect();
    let mut long = BTreeMap::new();
    for s in sources(&["src"]) {
        for (name, _, lines) in s.functions() {
            if lines > FUNCTION_LINES {
                long.insert(format!("{} {name}", s.path), lines);
            }
        }
    }
    let mut report = Vec::new();
    for (name, lines) in &long {
        match listed.get(name) {
            None => report
                .push(format!("{name}: {lines} lines, the limit is {FUNCTION_LINES}; move computation out")),
            Some(was) if lines > was => report.push(format!("{name}: grew from {was} to {lines} lines")),
            Some(was) if lines < was => {
                report.push(format!("{name}: has {lines} lines now, lower the {was} in the list"))
            }
            Some(_) => {}
        }
    }
    report.extend(
        listed
            .keys()
            .filter(|n| !long.contains_key(*n))
            .map(|n| format!("{n}: not long any more, strike it")),
    );
    assert!(report.is_empty(), "tests/tidy/long_functions.txt:\n  {}\n", report.join("\n  "));
}

#[test]
fn architecture_lists_every_file() {
    let page = read("docs/ARCHITECTURE.md");
    let listed: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .filter(|(name, _)| name.starts_with("src/") || name.starts_with("bench/src/"))
        .map(|(name, _)| name.to_owned())
        .collect();
    let every = ["src", "bench/src"].into_iter().flat_map(|folder| files(folder, &[".rs"]));
    let present: BTreeSet<String> = every.map(|(path, _)| path).collect();
    let missing: Vec<_> = present.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&present).filter(|p| !p.ends_with("_generated.rs")).collect();
    assert!(
        missing.is_empty(),
        "add a row `| `FILE` | what it owns |` to docs/ARCHITECTURE.md for: {missing:?}"
    );
    assert!(gone.is_empty(), "docs/ARCHITECTURE.md has rows of files that do not exist: {gone:?}");
}

#[test]
fn the_test_page_lists_every_target() {
    let page = read("docs/TESTING.md");
    let targets =
        files("tests", &[".rs"]).into_iter().filter_map(|(path, _)| match path.matches('/').count() {
            1 => Some(path),
            _ => path.strip_suffix("/main.rs").map(str::to_owned),
        });
    let missing: Vec<String> = targets.filter(|target| !page.contains(&format!("| `{target}` |"))).collect();
    assert!(
        missing.is_empty(),
        "add a row `| `TARGET` | kind | what it shows |` to docs/TESTING.md for: {missing:?}"
    );
}

#[test]
fn every_dependency_has_a_reason() {
    let page = read("docs/DEPENDENCIES.md");
    let mut missing = Vec::new();
    for (path, text) in files(".", &["Cargo.toml"]) {
        let manifest: toml::Table = text.parse().expect("a manifest is TOML");
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let entries = manifest.get(section).and_then(|s| s.as_table()).into_iter().flatten();
            let own = |value: &toml::Value| value.get("path").is_some();
            missing.extend(
                entries
                    .filter(|(name, value)| !own(value) && !page.contains(&format!("| `{name}` |")))
                    .map(|(name, _)| format!("{path}: {name}")),
            );
        }
    }
    assert!(missing.is_empty(), "say in docs/DEPENDENCIES.md what each is for and why this one: {missing:?}");
}

#[test]
fn links_of_the_documents_lead_somewhere() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut broken = Vec::new();
    for (path, text) in files(".", &[".md"]) {
        let folder = root.join(&path).parent().expect("a file has a folder").to_owned();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or("");
            if !file.is_empty() && !target.contains("://") && !folder.join(file).exists() {
                broken.push(format!("{path}: {target}"));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere: {broken:#?}");
}

#[test]
fn decisions_have_their_four_parts() {
    for (path, text) in files("docs/decisions", &[".md"]) {
        for part in ["## Context", "## Choice", "## Given up", "## How we would know that it was wrong"] {
            assert!(text.contains(part), "{path} has no part \"{part}\"");
        }
    }
}

/// The text speaks of the product alone, and cites only what its reader has.
#[test]
fn the_text_speaks_of_the_project_alone() {
    let banned = [
        ("issue #", "say what is so, not where it was discussed"),
        ("pull request", "say what is so, not where it was discussed"),
        ("as discussed", "say what is so, not where it was discussed"),
        ("/home/", "no path of one machine: use one relative to the repository"),
        ("/root/", "no path of one machine: use one relative to the repository"),
        (
            concat!(env!("CARGO_MANIFEST_DIR"), "/"),
            "no path of one machine: use one relative to the repository",
        ),
    ];
    let mut found = Vec::new();
    for (path, text) in
        files(".", &[".rs", ".md", ".sh", ".py", ".toml", ".js", ".mjs", ".ts", ".html", "/run"])
    {
        let text = if path == "tests/tidy.rs" { String::new() } else { text };
        for (number, line) in text.lines().enumerate() {
            let hits = banned.iter().filter(|(word, _)| line.contains(word));
            found.extend(hits.map(|(word, instead)| format!("{path}:{}: \"{word}\": {instead}", number + 1)));
            let prose =
                if path.ends_with(".rs") { line.split_once("//").map_or("", |(_, c)| c) } else { line };
            let unknown = cited_pages(prose).into_iter().filter(|page| !page_exists(&path, page));
            found.extend(
                unknown.map(|page| format!("{path}:{}: cites {page}, which is not here", number + 1)),
            );
        }
    }
    assert!(found.is_empty(), "\n  {}\n", found.join("\n  "));
    assert_eq!(
        cited_pages("see docs/A.md, GUIDE 6.4 and RFC 6455 5.3, not POLLIN_X 1"),
        ["docs/A.md", "GUIDE 6.4"]
    );
}

/// Pages that a line speaks of: "docs/NAME.md", or a name in capitals with a section number.
fn cited_pages(line: &str) -> Vec<String> {
    let words: Vec<&str> =
        line.split_whitespace().map(|w| w.trim_matches(|c: char| !c.is_alphanumeric() && c != '$')).collect();
    let mut found: Vec<String> = words
        .iter()
        .filter(|w| w.ends_with(".md") && !w.contains("](") && !w.contains('$'))
        .map(|w| (*w).to_owned())
        .collect();
    for pair in words.windows(2) {
        let name = pair[0].len() >= 5 && pair[0].chars().all(|c| c.is_ascii_uppercase());
        if name
            && pair[1].starts_with(|c: char| c.is_ascii_digit())
            && pair[1].chars().all(|c| c == '.' || c.is_ascii_digit())
        {
            found.push(pair.join(" "));
        }
    }
    found
}

fn page_exists(citing: &str, page: &str) -> bool {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let beside = root.join(citing).parent().is_some_and(|folder| folder.join(page).exists());
    beside || root.join(page).exists() || root.join("docs").join(page).exists()
}

fn read(path: &str) -> String {
    let full = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&full).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn sources(folders: &[&str]) -> Vec<Source> {
    let every = folders.iter().flat_map(|folder| files(folder, &[".rs"]));
    every.map(|(path, text)| Source::new(&path, &text)).collect()
}

fn findings(rule: &Rule, source: &Source) -> Vec<String> {
    let line = |(number, what): (usize, String)| format!("{}:{number}: {what}", source.path);
    (rule.check)(source).into_iter().map(line).collect()
}

/// Lines of production code that hold one of these as whole words, under src only.
fn uses(source: &Source, banned: &[&str]) -> Vec<(usize, String)> {
    if !source.path.starts_with("src/") {
        return Vec::new();
    }
    let hit =
        |line: &str| banned.iter().find(|word| words(line, word).next().is_some()).map(|w| (*w).to_owned());
    source.production().filter_map(|(number, line)| Some((number, hit(line)?))).collect()
}

fn layers(source: &Source) -> Vec<(usize, String)> {
    let own = source.module();
    if !source.path.starts_with("src/") || ["lib", "main"].contains(&own) {
        return Vec::new();
    }
    let Some(rank) = LAYERS.iter().position(|layer| *layer == own) else {
        return vec![(1, format!("module '{own}' has no layer; add it to LAYERS in tests/tidy.rs"))];
    };
    let allowed = |used: &str| match own {
        "client" => used == own || CLIENT_MAY_USE.contains(&used),
        _ => LAYERS.iter().position(|layer| *layer == used).is_none_or(|other| other <= rank),
    };
    let code: String = source.production().map(|(_, line)| format!("{line}\n")).collect();
    let lines: Vec<usize> = source.production().map(|(number, _)| number).collect();
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let number = lines[code[..at].matches('\n').count()];
        let bad = first_names(&code[at + "crate::".len()..]).into_iter().filter(|used| !allowed(used));
        found.extend(bad.map(|used| (number, format!("{own} uses {used}"))));
    }
    found
}

/// The first names of a path: one, or those of a group `{a::b, c}`.
fn first_names(path: &str) -> Vec<String> {
    let name = |text: &str| text.trim_start().chars().take_while(|c| is_word(*c)).collect::<String>();
    let Some(group) = path.strip_prefix('{') else { return vec![name(path)] };
    let (mut names, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                names.push(name(&group[start..at]));
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names
}

fn super_paths(source: &Source) -> Vec<(usize, String)> {
    if !source.path.starts_with("src/") {
        return Vec::new();
    }
    let leaves = "super::".repeat(source.depth());
    let found = source.production().filter(|(_, line)| line.contains(&leaves));
    found.map(|(number, _)| (number, format!("`{leaves}` leaves the module"))).collect()
}

fn unsafe_outside(source: &Source) -> Vec<(usize, String)> {
    // The counting allocator of tests/alloc.rs implements an unsafe trait.
    if source.path.starts_with("src/uring/") || source.path == "tests/alloc.rs" {
        return Vec::new();
    }
    let lines = source.code.iter().enumerate().filter(|(_, line)| words(line, "unsafe").next().is_some());
    lines.map(|(i, _)| (i + 1, "unsafe".to_owned())).collect()
}

fn forbids_unsafe(source: &Source) -> Vec<(usize, String)> {
    // uring is where it may be; wire holds generated code, so that its parts forbid it one by one.
    let depth = if source.module() == "wire" { 2 } else { 1 };
    let exempt = !source.path.starts_with("src/") || ["uring", "lib"].contains(&source.module());
    let forbids = source.code.iter().any(|line| line.contains("#![forbid(unsafe_code)]"));
    if exempt || source.depth() != depth || forbids {
        return Vec::new();
    }
    vec![(1, "may hold unsafe code".to_owned())]
}

fn safety(source: &Source) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in source.production() {
        let opens = words(line, "unsafe").any(|(_, to)| {
            let rest = line[to..].trim_start();
            rest.is_empty() || rest.starts_with('{') || rest.starts_with("impl")
        });
        if opens && !comment_above(source, number - 1).contains("SAFETY:") {
            found.push((number, "unsafe without its reason".to_owned()));
        }
    }
    found
}

/// The comment that ends on this line or right above its statement.
fn comment_above(source: &Source, index: usize) -> String {
    let mut text = source.comments[index].clone();
    let mut at = index;
    // A statement may begin a few lines above its `unsafe`.
    while at > 0
        && source.comments[at - 1].trim().is_empty()
        && index - at < 4
        && !source.code[at - 1].contains(';')
    {
        at -= 1;
    }
    while at > 0 && !source.comments[at - 1].trim().is_empty() {
        at -= 1;
        text.insert_str(0, &source.comments[at]);
    }
    text
}

fn clocks(source: &Source) -> Vec<(usize, String)> {
    let may = ["uring", "control", "client", "server", "cli", "main"].contains(&source.module());
    let pure = ["src/client/session.rs", "src/client/gate.rs"].contains(&source.path.as_str());
    if may && !pure {
        return Vec::new();
    }
    uses(source, &["Instant::now", "SystemTime::now", "UNIX_EPOCH"])
}

fn shared_state(source: &Source) -> Vec<(usize, String)> {
    if ["control", "server"].contains(&source.module()) {
        return Vec::new();
    }
    let mut found =
        uses(source, &["Mutex", "RwLock", "thread_local", "OnceLock", "LazyLock", "OnceCell", "lazy_static"]);
    for (number, line) in source.production().filter(|_| source.path.starts_with("src/")) {
        if words(line, "static").any(|(at, _)| !line[..at].ends_with('\'')) {
            found.push((number, "static".to_owned()));
        }
    }
    found
}

fn printing(source: &Source) -> Vec<(usize, String)> {
    if ["cli", "main"].contains(&source.module()) {
        return Vec::new();
    }
    uses(source, &["println!", "eprintln!", "print!", "eprint!", "dbg!"])
}

fn unwraps(source: &Source) -> Vec<(usize, String)> {
    let lines = source.production().filter(|(_, line)| line.contains(".unwrap()"));
    lines.map(|(number, _)| (number, ".unwrap()".to_owned())).collect()
}

fn size(source: &Source) -> Vec<(usize, String)> {
    let lines = source.text.lines().count();
    let mut found = Vec::new();
    if lines > FILE_LINES {
        found.push((lines, format!("{lines} lines, the limit is {FILE_LINES}")));
    }
    for (i, line) in source.text.lines().enumerate() {
        let chars = line.chars().count();
        if chars > LINE_CHARS {
            found.push((i + 1, format!("{chars} characters, the limit is {LINE_CHARS}")));
        }
    }
    found
}

fn purpose(source: &Source) -> Vec<(usize, String)> {
    if source.text.starts_with("//!") {
        Vec::new()
    } else {
        vec![(1, "does not say what it is for".to_owned())]
    }
}

fn file_names(source: &Source) -> Vec<(usize, String)> {
    let stem = source.path.rsplit('/').next().and_then(|leaf| leaf.split('.').next()).unwrap_or("");
    let vague = ["util", "utils", "helper", "helpers", "common", "manager", "types", "misc"];
    if vague.contains(&stem) { vec![(1, format!("'{stem}' names nothing"))] } else { Vec::new() }
}

fn leftovers(source: &Source) -> Vec<(usize, String)> {
    let banned = ["TODO", "FIXME", "XXX", "todo!", "unimplemented!"];
    let lines =
        source.code.iter().zip(&source.comments).enumerate().filter(|_| source.path != "tests/tidy.rs");
    let hit = |code: &str, comment: &str| {
        banned.iter().find(|w| words(code, w).next().is_some() || words(comment, w).next().is_some())
    };
    lines.filter_map(|(i, (code, comment))| Some((i + 1, (*hit(code, comment)?).to_owned()))).collect()
}

fn switched_off(source: &Source) -> Vec<(usize, String)> {
    let lines = source.code.iter().enumerate().filter(|(_, line)| line.contains("#[ignore"));
    lines.map(|(i, _)| (i + 1, "ignored test".to_owned())).collect()
}
