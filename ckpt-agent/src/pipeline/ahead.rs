//! Bytes that were read as segments, but have to be cut into segments anew, because a segment before them
//! ended early.

use std::collections::VecDeque;

use codec::geometry::SEGMENT_BYTES;

/// The bytes to be cut anew, in order.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    parts: VecDeque<Part>,
}

#[derive(Debug)]
struct Part {
    raw: Vec<u8>,
    /// Offset of the first byte that is not used yet.
    from: usize,
    /// Whether the source ended a segment at the end of `raw`.
    ends: bool,
}

impl Part {
    const fn new(raw: Vec<u8>, from: usize) -> Self {
        Self {
            from,
            ends: raw.len() < SEGMENT_BYTES,
            raw,
        }
    }
}

impl Ahead {
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Puts the bytes of `raw` from `from` on before all others.
    pub(super) fn push_front(&mut self, raw: Vec<u8>, from: usize) {
        self.parts.push_front(Part::new(raw, from));
    }

    /// Puts a whole segment after all others.
    pub(super) fn push_back(&mut self, raw: Vec<u8>) {
        self.parts.push_back(Part::new(raw, 0));
    }

    /// Moves the bytes of the next segment into `buffer`, and used-up buffers into `back`. Returns whether
    /// the segment is complete; if not, nothing is left here, and the rest has to be read from the source.
    pub(super) fn take(&mut self, mut buffer: Vec<u8>, back: &mut Vec<Vec<u8>>) -> (Vec<u8>, bool) {
        buffer.clear();
        while buffer.len() < SEGMENT_BYTES {
            let Some(mut part) = self.parts.pop_front() else {
                return (buffer, false);
            };
            if buffer.is_empty() && part.from == 0 {
                back.push(std::mem::replace(&mut buffer, part.raw));
                if part.ends {
                    return (buffer, true);
                }
                continue;
            }
            let rest = part.raw.get(part.from..).unwrap_or_default();
            let (now, later) = rest.split_at(rest.len().min(SEGMENT_BYTES - buffer.len()));
            buffer.extend_from_slice(now);
            part.from += now.len();
            if !later.is_empty() {
                self.parts.push_front(part);
            } else {
                back.push(part.raw);
                if part.ends {
                    return (buffer, true);
                }
            }
        }
        (buffer, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_end_where_the_source_ended_them() {
        let mut ahead = Ahead::default();
        let mut back = Vec::new();
        ahead.push_back(vec![2; SEGMENT_BYTES]);
        ahead.push_back(vec![3; 10]);
        ahead.push_back(vec![4; SEGMENT_BYTES]);
        ahead.push_back(vec![5; SEGMENT_BYTES]);
        ahead.push_front(vec![1; SEGMENT_BYTES], SEGMENT_BYTES - 5);
        let mut take = || ahead.take(Vec::new(), &mut back);
        let mut second = vec![1; 5];
        second.resize(SEGMENT_BYTES, 2);
        assert_eq!(take(), (second, true));
        assert_eq!(take(), ([vec![2; 5], vec![3; 10]].concat(), true));
        assert_eq!(take(), (vec![4; SEGMENT_BYTES], true));
        assert_eq!(take(), (vec![5; SEGMENT_BYTES], true));
        assert_eq!(take(), (vec![], false));
        ahead.push_front(vec![6; SEGMENT_BYTES], 1);
        assert_eq!(
            ahead.take(Vec::new(), &mut back),
            (vec![6; SEGMENT_BYTES - 1], false)
        );
        assert!(ahead.is_empty());
    }
}
