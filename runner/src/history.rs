//! The history of runs that ended with exit status 0: a file with one JSON object per line and many
//! writers.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use supervision::forecast::{Model, PastRun, RUNS_MAX, cost_of_nearest};

use super::kind::Kind;
use ckpt_agent::file_lock;

/// Name of the history in the state directory.
pub const HISTORY: &str = "runs.jsonl";

/// Size of the file, in bytes, above which its older half is removed.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Longest line of the file, bytes.
const LINE_BYTES_MAX: usize = 64 << 10;

/// The speed of a host is taken from this many of its newest runs.
const SPEEDS_MAX: usize = 5;

/// Longest wait for other writers.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// A run that has ended with exit status 0, over all its incarnations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PastLine {
    /// When it ended, Unix seconds.
    pub ended_at: u64,
    /// Name of the job.
    pub job: String,
    /// The program and its words, with `#` for each number.
    pub words: Vec<String>,
    /// The numbers, in the order of the words.
    pub numbers: Vec<f64>,
    /// Processor time at reference speed, seconds.
    pub cpu_s: f64,
    /// Time in which it could run, converted to seconds of a machine of reference speed.
    pub work_s: f64,
    /// Time from its first start to its end, seconds.
    pub elapsed_s: f64,
    /// The longest time without a sign of life, seconds.
    pub quiet_s: f64,
    /// How often it was started.
    pub starts: u32,
    /// Speed of the machine on which it ended, 1 for the reference.
    pub speed: f64,
    /// The name of that machine in the grid; `None` if it is no host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The forecast at its first start; `None` if nothing was known.
    pub forecast: Option<CpuForecast>,
}

/// A forecast of processor time at reference speed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuForecast {
    /// Forecast processor time, seconds at reference speed.
    pub cpu_s: f64,
    /// Lower end of the interval, seconds; `None` if it rests on a single run.
    pub low_s: Option<f64>,
    /// Upper end of the interval, seconds.
    pub high_s: Option<f64>,
    /// Share of runs that lie in the interval, 0 to 1.
    pub share: Option<f64>,
    /// Processor time of the run with the nearest numbers, seconds (the rule of AVAM, for comparison).
    pub nearest_s: f64,
    /// How many runs it rests on.
    pub runs: usize,
}

/// What comparable runs let expect of a run.
#[derive(Clone, Debug)]
pub struct Outlook {
    /// Forecast of the run's processor time.
    pub cpu: CpuForecast,
    /// Time in which it has to be allowed to run, in seconds of a machine of reference speed.
    pub work_s: f64,
    /// The longest time without a sign of life in any of these runs, seconds.
    pub quiet_s: f64,
    /// Positions of the numbers that lie outside the range of all earlier ones.
    pub outside: Vec<usize>,
}

/// The contents of a history.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The runs, in the order in which they ended.
    pub runs: Vec<PastLine>,
    /// How many lines are not runs.
    pub unreadable: usize,
}

/// Why a history can't be used.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// Reading or writing the file failed.
    #[error("history {path}: {cause}", path = path.display())]
    Io {
        /// Path of the history file.
        path: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
    /// Another process holds the lock for too long.
    #[error("history {path}: locked by another process for more than {LOCK_TIMEOUT:?}", path = .0.display())]
    Busy(PathBuf),
    /// The line of the run is too long.
    #[error("history {path}: a line of {bytes} bytes, at most {LINE_BYTES_MAX} are allowed: use --param to name the parameters that matter", path = path.display())]
    TooLong {
        /// Path of the history file.
        path: PathBuf,
        /// Length of the line.
        bytes: usize,
    },
}

impl History {
    /// Reads a history; empty if the file does not exist.
    ///
    /// # Errors
    /// When the file exists and can't be read.
    pub fn read(path: &Path) -> Result<Self, HistoryError> {
        let (runs, unreadable) = read_lines(path, PastLine::is_sound)?;
        Ok(Self { runs, unreadable })
    }

    /// The newest runs with the same words, in the order in which they ended.
    pub fn comparable(&self, kind: &Kind) -> Vec<&PastLine> {
        let same =
            |run: &&&PastLine| run.words == kind.words && run.numbers.len() == kind.numbers.len();
        let mut newest: Vec<&PastLine> = self.runs.iter().rev().filter(|run| same(&run)).collect();
        newest.truncate(RUNS_MAX);
        newest.reverse();
        newest
    }

    /// The speed of each host: the median over its newest runs.
    pub fn speeds(&self) -> BTreeMap<String, f64> {
        let mut newest: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for run in self.runs.iter().rev() {
            let Some(host) = run.host.as_deref().filter(|_| run.speed > 0.0) else {
                continue;
            };
            let speeds = newest.entry(host).or_default();
            if speeds.len() < SPEEDS_MAX {
                speeds.push(run.speed);
            }
        }
        let medians = newest.into_iter().filter_map(|(host, mut speeds)| {
            speeds.sort_by(f64::total_cmp);
            Some((host.to_owned(), *speeds.get(speeds.len() / 2)?))
        });
        medians.collect()
    }

    /// What comparable runs let expect of a run of this kind; `None` if there are none.
    pub fn outlook(&self, kind: &Kind) -> Option<Outlook> {
        let runs = self.comparable(kind);
        let of = |cost: fn(&PastLine) -> f64| -> Vec<PastRun> {
            let past = runs.iter().map(|run| PastRun {
                numbers: run.numbers.clone(),
                cost: cost(run).max(SHORTEST_S),
            });
            past.collect()
        };
        let cpu = of(|run| run.cpu_s);
        let forecast = Model::new(&cpu)?.forecast(&kind.numbers)?;
        let work = Model::new(&of(|run| run.work_s))?.forecast(&kind.numbers)?;
        Some(Outlook {
            cpu: CpuForecast {
                cpu_s: forecast.cost,
                low_s: forecast.interval.map(|one| one.low),
                high_s: forecast.interval.map(|one| one.high),
                share: forecast.interval.map(|one| one.share),
                nearest_s: cost_of_nearest(&cpu, &kind.numbers)?,
                runs: forecast.runs,
            },
            work_s: work.cost,
            quiet_s: runs.iter().map(|run| run.quiet_s).fold(0.0, f64::max),
            outside: forecast.outside,
        })
    }
}

/// Shortest time that differs from none, seconds: a clock tick of the kernel.
const SHORTEST_S: f64 = 0.01;

impl PastLine {
    /// Whether its figures are possible.
    fn is_sound(&self) -> bool {
        let times = [
            self.cpu_s,
            self.work_s,
            self.elapsed_s,
            self.quiet_s,
            self.speed,
        ];
        times.iter().all(|time| time.is_finite() && *time >= 0.0)
    }

    /// Appends the run to the history in a file. Other processes may do so at the same time.
    ///
    /// # Errors
    /// When the run was not added.
    pub fn append(&self, path: &Path) -> Result<(), HistoryError> {
        append_line(path, self)
    }
}

/// The lines of a file of JSON objects for which `is_sound` holds, and the number of the others; none if the file does
/// not exist.
///
/// # Errors
/// When the file exists and can't be read.
pub(super) fn read_lines<T: DeserializeOwned>(
    path: &Path,
    is_sound: fn(&T) -> bool,
) -> Result<(Vec<T>, usize), HistoryError> {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| {
        // A file that someone else has filled is not read without a limit.
        file.take(2 * FILE_BYTES_MAX).read_to_end(&mut text)
    });
    match read {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), 0)),
        Err(cause) => return Err(io_error(path)(cause)),
        Ok(_) => {}
    }
    let mut lines = Vec::new();
    let mut unreadable = 0;
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        // The last line may be incomplete, because it is being written.
        let Some(line) = line.strip_suffix(b"\n") else {
            continue;
        };
        match serde_json::from_slice::<T>(line) {
            Ok(read) if is_sound(&read) => lines.push(read),
            _ if line.is_empty() => {}
            _ => unreadable += 1,
        }
    }
    Ok((lines, unreadable))
}

/// Appends an object as a line to a file. Other processes may do so at the same time.
///
/// # Errors
/// When the line was not added.
pub(super) fn append_line(path: &Path, value: &impl Serialize) -> Result<(), HistoryError> {
    let mut line = serde_json::to_vec(value).map_err(|cause| io_error(path)(cause.into()))?;
    line.push(b'\n');
    if line.len() > LINE_BYTES_MAX {
        return Err(HistoryError::TooLong {
            path: path.to_owned(),
            bytes: line.len(),
        });
    }
    if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
        fs::create_dir_all(above).map_err(io_error(above))?;
    }
    let _lock = lock(path)?;
    let mut file = open(path).map_err(io_error(path))?;
    let added = add(&mut file, &line);
    let bytes = added.map_err(io_error(path))?;
    if bytes > FILE_BYTES_MAX {
        halve(path).map_err(io_error(path))?;
    }
    Ok(())
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> HistoryError {
    let path = path.to_owned();
    move |cause| HistoryError::Io { path, cause }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    // Only the user may read it, since it contains command lines.
    options.read(true).append(true).create(true).mode(0o600);
    options.open(path)
}

/// Appends a line, and returns the new size of the file.
fn add(file: &mut File, line: &[u8]) -> io::Result<u64> {
    let bytes = file.seek(SeekFrom::End(0))?;
    let mut whole = Vec::with_capacity(line.len() + 1);
    if bytes > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            // A writer was killed in the middle of the line before.
            whole.push(b'\n');
        }
    }
    whole.extend_from_slice(line);
    file.write_all(&whole)?;
    file.sync_data()?;
    Ok(bytes + whole.len() as u64)
}

/// Removes the older half of the lines.
fn halve(path: &Path) -> io::Result<()> {
    let text = fs::read(path)?;
    let half = text.get(text.len() / 2..).unwrap_or_default();
    let next = half
        .iter()
        .position(|byte| *byte == b'\n')
        .map_or(half.len(), |end| end + 1);
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = dir.unwrap_or_else(|| Path::new("."));
    let mut kept = tempfile::NamedTempFile::new_in(dir)?;
    kept.write_all(half.get(next..).unwrap_or_default())?;
    kept.as_file().sync_all()?;
    kept.persist(path)?;
    Ok(())
}

/// Locks a history. The lock is on a file beside it, because the history itself may be replaced.
fn lock(path: &Path) -> Result<File, HistoryError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".lock");
    let beside = path.with_file_name(name);
    let file = open(&beside).map_err(io_error(&beside))?;
    file_lock::lock(&file, LOCK_TIMEOUT).map_err(|cause| match cause.kind() {
        io::ErrorKind::ResourceBusy => HistoryError::Busy(beside.clone()),
        _ => io_error(&beside)(cause),
    })?;
    Ok(file)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn run(steps: f64, cpu_s: f64) -> PastLine {
        PastLine {
            ended_at: 1,
            job: "42".into(),
            words: vec!["sim".into(), "#".into()],
            numbers: vec![steps],
            cpu_s,
            work_s: 2.0 * cpu_s,
            elapsed_s: 3.0 * cpu_s,
            quiet_s: steps,
            starts: 1,
            speed: 1.0,
            host: None,
            forecast: None,
        }
    }

    fn kind(steps: f64) -> Kind {
        Kind {
            words: vec!["sim".into(), "#".into()],
            numbers: vec![steps],
        }
    }

    #[test]
    fn many_writers_lose_no_line_and_tear_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("below/runs.jsonl");
        std::thread::scope(|scope| {
            for writer in 0..8_u32 {
                let path = &path;
                scope.spawn(move || {
                    for line in 0..20_u32 {
                        let one = run(f64::from(writer * 100 + line), 1.0);
                        one.append(path).unwrap();
                    }
                });
            }
        });
        let history = History::read(&path).unwrap();
        assert_eq!((history.runs.len(), history.unreadable), (160, 0));
        let mut seen: Vec<f64> = history.runs.iter().map(|run| run.numbers[0]).collect();
        seen.sort_by(f64::total_cmp);
        seen.dedup();
        assert_eq!(seen.len(), 160);
    }

    #[test]
    fn a_line_whose_writer_died_costs_that_line_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(HISTORY);
        assert!(History::read(&path).unwrap().runs.is_empty());
        run(1.0, 1.0).append(&path).unwrap();
        let mut text = fs::read(&path).unwrap();
        let half = text.len() / 2;
        text.extend_from_within(..half);
        fs::write(&path, &text).unwrap();
        let history = History::read(&path).unwrap();
        assert_eq!((history.runs.len(), history.unreadable), (1, 0));
        run(2.0, 1.0).append(&path).unwrap();
        let mut odd = run(3.0, 1.0);
        odd.cpu_s = -1.0;
        odd.append(&path).unwrap();
        let history = History::read(&path).unwrap();
        assert_eq!((history.runs.len(), history.unreadable), (2, 2));
    }

    #[test]
    fn a_history_that_grows_too_large_keeps_its_newer_half() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(HISTORY);
        let line = serde_json::to_string(&run(1.0, 1.0)).unwrap();
        let count = FILE_BYTES_MAX as usize / (line.len() + 1) + 1;
        fs::write(&path, format!("{line}\n").repeat(count)).unwrap();
        run(2.0, 1.0).append(&path).unwrap();
        let history = History::read(&path).unwrap();
        assert_eq!(history.unreadable, 0);
        assert!(history.runs.len() >= count / 2 - 1 && history.runs.len() <= count / 2 + 2);
        assert_eq!(history.runs.last(), Some(&run(2.0, 1.0)));
        let mut long = run(1.0, 1.0);
        long.words.push("x".repeat(LINE_BYTES_MAX));
        let refused = long.append(&path).unwrap_err().to_string();
        assert!(refused.contains("--param"), "{refused}");
    }

    #[test]
    fn a_writer_that_holds_the_lock_for_too_long_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(HISTORY);
        let held = lock(&path).unwrap();
        let refused = run(1.0, 1.0).append(&path).unwrap_err();
        assert!(matches!(refused, HistoryError::Busy(_)), "{refused}");
        drop(held);
        run(1.0, 1.0).append(&path).unwrap();
    }

    #[test]
    fn a_host_is_as_fast_as_the_median_of_its_newest_runs() {
        let mut history = History::default();
        let on = |host: Option<&str>, speed: f64| PastLine {
            host: host.map(str::to_owned),
            speed,
            ..run(1.0, 1.0)
        };
        // The oldest runs do not count: the host has another processor now.
        for speed in [9.0, 9.0, 9.0, 1.1, 1.2, 1.0, 0.2, 1.3] {
            history.runs.push(on(Some("a"), speed));
        }
        history.runs.push(on(Some("b"), 0.0));
        history.runs.push(on(None, 5.0));
        let speeds = history.speeds();
        assert_eq!(
            speeds.into_iter().collect::<Vec<_>>(),
            [("a".to_owned(), 1.1)]
        );
        let old = serde_json::to_string(&on(None, 1.0)).unwrap();
        assert!(!old.contains("host"), "{old}");
    }

    #[test]
    fn only_runs_with_the_same_words_are_compared() {
        let mut history = History::default();
        for (steps, cpu) in [(100.0, 12.0), (200.0, 22.0), (400.0, 41.0), (800.0, 83.0)] {
            history.runs.push(run(steps, cpu));
        }
        let mut other = run(300.0, 9999.0);
        other.words[0] = "another".into();
        history.runs.push(other);
        let outlook = history.outlook(&kind(300.0)).unwrap();
        assert!((outlook.cpu.cpu_s - 24.998_78).abs() < 1e-5, "{outlook:?}");
        assert!((outlook.work_s - 2.0 * 24.998_78).abs() < 1e-4);
        assert_eq!((outlook.cpu.runs, outlook.quiet_s), (4, 800.0));
        assert_eq!(history.outlook(&kind(900.0)).unwrap().outside, [0]);
        let unknown = Kind {
            words: vec!["unknown".into()],
            numbers: vec![],
        };
        assert!(history.outlook(&unknown).is_none());
    }
}
