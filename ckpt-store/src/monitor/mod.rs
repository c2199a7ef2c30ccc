//! Watches the machine, for its owner and for the grid: when does the owner need the machine, and when
//! will the machine be there?
//!
//! The way of a reading, every six seconds:
//! 1. a [`Sampler`] reads counters of CPU, memory and disk, without the share of guests
//! 2. [`watch`] makes states of them, and runs of equal states
//! 3. [`history`] keeps the runs on disk
//! 4. [`outlook`] learns from the runs how long the host will stay available
//! 5. [`stance`] decides what may be asked of the host now, within its owner's [`preferences`]
//!
//! While there are guests, the CPU's counters are read every second as well, which is soon enough for
//! guests to make room.

pub mod guests;
pub mod history;
pub mod outlook;
pub mod pause;
pub mod preferences;
pub mod stance;
pub mod watch;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use placement::state::HostReading;
use protocol::errors::chain;
use protocol::wire::Withheld;
use protocol::wire::announcement::Announced;
use protocol::wire::machine::MachineClaim;
use tokio::sync::watch as watched;
use tracing::{info, warn};

use self::outlook::Predictor;
use crate::core::traffic::Days;

use crate::json_file::set_aside;
use guests::{Conditions, Full, Register, Seat};
use history::{HistoryError, HistoryFile, States};
use machine::local::Leaving;
use machine::{Counters, Guests, Machine, ProcessId, Sampler, power, programs, speed};
use pause::Pause;
use preferences::{MonitorSettings, PreferencesError};
use stance::{Circumstances, OwnerOrders, Reason, Stance, StanceReport};
use watch::{MachineWatch, Write};

/// Time between two readings, as in the papers.
pub const SAMPLE_PERIOD: Duration = Duration::from_secs(6);

/// Time between two readings of the CPU while there are guests.
pub const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// The announced rate of receiving is that of the fastest of this many transfers.
const RATED_TRANSFERS: usize = 16;

/// Shorter transfers say little of the rate and are ignored.
const RATED_BYTES_MIN: u64 = 4 << 20;

/// Why a monitor does not start.
#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    /// The history can't be used.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The owner's preferences can't be used.
    #[error("preferences: {0}")]
    Preferences(#[from] PreferencesError),
}

/// The reason that a host gives while it hands its shards over.
const LEAVING_REASON: Reason = Reason {
    what: Withheld::Leaving,
    retry_after_s: 3600,
};

/// Watches this machine, and says from its states what others may ask of the host.
#[derive(Debug)]
pub struct Monitor {
    data_dir: PathBuf,
    machine: Machine,
    sampler: Mutex<Sampler>,
    guests: Register,
    /// The speed of one processor; the reference processor has 1.
    speed: f64,
    conditions: watched::Sender<Conditions>,
    stand_back: bool,
    leaving: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    watch: MachineWatch,
    history: HistoryFile,
    settings: MonitorSettings,
    /// When each of the two files of `settings` was changed last.
    changed: [Option<SystemTime>; 2],
    earlier: Option<Reading>,
    /// The difference between the last two readings.
    last: Option<HostReading>,
    /// The last reading of the CPU while there are guests, and what guests were sent after it.
    looked: Option<(Reading, HostReading)>,
    stance: Stance,
    /// Since when the stance has been the same, and when the last decision was made, in Unix seconds.
    stands_since: u64,
    decided: u64,
    /// A program that is running now and during which the owner wants the machine alone.
    program: Option<String>,
    /// Why the present preferences are not in force.
    preferences_error: Option<String>,
    received: VecDeque<f64>,
    /// Whether the last reading failed. Only the first failure of a series is logged.
    blind: bool,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    counters: Counters,
    unix_seconds: u64,
    at: Instant,
}

/// Most bytes per second in each direction; `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes per second that this host receives.
    pub receive: Option<f64>,
    /// Bytes per second that this host sends.
    pub send: Option<f64>,
}

impl Monitor {
    /// A monitor of the machine whose shards are in `data_dir`. It continues the history in that
    /// directory. If `stand_back` is false, it watches the machine, but the host stands back only when
    /// its owner has paused it or set a limit on transfers. `predictor` makes its forecasts.
    ///
    /// # Errors
    /// When the history or the preferences in the directory can't be used.
    pub fn open(
        data_dir: &Path,
        machine: Machine,
        stand_back: bool,
        predictor: Predictor,
        unix_seconds: u64,
    ) -> Result<Self, MonitorError> {
        let settings = preferences::load(data_dir)?;
        let (watch, history) = remembered(data_dir, unix_seconds, &settings, predictor)?;
        let inner = Inner {
            watch,
            history,
            settings,
            changed: changed(data_dir),
            earlier: None,
            last: None,
            looked: None,
            stance: Stance::Open,
            stands_since: unix_seconds,
            decided: unix_seconds,
            program: None,
            preferences_error: None,
            received: VecDeque::new(),
            blind: false,
        };
        Ok(Self {
            data_dir: data_dir.to_owned(),
            sampler: Mutex::new(Sampler::new(machine.clone()).with_disk_of(data_dir)),
            machine,
            guests: Register::default(),
            speed: speed::measure(),
            conditions: watched::Sender::default(),
            stand_back,
            leaving: AtomicBool::new(false),
            inner: Mutex::new(inner),
        })
    }

    /// Takes a reading; has to be called every [`SAMPLE_PERIOD`]. `room_bytes` may still be stored, and
    /// `moved` has the bytes that were moved on each day.
    pub fn sample(&self, unix_seconds: u64, room_bytes: u64, moved: &Days) {
        let pause = Pause::read(&self.data_dir);
        let (commands, apps, orders) = {
            let mut inner = self.inner();
            inner.reload(&self.data_dir);
            let orders = OwnerOrders {
                paused_for: pause.seconds_left(unix_seconds),
                transfers_in: inner
                    .settings
                    .transfers
                    .map_or(0, |limit| moved.seconds_until_allowed(unix_seconds, limit)),
            };
            // The owner's orders count whatever the load is, and even if it can't be read.
            if let Some(stance) = stance::stance_of(orders) {
                inner.take(stance, unix_seconds);
            }
            let settings = &inner.settings;
            (
                settings.guest_commands.clone(),
                settings.exclusive_apps.clone(),
                orders,
            )
        };
        let program = programs::running(&self.machine, &apps);
        // Done without the lock, because transfers wait for it.
        let guests = self.guests(&commands);
        let read = lock(&self.sampler).read(&guests);
        let on_battery = power::on_battery(&self.machine);
        let mut inner = self.inner();
        let counters = match read {
            Ok(counters) => counters,
            Err(cause) => {
                if !std::mem::replace(&mut inner.blind, true) {
                    warn!(%cause, "the machine's load can't be read");
                }
                return;
            }
        };
        inner.blind = false;
        let reading = Reading {
            counters,
            unix_seconds,
            at: Instant::now(),
        };
        let done = inner.observe(&self.data_dir, reading, room_bytes);
        if let Err(cause) = done {
            warn!(cause = %chain(&cause), "can't write the history");
        }
        inner.program = program;
        if self.stand_back {
            let circumstances = Circumstances {
                hour: hour_of_day(unix_seconds),
                on_battery,
                is_wanted_alone: inner.program.is_some(),
                orders,
            };
            inner.decide(circumstances, unix_seconds);
        } else {
            let stance = stance::stance_of(orders).unwrap_or(Stance::Open);
            inner.take(stance, unix_seconds);
        }
        let are_here = guests.processes().next().is_some();
        let seen = inner.seen_by_guests(reading, are_here);
        self.announce(&inner, counters.cpus, seen);
    }

    /// Sends guests the result of a reading.
    fn announce(&self, inner: &Inner, cpus: usize, seen: Option<HostReading>) {
        self.conditions.send_modify(|conditions| {
            conditions.cpus = cpus;
            conditions.reading = seen;
            conditions.thresholds = inner.settings.cpu;
            conditions.guest_memory_bytes = inner.settings.guest_memory_bytes;
            conditions.withheld = inner.stance.reason();
        });
    }

    /// Reads the CPU's counters and sends guests the result. Memory, disk and the owner's orders are
    /// those of the last reading of [`Self::sample`]. Has to be called every [`LOOK_PERIOD`] while there
    /// are guests.
    pub fn read_for_guests(&self, unix_seconds: u64) {
        let (commands, before) = {
            let inner = self.inner();
            let Some(earlier) = inner.earlier else {
                return;
            };
            (inner.settings.guest_commands.clone(), earlier.counters)
        };
        let guests = self.guests(&commands);
        let Ok(counters) = lock(&self.sampler).look(&guests, &before) else {
            // The next `sample` logs the error.
            return;
        };
        let reading = Reading {
            counters,
            unix_seconds,
            at: Instant::now(),
        };
        let seen = self.inner().seen_by_guests(reading, true);
        self.conditions
            .send_modify(|conditions| conditions.reading = seen);
    }

    /// The number of guests, which changes when a guest comes or goes.
    pub fn guest_count(&self) -> watched::Receiver<usize> {
        self.guests.count()
    }

    /// The machine that is watched.
    pub const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Makes a process of a user, and all processes that it starts, guests until the seat is dropped.
    ///
    /// # Errors
    /// When there are too many guests.
    pub fn admit(&self, process: ProcessId, user: u32) -> Result<Seat, Full> {
        let seat = self.guests.enter(process, user)?;
        lock(&self.sampler).admit(process);
        Ok(seat)
    }

    /// All guests: those that have registered, and all processes that run one of `commands`.
    pub fn guests(&self, commands: &[String]) -> Guests {
        self.guests.guests(commands)
    }

    /// What guests are sent, which changes after each reading.
    pub fn conditions(&self) -> watched::Receiver<Conditions> {
        self.conditions.subscribe()
    }

    /// Announces to guests that the daemon is about to end.
    pub fn announce_end(&self, leaving: Leaving) {
        self.conditions
            .send_modify(|conditions| conditions.leaving = Some(leaving));
    }

    /// What the host does for others, for showing it to its owner.
    pub fn stance_report(&self) -> StanceReport {
        let stance = self.stance();
        let inner = self.inner();
        let ends_at = |reason: Reason| {
            let is_known = matches!(
                reason.what,
                Withheld::Hours | Withheld::NetworkHours | Withheld::Transfers
            );
            let at = inner.decided.saturating_add(reason.retry_after_s.into());
            is_known.then_some(at)
        };
        StanceReport {
            stance,
            since: inner.stands_since,
            until: match (stance, Pause::read(&self.data_dir)) {
                (Stance::Open, _) => None,
                (Stance::StandBack(reason), Pause::Until(until))
                    if reason.what == Withheld::Paused =>
                {
                    Some(until)
                }
                (Stance::StandBack(reason) | Stance::Closed(reason), _) => ends_at(reason),
            },
            program: inner.program.clone(),
            preferences_error: inner.preferences_error.clone(),
        }
    }

    /// What may be asked of the host now.
    pub fn stance(&self) -> Stance {
        match self.inner().stance {
            Stance::Open if self.leaving.load(Ordering::Relaxed) => {
                Stance::StandBack(LEAVING_REASON)
            }
            stance => stance,
        }
    }

    /// From now on the host refuses new shards, because it is about to end.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// The host is not about to end any more.
    pub fn stay(&self) {
        self.leaving.store(false, Ordering::Relaxed);
        self.conditions
            .send_modify(|conditions| conditions.leaving = None);
    }

    /// The limits of speed: those of the owner and, while the host stands back, that of slow reads.
    pub fn rates(&self) -> Rates {
        let inner = self.inner();
        let send = inner.settings.send_rate;
        Rates {
            receive: inner.settings.receive_rate,
            send: match inner.stance {
                Stance::Open => send,
                _ => Some(send.unwrap_or(f64::INFINITY).min(inner.settings.slow_rate)),
            },
        }
    }

    /// How much of the disk the owner allows to use.
    pub fn disk_use(&self) -> preferences::DiskUse {
        self.inner().settings.disk_use
    }

    /// Notes that this host received `bytes` in the time `took`.
    pub fn received(&self, bytes: u64, took: Duration) {
        if bytes < RATED_BYTES_MIN {
            return;
        }
        let rate = bytes as f64 / took.as_secs_f64().max(1e-3);
        let mut inner = self.inner();
        inner.received.push_front(rate);
        inner.received.truncate(RATED_TRANSFERS);
    }

    /// The announcement of this host.
    pub fn announced(&self, unix_seconds: u64) -> Announced {
        let inner = self.inner();
        let states = inner.watch.states().unwrap_or(States::CALM);
        let (guest, presence) = inner.watch.outlook().curves();
        let (guest_bitmap, presence_bitmap) = inner.watch.outlook().bitmaps();
        let fastest = inner.received.iter().copied().fold(0.0, f64::max);
        let allowed = inner.settings.receive_rate;
        let rate = if fastest > 0.0 {
            Some(fastest.min(allowed.unwrap_or(f64::INFINITY)))
        } else {
            allowed
        };
        Announced {
            at: unix_seconds,
            storage_state: states.storage,
            guest_state: states.guest,
            refuses_for_s: inner.stance.refuses_for_s(),
            withheld: inner.stance.what(),
            machine: self.claim(&inner),
            forecast_by: Some(inner.watch.outlook().predictor().into()),
            receives_bytes_per_s: rate.map(|rate| rate as u64),
            presence,
            guest,
            presence_bitmap,
            guest_bitmap,
        }
    }

    /// What a guest could have of this machine. `None` before the first reading.
    fn claim(&self, inner: &Inner) -> Option<MachineClaim> {
        let reading = inner.last.as_ref()?;
        let earlier = inner.earlier?;
        let cores = u16::try_from(earlier.counters.cpus).unwrap_or(u16::MAX);
        let guests = u16::try_from(*self.guests.count().borrow()).unwrap_or(u16::MAX);
        // Forecasts account for the load of an owner at work, but not for an owner that lends nothing
        // now.
        let is_lent = !matches!(
            inner.stance.what(),
            Some(
                Withheld::Hours
                    | Withheld::Battery
                    | Withheld::Leaving
                    | Withheld::Paused
                    | Withheld::Program
            )
        );
        let is_lent = is_lent && !self.leaving.load(Ordering::Relaxed);
        Some(MachineClaim {
            cores: cores.max(1),
            speed: self.speed,
            memory_bytes: reading.free_memory_bytes,
            places: if is_lent {
                cores.saturating_sub(guests)
            } else {
                0
            },
            load: inner.watch.outlook().load().unwrap_or_default(),
        })
    }

    /// Writes the part of the history that is not on the disk yet.
    pub fn close(&self) {
        let mut inner = self.inner();
        let last = inner.watch.close();
        if let Err(cause) = inner.write(last) {
            warn!(cause = %chain(&cause), "can't write the history");
        }
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        lock(&self.inner)
    }
}

impl Inner {
    fn observe(
        &mut self,
        data_dir: &Path,
        reading: Reading,
        room_bytes: u64,
    ) -> Result<(), HistoryError> {
        let now = reading.unix_seconds;
        if self.watch.clock_went_back(now) {
            warn!("the clock was set back: records later than the present time are dropped");
            let predictor = self.watch.outlook().predictor();
            (self.watch, self.history) = remembered(data_dir, now, &self.settings, predictor)?;
            self.earlier = None;
        }
        let Some(earlier) = self.earlier.replace(reading) else {
            return Ok(());
        };
        let interval = earlier.unix_seconds.min(now)..now;
        let elapsed_ms = reading.at.duration_since(earlier.at).as_secs_f64() * 1e3;
        let before = &earlier.counters;
        let host = reading.counters.host_since(before, interval.clone());
        let disk = reading
            .counters
            .disk_since(before, interval, elapsed_ms, room_bytes);
        let writes = self.watch.observe(&host, &disk);
        self.last = Some(host);
        self.write(writes)
    }

    /// The reading that guests are sent: the CPU since the last look, and memory as in the last full
    /// reading.
    fn seen_by_guests(&mut self, reading: Reading, are_here: bool) -> Option<HostReading> {
        let last = self.last.clone()?;
        let looked = self.looked.take().filter(|_| are_here);
        let now = reading.unix_seconds;
        let (reading, seen) = match looked {
            // Within one second the CPU's counters are too coarse, so the CPU stays as it was.
            Some((before, sent)) if before.unix_seconds == now => {
                let seen = HostReading {
                    interval: sent.interval,
                    owner_cpu: sent.owner_cpu,
                    ..last
                };
                (before, seen)
            }
            Some((before, _)) if before.unix_seconds < now => {
                let seen = HostReading {
                    interval: before.unix_seconds..now,
                    owner_cpu: reading.counters.load_since(&before.counters).owner,
                    ..last
                };
                (reading, seen)
            }
            // This is the first look, or the clock was set back.
            _ => (reading, last),
        };
        if are_here {
            self.looked = Some((reading, seen.clone()));
        }
        Some(seen)
    }

    fn write(&mut self, writes: impl IntoIterator<Item = Write>) -> Result<(), HistoryError> {
        writes.into_iter().try_for_each(|write| match write {
            Write::Append(run) => self.history.append(&run),
            Write::Update(run) => self.history.update(&run),
        })
    }

    fn decide(&mut self, circumstances: Circumstances, now: u64) {
        if let Some(states) = self.watch.states() {
            self.take(stance::stance(states, circumstances, &self.settings), now);
        }
    }

    /// Changes the stance at `now`, in Unix seconds.
    fn take(&mut self, stance: Stance, now: u64) {
        self.decided = now;
        let before = std::mem::replace(&mut self.stance, stance);
        if before.what() == stance.what() {
            return;
        }
        self.stands_since = now;
        match stance.what() {
            Some(what) => info!(why = what.why(), program = self.program, "standing back"),
            None => info!("no longer standing back"),
        }
    }

    /// Reads preferences that were changed. If the new ones are wrong, those in force stay.
    fn reload(&mut self, data_dir: &Path) {
        let changed = changed(data_dir);
        if changed == self.changed {
            return;
        }
        self.changed = changed;
        match preferences::load(data_dir) {
            Ok(settings) => {
                info!("read the changed preferences");
                self.watch.apply(&settings);
                self.settings = settings;
                self.preferences_error = None;
            }
            Err(cause) => {
                let cause = chain(&cause);
                warn!(cause, "the previous preferences stay in force");
                self.preferences_error = Some(cause);
            }
        }
    }
}

/// A panic can't leave the value half changed, so a poisoned lock is used all the same.
fn lock<T>(inner: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the history of a data directory up to `now`.
fn remembered(
    data_dir: &Path,
    now: u64,
    settings: &MonitorSettings,
    predictor: Predictor,
) -> Result<(MachineWatch, HistoryFile), HistoryError> {
    let last = history::runs(data_dir).map(|runs| runs.last());
    // Statistics must not keep a host from serving what it holds.
    let end = match last {
        Ok(last) => last.map(|run| run.span.end),
        Err(cause) => {
            let aside = set_aside(&history::path(data_dir));
            warn!(cause = %chain(&cause), ?aside, "the history is damaged: the host begins a new one");
            None
        }
    };
    let mut history = if watch::is_of_the_future(end, now) {
        warn!("the history has records later than the present time: they are dropped");
        let past = history::runs(data_dir)?.take_while(|run| run.span.end <= now);
        HistoryFile::open_first(data_dir, past.count())?
    } else {
        HistoryFile::open(data_dir)?
    };
    let (watch, writes) = MachineWatch::resume(history::runs(data_dir)?, now, settings, predictor);
    for write in writes {
        let written = match write {
            Write::Append(run) => history.append(&run),
            Write::Update(run) => history.update(&run),
        };
        // A full disk must not keep a host from serving what it holds.
        if let Err(cause) = written {
            warn!(cause = %chain(&cause), "can't write the history");
        }
    }
    Ok((watch, history))
}

fn changed(data_dir: &Path) -> [Option<SystemTime>; 2] {
    [
        preferences::preferences_path(data_dir),
        preferences::calibration_path(data_dir),
    ]
    .map(|path| path.metadata().and_then(|file| file.modified()).ok())
}

/// The hour of the day in the machine's time zone, from 0 to 24.
pub(crate) fn hour_of_day(unix_seconds: u64) -> f64 {
    let seconds = i64::try_from(unix_seconds).unwrap_or(i64::MAX);
    let Ok(time) = jiff::Timestamp::from_second(seconds) else {
        return 0.0;
    };
    let local = time.to_zoned(jiff::tz::TimeZone::system());
    f64::from(local.hour()) + f64::from(local.minute()) / 60.0 + f64::from(local.second()) / 3600.0
}
