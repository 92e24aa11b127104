//! One Rust file as the rules see it: code without comments and literals, comments without code, and which lines are
//! test code. Line numbers stay those of the file.

use std::path::{Path, PathBuf};

/// A file of the repository.
pub struct Source {
    /// Relative to the repository, with forward slashes.
    pub path: String,
    /// As it is.
    pub text: String,
    /// Lines of code; comments and the insides of literals are blanks.
    pub code: Vec<String>,
    /// Lines of comments; everything else is blanks.
    pub comments: Vec<String>,
    /// Whether a line belongs to an item under `#[cfg(test)]`, or the whole file to the tests.
    pub in_test: Vec<bool>,
}

impl Source {
    /// Takes a file apart.
    pub fn new(path: &str, text: &str) -> Source {
        let (code, comments) = split(text);
        let code: Vec<String> = code.lines().map(str::to_owned).collect();
        let comments = comments.lines().map(str::to_owned).collect();
        let all_test = ["tests/", "loom/"].iter().any(|folder| path.starts_with(folder))
            || path.ends_with("/tests.rs")
            || path.contains("/tests/");
        let mut in_test = vec![all_test; code.len()];
        for start in (0..code.len()).filter(|&i| code[i].contains("#[cfg(test)]")) {
            let end = end_of_item(&code, start, 0).unwrap_or(start);
            in_test[start..=end].fill(true);
        }
        Source { path: path.to_owned(), text: text.to_owned(), code, comments, in_test }
    }

    /// The top module that the file belongs to: "shard" for `src/shard/store.rs` and for `src/shard.rs`.
    pub fn module(&self) -> &str {
        let inner = self.path.strip_prefix("src/").unwrap_or(&self.path);
        inner.split('/').next().map_or(inner, |top| top.strip_suffix(".rs").unwrap_or(top))
    }

    /// How deep the file's module lies below the crate: 1 for `src/shard/mod.rs`, 2 for `src/shard/store.rs`.
    pub fn depth(&self) -> usize {
        let inner = self.path.strip_prefix("src/").unwrap_or(&self.path);
        inner.split('/').filter(|part| *part != "mod.rs").count()
    }

    /// Lines of code outside tests, numbered from 1.
    pub fn production(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code
            .iter()
            .enumerate()
            .filter(|(i, _)| !self.in_test[*i])
            .map(|(i, line)| (i + 1, line.as_str()))
    }

    /// Functions outside tests: name, first line from 1, number of lines.
    pub fn functions(&self) -> Vec<(String, usize, usize)> {
        let mut found = Vec::new();
        for (number, line) in self.production() {
            for (at, _) in words(line, "fn") {
                let name: String = line[at + 2..].trim_start().chars().take_while(|c| is_word(*c)).collect();
                let Some(end) = end_of_item(&self.code, number - 1, at).filter(|_| !name.is_empty()) else {
                    continue;
                };
                found.push((name, number, end + 2 - number));
            }
        }
        found
    }
}

/// Places of a whole word in a line: byte offset before and after.
pub fn words<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = (usize, usize)> + 'a {
    line.match_indices(word).map(move |(at, _)| (at, at + word.len())).filter(|&(from, to)| {
        !line[..from].chars().next_back().is_some_and(is_word)
            && !line[to..].chars().next().is_some_and(is_word)
    })
}

/// Part of an identifier.
pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Last line of the item that begins at a place: the closing brace of its first block, or its semicolon.
fn end_of_item(code: &[String], line: usize, column: usize) -> Option<usize> {
    let (mut braces, mut others) = (0, 0);
    for (i, text) in code.iter().enumerate().skip(line) {
        for c in text.chars().skip(if i == line { column } else { 0 }) {
            match c {
                '(' | '[' => others += 1,
                ')' | ']' => others -= 1,
                '{' => braces += 1,
                '}' => braces -= 1,
                ';' if braces == 0 && others == 0 => return Some(i),
                _ => continue,
            }
            if c == '}' && braces == 0 {
                return Some(i);
            }
        }
    }
    None
}

/// What a character belongs to.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Code,
    Comment,
    Literal,
}

/// Splits a file into code and comments of the same shape.
fn split(text: &str) -> (String, String) {
    let chars: Vec<char> = text.chars().collect();
    let mut parts = vec![Part::Code; chars.len()];
    let mut at = 0;
    while at < chars.len() {
        let (part, end) = token(&chars, at);
        parts[at..end].fill(part);
        at = end;
    }
    let keep = |wanted: Part| {
        let pick = |(c, part): (&char, &Part)| if *c == '\n' || *part == wanted { *c } else { ' ' };
        chars.iter().zip(&parts).map(pick).collect::<String>()
    };
    (keep(Part::Code), keep(Part::Comment))
}

/// The token at a place: what it is and where it ends.
fn token(chars: &[char], at: usize) -> (Part, usize) {
    let next = |offset: usize| chars.get(at + offset).copied().unwrap_or('\0');
    let after_word = at > 0 && is_word(chars[at - 1]);
    match (chars[at], next(1)) {
        ('/', '/') => (Part::Comment, find(chars, at, |c| c == '\n')),
        ('/', '*') => (Part::Comment, end_of_block_comment(chars, at)),
        ('"', _) => (Part::Literal, end_of_string(chars, at)),
        ('r', '"' | '#') if !after_word || chars[at - 1] == 'b' => match end_of_raw_string(chars, at + 1) {
            Some(end) => (Part::Literal, end),
            None => (Part::Code, at + 1),
        },
        ('\'', '\\') => (Part::Literal, find(chars, at + 3, |c| c == '\'') + 1),
        ('\'', _) if next(2) == '\'' => (Part::Literal, at + 3),
        _ => (Part::Code, at + 1),
    }
}

fn find(chars: &[char], from: usize, wanted: impl Fn(char) -> bool) -> usize {
    chars.iter().skip(from).position(|c| wanted(*c)).map_or(chars.len(), |n| from + n)
}

fn end_of_block_comment(chars: &[char], start: usize) -> usize {
    let (mut depth, mut at) = (0, start);
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => (depth, at) = (depth + 1, at + 1),
            ('*', '/') => (depth, at) = (depth - 1, at + 1),
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

fn end_of_string(chars: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

fn end_of_raw_string(chars: &[char], hashes_from: usize) -> Option<usize> {
    let quote = find(chars, hashes_from, |c| c != '#');
    let hashes = quote - hashes_from;
    if chars.get(quote) != Some(&'"') {
        return None;
    }
    let closes = |&at: &usize| {
        chars[at] == '"' && chars[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
    };
    Some((quote + 1..chars.len()).find(closes).map_or(chars.len(), |at| at + 1 + hashes))
}

/// Every file under a folder of the repository whose name ends so, in order of the paths. Folders that hold other
/// people's text or what a build left are passed over.
pub fn files(folder: &str, extensions: &[&str]) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = vec![root.join(folder)];
    while let Some(next) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&next) else { continue };
        for entry in entries {
            let path = entry.expect("a folder of the repository can be read").path();
            let name = path.strip_prefix(root).expect("inside").to_string_lossy().replace('\\', "/");
            let leaf = name.rsplit('/').next().unwrap_or(&name);
            if path.is_dir() {
                let foreign = ["tests/conformance", "tests/vectors"].contains(&name.as_str());
                if !foreign
                    && !["target", "node_modules", ".git", "corpus", "results", "__pycache__"].contains(&leaf)
                {
                    folders.push(path);
                }
            } else if extensions.iter().any(|e| leaf.ends_with(e)) && !leaf.ends_with("_generated.rs") {
                found.push((name, std::fs::read_to_string(&path).expect("text files are UTF-8")));
            }
        }
    }
    found.sort();
    found
}
