//! Which processors run: `[server] cores`, and lists of processors as the kernel writes them.

use std::fmt;
use std::str::FromStr;

use super::Cores;
use super::value::{Fault, quoted};

/// Most cores of one process.
const MOST_CORES: u16 = 1024;

/// Highest number of a processor.
const HIGHEST: u16 = 8191;

impl FromStr for Cores {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Cores, Fault> {
        let fault = |why: &str| {
            let todo = format!(r#"write "auto", a number from 1 to {MOST_CORES}, or a list such as "0-3,8""#);
            (format!("{} {why}", quoted(text)), todo)
        };
        if text == "auto" {
            return Ok(Cores::Auto);
        }
        if let Ok(count) = text.parse::<i128>() {
            let fits = u16::try_from(count).ok().filter(|n| (1..=MOST_CORES).contains(n));
            return fits.map(Cores::Count).ok_or_else(|| fault("is out of range"));
        }
        let list = parse_list(text).ok_or_else(|| fault("names no cores"))?;
        let mut sorted = list.clone();
        sorted.sort_unstable();
        if sorted.windows(2).any(|w| w[0] == w[1]) {
            return Err(fault("names a core twice"));
        }
        if list.len() > usize::from(MOST_CORES) {
            return Err(fault("names too many cores"));
        }
        Ok(Cores::List(list))
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cores::Auto => f.write_str("auto"),
            Cores::Count(n) => write!(f, "{n}"),
            // One processor alone is written as a range, because a number alone is a count.
            Cores::List(list) if list.len() == 1 => write!(f, "{0}-{0}", list[0]),
            Cores::List(list) => f.write_str(&list.iter().map(u16::to_string).collect::<Vec<_>>().join(",")),
        }
    }
}

impl Cores {
    /// The processors to run on, one an entry, given those that the process may use (never empty). A count beyond
    /// them begins again at the first.
    ///
    /// # Errors
    /// Says which processor of a list may not be used, and what to do.
    pub fn resolve(&self, allowed: &[u16]) -> Result<Vec<u16>, String> {
        assert!(!allowed.is_empty(), "a running process has a processor");
        match self {
            Cores::Auto => Ok(allowed.to_vec()),
            Cores::Count(n) => Ok(allowed.iter().copied().cycle().take(usize::from(*n)).collect()),
            Cores::List(list) => match list.iter().find(|c| !allowed.contains(c)) {
                None => Ok(list.clone()),
                Some(c) => Err(format!(
                    "server.cores names processor {c}, which this process may not use; choose from {}",
                    allowed.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
                )),
            },
        }
    }
}

/// Reads a list such as `0-3,8`, also as `Cpus_allowed_list` of /proc/self/status has it. None when it is no list.
pub(super) fn parse_list(text: &str) -> Option<Vec<u16>> {
    let number =
        |s: &str| s.parse::<u16>().ok().filter(|n| *n <= HIGHEST && s.bytes().all(|b| b.is_ascii_digit()));
    let mut list = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return None;
        }
        list.extend(first..=last);
        if list.len() > 2 * usize::from(HIGHEST) {
            return None;
        }
    }
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_shows() {
        for (text, cores) in [
            ("auto", Cores::Auto),
            ("2", Cores::Count(2)),
            ("0-3,8", Cores::List(vec![0, 1, 2, 3, 8])),
            ("8,0", Cores::List(vec![8, 0])),
            ("5-5", Cores::List(vec![5])),
        ] {
            assert_eq!(text.parse(), Ok(cores.clone()), "{text}");
            assert_eq!(cores.to_string().parse(), Ok(cores), "{text}");
        }
        for text in [
            "",
            "0",
            "-1",
            "1025",
            "all",
            "3-1",
            "0,0",
            "0-3,2",
            "1,",
            "+1,2",
            "0-99999",
            "0-8191,0-8191,0-8191",
        ] {
            assert!(text.parse::<Cores>().is_err(), "{text}");
        }
    }

    #[test]
    fn resolves_against_the_affinity_mask() {
        assert_eq!(Cores::Auto.resolve(&[2, 3]), Ok(vec![2, 3]));
        assert_eq!(Cores::Count(1).resolve(&[2, 3]), Ok(vec![2]));
        assert_eq!(Cores::Count(3).resolve(&[2, 3]), Ok(vec![2, 3, 2]));
        assert_eq!(Cores::List(vec![3]).resolve(&[2, 3]), Ok(vec![3]));
        assert!(Cores::List(vec![3, 4]).resolve(&[2, 3]).unwrap_err().contains("processor 4"));
    }
}
