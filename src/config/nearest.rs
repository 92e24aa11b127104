//! Which known word someone meant.

use super::value::{Fault, quoted};

/// The known word nearest to `word`, if one is near: at most a third of it wrong, letter case apart.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: Vec<char> = word.to_lowercase().chars().take(MOST_CHARS).collect();
    let near = known.into_iter().map(|k| (edits(&word, k), k)).min_by_key(|(n, _)| *n);
    near.filter(|(n, k)| *n <= 1 + k.chars().count() / 3).map(|(_, k)| k)
}

/// Longer words are compared by their beginning.
const MOST_CHARS: usize = 64;

/// Insertions, deletions, replacements and swaps of neighbours that turn one word into the other.
fn edits(a: &[char], b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    // Rows i-2 and i-1 of the table of distances between prefixes.
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

/// A word that is none of the known ones.
pub(super) fn not_one_of(word: &str, known: &[&str]) -> Fault {
    let list: Vec<String> = known.iter().map(|k| format!("\"{k}\"")).collect();
    match nearest(word, known.iter().copied()) {
        Some(near) => {
            let what = format!("{} is not one of {}", quoted(word), list.join(", "));
            (what, format!("did you mean \"{near}\"?"))
        }
        None => (format!("{} is not known here", quoted(word)), format!("write {}", list.join(" or "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_word_meant() {
        let known = ["max_connections", "max_message_size", "listen", "path", "ttl"];
        for (word, near) in [
            ("max_conections", Some("max_connections")),
            ("max_connection", Some("max_connections")),
            ("LISTEN", Some("listen")),
            ("lsiten", Some("listen")),
            ("ttk", Some("ttl")),
            ("frobnicate", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), near, "{word}");
        }
        assert_eq!(nearest(&"x".repeat(100_000), known), None);
    }
}
