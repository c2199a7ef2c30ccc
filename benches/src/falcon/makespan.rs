//! How long jobs take whose machines are taken away again and again, as a trace says, faster than real time.
//!
//! Every job runs on a machine of its own until the machine is taken from it, and goes on at once on another
//! one, whose disk is empty. When that happens follows from the trace, the seed and the client alone, so
//! that all schemes meet the same evictions. In the loops a save is begun at Young's interval for what the
//! last save took: sqrt(2 C MTBF).

use std::fs;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use placement::history::Timeline;
use placement::state::{AvailabilityState, ModelState};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use tests::net::CLIENT;
use tests::program::wait_until;
use tests::supervised::is_run_by_somebody;
use traces::Trace;

use super::lab::{Lab, Way};
use crate::meter::at_once;
use crate::placement_sim::figures::estimate;
use crate::placement_sim::score::paired;
use crate::scheduling_sim::{mean_of_ratios, ratio_of_means};

/// How often processes are looked at.
const LOOK: Duration = Duration::from_millis(20);

/// What the machine leaves a job that it warns.
const GRACE: Duration = Duration::from_secs(20);

/// How long a job may take to write its state.
const WRITE_LIMIT: Duration = Duration::from_secs(60);

/// How long a job may live on when its supervisor was killed.
const JOB_END_LIMIT: Duration = Duration::from_secs(30);

/// A scheme gives up when it has taken this many times the work.
const PATIENCE: f64 = 10.0;

/// Share of the mean time between evictions after which the first save begins.
const FIRST_INTERVAL: f64 = 0.1;

/// What jobs there are.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Jobs at the same time, each on a machine of its own.
    pub clients: u8,
    /// Bytes of each job's state.
    pub state_bytes: usize,
    /// Time that a job needs for itself.
    pub work: Duration,
    /// Seconds of the trace for each second of the experiment.
    pub speed_up: f64,
    /// What evictions are drawn with.
    pub seed: u64,
}

/// How jobs are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Nothing,
    Loop(Way),
    /// `ckpt run`, killed without a warning.
    Run,
    /// `ckpt run`, which gets SIGTERM and has 20 s to leave.
    RunWarned,
}

const SCHEMES: [(&str, Scheme); 6] = [
    ("no checkpoints", Scheme::Nothing),
    ("one server, uncompressed", Scheme::Loop(Way::Server)),
    ("random 3+2, uncompressed", Scheme::Loop(Way::RANDOM_RAW)),
    ("ckpt save in the same loop", Scheme::Loop(Way::CKPT)),
    ("ckpt run, no warning", Scheme::Run),
    ("ckpt run, SIGTERM and 20 s", Scheme::RunWarned),
];

/// What became of a job.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    /// Seconds until it was done; `None` when it was given up.
    makespan: Option<f64>,
    evictions: usize,
    /// Saves that failed although the machine was there. The loop tries again after its usual interval.
    failed_saves: usize,
}

/// Seconds for which machines stay, one after the other, until together they are `total`.
///
/// # Errors
/// When no machine of the trace is ever taken away.
fn stays(trace: &Trace, setting: Setting, client: u8, total: f64) -> Result<Vec<f64>> {
    let failing = trace
        .hosts
        .iter()
        .filter(|host| has_failure(&host.timeline));
    let hosts: Vec<_> = failing.collect();
    ensure!(!hosts.is_empty(), "no host of {} ever fails", trace.name);
    let mut draw = StdRng::seed_from_u64(setting.seed << 8 | u64::from(client));
    let mut stays = Vec::new();
    while stays.iter().sum::<f64>() < total {
        let line = &hosts[draw.random_range(0..hosts.len())].timeline;
        let from = draw.random_range(line.start()..line.end());
        if line.state_at(from).is_none_or(ModelState::is_failure) {
            continue;
        }
        let stay = line.follow_up(from, line.end());
        if stay.failed {
            stays.push(stay.seconds as f64 / setting.speed_up);
        }
    }
    Ok(stays)
}

fn has_failure(line: &Timeline<AvailabilityState>) -> bool {
    let mut runs = line.runs(line.start()..line.end());
    runs.any(|run| run.state.is_some_and(ModelState::is_failure))
}

/// Runs all schemes one after the other, for each of `seeds` seeds. Returns a table with a line for each scheme, over the
/// jobs of all seeds.
///
/// # Errors
/// When a program fails.
pub fn makespans(lab: &Lab, trace: &Trace, setting: Setting, seeds: u64) -> Result<String> {
    let alone = alone(lab, setting)?;
    let mut found: Vec<Vec<Outcome>> = vec![Vec::new(); SCHEMES.len()];
    let mut all: Vec<f64> = Vec::new();
    for seed in (setting.seed..).take(usize::try_from(seeds)?) {
        let setting = Setting { seed, ..setting };
        let plans = (0..setting.clients)
            .map(|client| stays(trace, setting, client, PATIENCE * alone))
            .collect::<Result<Vec<_>>>()?;
        let stays: Vec<f64> = plans.iter().flatten().copied().collect();
        let mtbf = mean(&stays);
        all.extend(stays);
        for ((name, scheme), found) in SCHEMES.iter().zip(&mut found) {
            let outcomes = at_once(setting.clients, |client| {
                let stays = plans.get(usize::from(client)).context("no plan")?;
                Job::new(lab, setting, client, mtbf)?.run(*scheme, stays)
            })?;
            let makespans = outcomes.iter().map(|one| one.makespan);
            eprintln!("seed {seed}: {name}: {:.1?}", makespans.collect::<Vec<_>>());
            found.extend(outcomes);
        }
    }
    let mut table = format!(
        "{} jobs, {} at a time, of {alone:.0} s, {} MiB; machines of {} stay {:.0} s on average, {} times faster than they did\n\n\
         | scheme | done | makespan, s | / work | of one server's: mean of ratios | ratio of means | of random's: mean of ratios | ratio of means | evictions | failed saves |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
        seeds * u64::from(setting.clients),
        setting.clients,
        setting.state_bytes >> 20,
        trace.name,
        mean(&all),
        setting.speed_up,
    );
    for ((name, _), outcomes) in SCHEMES.iter().zip(&found) {
        let beside = |way: Way| {
            let mut all = SCHEMES.iter().zip(&found);
            let other = all.find(|((_, scheme), _)| *scheme == Scheme::Loop(way));
            let other = other.filter(|((other, _), _)| other != name);
            other.map_or_else(|| "- | -".to_owned(), |(_, other)| ratios(outcomes, other))
        };
        let done: Vec<f64> = outcomes.iter().filter_map(|one| one.makespan).collect();
        let mean = mean(&done);
        table += &format!(
            "| {name} | {} of {} | {mean:.0} | {:.2} | {} | {} | {} | {} |\n",
            done.len(),
            outcomes.len(),
            mean / alone,
            beside(Way::Server),
            beside(Way::RANDOM_RAW),
            outcomes.iter().map(|one| one.evictions).sum::<usize>(),
            outcomes.iter().map(|one| one.failed_saves).sum::<usize>(),
        );
    }
    Ok(table)
}

/// Two columns: makespans as a share of those of the same jobs under another scheme, as the mean of the ratios and as the
/// ratio of the means, each with the 95% interval of a bootstrap over jobs.
fn ratios(these: &[Outcome], others: &[Outcome]) -> String {
    let of = |all: &[Outcome]| -> Vec<Vec<Option<f64>>> {
        all.iter().map(|one| vec![one.makespan]).collect()
    };
    let [these, others] = [these, others].map(of);
    format!(
        "{} | {}",
        estimate(paired(&these, &others, mean_of_ratios), 1.0, 2),
        estimate(paired(&these, &others, ratio_of_means), 1.0, 2)
    )
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// What a job takes that is never evicted and never saved.
fn alone(lab: &Lab, setting: Setting) -> Result<f64> {
    let job = Job::new(lab, setting, 0, f64::INFINITY)?;
    let outcome = job.run(Scheme::Nothing, &[f64::MAX / 2.0])?;
    outcome.makespan.context("it was given up")
}

/// One job.
struct Job<'a> {
    lab: &'a Lab,
    setting: Setting,
    client: u8,
    mtbf: f64,
    dir: PathBuf,
}

/// How an incarnation of a job ended.
enum End {
    Done,
    Evicted,
}

impl<'a> Job<'a> {
    fn new(lab: &'a Lab, setting: Setting, client: u8, mtbf: f64) -> Result<Self> {
        let dir = lab.path(&format!("machine-{client}"));
        empty(&dir)?;
        Ok(Self {
            lab,
            setting,
            client,
            mtbf,
            dir,
        })
    }

    fn name(&self) -> String {
        format!("job-{}", self.client)
    }

    fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// The job's own command line.
    fn words(&self) -> Result<Vec<String>> {
        let program = std::env::current_exe()?.with_file_name("hash-job");
        ensure!(
            program.exists(),
            "{}: build it (-p tests --bin hash-job)",
            program.display()
        );
        let steps = self.setting.work.as_millis() / 10;
        Ok(vec![
            program.display().to_string(),
            self.state().display().to_string(),
            "like=memory".to_owned(),
            format!("bytes={}", self.setting.state_bytes),
            "every=0".to_owned(),
            "usr2".to_owned(),
            format!("end={steps}"),
        ])
    }

    fn run(&self, scheme: Scheme, stays: &[f64]) -> Result<Outcome> {
        let began = Instant::now();
        let mut evictions = 0;
        let mut kept = Kept {
            way: None,
            interval: self.mtbf * FIRST_INTERVAL,
            failed_saves: 0,
        };
        for stay in stays {
            let until = Instant::now() + seconds(*stay);
            let end = match scheme {
                Scheme::Nothing => self.incarnation(until, None, &mut kept)?,
                Scheme::Loop(way) => self.incarnation(until, Some(way), &mut kept)?,
                Scheme::Run => self.supervised(until, Signal::KILL)?,
                Scheme::RunWarned => self.supervised(until, Signal::TERM)?,
            };
            if matches!(end, End::Done) {
                let makespan = Some(began.elapsed().as_secs_f64());
                if let Some(way) = kept.way {
                    self.lab.forget(way, &self.name())?;
                }
                return Ok(Outcome {
                    makespan,
                    evictions,
                    failed_saves: kept.failed_saves,
                });
            }
            evictions += 1;
            empty(&self.dir)?;
        }
        Ok(Outcome {
            makespan: None,
            evictions,
            failed_saves: kept.failed_saves,
        })
    }

    /// Restores the job if it was saved, runs it and saves it until it is done or evicted.
    fn incarnation(&self, until: Instant, way: Option<Way>, kept: &mut Kept) -> Result<End> {
        if let Some(way) = kept.way {
            let restoring = self
                .lab
                .restore(self.client, way, &self.name(), &self.state())?;
            match result(restoring, until)? {
                Ended::Done => {}
                Ended::Failed(why) => bail!("a restore failed: {why}"),
                Ended::Killed => return Ok(End::Evicted),
            }
        }
        let words = self.words()?;
        let mut job = Command::new(&words[0]);
        job.args(&words[1..]);
        let mut job = spawn(job)?;
        let mut next = Instant::now() + seconds(kept.interval);
        loop {
            if let Some(status) = job.try_wait()? {
                ensure!(status.success(), "the job ended with {status}");
                return Ok(End::Done);
            }
            if Instant::now() >= until {
                end(&mut job)?;
                return Ok(End::Evicted);
            }
            if let Some(way) = way.filter(|_| Instant::now() >= next) {
                let began = Instant::now();
                match self.save(&mut job, way, until)? {
                    Ended::Done => {
                        kept.way = Some(way);
                        kept.interval = (2.0 * began.elapsed().as_secs_f64() * self.mtbf).sqrt();
                    }
                    Ended::Failed(why) => {
                        eprintln!("a save of {} failed: {why}", self.name());
                        kept.failed_saves += 1;
                    }
                    Ended::Killed => {}
                }
                next = Instant::now() + seconds(kept.interval);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Has the job write its state and saves that. `Killed` when the job ended or its machine was taken away
    /// before.
    fn save(&self, job: &mut Child, way: Way, until: Instant) -> Result<Ended> {
        let before = written(&self.state());
        kill_process(Pid::from_child(job), Signal::USR2)?;
        let asked = Instant::now();
        while written(&self.state()) == before {
            if Instant::now() >= until || job.try_wait()?.is_some() {
                return Ok(Ended::Killed);
            }
            ensure!(
                asked.elapsed() < WRITE_LIMIT,
                "the job does not write its state"
            );
            std::thread::sleep(LOOK);
        }
        let saving = self
            .lab
            .save(self.client, way, &self.name(), &self.state())?;
        result(saving, until)
    }

    /// The job under `ckpt run`, until it is done or gets this signal.
    fn supervised(&self, until: Instant, signal: Signal) -> Result<End> {
        let number = CLIENT - self.client;
        let name = self.name();
        let mtbf = format!("{:.0}s", self.mtbf.max(1.0));
        let files = self.state().display().to_string();
        let grace = format!("{}s", GRACE.as_secs());
        let run = [
            "--json",
            "run",
            "--batch",
            "--memory",
            "64MiB",
            "--job",
            &name,
            "--files",
            &files,
            "--ask",
            "signal:USR2",
            "--mtbf",
            &mtbf,
            "--grace",
            &grace,
            "--history",
            "none",
            "--after-success",
            "forget",
            "--",
        ];
        let words = self.words()?;
        let words = run.iter().copied().chain(words.iter().map(String::as_str));
        let mut command = self.lab.grid.command(number, words)?;
        command.current_dir(&self.dir);
        let mut supervisor = spawn(command)?;
        loop {
            if let Some(status) = supervisor.try_wait()? {
                ensure!(status.success(), "ckpt run ended with {status}");
                return Ok(End::Done);
            }
            if Instant::now() >= until {
                kill_process(Pid::from_child(&supervisor), signal)?;
                let status = supervisor.wait()?;
                wait_until("the job is gone", JOB_END_LIMIT, || {
                    Ok(!is_run_by_somebody(&self.state()))
                })?;
                // The next machine knows the links as well, and nothing of the job.
                let journal = self.lab.grid.state_dir(number).join("run").join(&name);
                fs::remove_dir_all(journal)?;
                return Ok(if status.success() {
                    End::Done
                } else {
                    End::Evicted
                });
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// What a loop knows of its checkpoints.
struct Kept {
    /// Where the newest is, when there is one.
    way: Option<Way>,
    /// Seconds from the end of a save to the beginning of the next one.
    interval: f64,
    failed_saves: usize,
}

/// How a command of a loop ended.
enum Ended {
    Done,
    /// With its status and what it printed.
    Failed(String),
    Killed,
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(86_400))
}

fn empty(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    Ok(fs::create_dir_all(dir)?)
}

fn written(state: &Path) -> Option<std::time::SystemTime> {
    fs::metadata(state).and_then(|data| data.modified()).ok()
}

fn spawn(mut command: Command) -> Result<Child> {
    let quiet = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    quiet.spawn().with_context(|| format!("{command:?}"))
}

fn end(child: &mut Child) -> Result<()> {
    child.kill()?;
    child.wait()?;
    Ok(())
}

/// Runs a command, and kills it at `until`.
fn result(mut command: Command, until: Instant) -> Result<Ended> {
    command.stdin(Stdio::null());
    let mut printed = tempfile::tempfile()?;
    command
        .stdout(printed.try_clone()?)
        .stderr(printed.try_clone()?);
    let mut child = command.spawn().with_context(|| format!("{command:?}"))?;
    loop {
        if let Some(status) = child.try_wait()? {
            if status.success() {
                return Ok(Ended::Done);
            }
            let mut text = String::new();
            printed.rewind()?;
            printed.read_to_string(&mut text)?;
            return Ok(Ended::Failed(format!("{status}: {}", text.trim_end())));
        }
        if Instant::now() >= until {
            end(&mut child)?;
            return Ok(Ended::Killed);
        }
        std::thread::sleep(LOOK);
    }
}
