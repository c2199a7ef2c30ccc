//! Jobs from a file in the Standard Workload Format, or in the format of the Grid Workloads Archive, which
//! has the same first sixteen fields.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use sim::batch::Job;

use super::Pool;

/// Counts of the jobs of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwfJobs {
    /// Jobs that are simulated.
    pub jobs: u64,
    /// Jobs without a run time or processors, because they were cancelled before they began.
    pub empty: u64,
    /// Jobs after the end of the pool's window.
    pub late: u64,
    /// Jobs that ask for more processors than their cluster has, and get the whole cluster.
    pub too_large: u64,
}

/// A line of a file: a job, with its time counted from the file's beginning, and the name of its partition.
struct Line {
    job: Job,
    partition: Option<String>,
}

/// Gives a pool's clusters the jobs of a file. The first job comes when the pool's window begins. The file's
/// partitions are assigned to the clusters in order. Jobs without a partition are spread over the clusters
/// in proportion to the clusters' processors.
///
/// # Errors
/// If the file can't be read or a line is no job.
pub fn read_jobs(path: &Path, pool: &mut Pool) -> Result<SwfJobs> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let file: Box<dyn Read> = if path.extension().is_some_and(|ending| ending == "zst") {
        Box::new(zstd::Decoder::new(file)?)
    } else {
        Box::new(file)
    };
    let place = |number: usize| format!("{}:{}", path.display(), number + 1);
    let mut counts = SwfJobs::default();
    let mut lines = Vec::new();
    for (number, line) in BufReader::new(file).lines().enumerate() {
        let line = line.with_context(|| place(number))?;
        let line = line.trim();
        if line.is_empty() || line.starts_with([';', '#']) {
            continue;
        }
        match parse(line).with_context(|| place(number))? {
            Some(line) => lines.push(line),
            None => counts.empty += 1,
        }
    }
    ensure!(!lines.is_empty(), "{}: no jobs", path.display());
    deal(lines, pool, &mut counts);
    Ok(counts)
}

/// Parses a line; `None` for a job that never ran.
fn parse(line: &str) -> Result<Option<Line>> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| -> Result<f64> {
        let field = fields
            .get(at)
            .with_context(|| format!("no field {}", at + 1))?;
        let number: f64 = field
            .parse()
            .with_context(|| format!("field {}: {field:?}", at + 1))?;
        ensure!(number.is_finite(), "field {}: {field:?}", at + 1);
        Ok(number)
    };
    let at = number(1)?;
    let seconds = number(3)?;
    let given = number(4)?;
    // If the number of allocated processors is missing, the requested number is taken.
    let processors = if given > 0.0 {
        given
    } else {
        number(7).unwrap_or(-1.0)
    };
    if at < 0.0 || seconds <= 0.0 || processors < 1.0 {
        return Ok(None);
    }
    let partition = fields
        .get(15)
        .filter(|name| **name != "-1" && **name != "-");
    Ok(Some(Line {
        job: Job {
            at: at as u64,
            processors: processors as u32,
            seconds: (seconds as u64).max(1),
        },
        partition: partition.map(|name| (*name).to_owned()),
    }))
}

fn deal(mut lines: Vec<Line>, pool: &mut Pool, counts: &mut SwfJobs) {
    lines.sort_by_key(|line| line.job.at);
    let first = lines.first().map_or(0, |line| line.job.at);
    let partitions: BTreeSet<String> = lines
        .iter()
        .filter_map(|line| line.partition.clone())
        .collect();
    let partitions: Vec<String> = partitions.into_iter().collect();
    let sizes: Vec<u32> = pool
        .clusters
        .iter()
        .map(super::Cluster::processors)
        .collect();
    let total = f64::from(sizes.iter().sum::<u32>());
    let window = pool.window.clone();
    for (number, line) in lines.into_iter().enumerate() {
        let by_name = line
            .partition
            .as_ref()
            .and_then(|name| partitions.binary_search(name).ok());
        let cluster = by_name.map_or_else(
            || {
                // The fractional parts of multiples of the golden ratio are spread evenly.
                let mut left = (number as f64 * 0.618_033_988_749_894_9).fract() * total;
                let place = sizes.iter().position(|size| {
                    left -= f64::from(*size);
                    left < 0.0
                });
                place.unwrap_or(0)
            },
            |place| place % sizes.len().max(1),
        );
        let job = Job {
            at: window.start + (line.job.at - first),
            ..line.job
        };
        if job.at >= window.end {
            counts.late += 1;
            continue;
        }
        if let Some(cluster) = pool.clusters.get_mut(cluster) {
            counts.jobs += 1;
            counts.too_large += u64::from(job.processors > cluster.processors());
            cluster.jobs.push(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use sim::batch::Node;

    use super::super::Cluster;
    use super::*;

    fn pool() -> Pool {
        let node = |processors| Node {
            processors,
            up: std::iter::once(1000..9000).collect(),
        };
        let cluster = |processors| Cluster {
            nodes: vec![node(processors)],
            jobs: Vec::new(),
        };
        Pool {
            clusters: vec![cluster(4), cluster(12)],
            window: 1000..9000,
        }
    }

    fn read(text: &str) -> (Result<SwfJobs>, Pool) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let mut pool = pool();
        (read_jobs(file.path(), &mut pool), pool)
    }

    #[test]
    fn jobs_go_to_the_clusters_of_their_partitions() {
        let text = "; UnixStartTime: 0\n\
            1 50 3 600 8 -1 -1 8 -1 -1 1 1 1 1 1 2 -1 -1\n\
            2 60 3 0 2 -1 -1 2 -1 -1 5 1 1 1 1 1 -1 -1\n\
            3 70 3 5 -1 -1 -1 6 -1 -1 1 1 1 1 1 1 -1 -1\n\
            4 99050 3 5 1 -1 -1 6 -1 -1 1 1 1 1 1 1 -1 -1\n";
        let (counts, pool) = read(text);
        let expected = SwfJobs {
            jobs: 2,
            empty: 1,
            late: 1,
            too_large: 1,
        };
        assert_eq!(counts.unwrap(), expected);
        let job = |at, processors, seconds| Job {
            at,
            processors,
            seconds,
        };
        assert_eq!(pool.clusters[0].jobs, [job(1020, 6, 5)]);
        assert_eq!(pool.clusters[1].jobs, [job(1000, 8, 600)]);
    }

    #[test]
    fn without_partitions_clusters_get_jobs_in_proportion_to_their_size() {
        let text: String = (0..400).map(|i| format!("{i} {i} 0 10 1\n")).collect();
        let (counts, pool) = read(&text);
        assert_eq!(counts.unwrap().jobs, 400);
        assert!((98..=102).contains(&pool.clusters[0].jobs.len()));
    }

    #[test]
    fn a_line_that_is_no_job_is_reported_with_its_number() {
        for (text, wrong) in [
            ("1 2 3\n", ":1"),
            ("1 2 3 4 5\n1 x 3 4 5\n", ":2"),
            ("", "no jobs"),
        ] {
            let error = format!("{:#}", read(text).0.unwrap_err());
            assert!(error.contains(wrong), "{error}");
        }
    }
}
