//! Checked access to the bytes of a FlatBuffer: every read is inside the payload, aligned and paid for.
//!
//! Positions count from the payload's start, size prefix included; alignment is relative to it. The crate's
//! own `Verifier` is not used: it charges a shared vtable to every table that uses it, allocates for its
//! errors, and reading what it has verified needs `unsafe`. The tests hold this reader against it.

use super::Malformed;
use crate::limits::{PAYLOAD_VISITS, TABLE_FIELDS};

/// Bytes of a size prefix, and of a root, vector or string offset.
const OFFSET: usize = 4;
/// Bytes of a vtable before its slots: its own size, the table's size.
const VTABLE_HEAD: usize = 4;
/// Slots of a shared vtable that are looked at for the price of one byte. Writers cut a vtable behind its
/// last present field, so a row with a table of n slots has 12 bytes or more and costs 9 + n / 32: within
/// four times 12 for every n that a model can have.
const SLOTS_A_BYTE: usize = 32;
const _: () = assert!(9 + TABLE_FIELDS / SLOTS_A_BYTE <= PAYLOAD_VISITS * 12);

/// Reads one payload. Cheap to make; holds what is left of the budget.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    budget: usize,
}

/// A table whose vtable was checked.
#[derive(Clone, Copy)]
pub(super) struct TableAt<'a> {
    pos: usize,
    /// The vtable behind its head, 2 bytes a slot.
    slots: &'a [u8],
}

impl<'a> TableAt<'a> {
    /// Positions of the fields in slot order; none: absent. All behind the last one are absent too.
    pub(super) fn fields(self) -> impl Iterator<Item = Option<usize>> + use<'a> {
        let (entries, _) = self.slots.as_chunks();
        let offset = |entry: &[u8; 2]| usize::from(u16::from_le_bytes(*entry));
        entries.iter().map(offset).map(move |offset| (offset != 0).then_some(self.pos + offset))
    }
}

/// A vector whose elements are inside the payload.
#[derive(Clone, Copy)]
pub(super) struct VectorAt {
    start: usize,
    len: usize,
    element_bytes: usize,
}

impl VectorAt {
    /// Positions of the elements.
    pub(super) fn positions(self) -> impl ExactSizeIterator<Item = usize> {
        (0..self.len).map(move |i| self.start + i * self.element_bytes)
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(payload: &'a [u8]) -> Reader<'a> {
        Reader { bytes: payload, budget: payload.len().saturating_mul(PAYLOAD_VISITS).saturating_add(64) }
    }

    /// The root table. The size prefix is advisory, the identifier optional: neither is looked at.
    #[inline]
    pub(super) fn root(&mut self) -> Result<TableAt<'a>, Malformed> {
        self.table(OFFSET)
    }

    /// The table that the offset at `pos` points to.
    #[inline]
    pub(super) fn table(&mut self, pos: usize) -> Result<TableAt<'a>, Malformed> {
        let pos = self.follow(pos)?;
        let invalid = Malformed::Vtable { at: pos };
        // Lossless: isize has at least 32 bits where io_uring runs.
        let distance = i32::from_le_bytes(self.array(pos)?) as isize;
        let vtable = pos.checked_sub_signed(distance).ok_or(invalid)?;
        let vtable_bytes = usize::from(self.u16(vtable)?);
        let table_bytes = usize::from(self.u16(vtable + 2)?);
        if vtable_bytes < VTABLE_HEAD || vtable_bytes % 2 != 0 {
            return Err(invalid);
        }
        let slots = &self.range(vtable, vtable_bytes)?[VTABLE_HEAD..];
        self.range(pos, table_bytes).map_err(|_| invalid)?;
        self.pay(OFFSET + slots.len() / (2 * SLOTS_A_BYTE))?;
        Ok(TableAt { pos, slots })
    }

    /// Where the offset at `pos` points to.
    #[inline]
    fn follow(&mut self, pos: usize) -> Result<usize, Malformed> {
        self.pay(OFFSET)?;
        let offset = self.u32(pos)?;
        pos.checked_add(offset).ok_or(Malformed::OutOfRange { at: pos })
    }

    /// The vector that the offset at `pos` points to. Its elements are paid for as they are read or skipped.
    #[inline]
    pub(super) fn vector(&mut self, pos: usize, element_bytes: usize) -> Result<VectorAt, Malformed> {
        let at = self.follow(pos)?;
        let len = self.u32(at)?;
        let start = at + OFFSET;
        let size = len.saturating_mul(element_bytes);
        if !start.is_multiple_of(element_bytes) {
            return Err(Malformed::Unaligned { at: start });
        }
        self.range(start, size)?;
        self.pay(OFFSET)?;
        Ok(VectorAt { start, len, element_bytes })
    }

    /// Passes the elements of a vector by, at the price of reading them.
    #[inline]
    pub(super) fn skip(&mut self, vector: VectorAt) -> Result<(), Malformed> {
        self.pay(vector.len * vector.element_bytes)
    }

    /// The text that the offset at `pos` points to.
    pub(super) fn text(&mut self, pos: usize) -> Result<&'a str, Malformed> {
        let VectorAt { start, len, .. } = self.vector(pos, 1)?;
        let bytes = self.range(start, len)?;
        self.pay(len)?;
        if self.bytes.get(start + len) != Some(&0) {
            return Err(Malformed::NoNul { at: start });
        }
        std::str::from_utf8(bytes).map_err(|_| Malformed::NotUtf8 { at: start })
    }

    /// N bytes at `pos` that are one value; any bits are.
    #[inline]
    pub(super) fn plain<const N: usize>(&mut self, pos: usize) -> Result<[u8; N], Malformed> {
        self.pay(N)?;
        self.array(pos)
    }

    /// Bytes paid for so far.
    #[cfg(test)]
    pub(super) fn spent(&self) -> usize {
        Reader::new(self.bytes).budget - self.budget
    }

    #[inline]
    fn u32(&self, pos: usize) -> Result<usize, Malformed> {
        // Lossless: usize has at least 32 bits where io_uring runs.
        self.array(pos).map(|b| u32::from_le_bytes(b) as usize)
    }

    #[inline]
    fn u16(&self, pos: usize) -> Result<u16, Malformed> {
        self.array(pos).map(u16::from_le_bytes)
    }

    /// N bytes at `pos`, which is a multiple of N.
    #[inline]
    fn array<const N: usize>(&self, pos: usize) -> Result<[u8; N], Malformed> {
        if !pos.is_multiple_of(N) {
            return Err(Malformed::Unaligned { at: pos });
        }
        let rest = self.bytes.get(pos..).and_then(|rest| rest.first_chunk());
        rest.copied().ok_or(Malformed::OutOfRange { at: pos })
    }

    #[inline]
    fn range(&self, pos: usize, len: usize) -> Result<&'a [u8], Malformed> {
        let end = pos.checked_add(len).ok_or(Malformed::OutOfRange { at: pos })?;
        self.bytes.get(pos..end).ok_or(Malformed::OutOfRange { at: pos })
    }

    #[inline]
    fn pay(&mut self, bytes: usize) -> Result<(), Malformed> {
        self.budget = self.budget.checked_sub(bytes).ok_or(Malformed::TooCostly)?;
        Ok(())
    }
}
