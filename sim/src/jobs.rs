//! Numbers of jobs in a grid. They have a type of their own because most functions take a job and a host.

use std::ops::{Index, IndexMut};

use crate::job::Job;

/// The number of a job among the jobs of a grid, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobIndex(usize);

impl JobIndex {
    /// The numbers of this many jobs.
    pub(crate) fn first(count: usize) -> impl Iterator<Item = Self> {
        (0..count).map(Self)
    }

    /// The number as a key of random draws.
    pub(crate) const fn key(self) -> u64 {
        self.0 as u64
    }
}

/// The jobs of a grid, by their number.
pub(crate) struct Jobs(Vec<Job>);

impl Jobs {
    pub(crate) fn indices(&self) -> impl Iterator<Item = JobIndex> + use<> {
        JobIndex::first(self.0.len())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Job> {
        self.0.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Job> {
        self.0.iter_mut()
    }
}

impl FromIterator<Job> for Jobs {
    fn from_iter<T: IntoIterator<Item = Job>>(jobs: T) -> Self {
        Self(jobs.into_iter().collect())
    }
}

impl IntoIterator for Jobs {
    type Item = Job;
    type IntoIter = std::vec::IntoIter<Job>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl Index<JobIndex> for Jobs {
    type Output = Job;

    fn index(&self, job: JobIndex) -> &Job {
        &self.0[job.0]
    }
}

impl IndexMut<JobIndex> for Jobs {
    fn index_mut(&mut self, job: JobIndex) -> &mut Job {
        &mut self.0[job.0]
    }
}
