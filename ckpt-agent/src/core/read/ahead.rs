//! How far to read ahead of somebody who reads in order.

/// Watches where an image is read, and says how many segments more to fetch.
#[derive(Clone, Debug)]
pub struct ReadAhead {
    /// File and place in it where the last read ended.
    last_end: Option<(usize, u64)>,
    is_sequential: bool,
    ahead: usize,
    max: usize,
}

impl ReadAhead {
    /// At most `max` segments ahead.
    pub const fn new(max: usize) -> Self {
        Self {
            last_end: None,
            is_sequential: false,
            ahead: 0,
            max,
        }
    }

    /// Notes that this part of a file is read. Bytes that are skipped end a run, as does going back.
    pub fn read(&mut self, file: usize, from: u64, to: u64) {
        self.is_sequential = self.last_end == Some((file, from));
        if !self.is_sequential {
            self.ahead = 0;
        }
        self.last_end = Some((file, to));
    }

    /// Segments to fetch beyond those that are needed now: twice as many as the last time for as long as
    /// reads follow each other, none otherwise.
    pub fn more(&mut self) -> usize {
        if !self.is_sequential {
            return 0;
        }
        self.ahead = (self.ahead * 2).max(1).min(self.max);
        self.ahead
    }
}
