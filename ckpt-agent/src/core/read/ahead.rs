//! How far to read ahead of a program that reads in order.

/// Watches where an image is read, and decides how many more segments to fetch.
#[derive(Clone, Debug)]
pub struct ReadAhead {
    /// File, and offset in it, where the last read ended.
    last_end: Option<(usize, u64)>,
    is_sequential: bool,
    ahead: usize,
    max: usize,
}

impl ReadAhead {
    /// Reads at most `max` segments ahead.
    pub const fn new(max: usize) -> Self {
        Self {
            last_end: None,
            is_sequential: false,
            ahead: 0,
            max,
        }
    }

    /// Notes a read of this part of a file. A read that does not begin where the last one ended, in the same
    /// file, ends the run.
    pub fn read(&mut self, file: usize, from: u64, to: u64) {
        self.is_sequential = self.last_end == Some((file, from));
        if !self.is_sequential {
            self.ahead = 0;
        }
        self.last_end = Some((file, to));
    }

    /// How many segments to fetch beyond those that the read needs: twice the last number as long as each
    /// read begins where the last one ended, and 0 otherwise.
    pub fn more(&mut self) -> usize {
        if !self.is_sequential {
            return 0;
        }
        self.ahead = (self.ahead * 2).max(1).min(self.max);
        self.ahead
    }
}
