//! Masking (RFC 6455 5.3), many bytes at a time.

#![forbid(unsafe_code)]

/// Masks or unmasks in place; the key's first byte belongs to the first byte of `payload`.
pub fn mask(payload: &mut [u8], key: [u8; 4]) {
    let [a, b, c, d] = key;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    // Groups of 32 bytes: the compiler makes vector instructions of whatever width the target has.
    let (groups, rest) = payload.as_chunks_mut::<32>();
    for group in groups {
        for word in group.as_chunks_mut::<8>().0 {
            *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
        }
    }
    let (words, tail) = rest.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    let (half, tail) = match tail.split_first_chunk_mut::<4>() {
        Some((half, tail)) => (Some(half), tail),
        None => (None, tail),
    };
    if let Some(half) = half {
        *half = (u32::from_ne_bytes(*half) ^ u32::from_ne_bytes(key)).to_ne_bytes();
    }
    for (byte, key) in tail.iter_mut().zip(key) {
        *byte ^= key;
    }
}
