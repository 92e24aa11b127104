//! The list of connections with something to send: first in, first out. A vector and how much of it was taken, because
//! a push is part of every delivery and a wrapping queue takes twice the instructions for it.

/// Indexes in the order in which they came.
#[derive(Debug, Default)]
pub struct Fifo {
    items: Vec<u32>,
    taken: usize,
}

/// Taken items that are kept in front of the others at most, besides as many as there are others.
const TAKEN: usize = 1024;

impl Fifo {
    /// Appends.
    #[inline(always)]
    pub fn push(&mut self, item: u32) {
        self.items.push(item);
    }

    /// The first `many`, or as many as there are.
    pub fn first(&self, many: usize) -> &[u32] {
        let items = &self.items[self.taken..];
        &items[..items.len().min(many)]
    }

    /// Takes the first.
    pub fn pop(&mut self) -> Option<u32> {
        let Some(&item) = self.items.get(self.taken) else {
            self.items.clear();
            self.taken = 0;
            return None;
        };
        self.taken += 1;
        // A list that is never empty does not grow.
        if self.taken > TAKEN && self.taken > self.items.len() / 2 {
            self.items.drain(..self.taken);
            self.taken = 0;
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_is_never_empty_keeps_its_order_and_does_not_grow() {
        let mut fifo = Fifo::default();
        fifo.push(0);
        for next in 1..100_000 {
            fifo.push(next);
            assert_eq!(fifo.pop(), Some(next - 1));
        }
        assert!(fifo.items.capacity() <= 4 * TAKEN);
        assert_eq!((fifo.pop(), fifo.pop()), (Some(99_999), None));
        assert_eq!(fifo.taken, 0);
    }
}
