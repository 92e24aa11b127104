//! One listing out of those of all cores, in slices.

use std::collections::VecDeque;

use super::hub::{Hub, Unanswered};
use crate::limits::LISTING_ROWS;
use crate::shard::step::{Answer, Ask, ClientRow, CoreId, RoomRow};

/// A row of a listing, in order of its key.
pub trait Row {
    /// Client id or room name.
    fn key(&self) -> &str;

    /// Takes in the row that another core has for the same key.
    fn join(&mut self, other: Self);
}

impl Row for ClientRow {
    fn key(&self) -> &str {
        &self.id
    }

    /// An id lives on one core; while it moves, either row will do.
    fn join(&mut self, _other: Self) {}
}

impl Row for RoomRow {
    fn key(&self) -> &str {
        &self.name
    }

    fn join(&mut self, other: Self) {
        self.members += other.members;
        self.parked += other.parked;
        self.topic_seq = self.topic_seq.max(other.topic_seq);
    }
}

/// Rows of one page.
#[derive(Debug, PartialEq)]
pub struct Page<R> {
    /// In order of their keys.
    pub rows: Vec<R>,
    /// There are more behind the last one.
    pub more: bool,
}

/// Gathers a page of at most `limit` rows that pass `keep`, with keys greater than `after`.
///
/// # Errors
/// A core does not answer.
pub async fn page<R: Row>(
    hub: &Hub,
    after: Option<Box<str>>,
    limit: usize,
    ask: impl Fn(Option<Box<str>>, usize) -> Ask,
    rows_of: impl Fn(Answer) -> (Vec<R>, bool),
    keep: impl Fn(&R) -> bool,
) -> Result<Page<R>, Unanswered> {
    let slice = LISTING_ROWS.min(limit + 1);
    let mut merge = Merge::new(hub.cores(), after);
    let mut rows = Vec::new();
    loop {
        let hungry: Vec<_> = merge.hungry().map(|(core, after)| (core, ask(after, slice))).collect();
        for (core, answer) in hub.ask_each(hungry).await? {
            let (rows, more) = rows_of(answer);
            merge.feed(core, rows, more);
        }
        match merge.pop() {
            Popped::Row(row) if !keep(&row) => {}
            Popped::Row(_) if rows.len() == limit => return Ok(Page { rows, more: true }),
            Popped::Row(row) => rows.push(row),
            Popped::Hungry => {}
            Popped::End => return Ok(Page { rows, more: false }),
        }
    }
}

/// Merges sorted rows of several cores.
struct Merge<R> {
    sources: Vec<Source<R>>,
}

struct Source<R> {
    rows: VecDeque<R>,
    /// Key of the last row that came, or where the listing begins.
    last: Option<Box<str>>,
    /// The core has rows behind `last`.
    more: bool,
}

/// The next step of a merge.
#[derive(Debug, PartialEq)]
enum Popped<R> {
    Row(R),
    /// A source has to be fed first.
    Hungry,
    End,
}

impl<R: Row> Merge<R> {
    fn new(cores: usize, after: Option<Box<str>>) -> Merge<R> {
        let source = || Source { rows: VecDeque::new(), last: after.clone(), more: true };
        Merge { sources: (0..cores).map(|_| source()).collect() }
    }

    /// Cores that have more rows but none here, and the key behind which they go on.
    fn hungry(&self) -> impl Iterator<Item = (CoreId, Option<Box<str>>)> {
        let hungry = self.sources.iter().enumerate().filter(|(_, s)| s.is_hungry());
        hungry.map(|(core, s)| (core as CoreId, s.last.clone()))
    }

    fn feed(&mut self, core: CoreId, rows: Vec<R>, more: bool) {
        let source = &mut self.sources[usize::from(core)];
        // A core that promises more and sends nothing would be asked for ever.
        source.more = more && !rows.is_empty();
        if let Some(last) = rows.last() {
            source.last = Some(last.key().into());
        }
        source.rows.extend(rows);
    }

    /// The row with the smallest key, joined from all cores that have it.
    fn pop(&mut self) -> Popped<R> {
        if self.sources.iter().any(Source::is_hungry) {
            return Popped::Hungry;
        }
        let smallest =
            self.sources.iter().enumerate().filter_map(|(at, s)| Some((s.rows.front()?.key(), at))).min();
        let Some((_, at)) = smallest else { return Popped::End };
        let mut row = self.sources[at].rows.pop_front().expect("the smallest row is a front row");
        for source in &mut self.sources[at + 1..] {
            if source.rows.front().is_some_and(|other| other.key() == row.key()) {
                row.join(source.rows.pop_front().expect("there is a front row"));
            }
        }
        Popped::Row(row)
    }
}

impl<R> Source<R> {
    fn is_hungry(&self) -> bool {
        self.rows.is_empty() && self.more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(name: &str, members: u64) -> RoomRow {
        RoomRow { name: name.into(), members, parked: 0, topic_seq: members }
    }

    /// Feeds slices of `slice` rows as cores would, and returns all rows.
    fn merged(cores: &[Vec<RoomRow>], slice: usize, after: Option<&str>) -> Vec<(String, u64)> {
        let mut merge = Merge::new(cores.len(), after.map(Into::into));
        let mut all = Vec::new();
        loop {
            let hungry: Vec<_> = merge.hungry().collect();
            for (core, after) in hungry {
                let behind = |row: &&RoomRow| after.as_deref().is_none_or(|after| &*row.name > after);
                let mut rest = cores[usize::from(core)].iter().filter(behind).cloned();
                let rows: Vec<_> = rest.by_ref().take(slice).collect();
                merge.feed(core, rows, rest.next().is_some());
            }
            match merge.pop() {
                Popped::Row(row) => all.push((row.name.into(), row.members)),
                Popped::Hungry => {}
                Popped::End => return all,
            }
        }
    }

    #[test]
    fn rows_of_all_cores_come_in_order_and_joined() {
        let cores = [
            vec![room("", 1), room("a", 1), room("c", 1), room("e", 1), room("f", 1)],
            vec![],
            vec![room("a", 2), room("b", 2), room("e", 2)],
            vec![room("e", 4), room("z", 4)],
        ];
        let all = [("", 1), ("a", 3), ("b", 2), ("c", 1), ("e", 7), ("f", 1), ("z", 4)];
        let all = all.map(|(name, members)| (name.to_string(), members));
        for slice in 1..6 {
            assert_eq!(merged(&cores, slice, None), all, "slices of {slice}");
            assert_eq!(merged(&cores, slice, Some("b")), all[3..], "slices of {slice} after b");
        }
    }

    #[test]
    fn a_core_that_promises_more_and_sends_nothing_is_not_asked_again() {
        let mut merge = Merge::<RoomRow>::new(1, None);
        merge.feed(0, vec![], true);
        assert_eq!(merge.hungry().count(), 0);
        assert_eq!(merge.pop(), Popped::End);
    }
}
